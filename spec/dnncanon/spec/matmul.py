"""Matrix products: one with its epilogue, and one for each group of rows, as mixtures of experts have them.

Transposition is a matter of strides: a view with its last two dims exchanged is as good as any other.
"""

from dnncanon.spec.attributes import Choice, Integer, Real
from dnncanon.spec.constraints import finite, one_of
from dnncanon.spec.matmul_domain import (
    draw_grouped,
    draw_grouped_weights,
    draw_matmul,
    grouped_boundaries,
    matmul_boundaries,
    routed,
    weights_boundaries,
)
from dnncanon.spec.matmul_problem import (
    ACTIVATIONS,
    MODES,
    GroupedMatmulProblem,
    MatmulProblem,
    product_type,
    resolve,
    resolve_grouped,
    resolve_grouped_weights,
)
from dnncanon.spec.matmul_rules import (
    batches_broadcast,
    c_broadcasts,
    grouped_dtypes,
    grouped_ranks,
    index_for_each_row,
    inner_extents,
    legal_experts,
    legal_operands,
    legal_output,
    legal_top_k,
    offsets_of_experts,
    one_rank,
    output_like,
    plain_integers,
    routed_tensors,
    same_dim,
)
from dnncanon.spec.norm_rules import shaped
from dnncanon.spec.primitive import Attribute, DTypeRow, Primitive, TensorSpec, declare
from dnncanon.spec.tensors import TensorType
from dnncanon.spec.values import index_below, integers_between

__all__ = [
    "GroupedMatmulProblem",
    "MatmulProblem",
    "grouped_matmul_backward_weights",
    "grouped_matmul_forward",
    "matmul_forward",
]

# --- One product ----------------------------------------------------------------------------------

_DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz", "saturating", "fast_math", "tf32x3", "bf16x3", "tf32")),
    DTypeRow("float16", ("ieee", "ftz", "saturating", "fast_math", "fp16_accumulate")),
    DTypeRow("bfloat16", ("ieee", "ftz", "saturating", "fast_math")),
    DTypeRow("float8_e4m3fn", ("widened",)),
    DTypeRow("float8_e5m2", ("widened",)),
    DTypeRow("int8", ("widened",)),
)

_SUMS = (
    "Sums are kept at float32 or better, float64 of float64, and rounded once, to nearest even; overflow gives "
    "±Inf, and subnormal results are kept.",
    "Every product of a sum counts, 0·Inf, which is NaN, too: NaN or Inf in a row of one operand meets all of "
    "that row's sums, and no others.",
    "M, N, K and batch dims may be 0: an empty sum is 0, and an empty product is empty. cuDNN refuses them.",
)

