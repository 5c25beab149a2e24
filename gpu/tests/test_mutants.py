"""The catalogue of defects: each is one change of what is there, all sorts are there, all are found."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from dnncanon.gpu.mutants import MUTANTS
from dnncanon.spec import primitives
from dnncanon.spec.mutant import KINDS, Mutant

ATTACKED = {
    "dnncanon.gpu.conv",
    "dnncanon.gpu.kernels.conv_bias",
    "dnncanon.gpu.kernels.conv_direct",
    "dnncanon.gpu.kernels.conv_implicit_gemm",
    "dnncanon.gpu.kernels.correlation",
    "dnncanon.gpu.kernels.element",
    "dnncanon.gpu.kernels.epilogue",
    "dnncanon.gpu.kernels.indexing",
    "dnncanon.gpu.kernels.plan",
    "dnncanon.gpu.primitive",
    "dnncanon.gpu.runtime.array",
    "dnncanon.gpu.runtime.interop",
    "dnncanon.gpu.runtime.launching",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_changes_one_place_of_a_module(mutant: Mutant) -> None:
    found = find_spec(mutant.module)
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).read_text("utf-8")
    assert source.count(mutant.old) == 1
    assert mutant.new != mutant.old
    compile(source.replace(mutant.old, mutant.new), mutant.name, "exec")


def test_names_are_unique_and_begin_with_the_room() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)
    assert [name for name, count in names.items() if count > 1] == []
    assert [name for name in names if not name.startswith("gpu.")] == []


def test_no_two_mutants_are_the_same_change() -> None:
    changes = Counter((m.module, m.old, m.new, m.primitive, m.dtypes) for m in MUTANTS)
    assert max(changes.values()) == 1


def test_every_kind_primitive_and_module_is_attacked() -> None:
    assert {mutant.kind for mutant in MUTANTS} == set(KINDS)
    convolutions = {name for name, p in primitives().items() if p.family == "conv"}
    assert {mutant.primitive for mutant in MUTANTS} >= convolutions
    assert {mutant.module for mutant in MUTANTS} >= ATTACKED


def test_cases_are_of_dtypes_that_the_primitive_has() -> None:
    for mutant in MUTANTS:
        rows = {row.dtype for row in primitives()[mutant.primitive].dtypes}
        assert set(mutant.dtypes) <= rows, mutant.name


@pytest.mark.slow
def test_every_mutant_is_killed_or_declared_equivalent() -> None:
    """Minutes: every mutant is a process of its own, which compiles its kernels."""
    from dnncanon.conformance.mutants import Fate, hunt

    def fate_of(mutant: Mutant) -> Fate:
        (fate,) = hunt([mutant], cases=50, seed=0, timeout=60.0)
        return fate

    with ThreadPoolExecutor(os.cpu_count()) as several:
        fates = list(several.map(fate_of, MUTANTS))
    assert [str(fate) for fate in fates if not fate.as_it_should_be] == []
