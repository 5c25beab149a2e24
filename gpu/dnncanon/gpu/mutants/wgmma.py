"""Defects of matrix products by ``wgmma``.

Drawn matrices are small: it is the boundary cases of several deep tiles that have rings which come round,
second warpgroups and divided tiles.
"""

from dnncanon.gpu.mutants.making import mutants_of

_BACKEND = "dnncanon.gpu.single_algorithm:wgmma"
_HALF = ("float16",)

_pipeline = mutants_of("kernels.tile.pipeline", primitive="matmul_forward", backend=_BACKEND)
_unit = mutants_of("kernels.tile.warpgroup", primitive="matmul_forward", backend=_BACKEND)
_stream_k = mutants_of("kernels.tile.stream_k", primitive="matmul_forward", backend=_BACKEND)
_matrices = mutants_of(
    "kernels.tile.pipelined_matrices", primitive="matmul_forward", backend=_BACKEND
)

MUTANTS = (
    _pipeline(
        "wgmma_slot_read_before_it_is_full",
        "synchronisation",
        "the consumers do not wait for the copies",
        "            ptx.mbarrier_wait(first_full + slot * _BARRIER, phase)\n",
        "",
        dtypes=_HALF,
    ),
    _pipeline(
        "wgmma_more_bytes_expected_than_come",
        "synchronisation",
        "a slot never counts as full: one chunk more is expected than the copies bring",
        "ptx.mbarrier_arrive_expect_tx(full, slot_bytes)",
        "ptx.mbarrier_arrive_expect_tx(full, slot_bytes + 16)",
        dtypes=_HALF,
    ),
    _pipeline(
        "wgmma_sums_read_too_early",
        "synchronisation",
        "the last products are not waited for",
        "        total = wait_for_all(total)\n",
        "",
        dtypes=_HALF,
    ),
    _pipeline(
        "wgmma_slot_filled_before_it_is_empty",
        "synchronisation",
        "the producer does not wait for the consumers",
        "            ptx.mbarrier_wait(first_empty + slot * _BARRIER, phase ^ _uint32(1))\n",
        "",
        dtypes=_HALF,
    ),
    _pipeline(
        "wgmma_both_groups_have_the_first_rows",
        "index",
        "the second warpgroup multiplies the rows of the first",
        "a = descriptor_a(_uint32(at + group * PANEL_BYTES))",
        "a = descriptor_a(_uint32(at))",
        dtypes=_HALF,
    ),
    _unit(
        "wgmma_steps_along_lines_too_short",
        "index",
        "operands along the lines go on by as many bytes as those along the depth",
        'return (_STEP * 2 if along == "depth" else _STEP * SWIZZLE) // 16',
        "return _STEP * 2 // 16",
        dtypes=_HALF,
    ),
    _unit(
        "wgmma_panels_along_lines_overlap",
        "index",
        "descriptors do not say how far the next panel is",
        'leading = PANEL_BYTES if along == "lines" else 16',
        "leading = 16",
        dtypes=_HALF,
    ),
    _stream_k(
        "stream_k_begins_anew",
        "index",
        "a part of a tile begins with the tile's first slice",
        "_int32(max(begin - start, 0))",
        "_int32(0)",
        dtypes=_HALF,
    ),
    _stream_k(
        "stream_k_last_part_lost",
        "bounds",
        "the last part of a divided tile is not added",
        "for worker in range(first, last + 1):",
        "for worker in range(first, last):",
        dtypes=_HALF,
    ),
    _pipeline(
        "wgmma_b_of_first_of_batch",
        "index",
        "B follows A's dims of the batch",
        "of_b = (at[0] * moves[3], at[1] * moves[4], at[2] * moves[5])",
        "of_b = (at[0] * moves[0], at[1] * moves[1], at[2] * moves[2])",
        dtypes=_HALF,
    ),
    _unit(
        "wgmma_swizzle_of_64_bytes",
        "memory",
        "descriptors say another swizzle than the copies make",
        "_SWIZZLE_OF_128 = 1",
        "_SWIZZLE_OF_128 = 2",
        dtypes=_HALF,
    ),
    _matrices(
        "wgmma_operand_once_for_its_batch",
        "index",
        "every product of the batch has the first operands",
        "return tuple(int(stride != 0) for stride in self.batch)",
        "return tuple(0 for _ in self.batch)",
        dtypes=_HALF,
    ),
)
