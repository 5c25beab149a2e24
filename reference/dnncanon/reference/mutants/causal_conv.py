"""Defects planted in the definition of causal convolution."""

from dnncanon.spec.mutant import Mutant

_MODULE = "dnncanon.reference.causal_conv"
_FORWARD, _BACKWARD = "causal_conv_forward", "causal_conv_backward"
_GATED, _GATED_BACKWARD = "gated_causal_conv_forward", "gated_causal_conv_backward"


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
        "terms = [_earlier(p, g, j) * w[:, j, None]",
        "terms = [_later(p, g, j) * w[:, j, None]",
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
        "return _by_distance(p, convolution(dw, g, x))",
        "return convolution(dw, g, x)",
        _BACKWARD,
    ),
    _causal(
        "gated_factors_exchanged",
        "attribute",
        "the second sequence is the gate, and the first is mixed",
        "    gate, first, second = _projected(p, x, projection)\n    v = first * second\n",
        "    first, gate, second = _projected(p, x, projection)\n    v = first * second\n",
        _GATED,
    ),
    _causal(
        "gated_skip_is_a_bias",
        "arithmetic",
        "skip is added as it is, not times what is mixed",
        "mixed + skip[:, None] * direct",
        "mixed + skip[:, None]",
        _GATED,
    ),
    _causal(
        "gated_skip_ignored",
        "attribute",
        "nothing goes past the mixer",
        "return mixed if skip is None else mixed + skip[:, None] * direct",
        "return mixed",
        _GATED,
    ),
    _causal(
        "gated_once_more",
        "output",
        "y is put out behind the gate",
        "    return y, gate * y\n",
        "    return gate * y, gate * y\n",
        _GATED,
    ),
    _causal(
        "gated_by_a_sum",
        "arithmetic",
        "the two factors are added",
        "    v = first * second\n",
        "    v = first + second\n",
        _GATED,
    ),
    _causal(
        "gated_by_one_filter",
        "index",
        "all three sequences have the first one's filter",
        "_sums(p.projection, x[:, :, i], projection[:, i], None)",
        "_sums(p.projection, x[:, :, i], projection[:, 0], None)",
        _GATED,
    ),
    _causal(
        "gated_slopes_exchanged",
        "arithmetic",
        "each factor is differentiated by itself, not by the other",
        "slopes = (dgated * y, dv * second, dv * first)",
        "slopes = (dgated * y, dv * first, dv * second)",
        _GATED_BACKWARD,
    ),
    _causal(
        "gated_gate_passes_all",
        "arithmetic",
        "the gradient by y is that by gated",
        "v, g = first * second, dgated * gate",
        "v, g = first * second, dgated",
        _GATED_BACKWARD,
    ),
    _causal(
        "gated_gradient_past_the_skip",
        "arithmetic",
        "the gradient by what is mixed lacks the part through the skip",
        "dv = _with_skip(_input_gradient(p.mixer, g, mixer), g, skip)",
        "dv = _input_gradient(p.mixer, g, mixer)",
        _GATED_BACKWARD,
    ),
    _causal(
        "gated_mixer_gradient_of_one_factor",
        "arithmetic",
        "the mixer's gradient takes one factor for the product",
        "_weight_gradient(p.mixer, g, v), dskip",
        "_weight_gradient(p.mixer, g, first), dskip",
        _GATED_BACKWARD,
    ),
)
