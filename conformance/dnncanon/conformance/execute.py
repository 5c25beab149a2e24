"""One case, start to end, in this process: data, guards, the backend's call, the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance import data, isolation, memory, transfer
from dnncanon.conformance.backends import Backend
from dnncanon.conformance.bounds import expectations
from dnncanon.conformance.buffers import Guarded
from dnncanon.conformance.case import Case
from dnncanon.conformance.transfer import Sent
from dnncanon.conformance.verdict import judge
from dnncanon.reports import CaseResult, Verdict
from dnncanon.spec import DTYPES, SpecError, TensorSpec, TensorType

# Outputs of a call are watched for late writes until the next call, unless they are larger.
_WATCHED_BYTES = 1 << 24


def execute(backend: Backend, case: Case) -> CaseResult:
    """Run a case on a backend and judge it. Never raises for what the backend does."""
    started = time.perf_counter()
    late = _written_since(backend)
    blank = blank_result(case, backend.name, backend.numerics(case.primitive.name, case.dtype))
    function = backend.function(case.primitive.name)
    if function is None:
        result = replace(blank, message=f"{backend.name} has no {case.primitive.name}")
    elif declined := backend.declines(case.primitive.name, case.dtype, case.layer):
        result = replace(blank, message=f"{backend.name} declines {case.layer} values: {declined}")
    elif short := memory.shortage(case):
        result = replace(blank, verdict=Verdict.SKIPPED, message=short)
    elif case.wrong_out:
        result = _wrong_out(backend, function, case, blank)
    elif case.violates:
        result = _must_error(backend, function, case, blank)
    else:
        result = _run(backend, function, case, blank)
    if late and not result.failing:
        result = replace(result, verdict=Verdict.FAILED, message=late)
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
    specs = [spec for spec in case.primitive.inputs if spec.name in tensors]
    drawn = {spec.name: _data(case, spec, length) for spec in specs}
    made = case.primitive.consistent(case.call.problem, drawn)
    margin = transfer.margin(case)
    return {s.name: Guarded.holding(s.name, tensors[s.name], made[s.name], margin) for s in specs}


def _data(case: Case, spec: TensorSpec, reduction_length: int) -> NDArray[np.float64]:
    tensor = case.arguments.tensors[spec.name]
    fill = "normal" if case.layer == "special" and not spec.special_values else case.fill
    limit = spec.values.limit(case.call.problem)
    flat = data.values(
        fill,
        case.seed,
        spec.name,
        tensor.size,
        tensor.dtype,
        reduction_length,
        spec.values,
        limit,
    )
    return flat.reshape(tensor.shape)


# --- Calls, one or several ------------------------------------------------------------------------


def _run(
    backend: Backend, function: Callable[..., Any], case: Case, blank: CaseResult
) -> CaseResult:
    """The result of the case's last call, or of the first one that does not conform.

    ``after`` has a call with other data go before it: stale results and caches show. ``runs`` has the
    same call made several times: outputs of a deterministic backend agree bit for bit.
    """
    calls = [("", case)] * case.runs
    if case.after is not None:
        calls.insert(0, (f"in the call before, of seed {case.after}: ", _other_data(case)))
    made: list[_Execution] = []
    for where, one in calls:
        execution = _Execution(backend, function, one, blank)
        result = execution.result()
        if result.failing:
            return replace(result, message=where + result.message)
        if result.verdict is Verdict.UNSUPPORTED:
            return result
        made.append(execution)
        if len(made) > 1 and (wrong := _wrong_together(made)):
            return replace(result, verdict=Verdict.FAILED, message=wrong)
    if execution.watchable:
        backend.watched = execution
    return result


def _other_data(case: Case) -> Case:
    return replace(case, seed=case.after or 0, after=None)


def _wrong_together(made: list[_Execution]) -> str:
    """What is wrong with the last of several calls in view of the ones before; empty if nothing."""
    *before, last = made
    for earlier in before:
        if earlier.watchable and (changed := earlier.written_since()):
            return f"{changed}: by the next call, or during it"
    same = before[-1].case.seed == last.case.seed
    claimed = last.backend.claims_determinism(last.case.primitive.name)
    return _difference(before[-1], last) if same and claimed else ""


def _difference(first: _Execution, second: _Execution) -> str:
    """Where the outputs of two equal calls differ in any bit; empty if nowhere."""
    names = first.call.named_outputs
    for name, one, other in zip(names, first.results, second.results, strict=True):
        differ = _bits(one) != _bits(other)
        if differ.any():
            at = int(np.argmax(differ))
            index = list(map(int, np.unravel_index(at, one.shape)))
            values = [float(array.reshape(-1)[at]) for array in (one, other)]
            return (
                f"claimed to be deterministic, but {name}{index} is {values[0]:.17g} in one call and "
                f"{values[1]:.17g} in the next, the same one; {differ.sum()} of {differ.size} elements "
                f"differ"
            )
    return ""


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}")


def _written_since(backend: Backend) -> str:
    """What has been written of the case before after that had been judged; empty if nothing."""
    watched, backend.watched = backend.watched, None
    if not isinstance(watched, _Execution):
        return ""
    try:
        changed = watched.written_since()
    except Exception:  # what it had put out cannot be read any more: no matter, it was in time
        return ""
    return f"in the case before, {watched.blank.case}: {changed}" if changed else ""


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
        self.results: list[NDArray[Any]] = []
        self._sent: dict[str, Sent] = {}
        self._out: list[Sent] = []
        self._workspace: list[Sent] = []
        self._returned: tuple[Any, ...] = ()

    def result(self) -> CaseResult:
        held = memory.bytes_held()
        try:
            with isolation.SettingsKept():
                self._call()
        except NotImplementedError as unsupported:
            return self.unsupported(isolation.said(unsupported) or "not implemented")
        except (
            BaseException
        ):  # exits and interrupts too: they are the backend's, and cost it the case
            message = isolation.failure()
            _, tampering = _tampering(Verdict.ERROR)
            message = "\n".join(filter(None, (message, tampering)))
            return replace(self.blank, verdict=Verdict.ERROR, message=message)
        try:
            return self._examined()
        except MemoryError:
            with memory.unlimited():
                grown = memory.bytes_held() - held
                if grown <= memory.bytes_needed(self.case):
                    raise
                kept = f"the backend keeps {grown / 2**30:,.1f} GiB more than before its call"
                message = f"no memory is left to judge by: {kept}"
                return replace(self.blank, verdict=Verdict.ERROR, message=message)

    def unsupported(self, why: str) -> CaseResult:
        """The result of a call that the backend does not offer."""
        verdict, tampering = _tampering(Verdict.UNSUPPORTED)
        return replace(self.blank, verdict=verdict, message=tampering or why)

    def _examined(self) -> CaseResult:
        """The result of a call that has returned."""
        counters = {"flops": float(self.call.flops), "least_bytes": float(self.call.least_bytes)}
        timed = replace(self.blank, seconds=self.seconds, counters=counters)
        verdict, complaint = _tampering(Verdict.FAILED)
        try:
            with isolation.SettingsKept():
                complaint = complaint or self.damage() or self._wrong_outputs()
        except MemoryError:
            raise
        except BaseException:  # the backend's to_host
            return replace(timed, verdict=Verdict.ERROR, message=isolation.failure())
        if complaint:
            return replace(timed, verdict=verdict, message=complaint)
        return self._judged(timed)

    def _judged(self, timed: CaseResult) -> CaseResult:
        tensors = {name: guarded.view() for name, guarded in self.inputs.items()}
        expected = expectations(self.call, tensors, timed.numerics)
        names = tuple(self.call.named_outputs)
        copied = [] if self.case.primitive.may_copy else list(tensors.values())
        judgement = judge(names, self.results, expected, copied)
        late = self.written_since() if self.watchable else ""
        return replace(
            timed,
            verdict=Verdict.FAILED if late else judgement.verdict,
            message=f"while it was judged: {late}" if late else judgement.message,
            max_error=judgement.max_error,
            p99_error=judgement.p99_error,
            bias=judgement.bias,
            mean_square=judgement.mean_square,
            sampled=judgement.sampled,
            max_ulp=judgement.max_ulp,
            ulp_histogram=judgement.ulp_histogram,
            wrong_elements=judgement.wrong_elements,
            elements=judgement.elements,
        )

    def _call(self) -> None:
        """Hand everything over and call the function."""
        self.call_with(*self.handed_over())

    def handed_over(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the call, positional and by keyword, as the backend's arrays."""
        self._sent = {name: Sent(self.backend, guarded) for name, guarded in self.inputs.items()}
        self._out = transfer.outputs(self.backend, self.case, self._sent)
        tensors = [
            self._sent[spec.name].tensor if spec.name in self._sent else None
            for spec in self.case.primitive.inputs
        ]
        while tensors and tensors[-1] is None:
            tensors.pop()
        attributes = dict(self._attributes())
        self._workspace = transfer.workspace(
            self.backend, self.case.primitive.name, tensors, attributes
        )
        keywords = {**attributes, **transfer.out_keyword(self._out)}
        if self._workspace:
            keywords["workspace"] = self._workspace[0].tensor
        return tensors, keywords

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        """The attributes; those at their defaults are left for the backend to fill in."""
        for attribute in self.case.primitive.attributes:
            value = self.case.arguments.attributes[attribute.name]
            if value is not attribute.default:
                yield attribute.name, value

    def call_with(self, tensors: list[Any], keywords: dict[str, Any]) -> None:
        """Call the function, and wait until the device has finished."""
        self.backend.synchronize()
        started = time.perf_counter()
        returned = self.function(*tensors, **keywords)
        self.backend.synchronize()
        self.seconds = time.perf_counter() - started
        self._returned = returned if isinstance(returned, tuple) else (returned,)

    def damage(self, *, refused: bool = False) -> str:
        """What was written that was not to be, as no output is where the call was ``refused``."""
        found = [sent.damage(written=False) for sent in self._sent.values()]
        found += [sent.damage(written=not refused) for sent in self._out]
        found += [sent.damage(written=True) for sent in self._workspace]
        return next(filter(None, found), "")

    def _wrong_outputs(self) -> str:
        """Keep what was put out, on the host; why it is not what the call should give, or nothing.

        With ``out=`` its elements count, and what the function returns is not looked at.
        """
        if self._out:
            self.results = [transfer.snapshot(sent.received()) for sent in self._out]
            return ""
        if len(self._returned) != len(self.call.outputs):
            return f"{len(self._returned)} outputs were returned, not {len(self.call.outputs)}"
        outputs = zip(self.call.named_outputs.items(), self._returned, strict=True)
        for (name, expected), returned in outputs:
            if not hasattr(returned, "shape") or not hasattr(returned, "dtype"):
                return f"{name} is {_kind(returned)}, not an array"
            array = self.backend.to_host(returned)
            if not isinstance(array, np.ndarray):
                return f"{name} is {_kind(array)} on the host, not a NumPy array"
            self.results.append(transfer.snapshot(array))
            got = TensorType.of(self.results[-1])
            if got != expected:
                return f"{name} is {_described(got)}, not {_described(expected)}"
            if any(sent.shares_memory(returned) for sent in self._sent.values()):
                return f"{name} shares memory with an input"
        return ""

    @property
    def watchable(self) -> bool:
        """Whether there are outputs, not too large to be kept until the next case."""
        return bool(self.results) and sum(r.nbytes for r in self.results) <= _WATCHED_BYTES

    def written_since(self) -> str:
        """What of inputs and outputs has been written after they were taken to the host, if anything."""
        now = [sent.received() for sent in self._out] or [
            np.asarray(self.backend.to_host(returned)) for returned in self._returned
        ]
        for name, then, array in zip(self.call.named_outputs, self.results, now, strict=False):
            if transfer.snapshot(array).tobytes() != then.tobytes():
                return f"{name} was written after the call had returned"
        damage = self.damage()
        return f"{damage}, after the call had returned" if damage else ""


