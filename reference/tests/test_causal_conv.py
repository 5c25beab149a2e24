"""Causal convolution by hand, by convolution, by finite differences, and as torch has it."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.spec.causal_conv import ACTIVATIONS
from dnncanon.spec.conv_problem import MODES

Array = NDArray[Any]
INF, NAN = np.inf, np.nan

each_mode = pytest.mark.parametrize("mode", MODES)
each_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def random(*shape: int, seed: int = 3) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def sequence(*values: float) -> Array:
    """One channel of one sequence."""
    return np.array([[values]], np.float64)


# --- By hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("cross_correlation", [30, 20 + 30 * 8, 10 + 20 * 8 + 3_000, 10 * 8 + 2_000]),
        ("convolution", [10, 20 + 10 * 8, 30 + 20 * 8 + 1_000, 30 * 8 + 2_000]),
    ],
)
def test_the_taps_meet_present_and_past(mode: str, expected: list[float]) -> None:
    y = ref.causal_conv_forward(sequence(1, 8, 100, 0), np.array([[10.0, 20.0, 30.0]]), mode=mode)
    assert y[0, 0].tolist() == expected


def test_bias_comes_before_silu() -> None:
    y = ref.causal_conv_forward(
        sequence(1.0, 2.0), np.array([[3.0]]), np.array([-3.0]), activation="silu"
    )
    assert y[0, 0] == pytest.approx([0.0, 3.0 / (1.0 + np.exp(-3.0))])


@each_mode
def test_it_is_a_depthwise_convolution_with_padding_before(mode: str) -> None:
    x, w = random(2, 5, 11), random(5, 4)
    expected = ref.conv_forward(x, w[:, None], padding=((3, 0),), groups=5, mode=mode)
    assert ref.causal_conv_forward(x, w, mode=mode) == pytest.approx(expected)


# --- Decisions ------------------------------------------------------------------------------------


def test_no_output_depends_on_a_later_input() -> None:
    x = random(1, 2, 9)
    later = x.copy()
    later[:, :, 5:] = NAN
    w = random(2, 4)
    y, of_later = ref.causal_conv_forward(x, w), ref.causal_conv_forward(later, w)
    assert (of_later[:, :, :5] == y[:, :, :5]).all()
    assert np.isnan(of_later[:, :, 5:]).all()


def test_more_taps_than_steps() -> None:
    x, w = random(2, 3, 4), random(3, 9)
    assert ref.causal_conv_forward(x, w) == pytest.approx(ref.causal_conv_forward(x, w[:, 5:]))


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)], ids=str)
def test_nothing_gives_sums_of_nothing(shape: tuple[int, ...]) -> None:
    x, w, bias = np.ones(shape), np.ones((shape[1], 4)), np.ones(shape[1])
    assert ref.causal_conv_forward(x, w, bias).shape == shape
    dx, dw, dbias = ref.causal_conv_backward(x, x, w, bias)
    assert dx.shape == shape
    assert (dw == 0.0).all()
    assert (dbias == 0.0).all()


@pytest.mark.parametrize(("x", "y", "dx"), [(INF, INF, 1.0), (-INF, 0.0, 0.0)])
def test_silu_at_infinity(x: float, y: float, dx: float) -> None:
    one = np.array([[1.0]])
    assert ref.causal_conv_forward(sequence(x), one, activation="silu").item() == y
    gradient, _ = ref.causal_conv_backward(sequence(1.0), sequence(x), one, activation="silu")
    assert gradient.item() == dx


def test_without_a_bias_there_is_no_gradient_of_it() -> None:
    assert len(ref.causal_conv_backward(random(2, 3, 4), random(2, 3, 4), random(3, 2))) == 2


def test_channels_adjacent_in_memory_are_a_matter_of_strides() -> None:
    x, w = random(2, 3, 7), random(3, 4)
    by_steps = np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)
    assert (ref.causal_conv_forward(by_steps, w) == ref.causal_conv_forward(x, w)).all()


# --- Gradients ------------------------------------------------------------------------------------


@each_activation
@each_mode
@pytest.mark.parametrize("taps", [1, 3, 8])
def test_gradients_are_differences(activation: str, mode: str, taps: int) -> None:
    operands = [random(2, 3, 6), random(3, taps, seed=4), random(3, seed=5)]
    dy, options = random(2, 3, 6, seed=6), {"activation": activation, "mode": mode}

    def loss(*given: Array) -> float:
        return float(np.sum(dy * ref.causal_conv_forward(*given, **options)))

    gradients = ref.causal_conv_backward(dy, *operands, **options)
    for place, gradient in enumerate(gradients):
        for index in np.ndindex(gradient.shape):
            step = np.zeros(gradient.shape)
            step[index] = 1e-5
            ahead, behind = list(operands), list(operands)
            ahead[place], behind[place] = operands[place] + step, operands[place] - step
            slope = (loss(*ahead) - loss(*behind)) / 2e-5
            assert gradient[index] == pytest.approx(slope, rel=1e-6, abs=1e-8)


@each_activation
def test_torch_agrees(activation: str) -> None:
    torch = pytest.importorskip("torch")
    x, w, bias, dy = random(2, 4, 9), random(4, 3), random(4), random(2, 4, 9, seed=9)
    given = [torch.tensor(array, requires_grad=True) for array in (x, w, bias)]
    padded = torch.nn.functional.pad(given[0], (2, 0))
    a = torch.nn.functional.conv1d(padded, given[1][:, None], given[2], groups=4)
    y = torch.nn.functional.silu(a) if activation == "silu" else a
    expected = torch.autograd.grad(y, given, torch.tensor(dy))
    assert ref.causal_conv_forward(x, w, bias, activation=activation) == pytest.approx(
        y.detach().numpy()
    )
    gradients = ref.causal_conv_backward(dy, x, w, bias, activation=activation)
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert gradient == pytest.approx(wanted.numpy())


def test_a_filter_of_another_channel_count_is_refused() -> None:
    with pytest.raises(
        spec.ShapeError, match=r"w has shape \(4, 3\), but x has D=3; pass \[D, K\]"
    ):
        ref.causal_conv_forward(random(2, 3, 5), random(4, 3))


# --- Gated ----------------------------------------------------------------------------------------


def identity(channels: int, taps: int, mode: str = "cross_correlation") -> Array:
    """Filters that leave a sequence as it is."""
    w = np.zeros((channels, taps))
    w[:, -1 if mode == "cross_correlation" else 0] = 1.0
    return w


def gated_operands(near: int = 3, far: int = 5) -> list[Array]:
    """x, projection, mixer and skip of three channels and six steps."""
    return [
        random(2, 3, 3, 6),
        random(3, 3, near, seed=4),
        random(3, far, seed=5),
        random(3, seed=6),
    ]


def test_a_gated_convolution_by_hand() -> None:
    """Gate 1, 0, 2; factors 1, 2, 3 and 10, 100, 1000, the first one delayed by a step."""
    x = np.array([[[[1.0, 0.0, 2.0], [1.0, 2.0, 3.0], [10.0, 100.0, 1000.0]]]])
    projection = np.array([[[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]])
    out = ref.gated_causal_conv_forward(x, projection, np.array([[5.0, 7.0]]), np.array([0.5]))
    v = [0.0, 1.0 * 100.0, 2.0 * 1000.0]
    y = [0.0, 7.5 * v[1], 7.5 * v[2] + 5.0 * v[1]]
    assert out._fields == ("y", "gated")
    assert out.y[0, 0].tolist() == y
    assert out.gated[0, 0].tolist() == [0.0, 0.0, 2.0 * y[2]]


@each_mode
def test_filters_that_do_nothing_leave_a_product(mode: str) -> None:
    x = random(2, 3, 3, 6)
    projection = np.stack([identity(3, 4, mode)] * 3, axis=1)
    y, gated = ref.gated_causal_conv_forward(x, projection, identity(3, 5, mode), mode=mode)
    assert y == pytest.approx(x[:, :, 1] * x[:, :, 2])
    assert gated == pytest.approx(x[:, :, 0] * x[:, :, 1] * x[:, :, 2])


@each_mode
def test_a_gated_convolution_is_made_of_causal_ones(mode: str) -> None:
    x, projection, mixer, skip = gated_operands()
    gate, first, second = (
        ref.causal_conv_forward(x[:, :, i], projection[:, i], mode=mode) for i in range(3)
    )
    mixed = ref.causal_conv_forward(first * second, mixer, mode=mode)
    y, gated = ref.gated_causal_conv_forward(x, projection, mixer, skip, mode=mode)
    assert y == pytest.approx(mixed + skip[:, None] * first * second)
    assert gated == pytest.approx(gate * y)


def test_a_skip_is_one_more_weight_of_the_present_step() -> None:
    x, projection, mixer, skip = gated_operands()
    with_skip = mixer.copy()
    with_skip[:, -1] += skip
    for one, other in zip(
        ref.gated_causal_conv_forward(x, projection, mixer, skip),
        ref.gated_causal_conv_forward(x, projection, with_skip),
        strict=True,
    ):
        assert one == pytest.approx(other)


def test_the_gate_is_of_the_unrounded_y() -> None:
    x = np.array([[[[1.0 + 2.0**-9], [1.0 + 2.0**-10], [1.0 + 2.0**-10]]]], np.float16)
    one = np.ones((1, 3, 1), np.float16)
    y, gated = ref.gated_causal_conv_forward(x, one, one[:, 0])
    assert y.item() == 1.0 + 2.0**-9
    assert gated.item() == 1.0 + 2.0**-8
    x[0, 0, 0] = 1.0 + 2.0**-10
    v = (1.0 + 2.0**-10) ** 2
    assert np.float16(v * (1.0 + 2.0**-10)) == ref.gated_causal_conv_forward(x, one, one[:, 0])[1]


def test_no_gated_output_depends_on_a_later_input() -> None:
    x, projection, mixer, skip = gated_operands()
    later = x.copy()
    later[:, :, :, 4:] = NAN
    for one, of_later in zip(
        ref.gated_causal_conv_forward(x, projection, mixer, skip),
        ref.gated_causal_conv_forward(later, projection, mixer, skip),
        strict=True,
    ):
        assert (of_later[..., :4] == one[..., :4]).all()
        assert np.isnan(of_later[..., 4:]).all()


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)], ids=str)
def test_nothing_gated_is_nothing(shape: tuple[int, ...]) -> None:
    batch, channels, steps = shape
    x, projection = np.ones((batch, channels, 3, steps)), np.ones((channels, 3, 2))
    mixer, skip = np.ones((channels, 4)), np.ones(channels)
    y, gated = ref.gated_causal_conv_forward(x, projection, mixer, skip)
    assert (y.shape, gated.shape) == (shape, shape)
    dx, *rest = ref.gated_causal_conv_backward(y, y, x, projection, mixer, skip)
    assert dx.shape == x.shape
    assert all((gradient == 0.0).all() for gradient in rest)


@each_mode
@pytest.mark.parametrize(("near", "far"), [(1, 1), (3, 5), (7, 9)])
@pytest.mark.parametrize("skips", [False, True])
def test_gated_gradients_are_differences(mode: str, near: int, far: int, skips: bool) -> None:
    operands = gated_operands(near, far)[: 4 if skips else 3]
    dgated = random(2, 3, 6, seed=7)

    def loss(*given: Array) -> float:
        return float(np.sum(dgated * ref.gated_causal_conv_forward(*given, mode=mode).gated))

    y = ref.gated_causal_conv_forward(*operands, mode=mode).y
    gradients = ref.gated_causal_conv_backward(dgated, y, *operands, mode=mode)
    assert len(gradients) == len(operands)
    for place, gradient in enumerate(gradients):
        for index in list(np.ndindex(gradient.shape))[:: 1 if gradient.size < 40 else 7]:
            step = np.zeros(gradient.shape)
            step[index] = 1e-5
            ahead, behind = list(operands), list(operands)
            ahead[place], behind[place] = operands[place] + step, operands[place] - step
            slope = (loss(*ahead) - loss(*behind)) / 2e-5
            assert gradient[index] == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_two_sequences_instead_of_three_are_refused() -> None:
    x, projection, mixer, _ = gated_operands()
    with pytest.raises(spec.ShapeError, match=r"\(2, 3, 2, 6\); pass \[B, D, 3, T\]"):
        ref.gated_causal_conv_forward(x[:, :, :2], projection, mixer)
    with pytest.raises(spec.ShapeError, match=r"x has D=3; pass \[D, 3, P\]"):
        ref.gated_causal_conv_forward(x, projection[:, :2], mixer)
