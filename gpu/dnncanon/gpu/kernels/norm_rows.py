"""Normalization in one launch: a team of threads normalises a set, which it reads three times.

The first time, for the mean, from memory; then, for the variance and for the result, from a cache. Backward,
it reads a set twice: for both sums and for the result. Sets are too few for that where a reduction would
split them: then ``norm_steps`` takes one step after the other.
"""

from collections.abc import Sequence
from functools import cache
from math import sqrt
from typing import Any

from dnncanon.gpu.kernels import norm
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.lines import Signature, signature_of
from dnncanon.gpu.kernels.reduction import BLOCKS, EACH
from dnncanon.gpu.kernels.rows import THREADS, Rows, spread_strides, team_of, team_reduce, team_sum
from dnncanon.gpu.kernels.strided import broadcast_strides
from dnncanon.gpu.runtime import DeviceArray, Kernel, Strided, blocks_for, kernel, launch, origin
from dnncanon.gpu.runtime.device_code import generated
from dnncanon.gpu.runtime.device_index import advance, digits_of, places

Shape = tuple[int, ...]


def fills(x: Strided, axes: Shape) -> bool:
    """Whether there are sets enough, or short ones, so that none is to be split."""
    rows = Rows.of(x.shape, axes, [x.strides], [0])
    blocks = blocks_for(rows.rows.size, rows.per_block)
    return rows.columns.size < 2 * EACH * rows.width or 2 * blocks > BLOCKS


def normalise(
    inputs: Sequence[DeviceArray],
    outputs: Sequence[DeviceArray],
    axes: Shape,
    scalars: Sequence[float],
    stream: object,
) -> None:
    """y, mean, inv_std and variance of x, scale, bias and perhaps z, all in the view.

    Scalars: count, epsilon, and those of ``norm.normalised``.
    """
    residual = len(inputs) > 3
    _launch(forward, inputs, outputs, 1, axes, scalars, stream, residual)


def differentiate(
    inputs: Sequence[DeviceArray],
    outputs: Sequence[DeviceArray],
    axes: Shape,
    scalars: Sequence[float],
    stream: object,
    *,
    masked: bool,
) -> None:
    """dx, perhaps dz, and both sums, of dy, x, mean, inv_std, scale and, if ``masked``, y.

    Scalars: those of ``norm.input_gradient``.
    """
    _launch(backward, inputs, outputs, len(outputs) - 2, axes, scalars, stream, masked)


def _launch(
    make: Any,
    inputs: Sequence[DeviceArray],
    outputs: Sequence[DeviceArray],
    elements: int,
    axes: Shape,
    scalars: Sequence[float],
    stream: object,
    variant: bool,
) -> None:
    """The first ``elements`` outputs have x's shape, the others an entry for each set."""
    shape = inputs[0].shape
    strides = [broadcast_strides(array, shape) for array in inputs]
    strides += [array.strides for array in outputs[:elements]]
    strides += [spread_strides(array, shape, axes) for array in outputs[elements:]]
    operands = (*inputs, *outputs)
    rows = Rows.of(shape, axes, strides, [origin(array) for array in operands])
    if rows.rows.size == 0:
        return
    arrays = tuple(a.argument for a in inputs), tuple(a.argument for a in outputs)
    args = (*arrays, tuple(scalars), rows.arguments)
    chosen = make(signature_of(inputs, outputs, scalars), variant)
    launch(chosen, rows.grid, THREADS, args, stream=stream)


# --- Kernels --------------------------------------------------------------------------------------

_TEAMS = f"""
    counts, row_extents, row_strides, extents, strides, step, origins = rows
    row_count, columns, width, spacing = counts
    member, in_block = team_of(int64(cuda.threadIdx.x), width, spacing)
    per_block = {THREADS} // width
    tile = int64(cuda.blockIdx.x)
    while tile < (row_count + per_block - 1) // per_block:
        row = tile * per_block + in_block
        bases = places(digits_of(row, row_extents), row_strides, origins)
        end = columns if row < row_count else 0
"""


def _loop(*body: str) -> str:
    """Over the columns of the team's row that are a thread's: ``at`` is where its operands are."""
    lines = ["digits = digits_of(member, extents)", "column = member", "while column < end:"]
    inner = ("at = places(digits, strides, bases)", *body)
    rest = ("digits = advance(digits, step, extents)", "column += width")
    lines += ["    " + line for line in (*inner, *rest)]
    return "".join(f"        {line}\n" for line in lines)


