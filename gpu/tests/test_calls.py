"""Calls beside their numbers: errors, out, workspace, the list of algorithms."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.spec import (
    AttributeValueError,
    DTypeError,
    LayoutError,
    MissingTensorError,
    ShapeError,
    Unsupported,
    conv_forward,
    primitives,
)

Array = np.ndarray[Any, Any]
X, W = np.ones((1, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)
Y_SHAPE = (1, 3, 3, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gpu.conv_forward(X, W, groups=2), ShapeError, "conv_forward C"),
        (lambda: gpu.conv_forward(X, W, stride=0), AttributeValueError, "conv_forward C"),
        (lambda: gpu.conv_forward(X, W.astype(np.float64)), DTypeError, "conv_forward C2"),
        (lambda: gpu.conv_forward([1], W), MissingTensorError, "x is list"),
        (
            lambda: gpu.conv_forward(X, W, algorithm="fastest"),
            AttributeValueError,
            "auto, .*implicit_precomp_gemm, .*implicit_gemm, .*direct",
        ),
        (lambda: gpu.conv_forward(X, W, math="bf16x3"), Unsupported, 'pass math="ieee"'),
        (lambda: gpu.conv_forward(X, W, math="precise"), AttributeValueError, "pass one of ieee"),
        (
            lambda: gpu.conv_forward(X, W, out=np.empty((1, 3, 3, 4), np.float32)),
            ShapeError,
            r"out has shape \(1, 3, 3, 4\), but y has \(1, 3, 3, 3\)",
        ),
        (
            lambda: gpu.conv_forward(X, W, out=np.empty(Y_SHAPE, np.float64)),
            DTypeError,
            "out is float64, but y is float32",
        ),
        (
            lambda: gpu.conv_forward(X, W, out=np.broadcast_to(np.float32(0), Y_SHAPE)),
            LayoutError,
            "read-only",
        ),
        (lambda: gpu.conv_forward(X, W, out=_overlapping()), LayoutError, "elements overlap"),
        (lambda: gpu.conv_forward(X, W, out="y"), MissingTensorError, "out is str"),
        (lambda: gpu.conv_forward(X.astype(">f4"), W), DTypeError, "conv_forward C2: x is >f4"),
        (
            lambda: gpu.conv_forward(X, W, out=np.empty(Y_SHAPE, ">f4")),
            DTypeError,
            "out is stored in foreign byte order",
        ),
        (lambda: gpu.conv_forward(_misaligned(), W), LayoutError, "x is not aligned"),
        (lambda: gpu.algorithms("conv", X, W), Unsupported, "conv_forward, conv_backward_data"),
        (lambda: gpu.algorithms("conv_forward", X, W, groups=2), ShapeError, "conv_forward C"),
    ],
)
def test_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def _overlapping() -> Array:
    memory = np.empty(100, np.float32)
    return np.lib.stride_tricks.as_strided(memory, Y_SHAPE, (0, 4, 4, 4))


def _misaligned() -> Array:
    memory = np.zeros(X.nbytes + 1, np.uint8)
    return memory[1:].view(np.float32).reshape(X.shape)


def test_errors_come_before_anything_is_written() -> None:
    out = np.full(Y_SHAPE, 7, np.float32)
    with pytest.raises(ShapeError):
        gpu.conv_forward(X, W, out=out, workspace=np.empty(3, np.uint8), groups=3)
    assert (out == 7).all()


@pytest.mark.parametrize("name", [p.name for p in primitives().values() if p.family == "conv"])
def test_every_attribute_of_the_specification_has_its_default(name: str) -> None:
    """A function takes the attributes of its primitive, keyword-only, with the specified defaults."""
    import inspect

    from dnncanon.spec import REQUIRED

    parameters = inspect.signature(getattr(gpu, name)).parameters
    for attribute in primitives()[name].attributes:
        parameter = parameters[attribute.name]
        assert parameter.kind is parameter.KEYWORD_ONLY
        wanted = parameter.empty if attribute.default is REQUIRED else attribute.default
        assert parameter.default == wanted
    for option in ("algorithm", "math", "out", "workspace", "stream"):
        assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY


def test_out_may_not_share_memory_with_an_input() -> None:
    x, w = np.ones((1, 2, 4), np.float32), np.ones((2, 2, 1), np.float32)
    with pytest.raises(LayoutError, match="out shares memory with x"):
        gpu.conv_forward(x, w, out=x)
    with pytest.raises(LayoutError, match="out shares memory with w"):
        gpu.conv_forward(x[:, :, :2], w, out=w.transpose(2, 0, 1))
    assert (x == 1).all()
    assert (w == 1).all()


def test_out_has_the_dtype_of_the_specification() -> None:
    out = np.empty(Y_SHAPE, np.float32)
    assert gpu.conv_forward(X, W, out=out) is out
    assert (out == 18).all()


# --- Workspace ------------------------------------------------------------------------------------


@pytest.fixture
def long_sum() -> tuple[gpu.DeviceArray, gpu.DeviceArray]:
    """x and dy of a backward filter whose depth is split."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 30, 40)).astype(np.float32)
    dy = rng.standard_normal((2, 9, 28, 38)).astype(np.float32)
    return gpu.to_device(x), gpu.to_device(dy)


