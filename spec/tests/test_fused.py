"""Graphs of pointwise operations: one text for each, what is refused and why, and functions that are traced."""

from typing import Any

import numpy as np
import pytest

from dnncanon import spec
from dnncanon.spec.fused_domain import QUICK, STEPS, drawn
from dnncanon.spec.fused_graph import FUSIBLE, MAX_NODES, Constant, graph_of, parameters_of
from dnncanon.spec.fused_tracing import modes, traced
from dnncanon.spec.pointwise import ATTRIBUTES, MODES

X, T = np.ones((2, 3), "f"), np.ones((2, 3), bool)


def bind(graph: str, *tensors: Any, **attributes: Any) -> spec.Call[Any]:
    return spec.pointwise_fusion.bind(*tensors, graph=graph, **attributes)


# --- Texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("relu_fwd(add(mul(a,b),c))", "relu_fwd(add(mul(a,b),c))"),
        (" add( a , b ) ", "add(a,b)"),
        ("add(a,1)", "add(a,1.0)"),
        ("add(a,-1e-5)", "add(a,-1e-05)"),
        ("add(a,.5)", "add(a,0.5)"),
        ("max(a,-INF)", "max(a,-inf)"),
        ("x=add(a,b);neg(x)", "neg(add(a,b))"),
        ("x=a;add(x,x)", "add(a,a)"),
        ("mul(neg(a),neg(a))", "t0=neg(a);mul(t0,t0)"),
        (
            "q=neg(b);p=neg(a);add(mul(p,q),mul(q,p))",
            "t0=neg(a);t1=neg(b);add(mul(t0,t1),mul(t1,t0))",
        ),
        ("t9=neg(a);t1=exp(t9);sub(mul(t9,t1),t1)", "t0=neg(a);t1=exp(t0);sub(mul(t0,t1),t1)"),
        ("relu_fwd(a,relu_upper_clip=6)", "relu_fwd(a,relu_upper_clip=6.0)"),
        ("swish_fwd(a,swish_beta=1)", "swish_fwd(a)"),
        ("add(mul(a,0.0),mul(a,-0.0))", "add(mul(a,0.0),mul(a,-0.0))"),
    ],
)
def test_each_graph_has_one_text(text: str, canonical: str) -> None:
    graph = graph_of(text)
    assert str(graph) == canonical
    assert graph_of(canonical) == graph


def test_equal_expressions_are_one_node() -> None:
    graph = graph_of("add(mul(sigmoid_fwd(a),b),mul(sigmoid_fwd(a),b))")
    assert [node.mode for node in graph.nodes] == ["sigmoid_fwd", "mul", "add"]


def test_tensors_are_named_in_alphabetical_order() -> None:
    assert graph_of("add(mul(c,a),f)").tensors == ("a", "c", "f")


def test_every_mode_but_the_index_may_be_in_a_graph() -> None:
    assert {*FUSIBLE, "gen_index"} == {*MODES}
    for mode in FUSIBLE.values():
        operands = ",".join("abc"[: len(mode.operands)])
        assert graph_of(f"{mode.name}({operands})").nodes[0].mode == mode.name


def test_parameters_are_those_of_the_mode() -> None:
    assert parameters_of("swish_bwd") == ("swish_beta",)
    assert parameters_of("tanh_fwd") == ()
    of_modes = {name for mode in FUSIBLE for name in parameters_of(mode)}
    assert of_modes == {a.name for a in ATTRIBUTES} - {"mode", "alpha1", "alpha2", "axis"}


def test_a_node_is_a_pointwise_problem_with_its_parameters() -> None:
    (node,) = graph_of("relu_bwd(a,b,relu_lower_clip=-1,relu_upper_clip=2)").nodes
    problem = node.problem("float16")
    assert (problem.mode, problem.dtype) == ("relu_bwd", "float16")
    assert (problem.relu_lower_clip, problem.relu_upper_clip, problem.elu_alpha) == (-1.0, 2.0, 1.0)


