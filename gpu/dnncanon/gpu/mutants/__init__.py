"""Defects planted in the GPU library, to be found by the conformance suite.

Kinds follow the mutation operators of the literature on GPU kernels (Zhu and Zaidman, ICST 2020: index
arithmetic, fewer threads or blocks, missing synchronisation, misuse of shared memory, conversions), and
add what a library around the kernels can get wrong.
"""

from dnncanon.gpu.mutants import bias, calls, direct, finishing, geometry, implicit_gemm

MUTANTS = (
    *direct.MUTANTS,
    *implicit_gemm.MUTANTS,
    *bias.MUTANTS,
    *geometry.MUTANTS,
    *finishing.MUTANTS,
    *calls.MUTANTS,
)
