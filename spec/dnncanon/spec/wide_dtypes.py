"""The rule of dtypes where some tensors are kept in the type of the sums: gates, cells, statistics."""

from collections.abc import Iterator
from dataclasses import replace

from dnncanon.spec.errors import DTypeError
from dnncanon.spec.primitive import Arguments, Constraint, DTypeRow
from dnncanon.spec.softmax import stats_dtype


def one_dtype_but_wide(rows: tuple[DTypeRow, ...], wide: tuple[str, ...]) -> Constraint:
    """One supported dtype for all tensors but the wide ones, which have that of the sums."""
    supported = ", ".join(row.dtype for row in rows)
    text = f"All tensors have one dtype: {supported}."
    if wide:
        text = (
            f"All tensors but {' and '.join(wide)} have one dtype: {supported}. "
            f"{' and '.join(wide)}: float32, or float64 if that is the dtype."
        )

    def check(a: Arguments) -> str | None:
        first, tensor = next(iter(a.tensors.items()))
        if tensor.dtype not in [row.dtype for row in rows]:
            return f"{first} is {tensor.dtype}; convert all tensors to one of {supported}"
        for name, other in a.tensors.items():
            wanted = stats_dtype(tensor.dtype) if name in wide else tensor.dtype
            if other.dtype != wanted:
                return f"{name} is {other.dtype} with {first} of {tensor.dtype}; convert it to {wanted}"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name, tensor in a.tensors.items():
            yield a.with_tensor(name, dtype="float16" if tensor.dtype != "float16" else "float32")
        others = {name: replace(tensor, dtype="int32") for name, tensor in a.tensors.items()}
        yield Arguments(others, a.attributes)

    return Constraint(text, DTypeError, check, violate)
