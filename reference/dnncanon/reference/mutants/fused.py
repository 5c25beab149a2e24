"""Defects planted in the definition of fused graphs."""

from dnncanon.spec.mutant import Mutant


def _fused(
    name: str,
    kind: str,
    doc: str,
    old: str,
    new: str,
    dtypes: tuple[str, ...] = ("float32",),
) -> Mutant:
    return Mutant(
        name=f"reference.fused_{name}",
        kind=kind,
        doc=doc,
        module="dnncanon.reference.fused",
        old=old,
        new=new,
        backend="reference",
        primitive="pointwise_fusion",
        dtypes=dtypes,
    )


MUTANTS = (
    _fused(
        "latest_result_for_every_one",
        "index",
        "an operand that is a result is always the latest one",
        "        return results[operand.node]",
        "        return results[-1]",
    ),
    _fused(
        "result_before_the_one_meant",
        "index",
        "an operand that is a result is the one before it",
        "        return results[operand.node]",
        "        return results[max(0, operand.node - 1)]",
    ),
    _fused(
        "operands_reversed",
        "index",
        "each mode takes its operands from the last to the first",
        "for operand in node.operands]",
        "for operand in reversed(node.operands)]",
    ),
    _fused(
        "tensors_without_their_letters",
        "index",
        "tensors are named in the order given, as if no letter were left out",
        "zip(TENSORS, tensors, strict=False)",
        "zip(p.graph.tensors, tensors, strict=False)",
        ("float64", "bfloat16"),
    ),
    _fused(
        "first_node_only",
        "output",
        "what is put out is the first result",
        "    return results[-1]",
        "    return results[0]",
    ),
    _fused(
        "sign_of_numbers_lost",
        "arithmetic",
        "numbers in a graph are taken without their sign",
        "np.full_like(like, operand.value,",
        "np.full_like(like, abs(operand.value),",
        ("float64",),
    ),
    _fused(
        "numbers_rounded_to_16_bits",
        "precision",
        "numbers in a graph are rounded to float16",
        "np.full_like(like, operand.value,",
        "np.full_like(like, np.float16(operand.value),",
        ("float64",),
    ),
    _fused(
        "results_between_rounded",
        "precision",
        "each result is rounded to float16",
        "results.append(applied(node.problem(dtype), *operands))",
        "results.append(applied(node.problem(dtype), *operands).astype(np.float16).astype(float))",
        ("float16",),
    ),
    _fused(
        "parameters_at_their_defaults",
        "attribute",
        "a mode does not get its parameters",
        "applied(node.problem(dtype), *operands)",
        "applied(type(node)(node.mode, node.operands).problem(dtype), *operands)",
        ("float16",),
    ),
    _fused(
        "magnitudes_reduced",
        "arithmetic",
        "what is reduced are magnitudes",
        "else reduced(p.reduction, result)",
        "else reduced(p.reduction, np.abs(result))",
        ("float16",),
    ),
    _fused(
        "nan_taken_for_0",
        "special",
        "a NaN in a tensor is 0",
        "        return tensors[operand.name]",
        "        given = tensors[operand.name]\n        return np.where(given != given, 0.0, given)",
    ),
)
