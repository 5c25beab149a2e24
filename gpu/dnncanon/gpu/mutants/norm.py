"""Defects of the normalizations: of what is computed of an element, of the steps, and of windows."""

from dnncanon.gpu.mutants.making import mutants_of

_function = mutants_of("kernels.norm", primitive="batch_norm_forward_training", backend="gpu")
_step = mutants_of("kernels.norm_steps", primitive="layer_norm_forward", backend="gpu")
_split = mutants_of(
    "kernels.norm",
    primitive="batch_norm_forward_training",
    backend="dnncanon.gpu.single_algorithm:two_pass",
)
_row = mutants_of("kernels.norm_rows", primitive="layer_norm_forward", backend="gpu")
_window = mutants_of("kernels.norm_window", primitive="lrn_forward", backend="gpu")

_LAST_LIMITS = (
    "            low2, high2 = max(-before, -digits[6]), min(taps - before, e2 - digits[6])\n"
)

MUTANTS = (
    _split(
        "norm_variance_of_squares",
        "precision",
        "squares of elements less that of the mean are added up, which cancel",
        "    distance = {distance}\n    return distance * distance\n",
        "    return x * x - mean * mean\n",
    ),
    _split(
        "norm_epsilon_outside_the_root",
        "arithmetic",
        "epsilon is added to the root, not under it",
        "    variance = total / count\n    return one / sqrt(variance + epsilon), variance\n",
        "    variance = total / count\n    return one / (sqrt(variance) + epsilon), variance\n",
    ),
    _function(
        "norm_relu_drops_nan",
        "special",
        "relu of NaN is 0",
        '    {"y = y + z" if residual else "pass"}\n'
        "    return y if relu == 0 or y > zero or y != y else zero\n"
        '"""\n    return _made(source, kind)\n\n\n@cache\ndef by_given_statistics',
        '    {"y = y + z" if residual else "pass"}\n'
        "    return y if relu == 0 or y > zero else zero\n"
        '"""\n    return _made(source, kind)\n\n\n@cache\ndef by_given_statistics',
    ),
    _function(
        "norm_running_variance_biased",
        "arithmetic",
        "the running variance takes the biased estimate",
        "return kept * before + weight * (batch * times)",
        "return kept * before + weight * batch",
    ),
    _function(
        "norm_zero_centered_ignored",
        "attribute",
        "a scale stored less 1 is taken as it is",
        "        y = (offset + scale) * y\n",
        "        y = scale * y\n",
        "layer_norm_forward",
    ),
    _function(
        "norm_relu_passes_at_zero",
        "special",
        "the gradient of relu passes where y = 0",
        "dy if y > zero else zero",
        "dy if y >= zero else zero",
        "batch_norm_backward",
    ),
    _function(
        "norm_slope_not_divided",
        "arithmetic",
        "the gradient through the variance is m times too large",
        "distance * inv_std * (sum_gx / count)",
        "distance * inv_std * sum_gx",
        "rms_norm_backward",
    ),
    _function(
        "norm_gradient_through_mean_lost",
        "arithmetic",
        "dx lacks the part that goes through the mean",
        "mean_g = sum_g / count if centred != 0 else zero",
        "mean_g = zero",
        "batch_norm_backward",
    ),
    _split(
        "norm_rms_subtracts_a_mean",
        "attribute",
        "an RMS norm subtracts what stands in for its mean",
        "y = (x - mean if centred != 0 else x) * inv_std",
        "y = (x - mean) * inv_std",
        "rms_norm_forward",
    ),
    _function(
        "norm_fixed_statistics_ignored",
        "attribute",
        "the gradient goes through statistics that are fixed",
        "    if fixed == 0:\n",
        "    if fixed < 2:\n",
        "batch_norm_backward",
    ),
    _function(
        "norm_shift_not_added_back",
        "arithmetic",
        "the mean is that of the shifted elements",
        '"shift + distance" if "shift" in operands else "distance"',
        '"distance"',
        "batch_norm_finalize",
    ),
    _step(
        "norm_sums_exchanged",
        "output",
        "dscale and dbias are each other",
        'zip(("dbias", "dscale"), sums, strict=True)',
        'zip(("dscale", "dbias"), sums, strict=True)',
        "group_norm_backward",
    ),
    _step(
        "norm_split_dim_contiguous",
        "index",
        "groups are as far apart as channels",
        "                stride *= view[dim]\n",
        "",
        "group_norm_forward",
    ),
    _step(
        "norm_arrays_share_memory",
        "memory",
        "the arrays in the workspace lie on each other",
        "self.used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT",
        "self.used = max(self.used, -(-nbytes // _ALIGNMENT) * _ALIGNMENT)",
    ),
    _step(
        "norm_parts_over_arrays",
        "memory",
        "a reduction keeps its parts where arrays are",
        "workspace = self._from(self.used)",
        "workspace = self._from(0)",
        "batch_norm_backward_weights",
    ),
    _step(
        "norm_relu_ignored",
        "attribute",
        "the activation of a batch norm is never applied",
        'p.norm.epsilon, int(p.activation == "relu"))',
        "p.norm.epsilon, 0)",
        "batch_norm_inference",
    ),
    _step(
        "norm_scale_behind_the_sums",
        "arithmetic",
        "γ multiplies dx instead of dy, though it varies over a set",
        "_differentiate(s, p, arrays, scaled=p.has_scale, fixed=False)",
        "_differentiate(s, p, arrays, scaled=False, fixed=False)",
        "layer_norm_backward",
    ),
    _row(
        "norm_rows_mean_over_team",
        "arithmetic",
        "the mean is over the team's threads, not over the row",
        "mean = team_sum(total, width, spacing) / count",
        "mean = team_sum(total, width, spacing) / float32(width)",
    ),
    _row(
        "norm_rows_thread_keeps_its_sum",
        "synchronisation",
        "each thread takes its own squares for those of the row",
        "variance = team_sum(squares, width, spacing) / count",
        "variance = squares / count",
    ),
    _row(
        "norm_rows_last_column_lost",
        "bounds",
        "the last element of a long row is left out",
        "        end = columns if row < row_count else 0\n",
        "        end = (columns if columns < 64 else columns - 1) if row < row_count else 0\n",
    ),
    _row(
        "norm_rows_sums_not_shared",
        "synchronisation",
        "each thread takes its own sums for those of the row",
        "        sum_g, sum_gx = team((sum_g, sum_gx), width, spacing)\n",
        "        team((sum_g, sum_gx), width, spacing)\n",
        "layer_norm_backward",
    ),
    _window(
        "norm_window_reads_beyond",
        "bounds",
        "a window reaches over the last element",
        "# The window's elements inside the tensor, as distances from its centre.\n"
        "            low0, high0 = max(-before, -digits[4]), min(taps - before, e0 - digits[4])\n"
        "            low1, high1 = max(-before, -digits[5]), min(taps - before, e1 - digits[5])\n"
        + _LAST_LIMITS,
        "low0, high0 = max(-before, -digits[4]), min(taps - before, e0 - digits[4])\n"
        "            low1, high1 = max(-before, -digits[5]), min(taps - before, e1 - digits[5])\n"
        "            low2, high2 = max(-before, -digits[6]), taps - before\n",
        check=True,
    ),
    _window(
        "norm_window_leans_back",
        "index",
        "the gradient adds up over the window of an element, not over those that hold it",
        "(p.window, p.window - 1 - p.before, int(p.has_means))",
        "(p.window, p.before, int(p.has_means))",
        "lrn_backward",
    ),
    _window(
        "norm_window_wrong_row",
        "index",
        "s is read of another row",
        "spreads[uint64(index + (i0 * e1 + i1) * e2 + i2)]",
        "spreads[uint64(index + (i0 * e1 + i1) * e1 + i2)]",
        "divisive_norm_backward",
        check=True,
    ),
    _window(
        "norm_window_means_ignored",
        "attribute",
        "dmeans is as if the means were 0",
        "                centred -= to_sum(means[uint64(at[2])])\n",
        "                centred -= zero\n",
        "divisive_norm_backward",
    ),
)
