"""Defects planted in the definition of causal convolution."""

from dnncanon.spec.mutant import Mutant

_MODULE = "dnncanon.reference.causal_conv"
_FORWARD, _BACKWARD = "causal_conv_forward", "causal_conv_backward"


def _causal(name: str, kind: str, doc: str, old: str, new: str, primitive: str) -> Mutant:
    return Mutant(
        f"reference.causal_conv_{name}",
        kind,
        doc,
        _MODULE,
        old,
        new,
        "reference",
        primitive,
        ("float32",),
    )


MUTANTS = (
    _causal(
        "filter_not_flipped",
        "attribute",
        "the first tap meets the present step in both modes",
        "return np.flip(w, axis=1) if p.flips else w",
        "return w",
        _FORWARD,
    ),
    _causal(
        "sees_the_next_step",
        "index",
        "the last tap is that of one step later",
        "return np.concatenate([nothing, x[:, :, : p.shape[2] - j]], axis=2)",
        "return np.concatenate([nothing, x[:, :, : p.shape[2] - j]], axis=2) if j else "
        "np.roll(x, -1, axis=2)",
        _FORWARD,
    ),
    _causal(
        "wraps_around",
        "bounds",
        "steps before the first are the last ones",
        "    nothing = np.zeros_like(x[:, :, :j])\n"
        "    return np.concatenate([nothing, x[:, :, : p.shape[2] - j]], axis=2)",
        "    nothing = x[:, :, p.shape[2] - j :]\n"
        "    return np.concatenate([nothing, x[:, :, : p.shape[2] - j]], axis=2)",
        _FORWARD,
    ),
    _causal(
        "last_tap_lost",
        "bounds",
        "the farthest tap is left out of filters of several",
        "terms = [_later(p, x, j) * w[:, j, None] for j in range(p.taps)]",
        "terms = [_later(p, x, j) * w[:, j, None] for j in range(max(1, p.taps - 1))]",
        _FORWARD,
    ),
    _causal(
        "bias_ignored",
        "attribute",
        "there is never a bias",
        "    if bias is not None:\n",
        "    if False:\n",
        _FORWARD,
    ),
    _causal(
        "bias_of_another_channel",
        "arithmetic",
        "the bias of a neighbouring channel is added",
        "np.broadcast_to(bias[:, None], p.shape)",
        "np.broadcast_to(np.roll(bias, 1)[:, None], p.shape)",
        _FORWARD,
    ),
    _causal(
        "silu_missing",
        "attribute",
        "there is no activation",
        'return swish(a) if p.activation == "silu" else a',
        "return a",
        _FORWARD,
    ),
    _causal(
        "gradient_of_the_output",
        "arithmetic",
        "dy goes past the activation",
        'if p.activation == "silu" else dy',
        'if p.activation == "never" else dy',
        _BACKWARD,
    ),
    _causal(
        "gradient_runs_forward",
        "index",
        "dx adds up the gradients before, not those after",
        "dx = [_earlier(p, g, j)",
        "dx = [_later(p, g, j)",
        _BACKWARD,
    ),
    _causal(
        "weights_gradient_of_one_sample",
        "bounds",
        "dw is that of the first sample",
        'return np.einsum("bdt,bdt->d", g[:, :, j:], x[:, :, : steps - j])',
        'return np.einsum("bdt,bdt->d", g[:1, :, j:], x[:1, :, : steps - j])',
        _BACKWARD,
    ),
    _causal(
        "weights_gradient_shifted",
        "index",
        "the products for dw are of one and the same step",
        "g[:, :, j:], x[:, :, : steps - j]",
        "g[:, :, : steps - j], x[:, :, : steps - j]",
        _BACKWARD,
    ),
    _causal(
        "weights_gradient_in_the_other_order",
        "index",
        "dw has its taps as distances",
        "_by_distance(p, np.stack(dw, axis=1)), dbias",
        "np.stack(dw, axis=1), dbias",
        _BACKWARD,
    ),
)
