"""PTX instructions that Python has no words for, as functions that kernels call.

Each is one entry of a table (`emulator/instructions.py` says what an entry holds): the PTX text,
its operand types, and how the emulator executes it. On a GPU the text is emitted as inline PTX.
Integer results are unsigned 32-bit unless stated; addresses into shared memory are 32-bit, into
global memory 64-bit. Fragment layouts are those of the PTX ISA. Everything here needs sm_80 or
later; what needs sm_90 or sm_90a says so.

Arguments may be scalars or tuples of them (a matrix fragment), and are converted to the operand's
type. Functions of several results return a tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from dnncanon.gpu.emulator.instructions import bulk as async_ops
from dnncanon.gpu.emulator.instructions import copies as copy_ops
from dnncanon.gpu.emulator.instructions import scalar as scalar_ops
from dnncanon.gpu.emulator.instructions import tensor as tensor_ops
from dnncanon.gpu.emulator.instructions import wgmma as wgmma_ops
from dnncanon.gpu.emulator.instructions.table import Instruction, Scope
from dnncanon.gpu.emulator.native import f32, f64, u8, u16, u32

_NUMBA = {
    "h": types.uint16, "r": types.uint32, "l": types.uint64, "f": types.float32,
    "d": types.float64,
}  # fmt: skip
_LLVM = {
    "h": ir.IntType(16), "r": ir.IntType(32), "l": ir.IntType(64), "f": ir.FloatType(),
    "d": ir.DoubleType(),
}  # fmt: skip


# --------------------------------------------------------------------------------------------------
# From an entry to a function
# --------------------------------------------------------------------------------------------------
def instruction_function(entry: Instruction, arity: int) -> Any:
    """A function of `arity` arguments that kernels can call. Tuples among the arguments are
    flattened; the flattened arguments are the entry's inputs, in order."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        operands = _operands(context, builder, signature.args, arguments, entry.inputs)
        result = _emit(builder, entry, operands)
        if not entry.outputs:
            return context.get_dummy_value()
        if len(entry.outputs) == 1:
            return result
        values = [builder.extract_value(result, i) for i in range(len(entry.outputs))]
        return context.make_tuple(builder, signature.return_type, values)

    return intrinsic(_typer(arity, _result_numba(entry), codegen))


def _emit(builder: Any, entry: Instruction, operands: list[Any]) -> Any:
    """The call of an entry's inline PTX."""
    kind = ir.FunctionType(_result_llvm(entry), [o.type for o in operands])
    code = ir.InlineAsm(kind, entry.text, entry.constraints, side_effect=entry.volatile)
    return builder.call(code, operands)


def _typer(arity: int, result: Any, codegen: Callable[..., Any]) -> Callable[..., Any]:
    """The typing function of an intrinsic; Numba wants its parameters spelled out."""
    names = ", ".join(f"a{i}" for i in range(arity))
    scope = {"result": result, "codegen": codegen}
    source = (
        f"def call(typing{', ' + names if names else ''}):\n    return result({names}), codegen\n"
    )
    exec(source, scope)
    typer: Callable[..., Any] = scope["call"]
    return typer


def _result_llvm(entry: Instruction) -> Any:
    kinds = [_LLVM[c] for c in entry.outputs]
    if not kinds:
        return ir.VoidType()
    return kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds)


def _result_numba(entry: Instruction) -> Any:
    kinds = [_NUMBA[c] for c in entry.outputs]
    if not kinds:
        return types.void
    if len(kinds) == 1:
        return kinds[0]
    if len(set(kinds)) == 1:
        return types.UniTuple(kinds[0], len(kinds))
    return types.Tuple(kinds)


def _operands(context: Any, builder: Any, kinds: Any, values: Any, letters: str) -> list[Any]:
    flat: list[tuple[Any, Any]] = []
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(kind, types.BaseTuple):
            flat += [(builder.extract_value(value, i), t) for i, t in enumerate(kind)]
        else:
            flat.append((value, kind))
    if len(flat) != len(letters):
        raise TypeError(f"{len(flat)} operands where the instruction takes {len(letters)}")
    return [
        _operand(context, builder, value, kind, letter)
        for (value, kind), letter in zip(flat, letters, strict=True)
    ]


def _operand(context: Any, builder: Any, value: Any, kind: Any, letter: str) -> Any:
    """A value as an operand: numbers are converted, float bits go into integer registers as is."""
    wanted = _LLVM[letter]
    if value.type == wanted:
        return value
    if letter in "hrl" and isinstance(kind, types.Float):
        return builder.bitcast(value, wanted)
    if isinstance(kind, types.Integer | types.Boolean | types.Float):
        return context.cast(builder, value, kind, _NUMBA[letter])
    return builder.bitcast(value, wanted)


