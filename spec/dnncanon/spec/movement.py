"""Data movement: layouts, padding, blocks, slices, concatenation, permutation and bands, without arithmetic.

Every element of a result is an element of an operand, bit for bit, or a constant. So all element types are
alike, and most primitives have another one that takes their result back, which is their gradient too.
"""

from collections.abc import Callable
from typing import Any

from dnncanon.spec.attributes import Choice, Integer, Integers, PerDim, Real
from dnncanon.spec.constraints import finite, one_dtype, one_of, positive_per_dim, spatial_ranks
from dnncanon.spec.elementwise import MAX_RANK, any_rank, legal_axis, legal_shape
from dnncanon.spec.movement_domain import BOUNDARIES, DOMAINS
from dnncanon.spec.movement_problem import (
    MOST_TENSORS,
    ORDERS,
    contracting,
    cropping,
    expanding,
    from_vectors,
    integers,
    into_channels,
    into_space,
    into_vectors,
    joining,
    layout,
    padding,
    reshaping,
    slicing,
    splitting,
    transposing,
)
from dnncanon.spec.movement_rules import (
    XS,
    alike_but_for_the_axis,
    as_many_elements,
    at_least,
    band_has_its_width,
    block_divides_channels,
    block_divides_space,
    dy_is_the_slice,
    fits_memory,
    is_permutation,
    no_gap,
    one_per_dim,
    rank_of,
    ranks,
    room_to_crop,
    sizes_add_up,
    some_sizes,
    width_divides,
    within_the_tensor,
)
from dnncanon.spec.primitive import (
    REQUIRED,
    Arguments,
    Attribute,
    Constraint,
    DTypeRow,
    Primitive,
    TensorSpec,
    declare,
)
from dnncanon.spec.tensors import Shape, TensorType
from dnncanon.spec.transform import CASTABLE

DTYPES = tuple(DTypeRow(name, ("exact",)) for name in CASTABLE)


def _output(shape: Callable[[Any], Shape]) -> Callable[[Any], tuple[TensorType]]:
    return lambda p: (TensorType(p.dtype, shape(p)),)


def _move(name: str, **rest: Any) -> Primitive[Any]:
    """Declare a primitive, with what all moves have in common."""
    return declare(
        Primitive(
            name=name,
            family="movement",
            dtypes=DTYPES,
            flops=lambda p: 0,
            reduction_length=lambda p: 1,
            domain=DOMAINS[name],
            boundaries=BOUNDARIES[name],
            may_copy=True,
            **rest,
        )
    )


_X = TensorSpec("x", "*I", "input")
_Y = TensorSpec("y", "*O", "result")
_HUGE = 2**62
_ANY = (any_rank("x"), one_dtype(DTYPES))
_BITS = (
    "Elements are moved bit for bit: a NaN keeps its payload, zeros their signs.",
    "All element types but those of block scaling, which come with scales that would have to move along.",
)
_FILL = Attribute("value", Real(), "What is filled in, rounded to the element type.", 0.0)
_FILLED = (
    "The value is rounded as set_tensor does it: integers saturate, ties go to even.",
    *_BITS,
)

transform_tensor = _move(
    "transform_tensor",
    summary="A tensor in another layout.",
    formula="y[i] = x[i]",
    inputs=(_X,),
    outputs=(TensorSpec("y", "*I", "the same elements, with strides of their own"),),
    attributes=(),
    constraints=_ANY,
    decisions=(
        "A layout is the strides of an array, and no attribute: the result is laid out as out= is, or as "
        "the library lays out new arrays. From NCHW to NHWC is one such call.",
        "cuDNN's α and β are scale_tensor and add_tensor; a change of the element type is cast.",
        *_BITS,
    ),
    resolve=layout,
    infer=_output(lambda p: p.shape),
    source="cuDNN cudnnTransformTensor, cudnnTransformFilter",
)

_VECTORS = (
    "NCHW_VECT_C is a tensor of one dim more, its last: logical order N, C/v, spatial, v. cuDNN has it for "
    "int8 and uint8 with v = 4 and 32; any type and any v that divides C is legal here.",
    "Channels that do not fill a vector are refused, as in cuDNN; pad adds what is missing.",
    *_BITS,
)

