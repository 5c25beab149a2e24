"""Where everything of a recurrent network is on the device: weights by layer, rows of steps, lengths, products.

Views are arrays with a pointer and strides of their own, and the two directions of a layer their first dim,
so that one launch serves both. Forward, its gradients, and all algorithms have them from here.
"""

from dataclasses import dataclass, replace

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.moving import copy, fill
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.kernels.table import write_table
from dnncanon.gpu.kernels.tile import matrices
from dnncanon.gpu.kernels.tile.matrices import Epilogue, Matrices, Matrix
from dnncanon.gpu.primitive import Launch
from dnncanon.gpu.runtime import DeviceArray, Strided, empty
from dnncanon.spec import dense_strides
from dnncanon.spec.rnn_problem import RnnProblem
from dnncanon.spec.rnn_weights import Kind

Ints = tuple[int, ...]

_LARGEST = 2**31 - 1
"""Rows of one matrix, at most: tiles count them in 32 bits."""


def on_tensor_cores(dtype: str) -> bool:
    """Whether matrices of this type are multiplied on tensor cores; float32 and float64 are on CUDA cores."""
    return dtype in ("float16", "bfloat16")


def sum_dtype(dtype: str) -> str:
    """The type of gates, cells and sums: float64 for float64, else float32."""
    return ELEMENTS[dtype].sum_dtype.name


def view(array: DeviceArray, first: int, shape: Ints, strides: Ints) -> DeviceArray:
    """Part of an array: ``first`` counts elements of memory from the array's own first one."""
    pointer = array.pointer + first * array.dtype.itemsize
    return replace(array, pointer=pointer, shape=shape, strides=strides)


def absent(dtype: str) -> DeviceArray:
    """What kernels are given where there is no such array; they do not touch it."""
    return empty((0,), ELEMENTS[dtype].dtype)


