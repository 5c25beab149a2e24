"""Defects planted in the definitions of recurrent networks."""

from dnncanon.spec.mutant import Mutant


def _mutant(
    module: str, name: str, kind: str, doc: str, old: str, new: str, primitive: str
) -> Mutant:
    full, place = f"reference.rnn_{name}", f"dnncanon.reference.{module}"
    return Mutant(full, kind, doc, place, old, new, "reference", primitive)


def _cells(name: str, kind: str, doc: str, old: str, new: str, primitive: str) -> Mutant:
    return _mutant("rnn_cells", name, kind, doc, old, new, primitive)


def _networks(name: str, kind: str, doc: str, old: str, new: str, primitive: str) -> Mutant:
    return _mutant("rnn", name, kind, doc, old, new, primitive)


MUTANTS = (
    # --- Cells ---
    _cells(
        "tanh_for_relu",
        "attribute",
        "both plain networks have tanh",
        'np.maximum(z, 0.0) if p.cell == "rnn_relu" else np.tanh(z)',
        "np.tanh(z)",
        "rnn_relu_forward",
    ),
    _cells(
        "tanh_slope_of_square_root",
        "arithmetic",
        "the slope of tanh is 1 − h",
        "dm * (1.0 - np.square(h))\n    da",
        "dm * (1.0 - h)\n    da",
        "rnn_tanh_backward_data",
    ),
    _cells(
        "relu_passes_gradient_at_zero",
        "arithmetic",
        "units that are 0 pass the gradient on",
        "chosen(h > 0.0, dm, 0.0)",
        "chosen(h >= 0.0, dm, 0.0)",
        "rnn_relu_backward",
    ),
    _cells(
        "lstm_gates_in_order_of_onnx",
        "index",
        "gates are i, o, f, g",
        "i, f, g, o = of_gates(a + recurrent(h), 4)",
        "i, o, f, g = of_gates(a + recurrent(h), 4)",
        "lstm_forward",
    ),
    _cells(
        "lstm_not_clipped",
        "attribute",
        "cells are not clipped",
        "    if not p.cell_clip:\n        return c\n",
        "    return c\n",
        "lstm_forward",
    ),
    _cells(
        "lstm_nan_is_not_clipped",
        "special",
        "NaN stays NaN whatever clip_nan says",
        'return inside if p.clip_nan == "propagate" else',
        "return inside if True else",
        "lstm_forward",
    ),
    _cells(
        "lstm_output_of_plain_cells",
        "arithmetic",
        "h is o∘c, without tanh",
        "o * np.tanh(c))",
        "o * c)",
        "lstm_forward",
    ),
    _cells(
        "lstm_gradient_through_clipping",
        "bounds",
        "the gradient passes clipped cells",
        "    if p.cell_clip:\n        low, high = p.cell_clip\n        dc",
        "    if False:\n        low, high = p.cell_clip\n        dc",
        "lstm_backward_data",
    ),
    _cells(
        "lstm_gradient_forgets_the_later_step",
        "arithmetic",
        "the gradient by c of the step behind is left out",
        "    dc = dc + dm * o",
        "    dc = dm * o",
        "lstm_backward_data",
    ),
    _cells(
        "lstm_forget_gradient_of_new_cells",
        "index",
        "δf is made of c_t, not of c_{t−1}",
        "dc * saved.cells_before * f",
        "dc * c * f",
        "lstm_backward",
    ),
    _cells(
        "gru_reset_before",
        "attribute",
        "the reset gate is always applied before the product",
        'if p.reset == "after":\n        product_r, product_z, u',
        "if False:\n        product_r, product_z, u",
        "gru_forward",
    ),
    _cells(
        "gru_update_gate_inverted",
        "arithmetic",
        "z and 1 − z are exchanged",
        "(1.0 - z) * n + z * h)",
        "z * n + (1.0 - z) * h)",
        "gru_forward",
    ),
    _cells(
        "gru_recurrent_gradient_without_reset",
        "arithmetic",
        "δu is δn",
        "dz, dn, dn * r)",
        "dz, dn, dn)",
        "gru_backward_data",
    ),
    _cells(
        "gru_reset_before_not_passed_on",
        "arithmetic",
        "what comes back through r∘h does not reach h",
        "state = dm * z + reset * r + recurrent",
        "state = dm * z + recurrent",
        "gru_backward",
    ),
    # --- Steps, layers, directions ---
    _networks(
        "runs_forward_only",
        "index",
        "direction backward takes the steps as direction forward does",
        "return range(p.steps) if direction == 0 else range(p.steps)[::-1]",
        "return range(p.steps)",
        "lstm_forward",
    ),
    _networks(
        "padding_leaks_into_the_state",
        "bounds",
        "steps behind the end of a sequence change its state",
        "    return new if active.all() else np.where(active[:, None], new, old)",
        "    return new",
        "gru_forward",
    ),
    _networks(
        "backward_starts_at_the_longest_end",
        "bounds",
        "gradients behind the end of a sequence come back into it",
        "dh = _where(active[t], gradient.state, dh)",
        "dh = gradient.state",
        "rnn_tanh_backward",
    ),
    _networks(
        "padding_not_filled",
        "attribute",
        "y has 0 behind the end, whatever padding_fill is",
        "_rows(p, x, p.padding_fill)",
        "_rows(p, x, 0.0)",
        "rnn_tanh_forward",
    ),
    _networks(
        "padding_counts_in_weights",
        "bounds",
        "what lies behind the end of a sequence counts in the gradient of the weights",
        '"sbk,sbi->ki", _ended(p, gradient), _ended(p, operand))',
        '"sbk,sbi->ki", gradient, operand)',
        "lstm_backward_weights",
    ),
    _networks(
        "input_bias_counted_twice",
        "arithmetic",
        "the input bias is added for the recurrent one as well",
        'input_bias, bias, matrix = block("bW"), block("bR"), block("R")',
        'input_bias, bias, matrix = block("bW"), block("bW"), block("R")',
        "lstm_forward",
    ),
    _networks(
        "recurrent_bias_gradient_of_the_input_one",
        "index",
        "gru's two biases have one gradient",
        '"bR": np.sum(_ended(p, du), axis=(0, 1)),',
        '"bR": np.sum(_ended(p, da), axis=(0, 1)),',
        "gru_backward_weights",
    ),
    _networks(
        "directions_exchanged_in_states",
        "index",
        "the states of a layer's directions are exchanged",
        "return np.zeros((p.batch, size)) if states is None else states[number]",
        "return np.zeros((p.batch, size)) if states is None else states[number ^ (p.directions - 1)]",
        "rnn_relu_forward",
    ),
    _networks(
        "first_state_not_before_the_first_step",
        "index",
        "the state before the first step is that of the step itself",
        "    if direction == 0:\n        return np.concatenate([first[None], steps])[: p.steps]\n",
        "    if direction == 0:\n        return steps\n",
        "rnn_relu_backward_weights",
    ),
    _networks(
        "backward_begins_with_its_neighbour",
        "index",
        "direction backward has the step behind the end before its first step",
        "    return np.where(starts[:, :, None], first[None], behind)",
        "    return behind",
        "rnn_tanh_backward_weights",
    ),
    _networks(
        "dropout_mask_of_the_layer_below",
        "index",
        "layers have the mask of the next lower one, the first two the same",
        ".reshape(shape)[layer - 1]",
        ".reshape(shape)[max(0, layer - 2)]",
        "rnn_relu_backward_data",
    ),
    _networks(
        "dropped_in_inference",
        "attribute",
        "dropout is applied without training too",
        "    if not p.training or p.dropout == 0.0:",
        "    if p.dropout == 0.0:",
        "rnn_tanh_forward",
    ),
    _networks(
        "accumulated_replaced",
        "output",
        "the gradient so far is replaced",
        "    return packed if accumulated is None else accumulated + packed",
        "    return packed",
        "lstm_backward_weights",
    ),
    _networks(
        "last_state_is_the_last_output",
        "output",
        "hy is the output of the last step of all, whatever the lengths are",
        "    return _Scanned(\n",
        "    h = outputs[p.steps - 1] if outputs else h\n    return _Scanned(\n",
        "gru_forward",
    ),
)
