"""The steps of a normalization: reductions to statistics and sums, then one pass over the elements.

A primitive is a function of its steps, which are taken twice: once by :class:`Measured`, which adds up the
workspace that they need, and once by :class:`Launched`. Arrays are in the problem's view, in which the
elements of a set are those along some axes. What steps hand on is kept in the type of sums: nothing is
rounded to a narrower one in between.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dnncanon.gpu.kernels import norm, norm_rows
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.elementwise import elementwise
from dnncanon.gpu.kernels.reduction import SUM, Monoid, reduce, workspace_bytes
from dnncanon.gpu.primitive import Implementation, Launch, Layouts
from dnncanon.gpu.runtime import Strided, View, empty, reinterpret
from dnncanon.spec import dense_strides
from dnncanon.spec.norm import BatchNormProblem, FinalizeProblem, GenstatsProblem, NormProblem

Array = Any
"""A DeviceArray, or a View where steps are measured only."""

Arrays = Mapping[str, Array]
Shape = tuple[int, ...]

_ALIGNMENT = 16


class Steps(ABC):
    """What the steps of a call work on: its arrays by name, and how a step is taken.

    ``in_rows`` says that sets are normalised in one launch, not by reductions that may split them.
    """

    def __init__(self, dtype: str, inputs: Arrays, outputs: Arrays) -> None:
        self.dtype = dtype
        self.kind = ELEMENTS[dtype].sum_dtype.name
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)
        self.used = 0
        self.in_rows = False

    @abstractmethod
    def take(self, shape: Shape) -> Array:
        """An array of sums in the workspace."""

    @abstractmethod
    def reduce(
        self,
        monoid: Monoid,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        axes: Shape,
        *scalars: float,
    ) -> None:
        """``reduction.reduce``."""

    @abstractmethod
    def each(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        *scalars: float,
    ) -> None:
        """``elementwise.elementwise``."""

    @abstractmethod
    def normalise(
        self, inputs: Sequence[Array], outputs: Sequence[Array], axes: Shape, *scalars: float
    ) -> None:
        """``norm_rows.normalise``."""

    @abstractmethod
    def differentiate(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        axes: Shape,
        *scalars: float,
        masked: bool,
    ) -> None:
        """``norm_rows.differentiate``."""

    def _placed(self, shape: Shape) -> int:
        """Where the next array of this shape begins; the ones after it begin behind it."""
        start = self.used
        nbytes = math.prod(shape) * ELEMENTS[self.dtype].sum_dtype.itemsize
        self.used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return start


class Measured(Steps):
    """Steps that are not taken; ``nbytes`` is the workspace that they need."""

    def __init__(self, layouts: Layouts[Any]) -> None:
        named = (layouts.inputs, layouts.outputs)
        inputs, outputs = ({n: View(a.shape, a.strides) for n, a in m.items()} for m in named)
        super().__init__(layouts.call.dtype, inputs, outputs)
        self.nbytes = 0

    def take(self, shape: Shape) -> Array:
        self._placed(shape)
        self.nbytes = max(self.nbytes, self.used)
        return View(shape, dense_strides(shape))

    def reduce(
        self,
        monoid: Monoid,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        axes: Shape,
        *scalars: float,
    ) -> None:
        needed = workspace_bytes(monoid, inputs[0], axes, self.dtype)
        self.nbytes = max(self.nbytes, self.used + needed)

    def each(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        *scalars: float,
    ) -> None:
        pass

    def normalise(
        self, inputs: Sequence[Array], outputs: Sequence[Array], axes: Shape, *scalars: float
    ) -> None:
        pass

    def differentiate(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        axes: Shape,
        *scalars: float,
        masked: bool,
    ) -> None:
        pass


class Launched(Steps):
    """Steps that are taken, one after the other on the call's stream.

    A reduction keeps its parts behind the arrays that there are by then. Later ones may lie there: the parts
    are read no more.
    """

    def __init__(self, run: Launch[Any]) -> None:
        super().__init__(run.dtype, run.inputs, run.outputs)
        self.stream = run.stream
        memory = run.workspace
        self.memory = None if memory is None else reinterpret(memory, np.dtype(np.uint8))

    def _from(self, start: int) -> Array:
        """The workspace from a byte on; None if there is nothing left."""
        if self.memory is None or start >= self.memory.size:
            return None
        left = self.memory.size - start
        return replace(self.memory, pointer=self.memory.pointer + start, shape=(left,))

    def take(self, shape: Shape) -> Array:
        start = self._placed(shape)
        if math.prod(shape) == 0:  # there may be no workspace to point to
            return empty(shape, ELEMENTS[self.dtype].sum_dtype)
        memory = self._from(start)
        flat = reinterpret(memory, ELEMENTS[self.dtype].sum_dtype)
        return replace(flat, shape=shape, strides=dense_strides(shape))

    def reduce(
        self,
        monoid: Monoid,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        axes: Shape,
        *scalars: float,
    ) -> None:
        workspace = self._from(self.used)
        reduce(monoid, inputs, outputs, axes, scalars, workspace=workspace, stream=self.stream)

    def each(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        *scalars: float,
    ) -> None:
        elementwise(function, inputs, outputs, scalars, stream=self.stream)

    def normalise(
        self, inputs: Sequence[Array], outputs: Sequence[Array], axes: Shape, *scalars: float
    ) -> None:
        norm_rows.normalise(inputs, outputs, axes, scalars, self.stream)

    def differentiate(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        axes: Shape,
        *scalars: float,
        masked: bool,
    ) -> None:
        norm_rows.differentiate(inputs, outputs, axes, scalars, self.stream, masked=masked)


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
        return measured.nbytes

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
    arrays = _forward(s, p.norm, relu=p.activation == "relu")
    if p.has_running:
        _average(s, p, arrays)


def norm_forward(s: Steps, p: NormProblem) -> None:
    """Statistics and y."""
    _forward(s, p, relu=False)


def _forward(s: Steps, p: NormProblem, *, relu: bool) -> Arrays:
    arrays = _with_room_for_statistics(s, p)
    inv_std = arrays["inv_std"]
    # What stands in for an absent parameter is an input: no output may be read meanwhile.
    scale = arrays.get("scale", arrays.get("bias", arrays["x"]))
    bias = arrays.get("bias", scale)
    residual = [arrays["z"]] if "z" in arrays else []
    flags = (_offset(p), int(p.centred), int(p.has_scale), int("bias" in arrays), int(relu))
    if s.in_rows:
        given = (arrays["x"], scale, bias, *residual)
        targets = (arrays["y"], arrays.get("mean", inv_std), inv_std, arrays["variance"])
        s.normalise(given, targets, p.axes, float(p.count), p.epsilon, *flags)
        return arrays
    _reduce_to_statistics(s, p, arrays)
    given = (arrays["x"], arrays.get("mean", inv_std), inv_std, scale, bias, *residual)
    s.each(norm.normalised(s.kind, residual=bool(residual)), given, (arrays["y"],), *flags)
    return arrays


def batch_inference(s: Steps, p: BatchNormProblem) -> None:
    """y by the given statistics."""
    arrays = _in_view(s, p.norm)
    residual = ("z",) if "z" in arrays else ()
    operands = _those(arrays, ("x", "mean", "variance", "scale", "bias", *residual))
    function = norm.by_given_statistics(s.kind, residual=bool(residual))
    s.each(function, operands, (arrays["y"],), p.norm.epsilon, int(p.activation == "relu"))


def _with_room_for_statistics(s: Steps, p: NormProblem) -> dict[str, Array]:
    """The call's arrays, with ``mean``, ``inv_std`` and ``variance``: outputs, if asked for, or workspace."""
    arrays = _in_view(s, p)
    if "inv_rms" in arrays:
        arrays["inv_std"] = arrays["inv_rms"]
    for name in (*(("mean",) if p.centred else ()), "inv_std", "variance"):
        if name not in arrays:
            arrays[name] = s.take(p.statistics_view)
    return arrays


