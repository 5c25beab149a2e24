"""Primitives with several outputs, optional ones, and ones that are exact because they are discrete."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnncanon.conformance import bounds
from dnncanon.conformance.accuracy import ErrorArray, Precision
from dnncanon.conformance.backends import Backend
from dnncanon.conformance.bounds import expectations
from dnncanon.conformance.case import Case, CaseError
from dnncanon.conformance.execute import execute
from dnncanon.reference.definition import Definition
from dnncanon.reports import Verdict
from dnncanon.spec import (
    DTYPES,
    Arguments,
    Attribute,
    DTypeRow,
    Primitive,
    TensorSpec,
    TensorType,
    index_below,
)
from dnncanon.spec.attributes import Flag


def largest(p: Arguments, x: Any, pick: Any) -> Any:
    """The largest of each row, where it is, and the row's element number ``pick``."""
    index = np.argmax(x, axis=1) if p.attributes["return_index"] else None
    picked = np.take_along_axis(
        x,
        np.asarray(pick.value if isinstance(pick, ErrorArray) else pick).astype(np.int64)[:, None],
        axis=1,
    )
    return np.max(x, axis=1), index, picked[:, 0]


def outputs(p: Arguments) -> tuple[TensorType | None, ...]:
    rows = p.tensors["x"].shape[:1]
    index = TensorType("int32", rows) if p.attributes["return_index"] else None
    return TensorType(p.tensors["x"].dtype, rows), index, TensorType(p.tensors["x"].dtype, rows)


LARGEST: Primitive[Arguments] = Primitive(
    name="largest_forward",
    family="largest",
    summary="The largest of each row.",
    formula="y[i] = max_j x[i, j]",
    inputs=(
        TensorSpec("x", "M N", "rows"),
        TensorSpec(
            "pick", "M", "one of each", values=index_below(lambda p: p.tensors["x"].shape[1])
        ),
    ),
    outputs=(
        TensorSpec("y", "M", "the largest"),
        TensorSpec("index", "M", "where it is", optional=True),
        TensorSpec("picked", "M", "the one that was picked"),
    ),
    attributes=(Attribute("return_index", Flag(), "Whether to say where.", False),),
    dtypes=(DTypeRow("float32", ("ieee",)),),
    constraints=(),
    decisions=(),
    resolve=lambda a: a,
    infer=outputs,
    flops=lambda p: p.tensors["x"].size,
    reduction_length=lambda p: 1,
    domain=lambda draw, scale, dtype: Arguments({}, {}),
    may_copy=True,
)
DEFINITION = Definition(LARGEST, largest)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "definitions", lambda: {"largest_forward": DEFINITION})


def case(fill: str = "normal", *, return_index: bool = True) -> Case:
    tensors = {"x": TensorType("float32", (40, 7)), "pick": TensorType("int32", (40,))}
    return Case(LARGEST, Arguments(tensors, {"return_index": return_index}), fill=fill, seed=3)


def result_of(function: Any, one: Case | None = None) -> Any:
    backend = Backend("toy", SimpleNamespace(largest_forward=function))
    return execute(backend, one or case())


# --- The reference --------------------------------------------------------------------------------


def test_several_outputs_come_as_a_named_tuple() -> None:
    x, pick = np.array([[1, 5, 2]], np.float32), np.array([2], np.int32)
    found = DEFINITION(x, pick, return_index=True)
    assert type(found).__name__ == "LargestForwardOutputs"
    assert (found.y, found.index, found.picked) == (5, 1, 2)
    assert [array.dtype.name for array in found] == ["float32", "int32", "float32"]


def test_an_optional_output_is_not_there_unless_asked_for() -> None:
    x, pick = np.array([[1, 5, 2]], np.float32), np.array([2], np.int32)
    assert DEFINITION(x, pick)._fields == ("y", "picked")


