"""Defects of recurrent networks that compute several layers at a time."""

from dnncanon.gpu.mutants.making import mutants_of

WAVEFRONT = "dnncanon.gpu.single_algorithm:wavefront"
"""The backend: "auto" leaves networks of few steps to another algorithm."""

_wave = mutants_of("kernels.rnn_wavefront", primitive="lstm_forward", backend=WAVEFRONT)

MUTANTS = (
    _wave(
        "rnn_wavefront_layers_do_not_wait",
        "synchronisation",
        "all layers do the same step in one launch",
        "step = diagonal[0] - layer\n",
        "step = diagonal[0] - diagonal[1]\n",
    ),
    _wave(
        "rnn_wavefront_state_of_the_step_before",
        "memory",
        "a layer reads what the one below had left a step earlier",
        "if part else (after, layer - 1, w_at)",
        "if part else (before, layer - 1, w_at)",
    ),
    _wave(
        "rnn_wavefront_own_layer_below",
        "index",
        "W multiplies the state of its own layer",
        "(after, layer - 1, w_at)",
        "(after, layer, w_at)",
    ),
    _wave(
        "rnn_wavefront_last_diagonal_is_short",
        "bounds",
        "the last layer does not do its last step",
        "for number in range(p.steps + p.num_layers - 1):",
        "for number in range(p.steps + p.num_layers - 2):",
    ),
    _wave(
        "rnn_wavefront_last_state_but_one",
        "memory",
        "hy is what the last step has read",
        "self.state(1), self.state(p.steps - 1)",
        "self.state(1), self.state(p.steps)",
    ),
    _wave(
        "rnn_wavefront_rows_of_the_first_layer",
        "index",
        "layers above leave W·x in rows of the first one",
        "of_gates = gates_at[1] if layer else gates_at[0]",
        "of_gates = gates_at[0]",
    ),
)
