"""Convolution over drawn problems: against loops, its own identities, torch and SciPy.

Data are small integers, so that every sum is exact in float64 and results must be equal, not close.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.spec.conv import ConvProblem

Array = NDArray[Any]
SCALE = spec.Scale(batch=2, channels=6, extent=8, multiplications=3000)
drawn = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass(frozen=True)
class Drawn:
    """A source of choices for a domain, from Hypothesis."""

    draw: st.DrawFn

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, options: tuple[Any, ...]) -> Any:
        return self.draw(st.sampled_from(options))


@dataclass(frozen=True)
class Convolution:
    """A drawn problem with integer data for each of its tensors."""

    problem: ConvProblem
    attributes: dict[str, Any]
    x: Array
    w: Array
    dy: Array

    @property
    def y(self) -> Array:
        return ref.conv_forward(self.x, self.w, **self.attributes)

    @property
    def dx(self) -> Array:
        size = self.problem.input_size
        return ref.conv_backward_data(self.dy, self.w, input_size=size, **self.attributes)

    @property
    def dw(self) -> Array:
        size = self.problem.filter_size
        return ref.conv_backward_filter(self.x, self.dy, filter_size=size, **self.attributes)


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    arguments = spec.conv_forward.domain(Drawn(draw), SCALE, "float64")
    problem = spec.conv_forward.bind_arguments(arguments).problem
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = (problem.x_shape, problem.w_shape, problem.y_shape)
    data = (random.integers(-9, 10, shape).astype(np.float64) for shape in shapes)
    return Convolution(problem, dict(arguments.attributes), *data)


each_convolution = given(c=convolutions())


# --- Against the definition in loops --------------------------------------------------------------


def products(p: ConvProblem) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The indices (of y, x, w) of every product in the definition, straight from its formula."""
    for n, k, *o in np.ndindex(*p.y_shape):
        group = k // (p.out_channels // p.groups)
        for c, *f in np.ndindex(*p.w_shape[1:]):
            taps = zip(o, f, p.stride, p.dilation, p.padding, strict=True)
            at = [o_ * u + f_ * dil - pre for o_, f_, u, dil, (pre, _) in taps]
            if all(0 <= i < extent for i, extent in zip(at, p.input_size, strict=True)):
                entry = f
                if p.mode == "convolution":
                    entry = [e - 1 - f_ for f_, e in zip(f, p.filter_size, strict=True)]
                channel = group * (p.in_channels // p.groups) + c
                yield (n, k, *o), (n, channel, *at), (k, c, *entry)


@each_convolution
@drawn
def test_all_directions_against_loops(c: Convolution) -> None:
    y, dx, dw = (np.zeros(array.shape) for array in (c.dy, c.x, c.w))
    for at_y, at_x, at_w in products(c.problem):
        y[at_y] += c.x[at_x] * c.w[at_w]
        dx[at_x] += c.dy[at_y] * c.w[at_w]
        dw[at_w] += c.dy[at_y] * c.x[at_x]
    assert np.array_equal(c.y, y)
    assert np.array_equal(c.dx, dx)
    assert np.array_equal(c.dw, dw)


@each_convolution
@drawn
def test_bias_gradient_against_a_sum_by_channel(c: Convolution) -> None:
    sums = [sum(c.dy[:, k].ravel().tolist()) for k in range(c.problem.out_channels)]
    assert ref.conv_backward_bias(c.dy).tolist() == sums


@given(
    c=convolutions(),
    alpha1=st.sampled_from((1.0, -0.5, 0.0)),
    alpha2=st.sampled_from((1.0, 0.25, 0.0)),
    with_z=st.booleans(),
    activation=st.sampled_from(("identity", "relu")),
)
@drawn
def test_fused_form_is_its_parts(
    c: Convolution, alpha1: float, alpha2: float, with_z: bool, activation: str
) -> None:
    bias = np.arange(c.problem.out_channels) - 2.0
    z = c.dy if with_z else None
    fused = ref.conv_bias_activation_forward(
        c.x, c.w, bias, z, activation=activation, alpha1=alpha1, alpha2=alpha2, **c.attributes
    )
    parts = alpha1 * c.y + (alpha2 * c.dy if with_z else 0)
    parts = np.moveaxis(np.moveaxis(parts, 1, -1) + bias, -1, 1)
    assert np.array_equal(fused, np.where(parts < 0, 0, parts) if activation == "relu" else parts)


@each_convolution
@settings(drawn, max_examples=20)
def test_definitions_hold_in_exact_rational_arithmetic(c: Convolution) -> None:
    """The very same code on arrays of fractions: it assumes nothing about what a number is."""
    thirds = np.vectorize(lambda value: Fraction(int(value), 3), otypes=[object])
    x, w, dy = thirds(c.x), thirds(c.w), thirds(c.dy)
    y, dx, dw = (np.zeros(array.shape, object) for array in (dy, x, w))
    for at_y, at_x, at_w in products(c.problem):
        y[at_y] += x[at_x] * w[at_w]
        dx[at_x] += dy[at_y] * w[at_w]
        dw[at_w] += dy[at_y] * x[at_x]
    definitions = (
        (ref.conv_forward, (x, w), y),
        (ref.conv_backward_data, (dy, w), dx),
        (ref.conv_backward_filter, (x, dy), dw),
    )
    for definition, tensors, expected in definitions:
        assert np.array_equal(definition.definition(c.problem, *tensors), expected)


def in_space(slices: Iterable[slice]) -> Any:
    """An index that takes batch and channels whole."""
    return (..., *slices)


# --- Identities -----------------------------------------------------------------------------------


@each_convolution
@drawn
def test_the_gradients_are_adjoints_of_the_convolution(c: Convolution) -> None:
    """⟨conv(x, w), dy⟩ = ⟨x, dx⟩ = ⟨w, dw⟩"""
    product = np.vdot(c.y, c.dy)
    assert product == np.vdot(c.x, c.dx)
    assert product == np.vdot(c.w, c.dw)


@each_convolution
@settings(drawn, max_examples=25)
def test_gradients_are_finite_differences(c: Convolution) -> None:
    """The forward convolution is linear in x and in w, so a difference of step 1 is exact."""
    loss = np.vdot(c.y, c.dy)

    def difference(name: str, at: tuple[int, ...]) -> float:
        moved = {"x": c.x.copy(), "w": c.w.copy()}
        moved[name][at] += 1
        return float(np.vdot(ref.conv_forward(*moved.values(), **c.attributes), c.dy) - loss)

    for name, array, gradient in (("x", c.x, c.dx), ("w", c.w, c.dw)):
        for at in itertools.islice(np.ndindex(*array.shape), 0, None, 1 + array.size // 40):
            assert difference(name, at) == gradient[at]


@each_convolution
@settings(drawn, max_examples=25)
def test_bias_gradient_is_a_finite_difference_of_the_fused_form(c: Convolution) -> None:
    def loss(bias: Array) -> float:
        y = ref.conv_bias_activation_forward(c.x, c.w, bias, activation="identity", **c.attributes)
        return float(np.vdot(y, c.dy))

    zero, units = np.zeros(c.problem.out_channels), np.eye(c.problem.out_channels)
    differences = [loss(unit) - loss(zero) for unit in units]
    assert ref.conv_backward_bias(c.dy).tolist() == differences


@given(c=convolutions(), factor=st.integers(-3, 3))
@settings(drawn, max_examples=25)
def test_linearity(c: Convolution, factor: int) -> None:
    other_x, other_w = np.roll(c.x, 1), np.roll(c.w, 1)
    in_x = ref.conv_forward(factor * c.x + other_x, c.w, **c.attributes)
    assert np.array_equal(in_x, factor * c.y + ref.conv_forward(other_x, c.w, **c.attributes))
    in_w = ref.conv_forward(c.x, factor * c.w + other_w, **c.attributes)
    assert np.array_equal(in_w, factor * c.y + ref.conv_forward(c.x, other_w, **c.attributes))


@each_convolution
@drawn
def test_groups_are_convolutions_of_their_own(c: Convolution) -> None:
    p = c.problem
    alone = {**c.attributes, "groups": 1}
    blocks = zip(
        *(np.split(array, p.groups, axis) for array, axis in ((c.x, 1), (c.w, 0), (c.dy, 1))),
        strict=True,
    )
    parts = [
        (
            ref.conv_forward(x, w, **alone),
            ref.conv_backward_data(dy, w, input_size=p.input_size, **alone),
            ref.conv_backward_filter(x, dy, filter_size=p.filter_size, **alone),
        )
        for x, w, dy in blocks
    ]
    y, dx, dw = zip(*parts, strict=True)
    assert np.array_equal(c.y, np.concatenate(y, axis=1))
    assert np.array_equal(c.dx, np.concatenate(dx, axis=1))
    assert np.array_equal(c.dw, np.concatenate(dw, axis=0))


@each_convolution
@drawn
def test_convolution_mode_is_cross_correlation_with_the_filter_reversed(c: Convolution) -> None:
    space = tuple(range(2, c.w.ndim))
    other = {"cross_correlation": "convolution", "convolution": "cross_correlation"}
    mode = other[c.problem.mode]
    reversed_c = Convolution(
        c.problem, {**c.attributes, "mode": mode}, c.x, np.flip(c.w, space), c.dy
    )
    assert np.array_equal(c.y, reversed_c.y)
    assert np.array_equal(c.dx, reversed_c.dx)
    assert np.array_equal(c.dw, np.flip(reversed_c.dw, space))


@given(c=convolutions(), shift=st.integers(0, 4))
@drawn
def test_shift_equivariance(c: Convolution, shift: int) -> None:
    """An input moved by a multiple of the stride moves the output: both with room around."""
    dims = c.problem.spatial_dims
    attributes = {**c.attributes, "padding": 0}
    room = [(0, 0), (0, 0)] + [
        (dil * (f - 1) + shift * u, dil * (f - 1) + shift * u)
        for f, u, dil in zip(
            c.problem.filter_size, c.problem.stride, c.problem.dilation, strict=True
        )
    ]
    x = np.pad(c.x, room)
    space = tuple(range(2, 2 + dims))
    moved = np.roll(x, [shift * u for u in c.problem.stride], space)
    y, y_moved = (ref.conv_forward(array, c.w, **attributes) for array in (x, moved))
    earlier = y[in_space(slice(0, extent - shift) for extent in y.shape[2:])]
    later = y_moved[in_space(slice(shift, None) for _ in space)]
    assert np.array_equal(earlier, later)


@each_convolution
@drawn
def test_explicit_zeros_are_padding(c: Convolution) -> None:
    x = np.pad(c.x, ((0, 0), (0, 0), *c.problem.padding))
    y = ref.conv_forward(x, c.w, **{**c.attributes, "padding": "valid"})
    assert np.array_equal(c.y, y)


@each_convolution
@drawn
def test_a_dilated_filter_is_one_with_zeros_between_its_taps(c: Convolution) -> None:
    p = c.problem
    sparse = np.zeros(
        p.w_shape[:2]
        + tuple(dil * (f - 1) + 1 for f, dil in zip(p.filter_size, p.dilation, strict=True))
    )
    sparse[in_space(slice(None, None, dil) for dil in p.dilation)] = c.w
    plain = {**c.attributes, "padding": p.padding, "dilation": 1}
    assert np.array_equal(c.y, ref.conv_forward(c.x, sparse, **plain))


@each_convolution
@drawn
def test_a_stride_skips_outputs(c: Convolution) -> None:
    p = c.problem
    every = ref.conv_forward(c.x, c.w, **{**c.attributes, "padding": p.padding, "stride": 1})
    assert np.array_equal(c.y, every[in_space(slice(None, None, u) for u in p.stride)])


# --- Against SciPy --------------------------------------------------------------------------------


@given(data=st.data(), dims=st.integers(1, 3))
@settings(drawn, max_examples=40)
def test_one_channel_against_scipy(data: st.DataObject, dims: int) -> None:
    signal = pytest.importorskip("scipy.signal", reason="SciPy is not installed")
    filter_size = data.draw(st.tuples(*[st.integers(1, 4)] * dims))
    size = tuple(f + data.draw(st.integers(0, 4)) for f in filter_size)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x, w = (random.integers(-9, 10, s).astype(np.float64) for s in (size, filter_size))
    wide = tuple(f - 1 for f in filter_size)
    modes = ("cross_correlation", "convolution")
    for mode, scipy_mode in itertools.product(modes, ("valid", "full")):
        function = signal.correlate if mode == "cross_correlation" else signal.convolve
        padding = 0 if scipy_mode == "valid" else wide
        y = ref.conv_forward(x[None, None], w[None, None], mode=mode, padding=padding)
        assert np.array_equal(y[0, 0], function(x, w, mode=scipy_mode, method="direct"))


# --- Against torch --------------------------------------------------------------------------------


def torch_convolution(c: Convolution, x: Any, w: Any) -> Any:
    """The drawn problem in torch: padding made explicit, as torch's own is symmetric."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    functional, p = torch.nn.functional, c.problem
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[p.spatial_dims - 1]
    padded = functional.pad(x, [zeros for pair in reversed(p.padding) for zeros in pair])
    taps = torch.flip(w, tuple(range(2, w.ndim))) if p.mode == "convolution" else w
    return convolve(padded, taps, stride=p.stride, dilation=p.dilation, groups=p.groups)


@each_convolution
@drawn
def test_all_directions_against_torch(c: Convolution) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, w, dy = (torch.from_numpy(array) for array in (c.x, c.w, c.dy))
    x.requires_grad_()
    w.requires_grad_()
    y = torch_convolution(c, x, w)
    y.backward(dy)
    assert np.array_equal(c.y, y.detach().numpy())
    assert np.array_equal(c.dx, x.grad.numpy())
    assert np.array_equal(c.dw, w.grad.numpy())


@given(c=convolutions(), extra=st.integers(0, 2), padding=st.integers(0, 2))
@drawn
def test_backward_data_is_torch_s_transposed_convolution(
    c: Convolution, extra: int, padding: int
) -> None:
    """Without input_size there is no output padding; a larger input_size is output padding."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    p, functional = c.problem, torch.nn.functional
    transposed = (
        functional.conv_transpose1d,
        functional.conv_transpose2d,
        functional.conv_transpose3d,
    )[p.spatial_dims - 1]
    geometry = {"stride": p.stride, "dilation": p.dilation, "groups": p.groups}
    output_padding = tuple(min(extra, u - 1) for u in p.stride)
    least = [
        (o - 1) * u + dil * (f - 1) + 1 - 2 * padding
        for o, u, dil, f in zip(p.output_size, p.stride, p.dilation, p.filter_size, strict=True)
    ]
    if min(least) < 1:
        return  # torch refuses what is empty here
    dy, w = torch.from_numpy(c.dy), torch.from_numpy(c.w)
    ours = ref.conv_backward_data(c.dy, c.w, padding=padding, **geometry)
    assert np.array_equal(ours, transposed(dy, w, padding=padding, **geometry).numpy())
    size = tuple(i + more for i, more in zip(least, output_padding, strict=True))
    ours = ref.conv_backward_data(c.dy, c.w, padding=padding, input_size=size, **geometry)
    theirs = transposed(dy, w, padding=padding, output_padding=output_padding, **geometry)
    assert np.array_equal(ours, theirs.numpy())


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@each_convolution
@settings(drawn, max_examples=25)
def test_same_padding_against_torch(c: Convolution) -> None:
    """torch has padding="same" for stride 1, with the odd zero behind as well."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    functional, p = torch.nn.functional, c.problem
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[p.spatial_dims - 1]
    geometry = {"padding": "same", "dilation": p.dilation, "groups": p.groups}
    ours = ref.conv_forward(c.x, c.w, **geometry)
    x, w = torch.from_numpy(c.x), torch.from_numpy(c.w)
    assert np.array_equal(ours, convolve(x, w, **geometry).numpy())
