"""The steps of a normalization: reductions to statistics and sums, then one pass over the elements.

A primitive is a function of its steps, which are taken twice: once by :class:`Measured`, which adds up the
workspace that they need, and once by :class:`Launched`. Arrays are in the problem's view, in which the
elements of a set are those along some axes. What steps hand on is kept in the type of sums: nothing is
rounded to a narrower one in between.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dnncanon.gpu.kernels import norm, norm_rows
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.elementwise import elementwise
from dnncanon.gpu.kernels.reduction import Monoid, reduce, workspace_bytes
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.primitive import Implementation, Launch, Layouts
from dnncanon.gpu.runtime import Strided, View
from dnncanon.spec import dense_strides
from dnncanon.spec.norm import (
    BatchNormProblem,
    FinalizeProblem,
    FusedNormProblem,
    GenstatsProblem,
    NormProblem,
)

Array = Any
"""A DeviceArray, or a View where steps are measured only."""

Arrays = Mapping[str, Array]
Shape = tuple[int, ...]


class Steps(ABC):
    """What the steps of a call work on: its arrays by name, and how a step is taken.

    ``in_rows`` says that sets are normalised in one launch, not by reductions that may split them.
    """

    def __init__(self, dtype: str, inputs: Arrays, outputs: Arrays) -> None:
        self.dtype = dtype
        self.kind = ELEMENTS[dtype].sum_dtype.name
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)
        self.scratch = Scratch()
        self.in_rows = False

    def take(self, shape: Shape) -> Array:
        """An array of sums in the workspace."""
        name = str(self.scratch.count)
        self.scratch.add(name, shape, self.kind)
        return self._array(name, shape)

    @abstractmethod
    def _array(self, name: str, shape: Shape) -> Array:
        """An array of the workspace."""

    @abstractmethod
    def reduce(
        self,
        monoid: Monoid,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        axes: Shape,
        *scalars: float,
        of_row: Sequence[Array] = (),
        dtype: str | None = None,
    ) -> None:
        """``reduction.reduce`` of inputs the first of which is of a dtype, by default the call's."""

    def each(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        *scalars: float,
    ) -> None:
        """``elementwise.elementwise``."""
        self.run(elementwise, function, inputs, outputs, scalars)

    @abstractmethod
    def run(self, step: Callable[..., None], *arguments: Any) -> None:
        """A step that needs no workspace but what was taken."""


class Measured(Steps):
    """Steps that are not taken: ``scratch`` is the workspace that they need."""

    def __init__(self, layouts: Layouts[Any]) -> None:
        named = (layouts.inputs, layouts.outputs)
        inputs, outputs = ({n: View(a.shape, a.strides) for n, a in m.items()} for m in named)
        super().__init__(layouts.call.dtype, inputs, outputs)

    def _array(self, name: str, shape: Shape) -> Array:
        return View(shape, dense_strides(shape))

    def reduce(
        self,
        monoid: Monoid,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        axes: Shape,
        *scalars: float,
        of_row: Sequence[Array] = (),
        dtype: str | None = None,
    ) -> None:
        self.scratch.need(workspace_bytes(monoid, inputs[0], axes, dtype or self.dtype))

    def run(self, step: Callable[..., None], *arguments: Any) -> None:
        pass


class Launched(Steps):
    """Steps that are taken, one after the other on the call's stream.

    A reduction keeps its parts behind the arrays that there are by then. Later ones may lie there: the parts
    are read no more.
    """

    def __init__(self, run: Launch[Any]) -> None:
        super().__init__(run.dtype, run.inputs, run.outputs)
        self.stream = run.stream
        self.memory = run.workspace

    def _array(self, name: str, shape: Shape) -> Array:
        return self.scratch.array(name, self.memory)

    def reduce(
        self,
        monoid: Monoid,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        axes: Shape,
        *scalars: float,
        of_row: Sequence[Array] = (),
        dtype: str | None = None,
    ) -> None:
        workspace = self.scratch.rest(self.memory)
        reduce(
            monoid,
            inputs,
            outputs,
            axes,
            scalars,
            of_row=of_row,
            workspace=workspace,
            stream=self.stream,
        )

    def run(self, step: Callable[..., None], *arguments: Any) -> None:
        step(*arguments, stream=self.stream)