def _reduce_to_statistics(s: Steps, p: NormProblem, arrays: Arrays) -> None:
    x, count = arrays["x"], float(p.count)
    if p.centred:
        s.reduce(norm.MEAN, (x,), (arrays["mean"],), p.axes, count)
    monoid = norm.spread(s.kind, centred=p.centred)
    given = (x, arrays["mean"]) if p.centred else (x,)
    s.reduce(monoid, given, _those(arrays, ("inv_std", "variance")), p.axes, count, p.epsilon)


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
    arrays = _with_given_statistics(s, p.norm)
    sums = _differentiate(s, p.norm, arrays, scaled=False, fixed=p.fixed_statistics)
    _put_out(s, arrays, sums)


def norm_backward(s: Steps, p: NormProblem) -> None:
    """Sums over what shares an entry of scale and bias, for their gradients; sums over each set, for dx."""
    arrays = _with_given_statistics(s, p)
    if "dscale" in arrays or "dbias" in arrays:
        sums = _room_for_sums(s, p, p.parameter_axes)
        _add_up(s, p, arrays, sums, p.parameter_axes, scaled=False)
        _put_out(s, arrays, sums)
    _differentiate(s, p, arrays, scaled=p.has_scale, fixed=False)


OVER_SETS = (batch_forward, norm_forward, batch_backward, norm_backward)


