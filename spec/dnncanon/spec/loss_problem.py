"""What a call of a loss comes to: its problem, the types of its outputs, and test data that belong together."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncanon.spec.attributes import as_integer, as_real
from dnncanon.spec.primitive import Arguments
from dnncanon.spec.softmax import stats_dtype
from dnncanon.spec.tensors import Shape, TensorType

REDUCTIONS = ("mean", "sum", "none")
NORM_MODES = ("softmax", "none")
OOB_GRADIENTS = ("zero", "skip")

# --- Cross entropy --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CrossEntropyProblem:
    """One cross entropy, forward or backward: ``axis`` is the dim of the classes and not negative."""

    dtype: str
    shape: Shape
    axis: int
    weighted: bool
    ignore_index: int
    label_smoothing: float
    reduction: str
    stats: bool = False

    @property
    def classes(self) -> int:
        return self.shape[self.axis]

    @property
    def target_shape(self) -> Shape:
        """The shape without the classes: one element for each row."""
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    @property
    def loss_shape(self) -> Shape:
        return self.target_shape if self.reduction == "none" else ()

    @property
    def wide(self) -> str:
        """The dtype of what is no logit."""
        return stats_dtype(self.dtype)


def without_axis(a: Arguments) -> Shape:
    """The shape of the logits without the dim of the classes."""
    shape = list(a.tensors["logits"].shape)
    del shape[as_integer(a.attributes["axis"])]
    return tuple(shape)


def resolve_cross_entropy(a: Arguments) -> CrossEntropyProblem:
    """The cross entropy that legal arguments describe."""
    logits, given = a.tensors["logits"], a.attributes
    return CrossEntropyProblem(
        dtype=logits.dtype,
        shape=logits.shape,
        axis=as_integer(given["axis"]) % logits.rank,
        weighted="weight" in a.tensors,
        ignore_index=as_integer(given["ignore_index"]),
        label_smoothing=as_real(given["label_smoothing"]),
        reduction=given["reduction"],
        stats=given.get("return_stats", False),
    )


def loss_and_stats(p: CrossEntropyProblem) -> tuple[TensorType | None, ...]:
    stats = TensorType(p.wide, p.target_shape)
    return TensorType(p.wide, p.loss_shape), stats if p.stats else None


def some_ignored(p: CrossEntropyProblem, data: dict[str, Any]) -> dict[str, Any]:
    """One target in four ignored and, where no sum would spread it, one in 64 that is no class."""
    place = np.arange(data["target"].size).reshape(data["target"].shape)
    target = np.where(place % 4 == 2, float(p.ignore_index), data["target"])
    if p.reduction == "none":
        target = np.where(place % 64 == 41, float(p.classes), target)
    return {**data, "target": target}


def some_far_away(p: CrossEntropyProblem, data: dict[str, Any]) -> dict[str, Any]:
    """The same, and one row in eight far from 0: a loss must not feel it."""
    place = np.arange(data["target"].size).reshape(data["target"].shape)
    shift = np.where(place % 8 == 4, 1024.0, 0.0)
    return {**some_ignored(p, data), "logits": data["logits"] + np.expand_dims(shift, p.axis)}


def with_stats(p: CrossEntropyProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Stats of the logits, as the forward pass puts them out."""
    x = data["logits"]
    with np.errstate(all="ignore"):
        largest = np.max(x, axis=p.axis, keepdims=True)
        shift = np.where(np.isinf(largest), 0.0, largest)
        total = shift + np.log(np.sum(np.exp(x - shift), axis=p.axis, keepdims=True))
    return {**some_ignored(p, data), "stats": total.reshape(p.target_shape)}


# --- CTC ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CTCProblem:
    """One CTC loss of T steps, N samples and A classes, and of labels padded to L."""

    dtype: str
    steps: int
    batch: int
    classes: int
    longest: int
    label_dtype: str
    norm_mode: str
    blank: int
    oob_gradients: str
    gradients: bool

    @property
    def states(self) -> int:
        """S = 2·L + 1: the labels, with a blank before, between and behind them."""
        return 2 * self.longest + 1

    @property
    def flops(self) -> int:
        """A logarithm, an exponential and two sums of a class; two sums of exponentials of a state."""
        return self.steps * self.batch * (4 * self.classes + 12 * self.states)


def resolve_ctc(a: Arguments) -> CTCProblem:
    """The CTC loss that legal arguments describe."""
    activations, given = a.tensors["activations"], a.attributes
    steps, batch, classes = activations.shape
    return CTCProblem(
        dtype=activations.dtype,
        steps=steps,
        batch=batch,
        classes=classes,
        longest=a.tensors["labels"].shape[1],
        label_dtype=a.tensors["labels"].dtype,
        norm_mode=given["norm_mode"],
        blank=as_integer(given["blank"]),
        oob_gradients=given["oob_gradients"],
        gradients=given["return_gradients"],
    )


def costs_and_gradients(p: CTCProblem) -> tuple[TensorType | None, ...]:
    gradients = TensorType(p.dtype, (p.steps, p.batch, p.classes))
    return TensorType(stats_dtype(p.dtype), (p.batch,)), gradients if p.gradients else None


def legal_samples(p: CTCProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Probabilities that are such; labels other than the blank, −1 behind them.

    One sample in four has all labels and all steps; sample 41 has no labels that exist.
    """
    whole = np.arange(p.batch) % 4 == 0
    labels, lengths = data["labels"], np.where(whole, float(p.longest), data["label_lengths"])
    steps = np.where(whole, float(p.steps), data["input_lengths"])
    labels = np.where(labels == p.blank, float((p.blank + 1) % p.classes), labels)
    if p.classes == 1:
        lengths = np.zeros_like(lengths)
    labels = np.where(np.arange(p.longest) < lengths[:, None], labels, -1.0)
    illegal = np.arange(p.batch) % 64 == 41
    if p.longest:
        lengths = np.where(illegal, 1.0, lengths)
        labels = np.where(illegal[:, None], float(p.classes), labels)
    activations = data["activations"]
    if p.norm_mode == "none":
        with np.errstate(all="ignore"):
            powers = np.exp(activations - np.max(activations, axis=2, keepdims=True))
            activations = powers / np.sum(powers, axis=2, keepdims=True)
    return {
        "activations": activations,
        "labels": labels,
        "label_lengths": lengths,
        "input_lengths": steps,
    }