def _tampering(otherwise: Verdict) -> tuple[Verdict, str]:
    """Undo what was done to the process; the verdict on that and what it was, else the given one."""
    replaced = isolation.put_back()
    if replaced:
        names = ", ".join(replaced[:3]) + (" and others" if len(replaced) > 3 else "")
        return Verdict.ERROR, (
            f"the call replaced {names}, by which its results would have been judged; a backend must "
            f"leave what it does not own as it is"
        )
    mode = isolation.restored_floating_point_mode()
    if mode:
        return Verdict.FAILED, (
            f"the call left the processor in another floating-point mode, in which {mode}; whoever "
            f"calls it computes wrongly from then on"
        )
    return otherwise, ""


def _described(tensor: TensorType) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def _kind(thing: object) -> str:
    return "None" if thing is None else f"of type {type(thing).__name__}"


# --- Must-error cases -----------------------------------------------------------------------------


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
    outputs = transfer.outputs(backend, case, {})
    message = ""
    try:
        with isolation.SettingsKept():
            function(*sent, **arguments.attributes, **transfer.out_keyword(outputs))
    except SpecError as error:
        if error.constraint != label:
            named = error.constraint or "no constraint"
            message = f"broke {label}, but the error names {named}: {isolation.said(error)}"
    except BaseException:
        message = f"broke {label}, but the error is not the spec's: {isolation.failure()}"
    else:
        message = f"broke {label}, and no error was raised"
    message = message or next(filter(None, (o.damage(written=False) for o in outputs)), "")
    verdict, tampering = _tampering(Verdict.FAILED if message else Verdict.PASSED)
    return replace(blank, verdict=verdict, message=tampering or message)