matmul_forward = declare(
    Primitive(
        name="matmul_forward",
        family="matmul",
        summary="Matrix product with its epilogue: scale, addend, bias and activation in one pass.",
        formula="""\
y[…, m, n] = activation(alpha·Σ_k a[…, m, k]·b[…, k, n] + beta·c[…, m, n] + bias[n])
relu max(v, 0)     gelu v·Φ(v)     gelu_tanh v·σ(2·√(2/π)·(v + 0.044715·v³))     silu v·σ(v)
sigmoid σ(v) = 1/(1 + e^−v)     tanh, identity     dims of 1 serve all indices of y""",
        inputs=(
            TensorSpec("a", "*A M K", "left operand, with batch dims A"),
            TensorSpec("b", "*B K N", "right operand, with batch dims B"),
            TensorSpec("c", "*C M N", "what is added; absent means nothing", optional=True),
            TensorSpec("bias", "N", "bias of each column; absent means 0", optional=True),
        ),
        outputs=(TensorSpec("y", "*Y M N", "product"),),
        attributes=(
            Attribute("alpha", Real(), "Factor of the product.", 1.0),
            Attribute("beta", Real(), "Factor of c.", 1.0),
            Attribute("activation", Choice(ACTIVATIONS), "What is applied last.", "identity"),
            Attribute(
                "dtype",
                Choice(("float64", "float32", "float16", "bfloat16", "int32")),
                "Element type of y, c and bias. Default: that of the operands, of which 16 bits go before "
                "int8; float32 of 8-bit floats, int32 of int8 alone.",
                None,
            ),
        ),
        dtypes=_DTYPES,
        constraints=(
            one_rank(),
            legal_operands(),
            legal_output(),
            inner_extents(),
            batches_broadcast(),
            output_like("c"),
            c_broadcasts(),
            output_like("bias"),
            shaped("bias", "[N]", lambda a: a.tensors["b"].shape[-1:]),
            one_of("activation", ACTIVATIONS),
            finite("alpha"),
            finite("beta"),
            plain_integers(),
        ),
        decisions=(
            "There is no flag for transposition: that is a view, as in cuDNN. Any strides are legal; cuDNN "
            "demands that one of a matrix's two is 1.",
            "Batch dims are equal or 1, as those of cuDNN's MATMUL. (Factors between, its grouped queries, are "
            "attention's.) Both operands have one rank; a matrix for a batch is b[None].",
            *_SUMS,
            "The epilogue works on unrounded sums; the only rounding to y's dtype is the last. cuDNN has it as "
            "pointwise operations behind the product, BLAS as alpha and beta.",
            "With beta = 0, c is not read: NaN in it does not spread (BLAS, cuDNN's rule for beta). With "
            "alpha = 0 the product still counts: 0·NaN is NaN.",
            "Activations are those of the activation family, limits at ±Inf included; silu is its swish with "
            "beta 1. relu keeps NaN.",
            "8-bit floats of either kind are multiplied as they are, and so is int8 with 16-bit floats, which "
            "hold it exactly: products and sums are float32's. (The sums of 14 bits that Hopper's tensor cores "
            "keep of 8-bit floats are no class.) Scales of 8-bit operands are alpha; those of blocks are "
            "block_scale_dequantize's, and what y is quantized to is quantize_linear's.",
            "int8 with int8 is exact: int32 modulo 2^32, c and bias included, as integer hardware wraps. What "
            "factors and activations follow is dequantize_linear's to say.",
            "The gradients are products themselves, with a or b transposed and sums over batch dims of 1: they "
            "are no primitives of their own.",
            "Effective sizes for each matrix of a batch (cuDNN's M, N and K override tensors) are attention's.",
        ),
        resolve=resolve,
        infer=product_type,
        flops=lambda p: 2 * p.multiplications,
        reduction_length=lambda p: p.terms + 2,
        domain=draw_matmul,
        boundaries=matmul_boundaries,
        source="cuDNN graph API MATMUL with pointwise epilogue; BLAS GEMM",
    )
)

# --- A product for each group of rows -------------------------------------------------------------

_GROUPED_DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz", "bf16x3", "tf32")),
    DTypeRow("float16", ("ieee", "ftz", "fp16_accumulate")),
    DTypeRow("bfloat16", ("ieee", "ftz")),
)
_TOKEN = TensorSpec("token", "T K", "tokens, in the order of their groups unless mode is gather")
_OFFSETS = TensorSpec(
    "first_token_offset",
    "G+1",
    "first row of each group, and the end of the last; int32, ascending",
    values=integers_between(0, lambda p: p.rows + 1),
    repeats=False,
)
_GROUPED_DECISIONS = (
    "Extents of 1 that cuDNN has are left out: token is [T, K], not [1, T, K], and offsets are [G + 1], not "
    "[G + 1, 1, 1].",
    "Offsets are G + 1 boundaries, which cuDNN has from 9.28 on. Its older form, of G first rows with the last "
    "group reaching to the last row, is deprecated there: with one expert they could not be told apart.",
    "There are B·E groups, B >= 1: group g belongs to expert g mod E, as in cuDNN, whose batches keep their "
    "tokens apart.",
    "Offsets have to ascend, 0 <= offset <= R; equal ones are an empty group. They are data, which no "
    "constraint can see without waiting for the device: what comes out for others is open, but nothing outside "
    "of the tensors is read or written. (cuDNN says nothing of it.)",
    *_SUMS,
)