def test_zeros_of_both_signs_are_two_numbers() -> None:
    assert Constant("0.0") != Constant("-0.0")


def test_simpler_graphs_are_parts_and_graphs_with_an_operation_less() -> None:
    graph = graph_of("mul(swish_fwd(add(a,b),swish_beta=2.0),c)")
    assert [str(simpler) for simpler in graph.simpler()] == [
        "add(a,b)",
        "swish_fwd(add(a,b),swish_beta=2.0)",
        "mul(swish_fwd(a,swish_beta=2.0),c)",
        "mul(swish_fwd(b,swish_beta=2.0),c)",
        "mul(add(a,b),c)",
        "mul(swish_fwd(add(a,b)),c)",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gelu(a)", "no mode 'gelu'; pass one of pointwise_operation's: gelu_fwd, gelu_bwd"),
        ("gen_index(a)", "gen_index computes nothing of values; pass its result as a tensor"),
        ("add(a)", "add of 1 operands; pass 2, for its x, b"),
        ("neg(a,b)", "neg of 2 operands; pass 1, for its x"),
        ("add(a,x)", "'x' is neither a tensor nor a name"),
        ("add(a,g)", "'g' is neither a tensor nor a name"),
        ("a", "no operation; pass an expression of at least one, such as identity(a)"),
        ("add(1,2)", "add of numbers only; pass its result as a number"),
        ("", "it ends too early; pass a whole expression"),
        ("add(a,b", "the end where ')' should be"),
        ("add(a,b))", "')' after its end; pass one expression"),
        ("add(a,b)c", "'c' after its end"),
        ("a+b", "'+' means nothing"),
        ("x=neg(a);abs(a)", "x is not used; pass a graph without it"),
        ("x=neg(a);x=neg(b);add(x,a)", "'x' cannot be a name; pass a new one"),
        ("b=neg(a);abs(b)", "'b' cannot be a name"),
        ("tan=neg(a);abs(tan)", "'tan' cannot be a name"),
        ("tanh_fwd(a,swish_beta=2)", "tanh_fwd has no parameter swish_beta; pass operands only"),
        ("relu_fwd(a,swish_beta=2)", "pass only relu_lower_clip, relu_upper_clip"),
        ("swish_fwd(a,swish_beta=2,swish_beta=3)", "swish_beta is given twice; pass it once"),
        ("swish_fwd(a,swish_beta=0)", "in swish_fwd swish_beta=0.0; pass a number > 0"),
        ("relu_fwd(a,relu_upper_clip=-1)", "relu_upper_clip=-1.0 is below relu_lower_clip=0.0"),
        ("elu_fwd(a,elu_alpha=inf)", "elu_alpha=inf is not finite"),
        ("elu_fwd(a,elu_alpha=b)", "'b' is no number"),
        ("add(a,nan)", "'nan' is neither a tensor nor a name"),
        ("add(a,1e999)", "'1e999' is beyond float64; pass inf"),
        ("neg(" * 100 + "a" + ")" * 100, f"more than {MAX_NODES} operations; pass two graphs"),
        (3, "not a text; pass an expression"),
    ],
)
def test_what_is_no_graph_is_refused_with_the_reason(text: Any, complaint: str) -> None:
    with pytest.raises(spec.AttributeValueError) as caught:
        bind(text, X)
    assert str(caught.value).startswith("pointwise_fusion C1: graph=")
    assert complaint in str(caught.value)


def test_a_graph_has_at_most_so_many_operations_however_they_are_named() -> None:
    def chain(count: int) -> str:
        return (
            "".join(f"n{k}=neg({f'n{k - 1}' if k else 'a'});" for k in range(count))
            + f"abs(n{count - 1})"
        )

    assert len(graph_of(chain(MAX_NODES - 1)).nodes) == MAX_NODES
    with pytest.raises(ValueError, match="more than 64 operations"):
        graph_of(chain(MAX_NODES))


# --- Calls ----------------------------------------------------------------------------------------