def implementations(steps: Callable[[Steps, Any], None]) -> list[Implementation[Any]]:
    """The algorithms that take these steps: with sets in one launch, if it is about sets, or split."""
    if steps not in OVER_SETS:
        return [_implementation("two_pass", steps, in_rows=False)]
    return [
        _implementation("rows", steps, in_rows=True),
        _implementation("two_pass", steps, in_rows=False),
    ]


def _implementation(
    name: str, steps: Callable[[Steps, Any], None], *, in_rows: bool
) -> Implementation[Any]:
    def run(launch: Launch[Any]) -> None:
        taken = Launched(launch)
        taken.in_rows = in_rows
        steps(taken, launch.problem)

    def workspace(layouts: Layouts[Any]) -> int:
        measured = Measured(layouts)
        measured.in_rows = in_rows
        steps(measured, layouts.problem)
        return measured.scratch.nbytes

    def pays(layouts: Layouts[Any]) -> bool:
        if not in_rows:
            return True
        p = getattr(layouts.problem, "norm", layouts.problem)
        x = View(p.view, split_strides(layouts.inputs["x"], p.view))
        return norm_rows.fills(x, p.axes)

    return Implementation(name, run, workspace, pays=pays)


# --- Views ----------------------------------------------------------------------------------------


def split_strides(array: Strided, view: Shape) -> Shape:
    """The strides of an array in a view that splits its dims, or has more of extent 1."""
    strides = [0] * len(view)
    at = 0
    for extent, stride in zip(array.shape, array.strides, strict=True):
        if extent == 1:
            continue
        first, product = at, 1
        while product != extent:
            product *= view[at]
            at += 1
        for dim in reversed(range(first, at)):
            if view[dim] != 1:
                strides[dim] = stride
                stride *= view[dim]
    return tuple(strides)


_DATA = ("x", "dy", "y", "z", "dx", "dz")
_PARAMETERS = ("scale", "bias", "dscale", "dbias")


def _in_view(s: Steps, p: NormProblem) -> dict[str, Array]:
    """All arrays of the call by name, so that they broadcast against the problem's view.

    They stay the same memory: a view of the output y is y.
    """
    views = dict.fromkeys(_DATA, p.view) | dict.fromkeys(_PARAMETERS, p.parameter_view)
    found = {}
    for name, array in {**s.inputs, **s.outputs}.items():
        view = views.get(name, p.statistics_view)
        found[name] = replace(array, shape=view, strides=split_strides(array, view))
    return found


def _those(arrays: Arrays, names: Sequence[str]) -> list[Array]:
    return [arrays[name] for name in names]


# --- Forward --------------------------------------------------------------------------------------


def batch_forward(s: Steps, p: BatchNormProblem) -> None:
    """Statistics and y; the running averages."""
    arrays = _forward(s, p.norm, relu=p.activation == "relu", averages=p.has_running)
    if p.has_running:
        _average(s, p, arrays)


def instance_forward(s: Steps, p: FusedNormProblem) -> None:
    """Statistics and y, with what is fused to it."""
    _forward(s, p.norm, relu=p.activation == "relu")


def norm_forward(s: Steps, p: NormProblem) -> None:
    """Statistics and y."""
    _forward(s, p, relu=False)


def _forward(s: Steps, p: NormProblem, *, relu: bool, averages: bool = False) -> Arrays:
    """Sets are normalised in one launch, or first reduced to their statistics."""
    arrays = _in_view(s, p)
    if "inv_rms" in arrays:
        arrays["inv_std"] = arrays["inv_rms"]
    flags = (_offset(p), int(p.centred), int(p.has_scale), int("bias" in arrays), int(relu))
    if s.in_rows:
        for name in ("mean", "variance") if averages else ():
            if name not in arrays:
                arrays[name] = s.take(p.statistics_view)
        parameters = [arrays.get(name) for name in ("scale", "bias")]
        statistics = [arrays.get(name) for name in _STATISTICS]
        operands = arrays["x"], parameters, arrays.get("z"), arrays["y"], statistics
        s.run(norm_rows.normalise, *operands, p.axes, (float(p.count), p.epsilon, *flags))
        return arrays
    _reduce_to_statistics(s, p, arrays)
    inv_std = arrays["inv_std"]
    residual = [arrays["z"]] if "z" in arrays else []
    broadcast = [arrays.get(name, inv_std) for name in ("mean", "inv_std", "scale", "bias")]
    given = (arrays["x"], *broadcast, *residual)
    s.each(norm.normalised(s.kind, residual=bool(residual)), given, (arrays["y"],), *flags)
    return arrays


