"""Launching: check what a GPU would check, copy arrays in, run the blocks, copy arrays out."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dnncanon.gpu.emulator.compiler import engine
from dnncanon.gpu.emulator.compiler.compiling import Compiled, compile_kernel
from dnncanon.gpu.emulator.compiler.instrument import Checked, Profiled
from dnncanon.gpu.emulator.compiler.lowering import SHARED_LIMIT, Lowering
from dnncanon.gpu.emulator.errors import EmulatorError, KernelError, LaunchError
from dnncanon.gpu.emulator.launching.arena import Arena, Shape, arenas
from dnncanon.gpu.emulator.launching.arguments import argument_type, pack
from dnncanon.gpu.emulator.launching.faults import install_fault_handler
from dnncanon.gpu.emulator.launching.inspection import CheckError, Inspection
from dnncanon.gpu.emulator.launching.memory import Image, key_name
from dnncanon.gpu.emulator.launching.profile import Profile, make_profile
from dnncanon.gpu.emulator.launching.reporting import failure_error, unknown_line
from dnncanon.gpu.emulator.launching.tensor_map import TensorMap
from dnncanon.gpu.emulator.machine import fibers

__all__ = ["LaunchReport", "launch"]

Mode = Literal["fast", "check", "profile"]
Dims = int | Sequence[int]

_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_THREADS = 1024
_MAX_RESIDENT_THREADS = 65536
_BASE_STACK = 32768
_THREADS_WORTH_A_CORE = 4096  # of a kernel whose cost is not known yet
_SECONDS_WORTH_A_CORE = 1e-3

_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # calls release the GIL


@dataclass
class LaunchReport:
    """What a launch did."""

    kernel: str
    mode: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    seconds: float
    """Running time, without compilation."""
    compile_seconds: float
    """0 when the kernel was compiled before."""
    barriers: int
    """Barriers opened, over all blocks."""
    warp_operations: int
    """Shuffles, votes, matrix instructions, … executed, each counted once per warp."""
    fibers: bool
    """Whether each CUDA thread had a stack of its own (needed for barriers and the like)."""
    workers: int
    """Operating-system threads that ran blocks."""
    profile: Profile | None = None
    """In profile mode."""
    uninstrumented: list[str] = field(default_factory=list)
    """Memory accesses that check or profile mode could not examine."""


_compiled: weakref.WeakKeyDictionary[Callable[..., Any], dict[tuple[Any, ...], Compiled]]
_compiled = weakref.WeakKeyDictionary()
_compile_lock = threading.RLock()


def launch(
    function: Callable[..., Any],
    grid: Dims,
    block: Dims,
    args: Sequence[Any],
    *,
    shared_bytes: int = 0,
    fastmath: bool = False,
    mode: Mode = "fast",
    threads: int | None = None,
    uninitialised: Sequence[int] = (),
    argument_types: Sequence[Any] | None = None,
    strict: bool = True,
) -> LaunchReport:
    """Run the CUDA kernel `function` on the CPU.

    function: the plain Python function that one would hand to `numba.cuda.jit` (a dispatcher made
        by it works too). Compiled once per function object, argument types and options.
    grid, block: an int, or up to three of them, within CUDA's limits.
    args: NumPy arrays (any strides; written in place), NumPy and Python scalars, tuples of them,
        and TensorMap objects, which kernels see as their 128-byte descriptors.
    shared_bytes: dynamic shared memory per block.
    fastmath: compile as `numba.cuda.jit(fastmath=True)` does, and flush subnormals in libdevice.
    threads: operating-system threads to spread the blocks over; default: one per core.
    mode: "fast"; "check" examines every memory access and raises CheckError with all it finds;
        "profile" fills the report's profile. Both use one operating-system thread.
    uninitialised: numbers of array arguments whose contents the kernel must not read before it has
        written them (check mode).
    argument_types: Numba types to compile for; default: the types of `args`.
    strict: also raise for what CUDA leaves undefined but GPUs commonly let pass: exited threads
        at barriers and in masks, threads of a block at different barriers.

    Schedules: with DNNCANON_EMULATOR_SEED=n, n not 0, threads run in an order shuffled by n.

    Raises LaunchError for what a GPU would refuse, UnsupportedKernel for what the emulator cannot
    do, KernelError for what the kernel does wrong; the arrays are then left unchanged.
    """
    function = getattr(function, "py_func", function)
    if mode not in _VARIETIES:
        raise LaunchError(f"mode {mode!r} is none of {', '.join(_VARIETIES)}")
    dims_grid, dims_block = _dimensions(grid, "grid"), _dimensions(block, "block")
    _check_dimensions(dims_grid, dims_block)
    original = args
    maps = {i: a for i, a in enumerate(args) if isinstance(a, TensorMap)}
    args = [np.zeros(128, np.uint8) if i in maps else a for i, a in enumerate(args)]
    types = tuple(argument_types or [argument_type(a) for a in args])
    compiled, compile_seconds = _lookup(function, types, fastmath, mode)
    _check_shared(compiled, shared_bytes)
    image = _make_image(args, maps)
    try:
        job = Job(compiled, dims_grid, dims_block, args, image, shared_bytes, mode, strict)
        report = _run(job, threads, frozenset(uninitialised))
        _check_margins(compiled, image)
        image.write_back()
    except KernelError as error:
        if mode == "fast" and error.line == unknown_line():
            _diagnose(error, function, dims_grid, dims_block, original, shared_bytes, fastmath)
        raise
    finally:
        image.release()
    report.compile_seconds = compile_seconds
    return report


_DIAGNOSED_THREADS = 1 << 16


def _diagnose(
    error: KernelError,
    function: Callable[..., Any],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: Sequence[Any],
    shared_bytes: int,
    fastmath: bool,
) -> None:
    """A fault in fast mode has no source line; a second run in check mode finds it, unless the
    launch is large. The caller's arrays are still as they were."""
    if grid[0] * grid[1] * grid[2] * block[0] * block[1] * block[2] > _DIAGNOSED_THREADS:
        return
    try:
        launch(
            function, grid, block, args, shared_bytes=shared_bytes, fastmath=fastmath, mode="check"
        )
    except CheckError as found:
        raise found from error
    except EmulatorError:
        return


