"""Defects of causal convolution: of its sums over taps, its gradients, and their launches."""

from dnncanon.gpu.mutants.making import mutants_of

_FORWARD, _BACKWARD = "causal_conv_forward", "causal_conv_backward"
_kernel = mutants_of("kernels.causal_conv", primitive=_FORWARD, backend="gpu")
_call = mutants_of("causal_conv", primitive=_BACKWARD, backend="gpu")

MUTANTS = (
    _kernel(
        "causal_conv_one_tap_too_many",
        "bounds",
        "the first steps have a tap before the first step",
        "for _ in range(min(count, at[4])):",
        "for _ in range(min(count, at[4] + 1)):",
    ),
    _kernel(
        "causal_conv_present_left_out",
        "bounds",
        "the room does not count the present step",
        "((0, 0, -1), steps) if back else ((0, 0, 1), 1)",
        "((0, 0, -1), steps) if back else ((0, 0, 1), 0)",
    ),
    _kernel(
        "causal_conv_weights_unflipped",
        "attribute",
        "weights go in one direction in both modes",
        "    if p.flips:\n",
        "    if True:\n",
    ),
    _kernel(
        "causal_conv_channel_ignored",
        "index",
        "all channels have the first one's filter",
        "_CHANNEL = (0, 1, 0)",
        "_CHANNEL = (0, 0, 0)",
    ),
    _kernel(
        "causal_conv_bias_missing",
        "attribute",
        "the bias is not added",
        "if takes_bias and has_bias != 0:",
        "if takes_bias and has_bias < 0:",
    ),
    _kernel(
        "causal_conv_stand_in_added",
        "attribute",
        "what stands in for an absent bias is added",
        "if takes_bias and has_bias != 0:",
        "if takes_bias:",
    ),
    _kernel(
        "causal_conv_order_of_extents",
        "index",
        "extents are in the order of the dims, strides in that of the output",
        "        tuple(p.shape[d] for d in order),\n",
        "        p.shape,\n",
    ),
    _kernel(
        "causal_conv_sums_in_the_storage_type",
        "precision",
        "each partial sum is rounded to the tensor's type",
        "total += to_number(source[_uint64(source_at)]) * weight",
        "total = to_sum(from_sum(total + to_number(source[_uint64(source_at)]) * weight))",
        dtypes=("float16",),
    ),
    _kernel(
        "causal_conv_gradient_runs_forward",
        "index",
        "dx adds up the gradients before, not those after",
        "source.strides[2] if back else -source.strides[2]",
        "-source.strides[2]",
        _BACKWARD,
        check=True,
    ),
    _kernel(
        "causal_conv_products_of_one_step",
        "index",
        "the products for dw are of one and the same step",
        "g_base = g_origin + channel * g_channel + distance * g_step",
        "g_base = g_origin + channel * g_channel",
        _BACKWARD,
    ),
    _kernel(
        "causal_conv_pairs_of_all_steps",
        "bounds",
        "dw counts steps behind the last",
        "pairs = max(_int64(0), steps - distance)",
        "pairs = steps",
        _BACKWARD,
        check=True,
    ),
    _kernel(
        "causal_conv_thread_keeps_its_sum",
        "synchronisation",
        "the first thread takes its own products for those of the block",
        "            total = add_up(total, _int64(threads), _int64(1))\n",
        "            add_up(total, _int64(threads), _int64(1))\n",
        _BACKWARD,
    ),
    _kernel(
        "causal_conv_slope_of_the_sum_alone",
        "arithmetic",
        "the slope of SiLU is not multiplied by dy",
        "return swish_backward(dy, total, one)",
        "return swish_backward(one, total, one)",
        _BACKWARD,
    ),
    _call(
        "causal_conv_activation_skipped_backward",
        "attribute",
        "dy goes past the activation",
        '    if p.activation == "silu":\n        room',
        '    if p.activation == "never":\n        room',
    ),
    _call(
        "causal_conv_dbias_of_dy",
        "output",
        "the gradient of the bias is the sum of dy",
        "reduce(SUM, (g,), (dbias,)",
        'reduce(SUM, (run.inputs["dy"],), (dbias,)',
    ),
)
