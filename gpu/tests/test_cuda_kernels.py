"""What the CUDA device does with kernels, as far as that needs no driver: compiling, keeping, marshalling."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import types


@kernel(launch_bounds=(128, 1))
def scaled(words: Any, ends: Any, factor: Any) -> None:
    for index in range(ends[0], ends[1]):
        words[index] = words[index] * factor


@pytest.fixture
def sm90(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that has a compute capability and nothing else."""
    from numba import cuda
    from numba.cuda import codegen, dispatcher

    device = SimpleNamespace(compute_capability=(9, 0), id=0)
    monkeypatch.setattr(cuda, "get_current_device", lambda: device)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)
    monkeypatch.setattr(
        codegen.devices, "get_context", lambda *args: SimpleNamespace(device=device)
    )


def compiled(kernel: Kernel, signature: tuple[Any, ...]) -> Any:
    """The kernel as numba-cuda has it after it went through our cache."""
    from dnncanon.gpu.runtime.cuda_kernels import dispatcher_of

    return dispatcher_of(kernel).compile(signature)


def signature() -> tuple[Any, ...]:
    from numba import types as numba_types

    words = numba_types.Array(numba_types.float32, 1, "C")
    return words, numba_types.UniTuple(numba_types.int64, 2), numba_types.float32


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.cuda import dispatcher

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("a kernel was compiled")

    monkeypatch.setattr(dispatcher, "compile_cuda", refuse)


IN_A_PROCESS = """
import hashlib
from types import SimpleNamespace
import dnncanon.gpu
from numba import cuda, types
from numba.cuda import codegen, dispatcher
from dnncanon.gpu.runtime.cuda_kernels import dispatcher_of
from dnncanon.gpu.runtime.launching import Kernel

sm90 = SimpleNamespace(compute_capability=(9, 0), id=0)
cuda.get_current_device = dispatcher.get_current_device = lambda: sm90
codegen.devices.get_context = lambda *args: SimpleNamespace(device=sm90)
compile_cuda, compiled = dispatcher.compile_cuda, []
dispatcher.compile_cuda = lambda *a, **o: compiled.append(1) or compile_cuda(*a, **o)


def scaled(words, factor):
    words[0] = words[0] * types.float16(factor)


signature = types.Array(types.float16, 1, "C"), types.float32
library = dispatcher_of(Kernel(scaled)).compile(signature)._codelibrary
print(len(compiled), hashlib.sha256(bytes(library.get_cubin().code)).hexdigest())
"""


def test_a_kernel_of_float16_is_compiled_by_one_process_only(tmp_path: Path) -> None:
    """Of numba-cuda's own float16, whose arithmetic it links from another file."""
    (tmp_path / "script.py").write_text(IN_A_PROCESS, encoding="utf-8")
    environment = {**os.environ, "DNNCANON_CACHE_DIR": str(tmp_path / "kernels")}
    said = [
        subprocess.run(
            [sys.executable, tmp_path / "script.py"],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for _ in range(2)
    ]
    (compiled_first, first), (compiled_then, then) = said
    assert int(compiled_first) > int(compiled_then) == 0
    assert first == then


@pytest.mark.usefixtures("sm90")
def test_what_is_kept_is_the_kernel_that_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_CACHE_DIR", str(tmp_path / "kernels"))
    first = compiled(scaled, signature())
    forbid_compiling(monkeypatch)
    second = compiled(scaled, signature())
    assert cubin(first).startswith(b"\x7fELF")
    assert cubin(first) == cubin(second)
    assert first.entry_name == second.entry_name


def cubin(kernel: Any) -> bytes:
    return bytes(kernel._codelibrary.get_cubin().code)


@pytest.mark.usefixtures("sm90")
def test_other_types_and_other_code_are_other_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_CACHE_DIR", str(tmp_path / "kernels"))
    words, ends, factor = signature()
    compiled(scaled, (words, ends, factor))
    forbid_compiling(monkeypatch)
    with pytest.raises(AssertionError, match="was compiled"):
        compiled(scaled, (words, ends, types.float64))
    with pytest.raises(AssertionError, match="was compiled"):
        compiled(Kernel(scaled.function), (words, ends, factor))


@pytest.mark.usefixtures("sm90")
def test_without_a_directory_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DNNCANON_CACHE_DIR", raising=False)
    compiled(scaled, signature())
    forbid_compiling(monkeypatch)
    with pytest.raises(AssertionError, match="was compiled"):
        compiled(scaled, signature())


@pytest.mark.usefixtures("sm90")
def test_a_bound_launch_passes_what_numba_cuda_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words in the same order as an ordinary launch, and none of its work at run time."""
    from numba.cuda import dispatcher

    from dnncanon.gpu.runtime import cuda_kernels

    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(dispatcher, "launch", lambda *words: started.append(words))
    monkeypatch.setattr(cuda_kernels, "core_stream", lambda stream: stream)
    compiled_kernel = compiled(scaled, signature())
    loaded = SimpleNamespace(kernel="the loaded kernel")
    monkeypatch.setattr(type(compiled_kernel._codelibrary), "get_cufunc", lambda library: loaded)
    args = (device_memory(0x7000, 40), (3, 9), 1.5)

    compiled_kernel.launch(args, (2, 1, 1), (128, 1, 1), "a stream", 64)
    bound = cuda_kernels.BoundLaunch(compiled_kernel, (2, 1, 1), (128, 1, 1), args, 64)
    monkeypatch.setattr(type(compiled_kernel), "_prepare_args", None)
    bound("a stream")

    ordinary, ours = started
    assert [plain(word) for word in ours] == [plain(word) for word in ordinary]
    assert plain(ours[3 + 4]) == 0x7000


def device_memory(pointer: int, count: int) -> Any:
    """Memory of a GPU that nobody looks into."""
    from numba.cuda.cudadrv import devicearray, driver

    memory = driver.MemoryPointer(
        None, driver.binding.CUdeviceptr(pointer), size=4 * count, owner=1
    )
    return devicearray.DeviceNDArray((count,), (4,), np.dtype(np.float32), gpu_data=memory)


def plain(word: Any) -> Any:
    """A word of a launch in a form that compares."""
    if hasattr(word, "grid"):
        return word.grid, word.block, word.shmem_size
    return int(word) if hasattr(word, "__int__") else getattr(word, "value", word)
