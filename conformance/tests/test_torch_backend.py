"""PyTorch as a backend: what its adapter has to work around."""

import pytest

from dnncanon.conformance.backends import load
from dnncanon.conformance.case import Case
from dnncanon.conformance.execute import execute
from dnncanon.reports import Verdict

pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_strides_of_dims_of_extent_1_mean_nothing(dtype: str) -> None:
    line = f"conv_forward x={dtype}[1,4,1,2]:nhwc w={dtype}[2,2,1,2]:(4,1,1,2) groups=2 seed=0"
    assert execute(load("torch"), Case.parse(line)).verdict is Verdict.PASSED
