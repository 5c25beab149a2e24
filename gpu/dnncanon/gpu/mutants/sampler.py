"""Defects of the spatial transformer: of points, of shares and how they are sorted, of affine grids."""

from dnncanon.gpu.mutants.making import mutants_of

_point = mutants_of("kernels.sampler", primitive="grid_sample_forward", backend="gpu")
_gradient = mutants_of("kernels.sampler", primitive="grid_sample_backward", backend="gpu")
_grid = mutants_of("kernels.sampler", primitive="affine_grid_forward", backend="gpu")
_checked = mutants_of(
    "kernels.sampler", primitive="grid_sample_backward", backend="gpu", check=True
)
_launch = mutants_of("sampler", primitive="grid_sample_backward", backend="gpu")

MUTANTS = (
    _point(
        "sampler_corners_never_aligned",
        "attribute",
        "align_corners is ignored by the coordinates",
        "        if aligned != 0:\n            low, span",
        "        if False:\n            low, span",
    ),
    _point(
        "sampler_reflection_without_turning",
        "arithmetic",
        "what is reflected an odd number of times starts again from the other end",
        "distance = (times + one) * span - distance\n",
        "distance = distance - times * span\n",
    ),
    _point(
        "sampler_border_not_held_above",
        "bounds",
        "a coordinate beyond the last cell stays there",
        "            if c > last:\n                c = last\n",
        "",
    ),
    _point(
        "sampler_cells_truncated",
        "arithmetic",
        "the cell below a negative coordinate is the one above it",
        "            below = number(floor(c))\n            rest = c - below\n",
        "            below = number(_int64(c))\n            rest = c - below\n",
    ),
    _point(
        "sampler_ties_go_up",
        "bounds",
        "of two cells at one distance the upper one is the nearest",
        "(rest == half and odd)",
        "rest == half",
    ),
    _point(
        "sampler_cell_beyond_the_last",
        "bounds",
        "the cell behind the last one of a row has a weight, and is read",
        "rest if first >= -1 and first + 1 < extent else zero",
        "rest if first >= -1 and first < extent else zero",
    ),
    _point(
        "sampler_nan_is_somewhere",
        "special",
        "a NaN coordinate is cell 0 with weight 0",
        "            somewhere = somewhere and c == c\n",
        "",
    ),
    _point(
        "sampler_weight_zero_is_read",
        "special",
        "cells of weight 0 are multiplied by it, if they are there",
        "                if w != zero:\n                    bundle = load(",
        "                if w != zero or (cell[0] + s0 < options[0] and cell[0] + s0 >= 0 and "
        "cell[1] + s1 < options[1] and cell[1] + s1 >= 0 and cell[2] + s2 < options[2] and "
        "cell[2] + s2 >= 0):\n                    bundle = load(",
    ),
    _gradient(
        "sampler_slope_where_c_is_held",
        "bounds",
        "∂c/∂g is not 0 beyond the border",
        "            if not (c > zero and c < last):\n                slope = zero\n",
        "",
    ),
    _gradient(
        "sampler_slope_of_a_reflection_keeps_its_sign",
        "arithmetic",
        "∂c/∂g does not change its sign where c is reflected",
        "                slope = -slope\n",
        "",
    ),
    _gradient(
        "sampler_total_times_zero",
        "special",
        "a total that has no part in a slope is multiplied by 0",
        "                        if change[dim] != zero:\n",
        "                        if True:\n",
    ),
    _gradient(
        "sampler_one_channel",
        "launch",
        "dgrid is that of the first channel",
        "for _ in range(channels):",
        "for _ in range(min(channels, 1)):",
    ),
    _gradient(
        "sampler_dgrid_in_the_order_of_the_dims",
        "output",
        "the coordinates of dgrid are in the order of the dims",
        "at = _uint64(target + k * dgrid_at[5])",
        "at = _uint64(target + (options[3] - 1 - k) * dgrid_at[5])",
    ),
    _gradient(
        "sampler_shares_of_nan_points",
        "special",
        "the shares of a point that is nowhere count",
        "held if somewhere and w != zero else _int64(-1)",
        "held if w != zero else _int64(-1)",
    ),
    _gradient(
        "sampler_counts_before_the_first_stretch",
        "index",
        "each stretch begins behind the counts of its own",
        "        for other in range(thread):\n",
        "        for other in range(thread + 1):\n",
    ),
    _gradient(
        "sampler_shares_begin_at_the_cell_s_end",
        "index",
        "a cell adds up the shares of the next one",
        "            begin = ends[_uint64(n * cells + cell - 1)] if cell > 0 else _int64(0)\n"
        "            end = ends[_uint64(n * cells + cell)]\n",
        "            begin = ends[_uint64(n * cells + cell)]\n"
        "            end = ends[_uint64(n * cells + min(cell + 1, cells - 1))]\n",
    ),
    _gradient(
        "sampler_weights_of_places",
        "index",
        "the weight of a share is looked for in the place where the share has been sorted to",
        "w = weights[_uint64(first + share)]",
        "w = weights[_uint64(first + at)]",
    ),
    _checked(
        "sampler_counts_without_a_barrier",
        "synchronisation",
        "shares are counted while others still clear the counts",
        "            ends[_uint64(base + cell)] = 0\n        cuda.syncthreads()\n",
        "            ends[_uint64(base + cell)] = 0\n",
    ),
    _checked(
        "sampler_partial_counts_without_a_barrier",
        "synchronisation",
        "partial counts are read before all are there",
        "        partial[thread] = total\n        cuda.syncthreads()\n",
        "        partial[thread] = total\n",
    ),
    _launch(
        "sampler_parts_overlap",
        "memory",
        "the weights lie where the entries are",
        "            at += size\n        return cls(*found)\n",
        "            at += size if len(found) != 3 else 0\n        return cls(*found)\n",
    ),
    _launch(
        "sampler_taps_of_an_image",
        "launch",
        "a point has four corners, in volumes too",
        "    return math.prod(p.output_size) * p.taps\n",
        "    return math.prod(p.output_size) * min(p.taps, 4)\n",
    ),
    _grid(
        "sampler_one_point_at_minus_one",
        "bounds",
        "a single point with corners aligned is at −1",
        "        if extent == 1:\n            return number(0)\n",
        "        if extent == 1:\n            return -one\n",
    ),
    _grid(
        "sampler_translation_lost",
        "index",
        "the translation is taken from the column before the last one",
        "total += to_sum(theta[_uint64(at + dims * per_column)])",
        "total += to_sum(theta[_uint64(at + (dims - 1) * per_column)])",
    ),
    _grid(
        "sampler_rows_and_columns_of_points",
        "index",
        "the index of a point in a row is divided by the height",
        "o1 = index // width\n",
        "o1 = index // height\n",
        "affine_grid_backward",
    ),
)
