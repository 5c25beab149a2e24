"""Defects of im2col and col2im."""

from dnncanon.gpu.mutants.making import mutants_of

_im2col = mutants_of("columns", primitive="im2col", backend="gpu")
_col2im = mutants_of("kernels.columns", primitive="col2im", backend="gpu")

MUTANTS = (
    _im2col(
        "columns_padding_ignored",
        "attribute",
        "windows start in the image",
        "Coordinate(tuple(weights), -w.pre, w.inputs, x.strides[2 + d])",
        "Coordinate(tuple(weights), 0, w.inputs, x.strides[2 + d])",
    ),
    _im2col(
        "columns_stride_for_dilation",
        "attribute",
        "stride and dilation change places",
        "weights[2 + d], weights[2 + dims + d] = w.dilation, w.stride",
        "weights[2 + d], weights[2 + dims + d] = w.stride, w.dilation",
    ),
    _im2col(
        "columns_channel_is_one_row",
        "index",
        "rows of a channel overlap those of the next one",
        "strides=(n, row * p.taps, *(row * s for s in cells), *(column * s for s in outputs)),",
        "strides=(n, row, *(row * s * p.channels for s in cells), *(column * s for s in outputs)),",
    ),
    _im2col(
        "columns_first_channel_only",
        "index",
        "all rows are of the first channel",
        "strides = (*x.strides[:2], *(0,) * (2 * dims))",
        "strides = (x.strides[0], 0, *(0,) * (2 * dims))",
    ),
    _im2col(
        "columns_width_for_inputs",
        "bounds",
        "an image ends where the output does",
        "-w.pre, w.inputs, x.strides[2 + d])",
        "-w.pre, min(w.inputs, w.outputs), x.strides[2 + d])",
    ),
    _im2col(
        "columns_of_the_first_image",
        "index",
        "all columns that are added up are those of the first image",
        "x_at = (origin(x), n, row * p.taps, row, column)",
        "x_at = (origin(x), 0, row * p.taps, row, column)",
        "col2im",
    ),
    _col2im(
        "columns_cell_without_dilation",
        "arithmetic",
        "cells are counted as if windows had no gaps",
        "return (i + dim[5] - o * dim[3]) // dim[4]",
        "return i + dim[5] - o * dim[3]",
        check=True,
    ),
    _col2im(
        "columns_cell_without_padding",
        "arithmetic",
        "cells are counted from the image's edge",
        "return (i + dim[5] - o * dim[3]) // dim[4]",
        "return (i + dim[4] * dim[2] - o * dim[3]) // dim[4] % dim[2]",
    ),
    _col2im(
        "columns_rows_in_the_other_order",
        "index",
        "the last spatial dim counts as the slowest",
        "row = f1 * d2[2] + _cell(i2, o2, d2)",
        "row = f1 + _cell(i2, o2, d2) * d1[2]",
    ),
    _col2im(
        "columns_outputs_in_the_other_order",
        "index",
        "windows are counted by the extents of the image",
        "column = (o0 * d1[1] + o1) * d2[1] + o2",
        "column = (o0 * d1[1] + o1) * (d2[1] - (d2[1] > 1)) + o2",
    ),
    _col2im(
        "columns_last_window_wins",
        "arithmetic",
        "the last window's cell counts, not the sum",
        "total += to_sum(x[types.uint64(at)])",
        "total = to_sum(x[types.uint64(at)])",
    ),
    _col2im(
        "columns_summed_as_they_are",
        "precision",
        "sums are rounded to the element type behind each term",
        "total += to_sum(x[types.uint64(at)])",
        "total = to_sum(from_sum(total + to_sum(x[types.uint64(at)])))",
        dtypes=("float16", "bfloat16"),
    ),
)
