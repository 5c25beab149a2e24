"""What normalization computes of an element, and of the sums over a set: functions for the shared engines.

All norms share a few kernels, for each takes a while to compile. An operand that a call does not have is
another one that is at hand, and a flag says that it is not to be used: what is broadcast lies in a cache.
Operands of x's size are never stood in for. ``offset`` is 1 where scale is stored less 1.
"""

from collections.abc import Callable
from functools import cache
from math import sqrt
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.reduction import SUM, Monoid, as_it_is
from dnncanon.gpu.runtime.device_code import device_function, generated

# --- Reductions -----------------------------------------------------------------------------------


@device_function
def add_pairs(a: Any, b: Any) -> Any:
    return a[0] + b[0], a[1] + b[1]


@cache
def statistics(kind: str, *, centred: bool) -> Monoid:
    """Of a set its mean, if ``centred``, 1/√(σ² + ε) and σ², from those of its parts; scalars: count, epsilon.

    A part is n elements, their sum and the squares of their distances from its mean, or from 0. Where two are
    put together, the distance of their means d adds d²·n·n′/(n + n′) (Chan, Golub and LeVeque 1979).
    """
    between = """
    distance = b[0] / b[2] - a[0] / a[2]
    squares = squares + distance * distance * (a[2] * (b[2] / (a[2] + b[2])))
"""
    combine = f"""
def combine(a, b):
    if a[2] == zero:
        return b
    if b[2] == zero:
        return a
    squares = a[1] + b[1]
{between if centred else ""}
    return a[0] + b[0], squares, a[2] + b[2]
"""
    finish = f"""
def finish(parts, count, epsilon):
    variance = parts[1] / count
    return {"parts[0] / count, " if centred else ""}one / sqrt(variance + epsilon), variance
"""
    lift = "def lift(total, squares, elements, count, epsilon): return total, squares, elements\n"
    lifted, combined, finished = (_made(text, kind) for text in (lift, combine, finish))
    return Monoid(("sum",) * 3, (0, 0, 0), lifted, combined, finished)


@cache
def sums_of_powers(kind: str, *, shifted: bool) -> Monoid:
    """Σ (x − shift) and Σ (x − shift)²."""
    shift, distance = (", shift", "x - shift") if shifted else ("", "x")
    lift = f"""
def lift(x{shift}):
    distance = {distance}
    return distance, distance * distance
"""
    return Monoid(("sum", "sum"), (0, 0), _made(lift, kind), add_pairs, as_it_is)


@device_function
def _both(a: Any, b: Any) -> Any:
    return a, b


SUMS = {1: SUM, 2: Monoid(("sum", "sum"), (0, 0), _both, add_pairs, as_it_is)}
"""The sums of so many inputs."""


@cache
def gradient_sums(kind: str, *, masked: bool, which: tuple[int, ...] = (0, 1)) -> Monoid:
    """Σ g and Σ g·x̂, of dy, x and, if ``masked`` by a ReLU, y, and mean, inv_std, scale; or ``which`` of them.

    g is γ·dy with the flag ``scaled``, else dy; without ``centred`` there is no mean. x̂ is not rounded by
    itself: of many elements that are alike all would be rounded in the same way.
    """
    lift = f"""
def lift(dy, x{", y" if masked else ""}, mean, inv_std, scale, offset, scaled, centred):
    g = {_passed_on(masked)}
    if scaled != 0:
        g = (offset + scale) * g
    distance = x - mean if centred != 0 else x
    return g, g * distance * inv_std
"""
    wanted = ", ".join(f"sums[{k}]" for k in which)
    finish = f"def finish(sums, *_): return {wanted}\n"
    return Monoid(("sum", "sum"), (0, 0), _made(lift, kind), add_pairs, _made(finish, kind))


# --- Elements -------------------------------------------------------------------------------------


@cache
def normalised(kind: str, *, residual: bool) -> Callable[..., Any]:
    """y of x, mean, inv_std, scale, bias and, if there is a ``residual``, z."""
    z = ", z" if residual else ""
    source = f"""
def normalised(x, mean, inv_std, scale, bias{z}, offset, centred, scaled, shifted, relu):
    y = (x - mean if centred != 0 else x) * inv_std
    if scaled != 0:
        y = (offset + scale) * y
    if shifted != 0:
        y = y + bias
    {"y = y + z" if residual else "pass"}
    return y if relu == 0 or y > zero or y != y else zero
"""
    return _made(source, kind)


