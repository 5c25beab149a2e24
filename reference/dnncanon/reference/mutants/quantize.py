"""Defects planted in the definitions of quantization."""

from dnncanon.spec.mutant import Mutant


def _mutant(
    name: str,
    kind: str,
    doc: str,
    old: str,
    new: str,
    primitive: str,
    dtypes: tuple[str, ...] = ("float32",),
) -> Mutant:
    module = "dnncanon.reference.quantize"
    return Mutant(
        f"reference.quantize_{name}", kind, doc, module, old, new, "reference", primitive, dtypes
    )


_LINEAR, _BACK = "quantize_linear", "dequantize_linear"
_BLOCKS, _FROM_BLOCKS = "block_scale_quantize", "block_scale_dequantize"

MUTANTS = (
    _mutant(
        "ties_away_from_zero",
        "precision",
        "what lies in the middle goes to the larger code",
        "whole = np.rint(quotient)",
        "whole = np.sign(quotient) * np.floor(np.abs(quotient) + 0.5)",
        _LINEAR,
    ),
    _mutant(
        "truncates",
        "precision",
        "codes are cut, not rounded",
        "whole = np.rint(quotient)",
        "whole = np.trunc(quotient)",
        _LINEAR,
    ),
    _mutant(
        "zero_point_added_before_rounding",
        "arithmetic",
        "ties go to even codes, not to even multiples of the scale",
        "        whole = whole + _of_axis(p, zero_point)",
        "        whole = np.rint(quotient + _of_axis(p, zero_point))",
        _LINEAR,
    ),
    _mutant(
        "wraps_around",
        "bounds",
        "codes beyond the ends come back from the other side",
        "return np.clip(whole, codes.min, codes.max)",
        "return (whole - codes.min) % 256 + codes.min",
        _LINEAR,
    ),
    _mutant(
        "float8_overflows",
        "bounds",
        "large numbers become Inf or NaN",
        "within = np.clip(values, -row.max, row.max)",
        "within = np.clip(values, -1e30, 1e30)",
        _LINEAR,
    ),
    _mutant(
        "float8_truncated",
        "precision",
        "mantissas are cut",
        "return np.rint(within / lift(spacing))",
        "return np.trunc(within / lift(spacing))",
        _LINEAR,
    ),
    _mutant(
        "float8_ties_away_from_zero",
        "precision",
        "what lies in the middle of two numbers goes to the larger one",
        "return np.rint(within / lift(spacing))",
        "return np.trunc(within / lift(spacing) + np.copysign(0.5, within))",
        _LINEAR,
    ),
    _mutant(
        "float8_without_subnormals",
        "special",
        "what is below the smallest normal number becomes 0",
        "within = np.clip(values, -row.max, row.max)",
        "within = np.clip(np.where(np.abs(values) < row.smallest_normal, 0.0, values), "
        "-row.max, row.max)",
        _LINEAR,
    ),
    _mutant(
        "axis_of_scales_is_the_last",
        "attribute",
        "scales are laid along the last dim that fits",
        "    return scale.reshape(p.scales_shape)",
        "    fits = [d for d, n in enumerate(p.shape) if n == scale.size]\n"
        "    return scale.reshape([-1 if fits[-1:] == [d] else 1 for d in range(len(p.shape))])",
        _LINEAR,
    ),
    _mutant(
        "zero_point_added_back",
        "arithmetic",
        "the zero point is added on the way back",
        "steps = x if zero_point is None else x - _of_axis(p, zero_point)",
        "steps = x if zero_point is None else x + _of_axis(p, zero_point)",
        _BACK,
        ("int8",),
    ),
    _mutant(
        "zero_point_scaled_apart",
        "arithmetic",
        "the zero point is taken off what is scaled already",
        "    return steps * _of_axis(p, scale)",
        "    return steps if zero_point is None else x * _of_axis(p, scale) - _of_axis(p, zero_point)",
        _BACK,
        ("uint8",),
    ),
    _mutant(
        "scale_rounded_down",
        "arithmetic",
        "the scale is the power of two below, and the largest numbers saturate",
        "        too_small += largest > most * number",
        "        too_small += largest >= 2.0 * most * number",
        _BLOCKS,
    ),
    _mutant(
        "scale_steps_at_the_edge",
        "bounds",
        "a block whose largest number the scale just holds gets the next one",
        "        too_small += largest > most * number",
        "        too_small += largest >= most * number",
        _BLOCKS,
    ),
    _mutant(
        "largest_not_smallest_magnitude",
        "special",
        "the largest number decides, whatever the most negative one is",
        "np.max(np.abs(blocks), axis=p.axis + 1, keepdims=True, initial=0.0)",
        "np.max(blocks, axis=p.axis + 1, keepdims=True, initial=0.0)",
        _BLOCKS,
    ),
    _mutant(
        "zero_by_zero",
        "special",
        "a block of zeros with the scale 0 is 0/0",
        "blocks / lift(np.where(scale == 0.0, 1.0, scale))",
        "blocks / lift(scale)",
        _BLOCKS,
    ),
    _mutant(
        "nan_forgotten",
        "special",
        "a NaN does not show in the scale of its block",
        "    return np.where(np.isnan(largest), np.nan, numbers[too_small])",
        "    return numbers[too_small]",
        _BLOCKS,
    ),
    _mutant(
        "tiles_of_rows_in_order",
        "index",
        "the rows of a tile follow each other",
        "    return parts.transpose(*_batch(p), *_behind(p, 0, 3, 2, 1, 4))\n\n\ndef out_of_tiles",
        "    return parts.transpose(*_batch(p), *_behind(p, 0, 3, 1, 2, 4)).reshape("
        "*p.scale_shape)\n\n\ndef out_of_tiles",
        _BLOCKS,
    ),
    _mutant(
        "tiles_read_as_they_lie",
        "index",
        "tiles are read as rows of blocks",
        "    parts = tiles.transpose(*_batch(p), *_behind(p, 0, 3, 2, 1, 4))",
        "    parts = tiles",
        _FROM_BLOCKS,
        ("float8_e4m3fn",),
    ),
    _mutant(
        "divided_on_the_way_back",
        "arithmetic",
        "codes are divided by their scale",
        "    blocks = x.reshape(p.blocked_shape) * np.expand_dims(plain, p.axis + 1)",
        "    blocks = x.reshape(p.blocked_shape) / np.expand_dims(plain, p.axis + 1)",
        _FROM_BLOCKS,
        ("float4_e2m1fn",),
    ),
)
