"""The static report of the library: every kernel that it ships, in the words of the reports' format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dnncanon.gpu.static.architecture import ARCHITECTURES
from dnncanon.gpu.static.arithmetic import global_bytes, operations, shared_bytes
from dnncanon.gpu.static.inspection import Inspection
from dnncanon.gpu.static.parallel import Outcome, Refusal, inspect_all
from dnncanon.gpu.static.shipped import DEFAULT_DTYPES, Shipped, shipped
from dnncanon.gpu.static.toolchain import (
    Capability,
    ToolchainError,
    architecture_name,
    nvdisasm,
    versions,
)
from dnncanon.spec import AttributeValueError, Unsupported

DEFAULT_ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")


@dataclass(frozen=True)
class StaticFigures:
    """Figures on their way: of so many kernels, each a list with a dict for each architecture.

    The dicts hold what ``dnncanon.reports`` calls KernelFigures, by name.
    """

    kernels: int
    figures: Iterator[list[dict[str, Any]]]
    versions: dict[str, str]


def static_figures(
    primitives: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    architectures: Sequence[str] = (),
    *,
    everything: bool = False,
    jobs: int = 1,
) -> StaticFigures:
    """Compile the library's kernels in ``jobs`` processes; none of it needs a GPU.

    Nothing given means all primitives, float32 and float16, and sm_80, sm_90a, sm_100a. Raises Unsupported
    where the disassembler is missing, AttributeValueError for an architecture that is not known.
    """
    capabilities = [capability(name) for name in architectures or DEFAULT_ARCHITECTURES]
    try:
        nvdisasm()
    except ToolchainError as error:
        raise Unsupported(str(error)) from None
    kernels = shipped(primitives, dtypes or DEFAULT_DTYPES, everything=everything)
    outcomes = inspect_all(kernels, capabilities, min(jobs, max(1, len(kernels))))
    figures = ([_figures(kernel, outcome) for outcome in found] for kernel, found in outcomes)
    return StaticFigures(len(kernels), figures, versions())


def capability(name: str) -> Capability:
    """Of sm_90a: (9, 0, "a"). Raises AttributeValueError."""
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", name)
    if match is None or (int(match[1]), int(match[2])) not in ARCHITECTURES:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in ARCHITECTURES)
        raise AttributeValueError(
            f"architecture {name!r} has no row in dnncanon.gpu.static.architecture; pass one of {known}, "
            "with an a or f behind it for what only that architecture has"
        )
    major, minor = int(match[1]), int(match[2])
    return (major, minor, match[3]) if match[3] else (major, minor)


def _figures(kernel: Shipped, outcome: Outcome) -> dict[str, Any]:
    of_kernel = {
        "kernel": kernel.name,
        "launched_by": kernel.launched_by,
        "architecture": architecture_name(outcome.capability),
        "threads": kernel.launched.threads,
        "constants": kernel.constants,
    }
    if isinstance(outcome, Refusal):
        return {**of_kernel, "refused": outcome.reason}
    return {**of_kernel, **_resources(outcome), **_hot_loop(outcome)}


def _resources(inspection: Inspection) -> dict[str, Any]:
    occupancy = inspection.occupancy
    return {
        "registers": inspection.registers,
        "spill_bytes": inspection.spill_bytes,
        "stack_bytes": inspection.stack_bytes,
        "shared_bytes": inspection.shared_bytes,
        "barriers": inspection.barriers,
        "instructions": len(inspection.program),
        "blocks": occupancy.blocks,
        "occupancy": occupancy.fraction,
        "limited_by": occupancy.limited_by,
    }


def _hot_loop(inspection: Inspection) -> dict[str, Any]:
    loop, prediction = inspection.hot_loop, inspection.prediction
    found = {
        "loops": len(inspection.loops),
        "loop_instructions": len(loop),
        "loop_mix": loop.mix(),
        "loop_operations": sum(map(operations, loop)),
        "loop_shared_bytes": sum(map(shared_bytes, loop)),
        "loop_global_bytes": sum(map(global_bytes, loop)),
    }
    if prediction is None:
        return found
    return {
        **found,
        "predicted": prediction.fraction,
        "peak": prediction.peak,
        "bound_by": prediction.bound_by,
    }