vectorize_channels = _move(
    "vectorize_channels",
    summary="From NCHW to NCHW_VECT_C: channels in vectors, each a piece of memory.",
    formula="y[n, c, i, j] = x[n, c·v + j, i],  v = width",
    inputs=(TensorSpec("x", "N C *I", "input"),),
    outputs=(TensorSpec("y", "N G *I V", "G = C/v vectors of V = v channels"),),
    attributes=(Attribute("width", Integer(), "v, channels of a vector.", REQUIRED),),
    constraints=(
        ranks(2, MAX_RANK - 1, "batch, channels and spatial dims"),
        one_dtype(DTYPES),
        at_least("width", 1),
        width_divides(),
    ),
    decisions=_VECTORS,
    resolve=into_vectors,
    infer=_output(lambda p: p.vector_shape),
    source="cuDNN cudnnTransformTensor to CUDNN_TENSOR_NCHW_VECT_C",
)

unvectorize_channels = _move(
    "unvectorize_channels",
    summary="From NCHW_VECT_C to NCHW: the inverse of vectorize_channels.",
    formula="y[n, c·v + j, i] = x[n, c, i, j]",
    inputs=(TensorSpec("x", "*I", "channels in vectors: N, C/v, spatial dims, v"),),
    outputs=(TensorSpec("y", "N C *I", "the tensor without vectors"),),
    attributes=(),
    constraints=(
        ranks(3, MAX_RANK, "batch, channels, spatial dims and the vector"),
        one_dtype(DTYPES),
    ),
    decisions=_VECTORS,
    resolve=from_vectors,
    infer=_output(lambda p: p.shape),
    source="cuDNN cudnnTransformTensor from CUDNN_TENSOR_NCHW_VECT_C",
)

_AROUND = (
    Attribute("pre", Integers(), "Elements before the first one, for each dim.", REQUIRED),
    Attribute("post", Integers(), "Elements behind the last one, for each dim.", REQUIRED),
)
_AROUND_RULES = (
    one_per_dim("pre", rank_of("x"), 0),
    one_per_dim("post", rank_of("x"), 0),
)

pad = _move(
    "pad",
    summary="A tensor with a constant around it.",
    formula="y[o] = x[o − pre] where that is in x, else value",
    inputs=(_X,),
    outputs=(TensorSpec("y", "*O", "padded, of extents pre + I + post"),),
    attributes=(*_AROUND, _FILL),
    constraints=(
        *_ANY,
        *_AROUND_RULES,
        finite("value"),
        fits_memory(
            lambda a: padding(a).padded_shape,
            "pass smaller pre and post",
            pre=lambda rank: (_HUGE,) * rank,
        ),
    ),
    decisions=(
        "Both are >= 0 in every dim, batch and channels included; crop takes elements away.",
        "cuDNN pads with 0 only.",
        *_FILLED,
    ),
    resolve=padding,
    infer=_output(lambda p: p.padded_shape),
    source="cuDNN cudnnTransformTensorEx, padBefore and padAfter",
)

crop = _move(
    "crop",
    summary="A tensor without its border: the inverse of pad, and its gradient.",
    formula="y[o] = x[o + pre]",
    inputs=(_X,),
    outputs=(TensorSpec("y", "*O", "cropped, of extents I − pre − post"),),
    attributes=_AROUND,
    constraints=(*_ANY, *_AROUND_RULES, room_to_crop()),
    decisions=("What is left may have no elements.", *_BITS),
    resolve=cropping,
    infer=_output(lambda p: p.shape),
    source="cuDNN cudnnTransformTensorEx, CUDNN_TRANSFORM_UNFOLD with padding",
)

