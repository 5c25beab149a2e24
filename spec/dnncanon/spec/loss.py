"""Losses with their gradients: cross entropy, and connectionist temporal classification.

cuDNN has the second only; the first is in every framework, and PyTorch's is the one that is specified here.
"""

import math

from dnncanon.spec.attributes import Choice, Flag, Integer, Real
from dnncanon.spec.constraints import one_of
from dnncanon.spec.elementwise import any_rank, legal_axis, true_or_false
from dnncanon.spec.loss_domain import (
    cross_entropy_boundaries,
    ctc_boundaries,
    draw_cross_entropy,
    draw_ctc,
)
from dnncanon.spec.loss_problem import (
    NORM_MODES,
    OOB_GRADIENTS,
    REDUCTIONS,
    costs_and_gradients,
    legal_samples,
    loss_and_stats,
    resolve_cross_entropy,
    resolve_ctc,
    some_far_away,
    with_stats,
    without_axis,
)
from dnncanon.spec.loss_rules import (
    at_least_one_class,
    class_of,
    integer_of_32_bits,
    loss_dtypes,
    padded_labels,
    share,
)
from dnncanon.spec.norm_rules import rank_between, shaped
from dnncanon.spec.primitive import (
    Arguments,
    Attribute,
    Constraint,
    DTypeRow,
    Primitive,
    TensorSpec,
    declare,
)
from dnncanon.spec.tensors import Shape, TensorType
from dnncanon.spec.values import POSITIVE, index_below, integers_between

# --- Cross entropy --------------------------------------------------------------------------------

_CROSS_ENTROPY_DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz", "fast_math")),
    DTypeRow("float16", ("ieee", "ftz", "fast_math")),
    DTypeRow("bfloat16", ("ieee", "ftz", "fast_math")),
)
_LOGITS = TensorSpec("logits", "*I", "unnormalised log-probabilities")
_TARGET = TensorSpec(
    "target",
    "*O",
    "class of each row, int32 or int64: the shape of logits without the dim of the classes",
    values=index_below(lambda p: p.classes),
)
_WEIGHT = TensorSpec(
    "weight", "C", "weight of each class, 1 without it", True, special_values=False, values=POSITIVE
)
_CROSS_ENTROPY_ATTRIBUTES = (
    Attribute("axis", Integer(), "The dim of the classes; a negative one counts from the back.", 1),
    Attribute("ignore_index", Integer(), "The target of rows that do not count.", -100),
    Attribute(
        "label_smoothing", Real(), "The share of the loss, ε, that is spread over all classes.", 0.0
    ),
    Attribute(
        "reduction",
        Choice(REDUCTIONS),
        "The loss of each row, their sum, or their sum over that of the targets' weights.",
        "mean",
    ),
)


def _classes(a: Arguments) -> Shape:
    return (a.tensors["logits"].shape[a.attributes["axis"]],)


def _loss_shape(a: Arguments) -> Shape:
    return without_axis(a) if a.attributes["reduction"] == "none" else ()


def _cross_entropy_rules(*wide: str) -> tuple[Constraint, ...]:
    return (
        any_rank("logits"),
        loss_dtypes(_CROSS_ENTROPY_DTYPES, "logits", ("target",), wide),
        legal_axis("logits"),
        at_least_one_class("logits"),
        shaped("target", "of logits without axis", without_axis),
        shaped("weight", "[C]", _classes),
        integer_of_32_bits("ignore_index"),
        share("label_smoothing"),
        one_of("reduction", REDUCTIONS),
    )


_CROSS_ENTROPY_DECISIONS = (
    "A row holds the logits along axis. By default that is dim 1, as in PyTorch; tokens have axis=-1, a "
    "single row axis=0.",
    "All but the logits and their gradient is float32 (float64 with float64): the loss, stats, weight and "
    "dloss. A sum over the rows of a batch leaves float16's range, and PyTorch's autocast computes this "
    "loss in float32 too.",
    "A row's maximum is subtracted from its logits before the sum's logarithm is added: large logits do "
    "not drown a small loss. stats − x_t, of rounded stats, is not accurate enough.",
    "A row whose target is ignore_index, which may be a class, has the loss 0 and the gradient 0, "
    "whatever is in it. The mean of rows that are all ignored is 0/0, NaN, as in PyTorch; its gradient is "
    "0.",
    "A row whose target is neither a class nor ignore_index has the loss NaN and a gradient of NaN, as in "
    "TensorFlow on GPUs, and nothing is read in its place. (PyTorch's kernels abort.)",
    "The mean divides by the sum of the targets' weights, smoothed or not, as PyTorch does.",
    "A row that holds NaN or +Inf or nothing but −Inf has the loss NaN: see softmax. A target of −Inf "
    "beside numbers has the loss +Inf; with smoothing so has any row with −Inf.",
    "Weights that are 0 or negative are computed with like any other. Infinite ones, and infinite dloss, "
    "make Inf or NaN, by the order of products; no test asks for them.",
    "Targets are indices. Probabilities of classes as targets, which PyTorch also takes, are not offered.",
)

