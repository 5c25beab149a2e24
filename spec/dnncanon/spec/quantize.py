"""Quantization: from floating-point numbers to codes of few bits with a scale, and back.

*Linear*: one scale for a tensor, or one for each index of an axis, given by the caller; codes are integers
with a zero point, or 8-bit floats (ONNX's QuantizeLinear and DequantizeLinear).

*Block scaling*: one scale for each block of adjacent elements along an axis, found from the block's largest
magnitude (OCP's microscaling formats, NVFP4; cuDNN's block_scale_quantize and block_scale_dequantize).
"""

from dnncanon.spec.attributes import Choice, Integer
from dnncanon.spec.constraints import one_of
from dnncanon.spec.dtypes import FLOATS
from dnncanon.spec.elementwise import any_rank, legal_axis
from dnncanon.spec.primitive import REQUIRED, Attribute, DTypeRow, Primitive, TensorSpec, declare
from dnncanon.spec.quantize_domain import (
    boundaries_block_dequantize,
    boundaries_block_quantize,
    draw_block_dequantize,
    draw_block_quantize,
    draw_dequantize,
    draw_quantize,
    linear_boundaries,
    telling_block_scales,
    telling_blocks,
    telling_codes,
    telling_scales,
)
from dnncanon.spec.quantize_problem import (
    BLOCK_CODES,
    BLOCK_SCALES,
    CODES,
    LAYOUTS,
    WIDE,
    codes_and_scales,
    elements,
    like_x,
    resolve_block,
    resolve_linear,
)
from dnncanon.spec.quantize_rules import (
    axis_or_none,
    divides_axis,
    dtype_of,
    legal_zero_point,
    scale_for_each,
    scale_for_each_block,
    scale_like_x,
    tiled_rank,
    zero_point_like_scale,
)
from dnncanon.spec.values import POSITIVE

# --- Declarations: linear -------------------------------------------------------------------------

_QUANTIZED = tuple(DTypeRow(dtype, ("ieee",)) for dtype in FLOATS)

_X = TensorSpec("x", "*I", "numbers")
_X_CODES = TensorSpec("x", "*I", "codes")
_SCALE = TensorSpec("scale", "*S", "the distance of codes, > 0", values=POSITIVE)
_AXIS = Attribute(
    "axis", Integer(), "The dim with a scale for each index; None for one scale.", None
)
_INTO_CODES = "the arithmetic is float32's, float64's of float64 x"
_TIES = (
    "Which code a quotient rounds to is decided by the quotient, not by its last bits: x/scale may be off by "
    f"the roundings of a division, or of a product with 1/scale ({_INTO_CODES}). Where that reaches over the "
    "middle between two codes either is right; anywhere else there is one right code. With a scale that is a "
    "power of two the quotient is exact, and so is every code, ties included: they go to the even one."
)

_LINEAR_DECISIONS = (
    "ONNX's QuantizeLinear and DequantizeLinear, but that one scale for all and one for each channel are "
    "told apart by axis, which is None or a dim, not by the rank of scale. Blocks are block_scale_quantize's.",
    "A zero point is a code, that of 0. 8-bit floats have none, for they have a 0 of their own (ONNX allows "
    "an array of zeros).",
)

quantize_linear = declare(
    Primitive(
        name="quantize_linear",
        family="quantize",
        summary="Integers or 8-bit floats, and a scale that the caller gives, for numbers.",
        formula="""integers: y = clamp(round(x/scale) + zero_point, least code, largest code)
8-bit floats: y = round(clamp(x/scale, −largest, largest))
round: to the nearest number of the type, ties to even""",
        inputs=(
            _X,
            _SCALE,
            TensorSpec("zero_point", "*S", "the code of 0, of y's dtype", optional=True),
        ),
        outputs=(TensorSpec("y", "*I", "codes"),),
        attributes=(
            Attribute("dtype", Choice(CODES), "Element type of the codes.", REQUIRED),
            _AXIS,
        ),
        dtypes=_QUANTIZED,
        constraints=(
            any_rank("x"),
            one_of("dtype", CODES),
            dtype_of("x", tuple(FLOATS)),
            scale_like_x(),
            axis_or_none(),
            scale_for_each(),
            legal_zero_point("y"),
            zero_point_like_scale(),
        ),
        decisions=(
            *_LINEAR_DECISIONS,
            _TIES,
            "The zero point is added to what is rounded already, as in ONNX: with an odd zero point ties go to "
            "odd codes.",
            "Codes saturate, Inf included, and so do 8-bit floats (ONNX's saturate=1): large numbers do not "
            "become the Inf or NaN of a conversion.",
            "NaN gives NaN in 8-bit floats, and the code 0 in integers, as in every conversion to an integer "
            "here, whatever the zero point.",
            "scale is not looked at: x/0 is ±Inf and saturates, 0/0 and x/NaN are NaN, a negative scale "
            "changes signs. No test asks for one that is not > 0.",
            "The largest magnitude from which a scale is made is reduce_forward's, op amax, which cuDNN puts "
            "out beside 8-bit floats.",
        ),
        resolve=resolve_linear,
        infer=like_x,
        flops=lambda p: 2 * elements(p),
        reduction_length=lambda p: 1,
        domain=draw_quantize,
        boundaries=linear_boundaries(CODES, ("float32",)),
        consistent=telling_codes,
        source="ONNX QuantizeLinear, opset 23",
    )
)

