# mypy: ignore-errors
"""How the emulator executes the matrix instructions: ldmatrix, stmatrix, mma.sync.

Fragment layouts are those of the PTX ISA. With E elements in a 32-bit register, g = lane / 4 and
t = lane % 4, register i of A holds row g + 8·(i mod 2), columns (i div 2)·4E + t·E + e; register i
of B holds rows i·4E + t·E + e of column g; element i of C and D is row g + 8·(i div 2), column
2t + i mod 2. Products are summed in float32 (int32) with fused multiply-adds, in order of k; a
tensor core rounds differently.
"""

from __future__ import annotations

from functools import cache

from dnncanon.gpu.emulator.instructions.scalar import e4m3_to_f32, e5m2_to_f32, f32_to_f16
from dnncanon.gpu.emulator.machine.access import READ, WRITE, shared_pointer, touch
from dnncanon.gpu.emulator.machine.collectives import FULL_MASK
from dnncanon.gpu.emulator.machine.fibers import fail
from dnncanon.gpu.emulator.machine.state import Failure, Thread
from dnncanon.gpu.emulator.native import (
    NativeFunction,
    bitcast,
    f16,
    f32,
    f32x8,
    fma,
    i8,
    i32,
    i32x8,
    native,
    ptr,
    splat,
    stack_array,
    u8,
    u16,
    u32,
    u64,
    void,
)

BAD_OPERAND = int(Failure.BAD_OPERAND)


@native("emu.require_full_warp", inline=True)
def require_full_warp(thread: ptr(Thread), members: u32) -> void:
    if members != FULL_MASK:
        fail(thread, BAD_OPERAND, thread.site, members)


# ---- Elements of a register
@native("emu.element_f16", inline=True)
def element_f16(word: u32) -> f32:
    return f32(bitcast(f16, u16(word)))


@native("emu.element_bf16", inline=True)
def element_bf16(word: u32) -> f32:
    return bitcast(f32, word << 16)


@native("emu.element_tf32", inline=True)
def element_tf32(word: u32) -> f32:
    """The hardware ignores the low 13 bits."""
    return bitcast(f32, word & 0xFFFFE000)


@native("emu.element_e4m3", inline=True)
def element_e4m3(word: u32) -> f32:
    return e4m3_to_f32(word & 0xFF)


@native("emu.element_e5m2", inline=True)
def element_e5m2(word: u32) -> f32:
    return e5m2_to_f32(word & 0xFF)


@native("emu.element_s8", inline=True)
def element_s8(word: u32) -> i32:
    return i32(i8(word))


@native("emu.element_u8", inline=True)
def element_u8(word: u32) -> i32:
    return i32(u8(word))


@native("emu.fused_f32", inline=True)
def fused_f32(a: f32x8, b: f32x8, c: f32x8) -> f32x8:
    return fma(a, b, c)


@native("emu.fused_i32", inline=True)
def fused_i32(a: i32x8, b: i32x8, c: i32x8) -> i32x8:
    return a * b + c


ELEMENTS: dict[str, tuple[int, NativeFunction]] = {
    "f16": (16, element_f16),
    "bf16": (16, element_bf16),
    "tf32": (32, element_tf32),
    "e4m3": (8, element_e4m3),
    "e5m2": (8, element_e5m2),
    "s8": (8, element_s8),
    "u8": (8, element_u8),
}


