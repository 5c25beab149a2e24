"""Attention: who sees what, the slopes of ALiBi, and what is said of calls that contradict themselves."""

from typing import Any

import numpy as np
import pytest

from dnncanon import spec
from dnncanon.spec import AttributeValueError, DTypeError, ShapeError
from dnncanon.spec.attention_problem import AttentionProblem, alibi_slopes


def problem(rows: int, columns: int, **options: Any) -> AttentionProblem:
    q, kv = np.ones((1, 1, rows, 2), "f"), np.ones((1, 1, columns, 2), "f")
    call: spec.Call[AttentionProblem] = spec.sdpa_forward.bind(q, kv, kv, scale=1.0, **options)
    return call.problem


def picture(p: AttentionProblem) -> list[str]:
    return ["".join(".x"[seen] for seen in row) for row in p.visible[0, 0].astype(int)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["xxxxx", "xxxxx", "xxxxx"]),
        ({"right_bound": 0}, ["x....", "xx...", "xxx.."]),
        ({"right_bound": 0, "alignment": "bottom_right"}, ["xxx..", "xxxx.", "xxxxx"]),
        ({"right_bound": 1}, ["xx...", "xxx..", "xxxx."]),
        ({"left_bound": 1, "right_bound": 0}, ["x....", ".x...", "..x.."]),
        ({"left_bound": 2, "right_bound": 0}, ["x....", "xx...", ".xx.."]),
        ({"left_bound": 1}, ["xxxxx", ".xxxx", "..xxx"]),
        ({"q_lengths": (2,), "kv_lengths": (4,)}, ["xxxx.", "xxxx.", "....."]),
        (
            {"kv_lengths": (2,), "right_bound": 0, "alignment": "bottom_right"},
            [".....", "x....", "xx..."],
        ),
    ],
)
def test_who_sees_what(options: dict[str, Any], expected: list[str]) -> None:
    """Three rows, five columns."""
    assert picture(problem(3, 5, **options)) == expected


def test_slopes_of_a_power_of_two() -> None:
    assert alibi_slopes(8) == tuple(2.0**-i for i in range(1, 9))


def test_slopes_of_other_numbers_go_on_between_those_of_the_power_below() -> None:
    """As the authors' code has it for 12 heads: 8 of 8, then every second one of 16."""
    assert alibi_slopes(12)[:8] == alibi_slopes(8)
    assert alibi_slopes(12)[8:] == alibi_slopes(16)[:8:2]
    assert (alibi_slopes(1), alibi_slopes(0)) == ((2.0**-8,), ())


Q, K, V = np.ones((2, 6, 3, 4), "f"), np.ones((2, 2, 5, 4), "f"), np.ones((2, 3, 5, 7), "f")


def test_groups_sizes_and_layouts_are_free() -> None:
    call = spec.sdpa_forward.bind(Q, K, V, scale=0.5, return_stats=True)
    assert [output.shape for output in call.outputs] == [(2, 6, 3, 7), (2, 6, 3)]


@pytest.mark.parametrize(
    ("tensors", "attributes", "error", "message"),
    [
        ((Q, K[:, :, :, :3], V), {}, ShapeError, "q has heads of 4 elements and k of 3"),
        ((Q, K[:, :, :4], V), {}, ShapeError, "k has 4 columns and v 5"),
        (
            (Q, np.ones((2, 4, 5, 4), "f"), V),
            {},
            ShapeError,
            "q has 6 heads and k 4; pass a divisor",
        ),
        ((Q, K, V, np.ones((1, 6, 2, 5), "f")), {}, ShapeError, r"bias has shape \(1, 6, 2, 5\)"),
        ((Q, K, V, None, np.ones(2, "f")), {}, ShapeError, r"pass \[Hq\] = \(6,\)"),
        ((Q, K.astype("f8"), V), {}, DTypeError, "k is float64 with q of float32"),
        ((Q, K, V), {"scale": 0.0}, AttributeValueError, "other than 0, such as 1/sqrt"),
        ((Q, K, V), {"scale": float("nan")}, AttributeValueError, "nan is not finite"),
        ((Q, K, V), {"left_bound": 0}, AttributeValueError, "an integer >= 1, or -1 for none"),
        ((Q, K, V), {"kv_lengths": (6, 1)}, AttributeValueError, "integers from 0 to 5"),
        ((Q, K, V), {"q_lengths": (1,)}, AttributeValueError, "for a batch of 2"),
        ((Q, K, V), {"alignment": "center"}, AttributeValueError, "top_left"),
    ],
)
def test_bad_input_names_what_is_wrong(
    tensors: tuple[Any, ...],
    attributes: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        spec.sdpa_forward.bind(*tensors, **{"scale": 1.0, **attributes})
