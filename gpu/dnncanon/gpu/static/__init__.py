"""The static report: what the compiler makes of a kernel, told without a GPU.

>>> report = inspect(kernel, signature, cc=(9, 0, "a"), threads=256)
>>> print(report)
>>> report.hot_loop.instructions_per("HMMA")
"""

from dnncanon.gpu.static.inspection import Inspection, inspect
from dnncanon.gpu.static.sass import Code, Instruction, Program
from dnncanon.gpu.static.toolchain import Capability, ToolchainError

__all__ = [
    "Capability",
    "Code",
    "Inspection",
    "Instruction",
    "Program",
    "ToolchainError",
    "inspect",
]
