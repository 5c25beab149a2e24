"""Whether a case fits into memory: told before it is run, not by the kernel's out-of-memory killer."""

import os
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
    """How much memory can still be had: what the system says, or all there is if it does not."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(
            1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")
        )
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def shortage(case: Case) -> str:
    """Why the case cannot be run for want of memory; empty if it can."""
    needed = bytes_needed(case)
    if needed < 1 << 28:  # always there, and asking takes time
        return ""
    available = bytes_available()
    if needed <= available:
        return ""
    return f"needs about {needed / 2**30:,.1f} GiB of memory, and {available / 2**30:,.1f} are free"
