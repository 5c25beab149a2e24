"""Cross entropy and CTC, defined, and their gradients.

What is chosen by a target or a label is chosen by comparing it with every class: an index that is no class
chooses nothing.
"""

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.spec.loss_problem import CrossEntropyProblem, CTCProblem

# --- Cross entropy: the dim of the classes last, as columns of rows ------------------------------


@defines(spec.cross_entropy_forward)
def cross_entropy_forward(
    p: CrossEntropyProblem, logits: Array, target: Array, weight: Array | None = None
) -> tuple[Array, Array | None]:
    """(1 − ε)·w_t·ℓ_t + (ε/C)·Σ_c w_c·ℓ_c with ℓ_c = ln s − (x_c − m), s = Σ_j e^(x_j − m)"""
    x = np.moveaxis(logits, p.axis, -1)
    shifted = x - np.max(x, axis=-1, keepdims=True)
    ln_sum = np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    # Products, not one sum of ln s, m and x_c: that would leave its order, and m + ln s, to the backend.
    each = 1.0 if weight is None else weight
    surprise = each * ln_sum - each * shifted
    chosen = target[..., None] == np.arange(p.classes)
    loss = np.sum(np.where(chosen, surprise, 0.0), axis=-1)
    if p.label_smoothing:
        spread = np.sum(surprise, axis=-1) * (p.label_smoothing / p.classes)
        loss = loss * (1.0 - p.label_smoothing) + spread
    loss = _of_rows(p, target, loss)
    if p.reduction != "none":
        loss = np.sum(loss)
    if p.reduction == "mean":
        loss = loss / _total_weight(p, target, weight)
    return loss, _stats(x) if p.stats else None


def _stats(x: Array) -> Array:
    """m + ln Σ e^(x − m); ±Inf are not subtracted."""
    largest = np.max(x, axis=-1)
    shift = np.where(np.isinf(largest), 0.0, largest)
    return shift + np.log(np.sum(np.exp(x - shift[..., None]), axis=-1))


@defines(spec.cross_entropy_backward)
def cross_entropy_backward(
    p: CrossEntropyProblem,
    logits: Array,
    target: Array,
    stats: Array,
    dloss: Array,
    weight: Array | None = None,
) -> Array:
    """g·[(1 − ε)·w_t·(p_c − δ_c) + (ε/C)·(p_c·W − w_c)] with p_c = e^(x_c − stats)"""
    powers = np.exp(np.moveaxis(logits, p.axis, -1) - stats[..., None])
    dx = np.where(target[..., None] == np.arange(p.classes), powers - 1.0, powers)
    if weight is not None:
        dx = _target_weight(p, target, weight)[..., None] * dx
    if p.label_smoothing:
        each, total = (1.0, float(p.classes)) if weight is None else (weight, np.sum(weight))
        spread = (powers * total - each) * (p.label_smoothing / p.classes)
        dx = dx * (1.0 - p.label_smoothing) + spread
    if p.reduction == "mean":
        dloss = dloss / _total_weight(p, target, weight)
    gradient = dloss[..., None] * dx if p.reduction == "none" else dloss * dx
    return np.moveaxis(_of_rows(p, target[..., None], gradient), -1, p.axis)


def _of_rows(p: CrossEntropyProblem, target: Array, x: Array) -> Array:
    """x of rows that have a class; 0 of rows that are ignored, NaN of the others."""
    return np.where(target == p.ignore_index, 0.0, np.where(_is_class(p, target), x, np.nan))


def _is_class(p: CrossEntropyProblem, target: Array) -> Array:
    return (target >= 0) & (target < p.classes)


def _target_weight(p: CrossEntropyProblem, target: Array, weight: Array) -> Array:
    """w_t, 0 for a target that is no class."""
    chosen = target[..., None] == np.arange(p.classes)
    return np.sum(np.where(chosen, weight, 0.0), axis=-1)


def _total_weight(p: CrossEntropyProblem, target: Array, weight: Array | None) -> Array:
    """Σ w_t over the rows that are not ignored."""
    counts = (target != p.ignore_index) & _is_class(p, target)
    if weight is None:
        return float(np.count_nonzero(counts))
    return np.sum(np.where(counts, _target_weight(p, target, weight), 0.0))


# --- CTC ------------------------------------------------------------------------------------------
# All numbers are logarithms. α, β and what is made of them are [N, S], for each step.


