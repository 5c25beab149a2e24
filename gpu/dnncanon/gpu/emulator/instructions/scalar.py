# mypy: ignore-errors
"""How the emulator executes PTX instructions that concern one lane: conversions, packing,
approximate functions, special registers, vector loads and stores.

Approximate instructions (`ex2.approx`, `tanh.approx`, …) are computed accurately and rounded once;
a GPU's last bits differ.
"""

from __future__ import annotations

from dnncanon.gpu.emulator.machine.access import READ, WRITE, shared_pointer, touch
from dnncanon.gpu.emulator.machine.fibers import yield_now
from dnncanon.gpu.emulator.machine.state import Thread
from dnncanon.gpu.emulator.native import (
    NativeFunction,
    Type,
    bitcast,
    cos,
    exp2,
    external,
    f16,
    f32,
    f64,
    fabs,
    fma,
    i8,
    i32,
    i64,
    leading_zeros,
    log2,
    maximum,
    minimum,
    native,
    ptr,
    round_even,
    saturating,
    sin,
    sqrt,
    u8,
    u16,
    u32,
    u64,
    void,
)

tanh_double = external("tanh", f64, f64)
PURE = "memory(none)"


# ---- Conversions between float32 and 16-bit formats (as bits), round to nearest even
@native("emu.f32_to_f16", inline=True, attributes=PURE)
def f32_to_f16(x: f32) -> u16:
    return bitcast(u16, f16(x))


@native("emu.f64_to_f16", inline=True, attributes=PURE)
def f64_to_f16(x: f64) -> u16:
    """Through float32 with rounding to odd, which makes the double rounding harmless."""
    near = f32(x)
    bits = bitcast(u32, near)
    inexact = f64(near) != x and x == x
    above = fabs(f64(near)) > fabs(x)
    odd = ((bits - 1) if above else bits) | 1
    return bitcast(u16, f16(bitcast(f32, odd if inexact else bits)))


@native("emu.f16_to_f32", inline=True, attributes=PURE)
def f16_to_f32(bits: u16) -> f32:
    return f32(bitcast(f16, bits))


@native("emu.f16_to_f64", inline=True, attributes=PURE)
def f16_to_f64(bits: u16) -> f64:
    return f64(f32(bitcast(f16, bits)))


@native("emu.f32_to_bf16", inline=True, attributes=PURE)
def f32_to_bf16(x: f32) -> u16:
    """Round to nearest even on the upper half; NaN gives the canonical 0x7FFF."""
    bits = bitcast(u32, x)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return u16(0x7FFF) if x != x else u16(rounded)


@native("emu.bf16_to_f32", inline=True, attributes=PURE)
def bf16_to_f32(bits: u16) -> f32:
    return bitcast(f32, u32(bits) << 16)


@native("emu.f32_to_tf32", inline=True, attributes=PURE)
def f32_to_tf32(x: f32) -> u32:
    """cvt.rna: ten mantissa bits, ties away from zero. Infinities and NaN keep their bits."""
    bits = bitcast(u32, x)
    special = bits & 0x7F800000 == 0x7F800000
    return bits if special else (bits + 0x1000) & 0xFFFFE000


