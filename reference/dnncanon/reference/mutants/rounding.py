"""Defects planted in the one rounding of the reference."""

from dnncanon.spec.mutant import Mutant

_ROUNDING = "dnncanon.reference.rounding"


def _rounding(
    name: str, kind: str, doc: str, old: str, new: str, dtype: str, equivalent: str = ""
) -> Mutant:
    return Mutant(
        name=f"reference.{name}",
        kind=kind,
        doc=doc,
        module=_ROUNDING,
        old=old,
        new=new,
        backend="reference",
        primitive="conv_forward",
        dtypes=(dtype,),
        equivalent=equivalent,
    )


MUTANTS = (
    _rounding(
        "truncating",
        "precision",
        "bfloat16 results are truncated instead of rounded",
        "nearest = np.rint(values / spacing) * spacing",
        "nearest = np.trunc(values / spacing) * spacing",
        "bfloat16",
    ),
    _rounding(
        "rounded_up",
        "precision",
        "bfloat16 results are rounded away from zero in ties and out of them",
        "nearest = np.rint(values / spacing) * spacing",
        "nearest = np.sign(values) * np.ceil(np.abs(values) / spacing) * spacing",
        "bfloat16",
    ),
    _rounding(
        "half_precision_intermediate",
        "precision",
        "results pass through float16",
        "return np.asarray(values.astype(target.numpy))",
        "return np.asarray(values.astype(np.float16).astype(target.numpy))",
        "float32",
    ),
    _rounding(
        "float32_for_float64",
        "precision",
        "results pass through float32",
        "return np.asarray(values.astype(target.numpy))",
        "return np.asarray(values.astype(np.float32).astype(target.numpy))",
        "float64",
    ),
    _rounding(
        "subnormals_flushed",
        "special",
        "subnormal float16 results become 0",
        "return np.asarray(values.astype(target.numpy))",
        "values = np.where(np.abs(values) < target.smallest_normal, 0.0, values)\n"
        "        return np.asarray(values.astype(target.numpy))",
        "float16",
    ),
    _rounding(
        "infinity_clamped",
        "special",
        "infinite results become the largest number",
        "return np.asarray(values.astype(target.numpy))",
        "return np.clip(values, -target.max, target.max).astype(target.numpy)",
        "float16",
    ),
    _rounding(
        "double_rounding",
        "precision",
        "bfloat16 results are rounded by way of float32",
        "if target.name not in _BY_NUMPY:",
        'if target.name not in (*_BY_NUMPY, "bfloat16"):',
        "bfloat16",
        "sums in float32, rounded to bfloat16, are what a backend is allowed to return",
    ),
)