def test_tensors_that_the_graph_does_not_name_are_refused() -> None:
    for tensors in ((X,), (X, X, X), (X, None, X)):
        with pytest.raises(
            spec.AttributeValueError, match=r"C2: graph='add\(a,b\)' takes a, b, and"
        ):
            bind("add(a,b)", *tensors)


def test_letters_may_be_left_out() -> None:
    assert bind("add(a,c)", X, None, X).problem.graph.tensors == ("a", "c")


@pytest.mark.parametrize(
    ("graph", "tensors", "complaint"),
    [
        ("add(a,b)", (X, T), "operand 2 of add, b, is a truth value; pass a number"),
        ("logical_not(a)", (X,), "operand 1 of logical_not, a, is a number; pass truth values"),
        (
            "binary_select(a,b,c)",
            (X, X, X),
            "operand 3 of binary_select, c, is a number; pass a truth",
        ),
        (
            "add(a,cmp_gt(a,b))",
            (X, X),
            "operand 2 of add, a result, is a truth value; pass a number",
        ),
        ("logical_or(cmp_lt(a,b),1)", (X, X), "operand 2 of logical_or, 1.0, is a number"),
        ("binary_select(b,a,b)", (X, T), "operand 2 of binary_select, a, is a number"),
        ("neg(a)", (T,), "a is bool; convert it to one of float64"),
        ("add(a,b)", (X, X.astype("i4")), "b is int32; convert it to one of float32, bool"),
        ("add(a,b)", (X, X.astype("f2")), "b is float16; convert it to one of float32, bool"),
        (
            "add(a,b)",
            (X.astype("f2"), X.astype("f8")),
            "b is float64; convert it to one of float16, float32",
        ),
    ],
)
def test_operands_are_of_the_kind_that_a_mode_takes(
    graph: str, tensors: tuple[Any, ...], complaint: str
) -> None:
    with pytest.raises(spec.DTypeError) as caught:
        bind(graph, *tensors)
    assert str(caught.value).startswith("pointwise_fusion C4: ")
    assert complaint in str(caught.value)


def test_y_has_the_dtype_of_a_or_is_a_truth_value() -> None:
    half = X.astype("f2")
    assert bind("add(a,b)", half, X).outputs[0].dtype == "float16"
    assert bind("cmp_gt(a,b)", half, X).outputs[0].dtype == "bool"
    assert bind("binary_select(b,b,cmp_eq(a,0))", X, T).outputs[0].dtype == "bool"


def test_shapes_are_broadcast_and_reduced() -> None:
    a, b = np.ones((1, 3, 5)), np.ones((2, 1, 1))
    assert bind("add(a,b)", a, b).outputs[0].shape == (2, 3, 5)
    assert bind("add(a,b)", a, b, reduction="add", axes=(0, -1)).outputs[0].shape == (3,)
    kept = bind("add(a,b)", a, b, reduction="add", axes=1, keepdims=True)
    assert kept.outputs[0].shape == (2, 1, 5)
    assert bind("add(a,b)", a, b, reduction="max").outputs[0].shape == ()


def test_flops_count_each_node_once_and_the_reduction() -> None:
    a = np.ones((4, 5))
    assert bind("t0=neg(a);mul(t0,t0)", a).flops == 40
    assert bind("t0=neg(a);mul(t0,t0)", a, reduction="add").flops == 60


# --- The domain -----------------------------------------------------------------------------------


def test_the_steps_of_the_domain_have_every_mode() -> None:
    assert {mode for mode in FUSIBLE if not any(f"{mode}(" in step for step in STEPS)} == set()


def test_the_graphs_of_a_quick_run_are_canonical_and_differ() -> None:
    graphs = [text for rows in QUICK.values() for text, _ in rows]
    assert [str(graph_of(text)) for text in graphs] == graphs
    assert len(set(graphs)) == len(graphs)