# --------------------------------------------------------------------------------------------------
# Addresses
# --------------------------------------------------------------------------------------------------
def _data_pointer(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    return context.make_array(kind)(context, builder, value=array).data


@intrinsic  # type: ignore[untyped-decorator]
def shared_address(typing: Any, array: Any, index: Any) -> Any:
    """shared_address(array, index): 32-bit shared address of element `index` (of the flattened
    array; negative indices do not wrap) of an array in shared memory."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _data_pointer(context, builder, signature.args[0], arguments[0])
        place = builder.gep(data, [arguments[1]])
        shared = builder.addrspacecast(place, ir.PointerType(place.type.pointee, 3))
        return builder.trunc(builder.ptrtoint(shared, ir.IntType(64)), ir.IntType(32))

    return types.uint32(array, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def global_address(typing: Any, array: Any, index: Any) -> Any:
    """global_address(array, index): 64-bit address of element `index` of the flattened array. The
    result is *signed* 64-bit: Numba would turn a sum of uint64 and int64 into a float."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _data_pointer(context, builder, signature.args[0], arguments[0])
        return builder.ptrtoint(builder.gep(data, [arguments[1]]), ir.IntType(64))

    return types.int64(array, types.int64), codegen


# --------------------------------------------------------------------------------------------------
# Conversions and packing
# --------------------------------------------------------------------------------------------------
def _value(text: str, outputs: str, inputs: str, execute: Any) -> Any:
    return instruction_function(Instruction(text, outputs, inputs, execute), len(inputs))


f32_to_f16 = _value("cvt.rn.f16.f32 $0, $1;", "h", "f", scalar_ops.f32_to_f16)
"""float32 -> float16 bits (uint16), round to nearest even."""
f16_to_f32 = _value("cvt.f32.f16 $0, $1;", "f", "h", scalar_ops.f16_to_f32)
"""float16 bits -> float32, exact."""
f32_to_bf16 = _value("cvt.rn.bf16.f32 $0, $1;", "h", "f", scalar_ops.f32_to_bf16)
"""float32 -> bfloat16 bits (uint16), round to nearest even."""
bf16_to_f32 = _value(
    "{ .reg .b16 zero; mov.b16 zero, 0; mov.b32 $0, {zero, $1}; }", "f", "h", scalar_ops.bf16_to_f32
)
"""bfloat16 bits -> float32, exact (sm_80 has no cvt for it: the bits move to the upper half)."""
f64_to_f16 = _value("cvt.rn.f16.f64 $0, $1;", "h", "d", scalar_ops.f64_to_f16)
f16_to_f64 = _value("cvt.f64.f16 $0, $1;", "d", "h", scalar_ops.f16_to_f64)
f32_to_tf32 = _value("cvt.rna.tf32.f32 $0, $1;", "r", "f", scalar_ops.f32_to_tf32)
"""float32 -> TF32 bits (uint32): 10 mantissa bits, ties away from zero."""
pack_f16x2 = _value("cvt.rn.f16x2.f32 $0, $1, $2;", "r", "ff", scalar_ops.pack_f16x2)
"""pack_f16x2(high, low): two float32 to a register of two float16."""
pack_bf16x2 = _value("cvt.rn.bf16x2.f32 $0, $1, $2;", "r", "ff", scalar_ops.pack_bf16x2)
"""pack_bf16x2(high, low): two float32 to a register of two bfloat16."""
pack_e4m3x2 = _value("cvt.rn.satfinite.e4m3x2.f32 $0, $1, $2;", "h", "ff", scalar_ops.pack_e4m3x2)
"""pack_e4m3x2(high, low) -> uint16; saturates at ±448 (sm_89)."""
pack_e5m2x2 = _value("cvt.rn.satfinite.e5m2x2.f32 $0, $1, $2;", "h", "ff", scalar_ops.pack_e5m2x2)
unpack_e4m3x2 = _value("cvt.rn.f16x2.e4m3x2 $0, $1;", "r", "h", scalar_ops.unpack_e4m3x2)
"""Two e4m3 codes (uint16) to a register of two float16, exact (sm_89)."""
unpack_e5m2x2 = _value("cvt.rn.f16x2.e5m2x2 $0, $1;", "r", "h", scalar_ops.unpack_e5m2x2)
f32_to_s8 = _value("cvt.rni.sat.s8.f32 $0, $1;", "r", "f", scalar_ops.f32_to_s8)
"""float32 -> int8 in the low byte, sign-extended: nearest even, saturating."""
f32_to_s32 = _value("cvt.rni.s32.f32 $0, $1;", "r", "f", scalar_ops.f32_to_s32_rni)
_TO_S64 = {
    types.float32: Instruction("cvt.rni.s64.f32 $0, $1;", "l", "f", scalar_ops.f32_to_s64_rni),
    types.float64: Instruction("cvt.rni.s64.f64 $0, $1;", "l", "d", scalar_ops.f64_to_s64_rni),
}


@intrinsic  # type: ignore[untyped-decorator]
def to_int64(typing: Any, value: Any) -> Any:
    """to_int64(number) -> int64: nearest even, saturating, 0 for a NaN; integers and bools as they are."""
    if value not in _TO_S64:
        return types.int64(value), _cast_to(types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (number,) = arguments
        whole = _emit(builder, _TO_S64[value], [number])
        is_nan = builder.fcmp_unordered("uno", number, number)
        return builder.select(is_nan, ir.Constant(whole.type, 0), whole)

    return types.int64(value), codegen


@intrinsic  # type: ignore[untyped-decorator]
def to_odd_f32(typing: Any, value: Any) -> Any:
    """to_odd_f32(number) -> float32, rounded to odd unless it is one: rounding that to nearest, to 22
    bits or fewer, gives the same as rounding the number itself."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if value == types.float32:
            return arguments[0]
        exact = context.cast(builder, arguments[0], value, types.float64)
        near = builder.fptrunc(exact, ir.FloatType())
        back = builder.fpext(near, ir.DoubleType())
        inexact = builder.fcmp_ordered("!=", back, exact)
        outward = _is_farther(builder, back, exact)
        word = ir.IntType(32)
        bits = builder.bitcast(near, word)
        inner = builder.sub(bits, builder.zext(outward, word))
        odd = builder.or_(inner, ir.Constant(word, 1))
        return builder.bitcast(builder.select(inexact, odd, bits), ir.FloatType())

    return types.float32(value), codegen


def _is_farther(builder: Any, number: Any, other: Any) -> Any:
    """Whether a number is farther from zero than another one of its sign."""
    zero = ir.Constant(number.type, 0.0)
    above = builder.fcmp_ordered(">", number, other)
    below = builder.fcmp_ordered("<", number, other)
    return builder.select(builder.fcmp_ordered(">=", other, zero), above, below)


def _cast_to(kind: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[0], signature.args[0], kind)

    return codegen


@intrinsic  # type: ignore[untyped-decorator]
def bits_of_f32(typing: Any, value: Any) -> Any:
    """bits_of_f32(float32) -> its bits as an int64, 0 … 2^32 − 1."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], ir.IntType(32))
        return builder.zext(bits, ir.IntType(64))

    return types.int64(types.float32), codegen


@intrinsic  # type: ignore[untyped-decorator]
def f32_of_bits(typing: Any, bits: Any) -> Any:
    """f32_of_bits(integer) -> the float32 whose bits are its lower 32."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.trunc(arguments[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), codegen


# --------------------------------------------------------------------------------------------------
# Arithmetic
# --------------------------------------------------------------------------------------------------
ex2_approx = _value("ex2.approx.ftz.f32 $0, $1;", "f", "f", scalar_ops.ex2)
lg2_approx = _value("lg2.approx.ftz.f32 $0, $1;", "f", "f", scalar_ops.lg2)
rcp_approx = _value("rcp.approx.ftz.f32 $0, $1;", "f", "f", scalar_ops.rcp)
rsqrt_approx = _value("rsqrt.approx.ftz.f32 $0, $1;", "f", "f", scalar_ops.rsqrt)
sqrt_approx = _value("sqrt.approx.ftz.f32 $0, $1;", "f", "f", scalar_ops.sqrt_approx)
sin_approx = _value("sin.approx.ftz.f32 $0, $1;", "f", "f", scalar_ops.sin_approx)
cos_approx = _value("cos.approx.ftz.f32 $0, $1;", "f", "f", scalar_ops.cos_approx)
tanh_approx = _value("tanh.approx.f32 $0, $1;", "f", "f", scalar_ops.tanh_approx)
fma_rn = _value("fma.rn.f32 $0, $1, $2, $3;", "f", "fff", scalar_ops.fma_rn)
mul_rn = _value("mul.rn.f32 $0, $1, $2;", "f", "ff", scalar_ops.mul_rn)
"""A product that is not contracted into a fused multiply-add."""
add_rn = _value("add.rn.f32 $0, $1, $2;", "f", "ff", scalar_ops.add_rn)
fma_f16x2 = _value("fma.rn.f16x2 $0, $1, $2, $3;", "r", "rrr", scalar_ops.hfma2)
mul_f16x2 = _value("mul.rn.f16x2 $0, $1, $2;", "r", "rr", scalar_ops.hmul2)
add_f16x2 = _value("add.rn.f16x2 $0, $1, $2;", "r", "rr", scalar_ops.hadd2)
dp4a = _value("dp4a.s32.s32 $0, $1, $2, $3;", "r", "rrr", scalar_ops.dp4a)
"""dp4a(a, b, c): c plus the dot product of four signed bytes."""
mul_wide_u32 = _value("mul.wide.u32 $0, $1, $2;", "l", "rr", scalar_ops.mul_wide_u32)
"""mul_wide_u32(a, b) -> uint64: the whole product."""


# --------------------------------------------------------------------------------------------------
# Loads and stores of 8 and 16 bytes
# --------------------------------------------------------------------------------------------------
def _memory(text: str, outputs: str, inputs: str, execute: Any) -> Instruction:
    return Instruction(text, outputs, inputs, execute, Scope.THREAD, volatile=True, memory=True)


def _thread(
    text: str,
    outputs: str,
    inputs: str,
    execute: Any,
    arity: int | None = None,
    *,
    blocks: bool = False,
    spins: bool = False,
) -> Any:
    entry = Instruction(
        text, outputs, inputs, execute, Scope.THREAD, volatile=True, memory=True, blocks=blocks,
        spins=spins,
    )  # fmt: skip
    return instruction_function(entry, len(inputs) if arity is None else arity)


_FOUR = "{$0, $1, $2, $3}"
load_global_v4 = _thread(f"ld.global.v4.b32 {_FOUR}, [$4];", "rrrr", "l", scalar_ops.load_global_v4)
"""load_global_v4(address) -> four words; the address is a multiple of 16."""
load_global_v4_f32 = _thread(
    f"ld.global.v4.f32 {_FOUR}, [$4];", "ffff", "l", scalar_ops.load_global_v4
)
load_global_nc_v4 = _thread(
    f"ld.global.nc.v4.b32 {_FOUR}, [$4];", "rrrr", "l", scalar_ops.load_global_v4
)
"""Through the read-only cache: for memory that the kernel does not write."""
load_global_v2 = _thread("ld.global.v2.b32 {$0, $1}, [$2];", "rr", "l", scalar_ops.load_global_v2)
load_shared_v4 = _thread(f"ld.shared.v4.b32 {_FOUR}, [$4];", "rrrr", "r", scalar_ops.load_shared_v4)
load_shared_v4_f32 = _thread(
    f"ld.shared.v4.f32 {_FOUR}, [$4];", "ffff", "r", scalar_ops.load_shared_v4
)
load_shared_v2 = _thread("ld.shared.v2.b32 {$0, $1}, [$2];", "rr", "r", scalar_ops.load_shared_v2)
load_shared_v2_f64 = _thread(
    "ld.shared.v2.f64 {$0, $1}, [$2];", "dd", "r", scalar_ops.load_shared_v2_f64
)
load_shared_u32 = _thread("ld.shared.b32 $0, [$1];", "r", "r", scalar_ops.load_shared(u32))
load_shared_f32 = _thread("ld.shared.f32 $0, [$1];", "f", "r", scalar_ops.load_shared(f32))
load_shared_f64 = _thread("ld.shared.f64 $0, [$1];", "d", "r", scalar_ops.load_shared(f64))
store_shared_u8 = _thread("st.shared.b8 [$0], $1;", "", "rr", scalar_ops.store_shared(u8, u32))
store_shared_u16 = _thread("st.shared.b16 [$0], $1;", "", "rh", scalar_ops.store_shared(u16, u16))
store_shared_u32 = _thread("st.shared.b32 [$0], $1;", "", "rr", scalar_ops.store_shared(u32, u32))
"""store_shared_u32(shared address, value); a float32 is stored as its bits."""
store_shared_f64 = _thread("st.shared.f64 [$0], $1;", "", "rd", scalar_ops.store_shared(f64, f64))
store_global_v4 = _thread(
    "st.global.v4.b32 [$0], {$1, $2, $3, $4};", "", "lrrrr", scalar_ops.store_global_v4, 2
)
"""store_global_v4(address, (a, b, c, d)); float32 values are stored as their bits."""
store_global_v2 = _thread(
    "st.global.v2.b32 [$0], {$1, $2};", "", "lrr", scalar_ops.store_global_v2, 2
)
store_shared_v4 = _thread(
    "st.shared.v4.b32 [$0], {$1, $2, $3, $4};", "", "rrrrr", scalar_ops.store_shared_v4, 2
)
store_shared_v2 = _thread(
    "st.shared.v2.b32 [$0], {$1, $2};", "", "rrr", scalar_ops.store_shared_v2, 2
)

_GLOBAL_LOADS = {
    2: _memory("ld.global.b16 $0, [$1];", "h", "l", scalar_ops.load_global(u16)),
    4: _memory("ld.global.b32 $0, [$1];", "r", "l", scalar_ops.load_global(u32)),
    8: _memory("ld.global.v2.b32 {$0, $1}, [$2];", "rr", "l", scalar_ops.load_global_v2),
    16: _memory(f"ld.global.v4.b32 {_FOUR}, [$4];", "rrrr", "l", scalar_ops.load_global_v4),
}
_GLOBAL_STORES = {
    2: _memory("st.global.b16 [$0], $1;", "", "lh", scalar_ops.store_global(u16)),
    4: _memory("st.global.b32 [$0], $1;", "", "lr", scalar_ops.store_global(u32)),
    8: _memory("st.global.v2.b32 [$0], {$1, $2};", "", "lrr", scalar_ops.store_global_v2),
    16: _memory(
        "st.global.v4.b32 [$0], {$1, $2, $3, $4};", "", "lrrrr", scalar_ops.store_global_v4
    ),
}
"""By the bytes of an access."""


_CHUNK = types.UniTuple(types.uint64, 2)


@cache
def load_chunk(count: int) -> Any:
    """The function load(array, index) -> chunk: `count` adjacent elements of an array in global memory
    from element `index` on, read by one instruction. They have 2, 4, 8 or 16 bytes together, and the
    address is a multiple of that. A chunk is a tuple of two uint64, the first element in the lowest bits."""

    @intrinsic  # type: ignore[untyped-decorator]
    def load(typing: Any, array: Any, index: Any) -> Any:
        entry = _GLOBAL_LOADS[count * array.dtype.bitwidth // 8]

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = _element_address(context, builder, signature, arguments)
            loaded = _emit(builder, entry, [address])
            several = len(entry.outputs) > 1
            parts = [builder.extract_value(loaded, i) for i in range(len(entry.outputs) * several)]
            halves = _joined(builder, parts or [loaded])
            return context.make_tuple(builder, _CHUNK, halves)

        return _CHUNK(array, types.int64), codegen

    return load


@cache
def store_chunk(count: int) -> Any:
    """The function store(array, index, chunk), the counterpart of `load_chunk`."""

    @intrinsic  # type: ignore[untyped-decorator]
    def store(typing: Any, array: Any, index: Any, chunk: Any) -> Any:
        entry = _GLOBAL_STORES[count * array.dtype.bitwidth // 8]

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = _element_address(context, builder, signature, arguments)
            halves = [builder.extract_value(arguments[2], i) for i in range(2)]
            _emit(builder, entry, [address, *_divided(builder, halves, entry.inputs[1:])])
            return context.get_dummy_value()

        return types.void(array, types.int64, _CHUNK), codegen

    return store


@intrinsic  # type: ignore[untyped-decorator]
def chunk_first(typing: Any, array: Any, chunk: Any) -> Any:
    """chunk_first(array, chunk): the first element of a chunk of an array."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low = builder.extract_value(arguments[1], 0)
        word = builder.trunc(low, ir.IntType(array.dtype.bitwidth))
        return builder.bitcast(word, context.get_value_type(array.dtype))

    return array.dtype(array, _CHUNK), codegen


@intrinsic  # type: ignore[untyped-decorator]
def chunk_rest(typing: Any, array: Any, chunk: Any) -> Any:
    """chunk_rest(array, chunk): the chunk without its first element."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        halves = [builder.extract_value(arguments[1], i) for i in range(2)]
        shifted = _shifted(builder, halves, array.dtype.bitwidth)
        return context.make_tuple(builder, _CHUNK, shifted)

    return _CHUNK(array, _CHUNK), codegen


@cache
def chunk_append(count: int) -> Any:
    """The function append(array, chunk, element) -> chunk without its first element, and with a new
    one at its end, the `count`-th."""

    @intrinsic  # type: ignore[untyped-decorator]
    def append(typing: Any, array: Any, chunk: Any, element: Any) -> Any:
        bits = array.dtype.bitwidth
        half, shift = divmod((count - 1) * bits, 64)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            halves = [builder.extract_value(arguments[1], i) for i in range(2)]
            shifted = _shifted(builder, halves, bits)
            word = builder.bitcast(arguments[2], ir.IntType(bits))
            wide = builder.zext(word, ir.IntType(64)) if bits < 64 else word
            new = builder.shl(wide, ir.Constant(ir.IntType(64), shift))
            shifted[half] = builder.or_(shifted[half], new)
            return context.make_tuple(builder, _CHUNK, shifted)

        return _CHUNK(array, _CHUNK, array.dtype), codegen

    return append


def _element_address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    data = _data_pointer(context, builder, signature.args[0], arguments[0])
    return builder.ptrtoint(builder.gep(data, [arguments[1]]), ir.IntType(64))


def _joined(builder: Any, parts: list[Any]) -> list[Any]:
    """Registers of 16 or 32 bits as two of 64."""
    halves = [ir.Constant(ir.IntType(64), 0)] * 2
    for i, part in enumerate(parts):
        half, shift = divmod(32 * i, 64)
        wide = builder.zext(part, ir.IntType(64))
        moved = builder.shl(wide, ir.Constant(ir.IntType(64), shift))
        halves[half] = builder.or_(halves[half], moved)
    return halves


def _divided(builder: Any, halves: list[Any], letters: str) -> list[Any]:
    """Two registers of 64 bits as one of 16, or as some of 32."""
    places = [divmod(32 * i, 64) for i in range(len(letters))]
    return [
        builder.trunc(builder.lshr(halves[half], ir.Constant(ir.IntType(64), shift)), _LLVM[letter])
        for (half, shift), letter in zip(places, letters, strict=True)
    ]


def _shifted(builder: Any, halves: list[Any], bits: int) -> list[Any]:
    """Two registers of 64 bits, together shifted right."""
    long = ir.IntType(64)
    if bits == 64:
        return [halves[1], ir.Constant(long, 0)]
    into = builder.shl(halves[1], ir.Constant(long, 64 - bits))
    low = builder.or_(builder.lshr(halves[0], ir.Constant(long, bits)), into)
    return [low, builder.lshr(halves[1], ir.Constant(long, bits))]


# --------------------------------------------------------------------------------------------------
# Asynchronous copies from global to shared memory (sm_80)
# --------------------------------------------------------------------------------------------------
cp_async_4 = _thread("cp.async.ca.shared.global [$0], [$1], 4;", "", "rl", copy_ops.cp_async(4))
cp_async_8 = _thread("cp.async.ca.shared.global [$0], [$1], 8;", "", "rl", copy_ops.cp_async(8))
cp_async_16 = _thread("cp.async.cg.shared.global [$0], [$1], 16;", "", "rl", copy_ops.cp_async(16))
"""cp_async_16(shared address, global address): copy 16 bytes; both addresses multiples of 16."""
cp_async_4_fill = _thread(
    "cp.async.ca.shared.global [$0], [$1], 4, $2;", "", "rlr", copy_ops.cp_async_fill(4)
)
cp_async_8_fill = _thread(
    "cp.async.ca.shared.global [$0], [$1], 8, $2;", "", "rlr", copy_ops.cp_async_fill(8)
)
cp_async_16_fill = _thread(
    "cp.async.cg.shared.global [$0], [$1], 16, $2;", "", "rlr", copy_ops.cp_async_fill(16)
)
"""cp_async_16_fill(shared, global, n): copy n ≤ 16 bytes, and zeros for the rest."""
cp_async_4_if = _thread(
    "{ .reg .pred p; setp.eq.u32 p, $2, 0; cp.async.ca.shared.global [$0], [$1], 4, p; }",
    "", "rlr", copy_ops.cp_async_if(4),
)  # fmt: skip
cp_async_8_if = _thread(
    "{ .reg .pred p; setp.eq.u32 p, $2, 0; cp.async.ca.shared.global [$0], [$1], 8, p; }",
    "", "rlr", copy_ops.cp_async_if(8),
)  # fmt: skip
cp_async_16_if = _thread(
    "{ .reg .pred p; setp.eq.u32 p, $2, 0; cp.async.cg.shared.global [$0], [$1], 16, p; }",
    "", "rlr", copy_ops.cp_async_if(16),
)  # fmt: skip
"""cp_async_16_if(shared, global, wanted): copy 16 bytes, or zeros if `wanted` is 0."""
cp_async_commit = _thread("cp.async.commit_group;", "", "", copy_ops.cp_async_commit)
"""Close a group of copies."""
cp_async_wait_all = _thread("cp.async.wait_all;", "", "", copy_ops.cp_async_wait_all)


@cache
def cp_async_wait_group(pending: int) -> Any:
    """The function that waits until at most `pending` of the thread's latest groups are in
    flight. Make it outside the kernel: `wait_1 = ptx.cp_async_wait_group(1)`."""
    execute = copy_ops.cp_async_wait_group(pending)
    return _thread(f"cp.async.wait_group {pending};", "", "", execute)


# --------------------------------------------------------------------------------------------------
# Matrix fragments and tensor cores (sm_80); all 32 lanes together
# --------------------------------------------------------------------------------------------------
def _warp(text: str, outputs: str, inputs: str, execute: Any, arity: int, memory: bool) -> Any:
    entry = Instruction(text, outputs, inputs, execute, Scope.WARP, volatile=True, memory=memory)
    return instruction_function(entry, arity)


def _registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"${i}" for i in range(first, first + count)) + "}"


def _ldmatrix(count: int, transposed: bool) -> Any:
    text = (
        f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16 "
        f"{_registers(0, count)}, [${count}];"
    )
    return _warp(text, "r" * count, "r", tensor_ops.ldmatrix(count, transposed), 1, True)


def _stmatrix(count: int, transposed: bool) -> Any:
    text = (
        f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16 "
        f"[$0], {_registers(1, count)};"
    )
    execute = tensor_ops.stmatrix(count, transposed)
    return _warp(text, "", "r" + "r" * count, execute, 2, True)


ldmatrix_x1 = _ldmatrix(1, False)
ldmatrix_x2 = _ldmatrix(2, False)
ldmatrix_x4 = _ldmatrix(4, False)
"""ldmatrix_x4(shared address of row lane % 8 of matrix lane // 8) -> four registers."""
ldmatrix_x1_trans = _ldmatrix(1, True)
ldmatrix_x2_trans = _ldmatrix(2, True)
ldmatrix_x4_trans = _ldmatrix(4, True)
stmatrix_x1 = _stmatrix(1, False)
stmatrix_x2 = _stmatrix(2, False)
stmatrix_x4 = _stmatrix(4, False)
"""stmatrix_x4(shared address, (r0, r1, r2, r3)) (sm_90)."""
stmatrix_x1_trans = _stmatrix(1, True)
stmatrix_x2_trans = _stmatrix(2, True)
stmatrix_x4_trans = _stmatrix(4, True)

_ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}


def _mma(depth: int, element: str, accumulator: str = "f32") -> Any:
    """mma.sync.m16n8k`depth`: call(a, b, c) -> d with tuples of registers."""
    per_word = 32 // _ELEMENT_BITS[element]
    a, b = 16 * depth // (32 * per_word), 8 * depth // (32 * per_word)
    c = 2 if accumulator == "f16" else 4
    letter = "f" if accumulator == "f32" else "r"
    groups = (_registers(c, a), _registers(c + a, b), _registers(c + a + b, c))
    text = (
        f"mma.sync.aligned.m16n8k{depth}.row.col.{accumulator}.{element}.{element}.{accumulator} "
        f"{_registers(0, c)}, {', '.join(groups)};"
    )
    execute = tensor_ops.mma(depth, element, accumulator)
    return _warp(text, letter * c, "r" * (a + b) + letter * c, execute, 3, False)


mma_f16 = _mma(16, "f16")
"""mma_f16(a, b, c): m16n8k16, float16 operands in (4, 2) registers, float32 accumulators (4)."""
mma_f16_k8 = _mma(8, "f16")
mma_f16_f16 = _mma(16, "f16", "f16")
"""m16n8k16 with float16 accumulators in 2 registers."""
mma_bf16 = _mma(16, "bf16")
mma_bf16_k8 = _mma(8, "bf16")
mma_tf32 = _mma(8, "tf32")
"""mma_tf32(a, b, c): m16n8k8; operands are TF32 bits from `f32_to_tf32`."""
mma_tf32_k4 = _mma(4, "tf32")
mma_s8 = _mma(32, "s8", "s32")
"""mma_s8(a, b, c): m16n8k32, int8 operands, int32 accumulators."""
mma_s8_k16 = _mma(16, "s8", "s32")
mma_u8 = _mma(32, "u8", "s32")
mma_e4m3 = _mma(32, "e4m3")
"""m16n8k32 of e4m3 (sm_89; sm_90 emulates it with float16 tensor cores)."""
mma_e5m2 = _mma(32, "e5m2")


# --------------------------------------------------------------------------------------------------
# mbarriers and bulk copies (sm_90)
# --------------------------------------------------------------------------------------------------
mbarrier_init = _thread(
    "mbarrier.init.shared::cta.b64 [$0], $1;", "", "rr", async_ops.mbarrier_init
)
"""mbarrier_init(shared address of 8 bytes, arrivals per phase)."""
mbarrier_arrive = _thread(
    "mbarrier.arrive.shared::cta.b64 _, [$0];", "", "r", async_ops.mbarrier_arrive
)
mbarrier_arrive_expect_tx = _thread(
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "", "rr", async_ops.mbarrier_expect
)
"""mbarrier_arrive_expect_tx(address, bytes): arrive, and expect so many bytes of bulk copies."""
mbarrier_expect_tx = _thread(
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;", "", "rr",
    async_ops.mbarrier_expect_only,
)  # fmt: skip
mbarrier_test = _thread(
    "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [$1], $2; selp.b32 $0, 1, 0, p; }",
    "r", "rr", async_ops.mbarrier_poll, blocks=True,
)  # fmt: skip
"""mbarrier_test(address, parity) -> 1 when the phase of that parity is complete."""
mbarrier_wait = _thread(
    "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; "
    "@p bra.uni DONE; bra.uni AGAIN; DONE: }",
    "", "rr", async_ops.mbarrier_wait, blocks=True,
)  # fmt: skip
"""mbarrier_wait(address, parity): wait until the phase of that parity is complete."""
fence_mbarrier_init = _thread("fence.mbarrier_init.release.cluster;", "", "", scalar_ops.nothing)
fence_proxy_async = _thread("fence.proxy.async.shared::cta;", "", "", async_ops.proxy_fence)
"""Make the thread's writes to shared memory visible to bulk stores and wgmma."""
bulk_load = _thread(
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
    "", "rlrr", async_ops.bulk_load,
)  # fmt: skip
"""bulk_load(shared address, global address, bytes, mbarrier): all multiples of 16."""


def _tensor_load(rank: int) -> Any:
    coordinates = ", ".join(f"${i}" for i in range(2, 2 + rank))
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
        f"[$0], [$1, {{{coordinates}}}], [${2 + rank}];"
    )
    return _thread(text, "", "rl" + "r" * rank + "r", async_ops.tensor_load(rank))


tensor_load_1d = _tensor_load(1)
tensor_load_2d = _tensor_load(2)
"""tensor_load_2d(shared address, address of the descriptor, c0, c1, mbarrier): coordinates of the
box's first element, innermost dimension first. Descriptors: `emulator.TensorMap`."""
tensor_load_3d = _tensor_load(3)
tensor_load_4d = _tensor_load(4)
tensor_load_5d = _tensor_load(5)


fence_tensor_map = _thread(
    "fence.proxy.tensormap::generic.acquire.gpu [$0], 128;", "", "l", async_ops.tensor_map_fence
)
"""fence_tensor_map(address of a descriptor in global memory): before the block's first copy by it."""


def _tensor_store(rank: int) -> Any:
    coordinates = ", ".join(f"${i}" for i in range(1, 1 + rank))
    text = (
        f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group "
        f"[$0, {{{coordinates}}}], [${1 + rank}];"
    )
    return _thread(text, "", "l" + "r" * rank + "r", async_ops.tensor_store(rank))


tensor_store_1d = _tensor_store(1)
tensor_store_2d = _tensor_store(2)
"""tensor_store_2d(address of the descriptor, c0, c1, shared address)."""
tensor_store_3d = _tensor_store(3)
tensor_store_4d = _tensor_store(4)
tensor_store_5d = _tensor_store(5)
bulk_commit_group = _thread("cp.async.bulk.commit_group;", "", "", async_ops.bulk_commit)


@cache
def bulk_wait_group(pending: int) -> Any:
    """The function that waits until at most `pending` groups of bulk stores are in flight."""
    execute = async_ops.bulk_wait(pending)
    return _thread(f"cp.async.bulk.wait_group {pending};", "", "", execute)


# --------------------------------------------------------------------------------------------------
# Barriers and registers
# --------------------------------------------------------------------------------------------------
barrier_sync = _thread("bar.sync $0, $1;", "", "rr", async_ops.bar_sync, blocks=True)
"""barrier_sync(number 1 … 15, threads): opens when that many threads have arrived."""
barrier_arrive = _thread("bar.arrive $0, $1;", "", "rr", async_ops.bar_arrive, blocks=True)
cluster_sync = _thread(
    "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;", "", "",
    async_ops.cluster_sync, blocks=True,
)  # fmt: skip
grid_dependency_wait = _thread("griddepcontrol.wait;", "", "", scalar_ops.nothing)
grid_dependency_launch = _thread("griddepcontrol.launch_dependents;", "", "", scalar_ops.nothing)


@cache
def set_max_registers(count: int, increase: bool) -> Any:
    """setmaxnreg: the function that moves registers between warpgroups (sm_90a)."""
    text = f"setmaxnreg.{'inc' if increase else 'dec'}.sync.aligned.u32 {count};"
    return _thread(text, "", "", scalar_ops.nothing)


# --------------------------------------------------------------------------------------------------
# wgmma (sm_90a); the 128 threads of a warpgroup together
# --------------------------------------------------------------------------------------------------
_DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}
wgmma_fence = _thread("wgmma.fence.sync.aligned;", "", "", wgmma_ops.wgmma_fence, blocks=True)
wgmma_commit_group = _thread(
    "wgmma.commit_group.sync.aligned;", "", "", wgmma_ops.wgmma_commit, blocks=True
)


