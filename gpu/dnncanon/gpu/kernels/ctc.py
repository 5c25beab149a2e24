"""CTC: a block follows the alignments of a sample, forward and back; a team writes the gradients of a step.

All numbers are logarithms, in the type of sums. A block keeps α of every step and state in the workspace,
and on the way back, where β is known from the step after, makes of it the share e^(α + β − ln p) of
the alignments that are in the state. Its threads take the states in turn; a barrier parts the steps. So that
no two threads add to one class, a label's shares are added up by its first occurrence, along a chain of the
next ones, and the blank's in a tree: the order is always the same.
"""

from functools import cache
from math import exp, inf, log, nan
from typing import Any

from dnncanon.gpu.kernels.cross_entropy import logarithms
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.integers import integer_at, is_long, words_of
from dnncanon.gpu.kernels.reduction import reduce, workspace_bytes
from dnncanon.gpu.kernels.rows import THREADS, WARP, larger, team_of, team_sum
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.primitive import Launch, Layouts
from dnncanon.gpu.runtime import DeviceArray, Kernel, Strided, blocks_for, kernel, launch, origin
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.spec.loss_problem import CTCProblem

_int64, _uint64 = types.int64, types.uint64

BLOCKS = 2048
"""Blocks that fill any GPU."""


# --- Launches -------------------------------------------------------------------------------------


def run(call: Launch[CTCProblem]) -> None:
    """The logarithms of the classes' sums, the alignments, the gradients."""
    p = call.problem
    scratch = _scratch(p, call.inputs["activations"])
    room, rest = scratch.arrays(call.workspace), scratch.rest(call.workspace)
    activations = call.inputs["activations"]
    if p.norm_mode == "softmax" and p.steps > 0:
        sums = [room["top"], room["power"]]
        reduce(logarithms(p.dtype), [activations], sums, (2,), workspace=rest, stream=call.stream)
    integers = [call.inputs[name] for name in ("labels", "label_lengths", "input_lengths")]
    read = (activations, *map(words_of, integers), room["top"], room["power"])
    sizes = p.steps, p.batch, p.classes, p.longest, p.blank, is_long(integers[0])
    _launch_alignments(call, read, room, sizes)
    if p.gradients and p.steps > 0:
        _launch_gradients(call, read, room, sizes)


def _launch_alignments(
    call: Launch[CTCProblem], read: Any, room: dict[str, DeviceArray], sizes: Any
) -> None:
    p, costs = call.problem, call.outputs["costs"]
    written = (costs, room["ln_p"], room["alphas"], room["after"], room["chains"])
    flags = int(p.norm_mode == "softmax"), int(p.gradients), origin(costs), costs.strides[0]
    chosen = alignments(p.dtype)
    args = (_arguments(read), _arguments(written), sizes, _places_of(read[:4]), flags)
    launch(chosen, min(p.batch, BLOCKS), _threads(p.states), args, stream=call.stream)


