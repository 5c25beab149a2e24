"""Defects of recurrent networks."""

from dnncanon.gpu.mutants.making import mutants_of

_cells = mutants_of("kernels.rnn_cells", primitive="lstm_forward", backend="gpu")
_step = mutants_of("kernels.rnn_step", primitive="lstm_forward", backend="gpu")
_tile = mutants_of("kernels.rnn_tile", primitive="lstm_forward", backend="gpu")
_forward = mutants_of("kernels.rnn_forward", primitive="lstm_forward", backend="gpu")
_plan = mutants_of("kernels.rnn_plan", primitive="lstm_forward", backend="gpu")
_gates = mutants_of("kernels.tile.gates", primitive="lstm_forward", backend="gpu")
_dropout = mutants_of("kernels.rnn_dropout", primitive="lstm_forward", backend="gpu")
_table = mutants_of("kernels.table", primitive="gru_forward", backend="gpu")

MUTANTS = (
    _cells(
        "rnn_forget_and_input_swapped",
        "arithmetic",
        "the input gate keeps the cell",
        "c = clip(f * carried + i * g, codes, bounds)",
        "c = clip(i * carried + f * g, codes, bounds)",
    ),
    _cells(
        "rnn_clipped_to_low_only",
        "bounds",
        "cells are not clipped from above",
        "return low if c < low else (high if c > high else c)",
        "return low if c < low else c",
    ),
    _cells(
        "rnn_clip_nan_always_stays",
        "special",
        "a NaN is not clipped where it should be",
        "return c if codes[2] else low",
        "return c",
    ),
    _cells(
        "rnn_update_gate_inverted",
        "arithmetic",
        "the update gate lets the candidate through",
        "return (reset, z, n, r[2]), carried, (one - z) * n + z * h",
        "return (reset, z, n, r[2]), carried, z * n + (one - z) * h",
        "gru_forward",
    ),
    _cells(
        "rnn_reset_before_the_bias",
        "arithmetic",
        "the recurrent part is saved after it was reset",
        "return (reset, z, n, r[2]), carried,",
        "return (reset, z, n, reset * r[2]), carried,",
        "gru_forward",
    ),
    _cells(
        "rnn_relu_loses_nan",
        "special",
        "a NaN becomes 0",
        "(zero if z < zero else z)  # a NaN stays",
        "(z if z > zero else zero)",
        "rnn_relu_forward",
    ),
    _step(
        "rnn_backward_from_the_last_row",
        "index",
        "direction 1 begins at the last step of all, not of the sequence",
        "t = length - 1 - number if d else number",
        "t = steps - 1 - number if d else number",
        "gru_forward",
    ),
    _step(
        "rnn_state_goes_on_behind_the_end",
        "bounds",
        "a sequence has one step too many",
        "if number < length:",
        "if number <= length:",
        "gru_forward",
    ),
    _step(
        "rnn_state_lost_at_the_end",
        "output",
        "the state of a sequence that has ended is not handed on",
        "after[state_at(states_at[1], here)] = before[state_at(states_at[0], here)]",
        "after[state_at(states_at[1], here)] = from_sum(zero)",
        "gru_forward",
    ),
    _step(
        "rnn_padding_is_zero",
        "attribute",
        "padding_fill is ignored",
        "from_sum(scalars[2])",
        "from_sum(zero)",
        "rnn_tanh_forward",
    ),
    _step(
        "rnn_recurrent_bias_of_the_first_gate",
        "index",
        "all gates have the first one's recurrent bias",
        "value += to_sum(bias[_int64(first + block * jump)])",
        "value += to_sum(bias[_int64(first)])",
    ),
    _step(
        "rnn_first_cell_state_ignored",
        "attribute",
        "the cells start from zeros, though c0 is given",
        "if has_c else zero",
        "if not has_c else zero",
    ),
    _step(
        "rnn_cells_of_padding_are_stale",
        "output",
        "cells of padding are not written",
        "if has_cells and cleared:",
        "if has_cells and cleared < 0:",
    ),
    _tile(
        "rnn_cells_overtake_their_sums",
        "synchronisation",
        "cells do not wait for the sums of other threads",
        "        store(sums, shared, thread, 0)\n        cuda.syncthreads()\n",
        "        store(sums, shared, thread, 0)\n",
        check=True,
    ),
    _forward(
        "rnn_last_step_reads_a_stale_state",
        "memory",
        "the last step but one leaves its state where the last one does not look",
        "if number < self.p.steps - 1:",
        "if number < self.p.steps - 2:",
        "gru_forward",
    ),
    _forward(
        "rnn_candidate_multiplies_the_gates",
        "index",
        "with reset before the product the candidate has the first rows of R",
        "at = first * array.strides[1]",
        "at = 0 * array.strides[1]",
        "gru_forward",
    ),
    _plan(
        "rnn_directions_share_their_weights",
        "index",
        "direction 1 has the weights of direction 0",
        "apart = (last.offset - first.offset) * stride",
        "apart = 0",
    ),
    _plan(
        "rnn_packed_as_padded",
        "index",
        "rows of gates are B apart from step to step where they are packed",
        "    direction, row, column = reserve.strides\n"
        "    return Rows(direction, row if p.packed else p.batch * row, row, column)",
        "    direction, row, column = reserve.strides\n"
        "    return Rows(direction, p.batch * row, row, column)",
    ),
    _gates(
        "rnn_units_of_the_next_gate",
        "bounds",
        "units behind the last one are the next gate's first",
        "inside = (gate < gates) & (unit < extent)",
        "inside = gate < gates",
    ),
    _gates(
        "rnn_gates_side_by_side",
        "index",
        "rows of R are taken as if gates of a unit were adjacent",
        "return _int64(gate) * extent + unit if inside else _int64(-1)",
        "return _int64(unit) * gates + gate if inside else _int64(-1)",
    ),
    _dropout(
        "rnn_layers_share_their_words",
        "index",
        "all layers drop by the words of the first",
        "first = (layer - 1) * p.steps * p.batch * columns",
        "first = 0",
    ),
    _dropout(
        "rnn_dropout_counts_packed_rows",
        "index",
        "packed rows take words as they come",
        "index = first + (t * batch + b) * columns + column",
        "index = first + row * columns + column",
    ),
    _table(
        "rnn_one_length_for_all",
        "index",
        "all numbers of a table are the first one",
        "table[first + {k}] = numbers[{k}]",
        "table[first + {k}] = numbers[0]",
    ),
)
