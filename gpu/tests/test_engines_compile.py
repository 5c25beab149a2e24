"""The engines' kernels compile for real hardware (sm_90) into what they promise: without a driver."""

import re
from typing import Any

import pytest

from dnncanon.gpu.emulator.compiler.acquire import without_device
from dnncanon.gpu.kernels import moving
from dnncanon.gpu.kernels.elementwise import Call, dense, strided
from dnncanon.gpu.kernels.lines import Signature
from dnncanon.gpu.kernels.reduction import Monoid, Pass, reduction
from dnncanon.gpu.kernels.rows import add
from dnncanon.gpu.runtime import Kernel
from dnncanon.gpu.runtime.device_code import device_function
from dnncanon.gpu.runtime.memory import storage_of
from dnncanon.spec import DTYPES

FLOATS = ("float64", "float32", "float16", "bfloat16")
NARROW = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn")


@device_function
def same(x: Any) -> Any:
    return x


@device_function
def scaled_sum(a: Any, b: Any, alpha: Any) -> Any:
    return a + alpha * b


@device_function
def indexed(a: Any, b: Any, alpha: Any, index: Any) -> Any:
    return a + alpha * b if index > 10 else a


def compiled(kernel: Kernel, signature: tuple[Any, ...]) -> str:
    """The kernel's PTX."""
    from numba import cuda

    with without_device():
        ptx, _ = cuda.compile(kernel.function, signature, cc=(9, 0), device=False, abi="numba")
    return str(ptx)


def arrays(dtype: str, count: int) -> Any:
    from numba.cuda import types

    word = getattr(types, storage_of(DTYPES[dtype].numpy).name)
    return types.UniTuple(types.Array(word, 1, "C"), count)


def ints(count: int) -> Any:
    from numba.cuda import types

    return types.UniTuple(types.int64, count)


def check(ptx: str, dtype: str) -> None:
    """In the type that sums are kept in, nothing flushed to zero, everything in registers."""
    other = "f32" if dtype == "float64" else "f64"
    assert not re.search(rf"\b(fma|mul|add|sub|setp\.\w+)(\.rn)?\.{other}\b", ptx)
    assert ".ftz" not in ptx
    assert ".local" not in ptx


@pytest.mark.parametrize("dtype", FLOATS + NARROW)
def test_dense_operands_take_one_instruction_for_sixteen_bytes(dtype: str) -> None:
    from numba.cuda import types

    call = Call(scaled_sum, Signature((dtype, dtype), (dtype,), (True,)), index=False)
    scalars = types.UniTuple(types.float64, 1)
    count = 16 // DTYPES[dtype].itemsize
    ptx = compiled(dense(call, count), (arrays(dtype, 2), arrays(dtype, 1), scalars, types.int64))
    assert ptx.count("ld.global.v4.b32") == 2
    assert ptx.count("st.global.v4.b32") == 1
    check(ptx, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rank", [1, 4])
def test_strided_operands(dtype: str, rank: int) -> None:
    from numba.cuda import types

    call = Call(indexed, Signature((dtype, dtype), (dtype,), (True,)), index=True)
    scalars, walk = types.UniTuple(types.float64, 1), (ints(rank), ints(rank))
    places = ints(4 * rank), ints(4)
    ptx = compiled(
        strided(call),
        (arrays(dtype, 2), arrays(dtype, 1), scalars, types.int64, *walk, *places),
    )
    check(ptx, dtype)


SUM = Monoid(("sum",), (0,), same, add, same)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("aligned", [False, True])
def test_reduction(dtype: str, aligned: bool) -> None:
    from numba.cuda import types

    count = 16 // DTYPES[dtype].itemsize if aligned else 1
    call = Pass(SUM, Signature((dtype,), (dtype,)), SUM.kinds(dtype), count=count, aligned=aligned)
    rows = types.Tuple((ints(4), ints(2), ints(4), ints(1), ints(2), ints(1), ints(2)))
    ptx = compiled(
        reduction(call), (arrays(dtype, 1), arrays(dtype, 1), types.Tuple(()), rows, ints(2))
    )
    assert ("ld.global.v4.b32" in ptx) == aligned
    assert "shfl.sync.bfly" in ptx
    check(ptx, dtype)


def words(width: int) -> Any:
    from numba.cuda import types

    return types.Array(getattr(types, f"uint{8 * min(width, 8)}"), 1, "C")


@pytest.mark.parametrize("width", moving.WORDS)
def test_copies_stay_in_registers_and_move_sixteen_bytes_by_one_instruction(width: int) -> None:
    from numba.cuda import types

    memory, walk = (words(width),) * 2, (types.int64, *(ints(2),) * 2, ints(4), ints(2))
    ptx = compiled(moving._copying(width), (*memory, *walk))
    assert ("ld.global.v4.b32" in ptx) == ("st.global.v4.b32" in ptx) == (width == 16)
    assert ".local" not in ptx


@pytest.mark.parametrize("width", moving.WORDS)
def test_gathers_stay_in_registers(width: int) -> None:
    from numba.cuda import types

    memory, walk = (words(width),) * 2, (types.int64, *(ints(4),) * 2, ints(16), ints(4))
    rules = types.UniTuple(ints(2), 3)
    ptx = compiled(moving._gathering(width, 2), (*memory, *walk, rules, types.int64))
    assert ("ld.global.v4.b32" in ptx) == (width == 16)
    assert ".local" not in ptx


@pytest.mark.parametrize("width", [w for w in moving.WORDS if w <= 8])
def test_tiles_are_in_shared_memory_between_barriers(width: int) -> None:
    memory, rest = (words(width),) * 2, (ints(5), ints(4), ints(2), ints(4), ints(2))
    ptx = compiled(moving._transposing(width), (*memory, *rest))
    assert "st.shared" in ptx
    assert "ld.shared" in ptx
    assert ptx.count("bar.sync") == 2
    assert ".local" not in ptx


@pytest.mark.parametrize("width", [w for w in moving.WORDS if w <= 8])
def test_tiles_of_few_columns_are_in_shared_memory_between_barriers(width: int) -> None:
    memory, rest = (words(width),) * 2, (ints(6), ints(4), ints(2), ints(4), ints(2))
    ptx = compiled(moving._packing(width), (*memory, *rest))
    assert "st.shared" in ptx
    assert "ld.shared" in ptx
    assert ptx.count("bar.sync") == 2
    assert ".local" not in ptx