# --- Weights --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The parameters of a layer as views of the packed ones; the first dim is the direction.

    ``w`` [D, G·H, in], None where a layer skips it; ``r`` [D, G·H, Q]; ``projection`` [D, Q, H] or None;
    ``w_bias`` and ``r_bias`` [D, G·H], None where the bias mode has none.
    """

    w: DeviceArray | None
    r: DeviceArray
    projection: DeviceArray | None
    w_bias: DeviceArray | None
    r_bias: DeviceArray | None


def layer_weights(p: RnnProblem, weights: DeviceArray, layer: int) -> LayerWeights:
    """Of ``weights``, or of an array that is packed as they are, such as their gradient."""

    def of(kind: Kind) -> DeviceArray | None:
        place = weight_place(p, weights, kind, layer)
        return view(weights, place.first, place.shape, place.strides) if place else None

    r = of("R")
    assert r is not None
    return LayerWeights(of("W"), r, of("projection"), of("bW"), of("bR"))


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """Where a parameter of a layer is: elements of memory before it, [D, …], and strides."""

    first: int
    shape: Ints
    strides: Ints


def weight_place(p: RnnProblem, weights: Strided, kind: Kind, layer: int) -> WeightPlace | None:
    """Of both directions of a layer; None where there is no such parameter."""
    blocks = [p.layout.block(kind, layer, direction) for direction in range(p.directions)]
    first, last = blocks[0], blocks[-1]
    if first is None or last is None:
        return None
    (stride,) = weights.strides
    apart = (last.offset - first.offset) * stride
    steps = tuple(step * stride for step in dense_strides(first.shape))
    return WeightPlace(first.offset * stride, (p.directions, *first.shape), (apart, *steps))


# --- States and rows ------------------------------------------------------------------------------


def of_layer(p: RnnProblem, array: DeviceArray, layer: int) -> DeviceArray:
    """[D, …] of an array [L·D, …], such as h0, gates or dgates."""
    first, shape = layer * p.directions * array.strides[0], (p.directions, *array.shape[1:])
    return view(array, first, shape, array.strides)


@dataclass(frozen=True, slots=True)
class Rows:
    """How far apart in memory the rows of an array are that has one for each step of each sequence.

    That of sequence b at step t in direction d begins ``d·direction + τ·step + b·sequence`` elements from the
    first one, with τ = t or, of packed rows, the first row of step t.
    """

    direction: int
    step: int
    sequence: int
    column: int

    @property
    def strides(self) -> Ints:
        """As kernels take them."""
        return (self.direction, self.step, self.sequence, self.column)


def rows_of_data(p: RnnProblem, data: Strided) -> Rows:
    """Of x, y and their gradients: [S, B, C], or packed [N, C]. Directions lie side by side in y."""
    *far, column = data.strides
    return Rows(p.out * column, far[0], far[-1], column)


def rows_of_layer(p: RnnProblem, reserve: Strided) -> Rows:
    """Of a layer of gates, cells or dgates: [L·D, N, C]."""
    direction, row, column = reserve.strides
    return Rows(direction, row if p.packed else p.batch * row, row, column)


def rows_of_hidden(p: RnnProblem, hidden: Strided) -> Rows:
    """Of a layer of hidden: [L, N, D·Q], whose directions lie side by side."""
    _, row, column = hidden.strides
    return Rows(p.out * column, row if p.packed else p.batch * row, row, column)


def hidden_of_layer(hidden: DeviceArray, layer: int) -> DeviceArray:
    """[N, D·Q] of hidden."""
    of_layer, *strides = hidden.strides
    return view(hidden, layer * of_layer, hidden.shape[1:], tuple(strides))


@dataclass(frozen=True, slots=True)
class RowArray:
    """An array with a row for each step of each sequence, and how far apart these are."""

    array: DeviceArray
    rows: Rows

    @property
    def place(self) -> Ints:
        return (self.array.origin, *self.rows.strides)


# --- Sequences ------------------------------------------------------------------------------------

WHOLE, PADDED, PACKED = 0, 1, 2
"""All sequences have all steps; they have lengths; their rows are packed as well."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Which steps sequences have, as kernels take it: a kind, and a table if lengths differ.

    The table holds the lengths of the B sequences and, of packed ones, the first row of each step.
    """

    kind: int
    numbers: Ints

    @classmethod
    def of(cls, p: RnnProblem) -> "Sequences":
        if p.packed:
            return cls(PACKED, (*p.lengths, *(p.first_row(t) for t in range(p.steps))))
        if all(length == p.steps for length in p.lengths):
            return cls(WHOLE, ())
        return cls(PADDED, tuple(p.lengths))

    @property
    def table(self) -> tuple[Ints, str]:
        """Shape and dtype, as ``Scratch`` takes them."""
        return (len(self.numbers),), "int64"

    def write(self, table: DeviceArray, stream: object) -> None:
        write_table(table, self.numbers, stream=stream)


# --- Calls ----------------------------------------------------------------------------------------


class Call:
    """A call with its workspace: what forward and gradients have in common."""

    def __init__(self, run: Launch[RnnProblem], scratch: Scratch) -> None:
        self.p, self.run, self.stream = run.problem, run, run.stream
        self.memory = scratch.arrays(run.workspace)
        self.rest = scratch.rest(run.workspace)
        self.sequences = Sequences.of(self.p)

    def hand_on(self, given: str, result: str) -> None:
        """Where there are no steps: the result is what was given, or zeros. Some cells have no such result."""
        x, y = self.run.inputs.get(given), self.run.outputs.get(result)
        if y is not None:
            copy(x, y, stream=self.stream) if x else fill(y, 0, stream=self.stream)


# --- Products of all rows -------------------------------------------------------------------------


def product_of_rows(
    p: RnnProblem, x: Rows, w: Strided, y: Rows, y_dtype: str, *, one_x: bool = False
) -> Matrices:
    """y[d, row] = x[d, row]·w[d]ᵀ of all rows at once, w being [D, columns, depth].

    With ``one_x`` both directions have the same x.
    """
    _, columns, depth = w.shape
    (rows, *of_rows), (others, *of_others) = _dims_of_rows(p, x, y)
    two = p.directions > 1
    of_x = (0, x.direction if two and not one_x else 0, of_others[0])
    return Matrices(
        p.dtype,
        (1, p.directions, others),
        rows,
        columns,
        depth,
        Matrix(p.dtype, of_x, of_rows[0], x.column),
        Matrix(p.dtype, (0, w.strides[0] if two else 0, 0), w.strides[2], w.strides[1]),
        Matrix(y_dtype, (0, y.direction if two else 0, of_others[1]), of_rows[1], y.column),
    ).along_rows()


def product_over_directions(p: RnnProblem, x: Rows, w: WeightPlace, y: Rows) -> Matrices:
    """y[row] = Σ_d x[d, row]·w[d] of all rows at once, w being [D, depth, columns]."""
    _, depth, columns = w.shape
    of_direction, *of_w = w.strides
    (rows, *of_rows), (others, *of_others) = _dims_of_rows(p, x, y)
    return Matrices(
        p.dtype,
        (1, 1, others),
        rows,
        columns,
        depth,
        Matrix(p.dtype, (0, 0, of_others[0]), of_rows[0], x.column),
        Matrix(p.dtype, (0, 0, 0), of_w[0], of_w[1]),
        Matrix(p.dtype, (0, 0, of_others[1]), of_rows[1], y.column),
        pieces=p.directions,
        steps=(x.direction, of_direction),
    ).along_rows()


def product_over_rows(p: RnnProblem, x: Rows, z: Rows, y: Strided) -> Matrices:
    """y[d, k, i] = Σ_row x[d, row, k]·z[d, row, i]."""
    directions, lines, columns = y.shape
    (rows, *of_rows), (others, *of_others) = _dims_of_rows(p, x, z)
    two = directions > 1
    return Matrices(
        p.dtype,
        (1, 1, directions),
        lines,
        columns,
        rows,
        Matrix(p.dtype, (0, 0, x.direction if two else 0), x.column, of_rows[0]),
        Matrix(p.dtype, (0, 0, z.direction if two else 0), of_rows[1], z.column),
        Matrix(p.dtype, (0, 0, y.strides[0] if two else 0), y.strides[1], y.strides[2]),
        pieces=others,
        steps=(of_others[0], of_others[1]),
    ).along_rows()


def _dims_of_rows(p: RnnProblem, *operands: Rows) -> tuple[Ints, Ints]:
    """All rows as a matrix, and what there are several of: extents, and the strides of the operands.

    Where no single stride leads through the rows, the longer one of steps and sequences is the matrix.
    """
    sequences = (p.batch, *(rows.sequence for rows in operands))
    steps = (p.steps, *(rows.step for rows in operands))
    joined = all(rows.step == p.batch * rows.sequence for rows in operands)
    if p.packed or (joined and p.rows <= _LARGEST):
        return (p.rows, *sequences[1:]), (1, *(0 for _ in operands))
    return (steps, sequences) if p.steps > p.batch else (sequences, steps)


def multiply(
    m: Matrices,
    x: DeviceArray,
    w: DeviceArray,
    y: DeviceArray,
    epilogue: Epilogue,
    workspace: DeviceArray | None,
    stream: object,
) -> None:
    """Launch a product of ``product_of_rows``, with a workspace of ``product_bytes``."""
    first, second = (w, x) if m.flipped else (x, w)
    tensor_core = on_tensor_cores(m.word)
    matrices.multiply(m, first, second, y, epilogue, workspace, stream, tensor_core=tensor_core)


def product_bytes(m: Matrices) -> int:
    return matrices.workspace_bytes(m, tensor_core=on_tensor_cores(m.word))
