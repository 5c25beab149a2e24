"""Defects of the bias's gradient."""

from dnncanon.gpu.mutants.making import BIAS, mutants_of

_mutant = mutants_of("kernels.conv_bias", primitive=BIAS, backend="gpu")
_plan_mutant = mutants_of("kernels.plan", primitive=BIAS, backend="gpu")

MUTANTS = (
    _mutant(
        "bias_no_barrier_before_tree",
        "synchronisation",
        "threads add up sums that others have not stored yet",
        "            sums[thread] = total\n            cuda.syncthreads()\n",
        "            sums[thread] = total\n",
        check=True,
    ),
    _mutant(
        "bias_no_barrier_in_tree",
        "synchronisation",
        "a level of the tree does not wait for the one before",
        "                cuda.syncthreads()\n                half //= 2\n",
        "                half //= 2\n",
        check=True,
    ),
    _mutant(
        "bias_warp_synchronous_tree",
        "synchronisation",
        "the last levels of the tree count on a warp's threads moving in step",
        "                cuda.syncthreads()\n                half //= 2\n",
        "                if half > 32:\n                    cuda.syncthreads()\n"
        "                half //= 2\n",
        check=True,
    ),
    _mutant(
        "bias_tree_starts_too_low",
        "launch",
        "half of the threads' sums are not added",
        "half = threads // 2",
        "half = threads // 4",
    ),
    _mutant(
        "bias_tree_ends_too_high",
        "bounds",
        "the last level of the tree is left out",
        "while half >= columns:",
        "while half > columns:",
    ),
    _mutant(
        "bias_half_of_the_threads",
        "launch",
        "a block has half of the threads that its tree needs",
        "launch(sum_channels(plan.dtype, out_dtype), grid, THREADS, args",
        "launch(sum_channels(plan.dtype, out_dtype), grid, THREADS // 2, args",
    ),
    _mutant(
        "bias_shared_memory_too_small",
        "memory",
        "half of the threads' sums lie behind the shared array",
        "sums = cuda.shared.array(threads, number)",
        "sums = cuda.shared.array(64, number)",
        check=True,
    ),
    _mutant(
        "bias_channel_tail_unmasked",
        "bounds",
        "sums of channels behind the last are stored",
        "if thread < columns and channel < channels:",
        "if thread < columns:",
    ),
    _mutant(
        "bias_channel_tail_read",
        "bounds",
        "elements of channels behind the last are read",
        "if channel < channels and index < end:",
        "if index < end:",
        check=True,
    ),
    _mutant(
        "bias_carry_dropped",
        "index",
        "a row that ends in the middle of a step does not move on to the next plane",
        "                        i2 -= e2\n                        i1 += 1\n",
        "                        i2 -= e2\n",
    ),
    _mutant(
        "bias_channels_assumed_adjacent",
        "output",
        "strides of the output are ignored",
        "channel_stride = db.strides[0]",
        "channel_stride = 1",
    ),
    _mutant(
        "bias_float32_sums_of_float64",
        "precision",
        "sums of float64 are kept in float32",
        "total += to_sum(source[_uint64(at)])",
        "total = types.float32(total + to_sum(source[_uint64(at)]))",
        dtypes=("float64",),
    ),
    _mutant(
        "bias_last_split_lost",
        "launch",
        "the second pass leaves out the last part",
        "partial, plan.channels, (1, 1, 1, plan.splits), 0",
        "partial, plan.channels, (1, 1, 1, plan.splits - 1), 0",
    ),
    _mutant(
        "bias_stretch_rounded_down",
        "bounds",
        "elements that do not divide evenly among the parts are left out",
        "stretch = max(1, -(-plan.length // (splits * SECTOR)) * SECTOR)",
        "stretch = max(1, plan.length // (splits * SECTOR) * SECTOR)",
    ),
    _mutant(
        "bias_workspace_for_one_split",
        "memory",
        "the workspace holds one part of each sum",
        "return plan.splits * partial if plan.splits > 1 else 0",
        "return partial if plan.splits > 1 else 0",
        check=True,
    ),
    _mutant(
        "bias_one_block_too_few",
        "launch",
        "channels of an unfinished block get no block",
        "blocks_for(-(-plan.channels // plan.columns) * splits, 1)",
        "blocks_for(plan.channels // plan.columns * splits, 1)",
        equivalent="blocks loop over all tiles, however many blocks there are",
    ),
    _plan_mutant(
        "bias_dims_always_joined",
        "index",
        "dims are summed as one even where a gap lies between them",
        "if joined and joined[-1][1] == extent * stride:",
        "if joined:",
    ),
    _plan_mutant(
        "bias_first_sample_only",
        "launch",
        "samples behind the first are left out",
        "dims = _collapse([(batch, n_stride), ",
        "dims = _collapse([(min(batch, 1), n_stride), ",
    ),
)