dequantize_linear = declare(
    Primitive(
        name="dequantize_linear",
        family="quantize",
        summary="The numbers that integers or 8-bit floats and their scale stand for.",
        formula="y = (x − zero_point)·scale",
        inputs=(
            _X_CODES,
            _SCALE,
            TensorSpec("zero_point", "*S", "the code of 0, of x's dtype", optional=True),
        ),
        outputs=(TensorSpec("y", "*I", "numbers"),),
        attributes=(Attribute("dtype", Choice(WIDE), "Element type of y.", "float32"), _AXIS),
        dtypes=tuple(DTypeRow(dtype, ("widened",)) for dtype in CODES),
        constraints=(
            any_rank("x"),
            one_of("dtype", WIDE),
            dtype_of("x", CODES),
            dtype_of("scale", WIDE),
            axis_or_none(),
            scale_for_each(),
            legal_zero_point("x"),
            zero_point_like_scale(),
        ),
        decisions=(
            *_LINEAR_DECISIONS,
            "y has the dtype that is asked for, float32 by default, whatever that of scale is (ONNX's "
            "output_dtype). The arithmetic is float32's, rounded once to y's dtype.",
            "x − zero_point has 9 bits and is exact. ONNX's x of int32 is left out: float32 does not hold it.",
            "NaN and Inf of x or scale give what a product of floating-point numbers gives: 0·Inf is NaN.",
        ),
        resolve=resolve_linear,
        infer=like_x,
        flops=lambda p: 2 * elements(p),
        reduction_length=lambda p: 1,
        domain=draw_dequantize,
        boundaries=linear_boundaries(WIDE, WIDE),
        consistent=telling_scales,
        source="ONNX DequantizeLinear, opset 23",
    )
)

# --- Declarations: blocks -------------------------------------------------------------------------

_BLOCK_ATTRIBUTES = (
    Attribute("axis", Integer(), "The dim that is divided into blocks.", -1),
    Attribute("block_size", Integer(), "Elements of a block: 32 (MX), 16 (NVFP4).", REQUIRED),
    Attribute(
        "scale_layout",
        Choice(LAYOUTS),
        "One scale in place of each block, or tiles of 128×4 scales, as tensor cores read them.",
        "plain",
    ),
)
_BLOCK_RULES = (legal_axis("x"), divides_axis(), one_of("scale_layout", LAYOUTS), tiled_rank())
_BLOCK_DECISIONS = (
    "Any codes may go with any scales and block size. MXFP8 is float8_e4m3fn or float8_e5m2 with "
    "float8_e8m0fnu and 32, MXFP4 float4_e2m1fn with float8_e8m0fnu and 32, NVFP4 float4_e2m1fn with "
    "float8_e4m3fn and 16. A 4-bit number takes a byte of its own here.",
    "Blocks lie along one axis, whose extent is a multiple of their size, as cuDNN has it. Its blocks of two "
    "dims (dequantization only) are left out, and so is NEG_SCALE, of which nothing but the name is "
    "documented. Its transpose is a layout of y: strides say so.",
    'scale_layout="128x4" is cuDNN\'s F8_128x4: rows padded to 128 and blocks to 4, a tile of 512 bytes '
    "after the other. Its shape says so: [*batch, tiles of rows, tiles of blocks, 32, 4, 4], with row r and "
    "block c of a tile at [r % 32, r // 32, c]. Rows are the other one of the last two dims. What pads is the "
    "code 0, and is not read.",
)