@native("emu.f32_to_tf32_rn", inline=True, attributes=PURE)
def f32_to_tf32_rn(x: f32) -> u32:
    bits = bitcast(u32, x)
    special = bits & 0x7F800000 == 0x7F800000
    return bits if special else (bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000


@native("emu.pack_f16x2", inline=True, attributes=PURE)
def pack_f16x2(high: f32, low: f32) -> u32:
    return (u32(f32_to_f16(high)) << 16) | u32(f32_to_f16(low))


@native("emu.pack_bf16x2", inline=True, attributes=PURE)
def pack_bf16x2(high: f32, low: f32) -> u32:
    return (u32(f32_to_bf16(high)) << 16) | u32(f32_to_bf16(low))


# ---- 8-bit floating point
@native("emu.e4m3_to_f32", attributes=PURE)
def e4m3_to_f32(code: u32) -> f32:
    """1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities, S.1111.111 is NaN."""
    sign = (code & 0x80) << 24
    exponent = (code >> 3) & 15
    mantissa = code & 7
    if code & 0x7F == 0x7F:
        return bitcast(f32, sign | 0x7FC00000)
    if exponent == 0:
        value = f32(mantissa) * 0.001953125  # 2^-9
        return -value if sign != 0 else value
    return bitcast(f32, sign | ((exponent + 120) << 23) | (mantissa << 20))


@native("emu.e5m2_to_f32", attributes=PURE)
def e5m2_to_f32(code: u32) -> f32:
    """The upper half of a float16."""
    return f32(bitcast(f16, u16(code << 8)))


@native("emu.f32_to_e4m3", attributes=PURE)
def f32_to_e4m3(x: f32) -> u32:
    """Round to nearest even, saturating at ±448 (cvt.rn.satfinite)."""
    bits = bitcast(u32, x)
    sign = (bits >> 24) & 0x80
    magnitude = fabs(x)
    if x != x:
        return sign | 0x7F
    if magnitude >= 448.0:
        return sign | 0x7E
    if magnitude < 0.015625:  # 2^-6: subnormal results, in units of 2^-9
        return sign | u32(round_even(magnitude * 512.0))
    rounded = bitcast(u32, magnitude)
    rounded = rounded + 0x7FFFF + ((rounded >> 20) & 1)
    code = (rounded >> 20) - (120 << 3)
    return sign | (code if code < 0x7E else u32(0x7E))


@native("emu.f32_to_e5m2", attributes=PURE)
def f32_to_e5m2(x: f32) -> u32:
    """Round to nearest even, saturating at ±57344."""
    bits = bitcast(u32, x)
    sign = (bits >> 24) & 0x80
    magnitude = fabs(x)
    if x != x:
        return sign | 0x7F
    if magnitude >= 57344.0:
        return sign | 0x7B
    if magnitude < 6.103515625e-05:  # 2^-14: subnormal results, in units of 2^-16
        return sign | u32(round_even(magnitude * 65536.0))
    rounded = bitcast(u32, magnitude)
    rounded = rounded + 0xFFFFF + ((rounded >> 21) & 1)
    code = (rounded >> 21) - (112 << 2)
    return sign | (code if code < 0x7B else u32(0x7B))


@native("emu.pack_e4m3x2", attributes=PURE)
def pack_e4m3x2(high: f32, low: f32) -> u16:
    return u16((f32_to_e4m3(high) << 8) | f32_to_e4m3(low))


@native("emu.pack_e5m2x2", attributes=PURE)
def pack_e5m2x2(high: f32, low: f32) -> u16:
    return u16((f32_to_e5m2(high) << 8) | f32_to_e5m2(low))


@native("emu.unpack_e4m3x2", attributes=PURE)
def unpack_e4m3x2(codes: u16) -> u32:
    """Two e4m3 codes as two float16."""
    low = f32_to_f16(e4m3_to_f32(u32(codes) & 0xFF))
    return (u32(f32_to_f16(e4m3_to_f32(u32(codes) >> 8))) << 16) | u32(low)


@native("emu.unpack_e5m2x2", attributes=PURE)
def unpack_e5m2x2(codes: u16) -> u32:
    return ((u32(codes) & 0xFF00) << 16) | ((u32(codes) & 0xFF) << 8)


@native("emu.f32_to_s8", inline=True, attributes=PURE)
def f32_to_s8(x: f32) -> u32:
    """cvt.rni.sat.s8.f32: nearest even, saturating; the result is sign-extended."""
    return u32(i32(saturating(i8, round_even(x))))


@native("emu.f32_to_s32_rni", inline=True, attributes=PURE)
def f32_to_s32_rni(x: f32) -> u32:
    return u32(saturating(i32, round_even(x)))


@native("emu.f32_to_s64_rni", inline=True, attributes=PURE)
def f32_to_s64_rni(x: f32) -> u64:
    """Nearest even, saturating; PTX gives the least integer for a NaN where 64 bits are involved."""
    whole = u64(saturating(i64, round_even(x)))
    return whole if x == x else u64(0x8000000000000000)


@native("emu.f64_to_s64_rni", inline=True, attributes=PURE)
def f64_to_s64_rni(x: f64) -> u64:
    whole = u64(saturating(i64, round_even(x)))
    return whole if x == x else u64(0x8000000000000000)


# ---- Approximate functions
@native("emu.ex2", inline=True, attributes=PURE)
def ex2(x: f32) -> f32:
    return f32(exp2(f64(flush(x))))


@native("emu.lg2", inline=True, attributes=PURE)
def lg2(x: f32) -> f32:
    return f32(log2(f64(flush(x))))


@native("emu.rcp", inline=True, attributes=PURE)
def rcp(x: f32) -> f32:
    return flush(f32(f64(1.0) / f64(flush(x))))


@native("emu.rsqrt", inline=True, attributes=PURE)
def rsqrt(x: f32) -> f32:
    return f32(f64(1.0) / sqrt(f64(flush(x))))


@native("emu.sqrt_approx", inline=True, attributes=PURE)
def sqrt_approx(x: f32) -> f32:
    return f32(sqrt(f64(flush(x))))


@native("emu.sin_approx", inline=True, attributes=PURE)
def sin_approx(x: f32) -> f32:
    return f32(sin(f64(flush(x))))


@native("emu.cos_approx", inline=True, attributes=PURE)
def cos_approx(x: f32) -> f32:
    return f32(cos(f64(flush(x))))


@native("emu.tanh_approx", inline=True)
def tanh_approx(x: f32) -> f32:
    return f32(tanh_double(f64(x)))


@native("emu.flush", inline=True, attributes=PURE)
def flush(x: f32) -> f32:
    """A subnormal becomes a zero of its sign."""
    bits = bitcast(u32, x)
    return bitcast(f32, bits & 0x80000000) if bits & 0x7F800000 == 0 else x


@native("emu.rcp_double", inline=True, attributes=PURE)
def rcp_double(x: f64) -> f64:
    return f64(1.0) / x


@native("emu.rsqrt_double", inline=True, attributes=PURE)
def rsqrt_double(x: f64) -> f64:
    return f64(1.0) / sqrt(x)


@native("emu.fma_rn", inline=True, attributes=PURE)
def fma_rn(a: f32, b: f32, c: f32) -> f32:
    return fma(a, b, c)


@native("emu.mul_rn", inline=True, attributes=PURE)
def mul_rn(a: f32, b: f32) -> f32:
    return a * b


@native("emu.add_rn", inline=True, attributes=PURE)
def add_rn(a: f32, b: f32) -> f32:
    return a + b


@native("emu.max_f32", inline=True, attributes=PURE)
def max_f32(a: f32, b: f32) -> f32:
    return maximum(a, b)


@native("emu.min_f32", inline=True, attributes=PURE)
def min_f32(a: f32, b: f32) -> f32:
    return minimum(a, b)


@native("emu.dp4a", inline=True, attributes=PURE)
def dp4a(a: u32, b: u32, c: u32) -> u32:
    """Four signed bytes by four signed bytes, added to c."""
    total = i32(c)
    for k in range(4):
        total += i32(i8(a >> u32(8 * k))) * i32(i8(b >> u32(8 * k)))
    return u32(total)


@native("emu.mul_wide_u32", inline=True, attributes=PURE)
def mul_wide_u32(a: u32, b: u32) -> u64:
    return u64(a) * u64(b)


# ---- float16 pairs
@native("emu.half_of", inline=True, attributes=PURE)
def half_of(pair: u32, index: u32) -> f32:
    return f32(bitcast(f16, u16(pair >> (index * 16))))


@native("emu.hfma2", inline=True, attributes=PURE)
def hfma2(a: u32, b: u32, c: u32) -> u32:
    """fma.rn.f16x2: the product and sum of halves are exact in double."""
    result = u32(0)
    for k in range(2):
        exact = f64(half_of(a, u32(k))) * f64(half_of(b, u32(k))) + f64(half_of(c, u32(k)))
        result = result | (u32(f64_to_f16(exact)) << u32(16 * k))
    return result


@native("emu.hmul2", inline=True, attributes=PURE)
def hmul2(a: u32, b: u32) -> u32:
    low = f32_to_f16(half_of(a, u32(0)) * half_of(b, u32(0)))
    return (u32(f32_to_f16(half_of(a, u32(1)) * half_of(b, u32(1)))) << 16) | u32(low)


@native("emu.hadd2", inline=True, attributes=PURE)
def hadd2(a: u32, b: u32) -> u32:
    low = f32_to_f16(half_of(a, u32(0)) + half_of(b, u32(0)))
    return (u32(f32_to_f16(half_of(a, u32(1)) + half_of(b, u32(1)))) << 16) | u32(low)


# ---- Special registers and hints
@native("emu.lanemask_lt", inline=True)
def lanemask_lt(thread: ptr(Thread), site: u32) -> u32:
    return (u32(1) << thread.lane) - 1


@native("emu.lane_id", inline=True)
def lane_id(thread: ptr(Thread), site: u32) -> u32:
    return thread.lane


@native("emu.dynamic_shared_bytes", inline=True)
def dynamic_shared_bytes(thread: ptr(Thread), site: u32) -> u32:
    return thread.block.dynamic_bytes


@native("emu.nothing", inline=True)
def nothing(thread: ptr(Thread), site: u32) -> void:
    """A hint without effect on results."""


@native("emu.pause", inline=True)
def pause(thread: ptr(Thread), site: u32, nanoseconds: u32) -> void:
    yield_now(thread, site)


@native("emu.shared_offset", inline=True)
def shared_offset(thread: ptr(Thread), site: u32, address: u64) -> u64:
    """cvta.to.shared."""
    return address - u64(thread.block.shared)


# ---- Vector loads and stores (each word of 4 bytes)
@native("emu.load_words", inline=True)
def load_words(
    thread: ptr(Thread), site: u32, outputs: ptr(u64), place: ptr(u8), count: u32
) -> void:
    words = ptr(u32)(touch(thread, place, count * 4, site, u32(READ)))
    for k in range(count):
        outputs[k] = u64(words[k])


@native("emu.load_global_v4", inline=True)
def load_global_v4(thread: ptr(Thread), site: u32, outputs: ptr(u64), address: u64) -> void:
    load_words(thread, site, outputs, ptr(u8)(address), u32(4))


@native("emu.load_global_v2", inline=True)
def load_global_v2(thread: ptr(Thread), site: u32, outputs: ptr(u64), address: u64) -> void:
    load_words(thread, site, outputs, ptr(u8)(address), u32(2))


@native("emu.load_shared_v4", inline=True)
def load_shared_v4(thread: ptr(Thread), site: u32, outputs: ptr(u64), address: u32) -> void:
    load_words(thread, site, outputs, shared_pointer(thread, address), u32(4))


@native("emu.load_shared_v2", inline=True)
def load_shared_v2(thread: ptr(Thread), site: u32, outputs: ptr(u64), address: u32) -> void:
    load_words(thread, site, outputs, shared_pointer(thread, address), u32(2))


@native("emu.load_shared_v2_f64", inline=True)
def load_shared_v2_f64(thread: ptr(Thread), site: u32, outputs: ptr(u64), address: u32) -> void:
    words = ptr(u64)(touch(thread, shared_pointer(thread, address), u32(16), site, u32(READ)))
    outputs[0] = words[0]
    outputs[1] = words[1]


@native("emu.store_v4", inline=True)
def store_v4(
    thread: ptr(Thread), site: u32, place: ptr(u8), a: u32, b: u32, c: u32, d: u32
) -> void:
    words = ptr(u32)(touch(thread, place, u32(16), site, u32(WRITE)))
    words[0] = a
    words[1] = b
    words[2] = c
    words[3] = d


@native("emu.store_global_v4", inline=True)
def store_global_v4(
    thread: ptr(Thread), site: u32, address: u64, a: u32, b: u32, c: u32, d: u32
) -> void:
    store_v4(thread, site, ptr(u8)(address), a, b, c, d)


@native("emu.store_shared_v4", inline=True)
def store_shared_v4(
    thread: ptr(Thread), site: u32, address: u32, a: u32, b: u32, c: u32, d: u32
) -> void:
    store_v4(thread, site, shared_pointer(thread, address), a, b, c, d)


@native("emu.store_global_v2", inline=True)
def store_global_v2(thread: ptr(Thread), site: u32, address: u64, a: u32, b: u32) -> void:
    words = ptr(u32)(touch(thread, ptr(u8)(address), u32(8), site, u32(WRITE)))
    words[0] = a
    words[1] = b


@native("emu.store_shared_v2", inline=True)
def store_shared_v2(thread: ptr(Thread), site: u32, address: u32, a: u32, b: u32) -> void:
    words = ptr(u32)(touch(thread, shared_pointer(thread, address), u32(8), site, u32(WRITE)))
    words[0] = a
    words[1] = b


@native("emu.load_global_u32", inline=True)
def load_global_u32(thread: ptr(Thread), site: u32, address: u64) -> u32:
    return ptr(u32)(touch(thread, ptr(u8)(address), u32(4), site, u32(READ)))[0]


@native("emu.store_global_u32", inline=True)
def store_global_u32(thread: ptr(Thread), site: u32, address: u64, value: u32) -> void:
    words = ptr(u32)(touch(thread, ptr(u8)(address), u32(4), site, u32(WRITE)))
    words[0] = value


def load_global(kind: Type) -> NativeFunction:
    """ld.global with a cache hint: one element of `kind`."""
    kind_size = kind.size

    @native(f"emu.load_global.{kind.name}", inline=True)
    def execute(thread: ptr(Thread), site: u32, address: u64) -> kind:
        place = touch(thread, ptr(u8)(address), u32(kind_size), site, u32(READ))
        return ptr(kind)(place)[0]

    return execute


def store_global(kind: Type) -> NativeFunction:
    """st.global with a cache hint."""
    kind_size = kind.size

    @native(f"emu.store_global.{kind.name}", inline=True)
    def execute(thread: ptr(Thread), site: u32, address: u64, value: kind) -> void:
        place = ptr(kind)(touch(thread, ptr(u8)(address), u32(kind_size), site, u32(WRITE)))
        place[0] = value

    return execute


def load_shared(kind: Type) -> NativeFunction:
    """ld.shared: one element of `kind`."""
    kind_size = kind.size

    @native(f"emu.load_shared.{kind.name}", inline=True)
    def execute(thread: ptr(Thread), site: u32, address: u32) -> kind:
        place = touch(thread, shared_pointer(thread, address), u32(kind_size), site, u32(READ))
        return ptr(kind)(place)[0]

    return execute


def store_shared(kind: Type, register: Type) -> NativeFunction:
    """st.shared: one element of `kind`, the low bits of a register."""
    kind_size = kind.size

    @native(f"emu.store_shared.{kind.name}", inline=True)
    def execute(thread: ptr(Thread), site: u32, address: u32, value: register) -> void:
        place = touch(thread, shared_pointer(thread, address), u32(kind_size), site, u32(WRITE))
        ptr(kind)(place)[0] = kind(register(value))

    return execute


def half_to_integer(kind: Type) -> NativeFunction:
    """cvt.rni: nearest even, saturating."""

    @native(f"emu.half_to.{kind.name}", inline=True, attributes=PURE)
    def execute(bits: u16) -> kind:
        return saturating(kind, round_even(f32(bitcast(f16, bits))))

    return execute


def integer_to_half(kind: Type) -> NativeFunction:
    """Exact in double up to 53 bits, and larger integers overflow float16 anyway."""

    @native(f"emu.half_from.{kind.name}", inline=True, attributes=PURE)
    def execute(value: kind) -> u16:
        return f64_to_f16(f64(kind(value)))

    return execute


# ---- Pieces of libdevice
@native("emu.bfind_shift", inline=True, attributes=PURE)
def bfind_shift(x: u32) -> u32:
    """bfind.shiftamt: how far left the highest set bit could be shifted; all ones for 0."""
    return u32(0xFFFFFFFF) if x == 0 else leading_zeros(x)


@native("emu.select_equal", inline=True, attributes=PURE)
def select_equal(a: f64, b: f64, c: f64, d: f64) -> f64:
    """setp.equ: equal or unordered."""
    return c if a == b or a != a or b != b else d
