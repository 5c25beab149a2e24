"""Defects of reductions, their gradients and softmax, and of the row maps that the latter two are made of."""

from dnncanon.gpu.mutants.making import mutants_of

_FORWARD, _BACKWARD, _SOFTMAX = "reduce_forward", "reduce_backward", "softmax_forward"

_reduce = mutants_of("kernels.reduce", primitive=_FORWARD, backend="gpu")
_call = mutants_of("reduce", primitive=_BACKWARD, backend="gpu")
_softmax = mutants_of("kernels.softmax", primitive=_SOFTMAX, backend="gpu")
_map = mutants_of("kernels.row_map", primitive=_SOFTMAX, backend="gpu")
_kept = mutants_of("kernels.kept", primitive=_SOFTMAX, backend="gpu")

MUTANTS = (
    _reduce(
        "reduce_avg_is_sum",
        "arithmetic",
        "a mean is not divided",
        "    return total / count if code == 1 else total\n",
        "    return total\n",
    ),
    _reduce(
        "reduce_norm1_keeps_signs",
        "arithmetic",
        "norm1 adds up the elements",
        "    return abs(x) if code == 2 else x\n",
        "    return x\n",
    ),
    _reduce(
        "reduce_last_extremum",
        "index",
        "of equal extrema the last is named",
        "        return a if a[1] < b[1] else b\n",
        "        return b if a[1] < b[1] else a\n",
    ),
    _reduce(
        "reduce_nan_loses",
        "special",
        "an extremum with index passes over NaN",
        "    return b if b_is_nan or b[0] > a[0] else a\n",
        "    return b if a_is_nan or b[0] > a[0] else a\n",
    ),
    _reduce(
        "reduce_amax_of_nothing",
        "bounds",
        "amax of an empty set is −Inf",
        "    if code == 2 and key < 0:\n",
        "    if code == 2 and key > 0 and key < 0:\n",
    ),
    _reduce(
        "reduce_index_of_nothing",
        "bounds",
        "an empty set has a place, the largest number",
        "-1 if state[1] == NOWHERE else state[1]",
        "state[1]",
    ),
    _reduce(
        "reduce_norm2_overflows",
        "precision",
        "large elements are squared as they are",
        "        if size > large:\n",
        "        if size > large * large * large:\n",
    ),
    _reduce(
        "reduce_norm2_underflows",
        "precision",
        "small elements are squared as they are",
        "        if size < small:\n",
        "        if size < small * small * small:\n",
    ),
    _reduce(
        "reduce_zeros_multiplied",
        "attribute",
        "mul_no_zeros multiplies zeros",
        "    return _float64(1.0) if code == 1 and x == 0 else _float64(x)\n",
        "    return _float64(x)\n",
    ),
    _reduce(
        "reduce_product_gradient_of_two_zeros",
        "arithmetic",
        "each of several zeros has a gradient",
        "if code == 0 and known[1] == 1 else",
        "if code == 0 and known[1] >= 1 else",
        _BACKWARD,
    ),
    _reduce(
        "reduce_extremum_gradient_everywhere",
        "index",
        "every element has the gradient of the extremum",
        "        if index != winner or (code == 2 and x == zero):\n",
        "        if code == 2 and x == zero:\n",
        _BACKWARD,
    ),
    _call(
        "reduce_gradient_of_mean_not_divided",
        "attribute",
        "the gradient of avg is that of add",
        'count = p.length if p.op == "avg" else 1',
        "count = 1",
    ),
    _call(
        "reduce_gradient_along_first_dims",
        "index",
        "dy without the axes is spread over the first dims",
        "strides = [0 if dim in p.axes else next(kept) for dim in range(len(p.shape))]",
        "strides = [next(kept, 0) for dim in range(len(p.shape))]",
    ),
    _softmax(
        "softmax_sum_not_rescaled",
        "arithmetic",
        "the sum below the smaller maximum is not scaled",
        "    total = a[1] + b[1] * power if a[0] > b[0] else a[1] * power + b[1]\n",
        "    total = a[1] + b[1] * power if a[0] > b[0] else a[1] + b[1]\n",
    ),
    _softmax(
        "softmax_equal_infinities",
        "special",
        "two parts of −Inf make NaN of a row that has numbers",
        "    if a[0] == b[0]:\n",
        "    if a[0] == b[0] and a[0] > -1e30:\n",
    ),
    _softmax(
        "softmax_infinity_gives_zero",
        "special",
        "beside +Inf numbers have 0, not NaN",
        "return state[0], known + (state[0] - state[0]), state[0] + power",
        "return state[0], known, state[0] + power",
    ),
    _softmax(
        "softmax_log_of_quotient",
        "attribute",
        "the logarithm is not taken",
        "        return shifted - known[1] if logarithm else exp(shifted) / known[1]\n",
        "        return exp(shifted) / known[1]\n",
    ),
    _softmax(
        "softmax_mask_counts",
        "bounds",
        "what is masked counts as 1 in the sum",
        "(x, one) if mask != 0 else (least, zero)",
        "(x, one) if mask != 0 else (x, one)",
    ),
    _softmax(
        "softmax_masked_shows",
        "bounds",
        "what is masked has a value",
        "        if mask == 0:\n",
        "        if mask == 2:\n",
    ),
    _softmax(
        "softmax_gradient_without_y",
        "arithmetic",
        "the gradient lacks the factor y",
        "y * (dy - total)",
        "(dy - total)",
        "softmax_backward",
    ),
    _softmax(
        "softmax_log_gradient_of_products",
        "attribute",
        "the gradient of the logarithm sums y·dy",
        "        return dy if logarithm else y * dy\n",
        "        return y * dy\n",
        "softmax_backward",
    ),
    _map(
        "row_map_last_columns_left_out",
        "bounds",
        "the last stretch of a row is not written",
        "end = min(columns, (split + 1) * stretch) if row < row_count",
        "end = min(columns - 1, (split + 1) * stretch) if row < row_count",
    ),
    _map(
        "row_map_rows_beyond",
        "launch",
        "threads without a row go through one that there is not",
        "(split + 1) * stretch) if row < row_count else int64(0)",
        "(split + 1) * stretch)",
    ),
    _map(
        "row_map_stats_of_last_thread",
        "output",
        "the number of a row is written by a thread that some teams have not",
        "if writes_row and member == 0 and split == 0 and row < row_count:",
        "if writes_row and member == 1 and split == 0 and row < row_count:",
    ),
    _map(
        "row_map_chunk_not_dropped",
        "index",
        "each element of a chunk is read as the first",
        'return "; ".join(f"c{k} = chunk_rest(x{k}, c{k})" for k in call.read) or "pass"',
        'return "pass"',
    ),
    _kept(
        "kept_slots_overlap",
        "memory",
        "half the threads share their slots with the next column of the other half",
        "{e}) * {THREADS} + thread]",
        "{e}) * {THREADS // 2} + thread]",
    ),
    _kept(
        "kept_halves_swapped",
        "index",
        "the halves of a chunk come back the other way round",
        "({places[0]}, {places[1] if words > 1 else",
        "({places[-1]}, {places[0] if words > 1 else",
    ),
)
