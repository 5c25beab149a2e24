"""Defects of the convolution on tensor cores."""

from dnncanon.gpu.mutants.making import FORWARD, FUSED, mutants_of

_BACKEND = "dnncanon.gpu.single_algorithm:implicit_precomp_gemm"
_HALF = ("float16",)

_windows = mutants_of("kernels.tile.windows", primitive=FORWARD, backend=_BACKEND)
_tiles = mutants_of("kernels.conv_tiles", primitive=FORWARD, backend=_BACKEND)
_algorithm = mutants_of("kernels.conv_implicit_precomp_gemm", primitive=FORWARD, backend=_BACKEND)

MUTANTS = (
    _windows(
        "precomp_dilation_of_other_dim",
        "attribute",
        "the dilation of the last dim is used in the last but one",
        "ints[_TAP + 1] * w[18]",
        "ints[_TAP + 1] * w[19]",
        dtypes=_HALF,
    ),
    _windows(
        "precomp_stride_of_other_dim",
        "attribute",
        "the stride of the last dim is used in the last but one",
        "% w[6] * w[12] - w[21]",
        "% w[6] * w[13] - w[21]",
        dtypes=_HALF,
    ),
    _windows(
        "precomp_taps_exchanged",
        "index",
        "the last two digits of a tap are exchanged",
        "ints[_TAP + 1] = _int32(tap // w[16] % w[15])\n        ints[_TAP + 2] = _int32(tap % w[16])",
        "ints[_TAP + 2] = _int32(tap // w[16] % w[15])\n        ints[_TAP + 1] = _int32(tap % w[16])",
        dtypes=_HALF,
    ),
    _windows(
        "precomp_tap_row_too_long",
        "bounds",
        "a row of taps has one more than there are, when a slice goes on to the next",
        "if ints[_TAP + 2] == _int32(w[16]):",
        "if ints[_TAP + 2] > _int32(w[16]):",
        dtypes=_HALF,
    ),
    _windows(
        "precomp_border_unmasked",
        "bounds",
        "the column right of the input counts as one of it",
        "_uint32(ints[_WINDOW + 3 * i + 2] + ints[_GAP + 2]) < _uint32(w[10])",
        "_uint32(ints[_WINDOW + 3 * i + 2] + ints[_GAP + 2]) <= _uint32(w[10])",
        dtypes=_HALF,
    ),
    _windows(
        "precomp_lines_behind_the_last",
        "bounds",
        "windows behind the last are read",
        "_int32(i0) if n < limits[0] else _int32(OUTSIDE)",
        "_int32(i0)",
        dtypes=_HALF,
        check=True,
    ),
    _windows(
        "precomp_rows_of_outputs_overlap",
        "index",
        "positions of the last dim lie as far apart as those of the one before",
        "* at[1][1 + digit]",
        "* at[1][1 + min(digit, 2)]",
        dtypes=_HALF,
    ),
    _tiles(
        "precomp_source_of_first_group",
        "index",
        "every group reads the channels of the first",
        "groups = (source.group, filters.group, out.group",
        "groups = (0, filters.group, out.group",
        dtypes=_HALF,
    ),
    _algorithm(
        "precomp_padding_channels_not_zeroed",
        "memory",
        "what lies behind the last channel in the workspace is multiplied",
        "if packed.channels != channels:",
        "if packed.channels < channels:",
        dtypes=_HALF,
    ),
    _tiles(
        "precomp_bias_of_first_group",
        "index",
        "every group has the bias of the first",
        "step * part.channels_out, (step, 0)",
        "0, (step, 0)",
        FUSED,
        _HALF,
    ),
    _tiles(
        "precomp_residual_not_scaled",
        "arithmetic",
        "the residual is added without its factor",
        "scalars = (epilogue.alpha1, epilogue.alpha2)",
        "scalars = (epilogue.alpha1, 1.0)",
        FUSED,
        _HALF,
    ),
    _algorithm(
        "precomp_tf32_for_tf32x3",
        "precision",
        "the algorithm of three products makes one",
        "_tiling(self.numerics or plan.dtype, part",
        '_tiling("tf32" if self.numerics else plan.dtype, part',
        backend=f"{_BACKEND}_tf32x3",
    ),
)
