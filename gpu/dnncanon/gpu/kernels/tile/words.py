"""The words that operands are multiplied as, and how elements of tensors become them."""

from collections.abc import Callable
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.runtime.device_code import device_function, types

_WORDS = {
    "float64": (types.float64, 8, ptx.store_shared_f64),
    "float32": (types.float32, 4, ptx.store_shared_u32),
    "int32": (types.int32, 4, ptx.store_shared_u32),
    "float16": (types.uint16, 2, ptx.store_shared_u16),
    "bfloat16": (types.uint16, 2, ptx.store_shared_u16),
    "int8": (types.int8, 1, ptx.store_shared_u8),
}
"""Type in registers, bytes, and the store to shared memory."""


def stored(word: str) -> str:
    """The type in shared memory of what is multiplied: TF32 is made of float32 in registers."""
    return "float32" if word.startswith("tf32") else word


def itemsize(word: str) -> int:
    return _WORDS[word][1]


def number(word: str) -> Any:
    """The type in registers."""
    return _WORDS[word][0]


def store_word(word: str) -> tuple[Any, Callable[..., None]]:
    """A zero, and store(shared address, word)."""
    kind, _, store = _WORDS[word]
    return kind(0), store


def load_word(word: str) -> Callable[[Any], Any]:
    """load(shared address) -> word, of 4 or 8 bytes."""
    return _load_int32 if word == "int32" else _LOADS[word]


@device_function
def _load_int32(address: Any) -> Any:
    return types.int32(ptx.load_shared_u32(address))


_LOADS = {"float32": ptx.load_shared_f32, "float64": ptx.load_shared_f64}


@cache
def converter(source: str, target: str) -> Callable[[Any], Any]:
    """The device function from an element in memory to the word: exact."""
    if source == target:
        return _as_it_is
    to_sum, (kind, *_) = ELEMENTS[source].to_sum, _WORDS[target]
    from_number = {"float16": ptx.f32_to_f16, "bfloat16": ptx.f32_to_bf16}.get(target, kind)

    @device_function
    def convert(element: Any) -> Any:
        return from_number(types.float32(to_sum(element)))

    @device_function
    def widen(element: Any) -> Any:
        return kind(to_sum(element))

    return convert if target in ("float16", "bfloat16") else widen


@device_function
def _as_it_is(element: Any) -> Any:
    return element
