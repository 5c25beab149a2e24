"""Defects planted in the definitions of data movement."""

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
    full, module = f"reference.movement_{name}", "dnncanon.reference.movement"
    return Mutant(full, kind, doc, module, old, new, "reference", primitive, dtypes)


MUTANTS = (
    _mutant(
        "vectors_of_far_channels",
        "index",
        "a vector has every C/v-th channel",
        "x.reshape(n, c // p.width, p.width, *space), 2, -1)",
        "x.reshape(n, p.width, c // p.width, *space), 1, -1)",
        "vectorize_channels",
    ),
    _mutant(
        "vectors_left_apart",
        "index",
        "the elements stay in the order of the vectors",
        "return np.moveaxis(x, -1, 2).reshape(p.shape)",
        "return x.reshape(p.shape)",
        "unvectorize_channels",
    ),
    _mutant(
        "depth_in_one_order",
        "attribute",
        "the depth is DCR whatever order says",
        'if p.order == "DCR":  # n, p0',
        "if p.order:  # n, p0",
        "depth_to_space",
    ),
    _mutant(
        "pads_swapped",
        "attribute",
        "what goes before goes behind",
        "widths = list(zip(p.pre, p.post, strict=True))",
        "widths = list(zip(p.post, p.pre, strict=True))",
        "pad",
    ),
    _mutant(
        "pads_with_zeros",
        "attribute",
        "the value is 0",
        "return np.pad(x, widths, constant_values=number(p.value, p.dtype))",
        "return np.pad(x, widths)",
        "pad",
    ),
    _mutant(
        "crop_from_the_start",
        "bounds",
        "a crop takes away behind only",
        "x[tuple(slice(pre, pre + extent) for pre, extent in dims)]",
        "x[tuple(slice(0, extent) for pre, extent in dims)]",
        "crop",
    ),
    _mutant(
        "orders_swapped",
        "attribute",
        "depth goes behind the channel where it goes before it",
        'depth = [*places, 1] if p.order == "DCR" else [1, *places]',
        'depth = [*places, 1] if p.order == "CRD" else [1, *places]',
        "space_to_depth",
    ),
    _mutant(
        "parts_from_the_start",
        "index",
        "every part begins where the whole does",
        "dy[(*before, slice(start, start + size))]",
        "dy[(*before, slice(0, size))]",
        "concat_backward",
    ),
    _mutant(
        "slice_stride_ignored",
        "attribute",
        "a slice has all elements from start on",
        "return tuple(map(slice, p.start, p.limit, p.stride))",
        "return tuple(slice(a, a + n) for a, n in zip(p.start, p.sliced_shape))",
        "slice_forward",
    ),
    _mutant(
        "gradient_before_its_place",
        "index",
        "dy goes where it would without a start",
        "widths = [(start, room) if dim == axis else (0, 0) for dim in range(x.ndim)]",
        "widths = [(0, room + start) if dim == axis else (0, 0) for dim in range(x.ndim)]",
        "slice_backward",
    ),
    _mutant(
        "permutation_inverted",
        "index",
        "dims go to the places that they should come from",
        "return np.transpose(x, p.permutation)",
        "return np.transpose(x, np.argsort(p.permutation))",
        "transpose",
    ),
    _mutant(
        "bandwidths_swapped",
        "attribute",
        "upper is taken for lower",
        "np.arange(rows)[:, None] + np.arange(p.width) - p.lower",
        "np.arange(rows)[:, None] + np.arange(p.width) - p.upper",
        "contract_band_matrix",
    ),
    _mutant(
        "band_wraps_round",
        "bounds",
        "entries before the first column come from the last ones",
        "entry = np.where((entry >= 0) & (entry < extent), entry, extent)",
        "entry = np.where(entry < extent, entry, extent) % (extent + 1)",
        "expand_band_matrix",
    ),
)
