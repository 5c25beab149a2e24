"""Backends: how one is found, and what the suite sees of it.

A backend is any object with some of the primitives as functions. Everything else is optional:

``name``           its title in reports
``to_device``      NumPy array -> its own array; without it NumPy arrays are passed as they are
``to_host``        its own array -> NumPy array
``as_strided``     (flat array, shape, strides, offset) -> view, counted in elements; with it, tensors on
                   the device lie between guarded margins and in any layout
``accepts_out``    True when its functions take ``out=``, a tuple where there are several outputs; then
                   outputs are guarded too, and what the functions return is not looked at. An ``out``
                   of another shape or dtype, whose elements overlap, or that shares memory with an input
                   or another output has to be refused by an exception, with nothing written
``workspace_bytes``  (primitive, *tensors, **attributes) -> bytes that this call needs beside its tensors.
                   With it functions take ``workspace=``: a flat array of just so many bytes, uint8,
                   aligned to 256, holding nothing of meaning, between margins that must come back
                   untouched. It is left out where 0 are needed. Needs ``as_strided``
``synchronize``    waits until the device has finished
``describe``       a dict: ``device`` (text), ``gpu`` (bool), ``versions`` {name: version}, ``numerics``
                   {primitive: {dtype: class}}, ``declines`` {primitive: {dtype: {layer: reason}}},
                   ``errors`` "dnncanon" if illegal arguments raise the spec's errors; for an ``out`` that
                   is ShapeError, DTypeError or LayoutError, naming output, values and remedy,
                   ``deterministic`` {primitive: True} where equal calls give equal bits; only then is
                   that tested
``static_figures``  (primitives, dtypes, architectures, *, everything, jobs) -> what a compiler makes of its
                   kernels, for ``dnncanon bench --static``: an object with ``kernels``, how many there are;
                   ``figures``, an iterator over lists of dicts by the names of
                   :class:`dnncanon.reports.static.KernelFigures`; and ``versions`` {name: version}. Empty
                   sequences mean what it prefers

It needs to import nothing of dnncanon. What it lacks, or answers with NotImplementedError, is
UNSUPPORTED.
"""

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance import buffers, mutation
from dnncanon.spec import primitives
from dnncanon.spec.numerics import permits

GROUP = "dnncanon.backends"

# The backends of this package, for a checkout that runs through PYTHONPATH and so has no metadata.
_SHIPPED = {
    "reference": "dnncanon.reference:backend",
    "gpu": "dnncanon.gpu:backend",
    "torch": "dnncanon.conformance.torch_backend:backend",
}


class BackendError(Exception):
    """A backend that cannot be found or loaded; the message is one sentence for the user."""


def installed() -> dict[str, str]:
    """Names of the available backends, with where they come from."""
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    return dict(sorted({**_SHIPPED, **found}.items()))


def load(name: str) -> "Backend":
    """The backend ``name``: an entry point, ``package.module``, ``package.module:attribute``.

    ``mutant:NAME`` is a deliberately defective one (:mod:`dnncanon.conformance.mutants`).

    A module without attribute is its ``backend`` if it has one, otherwise the module itself.
    Raises BackendError.
    """
    if name.startswith(mutation.PREFIX):
        return _load_mutant(name)
    where = installed().get(name, name)
    module_name, _, attribute = where.partition(":")
    module = _imported(name, module_name, is_module=name == where)
    try:
        found = attrgetter(attribute)(module) if attribute else getattr(module, "backend", module)
    except AttributeError:
        raise BackendError(f"module {module_name} has no attribute {attribute!r}") from None
    try:
        backend = Backend(name, found() if isinstance(found, type) else found)
    except Exception as failure:
        raise BackendError(f"backend {name} cannot be started: {_reason(failure)}") from failure
    _check_claims(backend)
    return backend


def _load_mutant(name: str) -> "Backend":
    try:
        with mutation.applied(name.removeprefix(mutation.PREFIX)) as original:
            backend = load(original)
            backend.offered()  # loads what is loaded late, while the mutant is in place
    except mutation.MutantError as error:
        raise BackendError(str(error)) from None
    backend.name = name
    return backend


