"""From a call of the library to a launch: what the functions of all families do in the same way.

Every function takes NumPy arrays, PyTorch tensors, DeviceArrays, and whatever else offers DLPack or
the CUDA array interface, in any layout, and returns the kind that its first tensor is; where there is
none, as for random numbers, NumPy arrays. Beside the attributes of the specification it takes

- ``algorithm``: "auto", which prefers what :func:`dnncanon.gpu.find_algorithm` has measured, or a name that
  :func:`dnncanon.gpu.algorithms` lists;
- ``math``: the weakest numerics class that "auto" may choose an algorithm of, "ieee" by default;
- ``out``: an array to write into, with any strides that give each element an address of its own; a tuple
  of them where there are several outputs;
- ``workspace``: memory of :attr:`Algorithm.workspace_bytes` bytes, as a flat dense array; by default
  it is allocated;
- ``stream``: the CUDA stream, by default the current one of the first tensor's library, or of ``out``'s.

It raises the specification's errors, and Unsupported for a numerics class that there is not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from dnncanon.gpu.runtime import DeviceArray, Operands, Output, Strided, View, describe
from dnncanon.spec import (
    NUMERICS,
    AttributeValueError,
    Call,
    Primitive,
    ShapeError,
    TensorType,
    Unsupported,
    channels_last_strides,
    dense_strides,
)
from dnncanon.spec.signature import docstring, signature

Problem = TypeVar("Problem")

_OPTIONS = {"algorithm": "auto", "math": "ieee", "out": None, "workspace": None, "stream": None}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute a call.

    ``workspace_bytes`` is exact. ``deterministic`` means the same bits in every run, on every device.
    ``refusal`` says why it does not take the call; None when it does.
    """

    name: str
    workspace_bytes: int
    deterministic: bool
    numerics: str
    refusal: str | None

    @property
    def applicable(self) -> bool:
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class Layouts(Generic[Problem]):
    """A call with the extents and strides of its arrays: all that a choice of algorithm depends on."""

    call: Call[Problem]
    inputs: Mapping[str, Strided]
    outputs: Mapping[str, Strided]

    @property
    def problem(self) -> Problem:
        return self.call.problem


@dataclass(frozen=True, slots=True)
class Launch(Generic[Problem]):
    """A call with its arrays on the device, those that are there, by name; and where to run.

    ``plan`` is what the choice of the algorithm was made by: the :class:`Layouts`, unless the family has a
    form of its own.
    """

    call: Call[Problem]
    plan: Any
    inputs: Mapping[str, DeviceArray]
    outputs: Mapping[str, DeviceArray]
    workspace: DeviceArray | None
    stream: object

    @property
    def problem(self) -> Problem:
        return self.call.problem

    @property
    def dtype(self) -> str:
        return self.call.dtype


@dataclass(frozen=True)
class Implementation(Generic[Problem]):
    """An algorithm of a primitive: ``run`` launches its kernels.

    ``workspace_bytes`` is what it needs for a plan, exactly. ``refusal`` says why it does not take one, as
    the end of a sentence, or None; ``pays`` whether "auto" should prefer it to the ones after it. ``numerics``
    is its class if that is not the strictest of the primitive: "auto" then chooses it for that ``math`` only.
    """

    name: str
    run: Callable[[Launch[Problem]], None]
    workspace_bytes: Callable[[Any], int] = lambda plan: 0
    refusal: Callable[[Any], str | None] = lambda plan: None
    pays: Callable[[Any], bool] = lambda plan: True
    deterministic: bool = True
    numerics: str | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """A call that only has to be run: by which algorithm, on which arrays, what its results are."""

    implementation: Implementation[Any]
    launch: Launch[Any]
    outputs: Mapping[str, Output]

    def run(self) -> None:
        """Launch the kernels, if there is anything to compute."""
        if any(tensor.size for tensor in self.launch.call.outputs):
            self.implementation.run(self.launch)

    def results(self) -> Any:
        """The outputs in the caller's kind of array, as the primitive returns them."""
        return self.launch.call.results(output.finish() for output in self.outputs.values())


