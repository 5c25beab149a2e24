"""Defects of the depthwise convolution by tiles in shared memory."""

from dnncanon.gpu.mutants.making import FILTER, FORWARD, mutants_of

_BACKEND = "dnncanon.gpu.single_algorithm:depthwise"

_mutant = mutants_of("kernels.conv_depthwise", primitive=FORWARD, backend=_BACKEND)

MUTANTS = (
    _mutant(
        "depthwise_border_not_cleared",
        "memory",
        "what was in shared memory counts as padding",
        "if n0 < box[0] or n1 < box[1] or n2 < box[2]:",
        "if n0 > box[0]:",
    ),
    _mutant(
        "depthwise_no_barrier_before_sums",
        "synchronisation",
        "sums begin while others still copy the tile",
        "memory[at[1]] = to_sum(filters[_uint64(at[0])])\n            cuda.syncthreads()\n",
        "memory[at[1]] = to_sum(filters[_uint64(at[0])])\n",
        check=True,
    ),
    _mutant(
        "depthwise_taps_as_far_as_outputs",
        "attribute",
        "the stride is used as the dilation",
        "zip(windows.gap, inside, strict=True)",
        "zip(windows.step, inside, strict=True)",
    ),
    _mutant(
        "depthwise_second_member_left_out",
        "bounds",
        "of a team's sums the second is not added",
        "for other in range(1, members):",
        "for other in range(2, members):",
        FILTER,
    ),
    _mutant(
        "depthwise_members_share_a_column",
        "index",
        "all members of a team take the first gradient of a row",
        " + column * dy_inside[4]",
        "",
        FILTER,
    ),
)