_BLOCK = (
    Attribute("block", PerDim(), "Extents b of a block.", REQUIRED),
    Attribute("order", Choice(ORDERS), "Of channel c and place p in the block.", "DCR"),
)
_BLOCK_DECISIONS = (
    "cuDNN does not say in which order places and channels go. DCR, p·C + c, is that of TensorFlow and of "
    "ONNX by default; CRD, c·Πb + p, that of PyTorch's pixel_unshuffle. Places count in logical order.",
    "Extents that are no multiples of the block are refused; pad adds what is missing, as cuDNN's padding "
    "does before folding.",
    *_BITS,
)
_CHANNELS = (
    "p a place in the block, counted in logical order\nDCR: C′ = p·C + c    CRD: C′ = c·Πb + p"
)

space_to_depth = _move(
    "space_to_depth",
    summary="Blocks of space become channels: cuDNN's fold.",
    formula=f"y[n, C′, i] = x[n, c, i·b + p],  {_CHANNELS}",
    inputs=(TensorSpec("x", "N C *I", "input"),),
    outputs=(TensorSpec("y", "N D *O", "blocks in channels: D = C·Πb, O = I/b"),),
    attributes=_BLOCK,
    constraints=(
        spatial_ranks("x"),
        one_dtype(DTYPES),
        positive_per_dim("block"),
        one_of("order", ORDERS),
        block_divides_space(),
    ),
    decisions=_BLOCK_DECISIONS,
    resolve=into_channels,
    infer=_output(lambda p: p.folded_shape),
    source="cuDNN cudnnTransformTensorEx, CUDNN_TRANSFORM_FOLD; ONNX SpaceToDepth",
)

depth_to_space = _move(
    "depth_to_space",
    summary="Channels become blocks of space: cuDNN's unfold, the inverse of space_to_depth.",
    formula=f"y[n, c, i·b + p] = x[n, C′, i],  {_CHANNELS}",
    inputs=(TensorSpec("x", "N D *I", "blocks in channels: D = C·Πb"),),
    outputs=(TensorSpec("y", "N C *O", "blocks in space: O = I·b"),),
    attributes=_BLOCK,
    constraints=(
        spatial_ranks("x"),
        one_dtype(DTYPES),
        positive_per_dim("block"),
        one_of("order", ORDERS),
        block_divides_channels(),
    ),
    decisions=_BLOCK_DECISIONS,
    resolve=into_space,
    infer=_output(lambda p: p.shape),
    source="cuDNN cudnnTransformTensorEx, CUDNN_TRANSFORM_UNFOLD; ONNX DepthToSpace",
)

_AXIS = Attribute(
    "axis",
    Integer(),
    "The dim along which they lie; a negative one counts from the back.",
    REQUIRED,
)
_CONCAT_DECISIONS = (
    f"{MOST_TENSORS} tensors at most, so that they can be arguments with names; more are concatenated in "
    "steps. One tensor is legal, and so are tensors without elements.",
    *_BITS,
)

concat_forward = _move(
    "concat_forward",
    summary="Tensors one behind the other along an axis.",
    formula="y[…, Σ_{m<k} A_m + a, …] = x_k[…, a, …],  A_m the extent of x_m along the axis",
    inputs=tuple(
        TensorSpec(name, f"*I{k}", f"tensor {k}", optional=k > 0) for k, name in enumerate(XS)
    ),
    outputs=(TensorSpec("y", "*O", "all of them"),),
    attributes=(_AXIS,),
    constraints=(
        no_gap(),
        any_rank(*XS),
        one_dtype(DTYPES),
        legal_axis("x0"),
        alike_but_for_the_axis(),
    ),
    decisions=(
        "cuDNN may be told that an input lies in the output already; that is a matter of memory, "
        "and not of what is computed.",
        *_CONCAT_DECISIONS,
    ),
    resolve=joining,
    infer=_output(lambda p: p.shape),
    source="cuDNN graph API CONCAT",
)

