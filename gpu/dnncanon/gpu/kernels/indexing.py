"""Index arithmetic of correlations, for kernels; names as in ``correlation``."""

from typing import Any

from dnncanon.gpu.runtime.device_code import device_function


@device_function
def output_position(index: Any, sizes: Any, channels_fastest: Any) -> Any:
    """(g, b, j, q0, q1, q2) of the ``index``-th output element.

    The last one is the fastest, or else j, and g after it.
    """
    channels = sizes[0] * sizes[2]
    if channels_fastest:
        rest, channel = index // channels, index % channels
    else:
        rest, channel = index, 0
    q2 = rest % sizes[5]
    rest = rest // sizes[5]
    q1 = rest % sizes[4]
    rest = rest // sizes[4]
    q0 = rest % sizes[3]
    rest = rest // sizes[3]
    if channels_fastest:
        return channel // sizes[2], rest, channel % sizes[2], q0, q1, q2
    j = rest % sizes[2]
    rest = rest // sizes[2]
    return rest // sizes[1], rest % sizes[1], j, q0, q1, q2


@device_function
def place(layout: Any, g: Any, outer: Any, inner: Any, i0: Any, i1: Any, i2: Any) -> Any:
    """Where an element is in memory, ``layout`` being ``Layout.strides``."""
    return (
        layout[0]
        + g * layout[1]
        + outer * layout[2]
        + inner * layout[3]
        + i0 * layout[4]
        + i1 * layout[5]
        + i2 * layout[6]
    )
