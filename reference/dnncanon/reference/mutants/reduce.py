"""Defects planted in the definitions of reductions and softmax."""

from collections.abc import Callable

from dnncanon.spec.mutant import Mutant


def _of(family: str, shared: str) -> Callable[..., Mutant]:
    """A maker of mutants of one family, most of them seen by the primitive ``shared``."""

    def make(name: str, kind: str, doc: str, old: str, new: str, primitive: str = shared) -> Mutant:
        full, module = f"reference.{family}_{name}", f"dnncanon.reference.{family}"
        return Mutant(full, kind, doc, module, old, new, "reference", primitive)

    return make


_reduce = _of("reduce", "reduce_forward")
_softmax = _of("softmax", "softmax_forward")
_BACKWARD = "reduce_backward"

MUTANTS = (
    _reduce(
        "axes_in_front",
        "index",
        "the axes are taken for the dims that stay",
        "return [axis for axis in range(len(p.shape)) if axis not in p.axes] + list(p.axes)",
        "return list(p.axes) + [axis for axis in range(len(p.shape)) if axis not in p.axes]",
    ),
    _reduce(
        "gradient_not_moved_back",
        "index",
        "the dims of a gradient stay in the order of the sets",
        "return moved.transpose([order.index(axis) for axis in range(len(order))])",
        "return moved.reshape(p.shape)",
        _BACKWARD,
    ),
    _reduce(
        "avg_divides_by_sets",
        "arithmetic",
        "a mean is divided by how many sets there are",
        "return np.sum(x, axis=1) / x.shape[1]",
        "return np.sum(x, axis=1) / x.shape[0]",
    ),
    _reduce(
        "norm2_overflows",
        "precision",
        "squares are added up as they are, in float32",
        "return scale[:, 0] * np.sqrt(np.sum(np.square(_scaled(x, scale)), axis=1))",
        "return np.sqrt(np.sum(np.square(x.astype(np.float32)), axis=1)) + 0.0 * scale[:, 0]",
    ),
    _reduce(
        "logsumexp_without_maximum",
        "precision",
        "the maximum is not subtracted",
        "shift = np.where(np.isinf(largest), 0.0, largest)",
        "shift = 0.0 * largest",
    ),
    _reduce(
        "zeros_multiplied",
        "arithmetic",
        "mul_no_zeros multiplies zeros",
        "    return np.prod(_without_zeros(x), axis=1)",
        "    return np.prod(x, axis=1)",
    ),
    _reduce(
        "last_extremum",
        "index",
        "of equal extrema the last is named",
        "return np.argmax((key == largest) | np.isnan(key), axis=1)",
        "return x.shape[1] - 1 - np.argmax(((key == largest) | np.isnan(key))[:, ::-1], axis=1)",
    ),
    _reduce(
        "nan_has_no_place",
        "special",
        "an extremum that is NaN is nowhere",
        "return np.argmax((key == largest) | np.isnan(key), axis=1)",
        "return np.argmax(key == largest, axis=1)",
    ),
    _reduce(
        "index_of_nothing_is_zero",
        "bounds",
        "an empty set has its extremum in place 0",
        "return np.full(x.shape[0], -1)",
        "return np.full(x.shape[0], 0)",
    ),
    _reduce(
        "amax_keeps_signs",
        "arithmetic",
        "amax is the maximum",
        "return np.max(np.abs(x), axis=1, initial=0.0)",
        "return np.max(x, axis=1, initial=0.0)",
    ),
    _reduce(
        "two_zeros_taken_for_one",
        "arithmetic",
        "each of several zeros has a gradient",
        "others = np.where(x == 0.0, zeros == 1.0, zeros == 0.0)",
        "others = np.where(x == 0.0, zeros >= 1.0, zeros == 0.0)",
        _BACKWARD,
    ),
    _reduce(
        "extremum_gradient_for_all_ties",
        "attribute",
        "every element that equals the extremum has its gradient",
        "winner = np.arange(x.shape[1]) == _place_of_extremum(op, x)[:, None]",
        "winner = x == np.take_along_axis(x, _place_of_extremum(op, x)[:, None], axis=1)",
        _BACKWARD,
    ),
    _reduce(
        "norm2_gradient_not_divided",
        "arithmetic",
        "the gradient of the norm lacks the division by it",
        "dy * (scaled / np.where(norm == 0.0, 1.0, norm))",
        "dy * scaled",
        _BACKWARD,
    ),
    _softmax(
        "max_not_subtracted",
        "precision",
        "the maximum is not subtracted",
        "    shifted = x - largest\n",
        "    shifted = x - 0.0 * largest\n",
    ),
    _softmax(
        "over_last_axis",
        "attribute",
        "rows lie along the last dim, whatever the axes are",
        "total = np.sum(powers, axis=p.axes, keepdims=True)",
        "total = np.sum(powers, axis=-1, keepdims=True)",
    ),
    _softmax(
        "masked_counts",
        "bounds",
        "what is masked is 0, and so counts in the sum",
        "    x = _where_unmasked(mask, x, -np.inf)\n",
        "    x = _where_unmasked(mask, x, 0.0)\n",
    ),
    _softmax(
        "masked_row_is_nan",
        "special",
        "a row that is masked as a whole is NaN",
        "y = _where_unmasked(mask, y, -np.inf if p.log else 0.0)",
        "y = y",
    ),
    _softmax(
        "mask_inverted",
        "attribute",
        "a mask tells what is left out",
        "np.where(mask != 0.0, x, other)",
        "np.where(mask == 0.0, x, other)",
    ),
    _softmax(
        "stats_without_maximum",
        "arithmetic",
        "stats lack the maximum",
        "return shift + np.log(",
        "return 0.0 * shift + np.log(",
    ),
    _softmax(
        "stats_of_infinity_are_nan",
        "special",
        "an infinite maximum is subtracted for stats too",
        "shift = np.where(np.isinf(largest), 0.0, largest)",
        "shift = largest",
    ),
    _softmax(
        "gradient_without_sum",
        "arithmetic",
        "the gradient lacks Σ dy·y",
        "np.sum(dy * y, axis=p.axes, keepdims=True)",
        "0.0 * np.sum(dy * y, axis=p.axes, keepdims=True)",
        "softmax_backward",
    ),
    _softmax(
        "log_gradient_of_sum_of_products",
        "attribute",
        "the gradient of the logarithm sums dy·y",
        "np.exp(y) * np.sum(dy, axis=p.axes, keepdims=True)",
        "np.exp(y) * np.sum(dy * y, axis=p.axes, keepdims=True)",
        "softmax_backward",
    ),
    _softmax(
        "masked_gradient_shows",
        "bounds",
        "what is masked has a gradient",
        "    return _where_unmasked(mask, dx, 0.0)\n",
        "    return dx\n",
        "softmax_backward",
    ),
)
