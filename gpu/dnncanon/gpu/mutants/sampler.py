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
        "                if w != zero:\n                    source = place(",
        "                if w != zero or (cell[0] + s0 < options[0] and cell[0] + s0 >= 0 and "
        "cell[1] + s1 < options[1] and cell[1] + s1 >= 0 and cell[2] + s2 < options[2] and "
        "cell[2] + s2 >= 0):\n                    source = place(",
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
        "                    if held[corner] >= 0 and change[dim] != zero:\n",
        "                    if held[corner] >= 0:\n",
    ),
    _gradient(
        "sampler_one_channel",
        "launch",
        "dgrid is that of the first channel",
        "range(member, channels if corners > 0",
        "range(member, min(channels, 1) if corners > 0",
    ),
    _gradient(
        "sampler_channels_of_the_first_member",
        "synchronisation",
        "dgrid is that of the channels of a team's first thread",
        "                sums[dim] = sum_of_team(sums[dim], width, 1)\n",
        "                sum_of_team(sums[dim], width, 1)\n",
        backend="dnncanon.gpu.channels_last",
    ),
    _point(
        "sampler_channels_apart_are_one",
        "index",
        "of the channels that a thread takes all are the first",
        "add(sums, x, source, x_at[2], w)",
        "add(sums, x, source, 0 * x_at[2], w)",
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
        "    return w if somewhere else zero\n",
        "    return w\n",
    ),
    _gradient(
        "sampler_places_behind_its_own",
        "index",
        "the places of a cell begin behind its own",
        "begin = base[0] + sums[thread] - count",
        "begin = base[0] + sums[thread]",
    ),
    _gradient(
        "sampler_first_share_lost",
        "bounds",
        "the first share of a cell is left out",
        "range(_int64(begins[cell]), _int64(ends[cell]))",
        "range(_int64(begins[cell]) + 1, _int64(ends[cell]))",
    ),
    _gradient(
        "sampler_weights_of_places",
        "index",
        "the weight of a share is looked for in the place where the share has been sorted to",
        "w = weights[_uint64(n * capacity + share)]",
        "w = weights[_uint64(at)]",
    ),
    _checked(
        "sampler_sums_without_a_barrier",
        "synchronisation",
        "a sum is written while others may still read what was there",
        "            cuda.syncthreads()\n            sums[thread] += before\n",
        "            sums[thread] += before\n",
    ),
    _checked(
        "sampler_base_without_a_barrier",
        "synchronisation",
        "the first place of a block is read before it is there",
        "            base[0] = cuda.atomic.add(ends, _uint64(size), sums[thread])\n"
        "        cuda.syncthreads()\n",
        "            base[0] = cuda.atomic.add(ends, _uint64(size), sums[thread])\n",
    ),
    _launch(
        "sampler_counts_not_cleared",
        "memory",
        "shares are counted on from what was in the workspace",
        "    fill(ends, 0, stream=run.stream)\n",
        "",
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
        "shift = to_sum(theta[_uint64(at + dims * per_column)])",
        "shift = to_sum(theta[_uint64(at + (dims - 1) * per_column)])",
    ),
    _grid(
        "sampler_row_of_the_image_before",
        "index",
        "a thread that comes to another image goes on with the theta of the one before",
        "if n * dims + k != held:",
        "if held < 0:",
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
