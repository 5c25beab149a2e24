"""A case is its line: what is drawn, written or mistyped reads back to the same call or is refused."""

import time
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dnncanon.conformance.case import Case, CaseError, must_error_cases
from dnncanon.conformance.data import FILLS
from dnncanon.conformance.strategies import cases
from dnncanon.spec import (
    Arguments,
    LayoutError,
    Scale,
    ShapeError,
    TensorType,
    channels_last_strides,
    dense_strides,
    primitives,
)

SCALE = Scale(batch=3, channels=6, extent=12, multiplications=1 << 14)
CONV = "conv_forward x=float32[1,2,5,5] w=float32[2,2,3,3]"
DATA = "fill=normal seed=0"

drawn = st.sampled_from(
    [(p, row.dtype) for p in primitives().values() for row in p.dtypes]
).flatmap(lambda pair: cases(pair[0], pair[1], SCALE))


def canonical(line: str) -> str:
    return str(Case.parse(line))


# --- Round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", primitives())
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_drawn_case_is_its_line(name: str, data: st.DataObject) -> None:
    primitive = primitives()[name]
    dtype = data.draw(st.sampled_from([row.dtype for row in primitive.dtypes]))
    case = data.draw(cases(primitive, dtype, SCALE))
    again = Case.parse(str(case))
    assert again == case
    assert str(again) == str(case)
    assert again.call.problem == case.call.problem


@settings(max_examples=40, deadline=None)
@given(case=drawn)
def test_must_error_cases_are_their_lines(case: Case) -> None:
    variants = list(must_error_cases(case))
    assert len({str(variant) for variant in variants}) == len(variants) > 0
    for variant in variants:
        assert Case.parse(str(variant)) == variant
        assert variant.layer == "must-error"


@pytest.mark.parametrize(
    ("written", "attributes"),
    [
        ("stride=1,1", ""),
        ("stride=1", ""),
        ("stride=2", " stride=2,2"),
        ("stride=2,2", " stride=2,2"),
        ("stride=1,2", " stride=1,2"),
        ("padding=0", ""),
        ("padding=0,0:0", ""),
        ("padding=1", " padding=1,1"),
        ("padding=1,1:1", " padding=1,1"),
        ("padding=0:2,1", " padding=0:2,1"),
        ("padding=valid", " padding=valid"),
        ("padding=same", " padding=same"),
        ("groups=1 dilation=1,1 mode=cross_correlation", ""),
        ("mode=convolution dilation=2", " dilation=2,2 mode=convolution"),
    ],
)
def test_short_forms_are_written_out_and_defaults_left_out(written: str, attributes: str) -> None:
    assert canonical(f"{CONV} {written}") == f"{CONV}{attributes} {DATA}"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (CONV, f"{CONV} {DATA}"),
        (f"  {CONV}\t seed=7  \n", f"{CONV} fill=normal seed=7"),
        (
            "conv_forward seed=007 fill=mixed w=float32[2,2,3,3] x=float32[1,2,5,5]",
            f"{CONV} fill=mixed seed=7",
        ),
        (f"{CONV} runs=2 seed=1 after=3", f"{CONV} fill=normal seed=1 after=3 runs=2"),
        (f"{CONV} runs=1", f"{CONV} {DATA}"),
        (f"{CONV} seed={2**64 - 1}", f"{CONV} fill=normal seed={2**64 - 1}"),
        (f"{CONV} violates=C3.2 fill=mixed", f"{CONV} violates=C3.2 seed=0"),
        (f"{CONV} y=:(18,9,3,1)", f"{CONV} {DATA}"),
        (f"{CONV} y=:(18,1,6,2)", f"{CONV} y=:nhwc {DATA}"),
        (f"{CONV} y=:nhwc", f"{CONV} y=:nhwc {DATA}"),
        (
            CONV.replace("5,5]", "5,5]:(50,25,5,1)"),
            f"{CONV} {DATA}",
        ),
        (CONV.replace("5,5]", "5,5]:(50,1,10,2)"), f"{CONV.replace('5,5]', '5,5]:nhwc')} {DATA}"),
        (
            "conv_forward x=float16[0,1,4]:(0,0,0) w=float16[1,1,2]",
            f"conv_forward x=float16[0,1,4]:(0,0,0) w=float16[1,1,2] {DATA}",
        ),
        (
            "conv_bias_activation_forward x=float32[1,1,3] w=float32[1,1,1] bias=float32[1] alpha1=1 "
            "alpha2=.5",
            "conv_bias_activation_forward x=float32[1,1,3] w=float32[1,1,1] bias=float32[1] "
            f"alpha2=0.5 {DATA}",
        ),
        (
            "conv_backward_data dy=float32[1,1,3,3] w=float32[1,1,1,1] input_size=3",
            "conv_backward_data dy=float32[1,1,3,3] w=float32[1,1,1,1] input_size=3,3 fill=normal seed=0",
        ),
    ],
)
def test_the_canonical_text_of_a_line(line: str, text: str) -> None:
    assert canonical(line) == text
    assert canonical(text) == text


