"""The domain of matrix products that cases are drawn from, their test data, and their boundaries.

As many draws are made whatever was drawn before, so that a simpler choice leaves the later ones in place.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncanon.spec.matmul_problem import (
    ACTIVATIONS,
    MODES,
    OUTPUTS,
    GroupedMatmulProblem,
    broadcast,
)
from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.tensors import Shape, TensorType, dense_strides

# --- One product ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """How a matrix lies in memory: by rows or by ``columns``, which are ``gap`` elements apart."""

    columns: bool = False
    gap: int = 0

    def strides(self, shape: Shape) -> Shape | None:
        """Strides of a batch of matrices, one behind the other; None if they are dense."""
        if self == Layout() or math.prod(shape) == 0:
            return None
        *batch, m, n = shape
        outer, inner = (n, m) if self.columns else (m, n)
        leading = inner + self.gap
        matrix = (1, leading) if self.columns else (leading, 1)
        behind = (outer * leading * stride for stride in dense_strides(batch))
        return (*behind, *matrix)


_ROWS, _COLUMNS = Layout(), Layout(columns=True)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Extents of a product; the batch dims of each operand."""

    m: int
    n: int
    k: int
    a_batch: Shape = ()
    b_batch: Shape = ()

    @property
    def batch(self) -> Shape:
        return broadcast(self.a_batch, self.b_batch)

    @property
    def y_shape(self) -> Shape:
        return (*self.batch, self.m, self.n)

    @property
    def multiplications(self) -> int:
        """Products, and as if there were one where there are none."""
        return max(1, math.prod(self.batch)) * self.m * self.n * self.k


_EPILOGUE = {"alpha": 1.0, "beta": 1.0, "activation": "identity"}


def call(
    sizes: Sizes,
    dtypes: tuple[str, str],
    output: str | None = None,
    layouts: tuple[Layout, Layout] = (_ROWS, _ROWS),
    *,
    c_shape: Shape | None = None,
    biased: bool = False,
    **epilogue: Any,
) -> Arguments:
    """A call of these extents; ``c_shape`` and ``biased`` say what is added to the product."""
    a_shape = (*sizes.a_batch, sizes.m, sizes.k)
    b_shape = (*sizes.b_batch, sizes.k, sizes.n)
    tensors = {
        "a": TensorType(dtypes[0], a_shape, layouts[0].strides(a_shape)),
        "b": TensorType(dtypes[1], b_shape, layouts[1].strides(b_shape)),
    }
    added = output or OUTPUTS[dtypes][0]
    if c_shape is not None:
        tensors["c"] = TensorType(added, c_shape)
    if biased:
        tensors["bias"] = TensorType(added, (sizes.n,))
    if dtypes == ("int8", "int8"):
        epilogue = {}
    return Arguments(tensors, {**_EPILOGUE, **epilogue, "dtype": output})


def partners(dtype: str) -> tuple[tuple[tuple[str, str], str | None], ...]:
    """What a of this dtype may be multiplied with, and to what: its own dtype first."""
    pairs = sorted((pair for pair in OUTPUTS if pair[0] == dtype), key=lambda p: p[1] != dtype)
    return tuple(
        (pair, None if output == OUTPUTS[pair][0] else output)
        for pair in pairs
        for output in OUTPUTS[pair]
    )


_RANKS = (2, 3, 2, 3, 4, 5)
_MAX_BATCH_DIMS = 3
_LONG = ("nothing", "nothing", "nothing", "terms", "rows", "columns")
"""What one product in two has long."""
_LONGEST = 128
"""How many times the largest extent otherwise: sums of more than 512 terms, and rows and columns of several
tiles, are met at level quick already."""
_SHORT = 8
"""The other extents at most, where one is long."""
_ALIGNED = 8
"""Elements of 16 bits that are moved at a time: what one product in two has all extents a multiple of."""
_C_SHAPES = ("none", "whole", "matrix", "row", "column", "one")
_FEW = 16
"""An activation may make 0 of all elements, where they are fewer."""


