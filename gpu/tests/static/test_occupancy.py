"""Theoretical occupancy, on values that are in textbooks or were computed by NVIDIA's own cuda_occupancy.h."""

import pytest

from dnncanon.gpu.static.architecture import ARCHITECTURES, architecture
from dnncanon.gpu.static.occupancy import Occupancy, occupancy


def of(capability: tuple[int, int], **kernel: int) -> Occupancy:
    return occupancy(ARCHITECTURES[capability].limits, **kernel)


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared_bytes", "blocks", "limited_by"),
    [
        ((9, 0), 256, 32, 0, 8, "warps"),
        ((9, 0), 256, 128, 0, 2, "registers"),
        ((9, 0), 256, 129, 0, 1, "registers"),
        ((9, 0), 256, 255, 0, 1, "registers"),
        ((9, 0), 512, 255, 0, 0, "registers"),
        ((9, 0), 32, 16, 0, 32, "blocks"),
        ((9, 0), 128, 32, 48 * 1024, 4, "shared memory"),
        ((9, 0), 128, 32, 227 * 1024, 1, "shared memory"),
        ((9, 0), 128, 32, 227 * 1024 + 1, 0, "shared memory"),
        ((8, 0), 128, 32, 48 * 1024, 3, "shared memory"),
        ((8, 0), 160, 64, 0, 6, "registers"),
        ((10, 0), 384, 168, 0, 1, "registers"),
    ],
)
def test_blocks_on_an_sm(
    capability: tuple[int, int],
    threads: int,
    registers: int,
    shared_bytes: int,
    blocks: int,
    limited_by: str,
) -> None:
    found = of(capability, threads=threads, registers=registers, shared_bytes=shared_bytes)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)


def test_the_fraction_is_of_warps() -> None:
    assert of((9, 0), threads=256, registers=128, shared_bytes=0).fraction == 0.25
    assert of((9, 0), threads=256, registers=32, shared_bytes=0).fraction == 1.0


def test_a_letter_behind_a_capability_changes_no_limit() -> None:
    assert architecture((9, 0, "a")) is architecture((9, 0))
