"""Normalization in one launch: a team of threads normalises a set, which it goes over three times.

For the mean, for the variance and for the result; backward for both sums and for the result, after the
statistics where they are not given. The first time it keeps what fits into shared memory (``kept``), the rest
it reads again. What all sets share, such as the scale of a layer norm, a block reads once, and the gradients of
that it adds up over its sets in the same pass: then only the sums of some blocks are left to be added up.

Sets are too few for one launch where a reduction would split them: then ``norm_steps`` takes one step after the
other, the first of which, ``moments``, is here.
"""

from collections.abc import Sequence
from dataclasses import replace

from dnncanon.gpu.kernels import norm_source as kernels
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.lines import signature_of
from dnncanon.gpu.kernels.norm_geometry import MANY, Geometry
from dnncanon.gpu.kernels.reduction import BLOCKS, EACH
from dnncanon.gpu.kernels.rows import Rows
from dnncanon.gpu.runtime import DeviceArray, Strided, blocks_for
from dnncanon.spec import DTYPES

Shape = tuple[int, ...]
Optional = Sequence[DeviceArray | None]

SETS, FEW = 16, 32
"""Sets that a block adds up at least before it hands on a sum for each element, so that those sums are a tenth
of what is moved; twice as many, by half as many blocks, where sums are twice as wide as elements. But there
are FEW blocks at least."""

SEGMENT = 32
"""Elements of a stretch of memory that a team adds up by itself at least."""

SUMMED_BYTES = 1 << 15
"""Of the elements of a set, in the type of sums, whose gradients a block adds up in shared memory at most."""


def fills(x: Strided, axes: Shape) -> bool:
    """Whether there are sets enough, or short ones, so that none is to be split."""
    rows = Rows.of(x.shape, axes, [x.strides], [0])
    blocks = blocks_for(rows.rows.size, rows.per_block)
    return rows.columns.size < 2 * EACH * rows.width or 2 * blocks > BLOCKS


