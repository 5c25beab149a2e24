"""Defects planted in the definitions of the spatial transformer."""

from dnncanon.spec.mutant import Mutant

_MODULE = "dnncanon.reference.sampler"
_SAMPLE, _GRADIENTS = "grid_sample_forward", "grid_sample_backward"
_BOTH_EXACT = ("float32", "float64")


def _sampler(
    name: str,
    kind: str,
    doc: str,
    old: str,
    new: str,
    primitive: str = _SAMPLE,
    dtypes: tuple[str, ...] = _BOTH_EXACT,
) -> Mutant:
    return Mutant(
        f"reference.sampler_{name}", kind, doc, _MODULE, old, new, "reference", primitive, dtypes
    )


MUTANTS = (
    _sampler(
        "x_along_the_first_dim",
        "index",
        "the coordinates of a point are taken in the order of the dims",
        "_coordinate(p, grid[..., p.dims - 1 - dim], extent)",
        "_coordinate(p, grid[..., dim], extent)",
    ),
    _sampler(
        "corners_always_aligned",
        "attribute",
        "align_corners is ignored by the coordinates",
        "    if p.align_corners:\n        c, slope",
        "    if True:\n        c, slope",
    ),
    _sampler(
        "extent_without_its_last_cell",
        "arithmetic",
        "with corners aligned 1 is the end of the last cell",
        "c, slope = (g + 1.0) * (extent - 1) / 2.0, (extent - 1) / 2.0",
        "c, slope = (g + 1.0) * extent / 2.0, (extent - 1) / 2.0",
    ),
    _sampler(
        "reflected_at_the_middles",
        "bounds",
        "with corners not aligned reflection is at the middles of the outermost cells too",
        "(0.0, extent - 1) if p.align_corners else (-0.5, extent)",
        "(0.0, extent - 1)",
    ),
    _sampler(
        "reflected_once",
        "bounds",
        "what is reflected twice is turned like what is reflected once",
        "    turned = times % 2 == 1\n",
        "    turned = times != 0\n",
    ),
    _sampler(
        "border_is_zeros",
        "attribute",
        "padding_mode border is taken for zeros",
        '    if p.padding_mode == "zeros":\n',
        '    if p.padding_mode in ("zeros", "border"):\n',
    ),
    _sampler(
        "nearest_ties_go_up",
        "bounds",
        "of two cells at one distance the upper one is the nearest",
        "np.clip(np.rint(known), -1, extent)",
        "np.clip(np.floor(known + 0.5), -1, extent)",
    ),
    _sampler(
        "wraps_around_the_edge",
        "bounds",
        "the cell beyond the last one is the last one, with its share",
        "            inside = (found >= 0) & (found < extent)\n",
        "            found = np.minimum(found, extent - 1)\n"
        "            inside = (found >= 0) & (found < extent)\n",
    ),
    _sampler(
        "weight_zero_is_multiplied",
        "special",
        "cells of weight 0 are multiplied by it, so that their NaN and Inf spread",
        "        return self.holds & (self.weight != 0.0)\n",
        "        return self.holds & (self.weight == self.weight)\n",
    ),
    _sampler(
        "nan_is_at_the_first_cell",
        "special",
        "a NaN coordinate is taken for cell 0",
        "            nowhere = nowhere | np.isnan(c)\n",
        "            nowhere = nowhere | np.isnan(c) & False\n"
        "            c = np.where(np.isnan(c), 0.0, c)\n",
    ),
    _sampler(
        "weights_swapped",
        "arithmetic",
        "the cell below has the share of the one above",
        "[1.0 - rest, rest]",
        "[rest, 1.0 - rest]",
    ),
    _sampler(
        "slope_of_a_reflection_keeps_its_sign",
        "arithmetic",
        "∂c/∂g does not change its sign where c is reflected",
        "        slopes = np.where(turned, -slopes, slopes)\n",
        "",
        _GRADIENTS,
    ),
    _sampler(
        "slope_beyond_the_border",
        "bounds",
        "the slope is that of the inside where c is held",
        "        slopes = np.where(turned, -slopes, slopes)\n"
        "    slopes = np.where((c > 0.0) & (c < extent - 1.0), slopes, 0.0)\n",
        "        slopes = np.where(turned, -slopes, slopes)\n",
        _GRADIENTS,
    ),
    _sampler(
        "slope_at_the_border_itself",
        "bounds",
        "at the middle of the outermost cells the slope is not 0",
        "(c > 0.0) & (c < extent - 1.0), slopes, 0.0)",
        "(c >= 0.0) & (c <= extent - 1.0), slopes, 0.0)",
        _GRADIENTS,
    ),
    _sampler(
        "dgrid_in_the_order_of_the_dims",
        "output",
        "the coordinates of dgrid are in the order of the dims",
        "np.stack(dgrid[::-1], axis=-1)",
        "np.stack(dgrid, axis=-1)",
        _GRADIENTS,
    ),
    _sampler(
        "dgrid_by_cells_not_by_coordinates",
        "arithmetic",
        "dgrid lacks ∂c/∂g",
        "np.where(slope != 0.0, total * slope, 0.0)",
        "np.where(slope != 0.0, total * np.sign(slope), 0.0)",
        _GRADIENTS,
    ),
    _sampler(
        "only_the_last_point_counts",
        "output",
        "of the points that share in a cell one writes over the others",
        "        holds = member < many[chosen, None]\n",
        "        holds = member == many[chosen, None] - 1\n",
        _GRADIENTS,
    ),
    _sampler(
        "images_share_their_cells",
        "index",
        "the shares of all images are in the first one",
        "    cell = np.arange(p.batch)[:, None, None] * cells + points.cell\n",
        "    cell = np.zeros((p.batch, 1, 1), np.int64) + points.cell\n",
        _GRADIENTS,
    ),
    _sampler(
        "plain_grid_ends_before_one",
        "arithmetic",
        "with corners aligned the last coordinate is not 1",
        "lift(2.0 * index) / (extent - 1) - 1.0",
        "lift(2.0 * index) / extent - 1.0",
        "affine_grid_forward",
    ),
    _sampler(
        "one_point_at_minus_one",
        "bounds",
        "a single point with corners aligned is at −1",
        "along.append(lift(0.0 * index))",
        "along.append(lift(0.0 * index - 1.0))",
        "affine_grid_forward",
    ),
    _sampler(
        "columns_of_theta_reversed",
        "index",
        "x is along the first dim",
        "np.stack([*along[::-1], np.ones(place.shape[1])], axis=1)",
        "np.stack([*along, np.ones(place.shape[1])], axis=1)",
        "affine_grid_backward",
    ),
)
