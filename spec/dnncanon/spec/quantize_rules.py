"""The constraints of quantization, each with its check and a generator of arguments that break it."""

from collections.abc import Iterator

from dnncanon.spec.attributes import as_integer, shown
from dnncanon.spec.elementwise import legal_axis
from dnncanon.spec.errors import AttributeValueError, DTypeError, ShapeError
from dnncanon.spec.primitive import Arguments, Constraint
from dnncanon.spec.quantize_problem import (
    MAX_TILED_RANK,
    WITH_ZERO_POINT,
    resolve_block,
    resolve_linear,
)
from dnncanon.spec.tensors import TensorType


def dtype_of(name: str, supported: tuple[str, ...]) -> Constraint:
    def check(a: Arguments) -> str | None:
        dtype = a.tensors[name].dtype
        if dtype in supported:
            return None
        return f"{name} is {dtype}; convert it to one of {', '.join(supported)}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for dtype in ("int64", "bool"):
            yield a.with_tensor(name, dtype=dtype)

    return Constraint(f"{name} is one of {', '.join(supported)}.", DTypeError, check, violate)


def scale_like_x() -> Constraint:
    text = "scale is float32, or has the dtype of x."

    def check(a: Arguments) -> str | None:
        scale, x = a.tensors["scale"].dtype, a.tensors["x"].dtype
        if scale in ("float32", x):
            return None
        return f"scale is {scale} and x is {x}; convert scale to float32"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for dtype in ("int32", "float16" if a.tensors["x"].dtype != "float16" else "float64"):
            yield a.with_tensor("scale", dtype=dtype)

    return Constraint(text, DTypeError, check, violate)


def axis_or_none() -> Constraint:
    rule = legal_axis("x")

    def check(a: Arguments) -> str | None:
        return None if a.attributes["axis"] is None else rule.check(a)

    text = f"{rule.text} None means one scale for all of x."
    return Constraint(text, AttributeValueError, check, rule.violate)


def scale_for_each() -> Constraint:
    text = "scale has one element (shape () or (1,)) without axis, else one for each index of that dim."

    def check(a: Arguments) -> str | None:
        p, shape = resolve_linear(a), a.tensors["scale"].shape
        expected = ((), (1,)) if p.axis is None else ((p.shape[p.axis],),)
        if shape in expected:
            return None
        return f"scale has shape {shape}, but axis={a.attributes['axis']}; pass {expected[-1]}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        extent = a.tensors["scale"].size
        for shape in ((extent + 1,), (extent, 1)):
            yield a.with_tensor("scale", shape=shape, strides=None)

    return Constraint(text, ShapeError, check, violate)


def legal_zero_point(codes: str) -> Constraint:
    """The rule about zero points; ``codes`` says whose dtype they have."""
    text = f"zero_point has the dtype of {codes}; there is none unless that is int8 or uint8."

    def check(a: Arguments) -> str | None:
        if "zero_point" not in a.tensors:
            return None
        got = a.tensors["zero_point"].dtype
        wanted = a.attributes["dtype"] if codes == "y" else a.tensors["x"].dtype
        if wanted not in WITH_ZERO_POINT:
            return f"zero_point is {got}, but {codes} is {wanted}, which has none; pass None"
        return None if got == wanted else f"zero_point is {got}; convert it to {wanted}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "zero_point" in a.tensors:
            yield a.with_tensor("zero_point", dtype="int32")
        else:
            scale = a.tensors["scale"].shape
            yield Arguments({**a.tensors, "zero_point": TensorType("int32", scale)}, a.attributes)

    return Constraint(text, DTypeError, check, violate)


def zero_point_like_scale() -> Constraint:
    def check(a: Arguments) -> str | None:
        if "zero_point" not in a.tensors:
            return None
        got, expected = a.tensors["zero_point"].shape, a.tensors["scale"].shape
        if got == expected:
            return None
        return f"zero_point has shape {got}, but scale has {expected}; pass one for each scale"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "zero_point" in a.tensors:
            shape = (a.tensors["scale"].size + 1,)
            yield a.with_tensor("zero_point", shape=shape, strides=None)

    return Constraint("zero_point has the shape of scale.", ShapeError, check, violate)


def divides_axis() -> Constraint:
    text = "block_size is an integer >= 1 that divides the extent of x along axis."

    def check(a: Arguments) -> str | None:
        value = a.attributes["block_size"]
        extent = a.tensors["x"].shape[as_integer(a.attributes["axis"])]
        try:
            size = as_integer(value)
        except (TypeError, ValueError):
            size = 0
        if size < 1:
            return f"block_size={shown(value)}; pass an integer >= 1"
        if extent % size == 0:
            return None
        return f"block_size={size} does not divide {extent}; pass x padded to {-(-extent // size) * size}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (0, -16, 1.5, a.tensors["x"].shape[as_integer(a.attributes["axis"])] + 1):
            yield a.with_attributes(block_size=value)

    return Constraint(text, AttributeValueError, check, violate)


def tiled_rank() -> Constraint:
    text = (
        'With scale_layout="128x4" x has 2 to 5 dims, and axis is one of the last two; the other one has '
        "the rows."
    )

    def check(a: Arguments) -> str | None:
        rank = a.tensors["x"].rank
        if a.attributes["scale_layout"] != "128x4":
            return None
        axis = as_integer(a.attributes["axis"]) % rank
        if 2 <= rank <= MAX_TILED_RANK and axis >= rank - 2:
            return None
        return f'x has {rank} dims, axis={axis}; pass scale_layout="plain", or reshape x'

    def violate(a: Arguments) -> Iterator[Arguments]:
        if a.tensors["x"].rank > MAX_TILED_RANK or as_integer(a.attributes["axis"]) == 0:
            yield a.with_attributes(scale_layout="128x4")

    return Constraint(text, AttributeValueError, check, violate)


def scale_for_each_block() -> Constraint:
    text = "scale has the shape of x with one element for each block, or that of the tiles."

    def check(a: Arguments) -> str | None:
        got, expected = a.tensors["scale"].shape, resolve_block(a).scale_shape
        if got == expected:
            return None
        return f"scale has shape {got}, not {expected}; pass one for each block of x"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = a.tensors["scale"].shape
        yield a.with_tensor("scale", shape=(shape[0] + 1, *shape[1:]), strides=None)
        yield a.with_tensor("scale", shape=(*shape, 1), strides=None)

    return Constraint(text, ShapeError, check, violate)