@cache
def forward(lines: Signature, residual: bool) -> Kernel:
    """The kernel of ``normalise``. Launch with THREADS threads; the grid may have any size."""
    kind = ELEMENTS[lines.inputs[0]].sum_dtype.name
    inputs = len(lines.inputs)
    flags = ", ".join(f"s{k}" for k in range(2, len(lines.floats)))
    given = ", ".join(f"to_sum{k}(x{k}[uint64(at[{k}])])" for k in range(1, inputs))
    source = f"""
def norm_rows_forward(inputs, outputs, given, rows):
    {lines.unpack}
    count, epsilon, centred = s0, s1, s3
{_TEAMS}
        mean = zero
        if centred != 0:
            total = zero
{_indented(_loop("total += to_sum0(x0[uint64(at[0])])"))}
            mean = team_sum(total, width, spacing) / count
        squares = zero
{_loop("distance = to_sum0(x0[uint64(at[0])]) - mean", "squares += distance * distance")}
        variance = team_sum(squares, width, spacing) / count
        inv_std = one / sqrt(variance + epsilon)
{
        _loop(
            f"y = normalised(to_sum0(x0[uint64(at[0])]), mean, inv_std, {given}, {flags})",
            f"y0[uint64(at[{inputs}])] = from_sum0(y)",
        )
    }
        if member == 0 and row < row_count:
            if centred != 0:
                y1[uint64(bases[{inputs + 1}])] = mean
            y2[uint64(bases[{inputs + 2}])] = inv_std
            y3[uint64(bases[{inputs + 3}])] = variance
        tile += cuda.gridDim.x
"""
    function = norm.normalised(kind, residual=residual)
    return kernel(generated(source, _scope(lines, kind) | {"normalised": function}))


@cache
def backward(lines: Signature, masked: bool) -> Kernel:
    """The kernel of ``differentiate``. Launch with THREADS threads; the grid may have any size."""
    kind = ELEMENTS[lines.inputs[0]].sum_dtype.name
    inputs, outputs = len(lines.inputs), len(lines.outputs)
    forked = outputs > 3
    elements = ", ".join(f"to_sum{k}(x{k}[uint64(at[{k}])])" for k in range(5))
    y = ", to_sum5(x5[uint64(at[5])])" if masked else ""
    stores = [f"y{k}[uint64(at[{inputs + k}])] = from_sum{k}(r{k})" for k in range(outputs - 2)]
    source = f"""
def norm_rows_backward(inputs, outputs, given, rows):
    {lines.unpack}
{_TEAMS}
        sum_g, sum_gx = zero, zero
{
        _loop(
            f"a, b = lift({elements}{y}, s1, s2, s4)",
            "sum_g += a",
            "sum_gx += b",
        )
    }
        sum_g, sum_gx = team((sum_g, sum_gx), width, spacing)
{
        _loop(
            f"{'r0, r1' if forked else 'r0'} = gradient({elements}, sum_g, sum_gx{y}, {lines.scalars})",
            *stores,
        )
    }
        if member == 0 and row < row_count:
            y{outputs - 2}[uint64(bases[{inputs + outputs - 2}])] = sum_g
            y{outputs - 1}[uint64(bases[{inputs + outputs - 1}])] = sum_gx
        tile += cuda.gridDim.x
"""
    number = ELEMENTS[kind].sum
    scope = {
        "lift": norm.gradient_sums(kind, masked=masked).lift,
        "gradient": norm.input_gradient(kind, masked=masked, forked=forked),
        "team": team_reduce(norm.add_pairs, (number, number)),
    }
    return kernel(generated(source, _scope(lines, kind) | scope))


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _scope(lines: Signature, kind: str) -> dict[str, Any]:
    """What the names in the kernels' source mean."""
    number = ELEMENTS[kind].sum
    return {
        **lines.scope,
        "digits_of": digits_of,
        "advance": advance,
        "places": places,
        "team_of": team_of,
        "team_sum": team_sum(number),
        "sqrt": sqrt,
        "zero": number(0),
        "one": number(1),
    }