@cache
def mma(depth: int, element: str, accumulator: str = "f32") -> NativeFunction:
    """Executor of mma.sync.m16n8k`depth`: D = A·B + C."""
    bits, decode = ELEMENTS[element]
    per_word = 32 // bits
    words_a = 16 * depth // (32 * per_word)
    words_b = 8 * depth // (32 * per_word)
    kind, vector = (i32, i32x8) if accumulator == "s32" else (f32, f32x8)
    fused = fused_i32 if accumulator == "s32" else fused_f32
    packed = accumulator == "f16"
    span = 4 * per_word
    first_b, first_c = words_a, words_a + words_b
    size_a, size_b = 16 * depth, 8 * depth

    @native(f"emu.mma.k{depth}.{element}.{accumulator}", attributes="noinline")
    def execute(thread: ptr(Thread), first: ptr(Thread), members: u32) -> void:
        require_full_warp(thread, members)
        a = stack_array(kind, size_a)
        b = stack_array(kind, size_b)
        c = stack_array(kind, 128)
        for lane in range(32):
            inputs = first[lane].inputs
            group = lane >> 2
            t = lane & 3
            for i in range(words_a):
                word = u32(inputs[i])
                start = (group + 8 * (i & 1)) * depth + (i >> 1) * span + t * per_word
                for e in range(per_word):
                    a[start + e] = decode(word >> u32(e * bits))
            for j in range(words_b):
                word = u32(inputs[first_b + j])
                row = j * span + t * per_word
                for h in range(per_word):
                    b[(row + h) * 8 + group] = decode(word >> u32(h * bits))
            for k in range(4):
                place = (group + 8 * (k >> 1)) * 8 + 2 * t + (k & 1)
                if packed:
                    pair = u32(inputs[first_c + (k >> 1)])
                    c[place] = element_f16(pair >> u32(16 * (k & 1)))
                else:
                    c[place] = bitcast(kind, u32(inputs[first_c + k]))
        rows = ptr(vector)(c)
        columns = ptr(vector)(b)
        for m in range(16):
            total = rows[m]
            for x in range(depth):
                total = fused(splat(vector, a[m * depth + x]), columns[x], total)
            rows[m] = total
        for q in range(32):
            outputs = first[q].outputs
            for y in range(4):
                value = c[((q >> 2) + 8 * (y >> 1)) * 8 + 2 * (q & 3) + (y & 1)]
                if packed:
                    half = u64(f32_to_f16(value)) << u64(16 * (y & 1))
                    outputs[y >> 1] = half if (y & 1) == 0 else outputs[y >> 1] | half
                else:
                    outputs[y] = u64(bitcast(u32, value))

    return execute


@cache
def ldmatrix(count: int, transposed: bool) -> NativeFunction:
    """Executor of ldmatrix.x`count`: lane 8k + r gives the address of row r of matrix k; lane l
    receives two 16-bit elements, of row l/4 (or, transposed, of column l/4)."""

    @native(f"emu.ldmatrix.{count}{'t' if transposed else ''}", attributes="noinline")
    def execute(thread: ptr(Thread), first: ptr(Thread), members: u32) -> void:
        require_full_warp(thread, members)
        rows = stack_array(u64, 8)
        for k in range(count):
            for r in range(8):
                owner = first[8 * k + r]
                place = shared_pointer(owner, u32(owner.inputs[0]))
                rows[r] = u64(touch(owner, place, u32(16), owner.site, u32(READ)))
            for lane in range(32):
                g = lane >> 2
                t = lane & 3
                if transposed:
                    low = ptr(u16)(rows[2 * t])[g]
                    high = ptr(u16)(rows[2 * t + 1])[g]
                    first[lane].outputs[k] = u64(low) | (u64(high) << 16)
                else:
                    first[lane].outputs[k] = u64(ptr(u32)(rows[g])[t])

    return execute


@cache
def stmatrix(count: int, transposed: bool) -> NativeFunction:
    """Executor of stmatrix: the inverse of ldmatrix. Inputs: address, then `count` registers."""

    @native(f"emu.stmatrix.{count}{'t' if transposed else ''}", attributes="noinline")
    def execute(thread: ptr(Thread), first: ptr(Thread), members: u32) -> void:
        require_full_warp(thread, members)
        rows = stack_array(u64, 8)
        for k in range(count):
            for r in range(8):
                owner = first[8 * k + r]
                place = shared_pointer(owner, u32(owner.inputs[0]))
                rows[r] = u64(touch(owner, place, u32(16), owner.site, u32(WRITE)))
            for lane in range(32):
                g = lane >> 2
                t = lane & 3
                word = u32(first[lane].inputs[1 + k])
                if transposed:
                    low = ptr(u16)(rows[2 * t])
                    high = ptr(u16)(rows[2 * t + 1])
                    low[g] = u16(word)
                    high[g] = u16(word >> 16)
                else:
                    row = ptr(u32)(rows[g])
                    row[t] = word

    return execute
