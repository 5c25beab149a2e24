"""Defects of convolutions as products of matrices: with one tap, and of explicit columns."""

from dnncanon.gpu.mutants.making import FORWARD, FUSED, mutants_of

_COLUMNS = "dnncanon.gpu.single_algorithm:gemm"
"""The product with one tap is the second half of this algorithm, which takes every case."""

_product = mutants_of("kernels.conv_pointwise_1x1", primitive=FORWARD, backend=_COLUMNS)
_columns = mutants_of("kernels.conv_gemm", primitive=FORWARD, backend=_COLUMNS)

MUTANTS = (
    _product(
        "pointwise_filters_of_first_group",
        "index",
        "every group has the filters of the first",
        "            part.filter.group,\n",
        "            0,\n",
    ),
    _product(
        "pointwise_residual_of_first_group",
        "index",
        "every group has the residual of the first",
        "            residual.group,\n",
        "            0,\n",
        FUSED,
    ),
    _product(
        "pointwise_bias_of_first_group",
        "index",
        "every group has the bias of the first",
        "            part.channels_out,\n        ),\n",
        "            0,\n        ),\n",
        FUSED,
    ),
    _columns(
        "conv_columns_padding_behind",
        "attribute",
        "the padding before the input counts as a crop",
        "-part.shift[dim]",
        "part.shift[dim]",
    ),
    _columns(
        "conv_columns_stride_and_dilation_exchanged",
        "attribute",
        "positions are as far apart as taps should be, and taps as positions",
        "= part.step[dim], part.gap[dim]",
        "= part.gap[dim], part.step[dim]",
    ),
    _columns(
        "conv_columns_filter_not_copied",
        "index",
        "the stride of the last dim of the filter is taken for that of all of its depth",
        "            return None\n    return dims",
        "            break\n    return dims",
    ),
)
