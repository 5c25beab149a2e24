"""The fingerprint of a kernel changes with everything that its machine code depends on."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from enum import Enum
from types import FunctionType, ModuleType

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import cuda, float32, int32
from numba.core import config
from numba.cuda import types
from numba.cuda.extending import intrinsic

from dnncanon.gpu import ptx
from dnncanon.gpu.emulator.compiler import fingerprint as module
from dnncanon.gpu.emulator.compiler.fingerprint import Unfamiliar, fingerprint, machinery
from dnncanon.gpu.emulator.instructions.table import Instruction, Scope, forget
from dnncanon.gpu.emulator.native import f32, native

ARRAY = types.Array(types.float32, 1, "C")


@pytest.fixture(autouse=True)
def _unchanged_sources(monkeypatch):
    """As if the emulator had been loaded now: its files may have just been edited."""
    monkeypatch.setattr(module, "_LOADED", float("inf"))


def of(function, *kinds, options=(False, "fast")):
    return fingerprint(function, kinds or (ARRAY,), *options)


def defined(source, name="kernel", **scope):
    """The function that a module with this source defines."""
    made = dict(scope)
    exec(compile(source, "somewhere/made.py", "exec"), made)
    return made[name]


def device(function):
    return cuda.jit(device=True)(function)


KERNEL = """
def kernel(x):
    x[cuda.threadIdx.x] = helper(x[0])
