"""Index arithmetic on tuples, for kernels; written as LLVM IR, which compiles at once for any rank.

All numbers are int64 and not negative, strides apart. Dims go from the slowest to the fastest.
"""

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

_LONG = ir.IntType(64)


def _ints(count: int) -> Any:
    return types.UniTuple(types.int64, count)


def _parts(builder: Any, value: Any, kind: Any) -> list[Any]:
    return [builder.extract_value(value, i) for i in range(len(kind))]


@intrinsic  # type: ignore[untyped-decorator]
def digits_of(typing: Any, index: Any, extents: Any) -> Any:
    """digits_of(index, extents): the linear index as one index for each dim, the first without a limit."""
    rank = len(extents)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rest, found = arguments[0], []
        for extent in reversed(_parts(builder, arguments[1], extents)[1:]):
            quotient = builder.udiv(rest, extent)
            found.append(builder.sub(rest, builder.mul(quotient, extent)))
            rest = quotient
        return context.make_tuple(builder, signature.return_type, [rest, *reversed(found)])

    return _ints(rank)(types.int64, _ints(rank)), codegen


@intrinsic  # type: ignore[untyped-decorator]
def advance(typing: Any, digits: Any, step: Any, extents: Any) -> Any:
    """advance(digits, step, extents): the sum of two indices given by their digits, with carries."""
    rank = len(extents)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        columns = zip(*(_parts(builder, a, extents) for a in arguments), strict=True)
        carry, found = ir.Constant(_LONG, 0), []
        for place, (digit, more, extent) in reversed(list(enumerate(columns))):
            total = builder.add(builder.add(digit, more), carry)
            if place > 0:
                over = builder.icmp_signed(">=", total, extent)
                total = builder.select(over, builder.sub(total, extent), total)
                carry = builder.zext(over, _LONG)
            found.append(total)
        return context.make_tuple(builder, signature.return_type, found[::-1])

    return _ints(rank)(_ints(rank), _ints(rank), _ints(rank)), codegen


@intrinsic  # type: ignore[untyped-decorator]
def places(typing: Any, digits: Any, strides: Any, bases: Any) -> Any:
    """places(digits, strides, bases): bases[k] + Σ digits · strides[k] for each operand k.

    ``strides`` holds those of the operands one after the other.
    """
    rank, operands = len(digits), len(bases)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, by, totals = (
            _parts(builder, value, kind)
            for value, kind in zip(arguments, signature.args, strict=True)
        )
        for k in range(operands):
            for digit, stride in zip(at, by[k * rank : (k + 1) * rank], strict=True):
                totals[k] = builder.add(totals[k], builder.mul(digit, stride))
        return context.make_tuple(builder, signature.return_type, totals)

    return _ints(operands)(_ints(rank), _ints(rank * operands), _ints(operands)), codegen
