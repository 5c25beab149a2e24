"""Defects planted in the GPU library, to be found by the conformance suite.

Kinds follow the mutation operators of the literature on GPU kernels (Zhu and Zaidman, ICST 2020: index
arithmetic, fewer threads or blocks, missing synchronisation, misuse of shared memory, conversions), and
add what a library around the kernels can get wrong. Each module here lists those of one family, algorithm or
concern, as ``MUTANTS``.
"""

from importlib import import_module
from pkgutil import iter_modules

MUTANTS = tuple(
    mutant
    for module in iter_modules(__path__, f"{__name__}.")
    for mutant in getattr(import_module(module.name), "MUTANTS", ())
)
