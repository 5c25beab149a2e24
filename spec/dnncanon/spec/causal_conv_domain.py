"""The domain of causal convolutions that cases are drawn from, and its boundaries."""

from collections.abc import Callable, Iterator, Mapping

from dnncanon.spec.causal_conv_problem import ACTIVATIONS, PROJECTIONS
from dnncanon.spec.conv_problem import MODES
from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.tensors import Shape, TensorType

_TAPS = (1, 2, 3, 4, 4, 5, 7, 8, 16, 33)
_NEAR_TAPS = (1, 2, 3, 4, 7)
_LONG = ("nothing", "nothing", "steps", "channels")


def _shape(draw: Draw, scale: Scale) -> Shape:
    """(B, D, T) before it is made to fit."""
    batch = draw.choice((*range(1, scale.batch + 1), *(1, 2, 3) * 6, 0))
    channels, steps = draw.integer(1, scale.channels), draw.integer(1, 2 * scale.extent)
    return min(batch, scale.batch), channels, steps


def _fitted(draw: Draw, scale: Scale, shape: Shape, work: int) -> Shape:
    """The shape, of many steps or channels now and then, with ``work`` products for each element."""
    batch, channels, steps = shape
    long, odd = draw.choice(_LONG), draw.integer(0, 15)
    budget = scale.multiplications // work
    if long == "steps":
        steps = max(steps, min(40 * steps, budget // max(1, batch * channels)) - odd)
    if long == "channels":
        channels = max(channels, min(20 * channels, budget // max(1, batch * steps)) - odd)
    while batch * channels * steps > max(1, budget):
        channels, steps = (
            (max(1, channels // 2), steps) if channels > steps else (channels, steps // 2)
        )
    return batch, channels, steps


# --- One convolution ------------------------------------------------------------------------------


def _call(
    dtype: str, shape: Shape, taps: int, *, biased: bool, first: str, **attributes: str
) -> Arguments:
    """``first`` is "x", or "dy" for the gradients, which x then follows."""
    tensors = {"dy": TensorType(dtype, shape)} if first == "dy" else {}
    tensors |= {"x": TensorType(dtype, shape), "w": TensorType(dtype, (shape[1], taps))}
    if biased:
        tensors["bias"] = TensorType(dtype, (shape[1],))
    return Arguments(tensors, {"activation": "identity", "mode": MODES[0], **attributes})


def domain(first: str) -> Callable[[Draw, Scale, str], Arguments]:
    """The domain of the convolution whose first tensor is this."""

    def drawn(draw: Draw, scale: Scale, dtype: str) -> Arguments:
        shape = _shape(draw, scale)
        taps, biased = draw.choice(_TAPS), draw.choice((False, True))
        activation, mode = draw.choice(ACTIVATIONS), draw.choice(MODES)
        # Backward: three sums over the taps.
        shape = _fitted(draw, scale, shape, 8 * taps)
        return _call(
            dtype, shape, taps, biased=biased, first=first, activation=activation, mode=mode
        )

    return drawn


def _all_boundaries() -> Iterator[tuple[str, Shape, int, Mapping[str, str]]]:
    """Name, shape, taps and attributes, the cheapest first."""
    silu = {"activation": "silu"}
    yield "empty batch", (0, 2, 5), 3, {}
    yield "no channels", (2, 0, 5), 3, {}
    yield "no steps", (2, 3, 0), 3, {}
    yield "one tap", (2, 3, 5), 1, silu
    yield "as many taps as steps", (2, 3, 7), 7, {}
    yield "more taps than steps", (2, 3, 4), 9, {"mode": "convolution"}
    for taps in (2, 3, 4, 8, 16, 32, 64, 128, 256):
        yield f"{taps} taps, as cuDNN has them", (1, 2, taps + 3), taps, silu
    for channels in (7, 8, 9, 31, 32, 33):
        yield f"{channels} channels", (1, channels, 9), 4, silu
    for steps in (127, 128, 129, 1023, 1024, 1025):
        yield f"{steps} steps", (1, 2, steps), 4, silu
    yield "65,537 steps", (1, 1, 2**16 + 1), 2, {}
    yield "65,537 channels", (1, 2**16 + 1, 2), 2, {}
    yield "batch 65,537", (2**16 + 1, 1, 2), 2, {}
    yield "more than 2^31 elements", (2, 2**14, 2**16 + 1), 4, {}


def boundaries(first: str) -> Callable[[str], Iterator[Boundary]]:
    """The boundaries of the convolution whose first tensor is this."""

    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for name, shape, taps, attributes in _all_boundaries():
            yield Boundary(name, _call(dtype, shape, taps, biased=True, first=first, **attributes))
        plain = _call(dtype, (2, 6, 9), 4, biased=True, first=first, activation="silu")
        layouts = {
            "channels adjacent, as cuDNN's NWH": (54, 1, 6),
            "one sequence for the batch": (0, 9, 1),
            "gaps": (400, 40, 3),
            "channels 2^29 apart": (6 * 2**29, 2**29, 1),
        }
        for name, strides in layouts.items():
            yield Boundary(name, plain.with_tensor("x", strides=strides))

    return of_dtype


# --- Gated ----------------------------------------------------------------------------------------


def _gated(
    dtype: str, shape: Shape, near: int, far: int, *, skips: bool, backward: bool, mode: str
) -> Arguments:
    """Filters of ``near`` and ``far`` taps; with ``skips`` there is a factor of what is mixed."""
    batch, channels, steps = shape
    results = ("dgated", "y") if backward else ()
    tensors = {name: TensorType(dtype, shape) for name in results}
    tensors["x"] = TensorType(dtype, (batch, channels, PROJECTIONS, steps))
    tensors["projection"] = TensorType(dtype, (channels, PROJECTIONS, near))
    tensors["mixer"] = TensorType(dtype, (channels, far))
    if skips:
        tensors["skip"] = TensorType(dtype, (channels,))
    return Arguments(tensors, {"mode": mode})


def gated_domain(*, backward: bool) -> Callable[[Draw, Scale, str], Arguments]:
    """The domain of the gated convolution in one direction."""

    def drawn(draw: Draw, scale: Scale, dtype: str) -> Arguments:
        shape = _shape(draw, scale)
        near, far = draw.choice(_NEAR_TAPS), draw.choice(_TAPS)
        skips, mode = draw.choice((False, True)), draw.choice(MODES)
        # Backward: three sums over the taps of each filter.
        shape = _fitted(draw, scale, shape, 8 * (PROJECTIONS * near + far))
        return _gated(dtype, shape, near, far, skips=skips, backward=backward, mode=mode)

    return drawn


def _gated_boundaries() -> Iterator[tuple[str, Shape, int, int]]:
    """Name, shape, and taps of projections and mixer, the cheapest first."""
    yield "empty batch", (0, 2, 5), 3, 4
    yield "no channels", (2, 0, 5), 3, 4
    yield "no steps", (2, 3, 0), 3, 4
    yield "one tap each", (2, 3, 5), 1, 1
    yield "more taps than steps", (2, 3, 4), 5, 9
    for taps in (127, 128, 129, 515):
        yield f"a mixer of {taps} taps", (1, 2, taps + 4), 3, taps
    for steps in (31, 32, 33, 511, 512, 513, 1025):
        yield f"{steps} steps", (1, 2, steps), 3, 7
    yield "65,537 steps", (1, 1, 2**16 + 1), 2, 3
    yield "65,537 channels", (1, 2**16 + 1, 2), 2, 2
    yield "batch 65,537", (2**16 + 1, 1, 2), 2, 2
    yield "more than 2^31 elements", (2, 2**14, 2**16 + 1), 3, 4


def gated_boundaries(*, backward: bool) -> Callable[[str], Iterator[Boundary]]:
    """The boundaries of the gated convolution in one direction."""

    def call(dtype: str, shape: Shape, near: int, far: int) -> Arguments:
        return _gated(dtype, shape, near, far, skips=True, backward=backward, mode=MODES[0])

    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for name, shape, near, far in _gated_boundaries():
            yield Boundary(name, call(dtype, shape, near, far))
        plain = call(dtype, (2, 6, 9), 3, 4)
        layouts = {
            "channels adjacent": (162, 1, 6, 18),
            "projections outermost": (54, 9, 108, 1),
            "one sequence for all three projections": (54, 9, 0, 1),
            "gaps": (400, 60, 20, 2),
        }
        for name, strides in layouts.items():
            yield Boundary(name, plain.with_tensor("x", strides=strides))

    return of_dtype
