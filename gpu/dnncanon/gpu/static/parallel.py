"""Many kernels at once: compiled in processes of their own, for several architectures each."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dnncanon.gpu.static.inspection import Inspection, inspect
from dnncanon.gpu.static.shipped import Shipped
from dnncanon.gpu.static.toolchain import Capability, ToolchainError


@dataclass(frozen=True)
class Refusal:
    """Why the toolchain does not compile a kernel for an architecture."""

    capability: Capability
    reason: str


Outcome = Inspection | Refusal

_kernels: Sequence[Shipped] = ()
"""What the processes take up; kernels are closures, which can be inherited but not sent."""


def inspect_all(
    kernels: Sequence[Shipped], capabilities: Sequence[Capability], jobs: int = 1
) -> Iterator[tuple[Shipped, list[Outcome]]]:
    """Each kernel with its outcome for each capability, as they come.

    More than one job needs a platform that forks; the processes are started before this returns.
    """
    if jobs == 1 or "fork" not in multiprocessing.get_all_start_methods():
        return ((kernel, _outcomes(kernel, capabilities)) for kernel in kernels)
    global _kernels
    _kernels = kernels
    pool = multiprocessing.get_context("fork").Pool(jobs)
    return _collected(pool, capabilities)


def _collected(
    pool: multiprocessing.pool.Pool, capabilities: Sequence[Capability]
) -> Iterator[tuple[Shipped, list[Outcome]]]:
    tasks = [(index, tuple(capabilities)) for index in range(len(_kernels))]
    with pool:
        for index, outcomes in pool.imap_unordered(_task, tasks):
            yield _kernels[index], outcomes


def _task(task: tuple[int, tuple[Capability, ...]]) -> tuple[int, list[Outcome]]:
    index, capabilities = task
    return index, _outcomes(_kernels[index], capabilities)


def _outcomes(kernel: Shipped, capabilities: Sequence[Capability]) -> list[Outcome]:
    return [_outcome(kernel, capability) for capability in capabilities]


def _outcome(kernel: Shipped, capability: Capability) -> Outcome:
    launched = kernel.launched
    try:
        return inspect(
            launched.kernel,
            launched.signature,
            capability,
            threads=launched.threads,
            dynamic_shared_bytes=launched.dynamic_shared_bytes,
        )
    except ToolchainError as error:
        return Refusal(capability, str(error))
