"""The run time: choice of the device, device arrays, the launch seam."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dnncanon.gpu import runtime
from dnncanon.gpu.runtime import DeviceError, kernel, launch
from dnncanon.gpu.runtime.streams import stream_handle
from dnncanon.spec import LayoutError, channels_last_strides

no_gpu = pytest.mark.skipif(runtime.has_gpu(), reason="asks what happens without a GPU")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``code`` in a Python of its own."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# --- Choice of the device -------------------------------------------------------------------------


def test_an_unknown_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "tpu")
    with pytest.raises(
        DeviceError, match="'tpu' is unknown; set it to one of auto, cuda, emulator"
    ):
        runtime.device()


@no_gpu
def test_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "cuda")
    with pytest.raises(DeviceError, match="no CUDA GPU"):
        runtime.device()


@no_gpu
def test_auto_says_once_that_it_emulates() -> None:
    code = "from dnncanon.gpu import runtime; print(runtime.device().name, runtime.device().name)"
    done = run(code, DNNCANON_DEVICE="auto")
    assert done.stdout == "CPU emulator CPU emulator\n"
    assert done.stderr.count("no CUDA GPU found") == 1
    assert done.stderr.count("\n") == 1


def test_the_choice_is_silent_when_it_is_named() -> None:
    code = "from dnncanon.gpu import runtime; print(runtime.device().name)"
    assert run(code, DNNCANON_DEVICE="emulator-check").stdout == "CPU emulator (check)\n"
    assert run(code, DNNCANON_DEVICE="emulator").stderr == ""


def test_importing_opens_nothing() -> None:
    code = "import sys, dnncanon.gpu; print([m for m in ('numba', 'torch') if m in sys.modules])"
    assert run(code, DNNCANON_DEVICE="cuda").stdout == "[]\n"


def test_without_numba_cuda_the_import_says_what_to_install() -> None:
    code = (
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'numba_cuda' else find(name, *a)\n"
        "import dnncanon.gpu"
    )
    assert (
        "ImportError: dnncanon.gpu needs numba-cuda: pip install 'dnncanon[cuda13]'"
        in run(code).stderr
    )


# --- Device arrays --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "uint8"])
def test_to_the_device_and_back(dtype: str, exact: Any) -> None:
    array = exact((2, 3, 4), "float32").astype(np.uint8 if dtype == "uint8" else dtype)
    for layout in (array, array.transpose(2, 0, 1), array[:, ::2], array[:, ::-1], array[:0]):
        device = runtime.to_device(layout)
        assert (device.shape, device.dtype) == (layout.shape, layout.dtype)
        np.testing.assert_array_equal(runtime.to_host(device), layout)
    assert not np.shares_memory(runtime.to_host(runtime.to_device(array)), array)


def test_to_the_device_keeps_the_order_of_the_dims() -> None:
    channels_last = np.zeros((2, 5, 6, 3), np.float32).transpose(0, 3, 1, 2)
    assert runtime.to_device(channels_last).strides == channels_last_strides((2, 3, 5, 6))


def test_a_broadcast_array_is_not_multiplied_on_its_way_to_the_device() -> None:
    wide = np.broadcast_to(np.ones((2, 1), np.float32), (2, 2**40))
    assert runtime.to_device(wide).strides == (1, 0)


def test_a_strided_view_counts_elements() -> None:
    buffer = runtime.to_device(np.arange(24, dtype=np.float32))
    view = runtime.as_strided(buffer, (2, 3), (10, 2), 3)
    np.testing.assert_array_equal(view.to_host(), [[3, 5, 7], [13, 15, 17]])
    np.testing.assert_array_equal(runtime.as_strided(buffer, (3,), (0,), 23).to_host(), [23] * 3)
    np.testing.assert_array_equal(runtime.as_strided(buffer, (3,), (-2,), 4).to_host(), [4, 2, 0])


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((25,), (1,), 0), ((2,), (1,), 23), ((1,), (1,), -1), ((2,), (-1,), 0)],
)
def test_a_view_outside_its_buffer_is_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    buffer = runtime.to_device(np.arange(24, dtype=np.float32))
    with pytest.raises(LayoutError, match="outside its buffer of 24 elements"):
        runtime.as_strided(buffer, shape, strides, offset)


# --- The launch seam ------------------------------------------------------------------------------


@kernel
def _scale(x: Any, y: Any, offsets: Any, factor: Any) -> None:
    from_, to = offsets
    y[to] = x[from_] * factor


def test_launch_takes_arrays_numbers_and_tuples() -> None:
    x = runtime.to_device(np.arange(4, dtype=np.float32))
    y = runtime.to_device(np.zeros(4, np.float32))
    launch(_scale, 1, 1, (x, y, (2, 1), 1.5))
    np.testing.assert_array_equal(y.to_host(), [0, 3, 0, 0])


@no_gpu
def test_a_kernel_cannot_write_to_an_input_on_the_emulator() -> None:
    from dnncanon.gpu.emulator import KernelError

    x = replace(runtime.to_device(np.ones(4, np.float32)), read_only=True)
    with pytest.raises(KernelError):
        launch(_scale, 1, 1, (x, x, (0, 1), 2.0))
    assert (x.to_host() == 1).all()


@pytest.mark.parametrize(
    ("items", "blocks"), [(0, 1), (1, 1), (128, 1), (129, 2), (2**40, 2**31 - 1)]
)
def test_blocks_fit_the_grid(items: int, blocks: int) -> None:
    assert runtime.blocks_for(items, 128) == blocks


def test_stream_handles() -> None:
    class Stream:
        def __init__(self, **attributes: int) -> None:
            self.__dict__.update(attributes)

    assert stream_handle(None) == 0
    assert stream_handle(7) == 7
    assert stream_handle(Stream(cuda_stream=8)) == 8
    assert stream_handle(Stream(ptr=9)) == 9
    assert stream_handle(Stream(handle=10)) == 10
    with pytest.raises(DeviceError, match="is no stream"):
        stream_handle("default")


def test_what_the_cuda_device_relies_on_in_numba_cuda() -> None:
    """Names of numba-cuda's host interface that cannot be exercised without a GPU."""
    import inspect

    from numba import cuda
    from numba.cuda.cudadrv import devicearray, driver
    from numba.cuda.dispatcher import CUDADispatcher, _Kernel

    def parameters(function: Any) -> set[str]:
        return set(inspect.signature(function).parameters)

    assert {"context", "pointer", "size", "owner"} <= parameters(driver.MemoryPointer.__init__)
    assert {"shape", "strides", "dtype", "gpu_data"} <= parameters(
        devicearray.DeviceNDArray.__init__
    )
    assert {"device_ctypes_pointer", "copy_to_device", "copy_to_host"} <= set(
        dir(devicearray.DeviceNDArray)
    )
    assert {"compile", "typeof_pyval"} <= set(dir(CUDADispatcher))
    assert "launch_bounds" in parameters(_Kernel.__init__)
    assert hasattr(
        driver.binding.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    )
    for name in ("external_stream", "default_stream", "event", "get_current_device", "synchronize"):
        assert hasattr(cuda, name)