@defines(spec.ctc_loss)
def ctc_loss(
    p: CTCProblem, activations: Array, labels: Array, label_lengths: Array, input_lengths: Array
) -> tuple[Array, Array | None]:
    """costs = −ln p;  gradients = y_k − Σ_{s: z_s = k} e^(α(s) + β(s) − ln p)"""
    ln_y = _log_softmax(activations) if p.norm_mode == "softmax" else np.log(activations)
    classes = np.arange(p.classes)
    is_class = (labels[..., None] == classes) & (classes != p.blank)
    states = _states(p, is_class)
    legal, steps = _legal(p, is_class, label_lengths, input_lengths)
    inside = np.arange(p.states) <= 2 * label_lengths[:, None]
    ln_z = np.where(inside, np.take_along_axis(ln_y, states[None], axis=2), -np.inf)
    alphas, ln_p = _forward(p, ln_z, states, label_lengths, steps)
    ln_p = np.where(legal, ln_p, np.nan)
    if not p.gradients:
        return -ln_p, None
    betas = _backward(p, ln_z, states, label_lengths, steps)
    shares = np.exp(alphas + betas - ln_p[:, None])
    of_class = np.where(states[..., None] == classes, np.ones_like(ln_p)[:, None, None], 0.0)
    gradients = np.exp(ln_y) - np.einsum("tns,nsk->tnk", shares, of_class)
    nothing = 0.0 if p.oob_gradients == "zero" else np.nan
    gradients = np.where((ln_p == -np.inf)[:, None], nothing, gradients)
    counts = np.arange(p.steps)[:, None] < steps
    return -ln_p, np.where(counts[..., None], gradients, 0.0)


def _forward(
    p: CTCProblem, ln_z: Array, states: Array, label_lengths: Array, steps: Array
) -> tuple[Array, Array]:
    """α_t(s), what the first t + 1 steps of all alignments that are in s then add up to; and ln p."""
    skips = _skips(states)
    alpha = np.where(np.arange(p.states) == 0, 0.0, _nothing(p, ln_z))
    alphas = []
    for t in range(p.steps):
        came = np.logaddexp(alpha, _moved(alpha, 1))
        came = np.logaddexp(came, np.where(skips, _moved(alpha, 2), -np.inf))
        alpha = np.where((t < steps)[:, None], ln_z[t] + came, alpha)
        alphas.append(alpha)
    last = np.where(_ends(p, label_lengths), alpha, -np.inf)
    return _of_steps(alphas, ln_z), np.logaddexp.reduce(last, axis=1)


def _backward(
    p: CTCProblem, ln_z: Array, states: Array, label_lengths: Array, steps: Array
) -> Array:
    """β_t(s), what the steps after t of all alignments that are in s then add up to."""
    skipped = np.roll(_skips(states), -2, axis=1)
    beta = np.where(_ends(p, label_lengths), 0.0, _nothing(p, ln_z))
    betas = []
    for t in reversed(range(p.steps)):
        betas.append(beta)
        after = ln_z[t] + beta
        goes = np.logaddexp(after, _moved(after, -1))
        goes = np.logaddexp(goes, np.where(skipped, _moved(after, -2), -np.inf))
        beta = np.where((t < steps)[:, None], goes, beta)
    return _of_steps(betas[::-1], ln_z)


def _log_softmax(x: Array) -> Array:
    shifted = x - np.max(x, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def _states(p: CTCProblem, is_class: Array) -> Array:
    """z: the labels, with a blank before, between and behind them."""
    states = np.full((p.batch, p.states), p.blank)
    states[:, 1::2] = np.argmax(is_class, axis=2)
    return states


def _legal(
    p: CTCProblem, is_class: Array, label_lengths: Array, input_lengths: Array
) -> tuple[Array, Array]:
    """Which samples have labels and lengths that exist; and the steps of each, all where they do not."""
    within = np.arange(p.longest) < label_lengths[:, None]
    legal = np.all(np.any(is_class, axis=2) | ~within, axis=1)
    legal &= (label_lengths >= 0) & (label_lengths <= p.longest)
    has_steps = (input_lengths >= 0) & (input_lengths <= p.steps)
    return legal & has_steps, np.where(has_steps, input_lengths, float(p.steps))


def _skips(states: Array) -> Array:
    """Which states may be reached from two before: labels that differ from the one before."""
    skips = np.zeros(states.shape, np.bool_)
    skips[:, 2:] = states[:, 2:] != states[:, :-2]
    return skips


def _ends(p: CTCProblem, label_lengths: Array) -> Array:
    """The states in which a sample may end: the last blank and the last label."""
    behind = 2 * label_lengths[:, None] - np.arange(p.states)
    return (behind == 0) | (behind == 1)


def _moved(x: Array, by: int) -> Array:
    """Each state's number taken so many states further on, and nothing where none comes from."""
    size = min(abs(by), x.shape[1])
    nothing = np.full_like(x[:, :size], -np.inf)
    parts = [nothing, x[:, : x.shape[1] - size]] if by > 0 else [x[:, size:], nothing]
    return np.concatenate(parts, axis=1)


def _nothing(p: CTCProblem, like: Array) -> Array:
    """The logarithm of 0 for every state."""
    return np.full_like(like, -np.inf, shape=(p.batch, p.states))


def _of_steps(found: list[Array], like: Array) -> Array:
    """[T, N, S]; of no steps it is empty, as ``like`` is then."""
    return np.stack(found) if found else like