@cache
def wgmma(
    columns: int,
    element: str = "f16",
    *,
    a_in_registers: bool = False,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Any:
    """The function of wgmma.mma_async.m64n`columns`k(16 for 16-bit elements) with float32
    accumulators: call(a, descriptor of b, keep, accumulators) -> accumulators. `a` is a descriptor,
    or a tuple of four registers; with keep = 0 the product replaces the accumulators. They are not
    to be used before `wgmma_wait_group` has returned them."""
    depth, count = _DEPTH[element], columns // 2
    a = 4 if a_in_registers else 1
    first_a = _registers(count, 4) if a_in_registers else f"${count}"
    b, keep = count + a, count + a + 1
    flags = ["1", "1"]
    if element in ("f16", "bf16"):
        flags += [str(int(trans_b))] if a_in_registers else [str(int(trans_a)), str(int(trans_b))]
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, ${keep}, 0; "
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{element}.{element} "
        f"{_registers(0, count)}, {first_a}, ${b}, p, {', '.join(flags)}; }}"
    )
    execute = wgmma_ops.mma_async(columns, element, depth, a_in_registers, trans_a, trans_b)
    inputs = ("r" * 4 if a_in_registers else "l") + "lr" + "f" * count
    entry = Instruction(
        text, "f" * count, inputs, execute, Scope.WARPGROUP, volatile=True, memory=True, tied=count
    )
    return instruction_function(entry, 4)


