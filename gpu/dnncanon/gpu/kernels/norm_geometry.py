"""Who works on what in a normalization: the sets of a call as rows, and how a kernel goes through them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.kept import BYTES, Kept
from dnncanon.gpu.kernels.lines import Signature, numbers
from dnncanon.gpu.kernels.rows import THREADS, Rows
from dnncanon.gpu.kernels.strided import Space, broadcast_strides
from dnncanon.gpu.runtime import DeviceArray, Kernel, launch, origin
from dnncanon.gpu.runtime.memory import storage_of
from dnncanon.spec import DTYPES

Shape = tuple[int, ...]

CHUNK_BYTES = 16
"""What a thread moves at once of the widest operand."""

MANY = 512
"""Blocks at most where a block keeps something over all of its sets; they fill a GPU several times over."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a kernel is made for.

    A thread takes ``count`` adjacent elements at once, by one instruction where they are ``aligned``. Of the
    inputs, those in ``rowwise`` have one element for a set, those in ``still`` one for what is taken at once,
    and those in ``shared`` the same elements for all sets. ``kept_inputs`` are kept until a set is done. With
    ``parts`` each element is added up over the sets of a block. ``segmented`` sets are added up stretch by
    stretch.
    """

    lines: Signature
    count: int
    aligned: bool
    rowwise: Shape
    still: Shape
    shared: Shape
    kept_inputs: Shape
    parts: bool
    segmented: bool

    @property
    def kept(self) -> Kept:
        dtypes = {k: self.lines.inputs[k] for k in self.kept_inputs}
        if not self.aligned:
            return Kept.of(dtypes, self.count)
        size = {k: self.count * DTYPES[name].numpy.itemsize for k, name in dtypes.items()}
        return Kept.chunks(size)

    def words(self, k: int) -> tuple[str, int]:
        """Type and number of the words in which an input is shared, of what is taken at once."""
        word = storage_of(DTYPES[self.lines.inputs[k]].numpy)
        if not self.aligned:
            return word.name, self.count
        return "uint64", 1 + (self.count * word.itemsize > 8)


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sets of a call as rows, and how a kernel goes through them."""

    rows: Rows
    count: int
    aligned: bool
    rowwise: Shape
    still: Shape
    lasting: Shape
    kept: Shape
    parts: int
    segmented: bool
    sum_bytes: int

    @classmethod
    def of(
        cls,
        inputs: Sequence[DeviceArray],
        outputs: Sequence[DeviceArray],
        elements: int,
        axes: Shape,
        kept: Shape,
        parts: int,
        *,
        segmented: bool = False,
    ) -> "Geometry":
        """The first ``elements`` outputs have x's shape, the others an entry for each set or segment."""
        shape = inputs[0].shape
        strides = [broadcast_strides(array, shape) for array in inputs]
        strides += [broadcast_strides(array, shape) for array in outputs]
        whole = (*inputs, *outputs[:elements])
        rows = Rows.of(shape, axes, strides, [origin(array) for array in (*inputs, *outputs)])
        columns = rows.columns.strides
        parameters = [k for k in range(len(inputs)) if k not in kept]
        rowwise = tuple(k for k in parameters if not any(columns[k]))
        walking = [k for k in range(len(whole)) if k not in rowwise]
        still = tuple(k for k in walking if k in parameters and columns[k][-1] == 0)
        moving = [k for k in walking if k not in still]
        count = _chunk(rows, whole, moving, still)
        if count > 1:
            rows = _in_chunks(rows, count, moving)
        sizes = [(whole[k].pointer, count * whole[k].dtype.itemsize) for k in moving]
        aligned = count > 1 and all(pointer % size == 0 for pointer, size in sizes)
        lasting = tuple(k for k in moving if k in parameters and not any(rows.rows.strides[k]))
        if parts:
            width = min(THREADS, 1 << max(0, rows.columns.size - 1).bit_length())
            rows = replace(rows, width=width, spacing=1)
        if segmented:
            length = rows.columns.extents[-1]
            rows = replace(rows, width=min(THREADS, 1 << (length - 1).bit_length()), spacing=1)
        sum_bytes = ELEMENTS[inputs[0].dtype.name].sum_dtype.itemsize
        return cls(rows, count, aligned, rowwise, still, lasting, kept, parts, segmented, sum_bytes)

    @property
    def grid(self) -> int:
        return self.parts or min(self.rows.grid, MANY if self.lasting else self.rows.grid)

    def form(self, lines: Signature) -> Form:
        form = Form(
            lines,
            self.count,
            self.aligned,
            self.rowwise,
            self.still,
            (),
            self.kept,
            self.parts > 0,
            self.segmented,
        )
        shared = replace(form, shared=self.lasting)
        fits = self._shared_bytes(shared) + self._summed_bytes <= BYTES * THREADS // 2
        reused = self.grid * self.rows.per_block < self.rows.rows.size or self.rows.per_block > 1
        return shared if fits and reused else form

    def _shared_bytes(self, form: Form) -> int:
        words = (form.words(k) for k in form.shared)
        each = sum(np.dtype(name).itemsize * number for name, number in words)
        return -(-each * self.rows.columns.size // CHUNK_BYTES) * CHUNK_BYTES

    @property
    def _turns(self) -> int:
        """Times that a thread takes something of a set."""
        length = self.rows.columns.extents[-1] if self.segmented else self.rows.columns.size
        return -(-length // self.rows.width) * (self.rows.columns.size // max(1, length))

    @property
    def _summed_bytes(self) -> int:
        return 2 * self._turns * self.count * THREADS * self.sum_bytes if self.parts else 0

    def launch(
        self,
        chosen: "tuple[Form, Kernel]",
        inputs: Sequence[DeviceArray],
        outputs: Sequence[DeviceArray],
        scalars: Sequence[float],
        stream: object,
        splits: tuple[int, ...] = (),
    ) -> None:
        """In shared memory there are sums of elements first, then what sets share, then what is kept."""
        form, function = chosen
        if self.rows.rows.size == 0 and not self.parts:
            return
        end = self._summed_bytes
        firsts = [0]
        for k in form.shared:
            name, number = form.words(k)
            firsts.append(end // np.dtype(name).itemsize)
            end += np.dtype(name).itemsize * number * self.rows.columns.size
            end = -(-end // CHUNK_BYTES) * CHUNK_BYTES
        kept = form.kept
        turns = -(-splits[1] // self.rows.width) if splits else self._turns
        slots = kept.slots(turns, BYTES - end // THREADS)
        arrays = tuple(a.argument for a in inputs), tuple(a.argument for a in outputs)
        room = kept.room(slots, end)
        args = (*arrays, numbers(scalars), self.rows.arguments, room, splits or tuple(firsts))
        end += kept.nbytes(slots)
        grid = self.rows.grid * splits[0] if splits else self.grid
        launch(function, grid, THREADS, args, shared_bytes=end, stream=stream)


def _chunk(
    rows: Rows, whole: Sequence[DeviceArray], moving: Sequence[int], still: Sequence[int]
) -> int:
    """How many adjacent elements a thread takes at once: 16 bytes of the widest operand, or 1.

    It depends on strides, not on addresses, so that the order of the operations does not.
    """
    count = CHUNK_BYTES // max(whole[k].dtype.itemsize for k in moving)
    columns = rows.columns
    others = [(*columns.strides[k][:-1], *rows.rows.strides[k]) for k in moving]
    fits = (
        columns.extents[-1] % count == 0
        and all(columns.strides[k][-1] == 1 for k in moving)
        and all(stride % count == 0 for strides in others for stride in strides)
    )
    return count if fits else 1


def _in_chunks(rows: Rows, count: int, moving: Sequence[int]) -> Rows:
    """The same rows with chunks for columns."""
    extents, strides = rows.columns.extents, rows.columns.strides
    columns = Space(
        (*extents[:-1], extents[-1] // count),
        tuple((*by[:-1], by[-1] * count) if k in moving else by for k, by in enumerate(strides)),
    )
    return Rows.over(rows.rows, columns, rows.origins)