def _launch_gradients(
    call: Launch[CTCProblem], read: Any, room: dict[str, DeviceArray], sizes: Any
) -> None:
    p, gradients = call.problem, call.outputs["gradients"]
    width = _threads(max(p.classes, p.longest + 1))
    given = (room["ln_p"], room["alphas"], room["chains"])
    flags = int(p.norm_mode == "softmax"), int(p.oob_gradients == "skip"), width
    chosen = class_gradients(p.dtype)
    to = (origin(gradients), *gradients.strides)
    args = (_arguments((*read, *given)), gradients, sizes, _places_of(read[:4]), to, flags)
    grid = min(BLOCKS, blocks_for(p.steps * p.batch, THREADS // width))
    launch(chosen, grid, THREADS, args, stream=call.stream)


def _threads(items: int) -> int:
    """A power of two, of a warp at least and a block at most, for so many items."""
    return max(WARP, min(THREADS, 1 << max(0, items - 1).bit_length()))


def _arguments(arrays: Any) -> Any:
    return tuple(array.argument for array in arrays)


def _places_of(arrays: Any) -> Any:
    """Origin and strides of each array."""
    return tuple((origin(array), *array.strides) for array in arrays)


def scratch_bytes(layouts: Layouts[CTCProblem]) -> int:
    return _scratch(layouts.problem, layouts.inputs["activations"]).nbytes


def _scratch(p: CTCProblem, activations: Strided) -> Scratch:
    """Where α is needed for its logarithms only, two steps of it are kept."""
    wide = ELEMENTS[p.dtype].sum_dtype.name
    softmax = p.norm_mode == "softmax"
    sums = ((p.steps, p.batch) if softmax else (0, 0), wide)
    rest = workspace_bytes(logarithms(p.dtype), activations, (2,), p.dtype) if softmax else 0
    kept = p.steps if p.gradients else 2
    both = 2 if p.gradients else 0
    return Scratch(
        rest,
        top=sums,
        power=sums,
        ln_p=((p.batch,), wide),
        alphas=((p.batch, kept, p.states), wide),
        after=((p.batch, both, p.states), wide),
        chains=((p.batch, p.longest), "int64"),
    )


# --- Device functions -----------------------------------------------------------------------------


@device_function
def ln_sum(a: Any, b: Any, c: Any) -> Any:
    """ln(e^a + e^b + e^c)"""
    top = larger(larger(a, b), c)
    if top == -inf:
        return top
    return top + log(exp(a - top) + exp(b - top) + exp(c - top))


@device_function
def _state_class(labels: Any, at: Any, step: Any, long: Any, blank: Any, state: Any) -> Any:
    """The class of a state of the sample whose labels begin ``at`` a place."""
    if state % 2 == 0:
        return _int64(blank)
    return integer_at(labels, at + state // 2 * step, long)


@device_function
def _skips(labels: Any, at: Any, step: Any, long: Any, state: Any) -> Any:
    """Whether a state may be reached from two before: by a label that differs from the one before."""
    if state % 2 == 0 or state < 3:
        return False
    place = at + state // 2 * step
    return integer_at(labels, place, long) != integer_at(labels, place - step, long)


@cache
def _ln_y_of(dtype: str) -> Any:
    """ln y of a class at a step."""
    to_sum = ELEMENTS[dtype].to_sum

    @device_function
    def ln_y(x: Any, at: Any, top: Any, power: Any, row: Any, is_softmax: Any) -> Any:
        value = to_sum(x[_uint64(at)])
        if is_softmax:
            return (value - top[_uint64(row)]) - power[_uint64(row)]
        return log(value)

    return ln_y


# --- Alignments -----------------------------------------------------------------------------------


@cache
def alignments(dtype: str) -> Kernel:
    """Costs, ln p, and the shares of states, of samples: a block for each, of THREADS threads at most.

    ``chains`` has for each label where the same one is next, the number of labels if nowhere; and −1 less
    than minus that for a label that is not the first of its kind.
    """
    number, ln_y = ELEMENTS[dtype].sum, _ln_y_of(dtype)
    count_all = team_sum(types.int64)
    zero, nothing, no_number = number(0), number(-inf), number(nan)

    @kernel
    def ctc_alignments(read: Any, written: Any, sizes: Any, places: Any, flags: Any) -> None:
        x, labels, label_lengths, input_lengths, top, power = read
        costs, ln_ps, alphas, after, chains = written
        all_steps, batch, classes, longest, blank, long = sizes
        of_x, of_labels, of_label_lengths, of_input_lengths = places
        is_softmax, has_gradients, cost_origin, cost_stride = flags
        thread, threads = _int64(cuda.threadIdx.x), _int64(cuda.blockDim.x)
        states_kept = 2 * longest + 1
        steps_kept = all_steps if has_gradients else _int64(2)
        n = _int64(cuda.blockIdx.x)
        while n < batch:
            at = of_labels[0] + n * of_labels[1]
            step = of_labels[2]
            length = integer_at(label_lengths, of_label_lengths[0] + n * of_label_lengths[1], long)
            steps = integer_at(input_lengths, of_input_lengths[0] + n * of_input_lengths[1], long)
            legal = 0 <= length <= longest and 0 <= steps <= all_steps
            if not legal:
                length, steps = _int64(0), _int64(0)
            wrong = _int64(0)
            i = thread
            while i < length:
                label = integer_at(labels, at + i * step, long)
                if label < 0 or label >= classes or label == blank:
                    wrong += 1
                i += threads
            if count_all(wrong, threads, 1) > 0:
                legal = False
                length, steps = _int64(0), _int64(0)
            states = 2 * length + 1
            base = n * steps_kept * states_kept
            here = of_x[0] + n * of_x[2]
            # Forward: α_t(s) from α_{t−1}; before the first step all is in the first blank.
            t = _int64(0)
            while t < steps:
                now = base + (t if has_gradients else t % 2) * states_kept
                before = base + (t - 1 if has_gradients else (t + 1) % 2) * states_kept
                s = thread
                while s < states:
                    k = _state_class(labels, at, step, long, blank, s)
                    came = zero if s < 2 else nothing
                    if t > 0:
                        first = alphas[_uint64(before + s)]
                        second = alphas[_uint64(before + s - 1)] if s > 0 else nothing
                        third = nothing
                        if _skips(labels, at, step, long, s):
                            third = alphas[_uint64(before + s - 2)]
                        came = number(ln_sum(first, second, third))
                    place = here + t * of_x[1] + k * of_x[3]
                    y = ln_y(x, place, top, power, t * batch + n, is_softmax)
                    alphas[_uint64(now + s)] = y + came
                    s += threads
                cuda.syncthreads()
                t += 1
            ln_p = zero if length == 0 else nothing
            if steps > 0:
                last = base + (steps - 1 if has_gradients else (steps - 1) % 2) * states_kept
                other = alphas[_uint64(last + states - 2)] if length > 0 else nothing
                ln_p = number(ln_sum(alphas[_uint64(last + states - 1)], other, nothing))
            if not legal:
                ln_p = no_number
            if thread == 0:
                costs[_uint64(cost_origin + n * cost_stride)] = -ln_p
                ln_ps[_uint64(n)] = ln_p
            if has_gradients:
                cuda.syncthreads()
                # Back: β_t(s) from what the step after has added to it.
                t = steps - 1
                while t >= 0:
                    now = (2 * n + t % 2) * states_kept
                    then = (2 * n + (t + 1) % 2) * states_kept
                    s = thread
                    while s < states:
                        beta = zero if s >= states - 2 else nothing
                        if t < steps - 1:
                            first = after[_uint64(then + s)]
                            second = after[_uint64(then + s + 1)] if s + 1 < states else nothing
                            third = nothing
                            if s + 2 < states and _skips(labels, at, step, long, s + 2):
                                third = after[_uint64(then + s + 2)]
                            beta = number(ln_sum(first, second, third))
                        k = _state_class(labels, at, step, long, blank, s)
                        place = here + t * of_x[1] + k * of_x[3]
                        y = ln_y(x, place, top, power, t * batch + n, is_softmax)
                        after[_uint64(now + s)] = y + beta
                        share = _uint64(base + t * states_kept + s)
                        alphas[share] = exp(alphas[share] + beta - ln_p)
                        s += threads
                    cuda.syncthreads()
                    t -= 1
                i = thread
                while i < length:
                    label = integer_at(labels, at + i * step, long)
                    following = i + 1
                    while (
                        following < length
                        and integer_at(labels, at + following * step, long) != label
                    ):
                        following += 1
                    former = i - 1
                    while former >= 0 and integer_at(labels, at + former * step, long) != label:
                        former -= 1
                    chain = following if former < 0 else -1 - following
                    chains[_uint64(n * longest + i)] = chain
                    i += threads
            cuda.syncthreads()
            n += cuda.gridDim.x

    return ctc_alignments


# --- Gradients ------------------------------------------------------------------------------------


@cache
def class_gradients(dtype: str) -> Kernel:
    """y − the shares of its states, of each class; a team of ``width`` threads for each step of a sample.

    First y of all classes is written, then again those of the blank and the labels, less their shares: so
    each number is rounded once. Launch with THREADS threads; the grid may have any size.
    """
    number, ln_y, from_sum = ELEMENTS[dtype].sum, _ln_y_of(dtype), ELEMENTS[dtype].from_sum
    add_all = team_sum(number)
    zero, no_number = number(0), number(nan)

    @kernel
    def ctc_gradients(
        read: Any, gradients: Any, sizes: Any, places: Any, to: Any, flags: Any
    ) -> None:
        x, labels, label_lengths, input_lengths, top, power, ln_ps, shares, chains = read
        all_steps, batch, classes, longest, blank, long = sizes
        of_x, of_labels, of_label_lengths, of_input_lengths = places
        is_softmax, is_skip, width = flags
        member, in_block = team_of(_int64(cuda.threadIdx.x), width, 1)
        per_block = THREADS // width
        states_kept = 2 * longest + 1
        rows = all_steps * batch
        tile = _int64(cuda.blockIdx.x)
        while tile < (rows + per_block - 1) // per_block:
            row = tile * per_block + in_block
            there = row < rows
            n, t = row % batch, row // batch
            steps, ln_p, length = _int64(0), zero, _int64(0)
            if there:
                place = of_input_lengths[0] + n * of_input_lengths[1]
                steps = integer_at(input_lengths, place, long)
                ln_p = ln_ps[_uint64(n)]
            if steps < 0 or steps > all_steps:
                steps = all_steps
            counts = t < steps
            # Of an impossible sample, and one whose cost is NaN, all gradients are alike.
            known = counts and -inf < ln_p
            rest = zero
            if counts and not known and (is_skip or ln_p != ln_p):
                rest = no_number
            here = of_x[0] + t * of_x[1] + n * of_x[2]
            target = to[0] + t * to[1] + n * to[2]
            k = member
            while there and k < classes:
                value = rest
                if known:
                    place = here + k * of_x[3]
                    value = exp(ln_y(x, place, top, power, row, is_softmax))
                gradients[_uint64(target + k * to[3])] = from_sum(value)
                k += width
            of_states = (n * all_steps + t) * states_kept
            of_blank = zero
            if known:
                place = of_label_lengths[0] + n * of_label_lengths[1]
                length = integer_at(label_lengths, place, long)
                i = member
                while i <= length:
                    of_blank += shares[_uint64(of_states + 2 * i)]
                    i += width
            of_blank = add_all(of_blank, width, 1)
            cuda.syncthreads()
            i = member - 1  # the first thread takes the blank, and then labels like the others
            while known and i < length:
                total, chain, label = of_blank, _int64(0), _int64(blank)
                if i >= 0:
                    total, chain = zero, chains[_uint64(n * longest + i)]
                    place = of_labels[0] + n * of_labels[1] + i * of_labels[2]
                    label = integer_at(labels, place, long)
                    at = i
                    while chain >= 0 and at < length:
                        total += shares[_uint64(of_states + 2 * at + 1)]
                        following = chains[_uint64(n * longest + at)]
                        at = following if following >= 0 else -1 - following
                if chain >= 0:
                    place = here + label * of_x[3]
                    y = exp(ln_y(x, place, top, power, row, is_softmax))
                    gradients[_uint64(target + label * to[3])] = from_sum(y - total)
                i += width
            cuda.syncthreads()
            tile += cuda.gridDim.x

    return ctc_gradients