def _with_given_statistics(s: Steps, p: NormProblem) -> dict[str, Array]:
    """The call's arrays, with the statistics of x where those of the forward pass are not given."""
    if {"inv_std", "inv_rms"} & set(s.inputs):
        arrays = _in_view(s, p)
        arrays["inv_std"] = arrays.get("inv_rms", arrays.get("inv_std"))
        return arrays
    arrays = _with_room_for_statistics(s, p)
    _reduce_to_statistics(s, p, arrays)
    return arrays


Sums = tuple[Array, Array]


def _room_for_sums(s: Steps, p: NormProblem, axes: Shape) -> Sums:
    shape = tuple(1 if d in axes else extent for d, extent in enumerate(p.view))
    return s.take(shape), s.take(shape)


def _add_up(
    s: Steps, p: NormProblem, arrays: Arrays, sums: Sums, axes: Shape, *, scaled: bool
) -> None:
    """Σ g and Σ g·x̂ over these axes."""
    operands, masked = _operands(arrays)
    monoid = norm.gradient_sums(s.kind, masked=masked)
    flags = (_offset(p), int(scaled), int(p.centred))
    given = (*operands, arrays["y"]) if masked else operands
    s.reduce(monoid, given, sums, axes, *flags)


def _operands(arrays: Arrays) -> tuple[list[Array], bool]:
    """dy, x, mean, inv_std and scale, or what stands in for them; and whether a ReLU masks dy."""
    inv_std = arrays["inv_std"]
    broadcast = [arrays.get(name, inv_std) for name in ("mean", "inv_std", "scale")]
    return [arrays["dy"], arrays["x"], *broadcast], "y" in arrays


def _put_out(s: Steps, arrays: Arrays, sums: Sums) -> None:
    """Round the sums to the gradients of bias and scale."""
    for name, total in zip(("dbias", "dscale"), sums, strict=True):
        if name in arrays:
            s.each(norm.same, (total,), (arrays[name],))


def _differentiate(s: Steps, p: NormProblem, arrays: Arrays, *, scaled: bool, fixed: bool) -> Sums:
    """dx, and dz, and the sums over each set, of γ·dy if ``scaled``, else of dy."""
    operands, masked = _operands(arrays)
    y = [arrays["y"]] if masked else []
    forked = "dz" in arrays
    targets = _those(arrays, ("dx", "dz") if forked else ("dx",))
    sums = _room_for_sums(s, p, p.axes)
    flags = (scaled, p.has_scale and not scaled, p.centred, fixed)
    scalars = (float(max(1, p.count)), _offset(p), *map(int, flags))
    if s.in_rows:
        s.differentiate((*operands, *y), (*targets, *sums), p.axes, *scalars, masked=masked)
        return sums
    _add_up(s, p, arrays, sums, p.axes, scaled=scaled)
    function = norm.input_gradient(s.kind, masked=masked, forked=forked)
    s.each(function, (*operands, *sums, *y), targets, *scalars)
    return sums


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
    """Add up the shards, then a pass over the channels."""
    totals = {name: s.take((p.channels,)) for name in ("sum", "sq_sum")}
    for name, total in totals.items():
        s.reduce(SUM, (s.inputs[name],), (total,), (0,))
    arrays = {**s.inputs, **totals}
    wanted = ("sum", "sq_sum", "scale", "bias", "running_mean", "running_var", "shift")
    names = tuple(name for name in wanted if name in arrays)
    operands = _those(arrays, names)
    f, m = p.average_factor, p.count
    scalars = (float(m), p.epsilon, 1.0 - f, f, m / max(1, m - 1))
    s.each(norm.finalized(s.kind, names), operands, tuple(s.outputs.values()), *scalars)


def backward_weights(s: Steps, p: BatchNormProblem) -> None:
    """The sums of each channel, and what follows from them."""
    arrays = _in_view(s, p.norm)
    sum_g, sum_gx = sums = _room_for_sums(s, p.norm, p.norm.axes)
    _add_up(s, p.norm, arrays, sums, p.norm.axes, scaled=False)
    _put_out(s, arrays, sums)
    operands = (sum_gx, sum_g, *_those(arrays, ("scale", "mean", "inv_std")))
    targets = _those(arrays, ("dy_factor", "x_factor", "offset"))
    s.each(norm.coefficients, operands, targets, float(p.norm.count))
