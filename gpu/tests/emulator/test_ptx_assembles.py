"""Every entry of the instruction table is PTX that NVIDIA's assembler accepts for sm_90a.

This runs libNVVM and nvJitLink, which need no GPU; what the instructions *do* on a GPU it does not
show.
"""

from __future__ import annotations

import warnings

import pytest
from numba import cuda
from numba.cuda import types

from dnncanon.gpu import ptx
from dnncanon.gpu.emulator.instructions import scalar as ops
from dnncanon.gpu.emulator.instructions import table as instructions
from dnncanon.gpu.emulator.instructions.table import Instruction, Scope

nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink")

_KINDS = {
    "h": types.uint16, "r": types.uint32, "l": types.uint64, "f": types.float32,
    "d": types.float64,
}  # fmt: skip

# Entries that functions of `ptx` make on demand: one of each variety.
ptx.cp_async_wait_group(0)
ptx.bulk_wait_group(0)
ptx.set_max_registers(40, False)
ptx.wgmma(64)
ptx.wgmma(256, "bf16", trans_b=True)
ptx.wgmma(64, a_in_registers=True)
ptx.wgmma(64, "tf32")
ptx.wgmma(64, "e4m3")
ptx.wgmma_wait_group(0, 32)

ENTRIES = [e for e in instructions.entries() if set(e.inputs + e.outputs) <= set(_KINDS)]


def assemble(entry):
    """Compile a function that executes the entry; raises with the assembler's message."""
    arity = len(entry.inputs)
    names = ", ".join(f"a{i}" for i in range(arity))
    scope = {"call": ptx.instruction_function(entry, arity)}
    exec(f"def function({names}):\n    return call({names})\n", scope)
    signature = tuple(_KINDS[c] for c in entry.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text, _ = cuda.compile(
            scope["function"], signature, device=True, abi="numba", cc=(9, 0, "a")
        )
    handle = nvjitlink.create(1, ["-arch=sm_90a"])
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text.encode(), len(text), "entry")
        nvjitlink.complete(handle)
        return nvjitlink.get_linked_cubin_size(handle)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        raise AssertionError(log.decode(errors="replace")) from error
    finally:
        nvjitlink.destroy(handle)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.text[:60])
def test_entry_assembles(entry):
    assert assemble(entry) > 0


def test_the_test_can_fail():
    wrong = Instruction("lop4.b32 $0, $1;", "r", "r", ops.bfind_shift, Scope.VALUE)
    try:
        with pytest.raises(AssertionError, match="lop4"):
            assemble(wrong)
    finally:
        instructions.forget(wrong)
