"""Defects of tensor operators and casts."""

from dnncanon.gpu.mutants.making import mutants_of

_operators = mutants_of("kernels.transform", primitive="op_tensor", backend="gpu")
_tiled = mutants_of("kernels.elementwise_tiled", primitive="op_tensor", backend="gpu")
_launch = mutants_of("transform", primitive="cast", backend="gpu")
_words = mutants_of("words", primitive="set_tensor", backend="gpu")

MUTANTS = (
    _operators(
        "transform_c_not_scaled",
        "attribute",
        "c is added as it is",
        "return _of_two(alpha1 * a, alpha2 * b, op, propagates) + beta * c",
        "return _of_two(alpha1 * a, alpha2 * b, op, propagates) + c",
    ),
    _operators(
        "transform_alphas_swapped",
        "attribute",
        "each operand has the other's factor",
        "return _of_two(alpha1 * a, alpha2 * b, op, propagates)\n",
        "return _of_two(alpha2 * a, alpha1 * b, op, propagates)\n",
    ),
    _operators(
        "transform_sqrt_for_not",
        "arithmetic",
        "not is 0 − a",
        "return one - a if op == _NOT else math.sqrt(a)",
        "return -a if op == _NOT else math.sqrt(a)",
    ),
    _operators(
        "transform_min_loses_nan",
        "special",
        "a NaN of a gives way in min",
        "return a if a < b or a != a else b",
        "return a if a < b else b",
    ),
    _operators(
        "transform_nan_always_propagates",
        "attribute",
        "not_propagate does not matter",
        "if propagates == 0:",
        "if propagates == 2:",
    ),
    _operators(
        "transform_limit_on_one_side",
        "bounds",
        "only what is above the range saturates",
        "            if number < -limit:\n                number = -limit\n",
        "",
        "cast",
    ),
    _operators(
        "transform_bytes_without_sign",
        "special",
        "negative numbers of int8 are read as those beyond 127",
        "return (word ^ 0x80) - 0x80 if code == _SIGNED_BYTE else word",
        "return word",
        "cast",
        ("int8",),
    ),
    _operators(
        "transform_bytes_wrap_around",
        "bounds",
        "integers of 8 bits do not saturate",
        "return min(max(ptx.to_int64(number), _int64(low)), _int64(high)) & 0xFF\n",
        "return ptx.to_int64(number) & 0xFF\n",
        "cast",
    ),
    _operators(
        "transform_uint32_has_a_sign",
        "bounds",
        "uint32 saturates as int32 does",
        "low, high = (0, 0xFFFFFFFF) if code == _UNSIGNED else (-0x80000000, 0x7FFFFFFF)",
        "low, high = (-0x80000000, 0x7FFFFFFF)",
        "cast",
    ),
    _launch(
        "transform_saturate_ignored",
        "attribute",
        "saturate does not matter",
        "scalars = (limit if p.saturate else type(limit)(0),",
        "scalars = (type(limit)(0),",
    ),
    _launch(
        "transform_codes_swapped",
        "attribute",
        "each type is taken for the other one of its class",
        "*map(kernels.code_of, (p.dtype, p.to))",
        "*map(kernels.code_of, (p.to, p.dtype))",
        dtypes=("int8", "uint8"),
    ),
    _launch(
        "transform_c_read_for_nothing",
        "special",
        "with beta 0 c is read",
        "if p.beta == 0.0:",
        "if False:",
        "add_tensor",
    ),
    _words(
        "transform_word_truncated",
        "precision",
        "a number that is set is cut to an integer",
        "min(max(round(value), ends.min), ends.max)",
        "min(max(int(value), ends.min), ends.max)",
        dtypes=("int8",),
    ),
    _tiled(
        "elementwise_tile_not_turned",
        "index",
        "what went into a tile along columns is taken out along columns",
        'taken = _for_each(across, "v{k} = tile{k}[lane, line]")',
        'taken = _for_each(across, "v{k} = tile{k}[line, lane]")',
    ),
    _tiled(
        "elementwise_tile_taken_too_early",
        "memory",
        "elements are taken out of a tile before all are in it",
        "                {filled}\n        cuda.syncthreads()\n",
        "                {filled}\n",
        check=True,
    ),
)
