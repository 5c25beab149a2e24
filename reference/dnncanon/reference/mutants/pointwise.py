"""Defects planted in the definitions of pointwise operations."""

from dnncanon.spec.mutant import Mutant

_MODULE = "dnncanon.reference.pointwise"
_FLOATS = ("float32", "float64", "float16", "bfloat16")  # each mode is drawn once or twice in each


def _pointwise(
    name: str,
    kind: str,
    doc: str,
    old: str,
    new: str,
    dtypes: tuple[str, ...] = _FLOATS,
) -> Mutant:
    return Mutant(
        name=f"reference.pointwise_{name}",
        kind=kind,
        doc=doc,
        module=_MODULE,
        old=old,
        new=new,
        backend="reference",
        primitive="pointwise_operation",
        dtypes=dtypes,
    )


MUTANTS = (
    _pointwise(
        "alpha1_ignored",
        "attribute",
        "x is never scaled",
        "    x = x if p.alpha1 == 1.0 else p.alpha1 * x\n",
        "",
    ),
    _pointwise(
        "alphas_swapped",
        "attribute",
        "b is scaled by alpha1",
        "b is None or p.alpha2 == 1.0 else p.alpha2 * b",
        "b is None or p.alpha1 == 1.0 else p.alpha1 * b",
    ),
    _pointwise(
        "floor_mod_truncates",
        "arithmetic",
        "floor_mod has the sign of x",
        "    return np.where(other_sign, remainder + b, remainder)",
        "    return remainder",
    ),
    _pointwise(
        "mod_floors",
        "arithmetic",
        "mod has the sign of b",
        '"mod": lambda p, x, b: np.fmod(x, b)',
        '"mod": lambda p, x, b: floor_mod(x, b)',
        ("int32", "int8", *_FLOATS),
    ),
    _pointwise(
        "atan2_takes_its_operands_in_reverse",
        "index",
        "the angle of the point (x, b)",
        "np.arctan2(x, b)",
        "np.arctan2(b, x)",
    ),
    _pointwise(
        "select_in_reverse",
        "index",
        "b is chosen where the condition holds",
        "np.where(t != 0.0, x, b)",
        "np.where(t != 0.0, b, x)",
        ("bool", *_FLOATS),
    ),
    _pointwise(
        "max_without_nan",
        "special",
        "a NaN that is the second operand is lost",
        '"max": lambda p, x, b: np.maximum(x, b)',
        '"max": lambda p, x, b: np.where(x != x, x, np.where(b > x, b, x))',
    ),
    _pointwise(
        "comparison_without_equality",
        "bounds",
        "cmp_ge is cmp_gt",
        '"cmp_ge": lambda p, x, b: x >= b',
        '"cmp_ge": lambda p, x, b: x > b',
        ("int32", *_FLOATS),
    ),
    _pointwise(
        "inequality_of_nan",
        "special",
        "NaN counts as equal to everything",
        '"cmp_neq": lambda p, x, b: x != b',
        '"cmp_neq": lambda p, x, b: (x < b) | (x > b)',
    ),
    _pointwise(
        "gen_index_along_the_last_dim",
        "index",
        "the axis is ignored",
        "dim == p.axis else 1 for dim",
        "dim == len(p.shape) - 1 else 1 for dim",
        ("bool", *_FLOATS),
    ),
    _pointwise(
        "relu_lower_clip_is_zero",
        "attribute",
        "relu_lower_clip is taken for 0 in the choice of the piece",
        "    return np.where(x < low, below, np.minimum(x, p.relu_upper_clip))",
        "    return np.where(x < 0.0, below, np.minimum(x, p.relu_upper_clip))",
    ),
    _pointwise(
        "relu_slope_of_x",
        "arithmetic",
        "the slope below L is that of a line through 0",
        "low + slope * (x - low)",
        "low + slope * x",
    ),
    _pointwise(
        "relu_gradient_above_the_upper_clip",
        "bounds",
        "relu_bwd passes dy on above U",
        "    above = np.where(x < p.relu_upper_clip, dy, 0.0)",
        "    above = dy",
    ),
    _pointwise(
        "operands_of_backward_swapped",
        "index",
        "tanh_bwd takes dy for the input",
        "dy * act.sech_squared(x)",
        "x * act.sech_squared(dy)",
    ),
    _pointwise(
        "square_of_x",
        "index",
        "add_square squares its first operand",
        "x + np.square(b)",
        "np.square(x) + b",
        ("int32", *_FLOATS),
    ),
)