def _make_image(args: Sequence[Any], maps: dict[int, TensorMap]) -> Image:
    """The arguments' memory; tensors behind descriptors follow the arguments."""
    image = Image([*args, *(tensor.array for tensor in maps.values())])
    for k, (number, tensor) in enumerate(maps.items()):
        tensor.encode(image.address(len(args) + k), image.bytes_of(number))
    return image


# --------------------------------------------------------------------------------------------------
# What a GPU would refuse
# --------------------------------------------------------------------------------------------------
def _dimensions(value: Dims, what: str) -> tuple[int, int, int]:
    extents = (value,) if isinstance(value, int | np.integer) else tuple(value)
    if not 1 <= len(extents) <= 3:
        raise LaunchError(f"{what} has {len(extents)} dimensions; pass one, two or three")
    x, y, z = (int(e) for e in (*extents, 1, 1)[:3])
    return x, y, z


def _check_dimensions(grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    for what, extents, limits in (("grid", grid, _MAX_GRID), ("block", block, _MAX_BLOCK)):
        for axis, extent, limit in zip("xyz", extents, limits, strict=True):
            if not 1 <= extent <= limit:
                raise LaunchError(f"{what}.{axis} = {extent} is outside 1 … {limit}")
    count = block[0] * block[1] * block[2]
    if count > _MAX_THREADS:
        raise LaunchError(f"a block of {block} has {count} threads; at most {_MAX_THREADS} fit")


def _check_shared(compiled: Compiled, dynamic: int) -> None:
    static = sum(a.size for a in compiled.shared if a.size > 0)
    if dynamic < 0 or static + dynamic > SHARED_LIMIT:
        raise LaunchError(
            f"{compiled.name} wants {static} bytes of static and {dynamic} of dynamic shared "
            f"memory; a block has at most {SHARED_LIMIT}"
        )


def _check_margins(compiled: Compiled, image: Image) -> None:
    damaged = image.damaged()
    if damaged:
        array = image.arrays[damaged[0]]
        raise KernelError(
            compiled.name,
            f"write outside argument {key_name(damaged[0])} ({array.dtype}{list(array.shape)})",
            (-1, -1, -1),
            (-1, -1, -1),
            unknown_line(),
        )


# --------------------------------------------------------------------------------------------------
# Compiling, once
# --------------------------------------------------------------------------------------------------
_VARIETIES: dict[str, type[Lowering]] = {"fast": Lowering, "check": Checked, "profile": Profiled}


def _lookup(
    function: Callable[..., Any], types: tuple[Any, ...], fastmath: bool, mode: Mode
) -> tuple[Compiled, float]:
    key = (types, fastmath, mode)
    with _compile_lock:
        versions = _compiled.setdefault(function, {})
        found = versions.get(key)
        if found is not None:
            return found, 0.0
        start = time.perf_counter()
        found = versions[key] = compile_kernel(
            function, types, fastmath=fastmath, variety=_VARIETIES[mode]
        )
        return found, time.perf_counter() - start


# --------------------------------------------------------------------------------------------------
# Running
# --------------------------------------------------------------------------------------------------
def seed_from_environment() -> int:
    """DNNCANON_EMULATOR_SEED: 0 or unset runs threads in order, others shuffle schedules."""
    text = os.environ.get("DNNCANON_EMULATOR_SEED", "0")
    try:
        return int(text) & 0xFFFFFFFF
    except ValueError:
        raise LaunchError(f"DNNCANON_EMULATOR_SEED={text!r} is not an integer") from None


@dataclass
class Job:
    """One launch."""

    compiled: Compiled
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: Sequence[Any]
    image: Image
    shared_bytes: int
    mode: Mode
    strict: bool

    @property
    def total(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def per_block(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def shape(self, resident: int) -> Shape:
        compiled = self.compiled
        static = compiled.dynamic_offset if compiled.uses_dynamic else compiled.static_bytes
        return Shape(
            block=self.block,
            resident=resident,
            fibers=compiled.fibers,
            stack_bytes=_stack_bytes(compiled),
            shared_bytes=static + self.shared_bytes,
        )


def _run(job: Job, threads: int | None, uninitialised: frozenset[int]) -> LaunchReport:
    compiled, fast = job.compiled, job.mode == "fast"
    resident = _resident(compiled, job.total, job.per_block)
    chunks = -(-job.total // resident)
    workers = min(threads or _worth(job), chunks) if fast else 1
    packed = pack(job.args, compiled.parameters, job.image.address)
    counter = np.zeros(1, np.int64)
    run = _RUN(engine.runtime_address(fibers.run))
    install_fault_handler()
    with arenas(workers) as taken:
        for arena in taken:
            arena.prepare(job.shape(resident))
            _set_up(arena, job, packed, counter)
        inspection = None if fast else _inspect(job, taken[0], resident, uninitialised)
        start = time.perf_counter()
        _run_all(run, taken)
        seconds = time.perf_counter() - start
        report = LaunchReport(
            kernel=compiled.name,
            mode=job.mode,
            grid=job.grid,
            block=job.block,
            seconds=seconds,
            compile_seconds=0.0,
            barriers=sum(int(a.worker["barriers"][0]) for a in taken),
            warp_operations=sum(int(a.worker["warp_operations"][0]) for a in taken),
            fibers=compiled.fibers,
            workers=workers,
            uninstrumented=compiled.uninstrumented,
        )
        _raise_failures(job, taken, inspection)
        compiled.cost = seconds * workers / (job.total * job.per_block)
        if inspection is not None and job.mode == "profile":
            report.profile = make_profile(inspection, report)
    if inspection is not None:
        inspection.release()
    return report


def _inspect(job: Job, arena: Arena, resident: int, uninitialised: frozenset[int]) -> Inspection:
    inspection = Inspection(
        job.compiled, job.image, job.args, job.grid, job.block, job.shared_bytes,
        check=job.mode == "check", profile=job.mode == "profile", uninitialised=uninitialised,
    )  # fmt: skip
    inspection.prepare(arena, resident)
    return inspection


def _raise_failures(job: Job, taken: list[Arena], inspection: Inspection | None) -> None:
    failed = next((a for a in taken if int(a.worker["error"][0])), None)
    failure = failure_error(failed, job.compiled, job.block) if failed is not None else None
    findings = inspection.results(taken[0]) if inspection is not None else []
    if findings:
        raise CheckError(job.compiled.name, findings) from failure
    if failure is not None:
        raise failure


def _resident(compiled: Compiled, total: int, per_block: int) -> int:
    """Blocks that run at the same time: all of them, for kernels whose blocks may wait for one
    another, if they fit; a grid-wide barrier needs that."""
    if not compiled.cooperative:
        return 1
    if total * per_block <= _MAX_RESIDENT_THREADS:
        return total
    if compiled.syncs_grid:
        raise LaunchError(
            f"{compiled.name} synchronises its whole grid of {total * per_block} threads; "
            f"at most {_MAX_RESIDENT_THREADS} can be resident"
        )
    return 1


def _worth(job: Job) -> int:
    """How many cores a launch is worth: starting a thread costs as much as a small kernel."""
    cores = os.cpu_count() or 1
    cuda_threads = job.total * job.per_block
    if job.compiled.cost is None:
        return cores if cuda_threads >= _THREADS_WORTH_A_CORE else 1
    seconds = job.compiled.cost * cuda_threads
    return max(1, min(cores, int(seconds / _SECONDS_WORTH_A_CORE)))


def _stack_bytes(compiled: Compiled) -> int:
    return -(-(_BASE_STACK + 2 * compiled.stack_bytes) // 4096) * 4096


def _set_up(arena: Arena, job: Job, packed: Any, counter: Any) -> None:
    worker, blocks = arena.worker, arena.blocks
    worker["kernel"] = job.compiled.kernel
    worker["counter"] = counter.ctypes.data
    worker["total"] = job.total
    worker["strict"] = int(job.strict)
    worker["seed"] = seed_from_environment()
    blocks["arguments"] = packed.ctypes.data
    blocks["dynamic_bytes"] = job.shared_bytes
    for axis, extent in zip("xyz", job.grid, strict=True):
        blocks[f"nctaid_{axis}"] = extent


def _run_all(run: Callable[[int], None], taken: list[Arena]) -> None:
    others = [
        threading.Thread(target=run, args=(arena.worker_address,), daemon=True)
        for arena in taken[1:]
    ]
    for other in others:
        other.start()
    run(taken[0].worker_address)
    for other in others:
        other.join()
