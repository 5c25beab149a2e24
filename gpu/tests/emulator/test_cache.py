"""The cache of compiled kernels: what it gives back is what would be compiled, or nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32

from dnncanon.gpu import ptx
from dnncanon.gpu.emulator import CheckError, launch
from dnncanon.gpu.emulator.compiler import cache, compiling, fingerprint
from dnncanon.gpu.emulator.compiler.cache import VARIABLE, Store
from dnncanon.gpu.emulator.instructions import scalar
from dnncanon.gpu.emulator.instructions.table import Instruction, forget


@pytest.fixture(autouse=True)
def _unchanged_sources(monkeypatch):
    """As if the emulator had been loaded now: its files may have just been edited."""
    monkeypatch.setattr(fingerprint, "_LOADED", float("inf"))


@pytest.fixture
def directory(monkeypatch, tmp_path):
    """An empty cache that is in use."""
    chosen = tmp_path / "cache"
    monkeypatch.setenv(VARIABLE, str(chosen))
    yield chosen
    cache._store.cache_clear()


@pytest.fixture
def compilations(monkeypatch):
    """The names of the kernels that Numba has compiled."""
    names = []

    def counted(function, *arguments, **options):
        names.append(function.__name__)
        return original(function, *arguments, **options)

    original = compiling.acquire
    monkeypatch.setattr(compiling, "acquire", counted)
    return names


def scaling(factor):
    """A new kernel each time, which launches do not take for one that they know."""

    def scale(x):
        x[cuda.threadIdx.x] *= factor

    return scale


def scaled(factor):
    x = np.ones(4, np.float32)
    launch(scaling(factor), 1, 4, (x,))
    return x.tolist()


# --- What is taken from it ------------------------------------------------------------------------


def test_a_kernel_is_compiled_once(directory, compilations):
    assert scaled(2) == scaled(2) == [2, 2, 2, 2]
    assert compilations == ["scale"]


def test_other_kernels_are_compiled(directory, compilations):
    assert (scaled(2), scaled(3)) == ([2] * 4, [3] * 4)
    x = np.ones(4, np.float64)
    launch(scaling(2), 1, 4, (x,))
    launch(scaling(2), 1, 4, (x,), fastmath=True)
    assert compilations == ["scale"] * 4


def sums():
    """A kernel of everything that a launch has to know about: shared memory, barriers, a constant
    array, an instruction, a fault of its own."""
    table = np.arange(32, dtype=np.float32)

    def kernel(x, wrong):
        constant = cuda.const.array_like(table)
        tile = cuda.shared.array(32, float32)
        dynamic = cuda.shared.array(0, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i] * constant[i]
        if wrong == 0:
            cuda.syncthreads()
        dynamic[i] = tile[31 - i] + cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1)
        cuda.syncthreads()
        x[i] = ptx.ex2_approx(dynamic[i] * 0.01)

    return kernel


def everything_about(mode):
    x = np.arange(32, dtype=np.float32)
    report = launch(sums(), 1, 32, (x, 0), shared_bytes=128, mode=mode)
    with pytest.raises(CheckError) as found:
        launch(sums(), 1, 32, (x.copy(), 1), shared_bytes=128, mode="check")
    facts = (report.kernel, report.barriers, report.warp_operations, report.fibers)
    texts = (report.uninstrumented, report.profile, found.value)
    # Numba numbers the shared arrays of a process.
    return x.tolist(), facts, [re.sub(r"_cudapy_smem_\d+", "array", str(t)) for t in texts]


@pytest.mark.parametrize("mode", ["fast", "check", "profile"])
def test_launches_are_the_same(mode, directory, compilations, monkeypatch):
    first = everything_about(mode)
    made = len(compilations)
    assert everything_about(mode) == first
    assert len(compilations) == made
    monkeypatch.setenv(VARIABLE, "off")
    assert everything_about(mode) == first
    assert len(compilations) == made + 2  # for each of the launches


def run(code, **environment):
    """What a fresh process prints that executes `code`."""
    before = f"from pathlib import Path; import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", before + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


COUNTING = """
import numpy as np
from dnncanon.gpu.emulator.compiler import compiling, engine, fingerprint
fingerprint._LOADED = float("inf")
made = []
def counted(function):
    def call(*arguments, **options):
        made.append(function.__name__)
        return function(*arguments, **options)
    return call
compiling.acquire = counted(compiling.acquire)
engine._compile_runtime = counted(engine._compile_runtime)
"""

SOFTMAX = (
    COUNTING
    + """
from dnncanon import gpu
print(gpu.softmax_forward(np.arange(12, dtype=np.float32).reshape(3, 4) / 4).tobytes().hex(), len(made))
"""
)


def test_other_processes_compile_nothing(directory):
    first, second = (run(SOFTMAX).split() for _ in range(2))
    assert first[0] == second[0]
    assert (first[1], second[1]) == ("2", "0")  # the run time and the kernel, then nothing


# --- What is not taken from it --------------------------------------------------------------------


def files(directory):
    return sorted(directory.glob("*.dnncanon"))


def test_the_run_time_holds_no_address_of_a_process():
    """Nor does anything else that differs between processes: its code is the same, byte for byte."""
    code = (
        "import hashlib\n"
        "from dnncanon.gpu.emulator.compiler import engine\n"
        "engine._initialise()\n"
        "print(hashlib.sha256(engine._compile_runtime()).hexdigest())\n"
    )
    assert run(code) == run(code)


MEAN = """
import numpy as np
from contextlib import nullcontext
from dnncanon.conformance.mutation import applied
import os
name = os.environ.get("MUTANT")
with applied(name) if name else nullcontext():
    from dnncanon import gpu
    from dnncanon.gpu.emulator.compiler import fingerprint
    fingerprint._LOADED = float("inf")
    print(float(gpu.reduce_forward(np.full((1, 4), 3, np.float32), op="avg", axes=(1,))[0]))
