"""An ``out=`` that does not fit is asked for in every way, in words that read back, and has to be refused."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

import dnncanon.reference as reference
from dnncanon.conformance import case as lines
from dnncanon.conformance import transfer
from dnncanon.conformance.backends import Backend
from dnncanon.conformance.case import Case, CaseError, wrong_out_cases
from dnncanon.conformance.cells import Cell, CellRun
from dnncanon.conformance.execute import execute, inputs
from dnncanon.conformance.levels import LEVELS
from dnncanon.conformance.output_violations import WrongOut, words
from dnncanon.conformance.shards import Shard
from dnncanon.conformance.strategies import cases
from dnncanon.conformance.transfer import Sent
from dnncanon.reports import CaseResult, Verdict
from dnncanon.spec import (
    DTypeError,
    LayoutError,
    Scale,
    ShapeError,
    TensorType,
    Unsupported,
    check_output_layout,
    primitives,
)

Array = NDArray[Any]

SCALE = Scale(batch=3, channels=6, extent=12, multiplications=1 << 14)
LINE = "conv_forward x=float32[2,1,4] w=float32[3,1,2]"  # y=float32[2,3,3]
ASPECTS = ("shape", "dtype", "strides", "memory")

drawn = st.sampled_from(
    [(p, row.dtype) for p in primitives().values() for row in p.dtypes]
).flatmap(lambda pair: cases(pair[0], pair[1], SCALE))


def case(violates: str, line: str = LINE) -> Case:
    return Case.parse(f"{line} violates={violates}")


def wrong(violates: str, line: str = LINE) -> WrongOut:
    found = case(violates, line).wrong_out
    assert found is not None
    return found


# --- Words ----------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(case=drawn)
def test_cases_of_a_wrong_out_are_their_lines(case: Case) -> None:
    variants = list(wrong_out_cases(replace(case, after=3, runs=2)))
    assert len({str(variant) for variant in variants}) == len(variants) > 0
    for variant in variants:
        again = Case.parse(str(variant))
        assert again == variant
        assert str(again) == str(variant)
        assert again.wrong_out == variant.wrong_out
        assert variant.layer == "must-error"
        assert variant.after is None
        assert variant.runs == 1


@settings(max_examples=40, deadline=None)
@given(case=drawn)
def test_one_property_is_wrong_at_a_time(case: Case) -> None:
    for variant in wrong_out_cases(case):
        out = variant.wrong_out
        assert out is not None
        given, expected = out.given, out.expected
        assert case.call.named_outputs[out.output].shape == expected.shape
        assert (given.shape != expected.shape) == (out.aspect == "shape")
        assert (given.dtype != expected.dtype) == (out.aspect == "dtype")
        assert bool(out.over) == (out.aspect == "memory")
        assert overlaps(given) == (out.aspect == "strides")


def overlaps(tensor: TensorType) -> bool:
    try:
        check_output_layout("", tensor.shape, tensor.element_strides)
    except LayoutError:
        return True
    return False


@pytest.mark.parametrize("name", primitives())
def test_every_output_of_every_primitive_is_tried_in_every_aspect(name: str) -> None:
    """In memory only over tensors of its dtype: a backend need not offer views of another."""
    primitive = primitives()[name]
    tried: set[tuple[str, str]] = set()
    expected: set[tuple[str, str]] = set()

    @settings(max_examples=20, deadline=None, database=None, derandomize=True)
    @given(case=cases(primitive, primitive.dtypes[0].dtype, SCALE))
    def explore(case: Case) -> None:
        outs = [variant.wrong_out for variant in wrong_out_cases(case)]
        tried.update((out.output, out.aspect) for out in outs if out)
        before = [tensor.dtype for tensor in case.arguments.tensors.values() if tensor.size]
        for output, tensor in case.call.named_outputs.items():
            aspects = ["shape", "dtype", *(["strides"] if tensor.size > 1 else [])]
            aspects += ["memory"] if tensor.size and tensor.dtype in before else []
            expected.update((output, aspect) for aspect in aspects)
            before += [tensor.dtype] if tensor.size else []

    explore()
    assert tried == expected
    assert {output for output, _ in tried} == {spec.name for spec in primitive.outputs}


def test_the_ways_of_a_small_output() -> None:
    assert list(words(Case.parse(LINE).call, {})) == [
        *("y.shape:1,2,3,3", "y.shape:1,3,3", "y.shape:2,2,3", "y.shape:2,3", "y.shape:2,3,2"),
        *("y.shape:2,3,3,1", "y.shape:2,3,4", "y.shape:2,4,3", "y.shape:3,3", "y.shape:3,3,2"),
        *("y.shape:3,3,3", "y.dtype:float64", "y.dtype:float16", "y.dtype:bfloat16"),
        *("y.dtype:int32", "y.dtype:uint32"),
        *("y.strides:0,0,0", "y.strides:0,3,1", "y.strides:8,3,1", "y.strides:9,0,1"),
        *("y.strides:9,2,1", "y.strides:9,3,0"),
        *("y.first:x.first", "y.first:x.last", "y.last:x.first"),
        *("y.first:w.first", "y.first:w.last", "y.last:w.first"),
    ]


def test_an_output_without_elements_overlaps_nothing() -> None:
    empty = Case.parse("conv_forward x=float32[0,1,4] w=float32[3,1,2]")
    aspects = {variant.wrong_out.aspect for variant in wrong_out_cases(empty) if variant.wrong_out}
    assert aspects == {"shape", "dtype"}


def test_a_layout_gives_way_to_another_shape_or_strides_and_stays_otherwise() -> None:
    line = f"{LINE} y=:nwc"
    assert "y=:nwc" not in str(case("y.shape:2,3,4", line))
    assert "y=:nwc" not in str(case("y.strides:9,3,0", line))
    assert wrong("y.dtype:int32", line).given == TensorType("int32", (2, 3, 3), (9, 1, 3))
    assert wrong("y.first:x.last", line).given == TensorType("float32", (2, 3, 3), (9, 1, 3))
    assert "y=:nwc" in str(case("y.first:x.last", line))


@pytest.mark.parametrize(
    ("violates", "offset"),
    [
        ("y.first:x.first", 0),
        ("y.first:x.last", 29),
        ("y.last:x.first", -17),
        ("y.last:w.last", -12),
    ],
)
def test_ends_are_counted_along_the_strides(violates: str, offset: int) -> None:
    line = LINE.replace("x=float32[2,1,4]", "x=float32[2,1,4]:(20,9,3)")
    assert wrong(violates, line).offset == offset


@pytest.mark.parametrize(
    ("violates", "says"),
    [
        ("y.shape:2,3,3", "y may have the shape (2, 3, 3)"),
        ("y.dtype:float32", "y may have the dtype float32"),
        ("y.strides:9,3,1", "y may have the strides (9, 3, 1)"),
        ("y.strides:1,6,2", "y may have the strides (1, 6, 2)"),
        ("y.strides:9,3", "2 strides for 3 dims"),
        ("y.dtype:int7", "no dtype 'int7'"),
        ("dx.dtype:int32", "conv_forward has no output 'dx'"),
        ("y.first:y.first", "y cannot lie over 'y', but over x, w"),
        ("y.first:bias.first", "y cannot lie over 'bias', but over x, w"),
        ("y.shape:2,03,4", "write it as C3.1, constraint and way, or as y.shape:2,3"),
        ("y.shape:2,,4", "write it as"),
        ("y.shape:-1,3,3", "write it as"),
        ("y.middle:x.first", "write it as"),
        ("y.first:x", "write it as"),
        ("y.size:3", "write it as"),
        ("y", "write it as"),
    ],
)
def test_a_word_that_means_no_wrong_out_is_refused(violates: str, says: str) -> None:
    with pytest.raises(CaseError) as refused:
        case(violates)
    assert str(refused.value).startswith(f"violates={violates}: {says}")


def test_an_empty_tensor_has_no_memory_to_lie_in() -> None:
    with pytest.raises(CaseError, match="float32 of 0 elements"):
        case("y.first:x.first", "conv_forward x=float32[0,1,4] w=float32[3,1,2]")


# --- What is handed over --------------------------------------------------------------------------


def handed_over(one: Case) -> tuple[dict[str, Array], Array]:
    """What a backend on the host is given: the wrong ``out``, and the other arrays by name."""
    assert one.wrong_out is not None
    backend = Backend("host", SimpleNamespace(accepts_out=True))
    sent = {name: Sent(backend, guarded) for name, guarded in inputs(one).items()}
    outs = transfer.outputs(backend, one, sent)
    sent.update(zip(one.call.named_outputs, outs, strict=True))
    arrays = {name: tensor.tensor for name, tensor in sent.items()}
    out = arrays.pop(one.wrong_out.output)
    return arrays, out


@settings(max_examples=40, deadline=None)
@given(case=drawn)
def test_what_is_handed_over_is_as_the_word_says(case: Case) -> None:
    for variant in wrong_out_cases(case):
        tensors, out = handed_over(variant)
        wrong = variant.wrong_out
        assert wrong is not None
        assert TensorType.of(out) == TensorType(wrong.given.dtype, wrong.given.shape)
        shared = {name for name, array in tensors.items() if np.shares_memory(array, out)}
        assert shared == ({wrong.over} if wrong.over else set())
        if out.size:
            strides = tuple(stride // out.itemsize for stride in out.strides)
            dims = zip(strides, wrong.given.element_strides, out.shape, strict=True)
            assert all(ours == theirs for ours, theirs, extent in dims if extent > 1)


def test_an_out_at_an_end_shares_that_element_alone() -> None:
    tensors, out = handed_over(case("y.first:x.last"))
    assert out[0, 0, 0] == tensors["x"][-1, -1, -1]
    assert np.isnan(out.ravel()[1:]).all()
    tensors, out = handed_over(case("y.last:x.first"))
    assert out[-1, -1, -1] == tensors["x"][0, 0, 0]
    assert np.isnan(out.ravel()[:-1]).all()


# --- Verdicts -------------------------------------------------------------------------------------


class Refusing:
    """The reference with ``out=``, which refuses what does not fit as the specification wants it.

    ``lets_through`` names the one thing that it does not look at.
    """

    accepts_out = True
    claims = True
    lets_through = ""

    def describe(self) -> dict[str, Any]:
        return {"errors": "dnncanon"} if self.claims else {}

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        y = reference.conv_forward(x, w, **attributes)
        for aspect, error, message in self.misfits(out, y, {"x": x, "w": w}):
            if aspect != self.lets_through:
                raise error(message)
        self.write(out, y)
        return out

    def misfits(
        self, out: Array, y: Array, read: dict[str, Array], name: str = "y"
    ) -> Iterator[tuple[str, type[Exception], str]]:
        if out.shape != y.shape:
            yield "shape", ShapeError, f"{name} is {y.shape}, out {out.shape}; pass another"
        if out.dtype != y.dtype:
            yield "dtype", DTypeError, f"{name} is {y.dtype}, out {out.dtype}; pass another"
        strides = tuple(stride // out.itemsize for stride in out.strides)
        if overlaps(TensorType("float32", out.shape, strides)):
            yield "strides", LayoutError, f"{name} has strides {strides}; pass a dense out"
        for other, array in read.items():
            if np.shares_memory(out, array):
                yield "memory", LayoutError, f"{name} lies in {other}; pass another out"

    def write(self, out: Array, y: Array) -> None:
        out[...] = 1


class Writing(Refusing):
    """Looks only after it has written."""

    def misfits(
        self, out: Array, y: Array, read: dict[str, Array], name: str = "y"
    ) -> Iterator[tuple[str, type[Exception], str]]:
        out[(0,) * out.ndim] = 1
        yield from super().misfits(out, y, read, name)


class WritingInput(Refusing):
    def misfits(
        self, out: Array, y: Array, read: dict[str, Array], name: str = "y"
    ) -> Iterator[tuple[str, type[Exception], str]]:
        read["w"][0, 0, 0] = 1
        yield from super().misfits(out, y, read, name)


def letting_through(aspect: str, *, claims: bool = True) -> Refusing:
    backend = Refusing()
    backend.lets_through, backend.claims = aspect, claims
    return backend


def raising(error: BaseException, *, claims: bool = True) -> Any:
    def conv_forward(x: Array, w: Array, *, out: Array) -> Array:
        raise error

    describe = {"errors": "dnncanon"} if claims else {}
    return SimpleNamespace(accepts_out=True, conv_forward=conv_forward, describe=lambda: describe)


def result_of(implementation: Any, violates: str) -> CaseResult:
    return execute(Backend("b", implementation), case(violates))


WORDS = {
    "shape": "y.shape:2,3,4",
    "dtype": "y.dtype:float16",
    "strides": "y.strides:9,3,0",
    "memory": "y.first:x.last",
}
TOLD = {
    "shape": "out for y has the shape (2, 3, 4) and not (2, 3, 3)",
    "dtype": "out for y has the dtype float16 and not float32",
    "strides": "out for y has the strides (9, 3, 0), by which elements overlap",
    "memory": "out for y lies in the memory of x",
}


@pytest.mark.parametrize("claims", [True, False])
def test_a_backend_that_refuses_what_does_not_fit_passes(claims: bool) -> None:
    backend = Backend("b", letting_through("", claims=claims))
    for variant in wrong_out_cases(Case.parse(LINE)):
        result = execute(backend, variant)
        assert result.verdict is Verdict.PASSED, f"{variant}: {result.message}"


@pytest.mark.parametrize("claims", [True, False])
@pytest.mark.parametrize("aspect", ASPECTS)
def test_an_out_that_is_let_through_is_a_failure_that_names_what(aspect: str, claims: bool) -> None:
    backend = Backend("b", letting_through(aspect, claims=claims))
    for variant in wrong_out_cases(Case.parse(LINE)):
        assert variant.wrong_out is not None
        result = execute(backend, variant)
        assert result.failing == (variant.wrong_out.aspect == aspect), f"{variant}: {result}"
    result = result_of(letting_through(aspect, claims=claims), WORDS[aspect])
    assert result.verdict is Verdict.FAILED
    assert result.message == f"{TOLD[aspect]}, and no error was raised"


@pytest.mark.parametrize("aspect", ASPECTS)
def test_nothing_may_be_written_before_it_is_refused(aspect: str) -> None:
    result = result_of(Writing(), WORDS[aspect])
    assert result.verdict is Verdict.FAILED
    where = "x: input element (1, 0, 3)" if aspect == "memory" else "y: input element (0, 0, 0)"
    assert f"{where} was written" in result.message
    result = result_of(WritingInput(), WORDS[aspect])
    assert result.verdict is Verdict.FAILED
    assert "w: input element (0, 0, 0) was written" in result.message


RIGHT = {
    "shape": ShapeError("y has shape (2, 3, 3), not (2, 3, 4); pass out=None"),
    "dtype": DTypeError("y is float32, not float16; pass out=None"),
    "strides": LayoutError("y has strides [9, 3, 0]; pass out=None"),
    "memory": LayoutError("y shares memory with x; pass out=None"),
}
LACKING = {
    "shape": {
        "the output y": "my has shape (2, 3, 3), not (2, 3, 4); pass out=None",
        "the shape (2, 3, 4)": "y has shape (2, 3, 3), not (12, 3, 4); pass out=None",
        "the shape (2, 3, 3)": "y has not shape (2, 3, 4); pass out=None",
        'the remedy ("; pass …")': "y has shape (2, 3, 3), not (2, 3, 4)",
    },
    "dtype": {
        "the output y": "out is float32, not float16; pass out=None",
        "the dtype float16": "y is float32, not bfloat16; pass out=None",
        "the dtype float32": "y is not float16; pass out=None",
        'the remedy ("; pass …")': "y is float32, not float16",
    },
    "strides": {
        "the output y": "out has strides [9, 3, 0]; pass out=None",
        "the strides (9, 3, 0)": "y has strides [9, 3, 01]; pass out=None",
        'the remedy ("; pass …")': "y has strides [9, 3, 0]",
    },
    "memory": {
        "the output y": "out shares memory with x; pass out=None",
        "the tensor x": "y shares memory with an input; pass out=None",
        'the remedy ("; pass …")': "y shares memory with x",
    },
}


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_claimed_error_has_to_name_output_values_and_remedy(aspect: str) -> None:
    right = RIGHT[aspect]
    assert result_of(raising(right), WORDS[aspect]).verdict is Verdict.PASSED
    for missing, message in LACKING[aspect].items():
        result = result_of(raising(type(right)(message)), WORDS[aspect])
        assert result.verdict is Verdict.FAILED
        assert result.message == (
            f"{TOLD[aspect]}, but the error does not name {missing}: {message}"
        )
        unclaimed = raising(type(right)(message), claims=False)
        assert result_of(unclaimed, WORDS[aspect]).verdict is Verdict.PASSED


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_claimed_error_is_of_the_spec_and_no_error_is_an_exit(aspect: str) -> None:
    kind = type(RIGHT[aspect])
    for error in (ValueError(str(RIGHT[aspect])), SystemExit(str(RIGHT[aspect]))):
        result = result_of(raising(error), WORDS[aspect])
        assert result.verdict is Verdict.FAILED
        told = f"{TOLD[aspect]}, but what was raised is not the spec's {kind.__name__}: "
        assert result.message.startswith(f"{told}{type(error).__name__}: ")
    unclaimed = result_of(raising(SystemExit("no"), claims=False), WORDS[aspect])
    assert unclaimed.verdict is Verdict.FAILED
    assert "what was raised is not an Exception: SystemExit: no" in unclaimed.message


def test_a_call_that_is_not_offered_is_unsupported() -> None:
    result = result_of(raising(Unsupported("no conv_forward today")), WORDS["shape"])
    assert (result.verdict, result.message) == (Verdict.UNSUPPORTED, "no conv_forward today")


def test_a_backend_without_out_is_not_asked() -> None:
    for implementation in (
        SimpleNamespace(conv_forward=reference.conv_forward),
        SimpleNamespace(conv_forward=reference.conv_forward, accepts_out=True, to_device=np.array),
    ):
        result = result_of(implementation, WORDS["shape"])
        assert (result.verdict, result.message) == (Verdict.UNSUPPORTED, "b takes no out=")


def test_memory_that_cannot_be_read_afterwards_is_an_error() -> None:
    def to_host(array: Array) -> Array:
        raise RuntimeError("the device is lost")

    backend = Refusing()
    backend.to_host = to_host  # type: ignore[attr-defined]
    result = result_of(backend, WORDS["shape"])
    assert result.verdict is Verdict.ERROR
    assert result.message.startswith("RuntimeError: the device is lost")


def test_an_out_of_a_dtype_that_the_backend_has_no_arrays_of_is_unsupported() -> None:
    def to_device(array: Array) -> Array:
        if array.dtype == np.float16:
            raise TypeError("no float16 here")
        return array

    backend = Refusing()
    backend.to_device, backend.as_strided = to_device, view  # type: ignore[attr-defined]
    result = result_of(backend, WORDS["dtype"])
    assert result.verdict is Verdict.UNSUPPORTED
    assert "float16 and not float32, and cannot be made: TypeError: no float16" in result.message
    assert result_of(backend, WORDS["shape"]).verdict is Verdict.PASSED


def view(array: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    return as_strided(array[offset:], shape, [stride * array.itemsize for stride in strides])


# --- Several outputs ------------------------------------------------------------------------------


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Case:
    """A call of a primitive like conv_forward, with outputs y, twin and mask, the last one of bytes."""
    one = primitives()["conv_forward"]
    y = one.outputs[0]

    def infer(problem: Any) -> tuple[TensorType | None, ...]:
        (tensor,) = one.infer(problem)
        assert tensor is not None
        return tensor, None, tensor, replace(tensor, dtype="uint8")

    outputs = tuple(replace(y, name=name) for name in ("y", "none", "twin", "mask"))
    primitive = replace(one, name="several", outputs=outputs, infer=infer)
    monkeypatch.setattr(lines, "primitives", lambda: {"several": primitive})
    return Case.parse(LINE.replace("conv_forward", "several"))


def test_every_output_that_a_call_has_is_tried(several: Case) -> None:
    variants = list(wrong_out_cases(several))
    assert [Case.parse(str(variant)) for variant in variants] == variants
    tried = [variant.violates for variant in variants]
    for name in ("y", "twin", "mask"):
        assert f"{name}.shape:2,3,4" in tried
        assert f"{name}.strides:0,0,0" in tried
    assert not any(word.startswith("none.") for word in tried)
    assert "mask.dtype:bool" in tried
    assert [word for word in tried if "mask.first" in word or "mask.last" in word] == []
    assert [word for word in tried if ":y." in word or ":twin." in word] == [
        *("twin.first:y.first", "twin.first:y.last", "twin.last:y.first")
    ]


class RefusingSeveral(Refusing):
    def several(self, x: Array, w: Array, *, out: tuple[Array, ...], **attributes: Any) -> Any:
        y = reference.conv_forward(x, w, **attributes)
        read = {"x": x, "w": w}
        results = (y, y, np.zeros(y.shape, np.uint8))
        for name, array, result in zip(("y", "twin", "mask"), out, results, strict=True):
            for aspect, error, message in self.misfits(array, result, read, name):
                if f"{name}.{aspect}" != self.lets_through:
                    raise error(message)
            read[name] = array
        return out


@pytest.mark.parametrize("aspect", ASPECTS)
def test_one_of_several_outputs_that_is_let_through_is_named(several: Case, aspect: str) -> None:
    for at_fault in ("", "y", "twin", "mask"):
        implementation = RefusingSeveral()
        implementation.lets_through = f"{at_fault}.{aspect}"
        backend = Backend("b", implementation)
        for variant in wrong_out_cases(several):
            out, result = variant.wrong_out, execute(backend, variant)
            assert out is not None
            let_through = (out.output, out.aspect) == (at_fault, aspect)
            assert result.failing == let_through, f"{variant}: {result.message}"
            if let_through:
                assert result.message.startswith(f"out for {at_fault} ")


def test_two_outputs_in_the_same_memory(several: Case) -> None:
    overlapping = replace(several, violates="twin.last:y.first")
    backend = Backend("host", SimpleNamespace(accepts_out=True))
    y, twin, mask = (sent.tensor for sent in transfer.outputs(backend, overlapping, {}))
    twin[...] = np.arange(18).reshape(twin.shape)
    assert y[0, 0, 0] == 17
    assert np.isnan(y.ravel()[1:]).all()
    assert (mask == 255).all()


# --- Runs -----------------------------------------------------------------------------------------


class Here:
    """As a pool, but in this process."""

    def __init__(self, implementation: Any, *, claims: bool = False) -> None:
        self.backend = Backend("b", implementation)
        self.introduction = {
            "offered": self.backend.offered(),
            "raises_spec_errors": claims,
            "accepts_out": self.backend.accepts_out,
        }

    def submit(self, case: Case, on_result: Any, worker: int | None = None) -> None:
        on_result(execute(self.backend, case))


def must_errors(implementation: Any, shard: Shard, *, claims: bool = False) -> list[str]:
    cell = Cell(primitives()["conv_forward"], "float32", LEVELS["quick"].scale, 1, 0, -1)
    pool: Any = Here(implementation, claims=claims)
    results: list[CaseResult] = []
    CellRun(cell, pool, results.append, shard=shard).submit()
    return [result.case for result in results if result.layer == "must-error"]


def test_only_a_backend_that_takes_out_is_asked() -> None:
    whole = Shard()
    asked = must_errors(raising(ValueError("no")), whole)
    assert asked
    assert all("violates=y." in line for line in asked)
    without = SimpleNamespace(conv_forward=reference.conv_forward)
    assert must_errors(without, whole) == []
    claiming = must_errors(without, whole, claims=True)
    assert claiming
    assert all("violates=C" in line for line in claiming)


def test_shards_share_them_out() -> None:
    parts = [must_errors(raising(ValueError("no")), Shard(index, 3)) for index in (1, 2, 3)]
    assert all(parts)
    together = [line for part in parts for line in part]
    assert sorted(together) == sorted(must_errors(raising(ValueError("no")), Shard()))
