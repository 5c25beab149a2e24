"""The language of the run time: compiled functions against what Python computes."""

from __future__ import annotations

import ctypes

import pytest

from dnncanon.gpu.emulator.compiler import engine
from dnncanon.gpu.emulator.native import (
    Array,
    NativeError,
    Struct,
    f32,
    i1,
    i32,
    i64,
    module_text,
    native,
    popcount,
    ptr,
    stack_array,
    trailing_zeros,
    u8,
    u32,
    u64,
)

LIMIT = 10
Pair = Struct("Pair")
Pair.define(first=i32, second=i64, many=Array(u32, 3), next=ptr(Pair))

_ctypes = {i32: ctypes.c_int32, i64: ctypes.c_int64, u32: ctypes.c_uint32, u64: ctypes.c_uint64}
_ctypes |= {f32: ctypes.c_float, i1: ctypes.c_bool}
_keep = []


def build(function):
    """A ctypes function for a native function."""
    text = module_text([function], linkage="")
    module = engine.parse(engine.header() + text)
    engine.optimise(module, 2, vectorise=False)
    loaded = engine.Loaded(engine.object_code(module))
    _keep.append(loaded)
    kinds = [_ctypes.get(k, ctypes.c_void_p) for _, k in function.parameters]
    prototype = ctypes.CFUNCTYPE(_ctypes[function.result], *kinds)
    return prototype(loaded.address(function.symbol))


@native("t.collatz")
def collatz(n: i64) -> i32:
    steps = i32(0)
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@native("t.loops")
def loops(n: i32) -> i32:
    total = i32(0)
    for i in range(n):
        if i == LIMIT:
            break
        if i % 3 == 0:
            continue
        for k in range(2, 8, 2):
            total += i * k
    return total


@native("t.logic")
def logic(a: i32, b: i32) -> i1:
    return 0 < a < 5 and (b > 3 or a != 2)


@native("t.signs")
def signs(a: i32, b: u32) -> i64:
    return i64(a >> 1) * 1000000 + i64(b >> 1) + i64(a // 2) + i64(-a % 3)


@native("t.bits")
def bits(x: u64) -> u64:
    return popcount(x) * 100 + trailing_zeros(x)


@native("t.memory")
def memory(pair: ptr(Pair)) -> i64:
    scratch = stack_array(i32, 4)
    for i in range(4):
        scratch[i] = i * i
    pair.first = scratch[3]
    pair.second += 5
    pair.many[1] = u32(pair.first) + 1
    pair.next = pair
    return pair.next.second + i64(pair.many[1]) + i64(ptr(u8)(pair)[0])


@native("t.floats")
def floats(x: f32) -> i32:
    y = x * 2.5 if x > 0.0 else -x
    return i32(y)


def python_loops(n):
    return sum(i * k for i in range(min(n, LIMIT)) if i % 3 for k in (2, 4, 6))


def test_control_flow():
    assert build(collatz)(27) == 111
    assert [build(loops)(n) for n in (0, 5, 50)] == [python_loops(n) for n in (0, 5, 50)]


def test_short_circuit_and_chained_comparison():
    run = build(logic)
    for a in range(-1, 7):
        for b in range(6):
            assert run(a, b) == (0 < a < 5 and (b > 3 or a != 2))


def test_signed_and_unsigned_operators():
    assert build(signs)(-8, 2**32 - 2) == -4000000 + 2**31 - 1 - 4 + 2


def test_bit_operations():
    assert build(bits)(0b1011000) == 303


def test_structures_arrays_and_pointers():
    assert Pair.size == 40
    buffer = (ctypes.c_int64 * 5)()
    buffer[1] = 100
    assert build(memory)(ctypes.addressof(buffer)) == 105 + 10 + 9


def test_floats():
    assert [build(floats)(x) for x in (3.0, -4.0)] == [7, 4]


def test_types_do_not_mix():
    @native("t.mixed")
    def mixed(a: i32, b: i64) -> i64:
        return a + b

    with pytest.raises(NativeError, match="i64 where i32 is needed"):
        mixed.ir()


def test_what_is_outside_the_language_is_named():
    @native("t.outside")
    def outside(a: i32) -> i32:
        with a:
            return a

    with pytest.raises(NativeError, match=r"t\.outside, line \d+: With is outside the language"):
        outside.ir()
