"""The kernels that one call launches: ``python -m dnncanon.gpu.static 'softmax_forward(array(64, 1024))'``."""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnncanon.gpu.library import functions
from dnncanon.gpu.static.figures import capability
from dnncanon.gpu.static.inspection import inspect
from dnncanon.gpu.static.recording import recording
from dnncanon.spec import DTYPES


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what the compiler makes of each kernel, without running it."""
    parser = argparse.ArgumentParser(prog="python -m dnncanon.gpu.static", description=main.__doc__)
    parser.add_argument(
        "call",
        help="a primitive and its arguments in Python; array(2, 3, dtype='float16') is an array, "
        "float32 unless it says otherwise",
    )
    parser.add_argument("--cc", type=capability, default=(9, 0, "a"), help="default: sm_90a")
    parser.add_argument("--sass", action="store_true", help="the hot loop's instructions too")
    options = parser.parse_args(arguments)
    with recording() as launches:
        eval(options.call, {**functions(), "array": array})
    for launched in dict.fromkeys(launches):
        inspection = inspect(
            launched.kernel,
            launched.signature,
            options.cc,
            threads=launched.threads,
            dynamic_shared_bytes=launched.dynamic_shared_bytes,
        )
        print(inspection)
        if options.sass:
            print("\n".join(f"    {instruction}" for instruction in inspection.hot_loop))


def array(*shape: int, dtype: str = "float32") -> Any:
    """Memory that nobody looks at."""
    return np.empty(shape, DTYPES[dtype].numpy)


if __name__ == "__main__":
    main()