"""


def calling(helper, source=KERNEL):
    return defined(source, cuda=cuda, helper=helper)


def helper_of(source, **scope):
    return device(defined(source, "helper", **scope))


# --- What makes no difference ---------------------------------------------------------------------


def test_the_same_definition_once_more_is_the_same_kernel():
    make = lambda: calling(helper_of("def helper(a):\n    return a * 2 + inner(a)\n", inner=inner))  # noqa: E731
    inner = helper_of("def helper(a):\n    return a\n")
    assert of(make()) == of(make())


def test_compiling_a_kernel_does_not_change_its_fingerprint():
    from dnncanon.gpu.emulator import launch

    kernel = calling(helper_of("def helper(a):\n    return a * 2\n"))
    before = of(kernel)
    launch(kernel, 1, 1, (np.ones(4, np.float32),))
    assert of(kernel) == before


def test_globals_that_it_does_not_read_do_not_count():
    source = "def kernel(x):\n    x[0] = 1\n"
    assert of(defined(source, other=1)) == of(defined(source, other=object()))


def test_it_is_the_same_in_another_process():
    code = (
        "from dnncanon.gpu.emulator.compiler import fingerprint as module\n"
        "from dnncanon.gpu.kernels.conv_direct import direct\n"
        "from numba.cuda import types\n"
        "module._LOADED = float('inf')\n"
        "print(module.fingerprint(direct('float32').function, (types.float32,), {1, 'a', 2.0} == {}))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


# --- What makes a difference: each pair is two different kernels ------------------------------------


class Colour(Enum):
    RED = 1


class OtherColour(Enum):
    RED = 2


def scaling(factor):
    def kernel(x):
        x[0] *= factor

    return kernel


def inner(text):
    return helper_of(f"def helper(a):\n    return a + {text}\n")


def outer(text):
    return helper_of("def helper(a):\n    return 2 * inner(a)\n", inner=inner(text))


def reading(value, source="def kernel(x):\n    x[0] = value\n"):
    return defined(source, value=value)


def reading_of_module(value):
    holder = ModuleType("holder")
    holder.value = value
    return defined("def kernel(x):\n    x[0] = holder.value\n", holder=holder)


def asm(text):
    entry = Instruction(text, "f", "f", ptx.scalar_ops.ex2, Scope.VALUE)
    forget(entry)
    return calling(ptx.instruction_function(entry, 1))


def intrinsic_adding(number):
    def codegen(context, builder, signature, arguments):
        return builder.fadd(arguments[0], arguments[0].type(number))

    @intrinsic
    def helper(typing, a):
        return float32(float32), codegen

    return calling(helper)


def defaulted(value):
    return calling(helper_of(f"def helper(a, b={value}):\n    return a + b\n"))


PAIRS = {
    "its code": (
        defined("def kernel(x):\n    x[0] = 1\n"),
        defined("def kernel(x):\n    x[0] = 2\n"),
    ),
    "its lines": (
        defined("def kernel(x):\n    x[0] = 1\n"),
        defined("\ndef kernel(x):\n    x[0] = 1\n"),
    ),
    "its name": (
        defined("def kernel(x):\n    x[0] = 1\n"),
        defined("def lernel(x):\n    x[0] = 1\n", "lernel"),
    ),
    "a constant's type": (scaling(1), scaling(1.0)),
    "a boolean": (scaling(1), scaling(True)),
    "the sign of a zero": (scaling(0.0), scaling(-0.0)),
    "a NumPy number": (scaling(1.0), scaling(np.float64(1.0))),
    "a NumPy number's type": (scaling(np.float32(1)), scaling(np.float64(1))),
    "a Numba type": (scaling(float32), scaling(int32)),
    "a tuple": (scaling((1, 2)), scaling((1, (2,)))),
    "nesting": (scaling(((1, 2), 3)), scaling((1, (2, 3)))),
    "an array's contents": (scaling(np.array([1, 2])), scaling(np.array([1, 3]))),
    "an array's shape": (scaling(np.ones((2, 3))), scaling(np.ones((3, 2)))),
    "an array's order": (scaling(np.ones((2, 2), order="C")), scaling(np.ones((2, 2), order="F"))),
    "a member of an enumeration": (scaling(Colour.RED), scaling(OtherColour.RED)),
    "an enumeration": (scaling(Colour), scaling(OtherColour)),
    "a global": (reading(1), reading(2)),
    "a global that is missing": (reading(1), defined("def kernel(x):\n    x[0] = value\n")),
    "a module's attribute": (reading_of_module(1), reading_of_module(2)),
    "a library's function": (reading(math.exp), reading(math.exp2)),
    "a helper": (calling(inner("1")), calling(inner("2"))),
    "a helper's helper": (calling(outer("1")), calling(outer("2"))),
    "a helper among others": (reading((inner("1"),)), reading((inner("2"),))),
    "a helper's default": (defaulted(1), defaulted(2)),
    "a helper's options": (
        calling(cuda.jit(device=True)(lambda a: a)),
        calling(cuda.jit(device=True, inline="always")(lambda a: a)),
    ),
    "which helper comes first": (
        reading((inner("1"), inner("2"), inner("1"))),
        reading((inner("1"), inner("2"), inner("2"))),
    ),
    "what an intrinsic emits": (intrinsic_adding(1.0), intrinsic_adding(2.0)),
    "an instruction": (asm("made.up.f32 $0, $1;"), asm("made.up.ftz.f32 $0, $1;")),
}


@pytest.mark.parametrize(("one", "other"), PAIRS.values(), ids=PAIRS)
def test_it_depends_on(one, other):
    assert of(one) == of(one)
    assert of(one) != of(other)


@pytest.mark.parametrize(
    "kind",
    [
        types.float32,
        types.Array(types.float64, 1, "C"),
        types.Array(types.float32, 2, "C"),
        types.Array(types.float32, 1, "A"),
        types.Array(types.float32, 1, "C", readonly=True),
        types.Array(types.float32, 1, "C", aligned=False),
        types.UniTuple(types.int64, 2),
        types.Tuple((types.int64, types.int32)),
    ],
    ids=str,
)
def test_it_depends_on_argument_types(kind):
    assert of(scaling(2), kind) != of(scaling(2), ARRAY)


def test_it_depends_on_options():
    assert len({of(scaling(2), options=o) for o in [(False, "a"), (True, "a"), (False, "b")]}) == 3


def test_a_helper_that_is_patched_afterwards_is_another():
    helper = inner("1")
    kernel = calling(helper)
    before = of(kernel)
    helper.py_func.__code__ = inner("2").py_func.__code__
    patched = of(kernel)
    kernel.__globals__["helper"] = inner("3")
    assert len({before, patched, of(kernel)}) == 3


def test_functions_that_call_one_another_have_one():
    source = "def helper(a):\n    return other(a - 1) if a > 0 else {0}\n"

    def pair(text):
        one = helper_of(source.format(0))
        one.py_func.__globals__["other"] = helper_of(source.format(text), other=one)
        return calling(one)

    assert of(pair(1)) == of(pair(1)) != of(pair(2))


# --- The machinery --------------------------------------------------------------------------------


def test_it_depends_on_versions_and_on_the_cpu(monkeypatch):
    seen = {machinery()}
    for owner, name, value in [
        (module.metadata, "version", lambda name: "0.0"),
        (llvm, "get_host_cpu_name", lambda: "i386"),
        (llvm, "llvm_version_info", (1, 2, 3)),
        (sys, "version", "2.7"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            module._unchanging.cache_clear()
            seen.add(machinery())
    module._unchanging.cache_clear()
    assert len(seen) == 5


def test_it_depends_on_the_settings_of_numba(monkeypatch):
    before = machinery()
    monkeypatch.setattr(config, "OPT", 0)
    assert machinery() != before


def test_it_depends_on_the_emulators_sources(monkeypatch, tmp_path):
    (tmp_path / "lowering.py").write_text("a = 1\n")
    monkeypatch.setattr(module, "_PACKAGE", tmp_path)
    seen = set()
    for text in ("a = 1\n", "a = 2\n"):
        (tmp_path / "lowering.py").write_text(text)
        module._sources.cache_clear()
        module._unchanging.cache_clear()
        seen.add(machinery())
    monkeypatch.undo()
    module._sources.cache_clear()
    module._unchanging.cache_clear()
    assert len(seen) == 2


def test_sources_that_were_edited_after_they_were_loaded_have_none(monkeypatch):
    youngest = max(path.stat().st_mtime for path in module._sources())
    monkeypatch.setattr(module, "_LOADED", youngest - 1)
    with pytest.raises(Unfamiliar, match="may have changed"):
        of(scaling(2))


def test_an_emulator_that_is_not_what_its_files_say_has_none(monkeypatch):
    changed = ModuleType("dnncanon.gpu.emulator.compiler.changed")
    monkeypatch.setitem(sys.modules, changed.__name__, changed)
    with pytest.raises(Unfamiliar, match="was not loaded from its file"):
        of(scaling(2))


# --- What cannot be vouched for -------------------------------------------------------------------


class Thing:
    pass


def overloaded(a):
    return a


def without_a_value():
    def kernel(x):
        x[0] = later

    if kernel is None:
        later = 1
    return kernel


def wrapping():
    kernel = scaling(2)
    kernel.__wrapped__ = scaling(3)
    return kernel


@native("test.stranger")
def stranger(a: f32) -> f32:
    return a


def strange_instruction():
    entry = Instruction("stranger.f32 $0, $1;", "f", "f", stranger)
    forget(entry)
    return calling(ptx.instruction_function(entry, 1))


@pytest.mark.parametrize(
    "kernel",
    [
        scaling(Thing()),
        scaling(Thing),
        scaling([Thing()]),
        scaling(type("Number", (int,), {})(3)),
        scaling(np.array([None])),
        calling(overloaded),
        calling(lambda a: a),
        defined("def kernel(x):\n    import somewhere\n"),
        without_a_value(),
        wrapping(),
        strange_instruction(),
        Thing(),
        calling(cuda.jit(device=True, link=["code.cu"])(lambda a: a)),
    ],
    ids=[
        "object", "class", "list of objects", "subclass", "array of objects", "overload", "lambda",
        "import", "no value", "wrapper", "instruction", "no function", "linked file",
    ],
)  # fmt: skip
def test_it_refuses(kernel):
    with pytest.raises(Unfamiliar):
        of(kernel)


def test_it_refuses_types_that_say_too_little():
    with pytest.raises(Unfamiliar, match="Numba type"):
        of(scaling(2), types.Dispatcher(inner("1")))


def test_every_kernel_of_the_library_can_be_cached():
    """A sample of each way in which they are made."""
    from dnncanon.gpu.kernels.conv_direct import direct
    from dnncanon.gpu.kernels.tile.parts import sum_parts

    for kernel in (direct("float16"), sum_parts("float32", "float16")):
        assert isinstance(kernel.function, FunctionType)
        assert len(of(kernel.function)) == 64