"""


def test_a_mutant_is_not_what_it_was_made_of(directory):
    """A function that the kernel calls is changed, three calls deep; and changed back."""
    right, wrong = {}, {"MUTANT": "gpu.reduce_avg_is_sum"}
    found = [float(run(MEAN, **environment)) for environment in (right, wrong, right, wrong)]
    assert found == [3, 12, 3, 12]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[:500] + b"x" + data[501:],
        lambda data: b"rubbish",
    ],
    ids=["empty", "no digest", "half", "one byte short", "one byte wrong", "rubbish"],
)
def test_a_damaged_file_is_made_again(damage, directory, compilations):
    scaled(2)
    whole = [path.read_bytes() for path in files(directory)]
    for path in files(directory):
        path.write_bytes(damage(path.read_bytes()))
    assert scaled(2) == [2] * 4
    assert compilations == ["scale"] * 2
    assert [len(path.read_bytes()) for path in files(directory)] == [len(data) for data in whole]
    scaled(2)
    assert compilations == ["scale"] * 2


def test_what_has_no_fingerprint_is_not_kept(directory, compilations):
    unfamiliar = type("Number", (int,), {})(2)
    for _ in range(2):
        assert scaled(unfamiliar) == [2] * 4
    assert compilations == ["scale"] * 2
    assert files(directory) == []


def applying(function):
    def kernel(x):
        x[0] = function(x[0])

    return kernel


def test_an_instruction_that_has_come_to_mean_something_else(directory, compilations):
    """The code of the kernel is the same: it only holds the instruction's text."""
    text = "made.up.f32 $0, $1;"
    results = []
    emitted = ptx.instruction_function(Instruction(text, "f", "f", scalar.ex2), 1)
    for execute in (scalar.ex2, scalar.lg2, scalar.ex2):
        entry = Instruction(text, "f", "f", execute)
        x = np.full(1, 8, np.float32)
        launch(applying(emitted), 1, 1, (x,))
        results.append(float(x[0]))
    forget(entry)
    assert results == [256, 3, 256]


@pytest.mark.parametrize("choice", ["", "off"])
def test_it_can_be_off(choice, monkeypatch, tmp_path, compilations):
    monkeypatch.setenv(VARIABLE, choice)
    monkeypatch.chdir(tmp_path)
    assert scaled(2) == scaled(2)
    assert compilations == ["scale"] * 2
    assert list(tmp_path.iterdir()) == []


def test_it_is_off_unless_it_is_asked_for(monkeypatch, compilations):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert scaled(2) == scaled(2)
    assert compilations == ["scale"] * 2


# --- The directory --------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_made_is_said_once(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="no kernels are cached") as warned:
        assert scaled(2) == scaled(2) == [2] * 4
    assert len(warned) == 1


def test_a_directory_in_which_others_may_write_is_refused(monkeypatch, tmp_path):
    tmp_path.chmod(0o777)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.warns(UserWarning, match="others may write there"):
        scaled(2)
    assert files(tmp_path) == []


def test_it_is_made_for_its_owner_alone(directory):
    scaled(2)
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_is_no_error(directory, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert scaled(2) == [2] * 4
    assert list(directory.iterdir()) == []


def test_what_nobody_uses_any_more_goes(tmp_path):
    now = time.time()
    for age, name in [(31, "old.dnncanon"), (31, "old.dnncanon-unfinished"), (1, "new.dnncanon")]:
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (now - age * 86400,) * 2)
    (tmp_path / "letter.txt").write_text("not ours")
    os.utime(tmp_path / "letter.txt", (0, 0))
    Store(tmp_path).put("key", 1)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"new.dnncanon", "letter.txt", "key.dnncanon"}


def test_use_keeps_it(tmp_path):
    Store(tmp_path).put("key", 1)
    os.utime(tmp_path / "key.dnncanon", (0, 0))
    assert Store(tmp_path).get("key") == 1
    Store(tmp_path).put("other", 2)
    assert Store(tmp_path).get("key") == 1


def test_its_size_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 8000)
    for age in range(10):
        (tmp_path / f"{age}.dnncanon").write_bytes(bytes(1000))
        os.utime(tmp_path / f"{age}.dnncanon", (time.time() - 3600 * age,) * 2)
    Store(tmp_path).put("key", 1)
    assert {path.stem for path in files(tmp_path)} == {"key", *"012345"}


def test_many_processes_at_once(tmp_path):
    """Writers and readers of the same few keys: a reader sees a whole object or none."""
    code = f"""
import random
from dnncanon.gpu.emulator.compiler.cache import Store
store = Store(Path({str(tmp_path)!r}))
for _ in range(200):
    key = str(random.randrange(3))
    found = store.get(key)
    assert found in (None, key * 100000), found[:10]
    store.put(key, key * 100000)
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", "from pathlib import Path\n" + code])
        for _ in range(3)
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"{k}.dnncanon" for k in range(3)]