# --- Verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", ["normal", "integers", "special"])
@pytest.mark.parametrize("return_index", [True, False])
def test_the_reference_conforms(fill: str, return_index: bool) -> None:
    result = result_of(DEFINITION, case(fill, return_index=return_index))
    assert result.verdict is Verdict.PASSED, result.message


def test_a_wrong_index_is_found_and_named() -> None:
    def wrong(x: Any, pick: Any, return_index: bool = False) -> Any:
        y, index, picked = DEFINITION(x, pick, return_index=return_index)
        index = index.copy()
        index[17] += 1
        return y, index, picked

    result = result_of(wrong)
    assert result.verdict is Verdict.FAILED
    assert "index[17]" in result.message
    assert "exactly" in result.message
    assert "1 of 40 elements are wrong" in result.message


def test_an_index_of_another_dtype_is_found_and_named() -> None:
    def wrong(x: Any, pick: Any, return_index: bool = False) -> Any:
        y, index, picked = DEFINITION(x, pick, return_index=return_index)
        return y, index.astype(np.int64), picked

    assert result_of(wrong).message == "index is int64[40], not int32[40]"


def test_a_missing_output_is_told() -> None:
    result = result_of(lambda x, pick, return_index: DEFINITION(x, pick))
    assert result.message == "2 outputs were returned, not 3"


def test_indices_of_test_data_exist() -> None:
    seen = []

    def looking(x: Any, pick: Any, return_index: bool = False) -> Any:
        seen.append(pick.copy())
        return DEFINITION(x, pick, return_index=return_index)

    assert result_of(looking, case("special")).verdict is Verdict.PASSED
    assert set(seen[0].tolist()) == set(range(7))


def test_a_layout_for_an_output_that_is_not_there_is_refused() -> None:
    words = "x=float32[2,3] pick=int32[2] index=:(2) return_index="
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dnncanon.conformance.case.primitives", lambda: {"largest_forward": LARGEST})
        assert Case.parse(f"largest_forward {words}true").layouts == {"index": (2,)}
        with pytest.raises(CaseError, match="this call has no output index"):
            Case.parse(f"largest_forward {words}false")


# --- Steps ----------------------------------------------------------------------------------------


def test_a_step_function_is_exact_away_from_its_steps() -> None:
    precision = Precision.of(DTYPES["float32"])
    x = ErrorArray(np.array([0.4, 1.4, -3.3, 1e6 + 0.4]), precision, 1e-12)
    rounded: Any = np.rint(x)
    assert rounded.value.tolist() == [0, 1, -3, 1e6]
    assert not rounded.has_errors


def test_a_step_within_reach_of_an_error_counts_whole() -> None:
    precision = Precision.of(DTYPES["float32"])
    x = ErrorArray(np.array([2.4999999, 2.4]), precision, 1e-12)
    rounded: Any = np.rint(x)
    reach = 8 * rounded.deviation()
    assert reach.tolist() == [1.0, 0.0]


def test_codes_may_be_off_by_the_step_that_an_error_reaches_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """x / 3 · 1.5 = n + ½ for x = 2n + 1, a tie that rounding the quotient may decide."""
    primitive = Primitive(
        **{
            **{f: getattr(LARGEST, f) for f in LARGEST.__dataclass_fields__ if f[0] != "_"},
            "name": "code_forward",
            "inputs": (TensorSpec("x", "N", "numbers"),),
            "outputs": (TensorSpec("code", "N", "integers"),),
            "attributes": (),
            "infer": lambda p: (TensorType("int8", p.tensors["x"].shape),),
        }
    )
    definition = Definition(primitive, lambda p, x: np.rint(x / 3.0 * 1.5))
    monkeypatch.setattr(bounds, "definitions", lambda: {"code_forward": definition})
    call = primitive.bind(TensorType("float32", (4,)))
    x = np.array([7.0, 7.1, 9.0, 400.0], np.float32)
    (expected,) = expectations(call, {"x": x}, "ieee")
    assert expected.value.tolist() == [4, 4, 4, 127]
    assert expected.bound.tolist() == [1, 0, 1, 0]