cross_entropy_forward = declare(
    Primitive(
        name="cross_entropy_forward",
        family="loss",
        summary="Cross entropy of logits and class indices, with class weights and label smoothing.",
        formula="""ℓ_c = ln Σ_j e^(x_j − m) − (x_c − m)          with m = max x_j over the row: −log_softmax
loss = (1 − ε)·w_t·ℓ_t + (ε/C)·Σ_c w_c·ℓ_c    of a row with target t; 0 where t is ignore_index
sum: Σ loss     mean: Σ loss / Σ w_t           over the rows that are not ignored
stats = m + ln Σ_j e^(x_j − m)""",
        inputs=(_LOGITS, _TARGET, _WEIGHT),
        outputs=(
            TensorSpec("loss", "*O", "loss of each row, or one number; float32 or float64"),
            TensorSpec(
                "stats", "*O", "ln Σ e^x of each row, for the gradient; float32 or float64", True
            ),
        ),
        attributes=(
            *_CROSS_ENTROPY_ATTRIBUTES,
            Attribute("return_stats", Flag(), "Whether stats are put out.", False),
        ),
        dtypes=_CROSS_ENTROPY_DTYPES,
        constraints=(*_cross_entropy_rules("weight"), true_or_false("return_stats")),
        decisions=(
            *_CROSS_ENTROPY_DECISIONS,
            "stats are those of every row, of ignored ones and those without a class too; of a row of "
            "+Inf they are +Inf, and of one of −Inf −Inf.",
        ),
        resolve=resolve_cross_entropy,
        infer=loss_and_stats,
        flops=lambda p: 4 * math.prod(p.shape),
        reduction_length=lambda p: p.classes,
        domain=draw_cross_entropy(backward=False),
        boundaries=cross_entropy_boundaries(backward=False),
        consistent=some_far_away,
        source="torch.nn.functional.cross_entropy; smoothing: Szegedy et al. 2016, arXiv:1512.00567, §7",
    )
)

cross_entropy_backward = declare(
    Primitive(
        name="cross_entropy_backward",
        family="loss",
        summary="Gradient of cross entropy by the logits.",
        formula="""p_c = e^(x_c − stats), δ_c = (c = t), W = Σ_c w_c
dlogits_c = g·[(1 − ε)·w_t·(p_c − δ_c) + (ε/C)·(p_c·W − w_c)]
g = dloss, of the row or the one     mean: g = dloss / Σ w_t     0 where t is ignore_index""",
        inputs=(
            _LOGITS,
            _TARGET,
            TensorSpec("stats", "*O", "stats of cross_entropy_forward"),
            TensorSpec(
                "dloss",
                "*O",
                "gradient by the loss: of its shape, so one number for sum and mean",
                special_values=False,
            ),
            _WEIGHT,
        ),
        outputs=(TensorSpec("dlogits", "*I", "gradient of the loss by the logits"),),
        attributes=_CROSS_ENTROPY_ATTRIBUTES,
        dtypes=_CROSS_ENTROPY_DTYPES,
        constraints=(
            *_cross_entropy_rules("stats", "dloss", "weight"),
            shaped("stats", "of target", without_axis),
            shaped("dloss", "of the loss", _loss_shape),
        ),
        decisions=(
            *_CROSS_ENTROPY_DECISIONS,
            "stats spare the gradient a second reading of the logits. The gradient is that of stats as "
            "they are: they are rounded, so that p need not add up to 1.",
        ),
        resolve=resolve_cross_entropy,
        infer=lambda p: (TensorType(p.dtype, p.shape),),
        flops=lambda p: 4 * math.prod(p.shape),
        reduction_length=lambda p: p.classes,
        domain=draw_cross_entropy(backward=True),
        boundaries=cross_entropy_boundaries(backward=True),
        consistent=with_stats,
        source="calculus; torch.nn.functional.cross_entropy",
    )
)

# --- CTC ------------------------------------------------------------------------------------------

_CTC_DTYPES = tuple(
    DTypeRow(dtype, ("ieee",)) for dtype in ("float64", "float32", "float16", "bfloat16")
)


def _samples(a: Arguments) -> Shape:
    return (a.tensors["activations"].shape[1],)