def _imported(name: str, module_name: str, *, is_module: bool) -> Any:
    """The module of backend ``name``; ``is_module`` says that the user named the module itself."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if is_module and f"{module_name}.".startswith(f"{missing.name}."):
            known = ", ".join(installed())
            raise BackendError(
                f"there is no backend or module {name!r}; known are {known}"
            ) from None
        raise BackendError(f"backend {name} cannot be imported: {missing}") from missing
    except Exception as failure:
        raise BackendError(f"backend {name} cannot be imported: {_reason(failure)}") from failure


def _reason(failure: Exception) -> str:
    """The kind of an exception and the first line of what it says."""
    first = (str(failure).splitlines() or [""])[0]
    return f"{type(failure).__name__}: {first}" if first else type(failure).__name__


def _check_claims(backend: "Backend") -> None:
    """Every numerics class that a backend claims for one of our primitives is one that it may have."""
    claims = backend.description.get("numerics", {})
    for name, primitive in primitives().items():
        for row in primitive.dtypes:
            claimed = claims.get(name, {}).get(row.dtype)
            if claimed is not None and not permits(row.numerics, claimed):
                raise BackendError(
                    f"backend {backend.name} claims the numerics class {claimed!r} for {name} "
                    f"{row.dtype}; it may be {' or '.join(row.numerics)}"
                )


class Backend:
    """A loaded backend with defaults for all that it leaves out.

    ``name`` is what it was asked for by, so that it can be asked for again; ``title`` its own name.
    """

    def __init__(self, name: str, implementation: Any) -> None:
        self.implementation = implementation
        self.name = name
        self.title = str(getattr(implementation, "name", name))
        on_host = not hasattr(implementation, "to_device")
        self.to_device: Callable[[NDArray[Any]], Any] = self._optional("to_device", _unchanged)
        self.to_host: Callable[[Any], NDArray[Any]] = self._optional("to_host", np.asarray)
        self.synchronize: Callable[[], None] = self._optional("synchronize", _nothing)
        strided = buffers.view if on_host else None
        self.as_strided: Callable[..., Any] | None = self._optional("as_strided", strided)
        self.workspace_bytes: Callable[..., Any] | None = self._optional("workspace_bytes", None)
        self.static_figures: Callable[..., Any] | None = self._optional("static_figures", None)
        self.watched: object = None  # the last call, whose outputs may still be written
        self.accepts_out = bool(getattr(implementation, "accepts_out", False))
        self.description: Mapping[str, Any] = self._optional("describe", dict)() or {}
        if not isinstance(self.description, Mapping):
            kind = type(self.description).__name__
            raise TypeError(f"describe() returned {kind}, not a dict")

    def _optional(self, name: str, default: Any) -> Any:
        return getattr(self.implementation, name, default)

    def function(self, primitive: str) -> Callable[..., Any] | None:
        """The backend's function for a primitive, None when it lacks it."""
        found = getattr(self.implementation, primitive, None)
        return found if callable(found) else None

    def offered(self) -> list[str]:
        """The primitives it has a function for."""
        return [name for name in primitives() if self.function(name) is not None]

    def numerics(self, primitive: str, dtype: str) -> str:
        """The numerics class it claims; the strictest, mostly ``ieee``, unless it says otherwise."""
        classes = self.description.get("numerics", {})
        declared = primitives().get(primitive)
        strictest = (*(declared.numerics(dtype) if declared else ()), "ieee")[0]
        return str(classes.get(primitive, {}).get(dtype, strictest))

    def declines(self, primitive: str, dtype: str, layer: str) -> str:
        """Why it declines a layer of cases, such as special values; empty if it does not."""
        layers = self.description.get("declines", {}).get(primitive, {}).get(dtype, {})
        return str(layers.get(layer, ""))

    def claims_determinism(self, primitive: str) -> bool:
        """Whether it promises that equal calls of a primitive give equal bits."""
        return self.description.get("deterministic", {}).get(primitive) is True

    @property
    def raises_spec_errors(self) -> bool:
        """Whether it promises the spec's own errors for illegal arguments."""
        return self.description.get("errors") == "dnncanon"


def _unchanged(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _nothing() -> None:
    return None


__all__ = ["GROUP", "Backend", "BackendError", "EntryPoint", "installed", "load"]
