"""Defects planted in the definitions of tensor operators and casts."""

from dnncanon.spec.mutant import Mutant


def _mutant(
    name: str,
    kind: str,
    doc: str,
    old: str,
    new: str,
    primitive: str,
    dtypes: tuple[str, ...] = ("float32",),
) -> Mutant:
    full, module = f"reference.transform_{name}", "dnncanon.reference.transform"
    return Mutant(full, kind, doc, module, old, new, "reference", primitive, dtypes)


MUTANTS = (
    _mutant(
        "beta_ignored",
        "attribute",
        "c is added as it is",
        "return y if c is None else y + p.beta * c",
        "return y if c is None else y + c",
        "op_tensor",
    ),
    _mutant(
        "alpha1_for_b",
        "attribute",
        "b is scaled by the factor of a",
        "BINARY[p.op](p, a, p.alpha2 * b)",
        "BINARY[p.op](p, a, p.alpha1 * b)",
        "op_tensor",
    ),
    _mutant(
        "not_of_the_other_sign",
        "arithmetic",
        "not is a − 1",
        '"not": lambda a: 1.0 - a,',
        '"not": lambda a: a - 1.0,',
        "op_tensor",
    ),
    _mutant(
        "nan_always_propagates",
        "special",
        "not_propagate does not matter",
        "if p.propagates_nan:",
        "if True:",
        "op_tensor",
    ),
    _mutant(
        "nan_gives_way_to_nan",
        "special",
        "a NaN of b wins over a where none propagates",
        "return np.where(np.isnan(a), b, np.where(np.isnan(b), a, chosen))",
        "return np.where(np.isnan(a), b, chosen)",
        "op_tensor",
    ),
    _mutant(
        "c_read_for_nothing",
        "special",
        "with beta 0 c is read",
        "return added if p.beta == 0.0 else added + p.beta * c",
        "return added + p.beta * c",
        "add_tensor",
    ),
    _mutant(
        "integers_truncated",
        "precision",
        "a cast to an integer is cut",
        "return np.rint(x) if DTYPES[source].is_float else x",
        "return np.trunc(x) if DTYPES[source].is_float else x",
        "cast",
    ),
    _mutant(
        "scale_ignored",
        "attribute",
        "alpha does not matter",
        "return p.alpha * x",
        "return 1.0 * x",
        "scale_tensor",
    ),
    _mutant(
        "saturation_ignored",
        "attribute",
        "saturate does not matter",
        "if saturate and target.max < DTYPES[source].max:",
        "if False:",
        "cast",
    ),
    _mutant(
        "overflow_without_infinity",
        "special",
        "what float8_e4m3fn cannot hold is its largest number",
        "return np.where(np.abs(x) > _last_that_rounds_to_max(to), np.nan, x)",
        "return np.clip(x, -target.max, target.max)",
        "cast",
    ),
    _mutant(
        "large_is_true_only",
        "arithmetic",
        "in bool what is above 0 is true",
        "        return x != 0\n",
        "        return x > 0\n",
        "cast",
    ),
)