concat_backward = _move(
    "concat_backward",
    summary="Gradients of concatenated tensors: the parts of dy. Also known as split.",
    formula="dx_k[…, a, …] = dy[…, Σ_{m<k} A_m + a, …],  A_m = sizes[m]",
    inputs=(TensorSpec("dy", "*I", "gradient of the loss by y"),),
    outputs=tuple(
        TensorSpec(f"dx{k}", f"*I{k}", f"gradient of the loss by x{k}", optional=k > 0)
        for k in range(MOST_TENSORS)
    ),
    attributes=(_AXIS, Attribute("sizes", Integers(), "Extents along the axis.", REQUIRED)),
    constraints=(
        any_rank("dy"),
        one_dtype(DTYPES),
        legal_axis("dy"),
        some_sizes(),
        sizes_add_up(),
    ),
    decisions=_CONCAT_DECISIONS,
    resolve=splitting,
    infer=lambda p: tuple(
        TensorType(p.dtype, p.parts[k]) if k < len(p.parts) else None for k in range(MOST_TENSORS)
    ),
    source="calculus; PyTorch's split",
)

_SLICE = (
    Attribute("start", Integers(), "First index, for each dim. Default: 0.", None),
    Attribute("limit", Integers(), "Index behind the last one, for each dim. Default: all.", None),
    Attribute("stride", Integers(), "Step between indices, for each dim. Default: 1.", None),
)
_SLICE_DECISIONS = (
    "Slices lie within the tensor: cuDNN's front end does not check that. Those without elements are legal, "
    "start = limit; strides go forward.",
    "The result is a tensor of its own. (cuDNN's slice is a view: the strides of x times those of the slice.)",
    *_BITS,
)


def _slice_rules(rank_of: Callable[[Arguments], int]) -> tuple[Constraint, ...]:
    return (
        one_per_dim("start", rank_of, 0),
        one_per_dim("limit", rank_of, 0),
        one_per_dim("stride", rank_of, 1),
        within_the_tensor(),
    )


slice_forward = _move(
    "slice_forward",
    summary="The elements at every stride-th index from start to below limit.",
    formula="y[o] = x[start + o·stride],  O = ⌈(limit − start) / stride⌉",
    inputs=(_X,),
    outputs=(TensorSpec("y", "*O", "the slice"),),
    attributes=_SLICE,
    constraints=(*_ANY, *_slice_rules(rank_of("x"))),
    decisions=_SLICE_DECISIONS,
    resolve=slicing,
    infer=_output(lambda p: p.sliced_shape),
    source="cuDNN graph API SLICE; StableHLO slice",
)

slice_backward = _move(
    "slice_backward",
    summary="Gradient of a slice by the tensor it is taken of: dy in its places, among zeros.",
    formula="dx[start + o·stride] = dy[o], and 0 everywhere else",
    inputs=(TensorSpec("dy", "*O", "gradient of the loss by y"),),
    outputs=(TensorSpec("dx", "*I", "gradient of the loss by x"),),
    attributes=(Attribute("input_size", Integers(), "Extents I of dx.", REQUIRED), *_SLICE),
    constraints=(
        any_rank("dy"),
        one_dtype(DTYPES),
        one_per_dim("input_size", rank_of("dy"), 0),
        fits_memory(
            lambda a: integers(a, "input_size", ()),
            "pass a smaller input_size",
            input_size=lambda rank: (_HUGE,) * rank,
        ),
        *_slice_rules(rank_of("dy")),
        dy_is_the_slice(),
    ),
    decisions=_SLICE_DECISIONS,
    resolve=slicing,
    infer=_output(lambda p: p.shape),
    source="calculus",
)

transpose = _move(
    "transpose",
    summary="A tensor with its dims in another order.",
    formula="y[i_π(0), i_π(1), …] = x[i_0, i_1, …],  π = permutation",
    inputs=(_X,),
    outputs=(_Y,),
    attributes=(
        Attribute("permutation", Integers(), "The dim of x that each dim of y is.", REQUIRED),
    ),
    constraints=(*_ANY, is_permutation()),
    decisions=(
        "The result is a tensor of its own, dense unless out= says otherwise; cuDNN's is a view.",
        "The inverse, and the gradient, is the transpose with the inverse permutation.",
        *_BITS,
    ),
    resolve=transposing,
    infer=_output(lambda p: tuple(p.shape[dim] for dim in p.permutation)),
    source="cuDNN graph API TRANSPOSE",
)

