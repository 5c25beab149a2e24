"""Arrays of other libraries: the kind that goes in comes out, and nothing is copied on the way."""

import gc
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu import runtime
from dnncanon.gpu.runtime import dlpack
from dnncanon.spec import LayoutError, Unsupported

on_host = pytest.mark.skipif(runtime.has_gpu(), reason="shares the host's memory with the device")


def test_numpy_gives_numpy() -> None:
    y = gpu.conv_forward(np.ones((1, 2, 3), np.float32), np.ones((4, 2, 1), np.float32))
    assert type(y) is np.ndarray


def test_a_device_array_gives_a_device_array() -> None:
    x, w = (runtime.to_device(np.ones(shape, np.float32)) for shape in ((1, 2, 3), (4, 2, 1)))
    y = gpu.conv_forward(x, w)
    assert isinstance(y, gpu.DeviceArray)
    assert (y.to_host() == 2).all()


def test_kinds_may_be_mixed_and_the_first_decides() -> None:
    x, w = np.ones((1, 2, 3), np.float32), np.ones((4, 2, 1), np.float32)
    assert type(gpu.conv_forward(x, runtime.to_device(w))) is np.ndarray
    assert isinstance(gpu.conv_forward(runtime.to_device(x), w), gpu.DeviceArray)


class TestTorch:
    torch = pytest.importorskip("torch")

    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
    def test_torch_gives_torch(self, dtype: str) -> None:
        torch: Any = self.torch
        x = torch.arange(60).reshape(2, 3, 10).to(getattr(torch, dtype)) % 3
        w = torch.ones(2, 3, 4).to(x.dtype)
        y = gpu.conv_forward(x, w, padding=1)
        assert y.dtype == x.dtype
        assert torch.equal(y.double(), torch.conv1d(x.double(), w.double(), padding=1))

    def test_channels_last_stays_channels_last(self) -> None:
        torch: Any = self.torch
        x = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
        y = gpu.conv_forward(x, torch.randn(3, 4, 1, 1))
        assert y.is_contiguous(memory_format=torch.channels_last)

    def test_out(self) -> None:
        torch: Any = self.torch
        x, w = torch.ones(1, 2, 5), torch.ones(3, 2, 3)
        memory = torch.full((1, 3, 8), 7.0)
        out = memory[:, :, 2:5]
        assert gpu.conv_forward(x, w, out=out) is out
        assert (out == 6).all()
        assert (memory[:, :, [0, 1, 5, 6, 7]] == 7).all()

    def test_a_tensor_that_requires_grad_is_refused(self) -> None:
        torch: Any = self.torch
        x, w = torch.ones(1, 1, 1, requires_grad=True), torch.ones(1, 1, 1)
        with pytest.raises(Unsupported, match=r"pass x\.detach\(\)"):
            gpu.conv_forward(x, w)
        with torch.no_grad():
            assert gpu.conv_forward(x, w) == 1

    def test_a_sparse_tensor_is_refused(self) -> None:
        torch: Any = self.torch
        with pytest.raises(LayoutError, match=r"x\.to_dense\(\)"):
            gpu.conv_forward(torch.ones(1, 1, 1).to_sparse(), torch.ones(1, 1, 1))

    @on_host
    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
    def test_dlpack_to_torch_and_back_shares_memory(self, dtype: str, exact: Any) -> None:
        torch: Any = self.torch
        values = exact((3, 4, 5), dtype)
        array = runtime.to_device(values.transpose(2, 0, 1))
        tensor = torch.from_dlpack(array)
        assert tensor.data_ptr() == array.pointer
        assert tensor.stride() == array.strides
        back = dlpack.import_capsule(tensor.__dlpack__())
        assert (back.pointer, back.shape, back.strides) == (
            array.pointer,
            array.shape,
            array.strides,
        )
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(tensor.float().numpy(), values.transpose(2, 0, 1))


class OnlyDLPack:
    """An array of a library that nobody here has heard of."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.array.__dlpack_device__()
        return device


def test_any_dlpack_array_is_read() -> None:
    x = OnlyDLPack(np.arange(6, dtype=np.float32).reshape(1, 2, 3))
    y = gpu.conv_forward(x, np.ones((1, 2, 1), np.float32))
    assert isinstance(y, gpu.DeviceArray)
    np.testing.assert_array_equal(y.to_host(), [[[3, 5, 7]]])


@on_host
def test_numpy_reads_a_device_array_through_dlpack() -> None:
    array = runtime.to_device(np.arange(6, dtype=np.float64).reshape(2, 3))
    shared = np.from_dlpack(array)  # type: ignore[arg-type]
    assert shared.ctypes.data == array.pointer
    np.testing.assert_array_equal(shared, array.to_host())


def test_a_copy_through_dlpack_is_refused() -> None:
    array = runtime.to_device(np.arange(6.0))
    with pytest.raises(BufferError, match=r"to_host\(\)"):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(7, 3))


@on_host
def test_exported_memory_lives_as_long_as_its_consumer_and_no_longer() -> None:
    before = len(dlpack._exported)
    shared = np.from_dlpack(runtime.to_device(np.arange(6.0)))  # type: ignore[arg-type]
    unused = runtime.to_device(np.arange(6.0)).__dlpack__()
    gc.collect()
    np.testing.assert_array_equal(shared, np.arange(6.0))
    assert len(dlpack._exported) == before + 2
    del shared, unused
    gc.collect()
    assert len(dlpack._exported) == before


@on_host
def test_a_device_array_on_the_host_has_no_cuda_array_interface() -> None:
    assert not hasattr(runtime.to_device(np.zeros(3)), "__cuda_array_interface__")


def test_an_array_without_any_interface_is_refused() -> None:
    class Opaque:
        shape, dtype = (1, 1, 1), np.dtype(np.float32)

    with pytest.raises(gpu.DeviceError, match="neither DLPack nor __cuda_array_interface__"):
        gpu.conv_forward(Opaque(), np.ones((1, 1, 1), np.float32))


@on_host
def test_memory_of_a_gpu_is_refused_by_the_emulator() -> None:
    class OnGpu:
        shape, dtype = (1, 1, 1), np.dtype(np.float32)
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (1, 1, 1),
            "typestr": "<f4",
            "data": (256, False),
            "version": 3,
        }

    with pytest.raises(gpu.DeviceError, match="x is in the memory of CUDA device 0"):
        gpu.conv_forward(OnGpu(), np.ones((1, 1, 1), np.float32))
