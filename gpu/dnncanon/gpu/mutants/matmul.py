"""Defects of the tile engine, as matrix products meet them, and of grouped products."""

from dnncanon.gpu.mutants.making import mutants_of

_HALF, _SINGLE, _WHOLE = ("float16",), ("float32",), ("int8",)

_slices = mutants_of("kernels.tile.slices", primitive="matmul_forward", backend="gpu")
_engine = mutants_of("kernels.tile.engine", primitive="matmul_forward", backend="gpu")
_unit = mutants_of("kernels.tile.tensor_core", primitive="matmul_forward", backend="gpu")
_ends = mutants_of("kernels.tile.epilogue", primitive="matmul_forward", backend="gpu")
_parts = mutants_of("kernels.tile.parts", primitive="matmul_forward", backend="gpu")
_matrices = mutants_of("kernels.tile.matrices", primitive="matmul_forward", backend="gpu")
_product = mutants_of("matmul", primitive="matmul_forward", backend="gpu")
_groups = mutants_of("kernels.tile.groups", primitive="grouped_matmul_forward", backend="gpu")
_mixtures = mutants_of("kernels.tile.mixtures", primitive="grouped_matmul_forward", backend="gpu")

_WEIGHTS = "grouped_matmul_backward_weights"

_WAIT = """\
            wait()
            cuda.syncthreads()
"""

