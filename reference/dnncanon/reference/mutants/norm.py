"""Defects planted in the definitions of the normalizations."""

from dnncanon.spec.mutant import Mutant

_MODULE = "dnncanon.reference.norm"


def _norm(
    name: str,
    kind: str,
    doc: str,
    old: str,
    new: str,
    primitive: str,
    dtypes: tuple[str, ...] = ("float32",),
) -> Mutant:
    return Mutant(
        f"reference.norm_{name}", kind, doc, _MODULE, old, new, "reference", primitive, dtypes
    )


_VARIANCE = "return mean, np.mean(np.square(x - mean), axis=p.axes, keepdims=True)"

MUTANTS = (
    _norm(
        "variance_of_squares",
        "precision",
        "the variance is the mean of squares less the square of the mean, which cancels",
        _VARIANCE,
        "return mean, np.mean(np.square(x), axis=p.axes, keepdims=True) - np.square(mean)",
        "batch_norm_forward_training",
        ("float64",),
    ),
    _norm(
        "variance_around_zero",
        "arithmetic",
        "the variance is the mean of squares",
        _VARIANCE,
        "return mean, np.mean(np.square(x), axis=p.axes, keepdims=True)",
        "instance_norm_forward",
    ),
    _norm(
        "variance_unbiased",
        "arithmetic",
        "elements are normalised by the unbiased variance",
        _VARIANCE,
        _VARIANCE + " * _unbiased(p.count)",
        "layer_norm_forward",
    ),
    _norm(
        "epsilon_outside_the_root",
        "arithmetic",
        "epsilon is added to the root, not under it",
        "np.sqrt(np.mean(np.square(x), axis=p.axes, keepdims=True) + p.epsilon)",
        "(np.sqrt(np.mean(np.square(x), axis=p.axes, keepdims=True)) + p.epsilon)",
        "rms_norm_forward",
    ),
    _norm(
        "running_variance_biased",
        "arithmetic",
        "the running variance takes the biased estimate",
        "_running(p, running_var, batch_variance * _unbiased(norm.count))",
        "_running(p, running_var, batch_variance)",
        "batch_norm_forward_training",
    ),
    _norm(
        "average_factor_reversed",
        "attribute",
        "the factor weighs what was before, as some frameworks' momentum does",
        "(1.0 - p.average_factor) * before + p.average_factor * batch",
        "p.average_factor * before + (1.0 - p.average_factor) * batch",
        "batch_norm_forward_training",
    ),
    _norm(
        "relu_before_residual",
        "arithmetic",
        "the residual is added behind the activation",
        "        _activated(p, y if z is None else y + z),\n",
        "        _activated(p, y) if z is None else _activated(p, y) + z,\n",
        "batch_norm_forward_training",
    ),
    _norm(
        "relu_passes_at_zero",
        "special",
        "the gradient of relu passes where y = 0",
        "np.where(y > 0.0, dy, 0.0)",
        "np.where(y >= 0.0, dy, 0.0)",
        "batch_norm_backward",
    ),
    _norm(
        "zero_centered_ignored",
        "attribute",
        "a scale stored less 1 is taken as it is",
        "return 1.0 + gamma if p.zero_centered_scale else gamma",
        "return gamma",
        "layer_norm_forward",
    ),
    _norm(
        "given_statistics_ignored",
        "attribute",
        "statistics are computed from x, whatever the caller passed",
        "    if mean is None or inv_std is None:\n",
        "    if x.size:\n",
        "layer_norm_backward",
    ),
    _norm(
        "statistics_never_fixed",
        "attribute",
        "the gradient goes through statistics that are fixed",
        "rest = g if p.fixed_statistics else",
        "rest = g if not x.size else",
        "batch_norm_backward",
    ),
    _norm(
        "scale_gradient_not_normalised",
        "arithmetic",
        "dscale is the sum of dy·(x − mean)",
        "np.sum(dy * centred * inv_std, axis=p.parameter_axes)",
        "np.sum(dy * centred, axis=p.parameter_axes)",
        "group_norm_backward",
    ),
    _norm(
        "gradient_through_mean_lost",
        "arithmetic",
        "dx lacks the part that goes through the mean",
        "return g - mean - centred * inv_std * slope",
        "return g - centred * inv_std * slope",
        "instance_norm_backward",
    ),
    _norm(
        "gradient_through_variance_lost",
        "arithmetic",
        "dx lacks the part that goes through the variance",
        "return g - mean - centred * inv_std * slope",
        "return g - mean",
        "layer_norm_backward",
    ),
    _norm(
        "shift_not_added_back",
        "arithmetic",
        "the mean is that of the shifted elements",
        "mean = distance if shift is None else shift + distance",
        "mean = distance",
        "batch_norm_finalize",
    ),
    _norm(
        "genstats_shift_ignored",
        "attribute",
        "sums are of the elements, not of their distances from shift",
        "    if shift is not None:\n        x = x - shift",
        "    if shift is not None:\n        x = x - 0.0 * shift",
        "batch_norm_genstats",
    ),
    _norm(
        "offset_sign",
        "arithmetic",
        "the offset of dx adds what it should subtract",
        "-dy_factor * dbias / m - x_factor * mean",
        "-dy_factor * dbias / m + x_factor * mean",
        "batch_norm_backward_weights",
    ),
    _norm(
        "window_leans_back",
        "index",
        "an even window has one more element before its centre",
        "_window_sum(p, np.square(x), p.before)",
        "_window_sum(p, np.square(x), p.window - 1 - p.before)",
        "lrn_forward",
    ),
    _norm(
        "alpha_not_divided",
        "attribute",
        "alpha weighs the sum of squares, not their mean",
        "p.k + p.weight * _window_sum",
        "p.k + p.alpha * _window_sum",
        "lrn_forward",
    ),
    _norm(
        "gradient_window_not_mirrored",
        "index",
        "the gradient adds up over the window of an element, not over those that hold it",
        "_window_sum(p, shares, p.window - 1 - p.before)",
        "_window_sum(p, shares, p.before)",
        "divisive_norm_backward",
    ),
    _norm(
        "means_ignored",
        "attribute",
        "squares are of the elements, not of their distances from the means",
        "return x * np.power(_spread(p, x if means is None else x - means), -p.beta)",
        "return x * np.power(_spread(p, x), -p.beta)",
        "divisive_norm_forward",
    ),
)