block_scale_quantize = declare(
    Primitive(
        name="block_scale_quantize",
        family="quantize",
        summary="8-bit or 4-bit floats with a scale for each block, found from its largest magnitude.",
        formula="""scale = the least number s >= 0 of its type with max |x| <= largest·s, over the block
y = round(clamp(x/scale, −largest, largest)), and 0 where scale is 0
largest: 448 (e4m3), 57344 (e5m2), 6 (e2m1)
round: to the nearest number of the type, ties to even""",
        inputs=(_X,),
        outputs=(
            TensorSpec("y", "*I", "codes"),
            TensorSpec("scale", "*S", "a scale for each block"),
        ),
        attributes=(
            Attribute("dtype", Choice(BLOCK_CODES), "Element type of the codes.", REQUIRED),
            Attribute("scale_dtype", Choice(BLOCK_SCALES), "Element type of the scales.", REQUIRED),
            *_BLOCK_ATTRIBUTES,
        ),
        dtypes=_QUANTIZED,
        constraints=(
            any_rank("x"),
            dtype_of("x", tuple(FLOATS)),
            one_of("dtype", BLOCK_CODES),
            one_of("scale_dtype", BLOCK_SCALES),
            *_BLOCK_RULES,
        ),
        decisions=(
            *_BLOCK_DECISIONS,
            "The scale is max |x| / largest rounded up, as in cuDNN, so that nothing saturates. (OCP's "
            "specification suggests the power of two below, by which up to half of the largest numbers "
            "saturate; for NVFP4 others round to nearest.) The rule compares max |x|, which is exact, "
            "with numbers of few bits: there is one right scale. A division in float32 that is rounded "
            "correctly, and then up, finds it too.",
            _TIES,
            "Where no scale is large enough, for Inf and for what is beyond 448·6 with scales of e4m3, it is "
            "the largest finite one, and the codes saturate. A scale for the whole tensor, as NVFP4 has it, "
            "is a product with x before and with y after.",
            "A block of zeros, or of what is less than any scale, has the least scale: 2^-127 for e8m0, which "
            "has no 0, and 0 for e4m3. With the scale 0 codes are 0, not 0/0.",
            "A NaN makes the scale of its block NaN, and so what the block stands for: 4-bit floats have no "
            "NaN of their own. Its codes are NaN too, of 4-bit floats 0.",
            "Subnormal x count as what they are.",
        ),
        resolve=resolve_block,
        infer=codes_and_scales,
        flops=lambda p: 3 * elements(p),
        reduction_length=lambda p: p.block_size,
        domain=draw_block_quantize,
        boundaries=boundaries_block_quantize,
        consistent=telling_blocks,
        source="cuDNN graph API, BLOCK_SCALE_QUANTIZE; OCP Microscaling Formats (MX) 1.0",
    )
)

block_scale_dequantize = declare(
    Primitive(
        name="block_scale_dequantize",
        family="quantize",
        summary="The numbers that codes and the scales of their blocks stand for.",
        formula="y = x·scale of the block",
        inputs=(_X_CODES, TensorSpec("scale", "*S", "a scale for each block")),
        outputs=(TensorSpec("y", "*I", "numbers"),),
        attributes=(
            Attribute("dtype", Choice(WIDE), "Element type of y.", "float32"),
            *_BLOCK_ATTRIBUTES,
        ),
        dtypes=tuple(DTypeRow(dtype, ("widened",)) for dtype in BLOCK_CODES),
        constraints=(
            any_rank("x"),
            dtype_of("x", BLOCK_CODES),
            dtype_of("scale", BLOCK_SCALES),
            one_of("dtype", WIDE),
            *_BLOCK_RULES,
            scale_for_each_block(),
        ),
        decisions=(
            *_BLOCK_DECISIONS,
            "The product is exact in float32 but where it leaves float32's range, and is rounded once to y's "
            "dtype.",
            "A scale that is NaN (code 255 of e8m0) makes its block NaN. Scales of e4m3 may be negative or 0.",
        ),
        resolve=resolve_block,
        infer=like_x,
        flops=elements,
        reduction_length=lambda p: 1,
        domain=draw_block_dequantize,
        boundaries=boundaries_block_dequantize,
        consistent=telling_block_scales,
        source="cuDNN graph API, BLOCK_SCALE_DEQUANTIZE; OCP Microscaling Formats (MX) 1.0",
    )
)
