"""Memory: whether a case fits, told before it is run, and how much a worker may have at most."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from dnncanon.conformance.case import Case
from dnncanon.spec import DTYPES, span

# Copies of each element that a case needs at its peak: as float64 in the accuracy model, which carries
# value, variance, squares and terms and makes temporaries of them. Measured as the peak resident size of
# `dnncanon run --backend torch --workload unet3d --primitive conv_forward --dtype float32`: 16.4 GB, for
# its largest layer this formula says 16.8.
_COPIES_OF_INPUT = 6
_COPIES_OF_OUTPUT = 14


def bytes_needed(case: Case) -> int:
    """About how much memory the case takes at its peak."""
    inputs = case.arguments.tensors.values()
    outputs = case.call.outputs
    elements = _COPIES_OF_INPUT * sum(t.size for t in inputs)
    elements += _COPIES_OF_OUTPUT * sum(t.size for t in outputs)
    buffers = sum(span(t.shape, t.element_strides) * DTYPES[t.dtype].itemsize for t in inputs)
    return 8 * elements + 3 * buffers


def bytes_available() -> int:
    """How much memory this process can still have: of the system's, and of what it is allowed."""
    free = _bytes_free()
    allowed, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return free if allowed == resource.RLIM_INFINITY else min(free, max(0, allowed - bytes_held()))


def _bytes_free() -> int:
    """What the system says it has available, or all there is if it does not say."""
    found = _kilobytes("/proc/meminfo", "MemAvailable")
    if found is not None:
        return 1024 * found
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def bytes_held() -> int:
    """Memory that this process has allocated for data, touched or not; 0 where the system is mute."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _kilobytes(path: str, name: str) -> int | None:
    try:
        lines = Path(path).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))
    except (OSError, StopIteration):
        return None


def limit(bytes_allowed: int) -> None:
    """Have allocations fail, with MemoryError in Python, beyond so much data in this process.

    This is RLIMIT_DATA: private writable memory, touched or not. Address space that is merely reserved,
    of which a CUDA context has terabytes, does not count, but what CUDA pins or maps may.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        bytes_allowed = min(bytes_allowed, most)
    resource.setrlimit(resource.RLIMIT_DATA, (bytes_allowed, most))


@contextlib.contextmanager
def unlimited() -> Iterator[None]:
    """Lift the limit within the block, to be able to tell that it was reached."""
    allowed, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, most))


def volunteer_for_the_killer() -> None:
    """If the system runs out of memory nevertheless, have it end this process rather than another."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def shortage(case: Case) -> str:
    """Why the case cannot be run for want of memory; empty if it can."""
    needed = bytes_needed(case)
    if needed < 1 << 28:  # always there, and asking takes time
        return ""
    available = bytes_available()
    if needed <= available:
        return ""
    return f"needs about {needed / 2**30:,.1f} GiB of memory, and {available / 2**30:,.1f} are free"
