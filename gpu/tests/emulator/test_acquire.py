"""What the emulator relies on in numba-cuda, pinned: if one of these fails, a new version has
changed its private interface or the shape of its IR, and `acquire.py` or `lowering.py` must follow."""

from __future__ import annotations

import inspect
import platform
import re
from contextlib import nullcontext
from importlib import metadata

import numpy as np
import pytest
from llvmlite import ir
from llvmlite.ir import values
from numba import cuda, float32
from numba.cuda import compiler, dispatcher, types
from numba.cuda.cudadrv import libs, nvvm

from dnncanon.gpu.emulator import UnsupportedPlatform, launch
from dnncanon.gpu.emulator.compiler import engine
from dnncanon.gpu.emulator.compiler.acquire import SUPPORTED, acquire, check_version
from dnncanon.gpu.emulator.compiler.opaque import to_opaque
from dnncanon.gpu.emulator.launching.arguments import argument_type


@cuda.jit(device=True)
def device_function(x):
    return x * 2


def kernel(x, n):
    tile = cuda.shared.array(32, float32)
    dynamic = cuda.shared.array(0, float32)
    local = cuda.local.array(4, float32)
    i = cuda.grid(1)
    local[i % 4] = x[i]
    tile[i] = local[0]
    dynamic[i] = device_function(x[i])
    cuda.syncthreads()
    x[i] = cuda.shfl_xor_sync(0xFFFFFFFF, tile[i], 1) + n[0]
    cuda.atomic.add(x, 0, float32(1))


@pytest.fixture(scope="module")
def source():
    kinds = (types.Array(types.float32, 1, "C"), types.UniTuple(types.int64, 2))
    return acquire(kernel, kinds, fastmath=False)


def test_the_installed_version_is_supported():
    check_version()


@pytest.mark.parametrize("version", ["0.21.9", "0.31.0", "1.0.0"])
def test_other_versions_are_refused_in_one_sentence(version, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(UnsupportedPlatform, match=f"{version} is installed"):
        check_version()
    assert SUPPORTED == ((0, 22), (0, 31))


def test_other_platforms_are_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(UnsupportedPlatform, match="runs on x86-64 Linux only; this is aarch64"):
        engine._initialise.__wrapped__()


def test_private_compiler_entry_point():
    names = inspect.signature(compiler._compile_pyfunc_with_fixup).parameters
    assert {"lineinfo", "device", "fastmath", "cc", "opt", "abi", "debug"} <= set(names)


def test_device_functions_ask_the_dispatcher_module_for_the_device():
    assert callable(dispatcher.get_current_device)
    assert "get_current_device()" in inspect.getsource(dispatcher.CUDADispatcher.compile_device)


def test_compiling_leaves_numba_as_it_was(source):
    assert dispatcher.get_current_device.__module__.startswith("numba.cuda")
    assert dispatcher.CUDADispatcher.compile_device.__module__ == dispatcher.__name__


def test_modules_and_entry(source):
    assert len(source.modules) == 2  # the kernel's, and its device function's
    assert f'"{source.entry}"(' in source.modules[0]
    assert not any(
        "*" in line for line in source.modules[0].split("\n") if not line.startswith("!")
    )


@pytest.mark.parametrize(
    "text",
    [
        'define void @"',
        "= addrspace(3) global [32 x float]",
        "external addrspace(3) global [0 x float]",
        'addrspacecast ptr addrspace(3) @"_cudapy_smem',
        '%"_cudapy_lmem" = alloca [4 x float]',
        'store [4 x float] zeroinitializer, ptr %"_cudapy_lmem"',
        "mov.u32 $0, %dynamic_smem_size;",
        '@"llvm.nvvm.barrier0"()',
        '@"llvm.nvvm.shfl.sync.i32"(',
        '@"llvm.nvvm.read.ptx.sreg.tid.x"()',
        '@"llvm.nvvm.atomic.load.add.f32.p0',
        "!DILocation(",
        "!DISubprogram(",
        "!DIFile(",
    ],
)
def test_shapes_of_ir(source, text):
    assert text in source.modules[0]


def test_arrays_flatten_to_five_fields_and_two_per_axis():
    two = argument_type(np.zeros((2, 3), np.float32))

    def touch(x):
        x[0, 0] = 1

    text = acquire(touch, (two,), fastmath=False).modules[0]
    head = text[text.index("define void") :].split(")")[0]
    assert head.count("%") == 5 + 2 * 2


def test_atomic_templates_are_numbas():
    text = nvvm.llvm_replace(
        'declare double @"___numba_atomic_double_max"(double* %".1", double %".2")'
    )
    assert "define internal double @___numba_atomic_double_max" in to_opaque(text)


def test_libdevice_is_bitcode():
    assert libs.open_libdevice()[:2] == b"BC"


@pytest.mark.parametrize(
    ("typed", "opaque"),
    [
        ("float* %x", "ptr %x"),
        ("i8** %x", "ptr %x"),
        ("{i8*, i64, [2 x float*]}* %x", "ptr %x"),
        ("{i8*, i64} %x", "{ptr, i64} %x"),
        ("float addrspace(3)* @y", "ptr addrspace(3) @y"),
        ("[4 x float] addrspace(3)* @y to i8*", "ptr addrspace(3) @y to ptr"),
        ("bitcast (void (i8*, i64)* @f to i8*)", "bitcast (ptr @f to ptr)"),
        ("{i8*}* (i8*, i32*)** %f", "ptr %f"),
        ('!{ !"a * b", i8* null }', '!{ !"a * b", ptr null }'),
        ('%"struct a"* %x', "ptr %x"),
        ("<4 x float>* %v", "ptr %v"),
        ("mul i32 %a, 3", "mul i32 %a, 3"),
    ],
)
def test_typed_pointers_become_opaque(typed, opaque):
    assert to_opaque(typed) == opaque


def test_the_emulator_runs_what_is_pinned_here():
    x = np.arange(32, dtype=np.float32)

    def run(a):
        a[cuda.grid(1)] = device_function(a[cuda.grid(1)])

    launch(run, 1, 32, (x,))
    assert x.tolist() == (2 * np.arange(32)).tolist()


def test_what_is_remembered_while_acquiring_changes_nothing_in_the_ir(monkeypatch):
    """Nor is anything of it left afterwards."""

    def make():
        def kernel(x, pair):
            x[0] = pair[0] + pair[1] * cuda.threadIdx.x

        return kernel

    def modules():
        kinds = (types.Array(types.float32, 1, "C"), types.UniTuple(types.int64, 2))
        found = acquire(make(), kinds, fastmath=False).modules
        return [re.sub(r"\$\d+|B\d+v\d+", "", text) for text in found]

    hash_of_metadata, abi_size = values.DIValue.__hash__, ir.Type.get_abi_size
    remembering = modules()
    assert values.DIValue.__hash__ is hash_of_metadata
    assert ir.Type.get_abi_size is abi_size
    monkeypatch.setattr("dnncanon.gpu.emulator.compiler.acquire._remembering", nullcontext)
    assert modules() == remembering