@cache
def wgmma_wait_group(pending: int, count: int) -> Any:
    """The function that waits until at most `pending` groups are in flight: call(accumulators) ->
    the `count` accumulators, through which the compiler sees that they change."""
    text = f"wgmma.wait_group.sync.aligned {pending};" + f" // {count}"
    execute = wgmma_ops.wgmma_wait(pending, count)
    entry = Instruction(
        text, "f" * count, "f" * count, execute, Scope.WARP, volatile=True, memory=True, tied=count
    )
    return instruction_function(entry, 1)


@intrinsic  # type: ignore[untyped-decorator]
def wgmma_descriptor(typing: Any, address: Any, leading: Any, stride: Any, swizzle: Any) -> Any:
    """wgmma_descriptor(shared address, leading bytes, stride bytes, swizzle) -> uint64; the swizzle
    is 0 (none), 1 (128 bytes), 2 (64 bytes) or 3 (32 bytes)."""
    long = ir.IntType(64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        parts = [context.cast(builder, v, t, types.uint64)
                 for v, t in zip(arguments, signature.args, strict=True)]  # fmt: skip
        total = ir.Constant(long, 0)
        for part, drop, mask, shift in zip(
            parts, (4, 4, 4, 0), (0x3FFF, 0x3FFF, 0x3FFF, 3), (0, 16, 32, 62), strict=True
        ):
            bits = builder.and_(
                builder.lshr(part, ir.Constant(long, drop)), ir.Constant(long, mask)
            )
            total = builder.or_(total, builder.shl(bits, ir.Constant(long, shift)))
        return total

    return types.uint64(address, leading, stride, swizzle), codegen


@intrinsic  # type: ignore[untyped-decorator]
def store_registers(typing: Any, array: Any, values: Any) -> Any:
    """store_registers(array of a thread, tuple): array[i] = values[i] for each of the tuple."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _data_pointer(context, builder, signature.args[0], arguments[0])
        for i in range(len(values)):
            place = builder.gep(data, [ir.Constant(ir.IntType(64), i)])
            builder.store(builder.extract_value(arguments[1], i), place)
        return context.get_dummy_value()

    return types.void(array, values), codegen


# --------------------------------------------------------------------------------------------------
# Lanes
# --------------------------------------------------------------------------------------------------
def _redux(operation: str) -> Any:
    text = f"redux.sync.{operation} $0, $1, $2;"
    return _thread(text, "r", "rr", async_ops.redux(operation), blocks=True)


redux_add = _redux("add.s32")
"""redux_add(value, mask): the sum over the lanes of the mask, as uint32 bits."""
redux_max = _redux("max.s32")
redux_min = _redux("min.s32")
redux_max_u32 = _redux("max.u32")
redux_min_u32 = _redux("min.u32")
redux_and = _redux("and.b32")
redux_or = _redux("or.b32")
redux_xor = _redux("xor.b32")
elect = _thread(
    "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 $0, 1, 0, p; }", "r", "",
    async_ops.elect, blocks=True,
)  # fmt: skip
"""1 in one lane of the warp (sm_90)."""
lane_id = instruction_function(
    Instruction("mov.u32 $0, %laneid;", "r", "", scalar_ops.lane_id, Scope.THREAD), 0
)


# --------------------------------------------------------------------------------------------------
# Between blocks
# --------------------------------------------------------------------------------------------------
load_acquire = _thread(
    "ld.acquire.gpu.global.u32 $0, [$1];", "r", "l", async_ops.load_acquire, blocks=True,
    spins=True,
)  # fmt: skip
"""load_acquire(address) -> uint32; what loops that wait for another block read."""
store_release = _thread("st.release.gpu.global.u32 [$0], $1;", "", "lr", async_ops.store_release)
add_acq_rel = _thread(
    "atom.acq_rel.gpu.global.add.u32 $0, [$1], $2;", "r", "lr", async_ops.add_release
)
atomic_add_f16x2 = _thread(
    "atom.global.add.noftz.f16x2 $0, [$1], $2;", "r", "lr", async_ops.atomic_add_pair("f16")
)
"""atomic_add_f16x2(address, pair) -> old pair; each half is added atomically."""
atomic_add_bf16x2 = _thread(
    "atom.global.add.noftz.bf16x2 $0, [$1], $2;", "r", "lr", async_ops.atomic_add_pair("bf16")
)


@cache
def zeros(count: int, kind: Any = types.float32) -> Any:
    """The function that returns a tuple of `count` zeros (a tuple literal of more than 30 elements
    breaks numba-cuda's bytecode pass)."""

    def typer(typing: Any) -> Any:
        result = types.UniTuple(kind, count)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            zero = ir.Constant(context.get_value_type(kind), 0)
            return context.make_tuple(builder, result, [zero] * count)

        return result(), codegen

    return intrinsic(typer)
