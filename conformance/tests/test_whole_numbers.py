"""Whole numbers that a definition makes of errored ones, such as the cell that a coordinate lies in."""

import numpy as np
import pytest

from dnncanon.conformance.accuracy import ErrorArray, Precision
from dnncanon.spec import DTYPES

FLOAT32 = Precision.of(DTYPES["float32"])


def test_a_cell_is_a_plain_index() -> None:
    coordinates = ErrorArray(np.array([[0.5, 2.75]]), FLOAT32, 1e-12)
    cells = np.floor(coordinates).astype(np.int64)
    assert type(cells) is np.ndarray
    assert cells.dtype == np.int64
    assert cells.tolist() == [[0, 2]]


def test_what_lies_above_the_cell_keeps_the_error() -> None:
    coordinates = ErrorArray(np.array([0.5, 2.75]), FLOAT32, 1e-12)
    rest = (coordinates - np.floor(coordinates).astype(np.int64)).settled()
    assert rest.value.tolist() == [0.5, 0.75]
    assert (rest.deviation() >= 1e-6).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "uint8", "complex64"])
def test_other_types_have_no_rule(dtype: str) -> None:
    with pytest.raises(TypeError, match="no rule for astype"):
        ErrorArray(np.array(1.0), FLOAT32).astype(dtype)