MUTANTS = (
    _slices(
        "matmul_chunks_not_swizzled",
        "memory",
        "chunks arrive where they would lie without swizzling, and are not looked for there",
        "ints[0] = place(row, chunk)",
        "ints[0] = row * pitch + (chunk << 4)",
        dtypes=_HALF,
    ),
    _slices(
        "matmul_chunks_of_first_slice",
        "index",
        "every slice that arrives in chunks is the first",
        "        longs[0] += longs[2]\n",
        "",
        dtypes=_HALF,
    ),
    _slices(
        "matmul_depth_tail_unmasked",
        "bounds",
        "elements behind the end of the depth are multiplied too",
        "inside = (n < ints[0]) & (k < ints[1])",
        "inside = n < ints[0]",
    ),
    _slices(
        "matmul_line_tail_unmasked",
        "bounds",
        "rows behind the last are read",
        "inside = (n < ints[0]) & (k < ints[1])",
        "inside = k < ints[1]",
        check=True,
    ),
    _slices(
        "matmul_chunk_tail_unmasked",
        "bounds",
        "chunks behind the end of the depth are read",
        "inside = left > _int32(0 if along_depth else i * apart)",
        "inside = left > _int32(-deep)",
        dtypes=_HALF,
        check=True,
    ),
    _engine(
        "matmul_slot_written_too_early",
        "memory",
        "the next slice is stored over the one that is multiplied",
        "read, written = shared, shared + _uint32((stages - 1) * slot_bytes)",
        "read, written = shared, shared + _uint32((stages - 2) * slot_bytes)",
        dtypes=_HALF,
    ),
    _engine(
        "matmul_last_slot_never_read",
        "memory",
        "the ring of slots is one slot shorter for those who read",
        "if read == shared + _uint32(stages * slot_bytes):",
        "if read == shared + _uint32((stages - 1) * slot_bytes):",
    ),
    _engine(
        "matmul_no_wait_for_copies",
        "synchronisation",
        "slices are multiplied while they are on their way",
        _WAIT,
        _WAIT.replace("            wait()\n", ""),
    ),
    _engine(
        "matmul_no_barrier_between_slices",
        "synchronisation",
        "slices are multiplied that other threads still fetch",
        _WAIT,
        _WAIT.replace("            cuda.syncthreads()\n", ""),
        check=True,
    ),
    _engine(
        "matmul_splits_uneven",
        "bounds",
        "slices that do not divide evenly among the splits are left out",
        "slices_each = (slices + splits - 1) // splits",
        "slices_each = slices // splits",
    ),
    _engine(
        "matmul_splits_overwrite_each_other",
        "index",
        "all parts of a split depth go to the place of the first",
        "where = ((at[2] + split * part, y_at)",
        "where = ((at[2], y_at)",
    ),
    _engine(
        "matmul_first_of_batch_only",
        "index",
        "every product is that of the first of the batch",
        "at = places(digits_of(member, batch), strides, origins)",
        "at = places(digits_of(member * 0, batch), strides, origins)",
    ),
    _engine(
        "matmul_bands_are_full",
        "launch",
        "the last band of tiles is taken to be as high as the others",
        "height = min(down - band * BAND, BAND)",
        "height = BAND",
    ),
    _unit(
        "matmul_halves_of_b_exchanged",
        "index",
        "columns and depth of the four matrices of B are exchanged",
        "places_of_b(places_b, lane & 7, half, quarter, warp // down * columns)",
        "places_of_b(places_b, lane & 7, quarter, half, warp // down * columns)",
        dtypes=_HALF,
    ),
    _ends(
        "matmul_bias_scaled",
        "arithmetic",
        "the factor of the product is the bias's too",
        "value += number(to_sum(bias[_int64(at_bias)]))",
        "value += number(scalars[0]) * number(to_sum(bias[_int64(at_bias)]))",
    ),
    _ends(
        "matmul_never_activated",
        "attribute",
        "the activation is left out",
        "activate(value, one, codes[2])",
        "activate(value, one, 0)",
    ),
    _ends(
        "matmul_integers_finished_as_floats",
        "precision",
        "sums of integers pass through float32",
        "number = types.int64 if whole else",
        "number = types.float32 if whole else",
        dtypes=_WHOLE,
    ),
    _parts(
        "matmul_last_split_lost",
        "launch",
        "of a split depth the last part is not added",
        "for split in range(splits):",
        "for split in range(splits - 1):",
    ),
    _matrices(
        "matmul_c_not_transposed",
        "index",
        "where the transposed product is computed, C is read as it is",
        "matrix = matrix.transposed if m.flipped else matrix\n        c_at",
        "c_at",
    ),
    _matrices(
        "matmul_bias_of_rows",
        "index",
        "where the transposed product is computed, the bias is still added by column",
        "matrix = matrix.transposed if m.flipped else matrix\n        bias_at",
        "bias_at",
    ),
    _product(
        "matmul_c_read_in_vain",
        "attribute",
        "C is read even where its factor is 0",
        'launch.inputs.get("c") if p.beta else None',
        'launch.inputs.get("c")',
    ),
    _groups(
        "grouped_weights_of_group",
        "index",
        "groups of a batch go on to experts that there are not",
        "weight_at[0] + group % experts * weight_at[1]",
        "weight_at[0] + group * weight_at[1]",
        check=True,
    ),
    _groups(
        "grouped_last_row_lost",
        "bounds",
        "the last row of every group is left out",
        "offsets[at[0] + (group + 1) * at[1]]), low)",
        "offsets[at[0] + (group + 1) * at[1]]) - 1, low)",
    ),
    _groups(
        "grouped_top_k_ignored",
        "attribute",
        "rows are scattered as if each token had one place",
        "place = token * top_k +",
        "place = token +",
    ),
    _groups(
        "grouped_missing_token_is_zero",
        "bounds",
        "a row without a token is written as if its token were 0",
        "return at[0] + row * at[1][1] if (token >= 0) & (token < tokens) else _int64(-1)",
        "return at[0] + row * at[1][1]",
    ),
    _groups(
        "grouped_gather_from_first_group",
        "index",
        "every group gathers the tokens of the first",
        "token = _int64(index[index_at[0] + (low + line) * index_at[1]])",
        "token = _int64(index[index_at[0] + line * index_at[1]])",
    ),
    _groups(
        "grouped_rows_of_no_group_left",
        "bounds",
        "rows behind the last group are not written",
        "outside = (row < begin) | (row >= end)",
        "outside = row < begin",
    ),
    _groups(
        "grouped_gradient_of_first_batch",
        "launch",
        "only the first of an expert's groups counts for its gradient",
        "for group in range(expert, groups, experts):",
        "for group in range(expert, experts, experts):",
        _WEIGHTS,
    ),
    _mixtures(
        "grouped_weights_transposed",
        "index",
        "columns and depth of the weights are exchanged",
        "(weight.origin, of_expert, of_column, of_depth)",
        "(weight.origin, of_expert, of_depth, of_column)",
    ),
)
