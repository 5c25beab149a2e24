"""What the library offers: the function of each primitive, and its algorithms."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from dnncanon.gpu import tuning
from dnncanon.gpu.plans import ExecutionPlan, plan_of
from dnncanon.gpu.primitive import Algorithm, GpuPrimitive
from dnncanon.gpu.tuning import Timing
from dnncanon.spec import Unsupported, primitives


@cache
def functions() -> Mapping[str, Callable[..., Any]]:
    """The functions by the names of their primitives.

    Those of a family live in the module of its name, as its declarations do in the specification.
    """
    found = {}
    for primitive in primitives().values():
        module = f"dnncanon.gpu.{primitive.family}"
        if find_spec(module) is not None:
            implemented = getattr(import_module(module), primitive.name, None)
            if implemented is not None:
                found[primitive.name] = implemented
    return found


def function(module: str, name: str) -> Callable[..., Any]:
    """The function of a primitive, as an attribute of ``module``."""
    try:
        return functions()[name]
    except KeyError:
        raise AttributeError(f"module {module!r} has no attribute {name!r}") from None


def algorithms(primitive: str, *tensors: Any, **attributes: Any) -> list[Algorithm]:
    """What there is to compute ``primitive(*tensors, **attributes)``: first what "auto" chooses.

    Raises the specification's errors for a call that is not legal, Unsupported for a primitive that is
    not here.
    """
    return _offered(primitive).algorithms(*tensors, **attributes)


def find_algorithm(
    primitive: str, *tensors: Any, math: str = "ieee", remember: bool = True, **attributes: Any
) -> list[Timing]:
    """The algorithms that take ``primitive(*tensors, **attributes)``, measured: the fastest first.

    "auto" goes by it from then on: :mod:`dnncanon.gpu.tuning`. Raises what the primitive raises, and
    Unsupported for a primitive that is not here.
    """
    offered = _offered(primitive)
    return tuning.find_algorithm(offered, *tensors, math=math, remember=remember, **attributes)


def execution_plan(primitive: str, *tensors: Any, **options: Any) -> ExecutionPlan:
    """The call ``primitive(*tensors, **options)``, decided and compiled: run it as often as you like.

    See :mod:`dnncanon.gpu.plans`. Nothing is computed yet. Raises what the primitive raises,
    DeviceError for arrays in the host's memory when kernels run on a GPU, and Unsupported for a primitive that
    is not here.
    """
    return plan_of(_offered(primitive), *tensors, **options)


def _offered(primitive: str) -> GpuPrimitive[Any]:
    known = functions()
    if primitive not in known:
        raise Unsupported(f"no primitive {primitive!r} here; there are {', '.join(known)}")
    offered: Any = known[primitive]
    return cast(GpuPrimitive[Any], offered)
