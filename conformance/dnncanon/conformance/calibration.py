"""Calibration of the accuracy model: NumPy in low precision against the bounds, as a table.

    python -m dnncanon.conformance.calibration                     prints the table
    python -m dnncanon.conformance.calibration --update FILE.md    puts it between the file's markers

Each reference is run as it is on arrays of the accumulator's dtype, so that NumPy rounds every operation to
it, with sums in NumPy's own order, one term after the other, and in blocks of 16; the result is rounded
to the output's dtype. All three are correct implementations of the class: none may exceed its bound, and
a bound that none ever uses more than 1 % of is too loose.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance.accuracy import SIGMAS, Undecided
from dnncanon.conformance.bounds import Expected, expectations
from dnncanon.conformance.case import Case
from dnncanon.conformance.data import FILLS
from dnncanon.conformance.execute import inputs
from dnncanon.conformance.levels import LEVELS
from dnncanon.conformance.strategies import drawn_case
from dnncanon.conformance.verdict import judge
from dnncanon.reference import definitions
from dnncanon.reference.rounding import rounded
from dnncanon.spec import NUMERICS, Primitive, primitives

Array = NDArray[Any]

CLASSES = (
    ("float32", "ieee"),
    ("float16", "ieee"),
    ("bfloat16", "ieee"),
    ("float16", "fp16_accumulate"),
)
"""Dtypes, and the numerics classes in which NumPy computes with them."""
CASES = 5
"""Cases of each primitive, dtype and data set."""
DRAWS = 12
"""Cases drawn for each of those, of which the one with the longest sums is taken."""

BEGIN, END = "<!-- calibration: begin -->", "<!-- calibration: end -->"


class NumPyOrder(np.ndarray):
    """An array whose sums are in NumPy's own order: pairwise, or as the BLAS has it."""

    block: ClassVar[int | None] = None

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **options: Any) -> Any:
        kind = type(self)
        plain = [np.asarray(a) if isinstance(a, NumPyOrder) else a for a in args]
        out = options.pop("out", None)
        if kind.block is not None and ufunc is np.matmul and method == "__call__":
            result = _matmul(kind.block, *plain)
        elif kind.block is not None and ufunc is np.add and method == "reduce":
            result = _sum(kind.block, plain[0], **options)
        else:
            result = getattr(ufunc, method)(*plain, **options)
        if out is not None:
            np.asarray(out[0])[...] = result
            return out[0]
        return _as(kind, result)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        kind = type(self)
        if kind.block is not None and function in (np.mean, np.einsum):
            rule: Callable[..., Any] = _mean if function is np.mean else _einsum
            return _as(kind, rule(kind.block, *_plain(args), **kwargs))
        # What NumPy builds of sums arrives here again, as ufuncs.
        result = super().__array_function__(function, types, args, kwargs)
        return result if isinstance(result, tuple | list | NumPyOrder) else _as(kind, result)


class Sequential(NumPyOrder):
    """An array whose sums are made one term after the other."""

    block = 1 << 62


class Blocked(NumPyOrder):
    """An array whose sums are made in blocks of 16 terms, and those one after the other."""

    block = 16


ORDERS: tuple[type[NumPyOrder], ...] = (NumPyOrder, Sequential, Blocked)


def _as(kind: type[NumPyOrder], result: Any) -> Any:
    is_number = isinstance(result, np.ndarray | np.floating)
    return np.asarray(result).view(kind) if is_number else result


def _plain(args: Iterable[Any]) -> list[Any]:
    return [np.asarray(a) if isinstance(a, np.ndarray) else a for a in args]


def _added_up(block: int, count: int, term: Callable[[int], Array]) -> Array:
    """The sum of ``count`` terms in blocks, every partial sum rounded."""
    total: Array | None = None
    for start in range(0, count, block):
        part = term(start)
        for index in range(start + 1, min(start + block, count)):
            part = part + term(index)
        total = part if total is None else total + part
    return term(0) if total is None else total


def _matmul(block: int, a: Array, b: Array) -> Array:
    length = a.shape[-1]
    if length == 0 or a.ndim < 2 or b.ndim < 2:
        return np.asarray(np.matmul(a, b))
    return _added_up(block, length, lambda k: a[..., :, k, None] * b[..., k, None, :])


