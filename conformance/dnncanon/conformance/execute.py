"""One case, start to end, in this process: data, guards, the backend's call, the verdict."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance import data
from dnncanon.conformance.backends import Backend
from dnncanon.conformance.bounds import expectations
from dnncanon.conformance.buffers import MARGIN, Guarded
from dnncanon.conformance.case import Case
from dnncanon.conformance.memory import shortage
from dnncanon.conformance.verdict import judge
from dnncanon.reports import CaseResult, Verdict
from dnncanon.spec import DTYPES, SpecError, TensorSpec, TensorType

_TRACEBACK_LINES = 12


def execute(backend: Backend, case: Case) -> CaseResult:
    """Run a case on a backend and judge it. Never raises for what the backend does."""
    started = time.perf_counter()
    blank = blank_result(case, backend.name, backend.numerics(case.primitive.name, case.dtype))
    function = backend.function(case.primitive.name)
    if function is None:
        result = replace(blank, message=f"{backend.name} has no {case.primitive.name}")
    elif declined := backend.declines(case.primitive.name, case.dtype, case.layer):
        result = replace(blank, message=f"{backend.name} declines {case.layer} values: {declined}")
    elif short := shortage(case):
        result = replace(blank, verdict=Verdict.SKIPPED, message=short)
    elif case.violates:
        result = _must_error(backend, function, case, blank)
    elif case.after is not None:
        result = _after_another(backend, function, case, blank)
    else:
        result = _Execution(backend, function, case, blank).result()
    return replace(result, seconds_total=time.perf_counter() - started)


def blank_result(case: Case, backend: str, numerics: str) -> CaseResult:
    """The record of a case of which nothing is known yet."""
    return CaseResult(
        case=str(case),
        backend=backend,
        primitive=case.primitive.name,
        dtype=case.dtype,
        layer=case.layer,
        numerics=numerics,
        verdict=Verdict.UNSUPPORTED,
        max_error=None,
        bias=None,
        max_ulp=None,
        shrunk_from=None,
    )


def inputs(case: Case) -> dict[str, Guarded]:
    """The inputs of a case in their guarded buffers."""
    length = case.primitive.reduction_length(case.call.problem)
    tensors = case.arguments.tensors
    return {
        spec.name: Guarded.holding(spec.name, tensors[spec.name], _data(case, spec, length))
        for spec in case.primitive.inputs
        if spec.name in tensors
    }


def _data(case: Case, spec: TensorSpec, reduction_length: int) -> NDArray[np.float64]:
    tensor = case.arguments.tensors[spec.name]
    fill = "normal" if case.layer == "special" and not spec.special_values else case.fill
    flat = data.values(fill, case.seed, spec.name, tensor.size, tensor.dtype, reduction_length)
    return flat.reshape(tensor.shape)


def _after_another(
    backend: Backend, function: Callable[..., Any], case: Case, blank: CaseResult
) -> CaseResult:
    """The result of a case after the same call with other data: stale results and caches show."""
    first = replace(case, seed=case.after or 0, after=None)
    before = _Execution(backend, function, first, blank).result()
    if before.failing:
        return replace(
            before, message=f"in the call before, of seed {case.after}: {before.message}"
        )
    return _Execution(backend, function, case, blank).result()


class _Execution:
    """One call of one backend function, between guards."""

    def __init__(
        self, backend: Backend, function: Callable[..., Any], case: Case, blank: CaseResult
    ) -> None:
        self.backend = backend
        self.function = function
        self.case = case
        self.blank = blank
        self.call = case.call
        self.inputs = inputs(case)
        self.seconds = 0.0

    def result(self) -> CaseResult:
        try:
            returned, complaint = self._compute()
        except NotImplementedError as unsupported:
            return replace(self.blank, message=str(unsupported) or "not implemented")
        except Exception:
            return replace(self.blank, verdict=Verdict.ERROR, message=_failure())
        counters = {"flops": float(self.call.flops), "least_bytes": float(self.call.least_bytes)}
        timed = replace(self.blank, seconds=self.seconds, counters=counters)
        if complaint:
            return replace(timed, verdict=Verdict.FAILED, message=complaint)
        return self._judged(timed, returned)

    def _judged(self, timed: CaseResult, returned: list[NDArray[Any]]) -> CaseResult:
        tensors = {name: guarded.view() for name, guarded in self.inputs.items()}
        expected = expectations(self.call, tensors, timed.numerics)
        names = [output.name for output in self.case.primitive.outputs]
        judgement = judge(names, returned, expected, list(tensors.values()))
        return replace(
            timed,
            verdict=judgement.verdict,
            message=judgement.message,
            max_error=judgement.max_error,
            bias=judgement.bias,
            max_ulp=judgement.max_ulp,
            ulp_histogram=judgement.ulp_histogram,
            elements=judgement.elements,
        )

    def _compute(self) -> tuple[list[NDArray[Any]], str]:
        """The outputs on the host, and what is wrong with them apart from their values."""
        sent = {name: _Sent(self.backend, guarded) for name, guarded in self.inputs.items()}
        out = _outputs(self.backend, self.case)
        tensors = [
            sent[spec.name].tensor if spec.name in sent else None
            for spec in self.case.primitive.inputs
        ]
        while tensors and tensors[-1] is None:
            tensors.pop()
        returned = self._timed_call(tensors, {**dict(self._keywords()), **_out(out)})
        complaint = next(filter(None, (s.damage(written=False) for s in sent.values())), "")
        complaint = complaint or next(filter(None, (s.damage(written=True) for s in out)), "")
        results = (
            [o.received() for o in out] if out else [self.backend.to_host(r) for r in returned]
        )
        return results, complaint or self._wrong_types(results, list(sent.values()))

    def _keywords(self) -> Iterator[tuple[str, Any]]:
        """The attributes; those at their defaults are left for the backend to fill in."""
        for attribute in self.case.primitive.attributes:
            value = self.case.arguments.attributes[attribute.name]
            if value is not attribute.default:
                yield attribute.name, value

    def _timed_call(self, tensors: list[Any], keywords: dict[str, Any]) -> tuple[Any, ...]:
        self.backend.synchronize()
        started = time.perf_counter()
        returned = self.function(*tensors, **keywords)
        self.backend.synchronize()
        self.seconds = time.perf_counter() - started
        return returned if isinstance(returned, tuple) else (returned,)

    def _wrong_types(self, results: list[NDArray[Any]], sent: list[_Sent]) -> str:
        if len(results) != len(self.call.outputs):
            return f"{len(results)} outputs were returned, not {len(self.call.outputs)}"
        outputs = zip(self.case.primitive.outputs, self.call.outputs, results, strict=True)
        for spec, expected, array in outputs:
            if not isinstance(array, np.ndarray):
                return f"{spec.name} is {type(array).__name__} on the host, not a NumPy array"
            got = TensorType.of(array)
            if got != expected:
                return f"{spec.name} is {_described(got)}, not {_described(expected)}"
            if any(tensor.shares_memory(array) for tensor in sent):
                return f"{spec.name} shares memory with an input"
        return ""


def _described(tensor: TensorType) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


class _Sent:
    """A guarded tensor as handed to the backend, and as it comes back."""

    def __init__(self, backend: Backend, guarded: Guarded) -> None:
        self.backend = backend
        self.guarded = guarded
        if backend.as_strided is None:
            # Without views on the device only the tensor itself travels, dense or not.
            self.buffer = None
            self.tensor = backend.to_device(guarded.view())
            return
        # A copy: what the backend does to it is told from the original.
        self.buffer = backend.to_device(guarded.buffer.copy())
        self.tensor = backend.as_strided(
            self.buffer, guarded.type.shape, guarded.type.element_strides, MARGIN
        )

    def damage(self, *, written: bool) -> str | None:
        """What changed around the tensor, or in it if it was not to be written."""
        if self.buffer is not None:
            return self.guarded.damage(self.backend.to_host(self.buffer), written=written)
        before, after = self.guarded.view(), np.asarray(self.backend.to_host(self.tensor))
        changed = before.tobytes() != after.tobytes()
        return f"{self.guarded.name}: an input was written" if changed else None

    def shares_memory(self, array: NDArray[Any]) -> bool:
        """Whether a result on the host is made of this tensor's memory."""
        return isinstance(self.tensor, np.ndarray) and np.may_share_memory(self.tensor, array)

    def received(self) -> NDArray[Any]:
        """The output, on the host."""
        host = np.asarray(self.backend.to_host(self.buffer))
        return replace(self.guarded, buffer=host).view()


