"""Which kernels there are: launches noted on a device that runs none."""

import numpy as np
import pytest

import dnncanon.gpu as gpu
from dnncanon.gpu.runtime import device
from dnncanon.gpu.static.recording import recording
from dnncanon.gpu.static.shipped import Shipped, shipped

HUGE = (1 << 16, 1 << 12)
"""A gigabyte of float32, none of which is touched."""


def test_a_recorded_call_runs_nothing() -> None:
    before = device()
    with recording() as launches:
        y = gpu.activation_forward(np.empty(HUGE, np.float32), mode="relu")
    (launched,) = launches
    assert y.shape == HUGE
    assert launched.kernel.name == "elementwise_dense"
    assert launched.threads == 256
    assert device() is before


def test_the_types_of_arguments_are_those_of_a_gpu() -> None:
    """Inputs are read-only on the emulator; a GPU knows no such type."""
    x = np.empty((64, 64), np.float16)
    x.flags.writeable = False
    with recording() as launches:
        gpu.activation_forward(x, mode="relu")
    arrays = launches[0].signature[0]
    assert str(arrays.types[0]) == "array(uint16, 1d, C)"


def names(kernels: list[Shipped]) -> list[str]:
    return [kernel.name for kernel in kernels]


def test_every_algorithm_of_a_primitive_is_called() -> None:
    found = shipped(["conv_forward"], ["float32"])
    assert {"conv_direct", "tile_product_", "sum_parts_"} <= set(names(found))
    assert len({kernel.launched for kernel in found}) == len(found)


def test_a_kernel_of_several_primitives_is_one() -> None:
    (bias,) = shipped(["conv_backward_bias"], ["float32"])
    assert bias.launched_by == ("conv_backward_bias float32",)
    found = shipped(["conv_forward", "conv_backward_filter"], ["float32"])
    shared = [kernel for kernel in found if len(kernel.launched_by) == 2]
    assert "conv_direct" in names(shared)


def test_everything_is_more() -> None:
    some = {kernel.launched for kernel in shipped(["softmax_forward"], ["float32"])}
    every = {
        kernel.launched for kernel in shipped(["softmax_forward"], ["float32"], everything=True)
    }
    assert some < every


def test_the_same_kernels_are_found_again() -> None:
    assert shipped(["reduce_forward"]) == shipped(["reduce_forward"])


def test_constants_are_told_by_name() -> None:
    found = shipped(["conv_forward"], ["float32"])
    kernels = [kernel for kernel in found if kernel.name == "tile_product_"]
    assert 128 in {kernel.constants["rows_of"] for kernel in kernels}


@pytest.mark.parametrize("primitive", ["quantize_linear", "dequantize_linear"])
def test_a_primitive_without_the_dtypes_is_called_for_its_first(primitive: str) -> None:
    assert all(kernel.launched_by for kernel in shipped([primitive], ["float16"]))
    assert shipped([primitive], ["float16"])
