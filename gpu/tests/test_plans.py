"""Execution plans: the same results as calls, for other arrays too, and without what a call does each time."""

from typing import Any

import numpy as np
import pytest

from dnncanon import gpu, spec
from dnncanon.gpu.library import functions
from dnncanon.gpu.plans import plan_of
from dnncanon.gpu.primitive import GpuPrimitive
from dnncanon.gpu.runtime import device, to_device
from dnncanon.gpu.static import shipped
from dnncanon.spec import LayoutError, ShapeError, Unsupported

Array = np.ndarray[Any, Any]

SCALE = spec.Scale(batch=3, channels=8, extent=12, multiplications=1 << 16)


def drawn(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_plan_computes_what_a_call_does() -> None:
    x, w = drawn(1, 2, 4, 7, 6), drawn(2, 3, 4, 3, 3)
    plan = gpu.execution_plan("conv_forward", x, w, padding=1, algorithm="direct")
    np.testing.assert_array_equal(plan(), gpu.conv_forward(x, w, padding=1, algorithm="direct"))
    assert repr(plan) == "<plan of conv_forward by direct: 1 launch>"
    assert plan.workspace_bytes == 0


def test_nothing_is_computed_before_a_plan_is_run() -> None:
    y = np.full((2, 5), 7.0, np.float32)
    plan = gpu.execution_plan("softmax_forward", drawn(3, 2, 5), out=y)
    assert (y == 7).all()
    assert plan() is y
    np.testing.assert_allclose(y.sum(1), 1.0, rtol=1e-6)


def test_a_plan_reads_its_arrays_each_time_it_is_run() -> None:
    x = drawn(4, 3, 8)
    plan = gpu.execution_plan("softmax_forward", x)
    first = plan().copy()
    x[0] *= 3.0
    np.testing.assert_array_equal(plan(), gpu.softmax_forward(x))
    assert (first[0] != plan()[0]).all()


def test_a_plan_of_several_launches_is_bound_to_other_arrays() -> None:
    """A norm by two passes: partial sums in the workspace, several outputs, memory that runs backwards."""

    def arrays(seed: int) -> tuple[Array, ...]:
        return drawn(seed, 2, 3, 9)[:, ::-1], drawn(seed + 1, 3), drawn(seed + 2, 3)

    def call(x: Array, gamma: Array, beta: Array) -> Any:
        return gpu.batch_norm_forward_training(x, gamma, beta, algorithm="two_pass")

    one, other = arrays(5), arrays(6)
    plan = gpu.execution_plan("batch_norm_forward_training", *one, algorithm="two_pass")
    bound = plan.bind(*other)
    assert len(plan) == len(bound) > 1
    assert plan.workspace_bytes > 0
    for results, wanted in ((bound(), call(*other)), (plan(), call(*one))):
        for result, right in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (drawn(7, 3, 9), LayoutError, r"x has shape \(3, 9\), but the plan was made for \(3, 8\)"),
        (drawn(7, 8, 3).T, LayoutError, r"x has strides \(1, 3\), but .* \(8, 1\); pass an array"),
        (drawn(7, 25)[1:].reshape(3, 8), LayoutError, "x has address modulo 16 4, but .* 0"),
        (drawn(7, 3, 8).astype(np.float16), LayoutError, "x has dtype float16"),
    ],
)
def test_a_plan_refuses_arrays_of_another_layout(
    x: Array, error: type[Exception], message: str
) -> None:
    plan = gpu.execution_plan("softmax_forward", to_aligned(drawn(7, 3, 8)))
    with pytest.raises(error, match=message):
        plan.bind(to_aligned(x) if x.base is None else x)


def to_aligned(x: Array) -> Array:
    """A copy at an address that is a multiple of 256."""
    memory = np.empty(x.nbytes + 256, np.uint8)
    first = -memory.ctypes.data % 256
    copy = memory[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def test_a_plan_raises_what_a_call_does() -> None:
    with pytest.raises(ShapeError, match="conv_forward C"):
        gpu.execution_plan("conv_forward", drawn(8, 1, 2, 5), drawn(9, 3, 3, 3))
    with pytest.raises(Unsupported, match="no primitive 'conv'"):
        gpu.execution_plan("conv", drawn(8, 1, 2, 5))


def test_a_graph_of_a_plan_is_the_plan_in_one_launch() -> None:
    x = to_device(drawn(10, 4, 6))
    plan = gpu.execution_plan("softmax_forward", x)
    replay = plan.graph()
    np.testing.assert_array_equal(replay().to_host(), gpu.softmax_forward(x).to_host())


def test_an_empty_call_has_no_launches() -> None:
    assert len(gpu.execution_plan("softmax_forward", np.empty((0, 4), np.float32))) == 0


@pytest.mark.parametrize("name", functions())
def test_every_call_can_be_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each of its algorithms: all the memory that its kernels are given belongs to the call."""
    function, primitive = functions()[name], spec.primitives()[name]
    assert isinstance(function, GpuPrimitive)
    monkeypatch.setattr(device(), "bind", lambda *args, **options: None)
    for index in range(5):
        draw = shipped._Draw(f"{name} {index}", 1)
        dtype = primitive.dtypes[0].dtype
        call = primitive.bind_arguments(primitive.domain(draw, SCALE, dtype))
        tensors = [shipped._array(call.arguments.tensors.get(t.name)) for t in primitive.inputs]
        attributes = call.arguments.attributes
        for row in function.algorithms(*tensors, **attributes):
            if row.applicable:
                plan_of(function, *tensors, algorithm=row.name, **attributes)
