"""Defects of the convolutions by Fourier transforms."""

from dnncanon.gpu.mutants.making import DATA, FILTER, FORWARD, FUSED, mutants_of

_WHOLE = "dnncanon.gpu.single_algorithm:fft"
_TILES = "dnncanon.gpu.single_algorithm:fft_tiling"

_cuts = mutants_of("kernels.conv_fft", primitive=FORWARD, backend=_TILES)
_frames = mutants_of("kernels.conv_fft_frames", primitive=FORWARD, backend=_WHOLE)
_product = mutants_of("kernels.conv_fft_product", primitive=FORWARD, backend=_WHOLE)

MUTANTS = (
    _cuts(
        "conv_fft_tile_too_long",
        "bounds",
        "the last output of a tile has wrapped around",
        "return length - taps + 1, taps",
        "return length - taps + 2, taps",
    ),
    _cuts(
        "conv_fft_piece_too_long",
        "bounds",
        "the last tap of a piece wraps around",
        "return positions, length - positions + 1",
        "return positions, length - positions + 2",
        FILTER,
    ),
    _cuts(
        "conv_fft_padding_forgotten",
        "attribute",
        "frames begin at the first element, not in the padding",
        "cut = (*f.positions, *f.taps, *part.shift)",
        "cut = (*f.positions, *f.taps, *_NONE)",
    ),
    _cuts(
        "conv_fft_sums_of_nothing_not_cleared",
        "memory",
        "outputs that no tap meets are what lay in the workspace",
        "        if not columns:\n",
        "        if len(columns) < 0:\n",
        DATA,
    ),
    _frames(
        "conv_fft_gaps_of_the_last_dim_only",
        "attribute",
        "where the last dim is not dilated, none is",
        "if gap0 * gap1 * gap2 > 1:",
        "if gap2 > 1:",
    ),
    _frames(
        "conv_fft_opposite_row_is_its_own",
        "index",
        "the frequency opposite to a row's is taken from the row itself",
        "(-k1 & m1) << l2",
        "(k1 & m1) << l2",
    ),
    _frames(
        "conv_fft_one_highest_frequency",
        "index",
        "all rows have their highest frequency in the same place",
        "last = to + points + (within >> l2)",
        "last = to + points",
    ),
    _frames(
        "conv_fft_tiles_of_other_dim",
        "index",
        "tiles of one dim are counted as those of another",
        "p1, row = row % tiles[1], row // tiles[1]",
        "p1, row = row % tiles[2], row // tiles[2]",
        backend=_TILES,
    ),
    _frames(
        "conv_fft_transforms_before_all_is_loaded",
        "synchronisation",
        "a transform begins while other threads load",
        "re[e], im[e] = x, y\n            cuda.syncthreads()\n            start = transform(re,",
        "re[e], im[e] = x, y\n            start = transform(re,",
        check=True,
    ),
    _frames(
        "conv_fft_outputs_between_steps_stored",
        "index",
        "outputs between the steps of the first dim replace those before them",
        "inside = inside and q0 * step0 == p0 and q1",
        "inside = inside and q1",
    ),
    _frames(
        "conv_fft_not_scaled",
        "arithmetic",
        "outputs are not divided by the points of the transform",
        "                        value * factor,\n",
        "                        value,\n",
    ),
    _frames(
        "conv_fft_bias_of_first_group",
        "index",
        "every group has the bias of the first",
        "bias_at[0] + (g * channels + j) * bias_at[1]",
        "bias_at[0] + j * bias_at[1]",
        FUSED,
    ),
    _product(
        "conv_fft_not_conjugated",
        "arithmetic",
        "the real part of the product is that of a convolution",
        "+ x_im[i] * y_im[j]",
        "- x_im[i] * y_im[j]",
    ),
    _product(
        "conv_fft_filters_of_first_group",
        "index",
        "every group has the filters of the first",
        "((g * columns + j0 + line) * channels)",
        "((j0 + line) * channels)",
    ),
    _product(
        "conv_fft_channels_behind_the_last",
        "bounds",
        "channels behind the last are multiplied as well",
        "if first + c < channels:",
        "if first < channels:",
        check=True,
    ),
    _product(
        "conv_fft_channels_replaced_too_early",
        "synchronisation",
        "the next channels are stored while these are multiplied",
        "steps(sums_re, sums_im, a_re, a_im, b_re, b_im, at_a, at_b)\n                cuda.syncthreads()\n",
        "steps(sums_re, sums_im, a_re, a_im, b_re, b_im, at_a, at_b)\n",
        check=True,
    ),
    _product(
        "conv_fft_row_behind_the_last",
        "bounds",
        "the spectrum behind those of the last row is read",
        "m0 + line < rows",
        "m0 + line <= rows",
        check=True,
    ),
)
