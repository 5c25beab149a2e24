"""Drawn cases are legal, no larger than asked, of every kind, and shrink to the smallest."""

import math
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from operator import eq
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from dnncanon.conformance.case import Case
from dnncanon.conformance.data import DRAWN, FILLS
from dnncanon.conformance.levels import LEVELS
from dnncanon.conformance.simplify import simplified
from dnncanon.conformance.strategies import StreamDraw, build_case, cases, drawn_case, shrunk
from dnncanon.spec import (
    Scale,
    TensorType,
    channels_last_strides,
    check_output_layout,
    primitives,
    span,
)
from dnncanon.spec.causal_conv_problem import PROJECTIONS

SCALE = Scale(batch=3, channels=8, extent=14, multiplications=1 << 16)

DRAW = settings(
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
EVERY = [(p.name, row.dtype) for p in primitives().values() for row in p.dtypes]
every_primitive_and_dtype = pytest.mark.parametrize(("name", "dtype"), EVERY)


@cache
def drawn(name: str, dtype: str, count: int = 150, scale: Scale = SCALE) -> tuple[Case, ...]:
    """Some cases as a run draws them."""
    primitive = primitives()[name]
    return tuple(drawn_case(primitive, dtype, scale, 1, index)[0] for index in range(count))


def all_drawn() -> list[Case]:
    return [case for name, dtype in EVERY for case in drawn(name, dtype)]


def smallest(name: str, dtype: str, holds: Callable[[Case], bool]) -> str:
    """The case that a run would report: Hypothesis reduces the choices, then steps on the case follow."""
    strategy: st.SearchStrategy[Case] = cases(primitives()[name], dtype, SCALE)
    found = find(strategy, holds, settings=settings(DRAW, max_examples=5000), random=Random(1))
    return str(simplified(found, holds))


# --- Legal, and within the scale ------------------------------------------------------------------


@every_primitive_and_dtype
def test_the_strategy_draws_cases_within_the_scale(name: str, dtype: str) -> None:
    @settings(DRAW, max_examples=15)
    @given(cases(primitives()[name], dtype, SCALE))
    def explore(case: Case) -> None:
        assert case.call.dtype == dtype
        assert within(case, SCALE)

    explore()


@every_primitive_and_dtype
def test_cases_are_legal_calls_of_what_was_asked_for(name: str, dtype: str) -> None:
    for case in drawn(name, dtype):
        call = case.primitive.bind_arguments(case.arguments)
        assert call.primitive.name == name
        assert case.dtype == dtype
        assert not case.violates


@pytest.mark.parametrize("name", [n for n, p in primitives().items() if p.family == "conv"])
def test_convolutions_are_of_one_dtype(name: str) -> None:
    for case in drawn(name, "float16"):
        tensors = (*case.arguments.tensors.values(), *case.call.outputs)
        assert {tensor.dtype for tensor in tensors} == {"float16"}


@every_primitive_and_dtype
def test_outputs_have_layouts_in_which_nothing_overlaps(name: str, dtype: str) -> None:
    for case in drawn(name, dtype):
        types = case.call.named_outputs
        assert set(case.layouts) <= set(types)
        for output, strides in case.layouts.items():
            assert len(strides) == types[output].rank
            check_output_layout(output, types[output].shape, strides)


def within(case: Case, scale: Scale) -> bool:
    """Work and memory are limited whatever is long; in convolution the batch is too, and all dims but one."""
    tensors = (*case.arguments.tensors.values(), *case.call.outputs)
    # Two flops a product; the epilogue of the fused convolution adds four an output.
    epilogue = 4 * sum(tensor.size for tensor in case.call.outputs)
    if case.primitive.family != "conv":
        largest = max(tensor.size for tensor in tensors)
        return case.call.flops <= 2 * scale.multiplications and 2 * largest <= scale.multiplications
    return (
        case.call.flops <= 2 * scale.multiplications + epilogue
        and tensors[0].shape[0] <= max(3, scale.batch)
        and len(long_dims(case, scale)) <= 1
    )


def long_dims(case: Case, scale: Scale) -> list[str]:
    """The dims of a convolution's problem that exceed what is drawn of dims that are not long."""
    problem = getattr(case.call.problem, "conv", case.call.problem)
    if case.primitive.name == "conv_backward_bias":
        _, channels, *extents = problem.dy_shape
        sizes = {"channels": channels, "filters": 0}
    else:
        extents = problem.input_size
        sizes = {"channels": problem.in_channels, "filters": problem.out_channels}
    widest_filter = 3 * (9 - 1) + 1  # an input grows until the filter fits
    limits = {"channels": 2 * scale.channels, "filters": 2 * scale.channels}
    limits |= dict.fromkeys(map(str, range(3)), max(scale.extent, widest_filter))
    sizes |= {str(dim): extent for dim, extent in enumerate(extents)}
    return [name for name, size in sizes.items() if size > limits[name]]


@every_primitive_and_dtype
def test_cases_are_within_the_scale(name: str, dtype: str) -> None:
    assert all(within(case, SCALE) for case in drawn(name, dtype))


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_draws_within_its_scale(level: str) -> None:
    scale = LEVELS[level].scale
    for case in drawn("conv_forward", "float32", 60, scale):
        assert within(case, scale)
        memory = [*case.arguments.tensors.values(), *case.call.outputs]
        assert max(span(t.shape, t.element_strides) for t in memory) < 1 << 28


def test_a_larger_scale_draws_larger_cases() -> None:
    medians = []
    for level in ("quick", "standard", "full"):
        flops = [c.call.flops for c in drawn("conv_forward", "float32", 60, LEVELS[level].scale)]
        medians.append(sorted(flops)[len(flops) // 2])
    assert medians == sorted(set(medians))


# --- Of every kind --------------------------------------------------------------------------------


def layout_kind(tensor: TensorType) -> str:
    """dense, channels last, broadcast, gaps or permuted, as seen from the strides."""
    if tensor.strides is None:
        return "dense"
    if 0 in tensor.strides:
        return "broadcast"
    if tensor.rank > 2 and tensor.strides == channels_last_strides(tensor.shape):
        return "channels last"
    if span(tensor.shape, tensor.strides) > tensor.size:
        return "gaps"
    return "permuted"


def test_every_layout_of_inputs_occurs_often() -> None:
    kinds = Counter(layout_kind(t) for case in all_drawn() for t in case.arguments.tensors.values())
    total = sum(kinds.values())
    assert set(kinds) == {"dense", "channels last", "broadcast", "gaps", "permuted"}
    assert min(kinds.values()) > 0.04 * total
    assert kinds["dense"] > 0.2 * total


def test_every_layout_of_outputs_occurs_often_and_none_repeats_elements() -> None:
    kinds = Counter(
        layout_kind(TensorType(tensor.dtype, tensor.shape, case.layouts.get(name)))
        for case in all_drawn()
        for name, tensor in case.call.named_outputs.items()
    )
    total = sum(kinds.values())
    assert set(kinds) == {"dense", "channels last", "gaps", "permuted"}
    assert min(kinds.values()) > 0.03 * total
    assert kinds["dense"] > 0.3 * total


@every_primitive_and_dtype
def test_every_fill_occurs(name: str, dtype: str) -> None:
    fills = set(FILLS) if primitives()[name].inputs else {"normal"}  # without tensors no data
    assert {case.fill for case in drawn(name, dtype)} == fills


@pytest.mark.parametrize("name", primitives())
def test_every_fill_occurs_often_enough_to_find_something(name: str) -> None:
    of_primitive = [c for other, dtype in EVERY if other == name for c in drawn(name, dtype)]
    fills = Counter(case.fill for case in of_primitive)
    # Each is drawn as often as any other: so few are one in ten thousand of such campaigns.
    assert min(fills.values()) >= binom.ppf(1e-4, len(of_primitive), 1 / len(DRAWN))


def test_cases_do_not_repeat_and_seeds_hardly_do() -> None:
    every = all_drawn()
    assert len({str(case) for case in every}) > 0.99 * len(every)
    assert len({case.seed for case in every}) > 0.8 * len(every)


# --- The stream of choices ------------------------------------------------------------------------


def test_golden_choices() -> None:
    golden = [50, 0, 95, 82, 0, 75, 48, 32]
    draw = StreamDraw(7, "conv_forward float32 0")
    assert [draw.integer(0, 99) for _ in range(8)] == golden
    assert draw.choices == golden


def test_a_choice_without_alternative_takes_nothing_from_the_stream() -> None:
    draw, other = (StreamDraw(1, "stream") for _ in range(2))
    assert draw.integer(3, 3) == 3
    assert draw.choice(("only",)) == "only"
    assert draw.choices == []
    assert draw.integer(0, 1000) == other.integer(0, 1000)


def test_integers_cover_their_range_and_favour_its_ends() -> None:
    counts: Counter[int] = Counter()
    for stream in range(200):
        draw = StreamDraw(stream, "x")
        counts.update(draw.integer(2, 11) for _ in range(100))
    assert set(counts) == set(range(2, 12))
    inner = [counts[value] for value in range(3, 11)]
    assert min(inner) > 0.85 * max(inner)
    assert min(counts[2], counts[11]) > 1.4 * max(inner)


def test_options_are_drawn_evenly() -> None:
    options = tuple("abcdefgh")
    counts: Counter[str] = Counter()
    for stream in range(200):
        draw = StreamDraw(stream, "x")
        counts.update(draw.choice(options) for _ in range(100))
    assert set(counts) == set(options)
    assert min(counts.values()) > 0.9 * max(counts.values())


def test_offsets_that_ascend_are_not_one_offset_for_all() -> None:
    """Other tensors of the same cases are drawn with stride 0."""
    zeros: Counter[str] = Counter()
    for case in drawn("grouped_matmul_forward", "float32"):
        for tensor, t in case.arguments.tensors.items():
            dims = zip(t.shape, t.element_strides, strict=True)
            zeros[tensor] += any(n > 1 and stride == 0 for n, stride in dims)
    assert zeros["token"] > 0 < zeros["weight"]
    assert zeros["first_token_offset"] == zeros["token_index"] == zeros["token_ks"] == 0


@every_primitive_and_dtype
def test_a_case_depends_on_seed_and_index_alone(name: str, dtype: str) -> None:
    primitive = primitives()[name]
    case, choices = drawn_case(primitive, dtype, SCALE, 5, 3)
    for other in range(3):
        drawn_case(primitive, dtype, SCALE, 5, other)
    assert drawn_case(primitive, dtype, SCALE, 5, 3) == (case, choices)
    assert drawn_case(primitive, dtype, SCALE, 6, 3)[0] != case
    assert drawn_case(primitive, dtype, SCALE, 5, 4)[0] != case


@pytest.mark.parametrize("name", ["conv_forward", "conv_backward_bias"])
def test_hypothesis_makes_the_same_case_of_the_same_choices(name: str) -> None:
    primitive = primitives()[name]
    case, choices = drawn_case(primitive, "float32", SCALE, 2, 1)
    assert shrunk(primitive, "float32", SCALE, choices, partial(eq, case)) == case


def test_a_drawn_failure_is_reduced_to_the_smallest_case() -> None:
    """Whatever the case was, three channels that fail become three channels and nothing else."""
    primitive = primitives()["conv_forward"]

    def fails(case: Case) -> bool:
        return case.arguments.tensors["x"].shape[1] >= 3

    found: Counter[str] = Counter()
    for index in range(20):
        case, choices = drawn_case(primitive, "float32", SCALE, 9, index)
        if fails(case):
            found[str(shrunk(primitive, "float32", SCALE, choices, fails))] += 1
    line = "conv_forward x=float32[1,3,1] w=float32[1,3,1] padding=valid fill=normal seed=0"
    assert found.total() > 7
    assert found[line] > 0.8 * found.total()


def test_what_does_not_fail_again_is_not_shrunk() -> None:
    primitive = primitives()["conv_forward"]
    _, choices = drawn_case(primitive, "float32", SCALE, 9, 0)
    assert shrunk(primitive, "float32", SCALE, choices, lambda case: False) is None


FEATURES: dict[str, Callable[[dict[str, Any], dict[str, TensorType]], bool]] = {
    "one spatial dim": lambda a, t: t["x"].rank == 3,
    "two spatial dims": lambda a, t: t["x"].rank == 4,
    "three spatial dims": lambda a, t: t["x"].rank == 5,
    "an empty batch": lambda a, t: t["x"].shape[0] == 0,
    "a larger batch": lambda a, t: t["x"].shape[0] > 1,
    "groups": lambda a, t: a["groups"] > 1 and t["w"].shape[1] > 1,
    "depthwise": lambda a, t: a["groups"] == t["x"].shape[1] > 1,
    "a stride": lambda a, t: a["stride"] != 1,
    "strides that differ": lambda a, t: (
        isinstance(a["stride"], tuple) and len(set(a["stride"])) > 1
    ),
    "a dilation": lambda a, t: a["dilation"] != 1 and max(t["w"].shape[2:]) > 1,
    "no padding": lambda a, t: a["padding"] in (0, "valid"),
    "padding to the same extents": lambda a, t: a["padding"] == "same",
    "uneven padding": lambda a, t: (
        isinstance(a["padding"], tuple) and any(pre != post for pre, post in a["padding"])
    ),
    "padding of a filter's width or more": lambda a, t: (
        isinstance(a["padding"], tuple)
        and any(max(p) >= f for p, f in zip(a["padding"], t["w"].shape[2:], strict=True))
    ),
    "taps reversed": lambda a, t: a["mode"] == "convolution",
    "a filter of one tap": lambda a, t: max(t["w"].shape[2:]) == 1,
    "many channels": lambda a, t: t["x"].shape[1] > 4,
    "channels of more than a tile": lambda a, t: t["x"].shape[1] > 64,
    "filters of more than a tile": lambda a, t: t["w"].shape[0] > 64,
    "positions of more than a tile": lambda a, t: (
        t["x"].shape[0] * math.prod(t["x"].shape[2:]) > 256
    ),
    "sums of so many terms that they are split": lambda a, t: math.prod(t["w"].shape[1:]) > 256,
}


@pytest.mark.parametrize("feature", FEATURES)
def test_convolutions_of_every_kind_occur(feature: str) -> None:
    seen = [
        FEATURES[feature](dict(case.arguments.attributes), dict(case.arguments.tensors))
        for name, dtype in EVERY
        if name == "conv_forward"
        for case in drawn(name, dtype)
    ]
    assert sum(seen) >= 3


def test_the_fused_convolution_has_a_residual_now_and_then() -> None:
    fused = drawn("conv_bias_activation_forward", "float32")
    residual = ["z" in case.arguments.tensors for case in fused]
    assert 0.1 < sum(residual) / len(residual) < 0.9


def test_sums_over_batch_and_space_are_long_now_and_then() -> None:
    lengths = [
        case.primitive.reduction_length(case.call.problem)
        for case in drawn("conv_backward_bias", "float32")
    ]
    long = [length for length in lengths if length > 5000]
    assert len(long) > 0.1 * len(lengths)
    assert any(length % 2 for length in long)


def test_factors_of_zero_occur_with_what_they_hide() -> None:
    """A NaN in the sum spreads though alpha1 = 0, and one in the residual does not with alpha2 = 0."""
    seen = [
        (attributes["alpha1"], attributes["alpha2"], "z" in case.arguments.tensors)
        for case in drawn("conv_bias_activation_forward", "float32")
        for attributes in [case.arguments.attributes]
        if case.fill == "special"
    ]
    assert sum(alpha1 == 0 for alpha1, _, _ in seen) >= 3
    assert sum(alpha2 == 0 and z for _, alpha2, z in seen) >= 3


# --- Shrinking ------------------------------------------------------------------------------------

SMALLEST = {
    "conv_forward": "x={d}[1,1,1] w={d}[1,1,1]",
    "conv_backward_data": "dy={d}[1,1,1] w={d}[1,1,1]",
    "conv_backward_filter": "x={d}[1,1,1] dy={d}[1,1,1] filter_size=1",
    "conv_backward_bias": "dy={d}[1,1,1]",
    "conv_bias_activation_forward": "x={d}[1,1,1] w={d}[1,1,1] bias={d}[1]",
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [p for p in EVERY if (p[0] in SMALLEST and "float32" in p) or p[0] == "conv_backward_bias"],
)
def test_the_smallest_case_of_all(name: str, dtype: str) -> None:
    assert smallest(name, dtype, lambda case: True) == (
        f"{name} {SMALLEST[name].format(d=dtype)} fill=normal seed=0"
    )


class Simplest:
    """A source of choices that always takes the simplest."""

    def integer(self, low: int, high: int) -> int:
        return low

    def choice(self, options: tuple[Any, ...]) -> Any:
        return options[0]


@every_primitive_and_dtype
def test_the_simplest_choices_make_a_small_plain_case(name: str, dtype: str) -> None:
    """It is what every failing case is reduced towards."""
    case = build_case(Simplest(), primitives()[name], dtype, SCALE)
    tensors = (*case.arguments.tensors.values(), *case.call.outputs)
    least = {
        "affine_grid": 6,  # a map of the plane has six numbers
        "gated_causal_conv": PROJECTIONS,
        "rnn": 4,  # one unit's weights and biases, of each gate
        "gru": 3 * 4,
        "lstm": 4 * 4,
    }
    largest = next((size for family, size in least.items() if name.startswith(family)), 2)
    assert max(tensor.size for tensor in tensors) <= largest
    assert all(tensor.strides is None for tensor in tensors)
    assert (case.layouts, case.fill, case.seed, case.after, case.runs) == ({}, "normal", 0, None, 1)


def attribute(case: Case, name: str) -> tuple[int, ...]:
    value = case.arguments.attributes[name]
    return value if isinstance(value, tuple) else (value,)


SHRUNK: dict[str, tuple[Callable[[Case], bool], str]] = {
    "three channels": (
        lambda c: c.arguments.tensors["x"].shape[1] >= 3,
        "x=float32[1,3,1] w=float32[1,3,1] fill=normal seed=0",
    ),
    "two spatial dims": (
        lambda c: c.arguments.tensors["x"].rank == 4,
        "x=float32[1,1,1,1] w=float32[1,1,1,1] fill=normal seed=0",
    ),
    "a batch of two": (
        lambda c: c.arguments.tensors["x"].shape[0] >= 2,
        "x=float32[2,1,1] w=float32[1,1,1] fill=normal seed=0",
    ),
    "a filter of four taps": (
        lambda c: c.arguments.tensors["w"].shape[2] >= 4,
        "x=float32[1,1,4] w=float32[1,1,4] fill=normal seed=0",
    ),
    "a stride": (
        lambda c: c.arguments.attributes["stride"] != 1,
        "x=float32[1,1,1] w=float32[1,1,1] stride=2 fill=normal seed=0",
    ),
    "a dilation that matters": (
        lambda c: max(attribute(c, "dilation")) > 1 and c.arguments.tensors["w"].shape[2] > 1,
        "x=float32[1,1,3] w=float32[1,1,2] dilation=2 fill=normal seed=0",
    ),
    "a layout with gaps": (
        lambda c: (
            c.arguments.tensors["x"].shape[-1] > 1
            and c.arguments.tensors["x"].element_strides[-1] > 1
            and layout_kind(c.arguments.tensors["x"]) == "gaps"
        ),
        "x=float32[1,1,2]:(4,4,2) w=float32[1,1,1] fill=normal seed=0",
    ),
    "integers": (
        lambda c: c.fill == "integers",
        "x=float32[1,1,1] w=float32[1,1,1] fill=integers seed=0",
    ),
    "a seed": (
        lambda c: c.seed >= 1000,
        "x=float32[1,1,1] w=float32[1,1,1] fill=normal seed=1000",
    ),
}


@pytest.mark.parametrize("what", SHRUNK)
def test_a_condition_shrinks_to_the_smallest_case_that_meets_it(what: str) -> None:
    holds, expected = SHRUNK[what]
    assert smallest("conv_forward", "float32", holds) == f"conv_forward {expected}"


def test_every_convolution_has_its_smallest_case_here() -> None:
    assert set(SMALLEST) == {n for n, p in primitives().items() if p.family == "conv"}
