"""Defects of fused graphs: of how they are composed, and of what the engines are given."""

from dnncanon.gpu.mutants.making import mutants_of

_graph = mutants_of("kernels.graph", primitive="pointwise_fusion", backend="gpu")
_launch = mutants_of("fused", primitive="pointwise_fusion", backend="gpu")

MUTANTS = (
    _graph(
        "fused_result_before_the_one_meant",
        "index",
        "an operand that is a result is the one before it",
        'return f"r{operand.node}"',
        'return f"r{max(0, operand.node - 1)}"',
    ),
    _graph(
        "fused_one_scalar_for_all_numbers",
        "index",
        "every number in a graph is its first one",
        'return f"s{len(given) - 1}"',
        'return "s0"',
    ),
    _graph(
        "fused_parameters_are_the_first_scalars",
        "index",
        "a mode gets the first scalars of the graph for its parameters",
        "[-len(values) :]",
        "[: len(values)]",
        dtypes=("float16",),
    ),
    _graph(
        "fused_single_parameter_lost",
        "attribute",
        "a mode of one parameter gets 1 for it",
        "if not parameters_of(node.mode):",
        "if len(values) < 2:",
        dtypes=("float16",),
    ),
    _graph(
        "fused_sign_of_numbers_lost",
        "arithmetic",
        "numbers in a graph are taken without their sign",
        "given.append(operand.value)",
        "given.append(abs(operand.value))",
        dtypes=("float64",),
    ),
    _graph(
        "fused_factor_of_minus_one",
        "arithmetic",
        "operands are negated",
        '"one": number(1)',
        '"one": number(-1)',
    ),
    _graph(
        "fused_results_between_in_float32",
        "precision",
        "results of float64 tensors are kept in float32",
        '{**scope, "number": number,',
        '{**scope, "number": ELEMENTS["float32"].sum,',
        dtypes=("float64",),
    ),
    _graph(
        "fused_first_node_only",
        "output",
        "what is put out is the first result",
        "return r{len(lines) - 1}",
        "return r0",
    ),
    _graph(
        "fused_operands_in_the_order_of_the_walk",
        "index",
        "a reduced graph takes its tensors as the reduction reads them",
        '(*tensors, *of_graph))})", *of_monoid',
        '(*order, *of_graph))})", *of_monoid',
    ),
    _launch(
        "fused_operands_reversed",
        "index",
        "a graph gets its tensors from the last to the first",
        "operands = [run.inputs[name] for name in composed.tensors]",
        "operands = [run.inputs[name] for name in reversed(composed.tensors)]",
    ),
    _launch(
        "fused_scalars_of_the_reduction_first",
        "attribute",
        "the scalars of the reduction come before those of the graph",
        "(*composed.scalars, *scalars)",
        "(*scalars, *composed.scalars)",
        dtypes=("bfloat16",),
    ),
    _launch(
        "fused_reduction_over_one_axis",
        "bounds",
        "only the first of the axes is reduced",
        "inputs, axes = (whole, *others), p.reduction.axes",
        "inputs, axes = (whole, *others), p.reduction.axes[:1]",
    ),
    _launch(
        "fused_half_a_workspace",
        "memory",
        "the states of the parts of a long set have half the room",
        "whole, p.reduction.axes, p.dtype)",
        "whole, p.reduction.axes, p.dtype) // 2",
        check=True,
    ),
)
