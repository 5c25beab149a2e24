"""Defects of quantization: codes, scales of blocks, tiles, and one element for all in a dense kernel."""

from dnncanon.gpu.mutants.making import mutants_of

_LINEAR, _BACK = "quantize_linear", "dequantize_linear"
_BLOCKS, _FROM_BLOCKS = "block_scale_quantize", "block_scale_dequantize"
_kernel = mutants_of("kernels.quantize", primitive=_LINEAR, backend="gpu")
_block = mutants_of("kernels.quantize", primitive=_BLOCKS, backend="gpu")
_launch = mutants_of("quantize", primitive=_BLOCKS, backend="gpu")
_dense = mutants_of("kernels.elementwise", primitive=_LINEAR, backend="gpu")

MUTANTS = (
    _kernel(
        "quantize_float_codes_truncated",
        "precision",
        "mantissas are cut",
        "half = (1 << shift - 1) - 1 + (magnitude >> shift & 1)",
        "half = 0",
    ),
    _kernel(
        "quantize_ties_away_from_zero",
        "precision",
        "what lies in the middle of two numbers goes to the larger one",
        "half = (1 << shift - 1) - 1 + (magnitude >> shift & 1)",
        "half = 1 << shift - 1",
    ),
    _kernel(
        "quantize_large_numbers_overflow",
        "bounds",
        "what is beyond the largest number gets the code of something else",
        "    if value > most:\n        value = most\n",
        "    if value > most * 4:\n        value = most\n",
    ),
    _kernel(
        "quantize_subnormals_lost",
        "special",
        "numbers below the smallest normal one have the code 0",
        "code = ptx.bits_of_f32(rounded) - rounder",
        "code = _int64(0)",
    ),
    _kernel(
        "quantize_sign_lost",
        "arithmetic",
        "codes of floats have no sign",
        "return code | bits >> 31 << width if number == number else nan",
        "return code if number == number else nan",
    ),
    _kernel(
        "quantize_nan_is_a_number",
        "special",
        "a NaN has the code of what its bits mean",
        "return code | bits >> 31 << width if number == number else nan",
        "return code & 0x7B | bits >> 31 << width",
    ),
    _kernel(
        "quantize_nan_is_the_zero_point",
        "special",
        "NaN gives the zero point, not 0",
        "    return code if value == value else _int64(0)",
        "    return code",
    ),
    _kernel(
        "quantize_integers_wrap_around",
        "bounds",
        "codes beyond the ends come back from the other side",
        "code = min(max(whole, largest - 255), largest) & 255",
        "code = whole & 255",
    ),
    _kernel(
        "quantize_zero_point_has_no_sign",
        "arithmetic",
        "a negative zero point is read as a large one",
        "return _integer_code(x / scale, _integer_of(zero, most), most)",
        "return _integer_code(x / scale, zero, most)",
    ),
    _kernel(
        "quantize_zero_point_added_back",
        "arithmetic",
        "the zero point is added on the way back",
        "types.float32(_integer_of(x, most) - _integer_of(zero, most)) * scale",
        "types.float32(_integer_of(x, most) + _integer_of(zero, most)) * scale",
        _BACK,
        ("uint8",),
    ),
    _kernel(
        "quantize_nan_code_is_a_number",
        "special",
        "the code of NaN is read as a number beyond the largest",
        "ptx.f32_of_bits(0x7FC00000) if magnitude == nan and nan == 0x7F else number",
        "number",
        _FROM_BLOCKS,
        ("float8_e4m3fn",),
    ),
    _block(
        "quantize_scale_not_rounded_up",
        "arithmetic",
        "the scale is the one below, and large numbers saturate",
        "scale = min(low if amax <= most * number(low) else high, largest)",
        "scale = min(low, largest)",
    ),
    _block(
        "quantize_scale_steps_at_the_edge",
        "bounds",
        "a block whose largest number the scale just holds gets the next one",
        "scale = min(low if amax <= most * number(low) else high, largest)",
        "scale = min(low if amax < most * number(low) else high, largest)",
    ),
    _block(
        "quantize_subnormal_scales_like_normal",
        "arithmetic",
        "small scales have as many digits as others, which their type cannot hold",
        "moved = normal if ratio < normal else zero",
        "moved = zero",
    ),
    _block(
        "quantize_scale_forgets_nan",
        "special",
        "a NaN does not show in the scale of its block",
        "        return scale if amax == amax else nan",
        "        return scale",
    ),
    _block(
        "quantize_zero_by_zero",
        "special",
        "a block of zeros with the scale 0 is 0/0",
        "quotient = x / scale if scale != zero else zero",
        "quotient = x / scale",
    ),
    _block(
        "quantize_largest_not_smallest_magnitude",
        "arithmetic",
        "the largest number decides, whatever the most negative one is",
        "        return abs(x)",
        "        return x",
    ),
    _launch(
        "quantize_padding_not_written",
        "output",
        "what pads tiles is what was in the workspace",
        "        elementwise(kernels.nothing, (), (padded.whole,), stream=run.stream)",
        "        pass",
    ),
    _launch(
        "quantize_tiles_of_rows_in_order",
        "index",
        "the rows of a tile follow each other in fours",
        "row, 32 * row, column)",
        "4 * row, row, column)",
    ),
    _launch(
        "quantize_blocks_and_rows_swapped",
        "index",
        "scales of blocks along the last dim but one are laid out as along the last",
        "last = (row, column) if p.axis == len(p.shape) - 1 else (column, row)",
        "last = (row, column)",
    ),
    _launch(
        "quantize_stride_of_the_axis_ignored",
        "index",
        "scales are taken for adjacent",
        "step = array.strides[0] if p.axis is not None else 0",
        "step = 1 if p.axis is not None else 0",
        _LINEAR,
    ),
    _dense(
        "quantize_one_element_is_a_chunk",
        "index",
        "what has one element for all is read along",
        "still = tuple(k for k in range(len(inputs)) if not (any(strides[k]) or are_dense[k]))",
        "still = ()\n    are_dense = tuple(d or not any(by) for d, by in zip(are_dense, strides))",
        check=True,
    ),
)
