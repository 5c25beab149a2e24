"""The constraints of matrix products, each with its check and a generator of arguments that break it."""

from collections.abc import Iterator
from dataclasses import replace

from dnncanon.spec.attributes import as_integer, as_real, is_word, shown
from dnncanon.spec.dtypes import FLOATS
from dnncanon.spec.errors import AttributeValueError, DTypeError, ShapeError
from dnncanon.spec.matmul_problem import (
    MAX_RANK,
    MIN_RANK,
    MODES,
    OUTPUTS,
    groups,
    operand_dtypes,
    output_dtype,
    output_shape,
)
from dnncanon.spec.primitive import Arguments, Constraint
from dnncanon.spec.tensors import TensorType

# --- One product ----------------------------------------------------------------------------------


def one_rank() -> Constraint:
    text = f"a and b have one rank, {MIN_RANK} to {MAX_RANK}: batch dims, and those of a matrix."

    def check(a: Arguments) -> str | None:
        left, right = a.tensors["a"].rank, a.tensors["b"].rank
        if left == right and MIN_RANK <= left <= MAX_RANK:
            return None
        return (
            f"a has rank {left} and b {right}; pass matrices of one rank, {MIN_RANK} to {MAX_RANK}, "
            "with batch dims of 1 where one matrix serves all"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name in ("a", "b"):
            shape = a.tensors[name].shape
            yield a.with_tensor(name, shape=(1, *shape), strides=None)
            yield a.with_tensor(name, shape=shape[1:], strides=None)

    return Constraint(text, ShapeError, check, violate)


def legal_operands() -> Constraint:
    text = (
        "a and b are both float64, float32, float16, bfloat16 or int8, or 8-bit floats of either kind, or one "
        "is float16 or bfloat16 and the other int8."
    )

    def check(a: Arguments) -> str | None:
        pair = operand_dtypes(a)
        if pair in OUTPUTS:
            return None
        partners = [right for left, right in OUTPUTS if left == pair[0]]
        remedy = f"convert b to {' or '.join(partners)}" if partners else "convert a and b"
        return f"a is {pair[0]} and b is {pair[1]}; {remedy}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name in ("a", "b"):
            for dtype in ("int32", "uint8", "bool"):
                yield a.with_tensor(name, dtype=dtype)
        yield a.with_tensor(
            "b", dtype="float64" if a.tensors["a"].dtype == "float32" else "float32"
        )

    return Constraint(text, DTypeError, check, violate)


def legal_output() -> Constraint:
    text = (
        "dtype is None or an element type that the product may have: that of 16-bit operands, or float32; "
        "float32, float16 or bfloat16 of 8-bit floats; int32 of int8; else that of the operands."
    )

    def check(a: Arguments) -> str | None:
        value, allowed = a.attributes["dtype"], OUTPUTS[operand_dtypes(a)]
        if value is None or is_word(value, allowed):
            return None
        return f"dtype={shown(value)}; pass {' or '.join(allowed)} for a and b of these types"

    def violate(a: Arguments) -> Iterator[Arguments]:
        allowed = OUTPUTS[operand_dtypes(a)]
        for value in ("no_such_dtype", "int8", "float64", "float32", 1):
            if value not in allowed:
                yield a.with_attributes(dtype=value)

    return Constraint(text, AttributeValueError, check, violate)


def inner_extents() -> Constraint:
    def check(a: Arguments) -> str | None:
        left, right = a.tensors["a"].shape, a.tensors["b"].shape
        if left[-1] == right[-2]:
            return None
        return (
            f"a has {left[-1]} columns but b has {right[-2]} rows: shapes {left} and {right}; pass b of "
            f"shape (…, {left[-1]}, N), or a transposed view"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        *front, k = a.tensors["a"].shape
        yield a.with_tensor("a", shape=(*front, k + 1), strides=None)
        *batch, k, n = a.tensors["b"].shape
        yield a.with_tensor("b", shape=(*batch, k + 1, n), strides=None)

    return Constraint("a.shape[-1] = b.shape[-2] = K.", ShapeError, check, violate)


def batches_broadcast() -> Constraint:
    text = "Each batch dim of a equals that of b, or one of the two is 1."

    def check(a: Arguments) -> str | None:
        left, right = a.tensors["a"].shape, a.tensors["b"].shape
        if all(m == n or 1 in (m, n) for m, n in zip(left[:-2], right[:-2], strict=True)):
            return None
        return (
            f"a has shape {left} and b {right}, whose batch dims differ; pass equal ones, or 1 for one "
            "matrix for all"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        left, right = a.tensors["a"].shape, a.tensors["b"].shape
        for dim in range(len(left) - 2):
            longer = max(left[dim], right[dim]) + 1
            wide = a.with_tensor("a", shape=_changed(left, dim, longer + 1), strides=None)
            yield wide.with_tensor("b", shape=_changed(right, dim, longer), strides=None)

    return Constraint(text, ShapeError, check, violate)


def _changed(shape: tuple[int, ...], dim: int, extent: int) -> tuple[int, ...]:
    return (*shape[:dim], extent, *shape[dim + 1 :])


def output_like(name: str) -> Constraint:
    """What is added to the product has its dtype."""

    def check(a: Arguments) -> str | None:
        expected = output_dtype(a)
        if name not in a.tensors or a.tensors[name].dtype == expected:
            return None
        return (
            f"{name} is {a.tensors[name].dtype}, but y is {expected}; convert {name}, or pass dtype"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        if name in a.tensors:
            for dtype in ("int8", "float64" if output_dtype(a) != "float64" else "float32"):
                yield a.with_tensor(name, dtype=dtype)

    return Constraint(f"{name} has the dtype of y.", DTypeError, check, violate)


def c_broadcasts() -> Constraint:
    text = "c has the shape of y, with dims of 1 where one number serves all."

    def check(a: Arguments) -> str | None:
        if "c" not in a.tensors:
            return None
        shape, expected = a.tensors["c"].shape, output_shape(a)
        fits = len(shape) == len(expected)
        if fits and all(m in (1, n) for m, n in zip(shape, expected, strict=True)):
            return None
        return (
            f"c has shape {shape}, but y has {expected}; pass c of that shape, or of 1 in some dims"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "c" in a.tensors:
            expected = output_shape(a)
            yield a.with_tensor("c", shape=expected[1:], strides=None)
            for dim, extent in enumerate(expected):
                yield a.with_tensor("c", shape=_changed(expected, dim, extent + 2), strides=None)

    return Constraint(text, ShapeError, check, violate)


def plain_integers() -> Constraint:
    text = "Of int8 with int8, activation is identity, and alpha and beta are 1."

    def check(a: Arguments) -> str | None:
        given = a.attributes
        if operand_dtypes(a) != ("int8", "int8"):
            return None
        if (
            given["activation"] == "identity"
            and as_real(given["alpha"]) == as_real(given["beta"]) == 1
        ):
            return None
        return (
            f"activation={given['activation']!r}, alpha={given['alpha']} and beta={given['beta']} with int8; "
            'pass activation="identity", alpha=1 and beta=1, and dequantize y, or pass 16-bit floats for a'
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        types = {"a": "int8", "b": "int8", "c": "int32", "bias": "int32"}
        tensors = {name: replace(tensor, dtype=types[name]) for name, tensor in a.tensors.items()}
        plain = {"dtype": None, "alpha": 1.0, "beta": 1.0, "activation": "identity"}
        for change in ({"activation": "relu"}, {"alpha": 0.5}, {"beta": 0.0}):
            yield Arguments(tensors, {**plain, **change})

    return Constraint(text, AttributeValueError, check, violate)


# --- A product for each group of rows -------------------------------------------------------------

_RANKS = {
    "token": ("[T, K]", 2),
    "dy": ("[T, N]", 2),
    "weight": ("[E, K, N]", 3),
    "first_token_offset": ("[G + 1]", 1),
    "token_index": ("[R]", 1),
    "token_ks": ("[R]", 1),
}
_INDICES = ("first_token_offset", "token_index", "token_ks")


def grouped_ranks(*names: str) -> Constraint:
    """The ranks of all tensors, those that are not given excepted."""
    listed = ", ".join(f"{name} {_RANKS[name][0]}" for name in names)

    def check(a: Arguments) -> str | None:
        for name, tensor in a.tensors.items():
            dims, rank = _RANKS[name]
            if tensor.rank != rank:
                return f"{name} has shape {tensor.shape}; pass {dims}"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name, tensor in a.tensors.items():
            yield a.with_tensor(name, shape=(1, *tensor.shape), strides=None)

    return Constraint(f"Shapes: {listed}.", ShapeError, check, violate)


def grouped_dtypes(first: str, second: str) -> Constraint:
    supported = ", ".join(FLOATS)
    text = f"{first} and {second} have one dtype: {supported}. Offsets and indices are int32."

    def check(a: Arguments) -> str | None:
        left, right = a.tensors[first].dtype, a.tensors[second].dtype
        if left != right or left not in FLOATS:
            return f"{first} is {left} and {second} is {right}; convert both to one of {supported}"
        for name in _INDICES:
            if name in a.tensors and a.tensors[name].dtype != "int32":
                return f"{name} is {a.tensors[name].dtype}; convert it to int32"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_tensor(first, dtype="int8")
        for name in (first, second):
            yield a.with_tensor(
                name, dtype="float32" if a.tensors[name].dtype != "float32" else "float16"
            )
        for name in _INDICES:
            if name in a.tensors:
                yield a.with_tensor(name, dtype="int64")
                yield a.with_tensor(name, dtype="float32")

    return Constraint(text, DTypeError, check, violate)


def same_dim(first: str, dim: int, second: str, other: int, symbol: str) -> Constraint:
    """Two tensors agree in a dim."""

    def check(a: Arguments) -> str | None:
        left, right = a.tensors[first].shape, a.tensors[second].shape
        if left[dim] == right[other]:
            return None
        return (
            f"{first} has shape {left} and {second} {right}: {symbol} is {left[dim]} in one and "
            f"{right[other]} in the other; pass tensors of one {symbol}"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name, place in ((first, dim), (second, other)):
            shape = a.tensors[name].shape
            longer = _changed(shape, place, shape[place] + 1)
            yield a.with_tensor(name, shape=longer, strides=None)

    text = f"{first}.shape[{dim}] = {second}.shape[{other}] = {symbol}."
    return Constraint(text, ShapeError, check, violate)


def offsets_of_experts() -> Constraint:
    text = "There is an expert, and first_token_offset has B·E + 1 entries, B >= 1."

    def check(a: Arguments) -> str | None:
        experts = a.tensors["weight"].shape[0]
        return _wrong_groups(f"weight has {experts} experts", experts, groups(a))

    def violate(a: Arguments) -> Iterator[Arguments]:
        experts, *rest = a.tensors["weight"].shape
        yield a.with_tensor("weight", shape=(0, *rest), strides=None)
        for entries in (0, 1, *([experts] if experts > 1 else [])):
            yield a.with_tensor("first_token_offset", shape=(entries,), strides=None)

    return Constraint(text, ShapeError, check, violate)


def legal_experts() -> Constraint:
    text = (
        "experts is None, for an expert for each group, or an integer >= 1 of which first_token_offset has "
        "a multiple and one more entries."
    )

    def check(a: Arguments) -> str | None:
        value = a.attributes["experts"]
        try:
            experts = max(1, groups(a)) if value is None else as_integer(value)
        except (TypeError, ValueError):
            experts = 0
        return _wrong_groups(f"experts={shown(value)}", experts, groups(a))

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (0, -1, groups(a) + 1, 1.5, "1"):
            yield a.with_attributes(experts=value)

    return Constraint(text, AttributeValueError, check, violate)


def _wrong_groups(said: str, experts: int, count: int) -> str | None:
    """What is wrong with so many experts, which ``said`` says, for so many groups."""
    if experts >= 1 and count >= 1 and count % experts == 0:
        return None
    return (
        f"{said}, and first_token_offset {count + 1} entries; pass an expert at least, and a multiple of "
        "their number and one more entries: the first row of each group, and the end of the last"
    )


def routed_tensors() -> Constraint:
    text = "token_index is given with mode gather and scatter, token_ks with mode scatter, and only there."
    takes = dict(zip(MODES, ((), ("token_index",), ("token_index", "token_ks")), strict=True))

    def check(a: Arguments) -> str | None:
        mode = a.attributes["mode"]
        given = tuple(name for name in ("token_index", "token_ks") if name in a.tensors)
        if given == takes[mode]:
            return None
        wanted, got = (" and ".join(names) or "neither index" for names in (takes[mode], given))
        return f"mode={mode!r} takes {wanted}, and is given {got}; pass just what it takes"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for mode in MODES:
            if mode != a.attributes["mode"]:
                yield a.with_attributes(mode=mode)
        index = TensorType("int32", a.tensors["token"].shape[:1])
        yield Arguments({**a.tensors, "token_ks": index}, {**a.attributes, "mode": "gather"})

    return Constraint(text, AttributeValueError, check, violate)


def index_for_each_row() -> Constraint:
    text = "With mode scatter token_index and token_ks have the shape [T]: R = T."

    def check(a: Arguments) -> str | None:
        expected = a.tensors["token"].shape[:1]
        for name in ("token_index", "token_ks") if a.attributes["mode"] == "scatter" else ():
            if a.tensors[name].shape != expected:
                return f"{name} has shape {a.tensors[name].shape}; pass [T] = {expected}"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        if a.attributes["mode"] == "scatter":
            rows = a.tensors["token"].shape[0]
            for name in ("token_index", "token_ks"):
                yield a.with_tensor(name, shape=(rows + 1,), strides=None)

    return Constraint(text, ShapeError, check, violate)


def legal_top_k() -> Constraint:
    text = "top_k is an integer >= 1; with mode scatter it divides the number of rows."

    def check(a: Arguments) -> str | None:
        value, rows = a.attributes["top_k"], a.tensors["token"].shape[0]
        try:
            top_k = as_integer(value)
        except (TypeError, ValueError):
            top_k = 0
        if top_k < 1:
            return f"top_k={shown(value)}; pass an integer >= 1"
        if a.attributes["mode"] != "scatter" or rows % top_k == 0:
            return None
        return f"top_k={top_k} does not divide {rows} rows; pass top_k rows for each token"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (0, -1, 1.5, a.tensors["token"].shape[0] + 1):
            yield a.with_attributes(top_k=value)

    return Constraint(text, AttributeValueError, check, violate)
