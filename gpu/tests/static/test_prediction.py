"""The model of a hot loop: which resource it occupies longest, and what that leaves of the peak."""

import pytest

from dnncanon.gpu.static.architecture import ARCHITECTURES
from dnncanon.gpu.static.prediction import Prediction, predict
from dnncanon.gpu.static.sass import Code, Instruction

A100, H100, B200 = (ARCHITECTURES[capability].rates for capability in ((8, 0), (9, 0), (10, 0)))


def loop(**counts: int) -> Code:
    """So many of each instruction; __ stands for the dot of its name."""
    return Code(
        Instruction(name.replace("__", ".")) for name, n in counts.items() for _ in range(n)
    )


def predicted(code: Code, rates: object = H100) -> Prediction:
    found = predict(code, rates)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_fused_multiply_adds_alone_reach_the_peak() -> None:
    found = predicted(loop(FFMA=64))
    assert (found.fraction, found.peak) == (1.0, "float32")


def test_other_instructions_take_issue_slots() -> None:
    found = predicted(loop(FFMA=64, IADD3=8, MOV=8))
    assert found.fraction == 64 / 80
    assert found.bound_by == "issue"


def test_additions_are_half_of_the_peak() -> None:
    assert predicted(loop(FADD=64)).fraction == 0.5


def test_an_a100_has_issue_slots_to_spare() -> None:
    """It has 64 float32 lanes for four schedulers: each second slot is free."""
    found = predicted(loop(FFMA=64, IADD3=20, MOV=20), A100)
    assert found.fraction == 1.0
    assert found.bound_by == "float32 pipe"


def test_shared_memory_moves_128_bytes_a_clock() -> None:
    found = predicted(loop(FFMA=64, LDS__128=8))
    assert found.clocks["shared memory"] == 8 * 512 / 32
    assert (found.fraction, found.bound_by) == (0.5, "shared memory")


def test_the_special_function_unit_is_slow() -> None:
    found = predicted(loop(FFMA=8, MUFU__EX2=4))
    assert found.clocks["special pipe"] == 32
    assert found.fraction == 0.25


def test_a_copy_reaches_the_peak_of_memory() -> None:
    found = predicted(loop(LDG__E__128=1, STG__E__128=1, IADD3=4, BRA=1))
    assert (found.fraction, found.peak, found.bound_by) == (1.0, "memory", "memory")


def test_a_copy_of_bytes_does_not() -> None:
    found = predicted(loop(LDG__E__U8=1, STG__E__U8=1, IADD3=30, BRA=1))
    assert found.peak == "memory"
    assert found.fraction == pytest.approx(64 / 3.2 / 60)
    assert found.bound_by == "integer pipe"


def test_tensor_cores() -> None:
    """H100: 1,024 multiply-adds of float16 a clock and SM in each of four tensor cores."""
    wgmma = predicted(loop(HGMMA__64x256x16__F32=4, IADD3=8))
    assert (wgmma.fraction, wgmma.peak) == (1.0, "float16")
    assert wgmma.clocks["tensor cores"] == 4 * 64 * 256 * 16 / 2048


def test_mma_sync_does_not_reach_the_peak_of_an_h100() -> None:
    code = loop(HMMA__16816__F32=64, LDSM__16__M88__4=16, IADD3=60)
    assert predicted(code, A100).fraction == 1.0
    assert predicted(code, H100).fraction == pytest.approx(0.629)
    assert predict(code, B200) is None


def test_tf32_is_half_of_float16() -> None:
    half = predicted(loop(HMMA__16816__F32=1), A100).clocks["tensor cores"]
    assert predicted(loop(HMMA__1688__F32__TF32=1), A100).clocks["tensor cores"] == half


def test_nothing_is_said_of_a_loop_that_computes_and_moves_nothing() -> None:
    assert predict(loop(IADD3=3, BRA=1), H100) is None
