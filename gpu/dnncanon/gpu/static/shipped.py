"""Which kernels the library has: those that it launches, found by calling it.

Each primitive is called for each dtype with arguments drawn from its domain, by all of its algorithms and in
all of its numerics classes, on a device that only notes the launches. There is no list to keep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

import dnncanon.gpu as gpu
from dnncanon.gpu.library import functions
from dnncanon.gpu.static.recording import Launched, recording
from dnncanon.spec import DTYPES, Call, Primitive, Scale, TensorType, Unsupported, primitives

DRAWS = 60
"""Calls of each primitive × dtype."""

SCALE = Scale(batch=256, channels=512, extent=256, multiplications=1 << 38)
"""Of the calls, as large as layers of networks: which kernels are launched depends on it."""

MOST_BYTES = 1 << 32
"""Of a call, which take addresses and no memory."""

ALIGNED = 16
"""Extents from this on are multiples of it, so that rows are aligned to 16 bytes in every dtype."""

DEFAULT_DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Shipped:
    """A kernel, and the primitives that launch it, each with the dtype: ``softmax_forward float32``."""

    launched: Launched
    launched_by: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.launched.kernel.name

    @property
    def constants(self) -> dict[str, int | str]:
        """What its factory has fixed, by the names that the kernel's source has for it."""
        function = self.launched.kernel.function
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        found = {name: _constant(cell.cell_contents) for name, cell in cells}
        return {name: value for name, value in found.items() if value not in (None, name)}


def _constant(value: Any) -> int | str | None:
    """A number, a text, or the name of a type or of a device function; None for anything else."""
    if isinstance(value, int | str):
        return value
    function = getattr(value, "py_func", None)
    return getattr(value if function is None else function, "__name__", None)


def shipped(
    names: Sequence[str] = (), dtypes: Sequence[str] = DEFAULT_DTYPES, *, everything: bool = False
) -> list[Shipped]:
    """The kernels of the primitives ``names``, or of all.

    A kernel here is one set of compile-time constants. Of those that come of one function and that a
    primitive launches for one dtype, the one of the largest call is taken; with ``everything`` all are, and
    calls are drawn without alignment too. A primitive that has none of ``dtypes`` is called for the first
    one that it has.
    """
    launched_by: dict[Launched, list[str]] = {}
    for primitive in (primitives()[name] for name in names or functions()):
        for dtype in _dtypes(primitive, dtypes):
            sizes = _sizes(primitive, dtype, everything)
            for launched in sizes if everything else _largest(sizes):
                launched_by.setdefault(launched, []).append(f"{primitive.name} {dtype}")
    return [Shipped(launched, tuple(by)) for launched, by in launched_by.items()]


def _dtypes(primitive: Primitive[Any], wanted: Sequence[str]) -> Sequence[str]:
    offered = [row.dtype for row in primitive.dtypes]
    return [dtype for dtype in offered if dtype in wanted] or offered[:1]


def _sizes(primitive: Primitive[Any], dtype: str, everything: bool) -> dict[Launched, int]:
    """The kernels of a primitive, each with the flops and bytes of the largest call that launches it."""
    sizes: dict[Launched, int] = {}
    for steps in (ALIGNED, 1) if everything else (ALIGNED,):
        for index in range(DRAWS):
            draw = _Draw(f"{primitive.name} {dtype} {index}", steps)
            call = primitive.bind_arguments(primitive.domain(draw, SCALE, dtype))
            if call.least_bytes > MOST_BYTES:
                continue
            size = call.flops + call.least_bytes
            for launched in _launches(call):
                sizes[launched] = max(size, sizes.get(launched, 0))
    return sizes


def _launches(call: Call[Any]) -> list[Launched]:
    """Of a call by each algorithm, in each numerics class that it has."""
    primitive, attributes = call.primitive, call.arguments.attributes
    tensors = [_array(call.arguments.tensors.get(tensor.name)) for tensor in primitive.inputs]
    function = functions()[primitive.name]
    with recording() as launches:
        for algorithm in gpu.algorithms(primitive.name, *tensors, **attributes):
            for numerics in primitive.numerics(call.dtype):
                with suppress(Unsupported):
                    function(*tensors, algorithm=algorithm.name, math=numerics, **attributes)
    return launches


def _largest(sizes: Mapping[Launched, int]) -> Iterable[Launched]:
    """Of each kernel function the one of the largest call; the first of equals."""
    variants: dict[str, list[Launched]] = defaultdict(list)
    for launched in sizes:
        variants[launched.kernel.name].append(launched)
    return [max(group, key=lambda launched: sizes[launched]) for group in variants.values()]


def _array(tensor: TensorType | None) -> Any:
    """Memory of the right kind, which nobody will look at."""
    return None if tensor is None else np.empty(tensor.shape, DTYPES[tensor.dtype].numpy)


class _Draw:
    """Choices for a domain, the same for a seed on every machine; large integers in steps."""

    def __init__(self, seed: str, steps: int) -> None:
        self._random = Random(seed)
        self._steps = steps

    def integer(self, low: int, high: int) -> int:
        drawn = low + self._below(high - low + 1)
        return max(low, drawn - drawn % self._steps) if drawn >= self._steps else drawn

    def choice(self, options: tuple[Any, ...]) -> Any:
        return options[self._below(len(options))]

    def _below(self, count: int) -> int:
        return int(self._random.random() * count)
