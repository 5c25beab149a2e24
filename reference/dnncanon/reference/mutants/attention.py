"""Defects planted in the definitions of attention."""

from dnncanon.spec.mutant import Mutant


def _mutant(
    name: str, kind: str, doc: str, old: str, new: str, primitive: str = "sdpa_forward"
) -> Mutant:
    full, place = f"reference.attention_{name}", "dnncanon.reference.attention"
    return Mutant(full, kind, doc, place, old, new, "reference", primitive)


def _backward(name: str, kind: str, doc: str, old: str, new: str) -> Mutant:
    return _mutant(name, kind, doc, old, new, "sdpa_backward")


MUTANTS = (
    # --- Scores ---
    _mutant(
        "soft_cap_without_its_factor",
        "arithmetic",
        "a soft cap is that of 1",
        "s = p.soft_cap * np.tanh(s / p.soft_cap)",
        "s = np.tanh(s / p.soft_cap)",
    ),
    _mutant(
        "bias_before_the_soft_cap",
        "arithmetic",
        "the bias is multiplied by the scale",
        "s = s + bias",
        "s = s + p.scale * bias",
    ),
    _mutant(
        "slopes_of_no_head",
        "index",
        "all heads have the slope of the first",
        "slopes[:, None, None] * p.distances",
        "slopes[:1, None, None] * p.distances",
    ),
    _mutant(
        "distances_to_the_left",
        "arithmetic",
        "ALiBi raises what it should lower",
        "s = s + slopes[:, None, None] * p.distances",
        "s = s - slopes[:, None, None] * p.distances",
    ),
    _mutant(
        "mask_is_zero",
        "special",
        "what is not seen has a score of 0",
        "return np.where(p.visible, s, -np.inf), capped",
        "return np.where(p.visible, s, 0.0), capped",
    ),
    # --- Softmax ---
    _mutant(
        "sink_is_not_in_the_sum",
        "arithmetic",
        "the sink has a part in the maximum alone",
        "total = total + np.exp(sink - shift)",
        "total = total + 0.0 * np.exp(sink - shift)",
    ),
    _mutant(
        "rows_behind_the_end_have_a_sink",
        "bounds",
        "statistics behind the ends are the sink's",
        "sink = np.where(p.is_row, sink[:, None], -np.inf)",
        "sink = np.where(p.is_row | True, sink[:, None], -np.inf)",
    ),
    _mutant(
        "statistics_in_base_two",
        "arithmetic",
        "statistics are logarithms to base 2",
        "stats = shift + np.log(total)",
        "stats = shift + np.log(total) * 1.4426950408889634",
    ),
    _mutant(
        "statistics_without_the_maximum",
        "arithmetic",
        "statistics are those of the shifted scores",
        "stats = shift + np.log(total)",
        "stats = 0.0 * shift + np.log(total)",
    ),
    _mutant(
        "nothing_seen_is_nan",
        "special",
        "a row that sees nothing is 0/0",
        "np.where(total == 0.0, 1.0, total)[..., None]",
        "total[..., None]",
    ),
    _mutant(
        "dropped_but_not_scaled",
        "arithmetic",
        "what dropout keeps is not divided by 1 − p",
        "scale * probabilities, 0.0)",
        "probabilities, 0.0)",
    ),
    # --- Heads and sequences ---
    _mutant(
        "heads_tiled_not_repeated",
        "index",
        "head h has head h mod Hk of keys and values",
        "return np.repeat(x, p.heads // max(1, x.shape[1]), axis=1)",
        "return np.concatenate([x] * (p.heads // max(1, x.shape[1])), axis=1)",
    ),
    # --- Backward ---
    _backward(
        "delta_forgotten",
        "arithmetic",
        "dS is P∘dP",
        "(_dropped(p, dp) - delta[..., None])",
        "(_dropped(p, dp) - 0.0 * delta[..., None])",
    ),
    _backward(
        "gradient_not_dropped",
        "attribute",
        "dP does not go through the mask of dropout",
        "(_dropped(p, dp) - delta[..., None])",
        "(dp - delta[..., None])",
    ),
    _backward(
        "gradient_by_values_not_dropped",
        "attribute",
        "dV is made of probabilities before dropout",
        "kept(_dropped(p, probabilities), p.dtype).mT @ do",
        "kept(probabilities, p.dtype).mT @ do",
    ),
    _backward(
        "gradient_passes_the_soft_cap",
        "arithmetic",
        "the slope of the soft cap is left out",
        "ds = ds * (1.0 - np.square(capped / p.soft_cap))",
        "ds = ds * 1.0",
    ),
    _backward(
        "gradient_by_keys_not_scaled",
        "arithmetic",
        "dK lacks the scale",
        "dk = p.scale * _by_heads(",
        "dk = _by_heads(",
    ),
    _backward(
        "gradient_by_the_sink_of_the_wrong_sign",
        "arithmetic",
        "dsink has the sign of δ",
        "return -np.sum(probability * delta, axis=(0, 2))",
        "return np.sum(probability * delta, axis=(0, 2))",
    ),
    _backward(
        "gradient_by_a_bias_of_one_batch",
        "index",
        "dbias is not summed over heads",
        "axes = tuple(d for d, n in enumerate(shape) if n == 1 and ds.shape[d] != 1)\n    return",
        "axes = tuple(d for d, n in enumerate(shape) if n == 1 and ds.shape[d] != 1)[:1]\n    return",
    ),
)