def batch_inference(s: Steps, p: BatchNormProblem) -> None:
    """y by the given statistics."""
    arrays = _in_view(s, p.norm)
    residual = ("z",) if "z" in arrays else ()
    operands = _those(arrays, ("x", "mean", "variance", "scale", "bias", *residual))
    function = norm.by_given_statistics(s.kind, residual=bool(residual))
    s.each(function, operands, (arrays["y"],), p.norm.epsilon, int(p.activation == "relu"))


_STATISTICS = ("mean", "inv_std", "variance")


def _reduce_to_statistics(s: Steps, p: NormProblem, arrays: dict[str, Array]) -> None:
    """The statistics, in outputs if they are asked for, or in the workspace."""
    names = _STATISTICS if p.centred else _STATISTICS[1:]
    for name in names:
        if name not in arrays:
            arrays[name] = s.take(p.statistics_view)
    x, kept = arrays["x"], tuple(d for d in range(len(p.view)) if d not in p.axes)
    shape = norm_rows.splits_of(x, p.axes), *p.statistics_view
    parts = [_in_memory_order(s.take(shape), x, kept) for _ in range(3)]
    s.run(norm_rows.moments, x, parts, p.axes, int(p.centred))
    monoid = norm.statistics(s.kind, centred=p.centred)
    targets = [_under(arrays[name], shape) for name in names]
    s.reduce(monoid, parts, targets, (0,), float(p.count), p.epsilon, dtype=s.kind)


def _in_memory_order(parts: Array, x: Array, dims: Shape) -> Array:
    """Parts of which each has its entries, one for every index of these dims, in the order of x's memory."""
    strides, step = [0] * len(parts.shape), 1
    slowest_first = sorted(dims, key=lambda d: -abs(x.strides[d]))  # as Space has them
    for d in reversed(slowest_first):
        strides[1 + d] = step
        step *= parts.shape[1 + d]
    strides[0] = step
    return replace(parts, strides=tuple(strides))


def _average(s: Steps, p: BatchNormProblem, arrays: Arrays) -> None:
    weights = (1.0 - p.average_factor, p.average_factor)
    m = p.norm.count
    for name, batch, times in (("mean", "mean", 1.0), ("var", "variance", m / max(1, m - 1))):
        given = _those(arrays, (f"running_{name}", batch))
        s.each(norm.running, given, (arrays[f"new_running_{name}"],), *weights, times)


def _offset(p: NormProblem) -> float:
    return 1.0 if p.zero_centered_scale else 0.0


# --- Backward -------------------------------------------------------------------------------------


def batch_backward(s: Steps, p: BatchNormProblem) -> None:
    """The sums of each channel are its gradients, and what dx needs."""
    _backward(s, p.norm, fixed=p.fixed_statistics)


def instance_backward(s: Steps, p: FusedNormProblem) -> None:
    """That of the norm, for what a ReLU passes on."""
    norm_backward(s, p.norm)


def norm_backward(s: Steps, p: NormProblem) -> None:
    """Sums over what shares an entry of scale and bias, for their gradients; sums over each set, for dx."""
    _backward(s, p, fixed=False)


OVER_SETS = (
    batch_forward,
    batch_backward,
    instance_forward,
    instance_backward,
    norm_forward,
    norm_backward,
)


def _backward(s: Steps, p: NormProblem, *, fixed: bool) -> None:
    arrays = _in_view(s, p)
    if "inv_rms" in arrays:
        arrays["inv_std"] = arrays["inv_rms"]
    if s.in_rows:
        _backward_in_rows(s, p, arrays, fixed=fixed)
        return
    if "inv_std" not in arrays:
        _reduce_to_statistics(s, p, arrays)
    sums = s.take(p.statistics_view), s.take(p.statistics_view)
    if p.parameter_axes == p.axes:
        _add_up(s, p, arrays, sums, p.axes, scaled=False)
        _put_out(s, arrays, sums)
    else:
        _gradients_of_parameters(s, p, arrays)
        _add_up(s, p, arrays, sums, p.axes, scaled=p.has_scale)
    scaled = p.has_scale and p.parameter_axes != p.axes
    operands, masked = _operands(arrays)
    y = [arrays["y"]] if masked else []
    function = norm.input_gradient(s.kind, masked=masked, forked="dz" in arrays)
    scalars = _gradient_scalars(p, scaled=scaled, fixed=fixed)
    s.each(function, (*operands, *sums, *y), _gradients(arrays), *scalars)


