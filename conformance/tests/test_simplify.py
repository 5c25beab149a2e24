"""The last step of shrinking: whatever a failing case was, the simplest one that fails is told."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dnncanon.conformance.backends import Backend, load
from dnncanon.conformance.case import Case
from dnncanon.conformance.cells import Cell, CellRun
from dnncanon.conformance.execute import execute
from dnncanon.conformance.levels import LEVELS
from dnncanon.conformance.simplify import simplified, weight
from dnncanon.conformance.strategies import drawn_case
from dnncanon.reports import CaseResult
from dnncanon.spec import TensorType, primitives

SCALE = LEVELS["quick"].scale


class Here:
    """As a pool, but in this process, where starting costs nothing."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.introduction = {
            "offered": backend.offered(),
            "raises_spec_errors": False,
            "accepts_out": False,
        }

    def run(self, case: Case) -> CaseResult:
        return execute(self.backend, case)

    def submit(
        self, case: Case, on_result: Callable[[CaseResult], None], worker: int | None = None
    ) -> None:
        on_result(self.run(case))


@pytest.mark.parametrize("seed", range(12))
def test_a_planted_bug_is_reduced_to_one_case_from_any_seed(hostile: str, seed: int) -> None:
    pool: Any = Here(load(f"{hostile}:StrideForDilation"))
    cell = Cell(primitives()["conv_forward"], "float32", SCALE, 100, seed)
    run = CellRun(cell, pool, lambda result: None)
    run.stop_at_failure = True
    run.submit()
    explained = run.explain(seconds=60.0)
    assert explained is not None
    assert explained.case == (
        "conv_forward x=float32[1,1,3] w=float32[1,1,2] stride=2 fill=normal seed=0"
    )


def first(case: Case) -> TensorType:
    return next(iter(case.arguments.tensors.values()))


def has_gaps(case: Case) -> bool:
    strides = first(case).element_strides
    return first(case).size > 1 and 1 not in strides and 0 not in strides


SIMPLEST: dict[str, tuple[Callable[[Case], bool], dict[str, str]]] = {
    "any": (
        lambda case: True,
        {
            "conv_forward": "x=float32[1,1,1] w=float32[1,1,1]",
            "conv_backward_data": "dy=float32[1,1,1] w=float32[1,1,1]",
            "conv_backward_filter": "x=float32[1,1,1] dy=float32[1,1,1] filter_size=1",
            "conv_backward_bias": "dy=float32[1,1,1]",
            "conv_bias_activation_forward": "x=float32[1,1,1] w=float32[1,1,1] bias=float32[1]",
        },
    ),
    "three channels": (
        lambda case: first(case).shape[1] >= 3,
        {
            "conv_forward": "x=float32[1,3,1] w=float32[1,3,1]",
            "conv_backward_data": "dy=float32[1,3,1] w=float32[3,1,1]",
            "conv_backward_filter": "x=float32[1,3,1] dy=float32[1,1,1] filter_size=1",
            "conv_backward_bias": "dy=float32[1,3,1]",
            "conv_bias_activation_forward": "x=float32[1,3,1] w=float32[1,3,1] bias=float32[1]",
        },
    ),
    "groups": (
        lambda case: case.arguments.attributes.get("groups", 1) > 1,
        {
            "conv_forward": "x=float32[1,2,1] w=float32[2,1,1] groups=2",
            "conv_backward_data": "dy=float32[1,2,1] w=float32[2,1,1] groups=2",
            "conv_backward_filter": "x=float32[1,2,1] dy=float32[1,2,1] groups=2 filter_size=1",
            "conv_bias_activation_forward": "x=float32[1,2,1] w=float32[2,1,1] bias=float32[2] groups=2",
        },
    ),
    "three spatial dims": (
        lambda case: first(case).rank == 5,
        {
            "conv_forward": "x=float32[1,1,1,1,1] w=float32[1,1,1,1,1]",
            "conv_backward_data": "dy=float32[1,1,1,1,1] w=float32[1,1,1,1,1]",
            "conv_backward_filter": "x=float32[1,1,1,1,1] dy=float32[1,1,1,1,1] filter_size=1,1,1",
            "conv_backward_bias": "dy=float32[1,1,1,1,1]",
            "conv_bias_activation_forward": "x=float32[1,1,1,1,1] w=float32[1,1,1,1,1] bias=float32[1]",
        },
    ),
    "a batch of two": (
        lambda case: first(case).shape[0] >= 2,
        {
            "conv_forward": "x=float32[2,1,1] w=float32[1,1,1]",
            "conv_backward_bias": "dy=float32[2,1,1]",
        },
    ),
    "a residual": (
        lambda case: "z" in case.arguments.tensors,
        {
            "conv_bias_activation_forward": "x=float32[1,1,1] w=float32[1,1,1] bias=float32[1] "
            "z=float32[1,1,1]"
        },
    ),
    "a dilation that is met": (
        lambda case: (
            np.ravel(case.arguments.attributes["dilation"])[-1] > 1
            and case.arguments.tensors["w"].shape[-1] > 1
        ),
        {"conv_forward": "x=float32[1,1,3] w=float32[1,1,2] dilation=2"},
    ),
    "reversed taps": (
        lambda case: case.arguments.attributes["mode"] == "convolution",
        {
            "conv_backward_filter": "x=float32[1,1,1] dy=float32[1,1,1] mode=convolution filter_size=1"
        },
    ),
}
PAIRS = [(what, name) for what, (_, lines) in SIMPLEST.items() for name in lines]


