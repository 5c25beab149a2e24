"""Defects of the direct convolution."""

from dnncanon.gpu.mutants.making import DATA, FILTER, FORWARD, FUSED, mutants_of

_mutant = mutants_of("kernels.conv_direct", primitive=FORWARD)

_STEP = """\
                            total_sum += to_sum(source[_uint64(s)]) * to_sum(filter[_uint64(f)])
"""

MUTANTS = (
    _mutant(
        "direct_left_border_unmasked",
        "bounds",
        "taps before the input are read",
        "return _int64(0) if base >= 0 else (gap - 1 - base) // gap",
        "return _int64(0)",
    ),
    _mutant(
        "direct_right_border_unmasked",
        "bounds",
        "taps behind the input are read",
        "min(taps, (room + gap - 1) // gap)",
        "taps",
    ),
    _mutant(
        "direct_first_tap_too_early",
        "bounds",
        "the first tap is rounded down, which shows with dilation only",
        "(gap - 1 - base) // gap",
        "-base // gap",
    ),
    _mutant(
        "direct_last_tap_lost",
        "bounds",
        "at the right border the last tap of a dilated filter is left out",
        "(room + gap - 1) // gap",
        "room // gap",
    ),
    _mutant(
        "direct_group_offset_dropped",
        "index",
        "every group reads the channels of the first",
        "                            + g * s_group\n",
        "",
    ),
    _mutant(
        "direct_filter_group_offset_dropped",
        "index",
        "every group of the gradient uses the filters of the first",
        "                            + g * f_group\n",
        "",
        DATA,
    ),
    _mutant(
        "direct_dilation_of_last_dim_ignored",
        "attribute",
        "in the last dim, taps are adjacent",
        "s += gap2 * s2",
        "s += s2",
    ),
    _mutant(
        "direct_first_column_ignored",
        "index",
        "a row of the window is read from its start, although its first taps are left out",
        "(base2 + begin2 * gap2) * s2",
        "base2 * s2",
    ),
    _mutant(
        "direct_filter_row_stride",
        "index",
        "filter rows are taken to be as far apart as filter columns",
        "+ t1 * f1",
        "+ t1 * f2",
    ),
    _mutant(
        "direct_last_channel_lost",
        "bounds",
        "of several channels the last is left out",
        "for r in range(channels_in):",
        "for r in range(max(1, channels_in - 1)):",
    ),
    _mutant(
        "direct_starts_with_second_sample",
        "launch",
        "the gradient of several samples leaves out the first",
        "for r in range(channels_in):",
        "for r in range(1 if channels_in > 1 else 0, channels_in):",
        FILTER,
    ),
    _mutant(
        "direct_last_output_lost",
        "launch",
        "one thread too few: the last output is never written",
        "total = groups * batch * channels_out * q0s * q1s * q2s",
        "total = groups * batch * channels_out * q0s * q1s * q2s - 1",
    ),
    _mutant(
        "direct_one_output_too_many",
        "bounds",
        "the guard of the grid's tail lets one thread through",
        "while index < total:",
        "while index <= total:",
    ),
    _mutant(
        "direct_every_other_output",
        "launch",
        "half of the threads have no work",
        "while index < total:",
        "while index < total and index & 1 == 0:",
        DATA,
    ),
    _mutant(
        "direct_sum_not_reset",
        "memory",
        "a sum starts with what the accumulator held for the tap before",
        "            total_sum = zero\n            for r in range(channels_in):\n",
        "            for r in range(channels_in):\n                total_sum = zero\n",
    ),
    _mutant(
        "direct_float32_sums_of_float64",
        "precision",
        "sums of float64 are kept in float32",
        _STEP,
        _STEP.replace("+= ", "= types.float32(total_sum + ").replace("\n", ")\n"),
        dtypes=("float64",),
    ),
    _mutant(
        "direct_products_flushed",
        "special",
        "subnormal products become 0",
        _STEP,
        "                            product = to_sum(source[_uint64(s)]) * to_sum(filter[_uint64(f)])\n"
        "                            if not abs(product) < 2.0**-126:\n"
        "                                total_sum += product\n",
    ),
    _mutant(
        "direct_bias_of_first_group",
        "index",
        "every group gets the biases of the first",
        "bias_at[0] + (g * channels_out + j) * bias_at[1]",
        "bias_at[0] + j * bias_at[1]",
        FUSED,
    ),
    _mutant(
        "direct_bias_by_sample",
        "index",
        "the bias is indexed by the sample instead of the channel",
        "bias_at[0] + (g * channels_out + j) * bias_at[1]",
        "bias_at[0] + b * bias_at[1]",
        FUSED,
    ),
    _mutant(
        "direct_residual_in_output_layout",
        "index",
        "the residual is read as if it lay in memory like the output",
        "place(residual_at, g, b, j, q0, q1, q2)",
        "place(out_at, g, b, j, q0, q1, q2)",
        FUSED,
    ),
    _mutant(
        "direct_untouched_elements_left_out",
        "output",
        "gradient elements that no window covers are not written",
        "if part.size == 0:",
        "if part.size == 0 or part.depth == 0:",
        DATA,
    ),
    _mutant(
        "direct_no_grid_stride",
        "launch",
        "a thread computes one output only",
        "while index < total:",
        "if index < total:",
        equivalent="the grid covers all outputs up to 2^38 of them, more than memory holds",
    ),
    _mutant(
        "direct_int32_positions",
        "index",
        "outputs are counted in 32 bits",
        "index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x",
        "index = types.int32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)",
        equivalent="the count wraps from 2^31 outputs on, and no case of a level has as many",
    ),
)
