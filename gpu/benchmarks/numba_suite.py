"""Run numba-cuda's own `cudapy` tests on the emulator and count what passes.

    python gpu/benchmarks/numba_suite.py [--modules test_atomics test_warp_ops …] [--failures FILE]

numba.cuda is patched, in this process only: launches go to the emulator, device arrays are NumPy
arrays. Modules about drivers, caches, debug information, inspection of machine code, and linking
are left out by name, since they do not test what kernels compute. Each module runs in a process of
its own, with a time limit.
"""

# ruff: noqa: INP001

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import subprocess
import sys
import time
import unittest
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TESTS = "numba.cuda.tests.cudapy"
LEFT_OUT = {
    "drivers, streams, processes": "cuda_array_interface device_array_capture ipc multigpu "
    "multiprocessing multithreads stream_api serialize cupy_bfloat16_interop cffi",
    "compiling and caching": "array_alignment caching cache_hints compiler alignment ir ir_utils "
    "analysis byteflow copy_propagate ssa make_function_to_jit_function tracing typeinfer "
    "launch_config_sensitive",
    "debugging and inspection": "debug debuginfo debuginfo_types lineinfo inspect userexc exception "
    "errors warning dispatcher",
    "memory management on the device (NRT)": "array_reductions array_methods",
    "C++ bindings": "bfloat16_bindings fp8_bindings bfloat16",
}
TIMEOUT = 300


