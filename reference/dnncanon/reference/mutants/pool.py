"""Defects planted in the definitions of pooling and resampling, and in the tables that both are made of."""

from collections.abc import Callable

from dnncanon.spec.mutant import Mutant


def _of(module: str, family: str, primitive: str) -> Callable[..., Mutant]:
    """A maker of mutants of one module, whose names begin with the family's."""
    shared = primitive

    def make(name: str, kind: str, doc: str, old: str, new: str, primitive: str = shared) -> Mutant:
        full = f"reference.{family}_{name}"
        return Mutant(
            full, kind, doc, f"dnncanon.reference.{module}", old, new, "reference", primitive
        )

    return make


_pool = _of("pool", "pool", "pool_average_forward")
_windows = _of("windows", "pool", "pool_average_forward")
_resample = _of("resample", "resample", "resample_forward")

MUTANTS = (
    _pool(
        "padding_wins",
        "bounds",
        "padding is 0, and wins over what is below",
        "cells = np.where(inside, cells, -np.inf)",
        "cells = np.where(inside, cells, 0.0)",
        "pool_max_forward",
    ),
    _pool(
        "padding_wins_over_infinity",
        "special",
        "of a window of −Inf the first slot is numbered, padding or not",
        "winners = inside & ((cells == largest) | np.isnan(cells))",
        "winners = (cells == largest) | np.isnan(cells)",
        "pool_max_forward",
    ),
    _pool(
        "nan_has_no_place",
        "special",
        "a maximum that is NaN is nowhere",
        "winners = inside & ((cells == largest) | np.isnan(cells))",
        "winners = inside & (cells == largest)",
        "pool_max_forward",
    ),
    _pool(
        "last_maximum_wins",
        "index",
        "of equal values the last is numbered",
        "first = np.argmax(winners, axis=-1)[..., None]",
        "first = winners.shape[-1] - 1 - np.argmax(winners[..., ::-1], axis=-1)[..., None]",
        "pool_max_forward",
    ),
    _pool(
        "index_of_slot",
        "index",
        "indices count the slots of the window, not the cells of the input",
        "return np.where(winners.any(axis=-1), number, -1)",
        "return np.where(winners.any(axis=-1), first[..., 0], -1)",
        "pool_max_forward",
    ),
    _pool(
        "index_of_nothing_is_zero",
        "bounds",
        "a window in the padding has index 0",
        "return np.where(winners.any(axis=-1), number, -1)",
        "return np.where(winners.any(axis=-1), number, 0)",
        "pool_max_forward",
    ),
    _pool(
        "gradient_to_every_cell",
        "attribute",
        "dy goes to all cells of the window",
        "covering & (winners == own), terms, 0.0",
        "covering, terms, 0.0",
        "pool_max_backward",
    ),
    _pool(
        "gradient_by_transposed_index",
        "index",
        "indices are read with the spatial dims in reverse",
        "own = np.arange(np.prod(p.input_size)).reshape(*p.input_size, 1)",
        "own = np.arange(np.prod(p.input_size)).reshape(*p.input_size[::-1]).T[..., None]",
        "pool_max_backward",
    ),
    _pool(
        "padding_always_counted",
        "attribute",
        "the divisor is that with padding, whatever include_padding says",
        "if p.include_padding else (0, w.inputs)",
        "if p is not None else (0, w.inputs)",
    ),
    _pool(
        "padding_never_counted",
        "attribute",
        "include_padding is ignored",
        "if p.include_padding else (0, w.inputs)",
        "if p is None else (0, w.inputs)",
        "pool_average_backward",
    ),
    _pool(
        "overhang_counted",
        "bounds",
        "what ceil_mode lets hang over the padding counts",
        "(-w.pre, w.inputs + w.post)",
        "(-w.pre, w.inputs + w.post + w.stride * w.taps)",
    ),
    _pool(
        "division_by_no_cells",
        "special",
        "a window in the padding gives 0/0",
        "return np.maximum(1.0, outer(of_dims)[..., 0])",
        "return np.maximum(0.0, outer(of_dims)[..., 0])",
    ),
    _pool(
        "norm_keeps_signs",
        "arithmetic",
        "x itself is raised to p, so that signs cancel",
        "cells, inside = gathered(np.abs(x), _windows(p))",
        "cells, inside = gathered(x, _windows(p))",
        "pool_lp_forward",
    ),
    _pool(
        "norm_without_root",
        "arithmetic",
        "the sum of powers is put out",
        "return np.power(total, 1.0 / p.p)",
        "return total",
        "pool_lp_forward",
    ),
    _pool(
        "norm_gradient_exponent",
        "arithmetic",
        "the exponent of the gradient is p",
        "np.power(ratios, p.p - 1.0)",
        "np.power(ratios, p.p)",
        "pool_lp_backward",
    ),
    _pool(
        "norm_gradient_at_zero",
        "special",
        "where the norm is 0 dy is passed on",
        "counting = covering & (norms != 0.0)",
        "counting = covering",
        "pool_lp_backward",
    ),
    _pool(
        "norm_gradient_without_sign",
        "arithmetic",
        "the gradient is that of |x|",
        "return np.sign(x) * np.sum(",
        "return np.sum(",
        "pool_lp_backward",
    ),
    _windows(
        "dilation_ignored",
        "attribute",
        "windows are never dilated",
        "cell = w.first(o) + t * w.dilation",
        "cell = w.first(o) + t",
    ),
    _windows(
        "window_one_short",
        "bounds",
        "the last cell of each window is left out",
        "inside = (t < w.length(o)) &",
        "inside = (t < w.length(o) - 1) &",
    ),
    _windows(
        "first_cell_lost",
        "bounds",
        "the first cell of the input counts as padding",
        "(cell >= 0) & (cell < w.inputs)",
        "(cell > 0) & (cell < w.inputs)",
    ),
    _windows(
        "overlap_lost",
        "index",
        "of several windows over a cell the last one counts only",
        "slot = np.arange(element.size) - np.searchsorted(element, element)",
        "slot = 0 * np.arange(element.size)",
        "pool_average_backward",
    ),
    _resample(
        "weights_swapped",
        "arithmetic",
        "each neighbour has the other's weight",
        "np.stack([s.d - rest, rest], axis=1)",
        "np.stack([rest, s.d - rest], axis=1)",
    ),
    _resample(
        "outside_is_the_other_edge",
        "bounds",
        "coordinates are not held within the input, whose ends meet",
        "np.divmod(s.numerator(o), s.d)",
        "np.divmod((o * s.m + s.k) % (s.inputs * s.d), s.d)",
    ),
    _resample(
        "rounding_ignored",
        "attribute",
        "the nearest cell is the one below",
        "s.nearest(o, p.rounding)[:, None]",
        's.nearest(o, "floor")[:, None]',
    ),
    _resample(
        "weights_of_one_dim",
        "index",
        "only the first spatial dim is interpolated in",
        "        for weights in _weights(tables):\n",
        "        for weights in _weights(tables)[:1]:\n",
        "resample_backward",
    ),
    _resample(
        "weight_zero_read",
        "special",
        "cells of weight 0 are multiplied, so that their NaN spreads",
        "np.sum(np.where(holds, terms, 0.0), axis=-1)",
        "np.sum(terms, axis=-1)",
    ),
)
