"""Defects planted in the definitions of matrix products."""

from dnncanon.spec.mutant import Mutant

_ONE, _GROUPED = "matmul_forward", "grouped_matmul_forward"
_WEIGHTS = "grouped_matmul_backward_weights"


def _matmul(
    name: str,
    kind: str,
    doc: str,
    old: str,
    new: str,
    primitive: str = _ONE,
    dtypes: tuple[str, ...] = ("float32",),
) -> Mutant:
    full, module = f"reference.matmul_{name}", "dnncanon.reference.matmul"
    return Mutant(full, kind, doc, module, old, new, "reference", primitive, dtypes)


MUTANTS = (
    _matmul(
        "last_term_lost",
        "bounds",
        "the last term of several is left out",
        "    y = np.matmul(a, b)\n",
        "    k = max(1, p.terms - 1)\n    y = np.matmul(a[..., :k], b[..., :k, :])\n",
    ),
    _matmul(
        "terms_beyond_512_lost",
        "bounds",
        "the second slice of a long sum is left out",
        "    y = np.matmul(a, b)\n",
        "    y = np.matmul(a[..., :512], b[..., :512, :])\n",
    ),
    _matmul(
        "rows_beyond_128_repeat",
        "index",
        "the second tile of rows has the results of the first",
        "    y = np.matmul(a, b)\n",
        "    y = np.matmul(a[..., np.arange(p.rows) % 128, :], b)\n",
    ),
    _matmul(
        "columns_beyond_128_repeat",
        "index",
        "the second tile of columns has the results of the first",
        "    y = np.matmul(a, b)\n",
        "    y = np.matmul(a, b[..., np.arange(p.columns) % 128])\n",
    ),
    _matmul(
        "square_b_transposed",
        "index",
        "b is taken as its transpose where its shape allows it",
        "    y = np.matmul(a, b)\n",
        "    y = np.matmul(a, np.swapaxes(b, -1, -2) if p.terms == p.columns else b)\n",
    ),
    _matmul(
        "first_matrix_for_all",
        "index",
        "the whole batch is multiplied with the first b",
        "    y = np.matmul(a, b)\n",
        "    y = np.matmul(a, b[:1] if len(p.b_shape) > 2 else b)\n",
    ),
    _matmul(
        "alpha_ignored",
        "attribute",
        "the product is not scaled",
        "y = p.alpha * y",
        "y = 1.0 * y",
    ),
    _matmul(
        "alpha_scales_all",
        "arithmetic",
        "c is scaled by alpha too",
        "y = y + (c if p.beta == 1.0 else p.beta * c)",
        "y = y + p.alpha * p.beta * c",
    ),
    _matmul(
        "beta_ignored",
        "attribute",
        "c is added as it is",
        "y = y + (c if p.beta == 1.0 else p.beta * c)",
        "y = y + c",
    ),
    _matmul(
        "c_read_with_beta_0",
        "special",
        "0·c is added, so that NaN in a c that does not count spreads",
        "if c is not None and p.beta != 0.0:",
        "if c is not None:",
    ),
    _matmul(
        "c_of_one_row_for_all",
        "index",
        "the first row of c is added to all rows",
        "y = y + (c if p.beta == 1.0 else p.beta * c)",
        "y = y + p.beta * c[..., :1, :]",
    ),
    _matmul(
        "bias_of_rows",
        "index",
        "bias is added along rows where there are as many as columns",
        "        y = y + bias\n",
        "        y = y + (bias[:, None] if p.rows == p.columns else bias)\n",
    ),
    _matmul(
        "bias_behind_the_activation",
        "arithmetic",
        "bias is added to what the activation makes",
        "        y = y + bias\n    return ACTIVATIONS[p.activation](y)\n",
        "        return ACTIVATIONS[p.activation](y) + bias\n    return ACTIVATIONS[p.activation](y)\n",
    ),
    _matmul(
        "gelu_swapped",
        "attribute",
        "gelu is its approximation",
        '"gelu": act.gelu,',
        '"gelu": act.gelu_tanh,',
    ),
    _matmul(
        "relu_drops_nan",
        "special",
        "relu turns NaN into 0",
        '"relu": lambda x: np.maximum(x, 0.0),',
        '"relu": lambda x: np.fmax(x, 0.0),',
    ),
    _matmul(
        "product_rounded_before_the_epilogue",
        "precision",
        "the product is rounded to the dtype of y before c and bias are added",
        "    y = np.matmul(a, b)\n",
        "    y = np.matmul(a, b)\n"
        "    if p.c_shape or p.has_bias:\n        y = np.float64(np.float16(y))\n",
        dtypes=("float16",),
    ),
    _matmul(
        "products_of_int8_saturate",
        "arithmetic",
        "sums of int8 stay at the ends of int32",
        "    return (y + 2**31) % 2**32 - 2**31\n",
        "    return np.clip(y, -(2**31), 2**31 - 1)\n",
        dtypes=("int8",),
    ),
    _matmul(
        "sums_of_int8_in_float32",
        "precision",
        "int32 is added in float32",
        "            y = y + addend.astype(np.int64)\n",
        "            y = np.int64(np.float32(y) + np.float32(addend))\n",
        dtypes=("int8",),
    ),
    _matmul(
        "groups_end_one_early",
        "bounds",
        "the last row of a group of several is left out",
        "        y[begin:end] = np.matmul(x[begin:end], weight[group % p.experts])\n",
        "        end = max(begin + 1, end - 1) if end > begin else end\n"
        "        y[begin:end] = np.matmul(x[begin:end], weight[group % p.experts])\n",
        _GROUPED,
    ),
    _matmul(
        "empty_groups_are_not_counted",
        "index",
        "an expert without rows hands its turn to the next",
        "for group, (begin, end) in enumerate(pairwise(offsets.astype(np.int64))):",
        "for group, (begin, end) in enumerate((b, e) for b, e in pairwise(offsets.astype(np.int64)) "
        "if e > b):",
        _GROUPED,
    ),
    _matmul(
        "last_group_reaches_to_the_end",
        "bounds",
        "the last offset is not read: the last group has all rows that are left",
        "    y = np.zeros_like(x, shape=p.y_shape)\n",
        "    y = np.zeros_like(x, shape=p.y_shape)\n"
        "    offsets = np.append(offsets[:-1].astype(np.int64), p.rows)\n",
        _GROUPED,
    ),
    _matmul(
        "groups_of_a_batch_in_order",
        "index",
        "of B·E groups the first B belong to the first expert",
        "np.matmul(x[begin:end], weight[group % p.experts])",
        "np.matmul(x[begin:end], weight[group * p.experts // p.groups])",
        _GROUPED,
    ),
    _matmul(
        "gather_ignored",
        "attribute",
        "rows take the tokens in order",
        "token[np.where(exists, index, 0)]",
        "token[np.arange(p.rows) % p.tokens]",
        _GROUPED,
    ),
    _matmul(
        "no_token_is_the_first",
        "validation",
        "an index that is no token takes the first one",
        "    return np.where((in_group & ~exists)[:, None], np.nan, y)\n",
        "    return y\n",
        _GROUPED,
    ),
    _matmul(
        "top_k_ignored",
        "attribute",
        "rows are put down to their token's number, whatever top_k is",
        "places = token_index.astype(np.int64) * p.top_k + token_ks.astype(np.int64)",
        "places = token_index.astype(np.int64) + token_ks.astype(np.int64)",
        _GROUPED,
    ),
    _matmul(
        "scatter_gathers",
        "index",
        "a row is taken from its place, not put down to it",
        "    y[places[rows]] = products[rows]\n",
        "    y[rows] = products[places[rows]]\n",
        _GROUPED,
    ),
    _matmul(
        "gradient_overwritten",
        "arithmetic",
        "the last of an expert's groups is its gradient",
        "dweight[group % p.experts] += share",
        "dweight[group % p.experts] = share",
        _WEIGHTS,
    ),
    _matmul(
        "gradient_is_a_mean",
        "arithmetic",
        "the gradient is the mean over a group's rows",
        "dweight[group % p.experts] += share",
        "dweight[group % p.experts] += share / max(1, end - begin)",
        _WEIGHTS,
    ),
    _matmul(
        "gradient_of_the_next_expert",
        "index",
        "gradients are those of the next expert",
        "dweight[group % p.experts] += share",
        "dweight[(group + 1) % p.experts] += share",
        _WEIGHTS,
    ),
)
