"""Reading SASS: instructions, their names, and which of them make a loop."""

import json

import pytest

from dnncanon.gpu.static.arithmetic import access_bytes, global_bytes, operations, shared_bytes
from dnncanon.gpu.static.sass import BYTES, Code, Instruction, Program, read_json


def instruction(line: str) -> Instruction:
    """As in ``@P0 BRA 0x20``."""
    words = line.split(maxsplit=1)
    predicate = words.pop(0) if line.startswith("@") else ""
    opcode, _, operands = " ".join(words).partition(" ")
    return Instruction(opcode, operands, predicate)


def program(text: str) -> Program:
    """A line an instruction; a name and a colon before one is its label."""
    lines = [line.strip() for line in text.strip().splitlines()]
    labels = {
        line.partition(":")[0]: f"{BYTES * at:#x}" for at, line in enumerate(lines) if ":" in line
    }
    bare = [line.rpartition(":")[2].strip() for line in lines]
    for label, address in labels.items():
        bare = [line.replace(f" {label}", f" {address}") for line in bare]
    return Program(map(instruction, bare))


def opcodes(code: Code) -> list[str]:
    return [i.opcode for i in code]


# --- Instructions ---------------------------------------------------------------------------------


def test_an_opcode_names_itself_and_what_has_further_modifiers() -> None:
    assert instruction("HMMA.16816.F32 R0,R4,R8,R0").matches("HMMA")
    assert instruction("HMMA.16816.F32 R0,R4,R8,R0").matches("HMMA.16816")
    assert not instruction("LDSM.16.M88.4 R0,[R4]").matches("LDS")
    assert not instruction("HMMA.16816.F32 R0,R4,R8,R0").matches("HMMA.1688")


def test_counting() -> None:
    code = program("LDS.128 R0,[R9]\nFFMA R1,R0,R0,R1\nFFMA R2,R0,R0,R2\nEXIT")
    assert code.count("FFMA") == 2
    assert code.count("FFMA", "LDS") == 3
    assert code.share("FFMA") == 0.5
    assert code.instructions_per("FFMA") == 2.0
    assert code.instructions_per("HMMA") == float("inf")
    assert list(code.mix().items()) == [("FFMA", 2), ("EXIT", 1), ("LDS.128", 1)]


