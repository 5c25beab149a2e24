"""The backend object of the conformance suite."""

from typing import Any

import numpy as np
import pytest

from dnncanon.gpu import backend
from dnncanon.spec import Primitive, Scale, SpecError, primitives

CONV = [p for p in primitives().values() if p.family == "conv"]


def test_it_has_every_primitive_of_the_family() -> None:
    assert backend.name == "gpu"
    assert backend.accepts_out is True
    assert all(callable(getattr(backend, p.name)) for p in CONV)


def test_it_describes_itself() -> None:
    described = backend.describe()
    assert described["device"]
    assert described["versions"]["numba-cuda"]
    assert described["errors"] == "dnncanon"
    assert described["numerics"]["conv_forward"] == {
        "float64": "ieee",
        "float32": "ieee",
        "float16": "ieee",
        "bfloat16": "ieee",
    }


def test_guarded_buffers() -> None:
    """As the suite calls it: views of flat buffers, outputs in a poisoned one."""
    x = backend.to_device(np.arange(40, dtype=np.float32))
    w = backend.to_device(np.ones(10, np.float32))
    memory = backend.to_device(np.full(40, np.nan, np.float32))
    out = backend.as_strided(memory, (1, 2, 4), (20, 9, 2), 3)
    y = backend.conv_forward(
        backend.as_strided(x, (1, 2, 5), (0, 20, 2), 1),
        backend.as_strided(w, (2, 2, 2), (0, 1, 3), 2),
        out=out,
    )
    backend.synchronize()
    assert y is out
    written = backend.to_host(memory)
    first = np.arange(40, dtype=np.float32)[[[1, 3, 5, 7, 9], [21, 23, 25, 27, 29]]].sum(0)
    expected = np.full(40, np.nan, np.float32)
    for row in range(2):
        expected[3 + 9 * row : 3 + 9 * row + 8 : 2] = first[:-1] + first[1:]
    np.testing.assert_array_equal(written, expected)


class Simplest:
    """Draws the simplest choice; ``Scale`` then makes the smallest legal call."""

    def integer(self, low: int, high: int) -> int:
        return low

    def choice(self, options: tuple[Any, ...]) -> Any:
        return options[0]


@pytest.mark.parametrize("primitive", CONV, ids=lambda p: p.name)
def test_each_violation_of_the_specification_is_refused(primitive: Primitive[Any]) -> None:
    """Every way in which the specification can break each of its constraints, by label."""
    legal = primitive.domain(Simplest(), Scale(2, 4, 6, 10_000), "float32")
    labels = set()
    for label, broken in primitive.violations(legal):
        tensors = [
            np.zeros(broken.tensors[row.name].shape, broken.tensors[row.name].dtype)
            if row.name in broken.tensors
            else None
            for row in primitive.inputs
        ]
        with pytest.raises(SpecError) as raised:
            getattr(backend, primitive.name)(*tensors, **broken.attributes)
        assert raised.value.constraint == label
        labels.add(label)
    assert len(labels) > len(primitive.constraints) // 2