def _must_error(
    backend: Backend, function: Callable[..., Any], case: Case, blank: CaseResult
) -> CaseResult:
    """Call with arguments that break one constraint: only the spec's error naming it will do.

    An ``out=`` that would fit the legal call must come back untouched: nothing may be computed.
    """
    label, arguments = case.violation()
    tensors = {name: _zeros(tensor) for name, tensor in arguments.tensors.items()}
    ordered = [tensors.get(spec.name) for spec in case.primitive.inputs]
    sent = [None if tensor is None else backend.to_device(tensor) for tensor in ordered]
    outputs = _outputs(backend, case)
    message = ""
    try:
        function(*sent, **arguments.attributes, **_out(outputs))
    except SpecError as error:
        if error.constraint != label:
            named = error.constraint or "no constraint"
            message = f"broke {label}, but the error names {named}: {error}"
    except Exception:
        message = f"broke {label}, but the error is not the spec's: {_failure()}"
    else:
        message = f"broke {label}, and no error was raised"
    message = message or next(filter(None, (o.damage(written=False) for o in outputs)), "")
    return replace(blank, verdict=Verdict.FAILED if message else Verdict.PASSED, message=message)


def _outputs(backend: Backend, case: Case) -> list[_Sent]:
    """Poisoned outputs for a backend that takes ``out=``; none for others."""
    if not backend.accepts_out or backend.as_strided is None:
        return []
    types = zip(case.primitive.outputs, case.call.outputs, strict=True)
    return [
        _Sent(
            backend,
            Guarded.poisoned(spec.name, replace(tensor, strides=case.layouts.get(spec.name))),
        )
        for spec, tensor in types
    ]


def _out(outputs: list[_Sent]) -> dict[str, Any]:
    """The ``out=`` argument: one tensor, or a tuple of several."""
    if not outputs:
        return {}
    return {"out": outputs[0].tensor if len(outputs) == 1 else tuple(o.tensor for o in outputs)}


def _zeros(tensor: TensorType) -> NDArray[Any]:
    row = DTYPES.get(tensor.dtype)
    return np.zeros(tensor.shape, row.numpy if row else tensor.dtype)


def _failure() -> str:
    """The exception being handled: what it says, and the last lines of where it came from."""
    lines = traceback.format_exc().rstrip().splitlines()
    return "\n".join([lines[-1], *lines[-_TRACEBACK_LINES:-1]])
