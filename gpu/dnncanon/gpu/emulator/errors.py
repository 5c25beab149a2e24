"""What the emulator raises."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "EmulatorError",
    "KernelError",
    "LaunchError",
    "UnsupportedKernel",
    "UnsupportedPlatform",
]


class EmulatorError(Exception):
    """Base of all the emulator's errors."""


class UnsupportedPlatform(EmulatorError):
    """The emulator does not run on this machine, or with these versions."""


class UnsupportedKernel(EmulatorError):
    """A kernel uses something that the emulator cannot execute; the message says what."""


class LaunchError(EmulatorError, ValueError):
    """Grid, block, shared memory or arguments are not what a GPU would accept."""


@dataclass(frozen=True)
class Location:
    """Where something happened: block and thread indices, and the chain of source lines."""

    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    line: str


class KernelError(EmulatorError, RuntimeError):
    """A kernel did something wrong, and its launch was abandoned. Arrays are left as they were.

    `kernel` is its name, `block` and `thread` the indices of the offender, `line` its source line
    ("file:line", with the chain of inlined calls), `detail` the whole story.
    """

    def __init__(
        self,
        kernel: str,
        what: str,
        block: tuple[int, int, int],
        thread: tuple[int, int, int],
        line: str,
        detail: str = "",
    ) -> None:
        self.kernel = kernel
        self.what = what
        self.block = block
        self.thread = thread
        self.line = line
        self.detail = detail
        super().__init__(
            f"{kernel}: {what}: block {block}, thread {thread}, at {line}"
            + (f"\n{detail}" if detail else "")
        )
