"""Defects of convolution by Winograd's minimal filtering."""

from dnncanon.gpu.mutants.making import DATA, FILTER, FORWARD, FUSED, mutants_of

_FUSED = "dnncanon.gpu.single_algorithm:winograd"
_NON_FUSED = "dnncanon.gpu.single_algorithm:winograd_nonfused"

_form = mutants_of("kernels.conv_winograd", primitive=FORWARD, backend=_NON_FUSED)
_transforms = mutants_of("kernels.conv_winograd_transforms", primitive=FORWARD, backend=_NON_FUSED)
_fused = mutants_of("kernels.conv_winograd_fused", primitive=FORWARD, backend=_FUSED)

MUTANTS = (
    _transforms(
        "winograd_factors_of_half_precision",
        "precision",
        "the matrices have the digits of bfloat16",
        "number(float(size))",
        "number(round(float(size) * 256.0) / 256.0)",
    ),
    _transforms(
        "winograd_sign_lost",
        "arithmetic",
        "what a matrix subtracts is added",
        'f"- {term}" if factor < 0 else',
        'f"+ {term}" if terms and factor < 0 else',
    ),
    _transforms(
        "winograd_border_unmasked",
        "bounds",
        "the column right of the input counts as one of it",
        "i < ends[0] and j < ends[1]",
        "i < ends[0] and j <= ends[1]",
    ),
    _transforms(
        "winograd_padding_unmasked",
        "bounds",
        "the column left of the input counts as one of it",
        "if i >= 0 and j >= 0 and",
        "if i >= 0 and j >= -1 and",
    ),
    _transforms(
        "winograd_planes_of_the_padding",
        "bounds",
        "planes before the first count as the source's",
        "b < batch and c0 >= 0 and c0 < extents[0]",
        "b < batch and c0 < extents[0]",
    ),
    _transforms(
        "winograd_outputs_behind_the_last",
        "bounds",
        "a tile's outputs are written, whether there are so many rows or not",
        "if q1 < positions[1] and q2",
        "if q2",
        check=True,
    ),
    _transforms(
        "winograd_channels_behind_the_last",
        "bounds",
        "filters behind the last channel are read",
        "ends if j < channels else nothing",
        "ends",
        check=True,
    ),
    _transforms(
        "winograd_bias_of_the_group",
        "index",
        "all groups have the bias of the first",
        "bias_at[0] + rest * bias_at[1]",
        "bias_at[0] + j * bias_at[1]",
        FUSED,
    ),
    _form(
        "winograd_pieces_of_one_tap",
        "attribute",
        "pieces of the taps are a tap apart in the source",
        "by_piece = zip(self.of_dims(self.taps), part.gap, strict=True)",
        "by_piece = zip((1, 1, 1), part.gap, strict=True)",
        FILTER,
        backend=_FUSED,
    ),
    _form(
        "winograd_output_not_permuted",
        "index",
        "outputs are written in the order of the dims before they were exchanged",
        "out=layout(part.out)",
        "out=part.out",
    ),
    _form(
        "winograd_last_tiles_left_out",
        "bounds",
        "tiles that are not whole are left out",
        "sizes = zip(self.part.positions, self.of_dims(self.outputs), strict=True)\n"
        "        return _triple(-(-n // size) for n, size in sizes)",
        "sizes = zip(self.part.positions, self.of_dims(self.outputs), strict=True)\n"
        "        return _triple(max(1, n // size) for n, size in sizes)",
    ),
    _form(
        "winograd_one_piece_of_taps",
        "bounds",
        "taps behind the first piece are left out",
        "sizes = zip(self.part.taps, self.of_dims(self.taps), strict=True)\n"
        "        return _triple(-(-n // size) for n, size in sizes)",
        "sizes = zip(self.part.taps, self.of_dims(self.taps), strict=True)\n"
        "        return _triple(1 if size > 1 else n for n, size in sizes)",
        FILTER,
        backend=_FUSED,
    ),
    _fused(
        "winograd_channels_of_the_last_slice",
        "bounds",
        "channels behind the last of all are multiplied",
        "there = b < batch and first + k < columns and c0",
        "there = b < batch and c0",
        check=True,
    ),
    _fused(
        "winograd_multiplied_before_it_is_there",
        "synchronisation",
        "products begin before all points are in shared memory",
        "                cuda.syncthreads()\n                steps(",
        "                steps(",
        check=True,
    ),
    _fused(
        "winograd_sums_over_points",
        "synchronisation",
        "sums are stored over those that others still read",
        "                        )\n                cuda.syncthreads()\n",
        "                        )\n",
        check=True,
    ),
    _fused(
        "winograd_halves_exchanged",
        "index",
        "the second half of a block's channels is written to the first",
        "j = first_j + which * half + n",
        "j = first_j + n",
        DATA,
    ),
)