@cache
def by_given_statistics(kind: str, *, residual: bool) -> Callable[..., Any]:
    """y of x, mean, variance, scale, bias and, if there is a ``residual``, z; scalars: epsilon, relu."""
    z = ", z" if residual else ""
    source = f"""
def by_given_statistics(x, mean, variance, scale, bias{z}, epsilon, relu):
    y = scale * ((x - mean) * (one / sqrt(variance + epsilon))) + bias
    {"y = y + z" if residual else "pass"}
    return y if relu == 0 or y > zero or y != y else zero
"""
    return _made(source, kind)


@cache
def input_gradient(kind: str, *, masked: bool, forked: bool) -> Callable[..., Any]:
    """dx, and if ``forked`` the residual's dz, of dy, x, mean, inv_std, scale, both sums over the set, and y.

    With the flag ``scaled`` γ multiplies dy; with ``factored`` it is the same for the whole set, and
    multiplies what is left of the gradient. Fixed statistics pass no gradient on.
    """
    y = ", y" if masked else ""
    source = f"""
def input_gradient(
    dy, x, mean, inv_std, scale, sum_g, sum_gx{y}, count, offset, scaled, factored, centred, fixed
):
    g = {_passed_on(masked)}
    rest = (offset + scale) * g if scaled != 0 else g
    if fixed == 0:
        distance = x - mean if centred != 0 else x
        mean_g = sum_g / count if centred != 0 else zero
        rest = rest - mean_g - distance * inv_std * (sum_gx / count)
    dx = inv_std * rest
    if factored != 0:
        dx = (offset + scale) * dx
    return {"dx, g" if forked else "dx"}
"""
    return _made(source, kind)


@device_function
def same(value: Any) -> Any:
    return value


# --- Statistics -----------------------------------------------------------------------------------


@device_function
def running(before: Any, batch: Any, kept: Any, weight: Any, times: Any) -> Any:
    """The exponential average; scalars: weight of what was before, of the batch, and its factor."""
    return kept * before + weight * (batch * times)


@cache
def finalized(kind: str, operands: tuple[str, ...]) -> Monoid:
    """Statistics of a batch from its sums and squares in shards; scalars: count, epsilon, those of ``running``.

    ``operands`` are what there is one of for each channel: scale, bias and perhaps running_mean,
    running_var, shift.
    """
    averages = ""
    if "running_mean" in operands:
        averages = (
            ", kept * running_mean + weight * mean"
            ", kept * running_var + weight * (variance * times)"
        )
    given = f"{', '.join(operands)}, count, epsilon, kept, weight, times"
    lift = f"def lift(total, squares, {given}): return total, squares\n"
    finish = f"""
def finish(sums, {given}):
    distance = sums[0] / count
    mean = {"shift + distance" if "shift" in operands else "distance"}
    variance = sums[1] / count - distance * distance
    variance = variance if variance > zero or variance != variance else zero
    inv_std = one / sqrt(variance + epsilon)
    factor = scale * inv_std
    return mean, inv_std, factor, bias - mean * factor{averages}
"""
    return Monoid(("sum", "sum"), (0, 0), _made(lift, kind), add_pairs, _made(finish, kind))


@device_function
def coefficients(sum_gx: Any, sum_g: Any, scale: Any, mean: Any, inv_std: Any, count: Any) -> Any:
    """A, B and C of dx = A·dy + B·x + C; scalar: count."""
    a = scale * inv_std
    b = -a * inv_std * sum_gx / count
    return a, b, -a * sum_g / count - b * mean


# --- Sources --------------------------------------------------------------------------------------


def _made(source: str, kind: str) -> Callable[..., Any]:
    """The device function, whose literals are of the type of sums: others would widen float32."""
    number = ELEMENTS[kind].sum
    scope = {"sqrt": sqrt, "zero": number(0), "one": number(1)}
    return device_function(generated(source, scope))


def _passed_on(masked: bool) -> str:
    """What a ReLU passes on of dy: all of it where y > 0."""
    return "dy if y > zero else zero" if masked else "dy"