def test_an_attribute_named_like_a_word_of_the_case_has_another_word() -> None:
    line = "dropout_forward x=float32[2] probability=0.5 attribute.seed=7 fill=normal seed=9"
    case = Case.parse(line)
    assert str(case) == line
    assert (case.seed, case.arguments.attributes["seed"]) == (9, 7)
    with pytest.raises(CaseError, match="the attribute seed is missing"):
        Case.parse("rng_uniform shape=2,3 seed=9")


def test_without_tensors_there_are_no_data() -> None:
    case = Case.parse("rng_uniform shape=2,3 attribute.seed=7 fill=mixed seed=9 after=10 runs=2")
    assert str(case) == "rng_uniform shape=2,3 attribute.seed=7 fill=normal seed=0 runs=2"
    assert (case.dtype, case.layer) == ("float32", "bounded")


def test_equal_calls_are_equal_cases() -> None:
    tensors = {
        "w": TensorType("float32", (2, 2, 3, 3), dense_strides((2, 2, 3, 3))),
        "x": TensorType("float32", (1, 2, 5, 5)),
    }
    attributes = {"padding": ((1, 1), (1, 1)), "stride": (1, 1), "dilation": (1, 1), "groups": 1}
    layouts = {"y": dense_strides((1, 2, 5, 5))}
    arguments = Arguments(tensors, {**attributes, "mode": "cross_correlation"})
    built = Case(primitives()["conv_forward"], arguments, layouts)
    assert built == Case.parse(f"{CONV} padding=1")
    assert str(built) == canonical(f"{CONV} padding=1")


def test_illegal_arguments_are_no_case() -> None:
    legal = Case.parse(CONV)
    with pytest.raises(ShapeError, match="conv_forward C8"):
        Case(legal.primitive, legal.arguments.with_tensor("x", shape=(1, 3, 5, 5)))
    with pytest.raises(LayoutError, match="output y"):
        Case(legal.primitive, legal.arguments, {"y": (1, 1, 1, 1)})


# --- Layouts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "rank"), [("nwc", 3), ("nhwc", 4), ("ndhwc", 5)])
def test_channels_last_has_a_name_in_every_rank(word: str, rank: int) -> None:
    shape = (2, 3, 4, 4, 4)[:rank]
    dims = ",".join(map(str, shape))
    filters = ",".join(["1", "3", *["1"] * (rank - 2)])
    case = Case.parse(f"conv_forward x=float32[{dims}]:{word} w=float32[{filters}] y=:{word}")
    assert case.arguments.tensors["x"].strides == channels_last_strides(shape)
    output = case.call.outputs[0].shape
    assert case.layouts["y"] == channels_last_strides(output)


def test_strides_may_leave_gaps_and_inputs_may_repeat_elements() -> None:
    case = Case.parse("conv_forward x=float32[2,2,5]:(0,7,1) w=float32[2,2,3]:(0,0,0) y=:(20,8,2)")
    assert case.arguments.tensors["x"].strides == (0, 7, 1)
    assert case.arguments.tensors["w"].strides == (0, 0, 0)
    assert case.layouts == {"y": (20, 8, 2)}


@pytest.mark.parametrize("strides", ["(18,9,3,0)", "(18,9,2,1)", "(18,1,3,1)", "(0,0,0,0)"])
def test_an_output_whose_elements_overlap_is_refused(strides: str) -> None:
    with pytest.raises(CaseError, match=r"output y .* overlap"):
        Case.parse(f"{CONV} y=:{strides}")


# --- Malformed lines ------------------------------------------------------------------------------

FUSED = "conv_bias_activation_forward x=float32[1,1,3] w=float32[1,1,1] bias=float32[1]"

