"""Values crowded beside a number of a narrow type are all rounded the same way, and that is no bias."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from dnncanon.conformance.backends import load
from dnncanon.conformance.bounds import Expected, expectations
from dnncanon.conformance.case import Case
from dnncanon.conformance.execute import execute, inputs
from dnncanon.conformance.verdict import judge
from dnncanon.reports import Verdict

Array = NDArray[Any]

CROWDED = (
    "cross_entropy_backward logits=bfloat16[1,256] target=int32[1] stats=float32[1] dloss=float32[] "
    "label_smoothing=0.1 fill=one_large seed=0"
)
SPREAD = "softmax_forward x=bfloat16[4,1000] fill=normal seed=3"


def expected(line: str) -> Expected:
    case = Case.parse(line)
    tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
    return expectations(case.call, tensors, "ieee")[0]


def test_a_constant_and_what_is_small_beside_its_spacing() -> None:
    """(ε/C)·(C·p − 1) of many small p: 12 deviations to one side where roundings are taken as random."""
    result = execute(load("reference"), Case.parse(CROWDED))
    assert result.verdict is Verdict.PASSED
    assert abs(result.bias or 0.0) < 4


def truncated(x: Array) -> Array:
    """Towards zero."""
    bits = x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("line", [SPREAD])
def test_truncation_of_what_is_spread_is_still_a_bias(line: str) -> None:
    wanted = expected(line)
    judged = judge(["y"], [truncated(wanted.value)], [wanted], [])
    assert judged.verdict is Verdict.FAILED
    rounded = judge(["y"], [wanted.value.astype(ml_dtypes.bfloat16)], [wanted], [])
    assert rounded.verdict is Verdict.PASSED
    assert abs(judged.bias or 0.0) > 5 * abs(rounded.bias or 0.0)
