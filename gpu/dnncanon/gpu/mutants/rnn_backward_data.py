"""Defects of the gradient of recurrent networks by their data."""

from dnncanon.gpu.mutants.making import mutants_of

_LSTM, _GRU = "lstm_backward_data", "gru_backward_data"

_cells = mutants_of("kernels.rnn_backward_cells", primitive=_LSTM, backend="gpu")
_step = mutants_of("kernels.rnn_backward_step", primitive=_LSTM, backend="gpu")
_data = mutants_of("kernels.rnn_backward_data", primitive=_LSTM, backend="gpu")
_padding = mutants_of("kernels.rnn_padding", primitive="rnn_tanh_backward_data", backend="gpu")
_plan = mutants_of("kernels.rnn_plan", primitive=_GRU, backend="gpu")

MUTANTS = (
    _cells(
        "rnn_derivative_of_tanh_without_its_square",
        "arithmetic",
        "the derivative of tanh is 1 − h",
        "dm * (one - h * h)",
        "dm * (one - h)",
        "rnn_tanh_backward_data",
    ),
    _cells(
        "rnn_relu_passes_at_zero",
        "bounds",
        "the gradient passes where relu gave 0",
        "dm if h > zero else zero",
        "dm if h >= zero else zero",
        "rnn_relu_backward_data",
    ),
    _cells(
        "rnn_gradient_passes_clipping",
        "bounds",
        "the gradient passes where the cell was clipped",
        "dc = dc if inside else zero",
        "dc = dc if inside else dc",
    ),
    _cells(
        "rnn_cells_gradient_by_the_input_gate",
        "arithmetic",
        "what goes on to the cell before is not what the forget gate let through",
        "dm * t * o * (one - o)), dc * f",
        "dm * t * o * (one - o)), dc * i",
    ),
    _cells(
        "rnn_cells_gradient_does_not_go_on",
        "arithmetic",
        "δc of the step behind is lost",
        "dc = carried + dm * o * (one - t * t)",
        "dc = dm * o * (one - t * t)",
    ),
    _cells(
        "gru_gradient_bypasses_the_candidate",
        "arithmetic",
        "δh bypasses the gates where the candidate was let through",
        "return (dn * u * r * (one - r), dz, dn, dn * r), dm * z",
        "return (dn * u * r * (one - r), dz, dn, dn * r), dm * (one - z)",
        _GRU,
    ),
    _cells(
        "gru_recurrent_gradient_not_reset",
        "arithmetic",
        "the gradient by the recurrent part does not pass the reset gate",
        "return (dn * u * r * (one - r), dz, dn, dn * r), dm * z",
        "return (dn * u * r * (one - r), dz, dn, dn), dm * z",
        _GRU,
    ),
    _cells(
        "gru_product_of_the_wrong_gradient",
        "index",
        "R_n is multiplied by δn, not by δu",
        "((0, 0), (1, 1), (3, 2))",
        "((0, 0), (1, 1), (2, 2))",
        _GRU,
    ),
    _cells(
        "gru_reset_keeps_the_state_from_its_gradient",
        "arithmetic",
        "with reset before the product nothing goes through r∘h to h",
        "carried + dm * r",
        "carried",
        _GRU,
    ),
    _step(
        "rnn_gradient_begins_at_the_last_row",
        "index",
        "direction 1 ends at the first row of all",
        "t = length - 1 - number if here[0] else number",
        "t = sequences[1] - 1 - number if here[0] else number",
        _GRU,
    ),
    _step(
        "rnn_gradient_has_a_step_too_many",
        "bounds",
        "a sequence joins in one step behind its end",
        "elif number < length:",
        "elif number <= length:",
        _GRU,
    ),
    _step(
        "rnn_direction_1_looks_ahead",
        "index",
        "the state before a step of direction 1 is taken from behind it",
        "before = t + 1 if here[0] else t - 1",
        "before = t - 1 if here[0] else t - 1",
    ),
    _step(
        "rnn_last_state_joins_at_the_last_step_of_all",
        "index",
        "the gradient by the last state of a shorter sequence is lost",
        "number, units, last = sequences[0], here[4], sequences[0] == length - 1",
        "number, units, last = sequences[0], here[4], sequences[0] == sequences[1] - 1",
    ),
    _step(
        "rnn_first_cells_taken_for_zeros",
        "attribute",
        "c0 is ignored",
        "elif flags[1]:",
        "elif flags[1] > 1:",
    ),
    _step(
        "rnn_empty_sequences_have_no_gradient",
        "bounds",
        "a sequence of no steps takes what a product left",
        "last = length == 0",
        "last = length < 0",
        _GRU,
    ),
    _step(
        "rnn_dgates_of_padding_are_stale",
        "output",
        "dgates of padding are not written",
        "if kind != PACKED:\n            clear_rows",
        "if kind > PACKED:\n            clear_rows",
    ),
    _step(
        "rnn_nothing_arrives_from_the_step_behind",
        "arithmetic",
        "the product with Rᵀ is left out at the last step but one too",
        "number < steps - 1 if code.parts.total",
        "number < steps - 2 if code.parts.total",
        _GRU,
    ),
    _data(
        "rnn_gradient_is_not_dropped",
        "attribute",
        "the gradient between layers does not go through the mask",
        "if layer and p.dropout > 0:",
        "if layer and p.dropout > 1:",
    ),
    _data(
        "rnn_skipped_input_of_one_direction",
        "index",
        "where the input skips W, direction 1 does not count",
        "for d in range(p.directions)",
        "for d in range(1)",
        _GRU,
    ),
    _data(
        "rnn_projected_gradient_over_the_last_gate",
        "index",
        "the gradient by the projected output is written over that by the output gate",
        "_columns(whole.dgates.array, 4 * p.hidden_size)",
        "_columns(whole.dgates.array, 3 * p.hidden_size)",
    ),
    _padding(
        "rnn_first_padding_is_not_cleared",
        "bounds",
        "the first row behind the end keeps 0 times Inf",
        "if t >= table[b]:",
        "if t > table[b]:",
    ),
    _plan(
        "rnn_directions_add_up_one_matrix",
        "index",
        "both directions are multiplied by W of direction 0",
        "steps=(x.direction, of_direction)",
        "steps=(x.direction, 0)",
    ),
)
