"""Defects in what a convolution is turned into: extents, strides, residues, index arithmetic."""

from dnncanon.gpu.mutants.making import DATA, FILTER, FORWARD, mutants_of

_mutant = mutants_of("kernels.correlation", primitive=FORWARD)
_data = mutants_of("kernels.correlation", primitive=DATA)
_index = mutants_of("kernels.indexing", primitive=FORWARD)

MUTANTS = (
    _mutant(
        "stride_and_dilation_swapped",
        "attribute",
        "stride and dilation are exchanged",
        "        step=_pad(p.stride, 1),\n        gap=_pad(p.dilation, 1),\n",
        "        step=_pad(p.dilation, 1),\n        gap=_pad(p.stride, 1),\n",
    ),
    _mutant(
        "filter_gradient_like_forward",
        "attribute",
        "the filter's gradient does not exchange stride and dilation",
        "        step=_pad(p.dilation, 1),\n        gap=_pad(p.stride, 1),\n",
        "        step=_pad(p.stride, 1),\n        gap=_pad(p.dilation, 1),\n",
        FILTER,
    ),
    _mutant(
        "padding_behind_used_before",
        "attribute",
        "the padding behind the input is taken for the one before it",
        "        shift=_pad([pre for pre, _ in p.padding], 0),\n        source=_activation(x,",
        "        shift=_pad([post for _, post in p.padding], 0),\n        source=_activation(x,",
    ),
    _mutant(
        "mode_ignored",
        "attribute",
        "convolution is computed as cross-correlation",
        'if p.mode == "convolution" else layout',
        "if not p.mode else layout",
        FILTER,
    ),
    _mutant(
        "reversal_off_by_one",
        "index",
        "reversed taps start one behind the last",
        "sum((n - 1) * s for n, s in pairs if n > 0)",
        "sum(n * s for n, s in pairs if n > 0)",
    ),
    _mutant(
        "groups_of_filters_overlap",
        "index",
        "a group's filters start one behind those of the group before",
        "group = p.out_channels // p.groups * out_channel",
        "group = out_channel",
    ),
    _mutant(
        "one_sample_in_filter_gradient",
        "launch",
        "the filter's gradient takes the first sample only",
        "channels_in=p.batch,",
        "channels_in=min(1, p.batch),",
        FILTER,
    ),
    _mutant(
        "spatial_dims_at_the_wrong_end",
        "index",
        "two spatial dims are the first two of three, but their attributes are the last two",
        "return Layout(origin(tensor), group_channels * channel, batch, channel, _pad(spatial, 0))",
        "return Layout(\n"
        "        origin(tensor),\n"
        "        group_channels * channel,\n"
        "        batch,\n"
        "        channel,\n"
        "        _triple((*spatial, *[0] * (SPATIAL - len(spatial)))),\n"
        "    )",
    ),
    _data(
        "taps_not_reversed",
        "index",
        "the gradient meets the taps in the order of the forward direction",
        "filter=filters.reversed(taps),",
        "filter=filters,",
    ),
    _data(
        "padding_ignored_in_residues",
        "attribute",
        "which taps reach which residue is computed without padding",
        "first_taps.setdefault((f * dilation - pre) % u, f)",
        "first_taps.setdefault((f * dilation) % u, f)",
    ),
    _data(
        "common_divisor_ignored",
        "arithmetic",
        "stride and dilation are taken to have no common divisor",
        "tap_step, gap = u // divisor, dilation // divisor",
        "tap_step, gap = u, dilation",
    ),
    _data(
        "residue_offset_dropped",
        "output",
        "all residues are written to the places of the first",
        "offset = self.offset + sum(f * s for f, s in zip(first, self.spatial, strict=True))",
        "offset = self.offset",
    ),
    _data(
        "residues_left_out",
        "launch",
        "of the residues by the stride only the first is computed",
        "for first in range(min(u, extent)):",
        "for first in range(min(1, u, extent)):",
    ),
    _data(
        "residue_tail_lost",
        "bounds",
        "the last element of a residue is left out unless the stride divides the extent",
        "positions = -(-(extent - first) // u)",
        "positions = max(1, (extent - first) // u)",
    ),
    _data(
        "residue_rounded_down",
        "arithmetic",
        "output positions are rounded towards zero, not down",
        "(first + pre - first_tap * dilation) // u",
        "int((first + pre - first_tap * dilation) / u)",
        equivalent="the numerator is a multiple of u, or there are no taps",
    ),
    _mutant(
        "order_of_outputs",
        "index",
        "threads take channels next to each other where positions are adjacent, and vice versa",
        "return channels < nearest(self.out.spatial, self.positions)",
        "return not channels < nearest(self.out.spatial, self.positions)",
        equivalent="it is slower, with the same results",
    ),
    _index(
        "position_by_wrong_extent",
        "index",
        "the row of an output is taken modulo the number of columns",
        "q1 = rest % sizes[4]",
        "q1 = rest % sizes[5]",
    ),
    _index(
        "plane_by_wrong_extent",
        "index",
        "planes are counted in columns",
        "    rest = rest // sizes[4]\n",
        "    rest = rest // sizes[5]\n",
    ),
    _index(
        "channels_last_without_groups",
        "index",
        "where channels are fastest, those of the other groups are forgotten",
        "channels = sizes[0] * sizes[2]",
        "channels = sizes[2]",
    ),
    _index(
        "row_stride_in_columns",
        "index",
        "rows are taken to be as far apart as columns",
        "+ i1 * layout[5]",
        "+ i1 * layout[6]",
    ),
    _index(
        "offset_dropped",
        "index",
        "the position of an array's first element is ignored",
        "        layout[0]\n        + g * layout[1]\n",
        "        g * layout[1]\n",
        DATA,
    ),
)