def parts_of(x: Strided, axes: Shape, dtype: str) -> int:
    """How many sums of each element of a set ``differentiate`` leaves; 0 if it leaves none.

    A block has room for the sums of one set only, the elements of which have to be adjacent to one another
    rather than to those of other sets.
    """
    rows = Rows.of(x.shape, axes, [x.strides], [0])
    width = ELEMENTS[dtype].sum_dtype.itemsize
    if rows.spacing > 1 or rows.columns.size * width > SUMMED_BYTES:
        return 0
    sets, ratio = rows.rows.size, width // DTYPES[dtype].numpy.itemsize
    return max(min(MANY, -(-sets // (SETS * ratio))), min(FEW // ratio, sets))


def has_segments(arrays: Sequence[Strided], parameters: Shape, axes: Shape) -> bool:
    """Whether a set is a few stretches of memory, each with an entry of scale, as are the channels of a group.

    It has to be so in all ``arrays``, of one shape. ``parameters`` is that shape with extent 1 where an entry
    is repeated.
    """
    steps = [int(extent > 1) for extent in parameters]
    strides = [*(array.strides for array in arrays), steps]
    columns = Rows.of(arrays[0].shape, axes, strides, [0] * len(strides)).columns
    *outer, (length, inner) = zip(columns.extents, columns.strides[-1], strict=True)
    return inner == 0 and length >= SEGMENT and all(step or extent == 1 for extent, step in outer)


def normalise(
    x: DeviceArray,
    parameters: Optional,
    residual: DeviceArray | None,
    y: DeviceArray,
    statistics: Optional,
    axes: Shape,
    scalars: Sequence[float],
    stream: object,
) -> None:
    """y of x, scale, bias and z; and mean, inv_std, variance, all in the view. What is None there is not.

    Scalars: count, epsilon, and those of ``norm.normalised``.
    """
    inputs = [x, *(_or_nothing(given, x) for given in parameters)]
    if residual is not None:
        inputs.append(residual)
    outputs = [y, *(_or_sums(wanted, x) for wanted in statistics)]
    flags = [int(wanted is not None) for wanted in statistics]
    geometry = Geometry.of(inputs, outputs, 1, axes, kept=(0,), parts=0)
    lines = signature_of(inputs, outputs, (*scalars, *flags))
    chosen = kernels.forward(geometry.form(lines), residual is not None)
    geometry.launch(chosen, inputs, outputs, (*scalars, *flags), stream)


def differentiate(
    inputs: Sequence[DeviceArray],
    statistics: Optional,
    scale: DeviceArray | None,
    masking: DeviceArray | None,
    gradients: Sequence[DeviceArray],
    sums: Optional,
    parts: Optional | None,
    axes: Shape,
    scalars: Sequence[float],
    *,
    segmented: bool,
    stream: object,
) -> None:
    """dx, and dz, of ``inputs`` dy and x, mean and inv_std, scale, and y if a ReLU is ``masking``.

    ``sums`` are those of dy and dy·x̂ over each set or, if it is ``segmented``, each stretch of it. ``parts``
    are those of each element over some of the sets, with a first dim of ``parts_of``. Without an inv_std the
    statistics are those of x. Scalars: those of ``norm.input_gradient``, and epsilon.
    """
    x, own = inputs[1], statistics[1] is None
    mean, inv_std = (_or_sums(given, x) for given in statistics)
    if statistics[0] is None and not own:
        mean = inv_std
    given = [*inputs, mean, inv_std, _or_nothing(scale, x)]
    if masking is not None:
        given.append(masking)
    elements = len(gradients)
    outputs = [*gradients, *(_or_sums(wanted, x) for wanted in (*sums, *(parts or ())))]
    flags = [int(wanted is not None) for wanted in (*sums, *(parts or ()))]
    first = next((part for part in parts or () if part is not None), None)
    read = (0, 1) if masking is None else (0, 1, 5)
    geometry = Geometry.of(
        given,
        outputs[: elements + 2],
        elements,
        axes,
        read,
        0 if first is None else first.shape[0],
        segmented=segmented,
    )
    lines = signature_of(given, outputs, (*scalars, *flags))
    chosen = kernels.backward(geometry.form(lines), masking is not None, own)
    geometry.launch(chosen, given, outputs, (*scalars, *flags), stream)


def _or_nothing(array: DeviceArray | None, x: DeviceArray) -> DeviceArray:
    """What stands in for an absent parameter, and is not read."""
    return replace(x, strides=(0,) * x.ndim) if array is None else array


def _or_sums(array: DeviceArray | None, x: DeviceArray) -> DeviceArray:
    """What stands in for absent numbers of sets, and is not touched; a kernel sees their type."""
    if array is not None:
        return array
    return replace(x, dtype=ELEMENTS[x.dtype.name].sum_dtype, strides=(0,) * x.ndim)


def splits_of(x: Strided, axes: Shape) -> int:
    """Into how many stretches ``moments`` divides sets, so that they fill a GPU."""
    rows = Rows.of(x.shape, axes, [x.strides], [0])
    blocks = blocks_for(rows.rows.size, rows.per_block)
    return max(1, min(rows.columns.size // (EACH * rows.width), BLOCKS // blocks))


def moments(
    x: DeviceArray,
    outputs: Sequence[DeviceArray],
    axes: Shape,
    centred: int,
    stream: object,
) -> None:
    """Σ x, Σ (x − mean)² and the number of elements of each stretch of a set; or Σ x² without ``centred``.

    ``outputs`` have as many entries as ``splits_of``, in each one for every set, in the order of x's memory.
    """
    geometry = Geometry.of([x], [], 0, axes, kept=(0,), parts=0)
    lines = signature_of([x], outputs, (centred,))
    splits = outputs[0].shape[0]
    stretch = -(-geometry.rows.columns.size // splits)
    geometry.launch(
        kernels.moments(geometry.form(lines)),
        [x],
        outputs,
        (centred,),
        stream,
        splits=(splits, stretch),
    )
