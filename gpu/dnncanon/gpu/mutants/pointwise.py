"""Defects of pointwise operations: of their device functions, and of how they are chosen."""

from dnncanon.gpu.mutants.making import mutants_of

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_INTEGERS = ("int8", "int32")
_kernel = mutants_of("kernels.pointwise", primitive="pointwise_operation", backend="gpu")
_launch = mutants_of("pointwise", primitive="pointwise_operation", backend="gpu")

MUTANTS = (
    _launch(
        "pointwise_alphas_swapped",
        "attribute",
        "x is scaled by alpha2, b by alpha1",
        "return (p.alpha1, p.alpha2)[:",
        "return (p.alpha2, p.alpha1)[:",
    ),
    _launch(
        "pointwise_upper_clip_ignored",
        "attribute",
        "relu has no upper clip",
        "return p.relu_lower_clip, p.relu_upper_clip, p.relu_lower_clip_slope",
        "return p.relu_lower_clip, math.inf, p.relu_lower_clip_slope",
        dtypes=("float16",),
    ),
    _launch(
        "pointwise_axis_one_too_far",
        "index",
        "gen_index divides by the elements of its own dim too",
        "math.prod(p.shape[p.axis + 1 :])",
        "math.prod(p.shape[p.axis :])",
    ),
    _launch(
        "pointwise_beta_of_the_other",
        "attribute",
        "swish has the factor of softplus",
        '"swish": p.swish_beta',
        '"swish": p.softplus_beta',
        dtypes=_FLOATS,
    ),
    _kernel(
        "pointwise_max_loses_nan",
        "special",
        "a NaN that is the first operand is lost",
        "return first if first > second or first != first else second",
        "return first if first > second else second",
    ),
    _kernel(
        "pointwise_min_loses_nan",
        "special",
        "a NaN that is the second operand is lost",
        "return first if first < second or first != first else second",
        "return second if second < first or first != first else first",
    ),
    _kernel(
        "pointwise_floor_mod_at_zero",
        "bounds",
        "a remainder of 0 is brought to the sign of b too",
        "other_sign = remainder != zero and (remainder < zero) != (b < zero)",
        "other_sign = (remainder < zero) != (b < zero)",
    ),
    _kernel(
        "pointwise_remainder_by_division",
        "precision",
        "x − b·trunc(x/b), whose quotient is rounded",
        "return math.fmod(x, b)\n\n    @device_function\n    def floor_mod",
        "return x - b * (x / b - math.fmod(x / b, b / b))\n\n    @device_function\n    def floor_mod",
    ),
    _kernel(
        "pointwise_integers_divide_by_zero",
        "bounds",
        "a remainder by 0 is what the hardware gives",
        "return x * 0 if b == 0 else x % b",
        "return x if b == 0 else x % b",
        dtypes=_INTEGERS,
    ),
    _kernel(
        "pointwise_truncated_remainder_floors",
        "arithmetic",
        "mod of integers has the sign of b",
        "return remainder - b if remainder != 0 and (x < 0) != (b < 0) else remainder",
        "return remainder",
        dtypes=_INTEGERS,
    ),
    _kernel(
        "pointwise_comparison_without_equality",
        "bounds",
        "cmp_le is cmp_lt",
        "    return x <= b",
        "    return x < b",
    ),
    _kernel(
        "pointwise_select_in_reverse",
        "index",
        "b is chosen where the condition holds",
        "    return x if t != 0 else b",
        "    return b if t != 0 else x",
    ),
    _kernel(
        "pointwise_flat_piece_multiplies",
        "special",
        "relu_bwd multiplies dy by a slope of 0",
        "return zero if slope == zero else slope * dy",
        "return slope * dy",
    ),
    _kernel(
        "pointwise_root_of_the_reciprocal",
        "special",
        "rsqrt by √(1/x), which overflows for subnormal x",
        "        return one / math.sqrt(alpha * x)",
        "        return math.sqrt(one / (alpha * x))",
    ),
    _kernel(
        "pointwise_square_of_the_sum",
        "arithmetic",
        "add_square squares α1·x + α2·b",
        "        return alpha1 * x + scaled * scaled",
        "        return (alpha1 * x + scaled) * (alpha1 * x + scaled)",
    ),
)