def install() -> None:
    """Make numba.cuda launch on the emulator."""
    sys.path.insert(0, str(ROOT))
    import numpy as np
    from numba import cuda
    from numba.cuda import dispatcher

    from dnncanon.gpu.emulator import launch
    from dnncanon.gpu.emulator.compiler.acquire import acquire

    class DeviceArray(np.ndarray[Any, Any]):
        """Stands for memory of a device."""

        __cuda_ndarray__ = True

        def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
            if ary is None:
                return np.array(self, subok=False)
            np.copyto(ary, self.view(np.ndarray))
            return ary

        def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
            np.copyto(self.view(np.ndarray), np.asarray(ary))

        def is_c_contiguous(self) -> bool:
            return self.flags.c_contiguous

        def bind(self, stream: Any = 0) -> Any:
            return self

        @property
        def gpu_data(self) -> Any:
            return self

    class Device:
        name = b"emulator"
        compute_capability = (9, 0)
        id = 0
        WARP_SIZE = 32
        MAX_THREADS_PER_BLOCK = 1024
        MULTIPROCESSOR_COUNT = 132
        MAX_SHARED_MEMORY_PER_BLOCK = 49152
        MAX_GRID_DIM_X = 2**31 - 1

    class Stream:
        handle = 0

        def synchronize(self) -> None:
            pass

        @contextlib.contextmanager
        def auto_synchronize(self) -> Any:
            yield self

    class Event:
        seconds = 0.0

        def record(self, stream: Any = 0) -> None:
            self.seconds = time.perf_counter()

        def synchronize(self) -> None:
            pass

        def wait(self, stream: Any = 0) -> None:
            pass

        def query(self) -> bool:
            return True

        def elapsed_time(self, other: Any) -> float:
            return float(1e3 * (other.seconds - self.seconds))

    def host(value: Any) -> Any:
        if type(value).__name__ in ("In", "Out", "InOut"):
            value = value.value
        return value.view(np.ndarray) if isinstance(value, DeviceArray) else value

    def run(kernel: Any, grid: Any, block: Any, shared: int, args: Any) -> None:
        for extension in reversed(getattr(kernel, "extensions", None) or []):
            args = tuple(
                extension.prepare_args(kernel.typeof_pyval(a), a, stream=0, retr=[])[1]
                for a in args
            )
        args = [host(a) for a in args]
        signatures = kernel.__dict__.get("_signatures")
        kinds = signatures[0] if signatures and len(signatures) == 1 else None
        launch(
            kernel.py_func, grid, block, args, shared_bytes=int(shared or 0), strict=False,
            fastmath=bool(kernel.targetoptions.get("fastmath")),
            argument_types=kinds or [kernel.typeof_pyval(a) for a in args],
        )  # fmt: skip

    class Configured:
        def __init__(self, kernel: Any, grid: Any, block: Any, stream: Any, shared: int) -> None:
            self.kernel, self.griddim, self.blockdim = kernel, grid, block
            self.stream, self.sharedmem = stream, shared
            self.pre_launch_callbacks: list[Any] = []

        def __call__(self, *args: Any) -> None:
            run(self.kernel, self.griddim, self.blockdim, self.sharedmem, args)

    def configure(self: Any, grid: Any, block: Any, stream: Any = 0, sharedmem: int = 0) -> Any:
        return Configured(self, grid, block, stream, sharedmem)

    def for_all(self: Any, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
        if ntasks == 0:
            return lambda *args: None
        return Configured(self, -(-ntasks // (tpb or 128)), tpb or 128, stream, sharedmem)

    def compile_(self: Any, signature: Any) -> None:
        kinds = tuple(dispatcher.sigutils.normalize_signature(signature)[0])
        acquire(self.py_func, kinds, fastmath=False)  # for the errors of typing
        self.__dict__.setdefault("_signatures", []).append(kinds)

    def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> Any:
        if to is not None:
            np.copyto(to.view(np.ndarray), obj)
            return to
        return np.array(obj).view(DeviceArray)

    def device_array(shape: Any, dtype: Any = np.float64, order: Any = "C", **_: Any) -> Any:
        return np.empty(shape, dtype, order).view(DeviceArray)

    kind = dispatcher.CUDADispatcher
    kind.configure, kind.forall, kind.compile = configure, for_all, compile_
    kind.disable_compile = lambda self, val=True: None
    decorators: Any = importlib.import_module("numba.cuda.decorators")
    decorators._have_nvjitlink = lambda: False
    replacements: dict[str, Any] = {
        "to_device": to_device, "device_array": device_array, "pinned_array": device_array,
        "mapped_array": device_array, "managed_array": device_array,
        "device_array_like": lambda a, stream=0: np.empty_like(np.asarray(a)).view(DeviceArray),
        "synchronize": lambda: None, "stream": Stream, "default_stream": Stream,
        "event": lambda timing=True: Event(), "is_available": lambda: True,
        "event_elapsed_time": lambda a, b: a.elapsed_time(b), "get_current_device": Device,
        "as_cuda_array": lambda x, sync=True: x,
    }  # fmt: skip
    for name, value in replacements.items():
        setattr(cuda, name, value)
    dispatcher.get_current_device = Device
    devices: Any = importlib.import_module("numba.cuda.cudadrv.devices")
    context = type("Context", (), {"device": Device, "synchronize": lambda self: None})
    devices.get_context = lambda *a, **k: context()


def run_module(name: str) -> dict[str, Any]:
    """Counts of one test module, and the names of what failed."""
    warnings.simplefilter("ignore")
    install()
    suite = unittest.defaultTestLoader.loadTestsFromName(f"{TESTS}.{name}")
    result = unittest.TestResult()
    with contextlib.redirect_stdout(sys.stderr):
        suite.run(result)
    bad = {
        getattr(test, "test_case", test).id(): _reason(error)  # subtests count once
        for test, error in result.failures + result.errors
    }
    return {
        "passed": result.testsRun - len(bad) - len(result.skipped),
        "failed": len(bad),
        "skipped": len(result.skipped),
        "failures": list(bad.items()),
    }


def _reason(traceback: str) -> str:
    """The line of a traceback that says what was raised."""
    lines = [line for line in traceback.strip().split("\n") if line[:1].isalpha()]
    return next((line for line in reversed(lines) if "Error" in line or ":" in line), lines[-1])


def module_names() -> list[str]:
    """The modules to run."""
    package = importlib.import_module("numba_cuda")
    folder = Path(package.__file__ or "").parent / "numba" / "cuda" / "tests" / "cudapy"
    out = {f"test_{n}" for names in LEFT_OUT.values() for n in names.split()}
    return sorted(p.stem for p in folder.glob("test_*.py") if p.stem not in out)


def run_in_process(name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"passed": 0, "failed": 0, "skipped": 0, "failures": [[name, "time limit"]]}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"passed"')]
    if not lines:
        reason = done.stderr.strip().split("\n")[-1]
        return {"passed": 0, "failed": 0, "skipped": 0, "failures": [[name, f"died: {reason}"]]}
    counts: dict[str, Any] = json.loads(lines[-1])
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", nargs="*")
    parser.add_argument("--failures", type=Path, help="write what failed to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_module(options.one)), flush=True)
        return
    total = {"passed": 0, "failed": 0, "skipped": 0}
    failures = []
    for name in options.modules or module_names():
        counts = run_in_process(name)
        for kind in total:
            total[kind] += counts[kind]
        failures += [f"{name}: {test}: {error}" for test, error in counts["failures"]]
        print(f"{name:36}{counts['passed']:5} passed {counts['failed']:4} failed", flush=True)
    print(total)
    if options.failures:
        options.failures.write_text("\n".join(failures) + "\n")


if __name__ == "__main__":
    main()