reshape = _move(
    "reshape",
    summary="The same elements, in the same order, in another shape.",
    formula="y[o] = x[i] where the place of o in C order of O is that of i in C order of I",
    inputs=(_X,),
    outputs=(_Y,),
    attributes=(Attribute("shape", Integers(), "Extents O of y.", REQUIRED),),
    constraints=(*_ANY, legal_shape(), as_many_elements()),
    decisions=(
        "This is cuDNN's RESHAPE_LOGICAL: elements are in the order of their indices, whatever the strides "
        "of x and y are. A view, RESHAPE_VIEW_ONLY, moves nothing and needs no primitive.",
        "No extent is inferred: there is no −1.",
        "The gradient is the reshape of dy to the shape of x.",
        *_BITS,
    ),
    resolve=reshaping,
    infer=_output(lambda p: p.to),
    source="cuDNN graph API RESHAPE, cudnnReshapeMode_t",
)

_BANDWIDTHS = (
    Attribute("lower", Integer(), "l, diagonals below the main one.", REQUIRED),
    Attribute("upper", Integer(), "u, diagonals above the main one.", REQUIRED),
)
_BAND_RULES = (at_least("lower", 0), at_least("upper", 0), finite("value"))
_BAND_DECISIONS = (
    "cuDNN lists the attributes of these operations, bandwidths, axis and pad value, and documents nothing "
    "else. Here a band is stored by rows: its d-th entry in row i is on diagonal d − l, as an attention with "
    "a sliding window has its scores. (LAPACK's band storage goes by columns.)",
    "Rows are the last dim but one, columns and diagonals the last dim; other axes are a matter of strides.",
    "Entries of the band that lie outside of the matrix exist: contract fills them in, expand does not read "
    "them. So expand is the inverse of contract within the band, and with value = 0 its gradient.",
    "There are no offsets by token and no speculative mask, cuDNN's inputs for attention.",
    *_FILLED,
)

contract_band_matrix = _move(
    "contract_band_matrix",
    summary="The diagonals of matrices around the main one, row by row.",
    formula="y[…, i, d] = x[…, i, i + d − l] where that is in x, else value;  d = 0 … l + u",
    inputs=(TensorSpec("x", "*I", "matrices: batch dims, M, N"),),
    outputs=(TensorSpec("y", "*O", "bands: batch dims, M, l+u+1"),),
    attributes=(*_BANDWIDTHS, _FILL),
    constraints=(
        ranks(2, MAX_RANK, "batch dims, rows and columns"),
        one_dtype(DTYPES),
        *_BAND_RULES,
        fits_memory(
            lambda a: contracting(a).band_shape,
            "pass smaller lower and upper",
            lower=lambda rank: _HUGE,
            upper=lambda rank: _HUGE,
        ),
    ),
    decisions=_BAND_DECISIONS,
    resolve=contracting,
    infer=_output(lambda p: p.band_shape),
    source="cuDNN graph API, OPERATION_CONTRACT_BAND_MATRIX",
)

expand_band_matrix = _move(
    "expand_band_matrix",
    summary="Matrices of which the diagonals around the main one are given, row by row.",
    formula="y[…, i, j] = x[…, i, j − i + l] where −l <= j − i <= u, else value",
    inputs=(TensorSpec("x", "*I", "bands: batch dims, M, l+u+1"),),
    outputs=(TensorSpec("y", "*O", "matrices: batch dims, M, N"),),
    attributes=(
        Attribute("columns", Integer(), "N, columns of the matrices.", REQUIRED),
        *_BANDWIDTHS,
        _FILL,
    ),
    constraints=(
        ranks(2, MAX_RANK, "batch dims, rows and diagonals"),
        one_dtype(DTYPES),
        at_least("columns", 0),
        *_BAND_RULES,
        band_has_its_width(),
        fits_memory(lambda a: expanding(a).shape, "pass fewer columns", columns=lambda rank: _HUGE),
    ),
    decisions=_BAND_DECISIONS,
    resolve=expanding,
    infer=_output(lambda p: p.shape),
    source="cuDNN graph API, OPERATION_EXPAND_BAND_MATRIX",
)