def _backward_in_rows(s: Steps, p: NormProblem, arrays: dict[str, Array], *, fixed: bool) -> None:
    """dx by sets, and with it as much of the gradients of scale and bias as the sets allow.

    Where a set, or a stretch of it, has one entry of scale and bias, its sums are, or add up to, their
    gradients. Where all sets have the same entries, some sums of each are left, which a reduction adds up. Else
    there is a pass of its own.
    """
    wanted = [arrays.get(name) for name in ("dbias", "dscale")]
    by_set = all(p.parameter_view[d] == 1 for d in p.axes)
    segmented = not by_set and norm_rows.has_segments(
        [arrays[name] for name in ("dy", "x", "y", "dx", "dz") if name in arrays],
        p.parameter_view,
        p.axes,
    )
    sums, parts = [None, None], None
    if by_set and p.parameter_axes == p.axes:
        sums = wanted
    elif by_set or segmented:
        sums = [None if array is None else s.take(_entries(p)) for array in wanted]
    elif any(array is not None for array in wanted):
        parts = _parts(s, p, arrays, wanted)
        if parts is None:
            _own_pass(s, p, arrays)
    scalars = *_gradient_scalars(p, scaled=p.has_scale and not by_set, fixed=fixed), p.epsilon
    statistics = [arrays.get(name) for name in ("mean", "inv_std")]
    given = arrays.get("scale"), arrays.get("y"), _gradients(arrays), sums, parts
    operands = _those(arrays, ("dy", "x"))
    differentiate = partial(norm_rows.differentiate, segmented=segmented)
    s.run(differentiate, operands, statistics, *given, p.axes, scalars)
    if parts is not None:
        count = next(part.shape[0] for part in parts if part is not None)
        _add_parts(s, parts, wanted, (0,), (count, *p.parameter_view))
    elif sums != wanted:
        rest = tuple(d for d in p.parameter_axes if d not in p.axes)
        _add_parts(s, sums, wanted, rest, _entries(p))


def _entries(p: NormProblem) -> Shape:
    """An entry for each set and entry of scale."""
    pairs = zip(p.statistics_view, p.parameter_view, strict=True)
    return tuple(max(a, b) if 0 not in (a, b) else 0 for a, b in pairs)


def _parts(s: Steps, p: NormProblem, arrays: Arrays, wanted: Sequence[Array]) -> Any:
    """Room for sums of some sets for each entry of scale and bias; None where they are not to be had."""
    alike = all(
        extent == (p.view[d] if d in p.axes else 1) for d, extent in enumerate(p.parameter_view)
    )
    count = norm_rows.parts_of(arrays["dy"], p.axes, s.dtype) if alike else 0
    if count == 0:
        return None
    shape = (count, *p.parameter_view)
    return [
        None if array is None else _in_memory_order(s.take(shape), arrays["dy"], p.axes)
        for array in wanted
    ]


def _add_parts(
    s: Steps, parts: Sequence[Array], wanted: Sequence[Array], axes: Shape, shape: Shape
) -> None:
    """Add up parts, one array of them or two in one launch."""
    given = [part for part in parts if part is not None]
    targets = [_under(array, shape) for array in wanted if array is not None]
    if given:
        s.reduce(norm.SUMS[len(given)], given, targets, axes, dtype=s.kind)


def _under(array: Array, shape: Shape) -> Array:
    """An array of the view with leading dims of extent 1, to the rank of a shape."""
    missing = len(shape) - len(array.shape)
    return replace(
        array, shape=(1,) * missing + array.shape, strides=(0,) * missing + array.strides
    )


def _own_pass(s: Steps, p: NormProblem, arrays: dict[str, Array]) -> None:
    """dscale and dbias before the sets' turn, which would find their statistics by themselves."""
    if "inv_std" not in arrays:
        _reduce_to_statistics(s, p, arrays)
    _gradients_of_parameters(s, p, arrays)


def _gradients_of_parameters(s: Steps, p: NormProblem, arrays: Arrays) -> None:
    """dscale and dbias, which are asked for, in a pass of their own."""
    targets = [arrays[name] for name in ("dbias", "dscale") if name in arrays]
    if targets:
        which = tuple(k for k, name in enumerate(("dbias", "dscale")) if name in arrays)
        _add_up(s, p, arrays, targets, p.parameter_axes, scaled=False, which=which)