def test_the_plainest_choices_give_the_plainest_graph() -> None:
    class Plainest:
        def integer(self, low: int, high: int) -> int:
            return low

        def choice(self, options: tuple[Any, ...]) -> Any:
            return options[0]

    plain = drawn(Plainest(), spec.Scale(4, 8, 8, 1 << 22), "float32")
    assert plain.attributes["graph"] == "add(a,b)"
    assert plain.attributes["reduction"] is None
    assert {tensor.shape for tensor in plain.tensors.values()} == {(1, 1)}


# --- Tracing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "graph"),
    [
        (lambda x, y: modes.gelu_fwd(x + y), "gelu_fwd(add(a,b))"),
        (lambda x: 1 - x, "sub(1.0,a)"),
        (lambda x: (2 / x) ** 0.5, "pow(div(2.0,a),0.5)"),
        (lambda x: 2**x, "pow(2.0,a)"),
        (lambda x, y: -abs(x) % y, "floor_mod(neg(abs(a)),b)"),
        (lambda x: 5 % x, "floor_mod(5.0,a)"),
        (lambda x: np.float32(0.5) * x, "mul(0.5,a)"),
        (lambda x, y: modes.binary_select(x, 0.0, (x > y) | ~(x <= 1)), None),
        (lambda x, y: modes.binary_select(x, y, (x == y) & (x != 0) & (x < 1) & (x >= 0)), None),
        (lambda x: modes.relu_fwd(x, relu_upper_clip=6.0), "relu_fwd(a,relu_upper_clip=6.0)"),
        (lambda x: (t := x + 1.0) * modes.sigmoid_fwd(t), "t0=add(a,1.0);mul(t0,sigmoid_fwd(t0))"),
        (lambda x: x, "identity(a)"),
    ],
)
def test_a_function_is_traced_to_the_text_of_its_graph(function: Any, graph: str | None) -> None:
    (text,) = traced(function).values()
    assert str(graph_of(text)) == text
    if graph is not None:
        assert text == graph


def test_comparisons_and_logic_are_traced_in_the_order_of_python() -> None:
    text = traced(lambda x, y: modes.binary_select(x, 0.0, (x > y) | ~(x <= 1)))["graph"]
    expected = "binary_select(a,0.0,logical_or(cmp_gt(a,b),logical_not(cmp_le(a,1.0))))"
    assert text == expected


def test_a_reduction_ends_a_function() -> None:
    assert traced(lambda x, m: modes.exp(x - m).sum(axes=-1, keepdims=True)) == {
        "graph": "exp(sub(a,b))",
        "reduction": "add",
        "axes": -1,
        "keepdims": True,
    }
    assert traced(lambda x: abs(x).reduce("max"))["reduction"] == "max"
    with pytest.raises(TypeError, match="a reduction ends a fused function"):
        traced(lambda x: modes.sqrt(x.sum()))
    with pytest.raises(TypeError):
        traced(lambda x: x.sum() + 1.0)


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda x: x if x > 0 else -x, "cannot branch; use modes.binary_select"),
        (lambda x: 1.0, "the function returned float, no result of its tensors"),
        (lambda: 1.0, "a function of 0 tensors; pass one of 1 to 6"),
        (lambda a, b, c, d, e, f, g: a, "a function of 7 tensors"),
    ],
)
def test_what_cannot_be_traced_says_so(function: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        traced(function)


def test_unknown_modes_and_wrong_parameters_are_named_while_tracing() -> None:
    with pytest.raises(AttributeError, match="mode 'gelu' is none"):
        traced(lambda x: modes.gelu(x))
    with pytest.raises(AttributeError, match="'gen_index' cannot be part of a graph"):
        traced(lambda x: modes.gen_index(x))
    with pytest.raises(ValueError, match="swish_beta=0"):
        traced(lambda x: modes.swish_fwd(x, swish_beta=0))
    with pytest.raises(TypeError, match="tanh_fwd of no tensor"):
        modes.tanh_fwd(1.0)


def test_the_namespace_lists_the_modes() -> None:
    assert set(dir(modes)) == set(FUSIBLE)
    assert modes.tanh_fwd.__name__ == "tanh_fwd"