grouped_matmul_forward = declare(
    Primitive(
        name="grouped_matmul_forward",
        family="matmul",
        summary="Each group of rows times the weights of its expert: the product of a mixture of experts.",
        formula="""\
p[r, n] = Σ_k x[r, k]·weight[g mod E, k, n]     for row r of group g: offset[g] <= r < offset[g + 1]
none:    x[r] = token[r]                  y[r] = p[r]
gather:  x[r] = token[token_index[r]]     y[r] = p[r]
scatter: x[r] = token[r]                  y[token_index[r]·top_k + token_ks[r]] = p[r]
Rows of y that no row of a group is put down to are 0.""",
        inputs=(
            _TOKEN,
            TensorSpec("weight", "E K N", "weights of each expert"),
            _OFFSETS,
            TensorSpec(
                "token_index",
                "R",
                "the token of each row, int32; with mode gather and scatter",
                optional=True,
                values=index_below(lambda p: p.tokens),
                repeats=False,
            ),
            TensorSpec(
                "token_ks",
                "R",
                "which of its token's top_k places each row takes, int32; with mode scatter",
                optional=True,
                values=index_below(lambda p: p.top_k),
                repeats=False,
            ),
        ),
        outputs=(TensorSpec("y", "R N", "rows of products; R = T unless mode is gather"),),
        attributes=(
            Attribute(
                "mode",
                Choice(MODES),
                "Whether rows are gathered before, or scattered after.",
                MODES[0],
            ),
            Attribute("top_k", Integer(), "Experts of each token; read with mode scatter.", 1),
        ),
        dtypes=_GROUPED_DTYPES,
        constraints=(
            grouped_ranks("token", "weight", "first_token_offset", "token_index", "token_ks"),
            grouped_dtypes("token", "weight"),
            same_dim("token", 1, "weight", 1, "K"),
            offsets_of_experts(),
            one_of("mode", MODES),
            routed_tensors(),
            index_for_each_row(),
            legal_top_k(),
        ),
        decisions=(
            *_GROUPED_DECISIONS,
            "token_ks is a place among the top_k of a token, not a weight: cuDNN's frontend says so of its "
            "open kernels, and the shapes leave no other reading. Rows are not weighted, and those of a token "
            "not added up: that is for the caller.",
            "Rows of no group are 0, and so are places that no row is scattered to: functions are pure. cuDNN "
            "leaves what was there.",
            "An index that is no token makes its row NaN, with mode gather; a row whose place is none of the R "
            "is lost, with mode scatter. Nothing is read or written elsewhere. Two rows for one place are the "
            "caller's fault: either may win.",
            "Tensors that the mode does not take are refused; cuDNN passes over them.",
            "The gradient by the tokens is the same product, of dy with weights transposed, a view: with mode "
            "scatter dy is gathered first, with mode gather rows of one token are added up. cuDNN has no "
            "primitive for it either. That by the weights is grouped_matmul_backward_weights.",
        ),
        resolve=resolve_grouped,
        infer=lambda p: (TensorType(p.dtype, p.y_shape),),
        flops=lambda p: 2 * p.multiplications,
        reduction_length=lambda p: p.terms,
        domain=draw_grouped,
        boundaries=grouped_boundaries,
        consistent=routed,
        source="cuDNN graph API MOE_GROUPED_MATMUL",
    )
)

grouped_matmul_backward_weights = declare(
    Primitive(
        name="grouped_matmul_backward_weights",
        family="matmul",
        summary="Gradient of a grouped product by the weights of each expert.",
        formula="""\
dweight[e, k, n] = Σ token[r, k]·dy[r, n]
over the rows of all groups g with g mod E = e: offset[g] <= r < offset[g + 1]""",
        inputs=(TensorSpec("dy", "T N", "gradient of the loss by y"), _TOKEN, _OFFSETS),
        outputs=(TensorSpec("dweight", "E K N", "gradient of the loss by weight"),),
        attributes=(Attribute("experts", Integer(), "E, which divides G. Default: G.", None),),
        dtypes=_GROUPED_DTYPES,
        constraints=(
            grouped_ranks("dy", "token", "first_token_offset"),
            grouped_dtypes("dy", "token"),
            same_dim("dy", 0, "token", 0, "T"),
            legal_experts(),
        ),
        decisions=(
            *_GROUPED_DECISIONS,
            "Rows are in the order of their groups, in both tensors, as in cuDNN: there is no mode. With mode "
            "gather tokens are gathered first, with mode scatter dy is.",
            "The weights of an expert without rows have the gradient 0, which is written.",
            "The gradient is the sum over rows, not their mean, and is not added to what is there.",
        ),
        resolve=resolve_grouped_weights,
        infer=lambda p: (TensorType(p.dtype, p.weight_shape),),
        flops=lambda p: 2 * p.multiplications,
        reduction_length=lambda p: p.rows,
        domain=draw_grouped_weights,
        boundaries=weights_boundaries,
        consistent=routed,
        source="cuDNN graph API MOE_GROUPED_MATMUL_BWD",
    )
)
