"""Backends with one algorithm compute with that one, on cases that "auto" would give to another."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dnncanon.gpu import algorithms, backend, single_algorithm
from dnncanon.gpu.kernels.conv_direct import Direct
from dnncanon.gpu.kernels.conv_implicit_gemm import ImplicitGemm
from dnncanon.spec import AttributeValueError

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize(
    ("name", "implementation"), [("direct", Direct), ("implicit_gemm", ImplicitGemm)]
)
def test_the_named_algorithm_runs(
    name: str,
    implementation: type[Any],
    exact: Callable[..., Array],
    definition: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only = getattr(single_algorithm, name)
    x, w = exact((1, 2, 5), "float32"), exact((3, 2, 3), "float32", seed=1)
    ran: list[str] = []
    run = implementation.run

    def noted(self: Any, *arguments: Any) -> None:
        ran.append(self.name)
        run(self, *arguments)

    monkeypatch.setattr(implementation, "run", noted)
    y = only.to_host(only.conv_forward(only.to_device(x), only.to_device(w)))
    expected = definition.forward(definition.problem(x.shape, w.shape), x, w)
    assert ran == [name]
    np.testing.assert_array_equal(y, expected)


def test_auto_would_not_run_the_implicit_gemm_here(exact: Callable[..., Array]) -> None:
    x, w = exact((1, 2, 5), "float32"), exact((3, 2, 3), "float32", seed=1)
    assert algorithms("conv_forward", x, w)[0].name == "direct"


def test_an_algorithm_that_there_is_not_is_refused(exact: Callable[..., Array]) -> None:
    none = single_algorithm.only("none", ("conv_forward",))
    x, w = exact((1, 2, 5), "float32"), exact((3, 2, 3), "float32", seed=1)
    with pytest.raises(AttributeValueError, match="algorithm='none'"):
        none.conv_forward(x, w)


def test_an_algorithm_of_a_numerics_class_of_its_own_claims_that(
    exact: Callable[..., Array],
) -> None:
    claims = single_algorithm.fft.describe()["numerics"]
    assert set(claims["causal_conv_forward"].values()) == {"fft"}
    assert claims["conv_forward"] == {
        "float64": "fft", "float32": "fft", "float16": "ieee", "bfloat16": "ieee"
    }  # fmt: skip
    assert claims["softmax_forward"]["float32"] == "ieee"
    assert backend.describe()["numerics"]["causal_conv_forward"]["float32"] == "ieee"


def test_the_workspace_is_that_of_the_named_algorithm(exact: Callable[..., Array]) -> None:
    x, w = exact((1, 2, 50), "float32"), exact((2, 5), "float32", seed=1)
    rows = {row.name: row for row in algorithms("causal_conv_forward", x, w)}
    nbytes = single_algorithm.fft.workspace_bytes("causal_conv_forward", x, w)
    assert nbytes == rows["fft"].workspace_bytes > 0
    assert backend.workspace_bytes("causal_conv_forward", x, w) == 0