class GpuPrimitive(Generic[Problem]):
    """A primitive of the GPU library: call it as ``outputs = primitive(*tensors, **attributes)``.

    ``implementations`` gives its algorithms, the preferred ones first; the last one takes every call. It is
    not called before the first call, for kernels import Numba. ``plan`` is what they choose by.
    """

    def __init__(
        self,
        primitive: Primitive[Problem],
        implementations: Callable[[], Sequence[Implementation[Problem]]],
        plan: Callable[[Layouts[Problem]], Any] = lambda layouts: layouts,
    ) -> None:
        self.primitive = primitive
        self._implementations = implementations
        self._plan = plan
        self.__name__ = self.__qualname__ = primitive.name
        self.__doc__ = f"{docstring(primitive)}\n\nOptions are those of :mod:`{__name__}`."
        self.__signature__ = signature(primitive, _OPTIONS)

    def __repr__(self) -> str:
        return f"<dnncanon.gpu.{self.__name__}>"

    def __call__(
        self,
        *tensors: Any,
        algorithm: str = "auto",
        math: str = "ieee",
        out: Any = None,
        workspace: Any = None,
        stream: object = None,
        **attributes: Any,
    ) -> Any:
        """Everything is checked before anything is written."""
        decided = self.decide(
            *tensors,
            algorithm=algorithm,
            math=math,
            out=out,
            workspace=workspace,
            stream=stream,
            **attributes,
        )
        decided.run()
        return decided.results()

    def decide(
        self,
        *tensors: Any,
        algorithm: str = "auto",
        math: str = "ieee",
        out: Any = None,
        workspace: Any = None,
        stream: object = None,
        **attributes: Any,
    ) -> "Decided":
        """All of a call but the computing: what is checked, chosen and allocated."""
        call = self.primitive.bind(*tensors, **attributes)
        self._check_math(call, math)
        self._check_algorithm(algorithm)
        operands = Operands(self.primitive.name, _first(tensors, out), stream)
        inputs = {n: operands.read(tensor, n) for n, tensor in self._given(tensors).items()}
        outputs = _outputs(call, operands, inputs, out)
        arrays = {name: output.array for name, output in outputs.items()}
        layouts = Layouts(call, inputs, arrays)
        plan = self._plan(layouts)
        chosen = self._choose(plan, self._preferred(layouts, plan, algorithm, math), math)
        memory = operands.workspace(workspace, chosen.workspace_bytes(plan))
        launch = Launch(call, plan, inputs, arrays, memory, operands.stream)
        return Decided(chosen, launch, outputs)

    def layouts(self, *tensors: Any, **attributes: Any) -> Layouts[Problem]:
        """A call as it would be made, its outputs new; nothing is computed."""
        call = self.primitive.bind(*tensors, **attributes)
        given = {n: describe(tensor, n) for n, tensor in self._given(tensors).items()}
        outputs = {
            name: View(tensor.shape, _strides(call, tensor, given))
            for name, tensor in call.named_outputs.items()
        }
        return Layouts(call, given, outputs)

    def algorithms(self, *tensors: Any, **attributes: Any) -> list[Algorithm]:
        """What there is to compute a call: first what "auto" chooses."""
        layouts = self.layouts(*tensors, **attributes)
        plan = self._plan(layouts)
        chosen = self._choose(plan, self._preferred(layouts, plan, "auto", "ieee"), "ieee")
        rows = sorted(self.implementations, key=lambda implementation: implementation is not chosen)
        numerics = self.primitive.numerics(layouts.call.dtype)[0]
        return [_row(implementation, plan, numerics) for implementation in rows]

    @cached_property
    def implementations(self) -> tuple[Implementation[Problem], ...]:
        return tuple(self._implementations())

    def _given(self, tensors: Sequence[Any]) -> dict[str, Any]:
        named = zip(self.primitive.inputs, tensors, strict=False)
        return {spec.name: tensor for spec, tensor in named if tensor is not None}

    def _check_algorithm(self, algorithm: str) -> None:
        known = ("auto", *(implementation.name for implementation in self.implementations))
        if algorithm not in known:
            raise AttributeValueError(
                f"{self.primitive.name}: algorithm={algorithm!r}; pass one of {', '.join(known)}"
            )

    def _preferred(self, layouts: Layouts[Problem], plan: Any, algorithm: str, math: str) -> str:
        """For "auto" the algorithm that was measured to be the fastest, if one was and takes the call."""
        if algorithm != "auto" or len(self.implementations) == 1:
            return algorithm
        from dnncanon.gpu import tuning

        measured = tuning.preferred(layouts, math)
        known = [one for one in self.implementations if one.name == measured]
        # It was measured for arrays of these strides, but not of these addresses.
        takes = [one for one in known if one.numerics in (None, math) and not one.refusal(plan)]
        return takes[0].name if takes else algorithm

    def _check_math(self, call: Call[Any], math: str) -> None:
        name, classes = self.primitive.name, call.primitive.numerics(call.dtype)
        offered = {one.numerics or classes[0] for one in self.implementations}
        if math == "ieee" or math in offered:
            return
        if math not in NUMERICS:
            raise AttributeValueError(f"{name}: math={math!r}; pass one of {', '.join(classes)}")
        raise Unsupported(
            f'{name}: math={math!r} is not offered for {call.dtype}; pass math="ieee"'
        )

    def _choose(self, plan: Any, algorithm: str, math: str) -> Implementation[Problem]:
        """The named algorithm if it takes the call, or for "auto" the first one that is allowed and pays."""
        for implementation in self.implementations:
            refusal = implementation.refusal(plan)
            if algorithm == implementation.name and refusal is not None:
                raise Unsupported(
                    f'{self.primitive.name}: algorithm="{algorithm}" {refusal}; '
                    f'pass algorithm="auto"'
                )
            pays = (
                algorithm == "auto"
                and implementation.numerics in (None, math)
                and refusal is None
                and implementation.pays(plan)
            )
            if algorithm == implementation.name or pays:
                return implementation
        raise AssertionError("the last algorithm takes every call")


