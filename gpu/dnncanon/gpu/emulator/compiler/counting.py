# mypy: ignore-errors
"""Profile mode: which kind of work an instruction is, and the counter of basic blocks.

Counts are of LLVM's IR after inlining, not of a GPU's machine code: of flops exact, of instructions
indicative.
"""

from __future__ import annotations

import re
from collections import Counter

from dnncanon.gpu.emulator.machine.state import Thread
from dnncanon.gpu.emulator.native import native, ptr, u32, u64, void

__all__ = ["classify", "count_block"]


@native("emu.count_block", inline=True)
def count_block(thread: ptr(Thread), number: u32) -> void:
    thread.worker.block_counts[u64(number)] += 1


_OPCODE = re.compile(r"^\s+(?:%\S+ = )?(?:(?:tail |musttail |notail )?(?P<call>call) |(?P<op>\w+))")
_CALLED = re.compile(r'@"?(?P<name>[\w.$-]+)"?\(')
_MMA = re.compile(r"\bw?g?mma\S*\.m(?P<m>\d+)n(?P<n>\d+)k(?P<k>\d+)")
_VECTOR = re.compile(r"<(\d+) x")
_FLOATS = {"fadd", "fsub", "fmul", "fdiv", "frem"}
_TYPES = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
_INTEGER = {
    "add", "sub", "mul", "shl", "lshr", "ashr", "and", "or", "xor", "icmp", "udiv", "sdiv", "srem",
    "urem", "trunc", "zext", "sext", "select",
}  # fmt: skip
_ADDRESS = {"getelementptr", "ptrtoint", "inttoptr"}
_MEMORY = {"load": "loads", "store": "stores", "atomicrmw": "atomics", "cmpxchg": "atomics"}
_IGNORED = {"phi", "ret", "alloca", "bitcast", "extractvalue", "insertvalue", "unreachable"}
_NAMED = (
    ("nv.barrier", "barriers"), ("nv.bar.warp", "warp_barriers"), ("nv.shfl", "shuffles"),
    ("nv.vote", "votes"), ("nv.match", "votes"), ("nv.atomic", "atomics"),
    ("___numba_atomic", "atomics"), ("__nv_", "libdevice_calls"), ("nv.membar", "fences"),
)  # fmt: skip


def classify(line: str) -> Counter[str]:
    """Kinds of work of one instruction, with amounts per execution by one thread."""
    match = _OPCODE.match(line)
    if match is None:
        return Counter()
    if match["call"]:
        return _classify_call(line)
    operation = match["op"]
    if operation in _IGNORED:
        return Counter()
    counts = Counter(instructions=1)
    if operation in _FLOATS:
        kind = next((k for k in _TYPES if re.search(rf"\b{k}\b", line)), "float")
        lanes = _VECTOR.search(line)
        counts[f"flops_{_TYPES[kind]}"] = int(lanes.group(1)) if lanes else 1
    elif operation in _INTEGER:
        counts["integer"] = 1
    elif operation in _ADDRESS:
        counts["address"] = 1
    elif operation in _MEMORY:
        counts[_MEMORY[operation]] = 1
    elif operation in ("br", "switch"):
        counts["branches"] = 1
    else:
        counts["other"] = 1
    return counts


def _classify_call(line: str) -> Counter[str]:
    if " asm " in line:
        return _classify_ptx(line)
    match = _CALLED.search(line)
    name = match["name"] if match else ""
    if name.startswith(("llvm.dbg", "llvm.lifetime", "llvm.assume", "emu.")):
        return Counter()
    if name.startswith("nv.read.ptx.sreg"):
        return Counter(instructions=1, other=1)
    counts = Counter(instructions=1)
    if "llvm.fma" in name or "llvm.fmuladd" in name or name.startswith(("nv.fma", "__nv_fma")):
        counts["flops_f64" if "64" in name or name == "__nv_fma" else "flops_f32"] = 2
        return counts
    for prefix, kind in _NAMED:
        if name.startswith(prefix):
            counts[kind] = 1
            return counts
    counts["other"] = 1
    return counts


def _classify_ptx(line: str) -> Counter[str]:
    counts = Counter(instructions=1, inline_ptx=1)
    mma = _MMA.search(line)
    if mma:  # a warp executes an mma, a warpgroup a wgmma; each lane counts its share
        lanes = 128 if "wgmma" in line else 32
        m, n, k = (int(mma[c]) for c in "mnk")
        counts["flops_tensor_core"] = 2 * m * n * k // lanes
    return counts
