"""The spatial transformer: grids of affine maps, sampling at the points of a grid, and their gradients.

Symbols: N batch, C channels, I input extents, O output extents, one of each for both or all three dims D of
the images.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from dnncanon.spec import sampler_domain
from dnncanon.spec.attributes import Flag, PerDim, per_dim, shown
from dnncanon.spec.constraints import one_dtype, one_of
from dnncanon.spec.elementwise import true_or_false
from dnncanon.spec.errors import AttributeValueError, ShapeError
from dnncanon.spec.primitive import (
    Arguments,
    Attribute,
    Constraint,
    DTypeRow,
    Primitive,
    TensorSpec,
    declare,
)
from dnncanon.spec.sampler_problem import (
    ALIGN_CORNERS,
    DIMS,
    MODES,
    OUTPUT_SIZE,
    PADDING_MODES,
    SAMPLING,
    AffineGridProblem,
    GridSampleProblem,
    grid_dims,
    resolve_affine,
    resolve_sample,
)
from dnncanon.spec.tensors import Shape, TensorType

__all__ = [
    "AffineGridProblem",
    "GridSampleProblem",
    "affine_grid_backward",
    "affine_grid_forward",
    "grid_sample_backward",
    "grid_sample_forward",
]

DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz")),
    DTypeRow("float16", ("ieee", "ftz")),
    DTypeRow("bfloat16", ("ieee", "ftz")),
)


# --- Constraints ----------------------------------------------------------------------------------


def _theta() -> Constraint:
    def check(a: Arguments) -> str | None:
        shape = a.tensors["theta"].shape
        if len(shape) == 3 and shape[1:] in ((2, 3), (3, 4)):
            return None
        return f"theta has shape {shape}; pass [N, 2, 3] for images or [N, 3, 4] for volumes"

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, d, columns = a.tensors["theta"].shape
        for shape in ((n, d, columns + 1), (n, d), (n, 1, 2), (n, d, columns, 1)):
            yield a.with_tensor("theta", shape=shape, strides=None)

    return Constraint("theta has the shape [N, 2, 3] or [N, 3, 4].", ShapeError, check, violate)


def _output_size() -> Constraint:
    def check(a: Arguments) -> str | None:
        value = a.attributes["output_size"]
        try:
            extents = per_dim(value, grid_dims(a))
        except ValueError as wrong:
            return f"output_size={wrong}; pass {PerDim().describes}"
        if min(extents) >= 0 and math.prod(extents) < 2**60:
            return None
        return f"output_size={shown(value)}; pass integers >= 0, of a product below 2^60"

    def violate(a: Arguments) -> Iterator[Arguments]:
        dims = grid_dims(a)
        for value in (-1, (1,) * (dims + 1), (1.5,) * dims, (2**30,) * dims, "1"):
            yield a.with_attributes(output_size=value)

    text = "output_size >= 0 for each dim of the images, of a product below 2^60."
    return Constraint(text, AttributeValueError, check, violate)


def _points(name: str) -> Constraint:
    """A grid by itself."""
    text = f"{name} has the shape [N, O, D], with two extents O and D = 2, or three and D = 3."

    def check(a: Arguments) -> str | None:
        shape = a.tensors[name].shape
        if len(shape) - 2 in DIMS and shape[-1] == len(shape) - 2:
            return None
        return f"{name} has shape {shape}; pass [N, H, W, 2] for images or [N, D, H, W, 3]"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = a.tensors[name].shape
        for wrong in ((*shape, 1), shape[1:], (*shape[:-1], shape[-1] + 1)):
            yield a.with_tensor(name, shape=wrong, strides=None)

    return Constraint(text, ShapeError, check, violate)


def _images() -> Constraint:
    text = "x has the shape [N, C, I] with two or three extents I, each >= 1."

    def check(a: Arguments) -> str | None:
        shape = a.tensors["x"].shape
        if len(shape) - 2 in DIMS and min(shape[2:]) >= 1:
            return None
        return (
            f"x has shape {shape}; pass [N, C, H, W] or [N, C, D, H, W] with spatial extents >= 1"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = a.tensors["x"].shape
        for wrong in ((*shape, 1, 1), shape[:3], (*shape[:-1], 0)):
            yield a.with_tensor("x", shape=wrong, strides=None)

    return Constraint(text, ShapeError, check, violate)


def _shaped(name: str, text: str, expected: Callable[[Arguments], Shape]) -> Constraint:
    """A tensor whose extents follow from the tensors before it, but for those that are −1."""

    def check(a: Arguments) -> str | None:
        shape, wanted = a.tensors[name].shape, expected(a)
        fits = len(shape) == len(wanted) and all(
            want in (-1, got) for got, want in zip(shape, wanted, strict=True)
        )
        if fits:
            return None
        listed = ", ".join("any" if want < 0 else str(want) for want in wanted)
        return f"{name} has shape {shape}; pass {text} = ({listed})"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape, wanted = a.tensors[name].shape, expected(a)
        yield a.with_tensor(name, shape=(*shape, 1), strides=None)
        for dim, want in enumerate(wanted):
            if want >= 0:
                wrong = (*shape[:dim], want + 1, *shape[dim + 1 :])
                yield a.with_tensor(name, shape=wrong, strides=None)

    return Constraint(f"{name} has the shape {text}.", ShapeError, check, violate)


def _grid_of_x(a: Arguments) -> Shape:
    batch, _, *extents = a.tensors["x"].shape
    return (batch, *(-1 for _ in extents), len(extents))


def _gradient_of_y(a: Arguments) -> Shape:
    x, grid = a.tensors["x"].shape, a.tensors["grid"].shape
    return (*x[:2], *grid[1:-1])


def _something_wanted() -> Constraint:
    def check(a: Arguments) -> str | None:
        if a.attributes["return_dx"] or a.attributes["return_dgrid"]:
            return None
        return "return_dx=False and return_dgrid=False; pass True for one of them, or for both"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(return_dx=False, return_dgrid=False)

    text = "return_dx or return_dgrid is True."
    return Constraint(text, AttributeValueError, check, violate)


# --- Affine grids ---------------------------------------------------------------------------------

_POINTS = """
u(o) is the point o of the plain grid, (x, y) or (x, y, z): along a dim of extent e, at the index i in it,
align_corners 2i/(e − 1) − 1, or 0 if e = 1;        otherwise (2i + 1)/e − 1
x comes from the last dim, y from the one before it, z from the first"""

_GRID_DECISIONS = (
    "Points are (x, y) or (x, y, z), x along the last dim, in the last dim of the grid (cuDNN, PyTorch).",
    "align_corners=True is cuDNN's only convention, and the default; PyTorch's default is False.",
    "With corners aligned, a dim of extent 1 has its one point in the middle, at 0 (PyTorch); the formula, "
    "and cuDNN's documentation, leave 0/0.",
    "Plain coordinates are made as the formula says: rounded as a quotient, and once more as a difference, so "
    "that they are accurate absolutely, to a unit in the last place of 1, not beside the middle of the image.",
    "A plain coordinate of 0, in the middle of an odd extent, is multiplied like others: NaN and Inf spread, "
    "and Inf·0 is NaN.",
    "Volumes have θ [N, 3, 4]; cuDNN has images alone.",
    "N and O may be 0; dθ of no points is 0.",
)


def _grid(p: AffineGridProblem) -> tuple[TensorType]:
    return (TensorType(p.dtype, p.grid_shape),)


def _dtheta(p: AffineGridProblem) -> tuple[TensorType]:
    return (TensorType(p.dtype, p.theta_shape),)


def _affine(name: str, **rest: Any) -> Primitive[AffineGridProblem]:
    """What both have in common."""
    forward = name.endswith("forward")
    return declare(
        Primitive(
            name=name,
            family="sampler",
            dtypes=DTYPES,
            decisions=_GRID_DECISIONS,
            resolve=resolve_affine,
            flops=lambda p: 2 * p.dims * math.prod(p.grid_shape),
            reduction_length=lambda p: p.dims + 1 if forward else math.prod(p.output_size),
            domain=sampler_domain.DOMAINS[name],
            boundaries=sampler_domain.BOUNDARIES[name],
            **rest,
        )
    )


affine_grid_forward = _affine(
    "affine_grid_forward",
    summary="Where the points of a plain grid go by an affine map.",
    formula="grid[n, o, k] = Σ_j θ[n, k, j]·u(o)[j] + θ[n, k, D]" + _POINTS,
    inputs=(TensorSpec("theta", "N D D+1", "affine maps θ, the translation in the last column"),),
    outputs=(TensorSpec("grid", "N *O D", "points in coordinates from −1 to 1"),),
    attributes=(OUTPUT_SIZE, ALIGN_CORNERS),
    constraints=(_theta(), one_dtype(DTYPES), _output_size(), true_or_false("align_corners")),
    infer=_grid,
    source="cuDNN cudnnSpatialTfGridGeneratorForward; Jaderberg et al. 2015, equation 1",
)

affine_grid_backward = _affine(
    "affine_grid_backward",
    summary="Gradient of an affine grid by its map.",
    formula="dθ[n, k, j] = Σ_o dgrid[n, o, k]·u(o)[j],        dθ[n, k, D] = Σ_o dgrid[n, o, k]"
    + _POINTS,
    inputs=(TensorSpec("dgrid", "N *O D", "gradient of the loss by grid"),),
    outputs=(TensorSpec("dtheta", "N D D+1", "gradient of the loss by theta"),),
    attributes=(ALIGN_CORNERS,),
    constraints=(_points("dgrid"), one_dtype(DTYPES), true_or_false("align_corners")),
    infer=_dtheta,
    source="cuDNN cudnnSpatialTfGridGeneratorBackward",
)


# --- Sampling -------------------------------------------------------------------------------------

_COORDINATES = """
c is the point in cells, for each dim of I cells with the grid's coordinate g, x being along the last dim:
align_corners c = (g + 1)·(I − 1)/2;        otherwise c = ((g + 1)·I − 1)/2
border      c is held within 0…I − 1
reflection  c is reflected, as often as it takes, at 0 and I − 1, or at −½ and I − ½ with corners not aligned;
            then held within 0…I − 1"""

_SAMPLE_DECISIONS = (
    "Logical order is (N, C, spatial…) in any memory layout. Inputs may have gaps and stride 0, which cuDNN "
    "refuses; the elements of an output have addresses of their own.",
    "cuDNN's sampler is mode linear, padding_mode zeros, align_corners=True: the defaults. Other modes and "
    "names are PyTorch's, as is what they mean; PyTorch's default is align_corners=False.",
    "Of two cells at one distance the nearest is the one with the even index (PyTorch, ONNX).",
    "The coordinate is made as the formula says: g + 1 first. Coordinates of few bits are then exact, and so "
    "is on which side of a border they are.",
    "A cell of weight 0, and one outside of x, is not read: its NaN or Inf does not spread. Frameworks "
    "multiply it by 0.",
    "A point with a coordinate c that is NaN lies nowhere: y is NaN there in all channels, dgrid of linear "
    "is NaN, and dx gets nothing. PyTorch says that NaN means −1, but not all of its kernels agree.",
    "An infinite g is outside (zeros) or at the edge (border). It cannot be reflected: c is NaN. So it is for "
    "one cell with corners aligned, where c = g·0.",
    "Any finite g has a meaning, however large.",
    "The slope by c is that to the right of c where c is a whole number: ∂w/∂c is −1 for cell ⌊c⌋ and 1 for "
    "cell ⌊c⌋ + 1. At and beyond 0 and I − 1 it is 0 with border and reflection (PyTorch). Where c has been "
    "reflected an odd number of times, it changes its sign.",
    "Where the slope is 0 for such a reason, or because one cell with corners aligned has I − 1 = 0, dgrid "
    "is 0 whatever x and dy are. It is 0 for mode nearest.",
    "Sums are kept at float32 or better, in any order, and rounded once, to nearest even. Forward, nearest "
    "moves values and rounds nothing. Results of the library are the same in every run; cuDNN's dx is not.",
    "x and grid have one dtype: a float16 grid over more than 1024 cells is coarser than these.",
    "N, C and O may be 0; I may not, for there is nothing to sample from.",
)


def _y(p: GridSampleProblem) -> tuple[TensorType]:
    return (TensorType(p.dtype, p.y_shape),)


def _gradients(p: GridSampleProblem) -> tuple[TensorType | None, TensorType | None]:
    dx = TensorType(p.dtype, p.x_shape) if p.return_dx else None
    return dx, TensorType(p.dtype, p.grid_shape) if p.return_dgrid else None


def _overlap(p: GridSampleProblem) -> int:
    """Products that a sum of the gradients has: over channels, or over points with a share in a cell."""
    points = math.prod(p.output_size) * p.taps
    return max(p.channels * p.taps, -(-points // math.prod(p.input_size)))


def _sampling(name: str, **rest: Any) -> Primitive[GridSampleProblem]:
    """What both have in common."""
    forward = name.endswith("forward")
    return declare(
        Primitive(
            name=name,
            family="sampler",
            dtypes=DTYPES,
            decisions=_SAMPLE_DECISIONS,
            resolve=resolve_sample,
            flops=lambda p: (2 if forward else 4) * p.taps * math.prod(p.y_shape),
            reduction_length=lambda p: p.taps if forward else _overlap(p),
            domain=sampler_domain.DOMAINS[name],
            boundaries=sampler_domain.BOUNDARIES[name],
            consistent=sampler_domain.plain_points,
            may_copy=True,
            **rest,
        )
    )


_X = TensorSpec("x", "N C *I", "images")
_GRID = TensorSpec("grid", "N *O D", "points in coordinates from −1 to 1")
_LEGAL_SAMPLING = (
    one_of("mode", MODES),
    one_of("padding_mode", PADDING_MODES),
    true_or_false("align_corners"),
    _images(),
    _shaped("grid", "[N, O, D], N and D being those of x", _grid_of_x),
)

grid_sample_forward = _sampling(
    "grid_sample_forward",
    summary="Images at the points of a grid, by linear interpolation or from the nearest cell.",
    formula="linear:  y[n, c, o] = Σ_i max(0, 1 − |c(n, o) − i|) · x[n, c, i]"
    "        with a factor for each dim"
    "\nnearest: y[n, c, o] = x[n, c, c(n, o) rounded]"
    "\nx being 0 outside of 0…I − 1" + _COORDINATES,
    inputs=(_X, _GRID),
    outputs=(TensorSpec("y", "N C *O", "output"),),
    attributes=SAMPLING,
    constraints=(one_dtype(DTYPES), *_LEGAL_SAMPLING),
    infer=_y,
    source="cuDNN cudnnSpatialTfSamplerForward; Jaderberg et al. 2015, equation 5; "
    "PyTorch grid_sample; ONNX GridSample",
)

grid_sample_backward = _sampling(
    "grid_sample_backward",
    summary="Gradients of sampling at the points of a grid.",
    formula="dx[n, c, i] = Σ_o w(n, o, i)·dy[n, c, o]"
    "\ndgrid[n, o, k] = ∂c/∂g · Σ_{c, i} ∂w(n, o, i)/∂c · x[n, c, i]·dy[n, c, o]"
    "\nw being Π max(0, 1 − |c(n, o) − i|), or for nearest 1 where i is c rounded" + _COORDINATES,
    inputs=(TensorSpec("dy", "N C *O", "gradient of the loss by y"), _X, _GRID),
    outputs=(
        TensorSpec("dx", "N C *I", "gradient of the loss by x", optional=True),
        TensorSpec("dgrid", "N *O D", "gradient of the loss by grid", optional=True),
    ),
    attributes=(
        *SAMPLING,
        Attribute("return_dx", Flag(), "Whether dx is put out.", True),
        Attribute("return_dgrid", Flag(), "Whether dgrid is put out.", True),
    ),
    constraints=(
        one_dtype(DTYPES),
        *_LEGAL_SAMPLING,
        _shaped("dy", "[N, C, O], of x and grid", _gradient_of_y),
        true_or_false("return_dx"),
        true_or_false("return_dgrid"),
        _something_wanted(),
    ),
    infer=_gradients,
    source="cuDNN cudnnSpatialTfSamplerBackward",
)