@pytest.mark.parametrize(
    ("line", "of_a_warp"),
    [
        ("FFMA R0,R1,R2,R0", 64),
        ("FADD.FTZ R0,R1,R2", 32),
        ("DFMA R0,R2,R4,R0", 64),
        ("HFMA2.MMA R0,R1,R2,R0", 128),
        ("FFMA2 R0,R2,R4,R0", 128),
        ("IADD3 R0,R1,R2,RZ", 0),
        ("HFMA2.MMA R0,-RZ,RZ,0,0", 0),
        ("HADD2.F32 R0,-RZ,R1.H0_H0", 0),
        ("HMMA.16816.F32 R0,R4,R8,R0", 2 * 16 * 8 * 16),
        ("HMMA.1688.F32.TF32 R0,R4,R8,R0", 2 * 16 * 8 * 8),
        ("IMMA.16832.S8.S8 R0,R4,R8,R0", 2 * 16 * 8 * 32),
        ("DMMA.8x8x4 R0,R4,R8,R0", 2 * 8 * 8 * 4),
        ("HGMMA.64x256x16.F32 R0,gdesc[UR4],R0", 2 * 64 * 256 * 16 // 4),
        ("QGMMA.64x8x32.F32.E4M3.E4M3 R0,gdesc[UR4],R0", 2 * 64 * 8 * 32 // 4),
    ],
)
def test_operations_of_a_warp(line: str, of_a_warp: int) -> None:
    assert operations(instruction(line)) == of_a_warp


@pytest.mark.parametrize(
    ("line", "of_a_thread"),
    [
        ("LDG.E R0,[R2.64]", 4),
        ("LDG.E.128.CONSTANT R0,[R2.64]", 16),
        ("STG.E.U8 [R2.64],R0", 1),
        ("LDG.E.U16 R0,[R2.64]", 2),
        ("LDS.64 R0,[R2]", 8),
        ("LDSM.16.M88.4 R0,[R4]", 16),
        ("LDSM.16.MT88.2 R0,[R4]", 8),
        ("LDGSTS.E.BYPASS.128 [R4],[R2.64]", 16),
    ],
)
def test_bytes_of_a_thread(line: str, of_a_thread: int) -> None:
    assert access_bytes(instruction(line)) == of_a_thread


def test_an_asynchronous_copy_is_in_both_memories() -> None:
    copy = instruction("LDGSTS.E.BYPASS.128 [R4],[R2.64]")
    assert global_bytes(copy) == shared_bytes(copy) == 32 * 16
    assert global_bytes(instruction("LDS R0,[R2]")) == 0


# --- Loops ----------------------------------------------------------------------------------------


def test_a_branch_back_is_a_loop() -> None:
    (loop,) = program(
        """MOV R0,RZ
        again: FFMA R1,R2,R3,R1
        IADD3 R0,R0,0x1,RZ
        @P0 BRA again
        EXIT"""
    ).loops
    assert loop.header == 1
    assert opcodes(loop) == ["FFMA", "IADD3", "BRA"]


def test_loops_within_loops() -> None:
    inner, outer = sorted(
        program(
            """outer: LDG.E R0,[R2.64]
            inner: FFMA R1,R0,R0,R1
            @P0 BRA inner
            @P1 BRA outer
            EXIT"""
        ).loops,
        key=len,
    )
    assert opcodes(inner) == ["FFMA", "BRA"]
    assert opcodes(outer) == ["LDG.E", "FFMA", "BRA", "BRA"]


def test_two_branches_to_one_header_are_one_loop() -> None:
    (loop,) = program(
        """again: LDG.E R0,[R2.64]
        @P0 BRA again
        FFMA R1,R0,R0,R1
        @P1 BRA again
        EXIT"""
    ).loops
    assert len(loop) == 4


def test_a_branch_back_from_a_rare_case_is_no_loop() -> None:
    """Compilers put rare cases behind the exit, from where they come back."""
    code = program(
        """@P0 BRA rare
        back: STG.E [R2.64],R0
        EXIT
        rare: MUFU.RCP R0,R0
        BRA back"""
    )
    assert code.loops == ()


def test_a_rare_case_of_a_loop_belongs_to_it() -> None:
    (loop,) = program(
        """again: @P0 BRA rare
        back: FADD R0,R0,R1
        @P1 BRA again
        EXIT
        rare: MUFU.RCP R1,R1
        BRA back"""
    ).loops
    assert opcodes(loop) == ["BRA", "FADD", "BRA", "MUFU.RCP", "BRA"]


def test_the_endless_branch_behind_the_end_is_no_loop() -> None:
    assert program("EXIT\nend: BRA end").loops == ()


def test_uniform_branches_make_loops_too() -> None:
    (loop,) = program("again: FADD R0,R0,R1\nBRA.U UP0, again\nEXIT").loops
    assert len(loop) == 2


# --- nvdisasm's JSON ------------------------------------------------------------------------------


def disassembly(*functions: list[dict[str, str]]) -> str:
    named = [
        {"function-name": f"f{i}", "sass-instructions": code} for i, code in enumerate(functions)
    ]
    return json.dumps([{"Producer": "nvdisasm"}, named])


def test_reading_json() -> None:
    code = read_json(
        disassembly(
            [
                {"opcode": "LDC", "operands": "R1,c[0x0][0x28]"},
                {"predicate": "@!P0", "opcode": "EXIT"},
                {"opcode": "NOP"},
                {"opcode": "NOP"},
            ]
        )
    )
    assert list(map(str, code)) == ["LDC R1,c[0x0][0x28]", "@!P0 EXIT"]


def test_a_file_of_several_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2 kernels \(f0, f1\), not one"):
        read_json(disassembly([], []))
