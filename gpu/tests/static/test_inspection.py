"""Kernels through the whole toolchain: compiled, linked, disassembled, counted."""

import subprocess
import sys
from typing import Any

import pytest

from dnncanon.gpu import ptx, static
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, types
from dnncanon.gpu.static.figures import DEFAULT_ARCHITECTURES, capability, static_figures
from dnncanon.gpu.static.parallel import Refusal, inspect_all
from dnncanon.gpu.static.recording import Launched
from dnncanon.gpu.static.shipped import Shipped
from dnncanon.gpu.static.toolchain import nvdisasm, versions
from dnncanon.spec import AttributeValueError

try:
    nvdisasm()
except static.ToolchainError:
    pytest.skip("nvdisasm is missing: pip install 'dnncanon[static]'", allow_module_level=True)

FLOATS = types.Array(types.float32, 1, "C")


@kernel
def power(x: Any, y: Any, n: Any) -> None:
    """y = xⁿ, by n multiplications."""
    at = cuda.grid(1)
    base = x[at]
    result = base
    for _ in range(n):
        result = result * base
    y[at] = result


@kernel
def permute(x: Any, y: Any, places: Any) -> None:
    """By way of a private array that is written at places known at run time."""
    private = cuda.local.array(32, types.float32)
    for i in range(32):
        private[places[i]] = x[i]
    for i in range(32):
        y[i] = private[i]


@pytest.mark.parametrize("architecture", DEFAULT_ARCHITECTURES)
def test_a_kernel_on_each_architecture(architecture: str) -> None:
    report = static.inspect(power, (FLOATS, FLOATS, types.int64), capability(architecture))
    assert report.architecture == architecture
    assert report.hot_loop.count("FMUL") >= 1
    assert report.program.count("LDG") == report.program.count("STG") == 1
    assert 0 < report.registers <= 32
    assert report.spill_bytes == report.stack_bytes == report.shared_bytes == 0
    assert report.occupancy.fraction == 1.0
    assert report.prediction is not None
    assert report.prediction.peak == "float32"
    assert report.prediction.fraction <= 0.5


def test_threads_and_dynamic_shared_memory_decide_over_occupancy() -> None:
    signature = (FLOATS, FLOATS, types.int64)
    report = static.inspect(power, signature, threads=128, dynamic_shared_bytes=100 * 1024)
    assert report.shared_bytes == 100 * 1024
    assert (report.occupancy.blocks, report.occupancy.limited_by) == (2, "shared memory")


def test_arrays_that_are_not_in_registers_are_local_memory() -> None:
    places = types.Array(types.int32, 1, "C")
    report = static.inspect(permute, (FLOATS, FLOATS, places))
    assert report.stack_bytes == 128
    assert report.local_accesses > 0
    assert report.spill_bytes == 0


def test_launch_bounds_reach_the_compiler() -> None:
    """64 values at a time do not fit into 32 registers of a thread: 1,024 threads × 2 blocks."""

    def many(x: Any, y: Any) -> None:
        at = cuda.grid(1)
        values = cuda.local.array(64, types.float32)
        for i in range(64):
            values[i] = x[at + 64 * i]
        cuda.syncthreads()
        for i in range(64):
            y[at + 64 * i] = values[63 - i] * values[i]

    free = static.inspect(Kernel(many), (FLOATS, FLOATS))
    bound = static.inspect(Kernel(many, launch_bounds=(1024, 2)), (FLOATS, FLOATS), threads=1024)
    assert free.spill_bytes == 0
    assert bound.registers <= 32 < free.registers
    assert bound.spill_bytes > 0
    assert bound.occupancy.blocks == 2


def test_a_barrier_of_the_whole_grid_is_linked_and_left_out() -> None:
    """It comes from CUDA's device runtime, which has kernels of its own."""

    def halves(x: Any, n: Any) -> None:
        grid, at = cuda.cg.this_grid(), cuda.grid(1)
        for _ in range(n):
            x[at] = 0.5 * x[x.size - 1 - at]
            grid.sync()

    report = static.inspect(Kernel(halves), (FLOATS, types.int64))
    assert report.program.count("FMUL") == report.program.count("STG") > 0
    assert report.program.count("CALL") > 0
    assert report.program.count("ATOM", "ATOMG", "RED") == 0
    assert 0 < report.registers < 64


def test_the_report_is_readable() -> None:
    text = str(static.inspect(power, (FLOATS, FLOATS, types.int64)))
    first, *_ = text.splitlines()
    assert first.startswith("power on sm_90a: ")
    assert "0 B spilled" in text
    assert "8 blocks of 256 threads on an SM: 100%" in text
    assert "hot loop" in text


# --- Many at once ---------------------------------------------------------------------------------


@kernel
def of_hopper(x: Any) -> None:
    """It has an instruction that only sm_90a knows."""
    ptx.wgmma_fence()
    x[0] = types.float32(1)


def a_kernel(function: Kernel, *signature: Any) -> Shipped:
    return Shipped(Launched(function, signature, 256, 0), ("a_primitive float32",))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_kernel_for_one_architecture_is_refused_on_others(jobs: int) -> None:
    kernels = [a_kernel(of_hopper, FLOATS), a_kernel(power, FLOATS, FLOATS, types.int64)]
    outcomes = dict(inspect_all(kernels, [(8, 0), (9, 0, "a")], jobs))
    refused, compiled = outcomes[kernels[0]]
    assert isinstance(refused, Refusal)
    assert "wgmma" in refused.reason
    assert isinstance(compiled, static.Inspection)
    assert all(isinstance(outcome, static.Inspection) for outcome in outcomes[kernels[1]])


def test_figures_are_in_the_words_of_the_reports() -> None:
    found = static_figures(["conv_backward_bias"], ["float32"], ["sm_90a"])
    assert found.kernels == 1
    ((figures,),) = found.figures
    assert figures["kernel"] == "conv_bias_sum"
    assert figures["launched_by"] == ("conv_backward_bias float32",)
    assert figures["architecture"] == "sm_90a"
    assert figures["spill_bytes"] == 0
    assert sum(figures["loop_mix"].values()) == figures["loop_instructions"]


@pytest.mark.parametrize("name", ["sm_70", "9.0", "sm_90x"])
def test_an_architecture_that_is_not_known(name: str) -> None:
    with pytest.raises(AttributeValueError, match="pass one of sm_80, sm_90, sm_100"):
        capability(name)


def test_the_versions_of_the_tools_are_told() -> None:
    assert {"numba-cuda", "nvJitLink", "nvdisasm"} <= versions().keys()


def test_the_kernels_of_a_call_on_the_command_line() -> None:
    call = "activation_forward(array(64, 256, dtype='float16'), mode='relu')"
    command = [sys.executable, "-m", "dnncanon.gpu.static", call, "--sass"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("elementwise_dense on sm_90a")
    assert "    LDG.E.128" in done.stdout