def _sum(
    block: int, a: Array, axis: Any = 0, dtype: Any = None, keepdims: bool = False, **options: Any
) -> Array:
    axes = tuple(range(a.ndim)) if axis is None else tuple(np.atleast_1d(axis) % max(1, a.ndim))
    kept = [i for i in range(a.ndim) if i not in axes]
    shape = [1 if i in axes else n for i, n in enumerate(a.shape) if keepdims or i not in axes]
    terms = a.transpose(*axes, *kept).reshape(-1, *(a.shape[i] for i in kept))
    if len(terms) == 0 or dtype is not None:
        return np.asarray(np.sum(a, axis=axis, dtype=dtype, keepdims=keepdims))
    return _added_up(block, len(terms), lambda k: terms[k]).reshape(shape)


def _mean(block: int, a: Array, axis: Any = None, keepdims: bool = False) -> Array:
    total = _sum(block, a, axis=axis, keepdims=keepdims)
    return np.asarray(total / a.dtype.type(a.size // max(1, total.size)))


def _einsum(block: int, subscripts: str, *operands: Array, **options: Any) -> Array:
    left, _, result = subscripts.partition("->")
    letters = left.split(",")
    summed = sorted(set(left) - set(result) - {",", "."})
    if len(operands) != 2 or "." in left or not summed:
        return np.asarray(np.einsum(subscripts, *operands, **options))
    extents = {
        x: n
        for text, a in zip(letters, operands, strict=True)
        for x, n in zip(text, a.shape, strict=True)
    }
    counts = [extents[x] for x in summed]
    if 0 in counts:
        return np.asarray(np.einsum(subscripts, *operands, **options))
    kept = ["".join(x for x in text if x not in summed) for text in letters]

    def term(index: int) -> Array:
        at = dict(zip(summed, np.unravel_index(index, counts), strict=True))
        parts = [
            a[tuple(at.get(x, slice(None)) for x in text)]
            for text, a in zip(letters, operands, strict=True)
        ]
        return np.asarray(np.einsum(f"{kept[0]},{kept[1]}->{result}", *parts))

    return _added_up(block, math.prod(counts), term)


# --- The figures ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What one primitive, dtype and data set used of its bounds, over cases and orders of summation.

    ``bounded`` elements have a bound beyond what an underflow may cost. ``max_sigmas`` and ``p99_sigmas``
    are |error|/σ, ``max_bound`` is |error|/bound; ``worst`` is the case of the last. An infinite
    ``max_bound`` says that an error was made where none is allowed.
    """

    primitive: str
    dtype: str
    numerics: str
    fill: str
    elements: int
    bounded: int
    max_sigmas: float
    p99_sigmas: float
    max_bound: float
    worst: str


def measure(
    names: Iterable[str] | None = None,
    fills: Iterable[str] | None = None,
    cases: int = CASES,
    seed: int = 1,
) -> Iterator[Row]:
    """Rows of the table, by primitive, dtype and data set."""
    chosen = primitives() if names is None else {name: primitives()[name] for name in names}
    kinds = [n for n, f in FILLS.items() if f.layer != "special"] if fills is None else fills
    for primitive in chosen.values():
        for dtype, numerics in CLASSES:
            if numerics not in primitive.numerics(dtype):
                continue
            found = _cases(primitive, dtype, cases, seed)
            for fill in kinds if primitive.inputs else ("normal",):  # without tensors no data
                yield _row([replace(case, fill=fill) for case in found], numerics)


def _cases(primitive: Primitive[Any], dtype: str, count: int, seed: int) -> list[Case]:
    """Cases with long sums, and not too few of them: errors of short ones are much alike."""

    def drawn(index: int) -> Case:
        case, _ = drawn_case(primitive, dtype, LEVELS["quick"].scale, seed, index)
        return replace(case, layouts={}, after=None)

    return [
        max(
            (drawn(i * DRAWS + j) for j in range(DRAWS)),
            key=_weight,
        )
        for i in range(count)
    ]


def _weight(case: Case) -> int:
    length = case.primitive.reduction_length(case.call.problem)
    return int(length * min(100, sum(output.size for output in case.call.outputs)))


def _row(cases: Sequence[Case], numerics: str) -> Row:
    sigmas, used, elements, bounded = [np.zeros(1)], [(0.0, str(cases[0]))], 0, 0
    for case in cases:
        tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
        accumulator = NUMERICS[numerics].accumulator(case.dtype).numpy
        decisions = Undecided.made
        expected = expectations(case.call, tensors, numerics)
        # Whoever decides otherwise is off by as much as the bound allows, which says nothing of σ.
        statistics = Undecided.made == decisions
        for order in ORDERS:
            outputs = computed(case, tensors, accumulator, order)
            names = tuple(case.call.named_outputs)
            judgement = judge(names, outputs, expected, [])
            used.append((judgement.max_error, str(case)))
            pairs = zip(outputs, expected, strict=True)
            sigmas += [_in_sigmas(output, e) for output, e in pairs if statistics]
            elements += judgement.elements
            bounded += sum(int(np.count_nonzero(e.bound > _underflow(e))) for e in expected)
    every = np.concatenate(sigmas)
    max_bound, worst = max(used)
    return Row(
        primitive=cases[0].primitive.name,
        dtype=cases[0].dtype,
        numerics=numerics,
        fill=cases[0].fill,
        elements=elements,
        bounded=bounded,
        max_sigmas=float(every.max()),
        p99_sigmas=float(np.quantile(every, 0.99)),
        max_bound=max_bound,
        worst=worst,
    )


def _underflow(expected: Expected) -> float:
    """The bound of a 0 that may have been the smallest number: nothing uses it where no product is made."""
    return SIGMAS * expected.dtype.smallest_subnormal


def computed(
    case: Case, tensors: dict[str, Array], accumulator: Any, order: type[NumPyOrder] = NumPyOrder
) -> list[Array]:
    """The reference's outputs with every operation rounded to the dtype ``accumulator``."""

    def lift(array: Array) -> Array:
        return np.array(array, accumulator, order="C").view(order)

    arrays = {name: lift(tensor) for name, tensor in tensors.items()}
    with np.errstate(all="ignore"):
        results = definitions()[case.primitive.name].evaluate(case.call, arrays, lift)
        types = [output.dtype for output in case.call.outputs]
        return [rounded(np.asarray(r), t) for r, t in zip(results, types, strict=True)]


def _in_sigmas(output: Array, expected: Expected) -> NDArray[np.float64]:
    """|error|/σ of the elements that have a finite σ other than 0."""
    assert expected.sigma is not None
    with np.errstate(all="ignore"):
        error = np.abs(output.astype(np.float64) - expected.value)
        ratio = error / expected.sigma
    known = np.isfinite(ratio) & np.isfinite(expected.sigma)
    return np.asarray(ratio[known])


# --- The table ------------------------------------------------------------------------------------


def table(rows: Iterable[Row]) -> str:
    """The figures in Markdown: a line for each primitive, dtype and class, over all data sets.

    99 of 100 errors of each data set are within the figure of the seventh column.
    """
    lines = [
        "| primitive | dtype | class | elements | max error/σ | p99 error/σ | max error/bound | with data |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for (primitive, dtype, numerics), group in groupby(rows, key=attrgetter(*_CELL)):
        cell = list(group)
        worst = max(cell, key=lambda row: row.max_bound)
        lines.append(
            f"| {primitive} | {dtype} | {numerics} | {sum(r.elements for r in cell):,} | "
            f"{max(r.max_sigmas for r in cell):.2f} | {max(r.p99_sigmas for r in cell):.2f} | "
            f"{_exact_or(worst.max_bound)} | {worst.fill} |"
        )
    return "\n".join(lines) + "\n"


_CELL = ("primitive", "dtype", "numerics")


def _exact_or(ratio: float) -> str:
    return "exact" if ratio == 0 else f"{ratio:.3f}"


def updated(text: str, new: str, begin: str = BEGIN, end: str = END) -> str:
    """``text`` with what is between its markers replaced; ValueError if it has none."""
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"no {begin} … {end} in the file")
    return f"{before}{begin}\n{new}{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code, 1 where a bound was exceeded."""
    parser = argparse.ArgumentParser(
        prog="python -m dnncanon.conformance.calibration",
        description="NumPy in low precision against the bounds of the accuracy model.",
    )
    parser.add_argument("--cases", type=int, default=CASES, help="of each primitive × dtype × data")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--primitive", action="append", choices=list(primitives()))
    parser.add_argument("--update", type=Path, metavar="FILE", help="rewrite the table in FILE")
    options = parser.parse_args(arguments)
    rows = list(measure(options.primitive, cases=options.cases, seed=options.seed))
    if options.update:
        text = options.update.read_text(encoding="utf-8")
        options.update.write_text(updated(text, table(rows)), encoding="utf-8")
    else:
        print(table(rows), end="")
    exceeded = [row for row in rows if row.max_bound > 1]
    for row in exceeded:
        print(f"bound exceeded ({row.max_bound:.3g}): {row.worst}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    raise SystemExit(main())
