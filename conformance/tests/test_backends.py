"""A backend is found by entry point, module or attribute, or refused in one sentence."""

import itertools
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnncanon.conformance import backends
from dnncanon.conformance.backends import Backend, BackendError, installed, load
from dnncanon.reference import backend as reference
from dnncanon.spec import primitives

Write = Callable[[str], str]

_numbers = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module of the given source, importable under the name that is returned."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> str:
        name = f"some_backend_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


def refusal(name: str) -> str:
    """What load says when it refuses ``name``: one sentence, on one line."""
    with pytest.raises(BackendError) as refused:
        load(name)
    message = str(refused.value)
    assert "\n" not in message
    return message


# --- Where backends come from ---------------------------------------------------------------------


def test_the_shipped_backends_are_installed_in_any_checkout() -> None:
    assert {"reference", "gpu", "torch"} <= set(installed())
    assert installed()["reference"] == "dnncanon.reference:backend"


def test_an_entry_point_of_a_third_party_is_a_backend(
    module: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module("class Thing:\n    name = 'ours'\n    class Inner:\n        name = 'inner'\n")
    points = [
        EntryPoint("thing", f"{name}:Thing", backends.GROUP),
        EntryPoint("inner", f"{name}:Thing.Inner", backends.GROUP),
    ]
    monkeypatch.setattr(backends, "entry_points", lambda group: points)
    assert set(installed()) == {"gpu", "inner", "reference", "thing", "torch"}
    assert (load("thing").name, load("thing").title) == ("thing", "ours")
    assert (load("inner").name, load("inner").title) == ("inner", "inner")


def test_the_reference_is_a_backend() -> None:
    backend = load("reference")
    assert backend.name == "reference"
    assert backend.implementation is reference
    assert backend.offered() == list(primitives())
    assert backend.raises_spec_errors


def test_a_module_of_plain_functions_is_a_backend(module: Write) -> None:
    name = module("def conv_forward(x, w, **attributes):\n    return x\n\nconv_backward_bias = 3\n")
    backend = load(name)
    assert backend.name == backend.title == name
    assert backend.offered() == ["conv_forward"]
    function = backend.function("conv_forward")
    assert function is not None
    assert function(1, 2) == 1
    assert backend.function("conv_backward_bias") is None
    assert backend.function("conv_backward_data") is None


def test_a_module_says_which_backend_is_meant(module: Write) -> None:
    name = module(
        "class First:\n    name = 'first'\n\nclass Second:\n    name = 'second'\n\nbackend = First()\n"
    )
    assert load(name).title == "first"
    assert load(f"{name}:backend").title == "first"
    assert load(f"{name}:Second").title == "second"
    assert load(f"{name}:Second").name == f"{name}:Second"


def test_a_class_stands_for_its_instance(module: Write) -> None:
    name = module(
        "class backend:\n"
        "    def __init__(self): self.name = 'made'\n"
        "    def conv_forward(self, x, w): return self.name\n"
    )
    backend = load(name)
    assert backend.title == "made"
    function = backend.function("conv_forward")
    assert function is not None
    assert function(None, None) == "made"


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no_such_backend", "no.such.backend", "no_such_backend:thing"])
def test_a_backend_that_does_not_exist(name: str) -> None:
    message = refusal(name)
    assert message.startswith(f"there is no backend or module {name!r}; known are gpu, reference")


def test_a_submodule_that_does_not_exist() -> None:
    assert "no backend or module 'dnncanon.nowhere'" in refusal("dnncanon.nowhere")


def test_an_attribute_that_does_not_exist(module: Write) -> None:
    name = module("class Thing: pass\n")
    assert refusal(f"{name}:Nothing") == f"module {name} has no attribute 'Nothing'"
    assert refusal(f"{name}:Thing.x") == f"module {name} has no attribute 'Thing.x'"


FAILING_IMPORTS = {
    "import a_library_that_is_missing": "No module named 'a_library_that_is_missing'",
    "raise RuntimeError('no driver')": "RuntimeError: no driver",
    "raise RuntimeError('no driver\\nsecond line')": "RuntimeError: no driver",
    "raise RuntimeError": "RuntimeError",
    "import math\nmath.no_such_function": "AttributeError: module 'math' has no attribute",
    "def (": "SyntaxError: invalid syntax",
    "from math import no_such_function": "ImportError: cannot import name",
}


@pytest.mark.parametrize("source", FAILING_IMPORTS)
@pytest.mark.parametrize("attribute", ["", ":backend"])
def test_a_module_that_cannot_be_imported(source: str, attribute: str, module: Write) -> None:
    name = module(source)
    message = refusal(name + attribute)
    assert message.startswith(f"backend {name}{attribute} cannot be imported: ")
    assert FAILING_IMPORTS[source] in message


def test_a_missing_library_whose_name_begins_like_the_backends(module: Write) -> None:
    name = module("import some\n")
    assert refusal(name) == f"backend {name} cannot be imported: No module named 'some'"


def test_a_missing_library_of_an_installed_backend_is_not_a_missing_backend(
    module: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module("import no_such_library\n")
    points = [EntryPoint("thing", name, backends.GROUP)]
    monkeypatch.setattr(backends, "entry_points", lambda group: points)
    assert refusal("thing") == "backend thing cannot be imported: No module named 'no_such_library'"


@pytest.mark.parametrize("name", ["", ":", ":backend", ".relative", "two words", "a:b:c"])
def test_a_name_that_is_none(name: str) -> None:
    assert name in refusal(name)


FAILING_STARTS = {
    "class backend:\n    def __init__(self): raise OSError('no device 0')": "OSError: no device 0",
    "class backend:\n    def __init__(self, device): pass": "TypeError: ",
    "def describe(): raise OSError('lost')": "OSError: lost",
    "def describe(): return [1]": "TypeError: describe() returned list, not a dict",
}


@pytest.mark.parametrize("source", FAILING_STARTS)
def test_a_backend_that_cannot_be_started(source: str, module: Write) -> None:
    name = module(source)
    message = refusal(name)
    assert message.startswith(f"backend {name} cannot be started: {FAILING_STARTS[source]}")


@pytest.mark.parametrize(
    ("dtype", "claimed", "allowed"),
    [
        ("float32", "fast_math", "ieee or ftz or tf32x3 or bf16x3 or tf32 or fft or winograd(m,r)"),
        (
            "float32",
            "winograd(m,r)",
            "ieee or ftz or tf32x3 or bf16x3 or tf32 or fft or winograd(m,r)",
        ),
        (
            "float32",
            "winograd(40,3)",
            "ieee or ftz or tf32x3 or bf16x3 or tf32 or fft or winograd(m,r)",
        ),
        ("float16", "tf32", "ieee or ftz or fp16_accumulate"),
        ("float64", "ftz", "ieee or fft"),
    ],
)
def test_a_numerics_class_that_a_primitive_does_not_have(
    dtype: str, claimed: str, allowed: str, module: Write
) -> None:
    name = module(
        f"def describe(): return {{'numerics': {{'conv_forward': {{{dtype!r}: {claimed!r}}}}}}}"
    )
    assert refusal(name) == (
        f"backend {name} claims the numerics class {claimed!r} for conv_forward {dtype}; "
        f"it may be {allowed}"
    )


def test_a_winograd_class_of_any_size_may_be_claimed(module: Write) -> None:
    for claimed in ("winograd(2,3)", "winograd(6,3)", "winograd(4,5)"):
        name = module(
            f"def describe(): return {{'numerics': {{'conv_forward': {{'float32': {claimed!r}}}}}}}"
        )
        assert load(name).numerics("conv_forward", "float32") == claimed


def test_claims_for_what_the_specification_does_not_have_are_ignored(module: Write) -> None:
    name = module(
        "def describe(): return {'numerics': {'fancy_op': {'float32': 'fancy'}, "
        "'conv_forward': {'int4': 'exact', 'float32': 'tf32'}}}"
    )
    assert load(name).numerics("conv_forward", "float32") == "tf32"


# --- Defaults -------------------------------------------------------------------------------------


def test_what_a_backend_leaves_out_is_numpy_on_the_host() -> None:
    backend = Backend("plain", SimpleNamespace())
    array = np.arange(6.0)
    assert backend.name == "plain"
    assert backend.to_device(array) is array
    assert backend.to_host(array) is array
    assert isinstance(backend.to_host([1, 2]), np.ndarray)
    backend.synchronize()
    assert backend.as_strided is not None
    strided = backend.as_strided(array, (2, 2), (2, 1), 1)
    assert strided.tolist() == [[1, 2], [3, 4]]
    assert np.shares_memory(strided, array)
    assert not backend.accepts_out
    assert backend.offered() == []
    assert backend.numerics("conv_forward", "float32") == "ieee"
    assert backend.declines("conv_forward", "float32", "special") == ""
    assert not backend.raises_spec_errors


def test_a_backend_with_arrays_of_its_own_has_no_views_unless_it_says_how() -> None:
    own: dict[str, Any] = {"to_device": list, "to_host": np.array}
    assert Backend("own", SimpleNamespace(**own)).as_strided is None
    assert Backend("own", SimpleNamespace(**own, as_strided=max)).as_strided is max


def test_a_description_is_read() -> None:
    description = {
        "numerics": {"conv_forward": {"float16": "fp16_accumulate"}},
        "declines": {"conv_forward": {"float16": {"special": "no NaN here"}}},
        "errors": "dnncanon",
    }
    backend = Backend("b", SimpleNamespace(describe=lambda: description, accepts_out=True))
    assert backend.numerics("conv_forward", "float16") == "fp16_accumulate"
    assert backend.numerics("conv_forward", "float32") == "ieee"
    assert backend.declines("conv_forward", "float16", "special") == "no NaN here"
    assert backend.declines("conv_forward", "float16", "exact") == ""
    assert backend.declines("conv_backward_data", "float16", "special") == ""
    assert backend.raises_spec_errors
    assert backend.accepts_out


def test_nothing_to_describe_is_nothing() -> None:
    assert Backend("b", SimpleNamespace(describe=lambda: None)).description == {}
