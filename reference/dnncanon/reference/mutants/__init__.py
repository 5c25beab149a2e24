"""Defects planted in the reference, to be found by the conformance suite.

Each module here lists those of one family, or of what all families share, as ``MUTANTS``.
"""

from importlib import import_module
from pkgutil import iter_modules

MUTANTS = tuple(
    mutant
    for module in iter_modules(__path__, f"{__name__}.")
    for mutant in import_module(module.name).MUTANTS
)
