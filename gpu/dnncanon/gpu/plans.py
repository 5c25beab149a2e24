"""Execution plans: calls that are checked, chosen and compiled once, and then launched again and again.

    plan = gpu.execution_plan("conv_forward", x, w, padding=1)
    y = plan()                     # computes y from what x and w hold now
    y = plan()                     # and again, into the same y
    other = plan.bind(x2, w, out=y2)   # the same launches for other arrays of the same layouts
    replay = plan.graph()          # on CUDA a graph: one launch for all of the plan's kernels
    replay()

A call of the library checks its arguments, chooses an algorithm and marshals its arguments each time; a plan
has done so, and what is left is the launch of its kernels. ``gpu/benchmarks/launch_cost.py`` measures what that
saves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dnncanon.gpu.primitive import Decided, GpuPrimitive
from dnncanon.gpu.runtime import Device, DeviceArray, DeviceError, device
from dnncanon.gpu.runtime.interop import describe
from dnncanon.gpu.runtime.planning import ALIGNMENT, PlannedLaunch, PlanningDevice
from dnncanon.gpu.runtime.selection import using
from dnncanon.spec import LayoutError

Bound = Callable[[object], None]


class ExecutionPlan:
    """The launches of one call for one set of arrays; call it to run them.

    ``algorithm`` is the one that was chosen, ``results`` are the arrays that it writes to, and
    ``workspace_bytes`` is the memory that it holds beside them. The arrays must stay where they are; what
    they hold may change between runs. A plan holds on to them.
    """

    def __init__(
        self,
        primitive: GpuPrimitive[Any],
        options: Mapping[str, Any],
        decided: Decided,
        launches: Sequence[PlannedLaunch],
    ) -> None:
        self._primitive, self._options, self._decided = primitive, options, decided
        self._planned = launches
        self._arrays = _arrays(decided)
        self._device = device()
        self._launches: list[Bound] = [
            planned.bind(self._device, self._arrays) for planned in launches
        ]
        self.algorithm = decided.implementation.name
        self.results = decided.results()

    def __call__(self, stream: object = None) -> Any:
        """Run the launches on ``stream``, by default the one that the call was planned on."""
        chosen = self._stream(stream)
        for launch in self._launches:
            launch(chosen)
        return self.results

    def __len__(self) -> int:
        """How many launches."""
        return len(self._launches)

    def __repr__(self) -> str:
        name = self._primitive.primitive.name
        launches = "1 launch" if len(self) == 1 else f"{len(self)} launches"
        return f"<plan of {name} by {self.algorithm}: {launches}>"

    @property
    def workspace_bytes(self) -> int:
        memory = self._decided.launch.workspace
        return 0 if memory is None else memory.size * memory.dtype.itemsize

    def bind(self, *tensors: Any, out: Any = None, workspace: Any = None) -> "ExecutionPlan":
        """The same launches for other arrays: of the same dtypes, shapes, strides and alignment.

        LayoutError where they differ in one of these; all that a call raises.
        """
        decided = self._primitive.decide(
            *tensors,
            **{
                **self._options,
                "algorithm": self.algorithm,
                "out": out,
                "workspace": workspace,
            },
        )
        for name, array in _arrays(decided).items():
            _check_same_layout(name, array, self._arrays[name])
        return ExecutionPlan(self._primitive, self._options, decided, self._planned)

    def graph(self) -> Callable[..., Any]:
        """The plan as a CUDA graph: a function of the stream that runs it in one launch.

        The emulator has no graphs; there the function runs the launches one after the other.
        """
        replay = self._device.graph(self._launches)

        def run(stream: object = None) -> Any:
            replay(self._stream(stream))
            return self.results

        return run

    def _stream(self, stream: object) -> object:
        return self._decided.launch.stream if stream is None else stream


def plan_of(primitive: GpuPrimitive[Any], *tensors: Any, **options: Any) -> ExecutionPlan:
    """The plan of the call ``primitive(*tensors, **options)``, of which nothing is computed.

    Takes and raises what the primitive does. Arrays have to be in the memory of the device, as a plan copies
    nothing: DeviceError for those that are not.
    """
    here = device()
    for tensor, spec in zip(tensors, primitive.primitive.inputs, strict=False):
        _check_memory(tensor, spec.name, here)
    _check_memory(options.get("out"), "out", here)
    decided = primitive.decide(*tensors, **options)
    return ExecutionPlan(primitive, options, decided, _planned(decided))


def _check_memory(given: Any, name: str, here: Device) -> None:
    for array in given if isinstance(given, (tuple, list)) else (given,):
        if array is not None and describe(array, name).on_host and not here.is_host:
            raise DeviceError(
                f"{name} is in the memory of the host, and a plan copies nothing; pass "
                f"gpu.to_device({name})"
            )


def _planned(decided: Decided) -> list[PlannedLaunch]:
    """What the call would launch."""
    planning = PlanningDevice(device())
    launch = decided.launch

    def placed(arrays: Mapping[str, DeviceArray]) -> dict[str, DeviceArray]:
        return {name: planning.placeholder(name, array) for name, array in arrays.items()}

    memory = launch.workspace
    with using(planning):
        replace(
            decided,
            launch=replace(
                launch,
                inputs=placed(launch.inputs),
                outputs=placed(launch.outputs),
                workspace=None if memory is None else planning.placeholder("workspace", memory),
            ),
        ).run()
    return planning.launches


def _arrays(decided: Decided) -> dict[str, DeviceArray]:
    """All arrays of a call by name."""
    launch = decided.launch
    memory = {} if launch.workspace is None else {"workspace": launch.workspace}
    return {**launch.inputs, **launch.outputs, **memory}


def _check_same_layout(name: str, array: DeviceArray, planned: DeviceArray) -> None:
    def facts(of: DeviceArray) -> dict[str, Any]:
        return {
            "dtype": of.dtype.name,
            "shape": of.shape,
            "strides": of.strides,
            f"address modulo {ALIGNMENT}": of.pointer % ALIGNMENT,
        }

    for fact, value in facts(array).items():
        wanted = facts(planned)[fact]
        if value != wanted:
            raise LayoutError(
                f"{name} has {fact} {value}, but the plan was made for {wanted}; pass an array like "
                "that, or make another plan"
            )
