"""The catalogue of defects: each is one change of what is there, all sorts are there.

That each is found is for `dnncanon mutants` to say, which is a step of .ci/run.
"""

from collections import Counter
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
    "dnncanon.gpu.kernels.conv_tiles",
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