def _announced(long_sum: tuple[gpu.DeviceArray, gpu.DeviceArray]) -> int:
    return gpu.algorithms("conv_backward_filter", *long_sum, filter_size=3)[0].workspace_bytes


def test_the_workspace_is_as_large_as_announced(
    long_sum: tuple[gpu.DeviceArray, gpu.DeviceArray],
) -> None:
    """Exactly the announced bytes suffice, no byte beside them changes, and all of them are used."""
    nbytes, margin = _announced(long_sum), 64
    memory = gpu.to_device(np.full(nbytes + 2 * margin, 0xA5, np.uint8))
    workspace = gpu.as_strided(memory, (nbytes,), (1,), margin)
    dw = gpu.conv_backward_filter(*long_sum, filter_size=3, workspace=workspace)
    plain = gpu.conv_backward_filter(*long_sum, filter_size=3)
    np.testing.assert_array_equal(dw.to_host(), plain.to_host())
    after = memory.to_host()
    assert (after[:margin] == 0xA5).all()
    assert (after[margin + nbytes :] == 0xA5).all()
    assert (after[margin : margin + nbytes].view(np.uint32) != 0xA5A5A5A5).all()


def test_a_short_or_misaligned_workspace_is_refused(
    long_sum: tuple[gpu.DeviceArray, gpu.DeviceArray],
) -> None:
    nbytes = _announced(long_sum)
    memory = gpu.to_device(np.zeros(2 * nbytes, np.uint8))
    for extent, stride, offset in ((nbytes - 1, 1, 0), (nbytes, 1, 1), (nbytes // 2, 2, 0)):
        workspace = gpu.as_strided(memory, (extent,), (stride,), offset)
        with pytest.raises(ShapeError, match=f"pass a dense array of {nbytes} bytes"):
            gpu.conv_backward_filter(*long_sum, filter_size=3, workspace=workspace)


def test_a_workspace_may_not_be_an_input(
    long_sum: tuple[gpu.DeviceArray, gpu.DeviceArray],
) -> None:
    with pytest.raises(LayoutError, match="workspace shares memory with x"):
        gpu.conv_backward_filter(*long_sum, filter_size=3, workspace=long_sum[0])


# --- Algorithms -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "groups", "chosen"),
    [
        ((1, 64, 14, 14), (64, 64, 3, 3), 1, "implicit_gemm"),
        ((1, 64, 14, 14), (64, 4, 3, 3), 16, "implicit_gemm"),
        ((1, 64, 14, 14), (64, 64, 1, 1), 1, "pointwise_1x1"),
        ((1, 64, 14, 14), (64, 1, 3, 3), 64, "depthwise"),
        ((1, 3, 2, 2), (2, 3, 2, 2), 1, "direct"),  # one row
    ],
)
def test_auto(x_shape: Any, w_shape: Any, groups: int, chosen: str) -> None:
    x, w = np.zeros(x_shape, np.float32), np.zeros(w_shape, np.float32)
    listed = gpu.algorithms("conv_forward", x, w, groups=groups)
    assert listed[0].name == chosen
    assert listed[0].numerics == "ieee"
    rows = {row.name: row for row in listed}
    assert rows["direct"].applicable
    assert rows["implicit_gemm"].applicable
    assert "not float32" in str(rows["implicit_precomp_gemm"].refusal)
    assert all(row.deterministic for row in listed)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "groups", "chosen"),
    [
        ((1, 64, 14, 14), (64, 64, 3, 3), 1, "implicit_precomp_gemm"),
        ((1, 64, 14, 14), (64, 4, 3, 3), 16, "implicit_precomp_gemm"),
        ((1, 64, 16, 16), (64, 64, 1, 1), 1, "pointwise_1x1"),
        ((1, 64, 14, 14), (64, 1, 3, 3), 64, "depthwise"),
    ],
)
def test_auto_has_tensor_cores_for_half_precision(
    x_shape: Any, w_shape: Any, groups: int, chosen: str
) -> None:
    x, w = np.zeros(x_shape, np.float16), np.zeros(w_shape, np.float16)
    assert gpu.algorithms("conv_forward", x, w, groups=groups)[0].name == chosen


def test_algorithms_compute_nothing() -> None:
    x = np.broadcast_to(np.float32(1), (64, 512, 512, 512))
    assert gpu.algorithms("conv_forward", x, np.zeros((512, 512, 3, 3), np.float32))


def test_the_specification_validates() -> None:
    """The very errors of the specification, raised by it."""
    with pytest.raises(ShapeError) as ours:
        gpu.conv_forward(X, W[:, :1])
    with pytest.raises(ShapeError) as specified:
        conv_forward.bind(X, W[:, :1])
    assert str(ours.value) == str(specified.value)