MALFORMED = {
    "": "no primitive ''",
    "conv": "no primitive 'conv'; known are conv_forward",
    "conv_forward": "the tensor x is missing",
    "conv_forward x=float32[1,2,5]": "the tensor w is missing",
    f"{CONV} stride": "'stride' is not name=value",
    f"{CONV} =3": "no tensor or attribute ''",
    f"{CONV} x=float32[1,2,5,5]": "'x' is given twice",
    f"{CONV} colour=red": "no tensor or attribute 'colour'",
    f"{CONV} bias=float32[2]": "no tensor or attribute 'bias'",
    CONV.replace("float32", "int7"): "no dtype 'int7'; known are float64",
    CONV.replace("[1,2,5,5]", "[1,2,-5,5]"): "not dtype[extents]",
    CONV.replace("[1,2,5,5]", "(1,2,5,5)"): "not dtype[extents]",
    CONV.replace("[1,2,5,5]", "[1,2,,5]"): "'1,2,,5' is not a list of integers",
    CONV.replace("[1,2,5,5]", "[1,2,5,5,]"): "'1,2,5,5,' is not a list of integers",
    CONV.replace("[1,2,5,5]", "[1,2,5,5]:"): "not dtype[extents]",
    CONV.replace("[1,2,5,5]", "[1,2,5,5]:nchw"): "no layout 'nchw'",
    CONV.replace("[1,2,5,5]", "[1,2,5,5]:ndhwc"): "write nhwc",
    CONV.replace("[1,2,5,5]", "[1,2,5,5]:(1,2,3)"): "3 strides for 4 dims",
    CONV.replace("[1,2,5,5]", "[1,2,5,5]:(1,2,3,-4)"): "'1,2,3,-4' is not a list",
    CONV.replace("[1,2,5,5]", "[]"): "conv_forward C1: x has rank 0",
    CONV.replace("float32[2", "float16[2"): "conv_forward C2",
    CONV.replace("[1,2,5,5]", "[1,3,5,5]"): "C=3 is not groups",
    f"{CONV} y=float32[1,2,3,3]": "an output has a layout only",
    f"{CONV} y=:nchw": "y: no layout 'nchw'",
    f"{CONV} stride=": "stride=: not int",
    f"{CONV} stride=two": "stride=two: not int",
    f"{CONV} stride=1,1,1": "3 entries for 2 spatial dims",
    f"{CONV} stride=0": "stride=0 has an entry below 1",
    f"{CONV} stride={10**30}": "does not fit into 64 bits",
    f"{CONV} padding=1:2:3": "padding=1:2:3: not int",
    f"{CONV} padding=0:2": "1 entries for 2 spatial dims",
    f"{CONV} padding=full": "padding=full: not int",
    f"{CONV} groups=1.5": "groups=1.5: not int",
    f"{CONV} mode=correlation": "conv_forward C6",
    f"{CONV} dilation=9": "covers (19, 19)",
    f"{FUSED} alpha1=nan": "alpha1=nan is not finite",
    f"{FUSED} alpha1=1e999": "alpha1=inf is not finite",
    f"{FUSED} alpha2=half": "alpha2=half: not float",
    f"{FUSED} activation=gelu": "activation='gelu'",
    f"{CONV} runs=0": "runs=0: not an integer in 1…9",
    f"{CONV} runs=10": "runs=10: not",
    f"{CONV} runs=": "runs=: not",
    f"{CONV} fill=nothing": "fill=nothing: known are normal",
    f"{CONV} seed=-1": "seed=-1: not an integer",
    f"{CONV} seed={2**64}": "not an integer in 0…2^64−1",
    f"{CONV} seed=1e3": "seed=1e3",
    f"{CONV} violates=3.1": "write it as C3.1",
    f"{CONV} violates=C3.0": "write it as C3.1",
    f"{CONV} violates=C3": "write it as C3.1",
    f"{CONV} violates=C3.{10**30}": "write it as C3.1",
    "conv_backward_filter x=float32[1,1,4] dy=float32[1,1,4]": "the attribute filter_size is missing",
}


@pytest.mark.parametrize("line", MALFORMED, ids=[line[-40:] or "empty" for line in MALFORMED])
def test_a_malformed_line_is_refused_by_name(line: str) -> None:
    with pytest.raises(CaseError) as refused:
        Case.parse(line)
    assert MALFORMED[line] in str(refused.value)
    assert "\n" not in str(refused.value)


def stays_or_is_refused(line: str) -> None:
    """Never anything but CaseError, or a case whose text reads back as the same case."""
    try:
        case = Case.parse(line)
    except CaseError:
        return
    text = str(case)
    assert Case.parse(text) == case
    assert canonical(text) == text


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_is_a_case_or_a_case_error(text: str) -> None:
    for line in (text, f"{CONV} {text}", f"{CONV} padding={text}", f"{CONV} y=:({text})"):
        stays_or_is_refused(line)


def _without(words: list[str], at: int) -> list[str]:
    return words[:at] + words[at + 1 :]


