"""Defects of recurrent networks whose blocks stay for all steps."""

from dnncanon.gpu.mutants.making import mutants_of

PERSIST = "dnncanon.gpu.single_algorithm:persist"
"""The backend: "auto" leaves networks of few steps to another algorithm."""

PLAIN = "rnn_tanh_forward"
"""Of these networks a suite's cases have units of more than one block, and slices."""

_layer = mutants_of("kernels.rnn_persist", primitive="lstm_forward", backend=PERSIST)
_resident = mutants_of("kernels.tile.resident", primitive="lstm_forward", backend=PERSIST)

MUTANTS = (
    _layer(
        "rnn_persist_blocks_do_not_meet",
        "synchronisation",
        "a block goes on to the next step before the others have left their states",
        "            grid.sync()\n",
        "",
        PLAIN,
        check=True,
    ),
    _layer(
        "rnn_persist_one_place_for_states",
        "memory",
        "steps write the state that others still read",
        "before, after = states_at[step % 2], states_at[1 - step % 2]",
        "before, after = states_at[0], states_at[0]",
        check=True,
    ),
    _layer(
        "rnn_persist_last_state_of_an_even_number",
        "index",
        "the last state is looked for where an even number of steps leaves it",
        "states_at[steps % 2], _int64(1)",
        "states_at[0], _int64(1)",
    ),
    _layer(
        "rnn_persist_first_state_ignored",
        "attribute",
        "networks start from zeros, though h0 is given",
        "                    if given:",
        "                    if not given:",
        "gru_forward",
    ),
    _layer(
        "rnn_persist_slots_over_r",
        "memory",
        "slices of the state overwrite what is kept of R",
        "kept = shared + _uint32(slots_bytes)",
        "kept = shared",
    ),
    _resident(
        "rnn_persist_first_slice_only",
        "index",
        "every slice of the state is multiplied by the first of R",
        "kept += _uint32(bytes_of_b)",
        "kept += _uint32(0)",
        PLAIN,
    ),
    _resident(
        "rnn_persist_slices_overtaken",
        "synchronisation",
        "a slot is filled again while other threads read it",
        "            wait()\n            cuda.syncthreads()\n",
        "            wait()\n",
        dtypes=("float16",),
        check=True,
    ),
)