def draw_matmul(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    """A product at random; every choice tends to the plainest."""
    aligned = draw.choice((False, True))
    sizes = _drawn_sizes(draw, scale, aligned=aligned)
    pair, output = draw.choice((partners(dtype)[0], *partners(dtype)))
    layouts = tuple(_drawn_layout(draw, aligned=aligned) for _ in range(2))
    c_shape = draw.choice(_C_SHAPES)
    biased = draw.choice((False, True))
    epilogue = {
        "alpha": draw.choice((1.0, 1.0, 0.5, -1.7)),
        "beta": draw.choice((1.0, 0.25, 0.0, -0.5)),
        "activation": draw.choice(ACTIVATIONS),
    }
    if math.prod(sizes.y_shape) < _FEW:
        epilogue["activation"] = "identity"
    return call(
        sizes,
        pair,
        output,
        (layouts[0], layouts[1]),
        c_shape=_c_shape(c_shape, sizes),
        biased=biased,
        **epilogue,
    )


def _drawn_sizes(draw: Draw, scale: Scale, *, aligned: bool) -> Sizes:
    dims = draw.choice(_RANKS) - 2
    long = draw.choice(_LONG)
    length = draw.integer(129, _LONGEST * scale.extent)
    m, n, k = (draw.integer(1, 2 * scale.extent) for _ in range(3))
    first = draw.choice((*range(1, scale.batch + 1), *(1, 2, 3) * 8, 0))
    batch = (first, *(draw.integer(1, 3) for _ in range(_MAX_BATCH_DIMS - 1)))[:dims]
    shared = [draw.choice(("none", "none", "a", "b")) for _ in range(_MAX_BATCH_DIMS)][:dims]
    if aligned:
        m, n, k, length = (-(-extent // _ALIGNED) * _ALIGNED for extent in (m, n, k, length))
    if long != "nothing":
        m, n, k = (min(extent, _SHORT) for extent in (m, n, k))
    sizes = Sizes(
        m,
        n,
        k,
        tuple(1 if one == "a" else extent for extent, one in zip(batch, shared, strict=True)),
        tuple(1 if one == "b" else extent for extent, one in zip(batch, shared, strict=True)),
    )
    name = {"terms": "k", "rows": "m", "columns": "n"}.get(long, "")
    return _within(_resized(sizes, name, length), scale, name)


def _resized(sizes: Sizes, name: str, extent: int) -> Sizes:
    """The product with one of m, n and k changed, or none for an empty name."""
    change: dict[str, Any] = {name: extent} if name else {}
    return replace(sizes, **change)


def _within(sizes: Sizes, scale: Scale, long: str) -> Sizes:
    """The product with as many of its extents halved as the scale asks for, the long one last.

    Operands are no larger than half of what may be multiplied.
    """
    while 2 * sizes.multiplications > scale.multiplications:
        extents = {name: getattr(sizes, name) for name in "mnk" if name != long}
        largest = max(extents, key=lambda name: extents[name])
        if max(sizes.batch, default=1) > 1:
            halved = [tuple(-(-n // 2) for n in b) for b in (sizes.a_batch, sizes.b_batch)]
            sizes = replace(sizes, a_batch=halved[0], b_batch=halved[1])
        elif extents[largest] > 1:
            sizes = _resized(sizes, largest, extents[largest] // 2)
        else:
            return _resized(sizes, long, scale.multiplications // 2)
    return sizes


def _drawn_layout(draw: Draw, *, aligned: bool) -> Layout:
    kind = draw.choice(("rows", "columns", "rows with gaps", "columns with gaps"))
    gap = draw.integer(1, _ALIGNED) * (_ALIGNED if aligned else 1)
    return Layout("columns" in kind, gap if "gaps" in kind else 0)


def _c_shape(kind: str, sizes: Sizes) -> Shape | None:
    m, n, ones = sizes.m, sizes.n, (1,) * len(sizes.batch)
    shapes = {
        "whole": sizes.y_shape,
        "matrix": (*ones, m, n),
        "row": (*ones, 1, n),
        "column": (*ones, m, 1),
        "one": (*ones, 1, 1),
    }
    return shapes.get(kind)


# --- Boundaries -----------------------------------------------------------------------------------

_EXTENTS = (7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
_FOUR = tuple((left, right) for left in (_ROWS, _COLUMNS) for right in (_ROWS, _COLUMNS))


def _named_sizes(*, every: bool) -> Iterator[tuple[str, Sizes]]:
    """The cheapest first: of ``every`` extent rows, columns and terms, or one of these in turn."""
    yield "no rows", Sizes(0, 3, 2)
    yield "no columns", Sizes(3, 0, 2)
    yield "no terms", Sizes(3, 5, 0)
    yield "empty batch", Sizes(3, 5, 2, (0,), (1,))
    yield "one product", Sizes(1, 1, 1)
    yield "an inner product", Sizes(1, 1, 129)
    yield "an outer product", Sizes(33, 17, 1)
    yield "a matrix and a vector", Sizes(65, 1, 31)
    yield "a vector and a matrix", Sizes(1, 65, 31)
    yield "one a for a batch of b", Sizes(5, 7, 9, (1,), (4,))
    yield "one b for a batch of a", Sizes(5, 7, 9, (4,), (1,))
    yield "batches across", Sizes(3, 4, 5, (3, 1, 2), (1, 4, 2))
    for number, extent in enumerate(_EXTENTS):
        sizes = {
            f"{extent} rows": Sizes(extent, 5, 6),
            f"{extent} columns": Sizes(6, extent, 5),
            f"{extent} terms": Sizes(5, 6, extent),
        }
        yield from sizes.items() if every else [[*sizes.items()][number % 3]]
    yield "a tile and one more, each way", Sizes(65, 65, 3)
    for extent in (4095, 4096, 4097):
        yield f"{extent} terms", Sizes(2, 1, extent)
    for extent in (2**16 - 1, 2**16, 2**16 + 1):
        yield f"batch {extent}", Sizes(1, 1, 1, (extent,), (extent,))
        yield f"{extent} rows", Sizes(extent, 1, 1)
        yield f"{extent} columns", Sizes(1, extent, 1)
        yield f"{extent} terms", Sizes(1, 1, extent)
    yield "1025 × 1025, 5 terms", Sizes(1025, 1025, 5)
    yield "2^31 + 1 rows", Sizes(2**31 + 1, 1, 1)


def matmul_boundaries(dtype: str) -> Iterator[Boundary]:
    choices = partners(dtype)
    every = dtype in ("float32", "float16")
    for number, (name, sizes) in enumerate(_named_sizes(every=every)):
        pair, output = choices[number % len(choices)]
        c_shape = _c_shape(_C_SHAPES[number % 5], sizes)
        epilogue = {"alpha": (1.0, -0.75)[number % 2], "beta": (1.0, 0.5, 0.25, 0.0)[number % 4]}
        layouts = _FOUR[number % 4]
        biased = number % 3 == 1
        arguments = call(sizes, pair, output, layouts, c_shape=c_shape, biased=biased, **epilogue)
        yield Boundary(name, arguments)
    yield from _activations(next(pair for pair, _ in choices if pair != ("int8", "int8")))
    yield from _layouts(choices[0][0])


def _activations(pair: tuple[str, str]) -> Iterator[Boundary]:
    for activation in ACTIVATIONS:
        arguments = call(Sizes(9, 11, 13), pair, biased=True, activation=activation)
        yield Boundary(f"{activation}, NaN and Inf", arguments, special_values=True)
    spread = call(Sizes(40, 30, 7), pair, c_shape=(40, 30), beta=0.0)
    yield Boundary("c that does not count", spread, special_values=True)


def _layouts(pair: tuple[str, str]) -> Iterator[Boundary]:
    plain = call(Sizes(9, 10, 12, (2,), (2,)), pair)
    strides = {
        "one matrix for all": (0, 12, 1),
        "one row for all": (108, 0, 1),
        "one number for all": (0, 0, 0),
        "gaps both ways": (700, 60, 3),
        "rows of heads": (12, 24, 1),
        "matrices 2^31 apart": (2**31, 12, 1),
    }
    for name, a_strides in strides.items():
        yield Boundary(name, plain.with_tensor("a", strides=a_strides))
    for gap in (1, 4, 8):
        layouts = Layout(columns=False, gap=gap), Layout(columns=True, gap=gap)
        yield Boundary(f"gaps of {gap}", call(Sizes(16, 24, 32), pair, layouts=layouts))
    far = call(Sizes(3, 4, 5), pair, layouts=(Layout(columns=True, gap=2**29), _ROWS))
    yield Boundary("columns 2^29 apart", far)
    # Of whole chunks: more than half a tile, many slices of the depth, and tiles that do not fill a wave.
    for name, sizes in (("rows", Sizes(72, 8, 24)), ("columns", Sizes(8, 72, 24))):
        layouts = _COLUMNS, _ROWS
        yield Boundary(f"72 {name}, along the lines", call(sizes, pair, layouts=layouts))
    deep = call(Sizes(5, 8, 328), pair, layouts=(_ROWS, _COLUMNS))
    yield Boundary("328 terms, along the depth", deep)
    several = Sizes(264, 136, 1040)
    for name, layouts in (("lines", (_COLUMNS, _ROWS)), ("depth", (_ROWS, _COLUMNS))):
        yield Boundary(
            f"several deep tiles, along the {name}", call(several, pair, layouts=layouts)
        )


# --- A product for each group of rows -------------------------------------------------------------


def grouped_call(
    dtype: str,
    extents: tuple[int, int, int, int],
    *,
    groups: int | None = None,
    mode: str = "none",
    routed: int | None = None,
    top_k: int = 1,
    columns: bool = False,
) -> Arguments:
    """A call with T tokens, K terms, N columns and E experts; ``columns`` is how weights lie in memory.

    There are as many groups as experts unless given; ``routed`` is R of mode gather.
    """
    tokens, k, n, experts = extents
    weight = (experts, k, n)
    tensors = {
        "token": TensorType(dtype, (tokens, k)),
        "weight": TensorType(dtype, weight, Layout(columns).strides(weight)),
        "first_token_offset": TensorType("int32", ((groups or experts) + 1,)),
    }
    if mode != "none":
        rows = routed if mode == "gather" and routed is not None else tokens
        tensors["token_index"] = TensorType("int32", (rows,))
    if mode == "scatter":
        tensors["token_ks"] = TensorType("int32", (tokens,))
    return Arguments(tensors, {"mode": mode, "top_k": top_k})


def weights_call(
    dtype: str, extents: tuple[int, int, int, int], *, groups: int | None = None
) -> Arguments:
    """A call of the gradient of weights, for the same extents."""
    tokens, k, n, experts = extents
    tensors = {
        "dy": TensorType(dtype, (tokens, n)),
        "token": TensorType(dtype, (tokens, k)),
        "first_token_offset": TensorType("int32", ((groups or experts) + 1,)),
    }
    return Arguments(tensors, {"experts": None if groups in (None, experts) else experts})


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What both grouped primitives draw."""

    extents: tuple[int, int, int, int]
    groups: int
    mode: str
    routed: int
    top_k: int
    columns: bool


def draw_grouped(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    """A grouped product at random."""
    drawn = _drawn_groups(draw, scale)
    return grouped_call(
        dtype,
        drawn.extents,
        groups=drawn.groups,
        mode=drawn.mode,
        routed=drawn.routed,
        top_k=drawn.top_k,
        columns=drawn.columns,
    )


def draw_grouped_weights(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    """A gradient of weights at random."""
    drawn = _drawn_groups(draw, scale)
    return weights_call(dtype, drawn.extents, groups=drawn.groups)


_MOST_EXPERTS = 6


def _drawn_groups(draw: Draw, scale: Scale) -> _Drawn:
    experts, batch = draw.integer(1, _MOST_EXPERTS), draw.choice((1, 1, 1, 2))
    tokens = draw.choice((draw.integer(1, 4 * scale.extent), draw.integer(1, 20 * scale.extent)))
    k, n = draw.integer(1, 2 * scale.extent), draw.integer(1, 2 * scale.extent)
    mode, routed = draw.choice(MODES), draw.integer(1, 8 * scale.extent)
    top_k, columns = draw.choice((1, 2, 3)), draw.choice((False, True))
    if mode == "scatter":
        tokens = max(1, tokens // top_k) * top_k
    while max(tokens, routed) * k * n > scale.multiplications:
        k, n = (k // 2, n) if k > n else (k, n // 2)
    extents = (tokens, k, n, experts)
    return _Drawn(extents, experts * batch, mode, routed, top_k, columns)


def routed(p: GroupedMatmulProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Offsets that ascend from 0, mostly to the last row, and indices such as a router makes.

    One group in four is empty. With mode gather one row in 64 has an index that is no token, with mode
    scatter one that is no row of y.
    """
    return {**data, "first_token_offset": _ascending(p, data), **_indices(p, data)}


def _ascending(p: GroupedMatmulProblem, data: dict[str, Any]) -> Any:
    drawn = data["first_token_offset"]
    place, last = np.arange(drawn.size), p.rows
    if p.groups > 1 and drawn[0] % 4 == 0:  # rows that no group has
        last -= p.rows // 4
    offsets = np.minimum(np.sort(drawn), last)
    offsets = np.where(place % 4 == 2, np.roll(offsets, 1), offsets)
    offsets = np.where(place == 0, 0, offsets)
    return np.where(place == p.groups, last, offsets)


def _indices(p: GroupedMatmulProblem, data: dict[str, Any]) -> dict[str, Any]:
    if p.mode == "none":
        return {}
    index, illegal = data["token_index"], np.arange(p.rows) % 64 == 41
    if p.mode == "gather":
        return {"token_index": np.where(illegal, p.tokens, index)}
    slots = np.argsort(index + 2.0 * p.rows * (data["token_ks"] % 2), kind="stable")
    token, ks = np.divmod(slots.astype(np.float64), p.top_k)
    return {"token_index": np.where(illegal, p.rows // p.top_k, token), "token_ks": ks}


def _named_groups() -> Iterator[tuple[str, tuple[int, int, int, int], int | None]]:
    """Name, (T, K, N, E) and groups, the cheapest first."""
    yield "one expert", (12, 5, 7, 1), None
    yield "no terms", (12, 0, 7, 3), None
    yield "no columns", (12, 5, 0, 3), None
    yield "a row for each of three times the experts", (12, 4, 6, 4), 12
    yield "more experts than rows", (6, 5, 7, 33), None
    for rows in (31, 32, 33, 63, 64, 65, 127, 128, 129, 257):
        yield f"{rows} rows", (rows, 3, 4, 2), None
    for extent in (7, 8, 9, 31, 32, 33, 127, 128, 129):
        yield f"{extent} terms", (12, extent, 3, 3), None
        yield f"{extent} columns", (12, 3, extent, 3), None
    yield "1025 terms", (6, 1025, 2, 2), None
    yield "257 experts", (514, 2, 2, 257), None
    yield "65537 rows", (2**16 + 1, 1, 1, 3), None
    yield "65537 columns", (4, 1, 2**16 + 1, 2), None
    yield "4097 experts", (4097, 1, 1, 4097), None
    yield "more than 2^31 elements", (3, 2**30, 1, 2), None


def grouped_boundaries(dtype: str) -> Iterator[Boundary]:
    yield Boundary("no rows", grouped_call(dtype, (0, 5, 7, 3)))
    yield Boundary("rows of no tokens", grouped_call(dtype, (0, 5, 7, 3), mode="gather", routed=4))
    for number, (name, extents, groups) in enumerate(_named_groups()):
        mode, columns = MODES[number % 3], number % 2 == 1
        top_k = 3 if mode == "scatter" and extents[0] % 3 == 0 else 1
        arguments = grouped_call(
            dtype,
            extents,
            groups=groups,
            mode=mode,
            routed=extents[0] + 3,
            top_k=top_k,
            columns=columns,
        )
        yield Boundary(name, arguments)
    for mode in MODES:
        arguments = grouped_call(dtype, (90, 20, 9, 5), mode=mode)
        yield Boundary(f"NaN, Inf, {mode}", arguments, special_values=True)


def weights_boundaries(dtype: str) -> Iterator[Boundary]:
    yield Boundary("no rows", weights_call(dtype, (0, 5, 7, 3)))
    for name, extents, groups in _named_groups():
        yield Boundary(name, weights_call(dtype, extents, groups=groups))
    special = weights_call(dtype, (90, 9, 8, 5))
    yield Boundary("NaN, Inf", special, special_values=True)
