"""Defects planted in the definitions of im2col and col2im."""

from dnncanon.spec.mutant import Mutant


def _mutant(
    name: str,
    kind: str,
    doc: str,
    old: str,
    new: str,
    primitive: str,
    dtypes: tuple[str, ...] = ("float32",),
) -> Mutant:
    full, module = f"reference.columns_{name}", "dnncanon.reference.columns"
    return Mutant(full, kind, doc, module, old, new, "reference", primitive, dtypes)


MUTANTS = (
    _mutant(
        "rows_channel_last",
        "index",
        "rows are cells of channels, not channels of cells",
        "return np.moveaxis(np.where(inside, cells, 0.0), -1, 2).reshape(p.columns_shape)",
        "return np.moveaxis(np.where(inside, cells, 0.0), -1, 1).reshape(p.columns_shape)",
        "im2col",
    ),
    _mutant(
        "padding_repeats_a_cell",
        "bounds",
        "windows over the padding read the first cell",
        "np.where(inside, cells, 0.0)",
        "cells",
        "im2col",
    ),
    _mutant(
        "dilation_ignored",
        "attribute",
        "cells are added up as if windows had no gaps",
        "f * w.dilation - w.pre",
        "f - w.pre",
        "col2im",
    ),
    _mutant(
        "padding_ignored",
        "attribute",
        "what the padding has is put into the image",
        "f * w.dilation - w.pre",
        "f * w.dilation",
        "col2im",
    ),
    _mutant(
        "stride_ignored",
        "attribute",
        "windows lie one beside the other",
        "place = np.arange(w.outputs) * w.stride + start",
        "place = np.arange(w.outputs) + start",
        "col2im",
    ),
    _mutant(
        "last_cell_left_out",
        "bounds",
        "what the last cell of windows has is lost",
        "for k, cell in enumerate(cells)]",
        "for k, cell in enumerate(cells) if k + 1 < max(2, p.taps)]",
        "col2im",
    ),
    _mutant(
        "first_cell_of_the_image_lost",
        "bounds",
        "nothing is added to the first cell",
        "inside = np.flatnonzero((place >= 0) & (place < w.inputs))",
        "inside = np.flatnonzero((place > 0) & (place < w.inputs))",
        "col2im",
    ),
    _mutant(
        "last_window_wins",
        "arithmetic",
        "of the windows over a cell the largest counts, not the sum",
        "return np.sum(np.stack(images), axis=0)",
        "return np.max(np.stack(images), axis=0)",
        "col2im",
    ),
)