@settings(max_examples=150, deadline=None)
@given(case=drawn, at=st.integers(0, 200), other=st.integers(0, 200))
def test_lines_with_words_lost_doubled_or_swapped(case: Case, at: int, other: int) -> None:
    words = str(case).split()
    at, other = at % len(words), other % len(words)
    swapped = list(words)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    for changed in (_without(words, at), [*words, words[at]], swapped):
        stays_or_is_refused(" ".join(changed))


@settings(max_examples=300, deadline=None)
@given(
    case=drawn,
    at=st.integers(0, 400),
    new=st.one_of(st.sampled_from("0123456789,:()[]=.-+ Cx_"), st.characters()),
)
def test_lines_with_a_character_lost_doubled_or_replaced(case: Case, at: int, new: str) -> None:
    line = str(case)
    at %= len(line)
    for middle in ("", line[at] * 2, new, line[at] + new):
        stays_or_is_refused(line[:at] + middle + line[at + 1 :])


@settings(max_examples=100, deadline=None)
@given(case=drawn, at=st.integers(0, 30), value=st.integers(0, 10**18 - 1))
def test_a_word_whose_numbers_are_replaced(case: Case, at: int, value: int) -> None:
    words = str(case).split()
    at %= len(words)
    assume(any(c.isdigit() for c in words[at]))
    words[at] = "".join(str(value) if c.isdigit() else c for c in words[at])
    stays_or_is_refused(" ".join(words))


# --- Enormous shapes ------------------------------------------------------------------------------

HUGE = 10**18 - 1


@pytest.mark.parametrize(
    "line",
    [
        f"conv_forward x=float32[{HUGE},1,{HUGE},{HUGE}] w=float32[1,1,1,1]",
        f"conv_forward x=float32[1,{HUGE},{HUGE}] w=float32[{HUGE},{HUGE},{HUGE}] y=:nwc",
        f"conv_forward x=float32[1,1,{HUGE}]:({HUGE},{HUGE},{HUGE}) w=float32[1,1,1] padding={HUGE}",
        f"conv_backward_data dy=float64[1,1,{HUGE}] w=float64[1,1,{HUGE}] stride={HUGE}",
        f"conv_backward_filter x=float16[1,1,{HUGE}] dy=float16[1,1,1] filter_size={HUGE}",
        f"conv_backward_bias dy=bfloat16[{HUGE},{HUGE},{HUGE},{HUGE},{HUGE}]",
    ],
)
def test_an_enormous_case_is_a_line_and_no_memory(line: str) -> None:
    started = time.perf_counter()
    case = Case.parse(line)
    assert Case.parse(str(case)) == case
    assert case.call.flops >= HUGE
    for variant in must_error_cases(case):
        variant.violation()
    assert time.perf_counter() - started < 1.0


# --- Must-error cases -----------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(case=drawn)
def test_a_violation_breaks_the_constraint_it_names(case: Case) -> None:
    for variant in must_error_cases(case):
        label, broken = variant.violation()
        assert label == f"{case.primitive.name} {variant.violates.partition('.')[0]}"
        constraint = case.primitive.first_violated(broken)
        assert constraint is not None
        assert case.primitive.label(constraint) == label


@pytest.mark.parametrize("name", primitives())
def test_every_constraint_of_a_primitive_is_broken_by_some_case(name: str) -> None:
    primitive = primitives()[name]
    broken: set[str] = set()

    @settings(max_examples=30, deadline=None, database=None, derandomize=True)
    @given(case=cases(primitive, primitive.dtypes[0].dtype, SCALE))
    def explore(case: Case) -> None:
        broken.update(v.violation()[0] for v in must_error_cases(case))

    explore()
    assert broken == {primitive.label(constraint) for constraint in primitive.constraints}


@pytest.mark.parametrize("violates", ["C1.99", "C99.1", "C999.999999"])
def test_a_violation_that_the_arguments_do_not_offer(violates: str) -> None:
    case = Case.parse(f"{CONV} violates={violates}")
    with pytest.raises(CaseError, match=f"no violation {violates} of conv_forward"):
        case.violation()


def test_ways_are_numbered_within_their_constraint() -> None:
    ways = [case.violates for case in must_error_cases(Case.parse(CONV))]
    assert ways[:4] == ["C1.1", "C1.2", "C1.3", "C1.4"]
    for number in {way.partition(".")[0] for way in ways}:
        own = [int(way.partition(".")[2]) for way in ways if way.partition(".")[0] == number]
        assert own == list(range(1, len(own) + 1))


@pytest.mark.parametrize("fill", FILLS)
def test_the_layer_of_a_case_is_that_of_its_fill(fill: str) -> None:
    expected: Any = {"integers": "exact", "special": "special"}.get(fill, "bounded")
    assert Case.parse(f"{CONV} fill={fill}").layer == expected
