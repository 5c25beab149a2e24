"""Floors for what the compiler makes of kernels on sm_90a: what falls below one has become slower.

A row of ``FLOORS`` is a kernel, as a call of the library launches it, with what its machine code has to be
like. ``dnncanon bench --static`` shows the figures of all kernels.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnncanon.gpu as gpu
from dnncanon.gpu import static
from dnncanon.gpu.static.recording import recording
from dnncanon.gpu.static.toolchain import nvdisasm


def has_disassembler() -> bool:
    try:
        nvdisasm()
    except static.ToolchainError:
        return False
    return True


pytestmark = pytest.mark.skipif(
    not has_disassembler(), reason="nvdisasm is missing: pip install 'dnncanon[static]'"
)

WIDE = ("LDG.E.128", "STG.E.128")
"""Accesses of 16 bytes a thread."""

ACCESSES = ("LDG", "STG")


def array(*shape: int, dtype: str = "float32") -> Any:
    """Memory that nobody looks at."""
    return np.empty(shape, dtype)


def inspected(call: Callable[[], object], kernel: str) -> static.Inspection:
    """The kernel of this name that the call launches, on sm_90a."""
    with recording() as launches:
        call()
    launched = next(launch for launch in launches if launch.kernel.name == kernel)
    return static.inspect(
        launched.kernel,
        launched.signature,
        threads=launched.threads,
        dynamic_shared_bytes=launched.dynamic_shared_bytes,
    )


# --- Floors ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Floor:
    """``share`` of the hot loop's instructions are among ``opcodes`` at least; or, where ``of`` is given,
    of those that it names. ``blocks`` of the kernel are on an SM at least."""

    name: str
    call: Callable[[], object]
    kernel: str
    opcodes: tuple[str, ...]
    share: float
    of: tuple[str, ...] = ()
    blocks: int = 1


def wide(name: str, kernel: str, call: Callable[[], object]) -> Floor:
    """All accesses of global memory in the hot loop move 16 bytes a thread."""
    return Floor(name, call, kernel, WIDE, 1.0, of=ACCESSES)


IMAGES, ROWS = (64, 256, 56, 56), (4096, 1024)

FLOORS = [
    # 1024 FFMA of 1309 instructions. 64 of the others are LDS.128; each element of A has 3 coordinates,
    # 3 comparisons, an address of 2 instructions and the copy.
    Floor(
        "convolution float32",
        lambda: gpu.conv_forward(
            array(32, 256, 56, 56),
            array(256, 256, 3, 3),
            padding=1,
            algorithm="implicit_gemm",
        ),
        "tile_product_",
        ("FFMA",),
        0.78,
    ),
    # 64 HMMA of 170 instructions: 2.66 for each, 16 LDSM among them; at least 1 of 3 is to be one.
    Floor(
        "matrix product float16",
        lambda: gpu.matmul_forward(
            array(2048, 1024, dtype="float16"),
            array(2048, 1024, dtype="float16").T,
            algorithm="tensor_core",
        ),
        "tile_product_",
        ("HMMA",),
        1 / 3,
        blocks=2,
    ),
    # 512 FFMA of 598 instructions.
    Floor(
        "matrix product float32",
        lambda: gpu.matmul_forward(array(1024, 2048).T, array(1024, 2048), algorithm="cuda_core"),
        "tile_product_",
        ("FFMA",),
        0.82,
    ),
    # 32 HMMA of 194 instructions. 66 of these, from a branch on, are passed over unless a tap ends: for most
    # slices 128 are executed, which are 4.0 for each HMMA.
    Floor(
        "convolution float16, channels last",
        lambda: gpu.conv_forward(
            np.moveaxis(array(32, 56, 56, 64, dtype="float16"), -1, 1),
            np.moveaxis(array(256, 3, 3, 64, dtype="float16"), -1, 1),
            padding=1,
            algorithm="implicit_precomp_gemm",
        ),
        "tile_product_",
        ("HMMA",),
        0.16,
    ),
    # 16 HMMA of 78 instructions, in which 16 bytes of each row of R and of h are copied by 2 threads.
    Floor(
        "step of an LSTM float16",
        lambda: gpu.lstm_forward(
            array(2, 64, 512, dtype="float16"),
            array(4 * 512 * (512 + 512) + 8 * 512, dtype="float16"),
            hidden_size=512,
        ),
        "rnn_step_",
        ("HMMA",),
        0.2,
        blocks=2,
    ),
    wide(
        "activation float32",
        "elementwise_dense",
        lambda: gpu.activation_forward(array(*IMAGES), mode="relu"),
    ),
    wide(
        "activation float16",
        "elementwise_dense",
        lambda: gpu.activation_forward(array(*IMAGES, dtype="float16"), mode="relu"),
    ),
    wide(
        "addition float32",
        "elementwise_dense",
        lambda: gpu.pointwise_operation(array(*IMAGES), array(*IMAGES), mode="add"),
    ),
    wide(
        "dropout float32",
        "elementwise_dense",
        lambda: gpu.dropout_forward(array(*IMAGES), probability=0.1, seed=1),
    ),
    wide("copy float32", "copying", lambda: gpu.transform_tensor(array(*IMAGES))),
    wide("filling float32", "filling", lambda: gpu.set_tensor(shape=IMAGES, value=0.0)),
    wide(
        "sums of rows float32",
        "reduction",
        lambda: gpu.reduce_forward(array(*ROWS), op="add", axes=(1,)),
    ),
    wide(
        "sums of rows float16",
        "reduction",
        lambda: gpu.reduce_forward(array(*ROWS, dtype="float16"), op="add", axes=(1,)),
    ),
    wide("softmax float32", "row_map", lambda: gpu.softmax_forward(array(*ROWS))),
    wide("softmax float16", "row_map", lambda: gpu.softmax_forward(array(*ROWS, dtype="float16"))),
    wide(
        "layer norm float32",
        "norm_rows_forward",
        lambda: gpu.layer_norm_forward(array(*ROWS), array(ROWS[1]), array(ROWS[1])),
    ),
]


@pytest.mark.parametrize("floor", FLOORS, ids=lambda floor: floor.name)
def test_hot_loop(floor: Floor) -> None:
    inspection = inspected(floor.call, floor.kernel)
    loop = inspection.hot_loop
    among = loop.count(*floor.of) if floor.of else len(loop)
    assert among, str(inspection)
    assert loop.count(*floor.opcodes) >= floor.share * among, str(inspection)
    assert inspection.spill_bytes == 0, str(inspection)
    assert inspection.occupancy.blocks >= floor.blocks, str(inspection)


def test_main_loop_of_wgmma() -> None:
    """Tensor cores wait for nothing that the loop does: it brings nothing, and its operands are descriptors."""
    a, b = array(4096, 1024, dtype="float16"), array(4096, 1024, dtype="float16").T
    inspection = inspected(
        lambda: gpu.matmul_forward(a, b, algorithm="wgmma"), "pipelined_product_"
    )
    loop = inspection.hot_loop
    # 4 HGMMA of 55 instructions; each occupies tensor cores for 128 clocks.
    assert loop.count("HGMMA") == 4
    assert len(loop) <= 64, str(inspection)
    assert loop.count(*ACCESSES, "LDS", "LDSM", "STS", "LDL", "STL", "R2UR") == 0, str(inspection)
    assert inspection.spill_bytes == inspection.stack_bytes == 0, str(inspection)


# --- Spills ---------------------------------------------------------------------------------------

QUICK = (
    *(
        "activation_forward",
        "softmax_forward",
        "softmax_backward",
        "reduce_forward",
        "conv_forward",
    ),
    *("conv_backward_filter", "pool_max_forward", "layer_norm_forward", "layer_norm_backward"),
    *("batch_norm_forward_training", "transpose", "dropout_forward", "cross_entropy_forward"),
)
"""A primitive or two for each engine."""


def bench(out: Path, *words: str) -> list[dict[str, Any]]:
    """The kernels that the command reports, in a process of its own.

    The emulator compiles device functions with their source lines, which stay in this process and which
    libNVVM does not always take.
    """
    command = [sys.executable, "-m", "dnncanon", "bench", "--static", "--cc", "sm_90a", *words]
    done = subprocess.run(
        [*command, "--jobs", "2", "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (out / "static.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == "kernel"]


def check_spills(kernels: list[dict[str, Any]]) -> None:
    refused = {row["kernel"]: row["refused"] for row in kernels if row["refused"]}
    assert not refused
    spilling = {row["kernel"]: row["spill_bytes"] for row in kernels if row["spill_bytes"]}
    assert not spilling


def test_large_tiles_of_32_bit_words_do_not_spill() -> None:
    """Which no drawn problem has: of A transposed and B as it is, whose fetches need the most registers."""

    def call() -> None:
        a, b = array(2048, 2048), array(2048, 2048)
        gpu.matmul_forward(a.T, b, algorithm="tensor_core_tf32x3")

    inspection = inspected(call, "tile_product_")
    assert inspection.spill_bytes == inspection.stack_bytes == 0, str(inspection)


def test_no_kernel_of_the_engines_spills(tmp_path: Path) -> None:
    kernels = bench(tmp_path, "--dtype", "float32", *(f"--primitive={name}" for name in QUICK))
    assert len(kernels) >= len(QUICK)
    check_spills(kernels)


@pytest.mark.slow
def test_no_kernel_spills(tmp_path: Path) -> None:
    check_spills(bench(tmp_path))
