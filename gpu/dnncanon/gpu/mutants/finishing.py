"""Defects of what follows a sum: conversions between element types, and the epilogue."""

from dnncanon.gpu.mutants.making import DATA, FILTER, FORWARD, FUSED, mutants_of

_element = mutants_of("kernels.element", primitive=FORWARD)
_epilogue = mutants_of("kernels.epilogue", primitive=FUSED)
_plan = mutants_of("kernels.plan", primitive=FUSED)

_SCALE = "        value *= number(alphas[0])\n"
_RESIDUAL = """\
        if has_residual:
            value += number(alphas[1]) * to_sum(residual[_uint64(residual_at)])
"""
_BIAS = """\
        if has_bias:
            value += to_sum(bias[_uint64(bias_at)])
"""
_RELU = """\
        if relu and value < zero:  # a NaN is not below zero, and stays
            value = zero
"""
_TO_FLOAT16 = "    return ptx.f32_to_f16(ptx.to_odd_f32(value))\n"
_TO_BFLOAT16 = "    return ptx.f32_to_bf16(ptx.to_odd_f32(value))\n"
_FLOAT16 = '_element("float16", _F32, ptx.f16_to_f32, _to_float16)'

MUTANTS = (
    _element(
        "bfloat16_truncated",
        "precision",
        "results are truncated to bfloat16",
        _TO_BFLOAT16,
        "    return types.uint16(ptx.f32_to_tf32(ptx.to_odd_f32(value)) >> 16)\n",
        dtypes=("bfloat16",),
    ),
    _element(
        "float16_rounded_twice",
        "precision",
        "results pass through bfloat16 on their way to float16",
        _TO_FLOAT16,
        "    return ptx.f32_to_f16(ptx.bf16_to_f32(ptx.f32_to_bf16(ptx.to_odd_f32(value))))\n",
        DATA,
        ("float16",),
    ),
    _element(
        "bfloat16_through_float16",
        "special",
        "results pass through float16 on their way to bfloat16, whose range is wider",
        _TO_BFLOAT16,
        "    return ptx.f32_to_bf16(ptx.f16_to_f32(ptx.f32_to_f16(ptx.to_odd_f32(value))))\n",
        FILTER,
        ("bfloat16",),
    ),
    _element(
        "float16_saturates",
        "special",
        "infinite results become the largest number",
        _TO_FLOAT16,
        "    value = 65504.0 if value > 65504.0 else -65504.0 if value < -65504.0 else value\n"
        + _TO_FLOAT16,
        dtypes=("float16",),
    ),
    _element(
        "float16_results_flushed",
        "special",
        "subnormal results become 0",
        _TO_FLOAT16,
        "    value = 0.0 if -(2.0**-14) < value and value < 2.0**-14 else value\n" + _TO_FLOAT16,
        dtypes=("float16",),
    ),
    _element(
        "float16_operands_flushed",
        "special",
        "subnormal operands become 0",
        _FLOAT16,
        _FLOAT16.replace(
            "ptx.f16_to_f32",
            "device_function(lambda word: ptx.f16_to_f32(word if word & 0x7C00 != 0 else 0))",
        ),
        dtypes=("float16",),
    ),
    _element(
        "float16_as_bfloat16",
        "precision",
        "float16 words are read as bfloat16",
        _FLOAT16,
        _FLOAT16.replace("f16_to_f32", "bf16_to_f32"),
        dtypes=("float16",),
    ),
    _epilogue(
        "relu_drops_nan",
        "special",
        "relu turns NaN into 0",
        "if relu and value < zero:",
        "if relu and not value >= zero:",
    ),
    _epilogue(
        "relu_of_magnitude",
        "arithmetic",
        "relu turns negative results into positive ones",
        "            value = zero\n",
        "            value = -value\n",
    ),
    _epilogue(
        "alpha1_scales_everything",
        "arithmetic",
        "alpha1 multiplies bias and residual too",
        _SCALE + _RESIDUAL + _BIAS,
        _RESIDUAL + _BIAS + _SCALE,
    ),
    _epilogue(
        "relu_before_bias",
        "arithmetic",
        "the activation comes before the bias",
        _BIAS + _RELU,
        _RELU + _BIAS,
    ),
    _epilogue(
        "alpha2_ignored",
        "attribute",
        "the residual is not scaled",
        "number(alphas[1]) * to_sum(residual",
        "to_sum(residual",
    ),
    _epilogue(
        "alpha1_0_skips_the_sum",
        "special",
        "with alpha1 = 0 the convolution's NaN and Inf are lost",
        _SCALE,
        "        value = value * number(alphas[0]) if alphas[0] != 0 else zero\n",
    ),
    _epilogue(
        "sum_rounded_before_epilogue",
        "precision",
        "the sum is rounded to the output's dtype, then again at the end",
        _SCALE,
        "        value = to_sum(from_sum(value)) * number(alphas[0])\n",
        dtypes=("bfloat16",),
    ),
    _epilogue(
        "output_added_to",
        "output",
        "results are added to what the output holds",
        "out[_uint64(out_at)] = word",
        "out[_uint64(out_at)] = word + out[_uint64(out_at)]",
        FORWARD,
    ),
    _epilogue(
        "zeros_not_stored",
        "output",
        "outputs that are 0 are left as they were",
        "out[_uint64(out_at)] = word",
        "if word != 0:\n            out[_uint64(out_at)] = word",
    ),
    _epilogue(
        "neighbour_written",
        "output",
        "results are stored in pairs: the element behind, a gap or a margin perhaps, is written too",
        "out[_uint64(out_at)] = word",
        "out[_uint64(out_at)] = word\n"
        "        if out_at + 1 < out.size:\n"
        "            out[_uint64(out_at + 1)] = word",
    ),
    _plan(
        "bias_stride_ignored",
        "index",
        "biases are taken to be adjacent",
        "bias_at = (origin(bias), bias.strides[0]) if self.bias else (0, 0)",
        "bias_at = (origin(bias), 1) if self.bias else (0, 0)",
    ),
)
