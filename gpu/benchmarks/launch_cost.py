"""What it costs the host to start kernels: calls, plans and graphs of the same small problems, in one run.

    python gpu/benchmarks/launch_cost.py

On a GPU the times are those after which the host is free again, and the problems are so small that the device
never falls behind by much. On the emulator they contain the emulator's own launches, which compute; the last
table, which needs no device, has what numba-cuda and a bound launch do before they reach the driver.
"""
# ruff: noqa: INP001

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import dnncanon.gpu as gpu
from dnncanon.gpu.runtime import device, kernel

ROUNDS, SECONDS = 7, 0.05
"""The best of so many rounds counts, each of which takes at least so long."""


def microseconds(call: Callable[[], Any]) -> float:
    """Of one call, without waiting for what it has started."""
    call()
    return min(_round(call) for _ in range(ROUNDS))


def _round(call: Callable[[], Any]) -> float:
    device().synchronize()
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        call()
        calls += 1
    elapsed = time.perf_counter() - begin
    device().synchronize()
    return 1e6 * elapsed / calls


# --- Calls, plans, graphs -------------------------------------------------------------------------


def problems() -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """A primitive, its tensors, its attributes."""
    generator = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return gpu.to_device(generator.standard_normal(shape).astype(np.float32))

    yield "activation_forward", (drawn(64),), {"mode": "relu"}
    yield "softmax_forward", (drawn(4, 64),), {}
    yield "matmul_forward", (drawn(16, 16), drawn(16, 16)), {}
    yield "conv_forward", (drawn(1, 4, 6, 6), drawn(4, 4, 3, 3)), {"padding": 1}
    yield (
        "batch_norm_forward_training",
        (drawn(4, 4, 6), drawn(4), drawn(4)),
        {"algorithm": "two_pass"},
    )


def rows() -> Iterator[tuple[str, ...]]:
    for name, tensors, attributes in problems():
        function = getattr(gpu, name)
        plan = gpu.execution_plan(name, *tensors, **attributes)
        graph = plan.graph()
        out = plan.results
        call = microseconds(lambda: function(*tensors, out=out, **attributes))  # noqa: B023
        planned, replayed = microseconds(plan), microseconds(graph)
        yield (
            name,
            str(len(plan)),
            f"{call:.1f}",
            f"{planned:.1f}",
            f"{replayed:.1f}",
            f"{planned / len(plan):.1f}",
            f"{call / planned:.1f}",
        )


# --- The way to the driver, without one -----------------------------------------------------------


@kernel
def _three_arrays(x: Any, y: Any, z: Any, count: Any) -> None:
    for index in range(count):
        z[index] = x[index] + y[index]


def _nothing(*words: Any) -> None:
    """Where the driver would begin."""


def _loaded(library: Any) -> Any:
    """A kernel that is on the device, as it were."""
    return _ON_DEVICE


_ON_DEVICE = SimpleNamespace(kernel=None)


@contextmanager
def no_driver() -> Iterator[None]:
    """A GPU that can be compiled for, and launches that end where the driver would begin."""
    from numba import cuda
    from numba.cuda import codegen, dispatcher

    gpu_of_none = SimpleNamespace(compute_capability=(9, 0), id=0)
    context = SimpleNamespace(device=gpu_of_none)
    with (
        mock.patch.object(cuda, "get_current_device", return_value=gpu_of_none),
        mock.patch.object(dispatcher, "get_current_device", return_value=gpu_of_none),
        mock.patch.object(codegen.devices, "get_context", return_value=context),
        mock.patch.object(codegen.CUDACodeLibrary, "get_cufunc", _loaded),
        mock.patch.object(dispatcher, "launch", _nothing),
    ):
        yield


def host_rows() -> Iterator[tuple[str, str]]:
    """Microseconds of a launch of three arrays and a number, up to the driver."""
    from numba.cuda.cudadrv import devicearray, driver

    from dnncanon.gpu.runtime import cuda_kernels

    memory = driver.MemoryPointer(None, driver.binding.CUdeviceptr(4096), size=4096, owner=1)
    arrays = [
        devicearray.DeviceNDArray((1024,), (4,), np.dtype(np.float32), gpu_data=memory)
        for _ in range(3)
    ]
    args, extents = (*arrays, 1024), ((8, 1, 1), (128, 1, 1))
    with no_driver():
        dispatcher = cuda_kernels.dispatcher_of(_three_arrays)
        compiled = dispatcher.compile(tuple(map(dispatcher.typeof_pyval, args)))
        bound = cuda_kernels.BoundLaunch(compiled, *extents, args, 0)
        stream = object()
        with mock.patch.object(cuda_kernels, "core_stream", lambda stream: stream):
            marshalled = microseconds(lambda: compiled.launch(args, *extents, stream, 0))
            yield "numba-cuda, its kernel found already", f"{marshalled:.2f}"
            yield "a bound launch", f"{microseconds(lambda: bound(stream)):.2f}"


def table(header: tuple[str, ...], lines: Iterator[tuple[str, ...]]) -> None:
    print("| " + " | ".join(header) + " |")
    print("|" + " --- |" * len(header))
    for line in lines:
        print("| " + " | ".join(line) + " |", flush=True)
    print()


def main() -> None:
    print(f"Microseconds on {device().name}:\n")
    header = ("primitive", "launches", "call", "plan", "graph", "plan, each launch", "call / plan")
    table(header, rows())
    print("Microseconds of the host for one launch, up to the driver:\n")
    table(("launch", "µs"), host_rows())


if __name__ == "__main__":
    main()
