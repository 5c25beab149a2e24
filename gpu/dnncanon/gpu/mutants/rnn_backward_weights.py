"""Defects of the gradient of recurrent networks by their weights, and of the whole gradient."""

from dnncanon.gpu.mutants.making import mutants_of

_LSTM, _GRU, _TANH = "lstm_backward_weights", "gru_backward_weights", "rnn_tanh_backward_weights"

_weights = mutants_of("kernels.rnn_backward_weights", primitive=_GRU, backend="gpu")
_before = mutants_of("kernels.rnn_before", primitive=_TANH, backend="gpu")
_padding = mutants_of("kernels.rnn_padding", primitive=_TANH, backend="gpu")
_plan = mutants_of("kernels.rnn_plan", primitive=_TANH, backend="gpu")
_whole = mutants_of("kernels.rnn_backward", primitive="gru_backward", backend="gpu")

MUTANTS = (
    _weights(
        "rnn_weights_of_the_wrong_gradient",
        "index",
        "R_n has the gradient by n, not by its recurrent part",
        'Term("R", 2 * size, size, 3 * size,',
        'Term("R", 2 * size, size, 2 * size,',
    ),
    _weights(
        "rnn_recurrent_bias_of_the_wrong_gradient",
        "index",
        "bR of n has the gradient by n, not by its recurrent part",
        'Term("bR", 2 * size, size, 3 * size)',
        'Term("bR", 2 * size, size, 2 * size)',
    ),
    _weights(
        "rnn_candidate_weights_of_h_itself",
        "attribute",
        "with reset before the product R_n has a gradient by h, not by r∘h",
        '"second" if p.reset == "before" else "before"',
        '"before" if p.reset == "before" else "before"',
    ),
    _weights(
        "rnn_accumulated_weights_forgotten",
        "attribute",
        "gradients of matrices are not added to what was accumulated",
        "Epilogue(c=accumulated)",
        "Epilogue(c=None)",
    ),
    _weights(
        "rnn_accumulated_biases_twice",
        "arithmetic",
        "what was accumulated of biases is added twice",
        "return total + accumulated",
        "return total + accumulated + accumulated",
    ),
    _weights(
        "rnn_weights_of_inputs_that_were_not_dropped",
        "attribute",
        "the input of upper layers is not dropped as it was",
        "if layer and p.dropout > 0:",
        "if layer and p.dropout > 1:",
    ),
    _weights(
        "rnn_projection_of_the_wrong_gate",
        "index",
        "what P was multiplied by is made of the gate g",
        "block = 3 if p.projection_size else 0",
        "block = 2 if p.projection_size else 0",
        _LSTM,
    ),
    _weights(
        "rnn_padding_counts_in_the_input",
        "bounds",
        "rows behind the ends are not cleared",
        "        if _is_padded(p):\n            rows = RowArray(y, rows_of_layer(p, y))",
        "        if not _is_padded(p):\n            rows = RowArray(y, rows_of_layer(p, y))",
    ),
    _before(
        "rnn_before_is_behind_in_direction_1",
        "index",
        "h before a step of direction 1 is taken from before it in time",
        "before = t + 1 if d else t - 1",
        "before = t - 1 if d else t - 1",
        _LSTM,
    ),
    _before(
        "rnn_before_the_first_step_is_zero",
        "attribute",
        "h0 has no part in the gradient",
        "elif has_h0:",
        "elif has_h0 > 1:",
    ),
    _before(
        "rnn_before_reaches_behind_the_end",
        "bounds",
        "direction 1 begins with what is behind the end",
        "if (before >= 0) & (before < length):",
        "if (before >= 0) & (before < steps):",
        _LSTM,
    ),
    _padding(
        "rnn_padding_of_one_direction",
        "index",
        "direction 1 is not cleared",
        "here = place[0] + d * place[1] + t * place[2] + b * place[3]",
        "here = place[0] + t * place[2] + b * place[3]",
        _LSTM,
    ),
    _plan(
        "rnn_rows_of_one_piece_only",
        "index",
        "where rows are in several pieces, the first is taken for all",
        "steps=(of_others[0], of_others[1])",
        "steps=(0, 0)",
    ),
    _plan(
        "rnn_weights_of_one_direction",
        "index",
        "both directions have the gradient of direction 0's rows",
        "Matrix(p.dtype, (0, 0, x.direction if two else 0), x.column, of_rows[0])",
        "Matrix(p.dtype, (0, 0, 0 if two else 0), x.column, of_rows[0])",
        _LSTM,
    ),
    _whole(
        "rnn_whole_gradient_forgets_dhy",
        "attribute",
        "the gradient by the last state does not come in",
        '"dy weights gates cells hidden h0 c0 dhy dcy"',
        '"dy weights gates cells hidden h0 c0 dcy"',
    ),
    _whole(
        "rnn_whole_gradient_starts_from_zeros",
        "attribute",
        "the forward pass has no first state",
        '"x weights h0 c0"',
        '"x weights"',
        "lstm_backward",
    ),
)
