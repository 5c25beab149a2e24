"""Normalization in one launch: a team of threads normalises a set, which it goes over three times.

For the mean, for the variance and for the result; backward twice, for both sums and for the result. The first
time it keeps what fits into shared memory (``kept``), the rest it reads again. Sets are too few for one launch
where a reduction would split them: then ``norm_steps`` takes one step after the other.
"""

from collections.abc import Sequence
from functools import cache
from math import sqrt
from typing import Any

from dnncanon.gpu.kernels import norm
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.kept import Kept
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
    thread = int64(cuda.threadIdx.x)
    member, in_block = team_of(thread, width, spacing)
    per_block = {THREADS} // width
    tile = int64(cuda.blockIdx.x)
    while tile < (row_count + per_block - 1) // per_block:
        row = tile * per_block + in_block
        bases = places(digits_of(row, row_extents), row_strides, origins)
        end = columns if row < row_count else 0
"""


def _loop(*body: str) -> str:
    """Over the columns of the team's row that are a thread's: ``at`` is where its operands are."""
    lines = [
        "digits = digits_of(member, extents)",
        "column, slot = member, 0",
        "while column < end:",
    ]
    inner = "\n".join(("at = places(digits, strides, bases)", *body)).splitlines()
    rest = ("digits = advance(digits, step, extents)", "column += width", "slot += 1")
    lines += ["    " + line for line in (*inner, *rest)]
    return "".join(f"        {line}\n" for line in lines)


_WORD = "x{k}[uint64(at[{k}])]"


@cache
def forward(lines: Signature, residual: bool) -> Kernel:
    """The kernel of ``normalise``. Launch with THREADS threads; the grid may have any size."""
    kind = ELEMENTS[lines.inputs[0]].sum_dtype.name
    inputs = len(lines.inputs)
    kept = Kept.of({0: lines.inputs[0]})
    flags = ", ".join(f"s{k}" for k in range(2, len(lines.floats)))
    z = ", to_sum3(x3[uint64(at[3])])" if residual else ""
    again = kept.recall("w{k}", _WORD)
    source = f"""
def norm_rows_forward(inputs, outputs, given, rows):
    {lines.unpack}
    count, epsilon, centred, scaled, shifted = s0, s1, s3, s4, s5
    {kept.declared}
{_TEAMS}
        mean = zero
        if centred != 0:
            total = zero
{_indented(_loop("w0 = x0[uint64(at[0])]", kept.keep("w{k}"), "total += to_sum0(w0)"))}
            mean = team_sum(total, width, spacing) / count
        squares = zero
        if centred != 0:
{_indented(_loop(again, "distance = to_sum0(w0) - mean", "squares += distance * distance"))}
        else:
{
        _indented(
            _loop(
                "w0 = x0[uint64(at[0])]",
                kept.keep("w{k}"),
                "distance = to_sum0(w0)",
                "squares += distance * distance",
            )
        )
    }
        variance = team_sum(squares, width, spacing) / count
        inv_std = one / sqrt(variance + epsilon)
{
        _loop(
            again,
            "scale = to_sum1(x1[uint64(at[1])]) if scaled != 0 else one",
            "bias = to_sum2(x2[uint64(at[2])]) if shifted != 0 else zero",
            f"y = normalised(to_sum0(w0), mean, inv_std, scale, bias{z}, {flags})",
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
    scope = _scope(lines, kind) | kept.scope | {"normalised": function}
    return kernel(generated(source, scope))


@cache
def backward(lines: Signature, masked: bool) -> Kernel:
    """The kernel of ``differentiate``. Launch with THREADS threads; the grid may have any size."""
    kind = ELEMENTS[lines.inputs[0]].sum_dtype.name
    inputs, outputs = len(lines.inputs), len(lines.outputs)
    forked = outputs > 3
    read = (0, 1, 5) if masked else (0, 1)
    kept = Kept.of({k: lines.inputs[k] for k in read})
    y = ", to_sum5(w5)" if masked else ""
    scale = "scale = to_sum4(x4[uint64(at[4])]) if scaled != 0 or factored != 0 else zero"
    elements = "to_sum0(w0), to_sum1(w1), mean, inv_std, scale"
    stores = [f"y{k}[uint64(at[{inputs + k}])] = from_sum{k}(r{k})" for k in range(outputs - 2)]
    source = f"""
def norm_rows_backward(inputs, outputs, given, rows):
    {lines.unpack}
    scaled, factored = s2, s3
    {kept.declared}
{_TEAMS}
        mean, inv_std = zero, zero
        if row < row_count:
            mean, inv_std = to_sum2(x2[uint64(bases[2])]), to_sum3(x3[uint64(bases[3])])
        sum_g, sum_gx = zero, zero
{
        _loop(
            *(f"w{k} = {_WORD.replace('{k}', str(k))}" for k in read),
            kept.keep("w{k}"),
            scale,
            f"a, b = lift({elements}{y}, s1, s2, s4)",
            "sum_g += a",
            "sum_gx += b",
        )
    }
        sum_g, sum_gx = team((sum_g, sum_gx), width, spacing)
{
        _loop(
            kept.recall("w{k}", _WORD),
            scale,
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
    return kernel(generated(source, _scope(lines, kind) | kept.scope | scope))


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