def implements(
    primitive: Primitive[Any],
    algorithm: str,
    *,
    workspace_bytes: Callable[[Layouts[Any]], int] = lambda layouts: 0,
    beside: Sequence[Implementation[Any]] = (),
) -> Callable[[Callable[[Launch[Any]], None]], GpuPrimitive[Any]]:
    """Decorate the function that launches the kernels of a primitive's deterministic algorithm.

    It takes every call; those ``beside`` it are preferred to it.
    """
    return lambda run: GpuPrimitive(
        primitive, lambda: [*beside, Implementation(algorithm, run, workspace_bytes)]
    )


# --- One call -------------------------------------------------------------------------------------


def _first(tensors: Sequence[Any], out: Any) -> Any:
    """The array whose library decides: the first tensor or, in a call that has none, of ``out``."""
    outputs = out if isinstance(out, (tuple, list)) else (out,)
    return next((array for array in (*tensors, *outputs) if array is not None), None)


def _outputs(
    call: Call[Any], operands: Operands, inputs: Mapping[str, Strided], out: Any
) -> dict[str, Output]:
    """Where each output goes: into what ``out`` has for it, or a new array."""
    named = call.named_outputs
    several = len(named) > 1
    given = out if several and out is not None else [out] * len(named)
    if not isinstance(given, (tuple, list)) or len(given) != len(named):
        raise ShapeError(
            f"{call.primitive.name}: out is no tuple of {len(named)} arrays; pass out=({', '.join(named)})"
        )
    return {
        name: operands.write(array, tensor, name, _strides(call, tensor, inputs))
        for (name, tensor), array in zip(named.items(), given, strict=True)
    }


def _strides(call: Call[Any], output: TensorType, inputs: Mapping[str, Strided]) -> tuple[int, ...]:
    """Of a new output: channels-last when the first tensor is and has its rank, else dense."""
    first = next(iter(inputs.values()), None)
    if first is not None and len(first.shape) == output.rank > 2:
        last = channels_last_strides(first.shape)
        if tuple(first.strides) == last != dense_strides(first.shape):
            return channels_last_strides(output.shape)
    return dense_strides(output.shape)


def _row(implementation: Implementation[Any], plan: Any, numerics: str) -> Algorithm:
    refusal = implementation.refusal(plan)
    return Algorithm(
        name=implementation.name,
        workspace_bytes=0 if refusal else implementation.workspace_bytes(plan),
        deterministic=implementation.deterministic,
        numerics=implementation.numerics or numerics,
        refusal=refusal,
    )
