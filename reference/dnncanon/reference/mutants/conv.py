"""Defects planted in the definition of convolution."""

from dnncanon.spec.mutant import Mutant

_CONV = "dnncanon.reference.conv"


def _conv(
    name: str, kind: str, doc: str, old: str, new: str, primitive: str = "conv_forward"
) -> Mutant:
    return Mutant(f"reference.{name}", kind, doc, _CONV, old, new, "reference", primitive)


MUTANTS = (
    _conv(
        "stride_for_dilation",
        "attribute",
        "taps are a stride apart, where they should be a dilation apart",
        "window = map(_window, tap, p.dilation, p.stride, p.output_size)",
        "window = map(_window, tap, p.stride, p.dilation, p.output_size)",
    ),
    _conv(
        "dilation_ignored",
        "attribute",
        "the filter is never dilated",
        "    first = f * dilation\n",
        "    first = f\n",
    ),
    _conv(
        "stride_ignored",
        "attribute",
        "windows are one element apart",
        "return slice(first, first + (outputs - 1) * stride + 1, stride)",
        "return slice(first, first + outputs, 1)",
    ),
    _conv(
        "mode_ignored",
        "attribute",
        "convolution is computed as cross-correlation",
        'if p.mode == "cross_correlation":',
        "if p.mode:",
    ),
    _conv(
        "mode_reversed",
        "attribute",
        "cross-correlation and convolution are exchanged",
        'if p.mode == "cross_correlation":',
        'if p.mode != "cross_correlation":',
    ),
    _conv(
        "flip_off_by_one",
        "index",
        "reversed taps are one too far, and wrap around",
        "extent - 1 - f for f, extent",
        "extent - 2 - f for f, extent",
    ),
    _conv(
        "padding_sides_swapped",
        "bounds",
        "zeros that belong before the input stand behind it",
        "return np.pad(grouped, ((0, 0),) * 3 + p.padding)",
        "return np.pad(grouped, ((0, 0),) * 3 + tuple(pair[::-1] for pair in p.padding))",
    ),
    _conv(
        "padding_repeats_the_edge",
        "bounds",
        "the border is padded with its own values instead of zeros",
        "return np.pad(grouped, ((0, 0),) * 3 + p.padding)",
        'return np.pad(grouped, ((0, 0),) * 3 + p.padding, "edge" if grouped.size else "constant")',
    ),
    _conv(
        "groups_interleaved",
        "index",
        "channel c belongs to group c mod G instead of c div (C/G)",
        "grouped = x.reshape(p.batch, p.groups, p.in_channels // p.groups, *p.input_size)",
        "grouped = np.swapaxes(x.reshape(p.batch, p.in_channels // p.groups, p.groups, "
        "*p.input_size), 1, 2)",
    ),
    _conv(
        "filters_of_groups_interleaved",
        "index",
        "filter k belongs to group k mod G",
        "return w.reshape(p.groups, p.out_channels // p.groups, *w.shape[1:])",
        "return np.swapaxes(w.reshape(p.out_channels // p.groups, p.groups, *w.shape[1:]), 0, 1)",
    ),
    _conv(
        "last_tap_lost",
        "launch",
        "the last tap of a filter of several taps is left out",
        "        y += np.matmul(w[tap], _flat(x[window], p))\n",
        "        if y.any() or sum(tap[1:]) + 1 < _size(p.filter_size) or _size(p.filter_size) == 1:\n"
        "            if tap[1:] != tuple(e - 1 for e in p.filter_size) or _size(p.filter_size) == 1:\n"
        "                y += np.matmul(w[tap], _flat(x[window], p))\n",
    ),
    _conv(
        "last_channel_lost",
        "bounds",
        "the last input channel of a group is left out, if there are several",
        "        y += np.matmul(w[tap], _flat(x[window], p))\n",
        "        c = max(1, w[tap].shape[-1] - 1)\n"
        "        y += np.matmul(w[tap][..., :c], _flat(x[window], p)[:, :, :c])\n",
    ),
    _conv(
        "sign_of_one_tap",
        "arithmetic",
        "the first tap is subtracted",
        "        y += np.matmul(w[tap], _flat(x[window], p))\n",
        "        y += np.matmul(w[tap], _flat(x[window], p)) * (1 if sum(tap[1:]) else -1)\n",
    ),
    _conv(
        "gradient_overwritten",
        "arithmetic",
        "overlapping windows overwrite the gradient instead of adding to it",
        "dx[window] += share.reshape",
        "dx[window] = share.reshape",
        "conv_backward_data",
    ),
    _conv(
        "gradient_not_transposed",
        "index",
        "filters are used as in the forward direction where their shape allows it",
        "share = np.matmul(np.swapaxes(w[tap], -1, -2), dy)",
        "square = w[tap].shape[-1] == w[tap].shape[-2]\n"
        "        share = np.matmul(w[tap] if square else np.swapaxes(w[tap], -1, -2), dy)",
        "conv_backward_data",
    ),
    _conv(
        "gradient_cropped_by_post",
        "bounds",
        "the gradient is cropped by the padding behind, not by that before",
        "inside = (slice(pre, pre + i) for i, (pre, _) in zip(p.input_size, p.padding, strict=True))",
        "inside = (slice(post, post + i) for i, (_, post) in zip(p.input_size, p.padding, strict=True))",
        "conv_backward_data",
    ),
    _conv(
        "batch_mean",
        "arithmetic",
        "the filter's gradient is the mean over the batch, not the sum",
        "dw[tap] = np.sum(np.matmul(dy, x_tap), axis=0)",
        "dw[tap] = np.sum(np.matmul(dy, x_tap), axis=0) / max(1, p.batch)",
        "conv_backward_filter",
    ),
    _conv(
        "first_sample_only",
        "launch",
        "the filter's gradient takes the first sample only",
        "dw[tap] = np.sum(np.matmul(dy, x_tap), axis=0)",
        "dw[tap] = np.sum(np.matmul(dy, x_tap)[:1], axis=0)",
        "conv_backward_filter",
    ),
    _conv(
        "bias_gradient_without_batch",
        "bounds",
        "the bias's gradient leaves out the last sample of several",
        "return np.sum(dy, axis=(0, *range(2, len(p.dy_shape))))",
        "return np.sum(dy[: max(1, len(dy) - 1)], axis=(0, *range(2, len(p.dy_shape))))",
        "conv_backward_bias",
    ),
    _conv(
        "bias_before_alpha",
        "arithmetic",
        "bias is scaled by alpha1 too",
        "y = y + bias.reshape",
        "y = y + p.alpha1 * bias.reshape",
        "conv_bias_activation_forward",
    ),
    _conv(
        "relu_before_bias",
        "arithmetic",
        "the activation comes before bias and residual",
        "y = p.alpha1 * conv_forward.definition(p.conv, x, w)",
        'y = p.alpha1 * conv_forward.definition(p.conv, x, w)\n    if p.activation == "relu":\n'
        "        y = np.maximum(y, 0.0)",
        "conv_bias_activation_forward",
    ),
    _conv(
        "activation_ignored",
        "attribute",
        "no activation is applied",
        'return np.maximum(y, 0.0) if p.activation == "relu" else y',
        "return y",
        "conv_bias_activation_forward",
    ),
    _conv(
        "relu_drops_nan",
        "special",
        "relu turns NaN into 0",
        "np.maximum(y, 0.0) if",
        "np.fmax(y, 0.0) if",
        "conv_bias_activation_forward",
    ),
    _conv(
        "residual_not_scaled",
        "attribute",
        "alpha2 is ignored",
        "y = y + p.alpha2 * z",
        "y = y + z",
        "conv_bias_activation_forward",
    ),
    _conv(
        "residual_read_with_alpha2_0",
        "special",
        "0·z is added, so that NaN in a residual that does not count spreads",
        "if z is not None and p.alpha2 != 0:",
        "if z is not None:",
        "conv_bias_activation_forward",
    ),
)
