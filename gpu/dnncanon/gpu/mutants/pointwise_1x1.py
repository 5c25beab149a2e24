"""Defects of convolutions as products of matrices: with one tap, and of explicit columns."""

from dnncanon.gpu.mutants.making import FILTER, FORWARD, FUSED, mutants_of

_COLUMNS = "dnncanon.gpu.single_algorithm:gemm"
"""The product with one tap is the second half of this algorithm, which takes every case."""

_product = mutants_of("kernels.conv_pointwise_1x1", primitive=FORWARD, backend=_COLUMNS)
_columns = mutants_of("kernels.conv_gemm", primitive=FORWARD, backend=_COLUMNS)
_pieces = mutants_of(
    "kernels.tile.pieces",
    primitive=FILTER,
    backend="dnncanon.gpu.single_algorithm:pointwise_1x1",
)

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
    _pieces(
        "pieces_only_the_first",
        "index",
        "the first piece of one operand is multiplied by every piece of the other",
        "at[0] + piece * step_a",
        "at[0]",
    ),
    _pieces(
        "pieces_last_one_lost",
        "bounds",
        "a split leaves out its last piece",
        "range(first, min(pieces, first + pieces_each))",
        "range(first, min(pieces, first + pieces_each) - 1)",
    ),
    _pieces(
        "pieces_beyond_the_last",
        "bounds",
        "the last split goes on to pieces that there are not",
        "range(first, min(pieces, first + pieces_each))",
        "range(first, first + pieces_each)",
        check=True,
    ),
    _pieces(
        "pieces_start_anew",
        "arithmetic",
        "each split begins with the first piece",
        "first = split * pieces_each",
        "first = split * 0",
    ),
    _pieces(
        "pieces_no_barrier_between",
        "synchronisation",
        "the next piece is fetched into slots that others still multiply",
        "                cuda.syncthreads()\n            where",
        "            where",
        check=True,
    ),
)