ctc_loss = declare(
    Primitive(
        name="ctc_loss",
        family="loss",
        summary="Connectionist temporal classification: −ln p of a labelling, and its gradient.",
        formula="""z = (−, l_1, −, l_2, …, l_L, −) of S = 2·L + 1 states, − the blank; y = softmax(x)
α_t(s) = y_t(z_s)·[α_{t−1}(s) + α_{t−1}(s − 1) + (z_s ≠ z_{s−2} ? α_{t−1}(s − 2) : 0)]
β_{t−1}(s) = Σ y_t(z_r)·β_t(r) over r = s, s + 1, and s + 2 where z_{s+2} ≠ z_s
α_{−1} = (1, 0, …, 0)     β_{T−1} = (0, …, 0, 1, 1)     p = α_{T−1}(S − 1) + α_{T−1}(S − 2)
costs = −ln p             T = input_lengths and L = label_lengths, by sample
gradients_t,k = y_t,k − Σ_{s: z_s = k} α_t(s)·β_t(s) / p, and 0 for t >= T""",
        inputs=(
            TensorSpec("activations", "T N A", "raw activations, or probabilities"),
            TensorSpec(
                "labels",
                "N L",
                "int32 or int64, padded to the longest",
                values=index_below(lambda p: p.classes),
            ),
            TensorSpec(
                "label_lengths",
                "N",
                "labels of each sample, 0 to L",
                values=integers_between(0, lambda p: p.longest + 1),
            ),
            TensorSpec(
                "input_lengths",
                "N",
                "steps of each sample, 0 to T",
                values=integers_between(0, lambda p: p.steps + 1),
            ),
        ),
        outputs=(
            TensorSpec("costs", "N", "−ln p of each sample; float32 or float64"),
            TensorSpec(
                "gradients",
                "T N A",
                "gradient of Σ costs by the activations before the softmax",
                optional=True,
            ),
        ),
        attributes=(
            Attribute(
                "norm_mode",
                Choice(NORM_MODES),
                '"softmax": activations are normalised over the classes; "none": they are probabilities.',
                "softmax",
            ),
            Attribute("blank", Integer(), "The class of the blank.", 0),
            Attribute(
                "oob_gradients",
                Choice(OOB_GRADIENTS),
                'Gradients of a sample whose labelling is impossible: "zero", or NaN with "skip".',
                "zero",
            ),
            Attribute("return_gradients", Flag(), "Whether gradients are put out.", False),
        ),
        dtypes=_CTC_DTYPES,
        constraints=(
            rank_between(3, 3, "T, N, A"),
            loss_dtypes(_CTC_DTYPES, "activations", ("labels", "label_lengths", "input_lengths")),
            at_least_one_class("activations", axis=2),
            padded_labels("activations"),
            shaped("label_lengths", "[N]", _samples),
            shaped("input_lengths", "[N]", _samples),
            one_of("norm_mode", NORM_MODES),
            class_of("blank", "activations", axis=2),
            one_of("oob_gradients", OOB_GRADIENTS),
            true_or_false("return_gradients"),
        ),
        decisions=(
            "Labels are padded, [N, L], in the arrays' own memory, as in PyTorch, and as cuDNN 9's "
            "maxLabelLength suggests; cuDNN's own are concatenated. What stands behind a sample's labels "
            "is not read.",
            "Gradients are by the activations before the softmax also where probabilities are passed, as "
            "in cuDNN. Those need not add up to 1: the formula is used as it is.",
            "All is computed with logarithms: α, β and p are far below the smallest number for some "
            "hundred steps.",
            "Costs are float32 (float64 with float64); gradients have the dtype of the activations. cuDNN "
            "takes float32 only.",
            "The blank is class 0 as in cuDNN, or any other, as in PyTorch. Labels may have any length; "
            "cuDNN takes up to 255 (pytorch#53505).",
            "A labelling without a possible alignment, or whose alignments all have the probability 0, "
            'has the cost +Inf. Its gradients are 0 with "zero", CUDNN_CTC_ZERO_OOB_GRADIENTS. With '
            '"skip" cuDNN does not write them. An output is written here: there is no gradient, so it is '
            "NaN, as in PyTorch.",
            "Steps from the input length on do not count and are not read; their gradients are 0, with "
            '"skip" too. cuDNN left them as they were (tensorflow#41280).',
            "A sample of no steps has the cost 0 if it has no labels, else +Inf. One without labels has "
            "the cost −Σ ln y of the blank.",
            "A sample with a label that is no class or the blank, or a length out of range, has the cost "
            "NaN and gradients of NaN, in all steps if it is the input length, and nothing is read "
            "outside of the arrays. cuDNN refuses it, which costs a copy to the host.",
            "Activations that hold NaN or +Inf, or nothing but −Inf, in a step that counts make the cost "
            "NaN and the gradients of all the sample's steps that count. A probability that is NaN, alone "
            "in its step, makes NaN of the states of its class, of whatever comes of them, and no more "
            "is said.",
        ),
        resolve=resolve_ctc,
        infer=costs_and_gradients,
        flops=lambda p: p.flops,
        reduction_length=lambda p: max(1, p.steps),
        domain=draw_ctc,
        boundaries=ctc_boundaries,
        consistent=legal_samples,
        source="cuDNN cudnnCTCLoss_v8; Graves et al. 2006, Connectionist Temporal Classification",
    )
)
