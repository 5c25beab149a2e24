"""Data movement by torch's functions, on words as wide as the elements: few of them know all element types."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch

from dnncanon import spec
from dnncanon.spec import Call, Primitive, Unsupported
from dnncanon.spec.movement_problem import (
    BandProblem,
    BlockProblem,
    ConcatProblem,
    LayoutProblem,
    PadProblem,
    ReshapeProblem,
    SliceProblem,
    TransposeProblem,
    VectorProblem,
)

Tensor: TypeAlias = torch.Tensor
P = TypeVar("P")

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _moves(primitive: Primitive[P]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function of a problem and words, to be called like the primitive."""

    def decorate(move: Callable[..., Any]) -> Callable[..., Any]:
        def function(*tensors: Tensor, **attributes: Any) -> Any:
            call = primitive.bind(*tensors, **attributes)
            made = move(call.problem, *map(_as_words, tensors))
            several = made if isinstance(made, tuple) else (made,)
            return call.results(_new(words, tensors, call) for words in several)

        return function

    return decorate


def _as_words(x: Tensor) -> Tensor:
    return x.view(_WORDS[x.element_size()])


def _new(words: Tensor, tensors: tuple[Tensor, ...], call: Call[Any]) -> Tensor:
    """The words as elements again, in memory of their own."""
    return words.clone(memory_format=torch.contiguous_format).view(tensors[0].dtype)


@_moves(spec.transform_tensor)
def transform_tensor(p: LayoutProblem, x: Tensor) -> Tensor:
    return x


@_moves(spec.vectorize_channels)
def vectorize_channels(p: VectorProblem, x: Tensor) -> Tensor:
    return x.unflatten(1, (p.shape[1] // p.width, p.width)).movedim(2, -1)


@_moves(spec.unvectorize_channels)
def unvectorize_channels(p: VectorProblem, x: Tensor) -> Tensor:
    return x.movedim(-1, 2).reshape(p.shape)


@_moves(spec.pad)
def pad(p: PadProblem, x: Tensor) -> Tensor:
    if p.value != 0.0:
        raise Unsupported(
            "words are padded with zeros here; another number is another word in each type"
        )
    widths = [width for pair in zip(p.pre, p.post, strict=True) for width in pair[::-1]]
    return torch.nn.functional.pad(x, widths[::-1])


@_moves(spec.crop)
def crop(p: PadProblem, x: Tensor) -> Tensor:
    for dim, (pre, extent) in enumerate(zip(p.pre, p.shape, strict=True)):
        x = x.narrow(dim, pre, extent)
    return x


@_moves(spec.space_to_depth)
def space_to_depth(p: BlockProblem, x: Tensor) -> Tensor:
    if len(set(p.block)) > 1 or len(p.block) != 2 or p.order != "CRD" or x.numel() == 0:
        raise Unsupported("torch has pixel_unshuffle, of square blocks in two dims, with order CRD")
    return torch.nn.functional.pixel_unshuffle(x, p.block[0])


@_moves(spec.depth_to_space)
def depth_to_space(p: BlockProblem, x: Tensor) -> Tensor:
    if len(set(p.block)) > 1 or len(p.block) != 2 or p.order != "CRD" or x.numel() == 0:
        raise Unsupported("torch has pixel_shuffle, of square blocks in two dims, with order CRD")
    return torch.nn.functional.pixel_shuffle(x, p.block[0])


@_moves(spec.concat_forward)
def concat_forward(p: ConcatProblem, *parts: Tensor) -> Tensor:
    return torch.cat(parts, p.axis)


@_moves(spec.concat_backward)
def concat_backward(p: ConcatProblem, dy: Tensor) -> tuple[Tensor, ...]:
    return tuple(dy.split(list(p.sizes), p.axis))


@_moves(spec.slice_forward)
def slice_forward(p: SliceProblem, x: Tensor) -> Tensor:
    return x[tuple(map(slice, p.start, p.limit, p.stride))]


@_moves(spec.slice_backward)
def slice_backward(p: SliceProblem, dy: Tensor) -> Tensor:
    dx = dy.new_zeros(p.shape)
    dx[tuple(map(slice, p.start, p.limit, p.stride))] = dy
    return dx


@_moves(spec.transpose)
def transpose(p: TransposeProblem, x: Tensor) -> Tensor:
    return x.permute(p.permutation)


@_moves(spec.reshape)
def reshape(p: ReshapeProblem, x: Tensor) -> Tensor:
    return x.reshape(p.to)


@_moves(spec.contract_band_matrix)
def contract_band_matrix(p: BandProblem, x: Tensor) -> Tensor:
    raise Unsupported("torch has no band matrices")


@_moves(spec.expand_band_matrix)
def expand_band_matrix(p: BandProblem, x: Tensor) -> Tensor:
    raise Unsupported("torch has no band matrices")