def _add_up(
    s: Steps,
    p: NormProblem,
    arrays: Arrays,
    sums: Sequence[Array],
    axes: Shape,
    *,
    scaled: bool,
    which: tuple[int, ...] = (0, 1),
) -> None:
    """Σ g and Σ g·x̂ over these axes, or ``which`` of them."""
    (dy, x, *broadcast), masked = _operands(arrays)
    monoid = norm.gradient_sums(s.kind, masked=masked, which=which)
    flags = (_offset(p), int(scaled), int(p.centred))
    elements = [dy, x, arrays["y"]] if masked else [dy, x]
    if all(array.shape[d] == 1 for array in broadcast for d in axes):
        of_row = [_standing_still(array) for array in broadcast]
        s.reduce(monoid, elements, sums, axes, *flags, of_row=of_row)
    else:
        s.reduce(monoid, elements + broadcast, sums, axes, *flags)


def _operands(arrays: Arrays) -> tuple[list[Array], bool]:
    """dy, x, mean, inv_std and scale, or what stands in for them; and whether a ReLU masks dy."""
    inv_std = arrays["inv_std"]
    broadcast = [arrays.get(name, inv_std) for name in ("mean", "inv_std", "scale")]
    return [arrays["dy"], arrays["x"], *broadcast], "y" in arrays


def _standing_still(array: Array) -> Array:
    """The array with stride 0 in the dims along which it is repeated."""
    dims = zip(array.shape, array.strides, strict=True)
    return replace(array, strides=tuple(0 if extent == 1 else stride for extent, stride in dims))


def _put_out(s: Steps, arrays: Arrays, sums: Sequence[Array]) -> None:
    """Round the sums to the gradients of bias and scale."""
    for name, total in zip(("dbias", "dscale"), sums, strict=True):
        if name in arrays:
            s.each(norm.same, (total,), (arrays[name],))


def _gradients(arrays: Arrays) -> list[Array]:
    return _those(arrays, ("dx", "dz") if "dz" in arrays else ("dx",))


def _gradient_scalars(p: NormProblem, *, scaled: bool, fixed: bool) -> tuple[float, ...]:
    """Those of ``norm.input_gradient``: γ is a factor of dy, or of what is left of the gradient."""
    flags = (scaled, p.has_scale and not scaled, p.centred, fixed)
    return float(max(1, p.count)), _offset(p), *map(int, flags)


# --- Batch norm in parts --------------------------------------------------------------------------


def genstats(s: Steps, p: GenstatsProblem) -> None:
    """Both sums in one pass."""
    x, rank = s.inputs["x"], len(p.x_shape)
    axes = (0, *range(2, rank))
    monoid = norm.sums_of_powers(s.kind, shifted=p.has_shift)
    given = [x]
    if p.has_shift:
        view = (1, p.x_shape[1], *(1,) * (rank - 2))
        shift = s.inputs["shift"]
        given.append(replace(shift, shape=view, strides=split_strides(shift, view)))
    s.reduce(monoid, given, (s.outputs["sum"], s.outputs["sq_sum"]), axes)


def finalize(s: Steps, p: FinalizeProblem) -> None:
    """Add up the shards of each channel, and make of the sums what a batch norm needs."""
    wanted = ("scale", "bias", "running_mean", "running_var", "shift")
    names = tuple(name for name in wanted if name in s.inputs)
    f, m = p.average_factor, p.count
    scalars = (float(m), p.epsilon, 1.0 - f, f, m / max(1, m - 1))
    sums, outputs = _those(s.inputs, ("sum", "sq_sum")), tuple(s.outputs.values())
    of_channel = _those(s.inputs, names)
    s.reduce(norm.finalized(s.kind, names), sums, outputs, (0,), *scalars, of_row=of_channel)


def backward_weights(s: Steps, p: BatchNormProblem) -> None:
    """The sums of each channel, and what follows from them."""
    arrays = _in_view(s, p.norm)
    sum_g, sum_gx = sums = [s.take(p.norm.statistics_view) for _ in range(2)]
    _add_up(s, p.norm, arrays, sums, p.norm.axes, scaled=False)
    _put_out(s, arrays, sums)
    operands = (sum_gx, sum_g, *_those(arrays, ("scale", "mean", "inv_std")))
    targets = _those(arrays, ("dy_factor", "x_factor", "offset"))
    s.each(norm.coefficients, operands, targets, float(p.norm.count))