def _wrong_out(
    backend: Backend, function: Callable[..., Any], case: Case, blank: CaseResult
) -> CaseResult:
    """Call with an ``out=`` that does not fit: it has to be refused, with nothing written."""
    wrong, execution = case.wrong_out, _Execution(backend, function, case, blank)
    assert wrong is not None
    if not transfer.takes_out(backend):
        return replace(blank, message=f"{backend.name} takes no out=")
    try:
        with isolation.SettingsKept():
            arguments = execution.handed_over()
    except MemoryError:
        raise
    except Exception:  # for instance of a dtype that the backend has no arrays of
        return execution.unsupported(f"{wrong}, and cannot be made: {isolation.failure()}")
    message = f"{wrong}, and no error was raised"
    try:
        with isolation.SettingsKept():
            execution.call_with(*arguments)
    except NotImplementedError as unsupported:
        return execution.unsupported(isolation.said(unsupported) or "not implemented")
    except BaseException as error:
        message = wrong.complaint(error, claimed=backend.raises_spec_errors)
    try:
        message = message or execution.damage(refused=True)
    except Exception:  # the backend's to_host
        return replace(blank, verdict=Verdict.ERROR, message=isolation.failure())
    verdict, tampering = _tampering(Verdict.FAILED if message else Verdict.PASSED)
    return replace(blank, verdict=verdict, message=tampering or message)


def _zeros(tensor: TensorType) -> NDArray[Any]:
    row = DTYPES.get(tensor.dtype)
    return np.zeros(tensor.shape, row.numpy if row else tensor.dtype)