@pytest.mark.parametrize(("what", "name"), PAIRS)
def test_a_condition_leads_to_its_simplest_case_from_anywhere(what: str, name: str) -> None:
    holds, lines = SIMPLEST[what]
    drawn = (drawn_case(primitives()[name], "float32", SCALE, 3, index)[0] for index in range(30))
    found = Counter(str(simplified(case, holds)) for case in drawn if holds(case))
    assert found.total() >= 2
    assert set(found) == {f"{name} {lines[name]} fill=normal seed=0"}


def test_a_layout_is_kept_where_it_matters() -> None:
    for index in range(200):
        case, _ = drawn_case(primitives()["conv_forward"], "float32", SCALE, 3, index)
        if has_gaps(case):
            simple = simplified(case, has_gaps)
            assert has_gaps(simple)
            assert first(simple).size == 2
            assert simple.layouts == {}


def test_words_that_matter_stay_and_others_go() -> None:
    line = (
        "conv_forward x=float32[2,4,6,6]:nhwc w=float32[4,2,3,3] y=:nhwc padding=1,2 groups=2 "
        "fill=mixed seed=77 after=78 runs=2"
    )
    for word in ("fill=mixed", "after=78", "runs=2", "seed=77"):
        simple = str(simplified(Case.parse(line), lambda case, w=word: w in str(case).split()))  # type: ignore[misc]
        assert word in simple.split()
        assert simple.startswith("conv_forward x=float32[1,1,1] w=float32[1,1,1] fill=")


def test_every_step_is_to_a_simpler_case_and_only_failing_ones_are_taken() -> None:
    case, _ = drawn_case(primitives()["conv_backward_data"], "float32", SCALE, 3, 4)
    seen: list[Case] = []

    def fails(candidate: Case) -> bool:
        seen.append(candidate)
        return len(seen) % 3 == 0

    simple = simplified(case, fails)
    assert simple in (case, *seen)
    assert weight(simple) <= weight(case)
    assert len({str(candidate) for candidate in seen}) == len(seen)


def test_a_boundary_case_is_reduced_as_well() -> None:
    case = Case.parse("conv_forward x=float32[1,1,65537] w=float32[1,1,2] padding=1 seed=3")
    simple = simplified(case, lambda c: c.arguments.tensors["x"].shape[2] >= 40_000)
    assert str(simple) == ("conv_forward x=float32[1,1,40000] w=float32[1,1,1] fill=normal seed=0")


def test_tensors_of_several_ranks_are_reduced_together() -> None:
    case = Case.parse(
        "reduce_backward dy=float32[3,5] x=float32[3,4,5] op=norm1 axes=1 fill=mixed seed=3"
    )
    simple = simplified(case, lambda c: c.arguments.tensors["x"].shape[1] >= 2)
    assert str(simple) == (
        "reduce_backward dy=float32[1] x=float32[1,2] op=norm1 axes=1 fill=normal seed=0"
    )


def test_a_primitive_without_tensors_is_reduced_in_its_attributes() -> None:
    case = Case.parse(
        "rng_normal shape=3,4,50 attribute.seed=18446744073709551615 subsequence=7 offset=100 std=30.0 "
        "fill=mixed seed=3 runs=2"
    )
    simple = simplified(case, lambda c: c.call.outputs[0].size >= 6)
    assert str(simple) == "rng_normal shape=6 attribute.seed=0 fill=normal seed=0"
    simple = simplified(case, lambda c: c.call.problem.stream.offset >= 9)
    assert str(simple) == "rng_normal shape=1 attribute.seed=0 offset=9 fill=normal seed=0"


def test_an_output_with_strides_may_gain_a_dim_on_the_way() -> None:
    """Summed over one axis less, which is tried, it has two dims, but strides for one."""
    case = Case.parse("reduce_forward x=float32[2,3,4] y=:(2) op=add axes=0,2")
    simple = simplified(case, lambda c: (first(c).rank, c.call.outputs[0].rank) == (3, 1))
    assert str(simple) == "reduce_forward x=float32[1,1,1] op=add axes=0,1 fill=normal seed=0"


def test_a_graph_is_reduced_to_the_part_that_fails() -> None:
    case = Case.parse(
        "pointwise_fusion a=float32[2,3] b=float32[2,1] c=float32[1,3] f=bool[2,3] "
        "graph=t0=elu_fwd(add(mul(a,b),c),elu_alpha=1.5);binary_select(mul(tanh_fwd(t0),t0),0.5,f) "
        "fill=mixed seed=7"
    )
    smallest = simplified(case, lambda one: "tanh_fwd" in str(one))
    assert str(smallest) == "pointwise_fusion a=float32[1] graph=tanh_fwd(a) fill=normal seed=0"
    smallest = simplified(case, lambda one: "elu_alpha" in str(one))
    line = "pointwise_fusion a=float32[1] graph=elu_fwd(a,elu_alpha=1.5) fill=normal seed=0"
    assert str(smallest) == line
