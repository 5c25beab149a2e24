"""Mutants are made as declared, do not leak into the suite, and none survives unexplained."""

import sys
from collections import Counter
from pathlib import Path

import pytest

import dnncanon.reference as reference
from dnncanon.conformance import mutation
from dnncanon.conformance.backends import BackendError, load
from dnncanon.conformance.cli import main
from dnncanon.conformance.mutants import hunt, select
from dnncanon.spec import primitives
from dnncanon.spec.mutant import KINDS, Mutant

ALL = list(mutation.catalogue().values())


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_its_place_is_in_the_source_once(mutant: Mutant) -> None:
    room, *_, module = mutant.module.split(".")[1:]
    (path,) = [
        Path(p)
        for p in sys.path
        if (Path(p) / mutant.module.replace(".", "/")).with_suffix(".py").exists()
    ][:1]
    source = (path / mutant.module.replace(".", "/")).with_suffix(".py").read_text("utf-8")
    changed = mutation.mutated(mutant, source)
    assert changed != source
    compile(changed, module, "exec")
    assert mutant.name.startswith(f"{room}.")
    assert mutant.primitive in primitives()


def test_every_primitive_and_kind_is_attacked() -> None:
    assert {mutant.primitive for mutant in ALL} == set(primitives())
    attacked = Counter(mutant.kind for mutant in ALL)
    assert set(attacked) <= set(KINDS)


def test_a_mutant_is_loaded_beside_the_original() -> None:
    """What the suite itself uses must stay as it is: a mutated reference would agree with itself."""
    before = {name: module for name, module in sys.modules.items() if "dnncanon.reference" in name}
    mutant = load("mutant:reference.stride_ignored")
    after = {name: module for name, module in sys.modules.items() if "dnncanon.reference" in name}
    assert before == after
    assert mutant.function("conv_forward") is not reference.conv_forward


def test_a_mutant_whose_place_is_gone_is_refused() -> None:
    mutant = ALL[0]
    with pytest.raises(mutation.MutantError, match="occurs 0 times"):
        mutation.mutated(mutant, "nothing of the kind")
    with pytest.raises(BackendError, match=r"no mutant .reference\.none."):
        load("mutant:reference.none")


def test_every_mutant_of_the_reference_is_killed_or_declared_equivalent() -> None:
    fates = list(hunt(select(["reference.*"]), cases=50, seed=0, timeout=60.0))
    assert [str(fate) for fate in fates if not fate.as_it_should_be] == []


def test_a_killing_case_is_reproduced_by_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    (fate,) = hunt(select(["reference.dilation_ignored"]), cases=50, seed=0, timeout=60.0)
    assert fate.killer is not None
    assert main(["repro", fate.killer.case, "--backend", "mutant:reference.dilation_ignored"]) == 1
    assert main(["repro", fate.killer.case, "--backend", "reference"]) == 0
    capsys.readouterr()


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "reference.batch_*", "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| reference.batch_mean | arithmetic |" in out
    assert "killed 1 of 1 mutants" in out


def test_no_such_mutant_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "none.*"]) == 2
    assert "no mutant matches none.*" in capsys.readouterr().err


def test_the_original_is_back_for_every_form_of_import() -> None:
    import dnncanon.reference as before

    load("mutant:" + next(m.name for m in ALL if m.name.startswith("reference.")))
    import dnncanon.reference as after

    assert after is before is sys.modules["dnncanon.reference"]
