"""Named workloads: convolutions and recurrent layers of well-known networks, with the shapes they have there.

A network is written down by its structure, as its authors describe it, and unrolled by following one
tensor through it; :class:`_Network` records each convolution that the tensor passes. Only shapes are
here: a workload says which problems a backend will meet, not what the network computes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from dnncanon import spec
from dnncanon.spec.attributes import padding_pairs, per_dim
from dnncanon.spec.rnn_rules import SHAPES, WIDE
from dnncanon.spec.rnn_weights import rnn_weight_layout
from dnncanon.spec.softmax import stats_dtype
from dnncanon.spec.tensors import Shape
from dnncanon.spec.windows import output_extents, resolve_padding


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a network, as a call of its forward primitive, and how often the network has it.

    ``name`` is that of the first of ``count`` equal layers. ``shapes`` are those of the tensors that the call
    has; ``attributes`` are complete where they are not the default: of a convolution padding (explicit pairs),
    stride, dilation, groups and mode.
    """

    name: str
    count: int
    forward: str
    shapes: Mapping[str, Shape]
    attributes: Mapping[str, Any]

    @property
    def family(self) -> str:
        return spec.primitives()[self.forward].family

    @property
    def forms(self) -> tuple[str, ...]:
        """The primitives that a workload runs at this layer."""
        return _FAMILIES[self.family].forms(self)


@dataclass(frozen=True, slots=True)
class Workload:
    """The layers of one network; ``layers(batch)`` lists them in order, equal ones merged."""

    name: str
    doc: str
    source: str
    layers: Callable[[int], list[Layer]]


def arguments(layer: Layer, primitive_name: str, dtype: str) -> spec.Arguments:
    """The arguments of a primitive at a layer, complete and legal.

    The backward directions belong to the same forward problem: dy has the shape of y, and
    ``input_size`` and ``filter_size`` are those of x and w. Optional tensors are absent, and
    attributes that a layer does not have take their defaults. ValueError for primitives without a call there.
    """
    calls = _FAMILIES[layer.family].calls(layer)
    if primitive_name not in calls:
        raise ValueError(
            f"{layer.name} has no call of {primitive_name!r}; pass one of {', '.join(calls)}"
        )
    primitive, call = spec.primitives()[primitive_name], _forward(layer, dtype)
    shapes, sizes = _FAMILIES[layer.family].known(call.problem)
    values = {**layer.attributes, **sizes}
    wide = stats_dtype(dtype)
    return spec.Arguments(
        {
            t.name: spec.TensorType(wide if t.name in WIDE else dtype, shapes[t.name])
            for t in primitive.inputs
            if not t.optional
        },
        {a.name: values.get(a.name, a.default) for a in primitive.attributes},
    )


def _forward(layer: Layer, dtype: str = "float32") -> spec.Call[Any]:
    tensors = [spec.TensorType(dtype, shape) for shape in layer.shapes.values()]
    return spec.primitives()[layer.forward].bind(*tensors, **layer.attributes)


# --- Families -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Family:
    """What calls of a family's primitives need to know of a layer.

    ``calls`` are the primitives that have a call there, ``forms`` those of them that a workload runs; ``known``
    gives of a forward problem the shapes of all tensors, and the attributes that stand for shapes.
    """

    calls: Callable[[Layer], tuple[str, ...]]
    forms: Callable[[Layer], tuple[str, ...]]
    known: Callable[[Any], tuple[Mapping[str, Shape], Mapping[str, Any]]]


def _known_of_conv(p: Any) -> tuple[Mapping[str, Shape], Mapping[str, Any]]:
    shapes = {"x": p.x_shape, "w": p.w_shape, "dy": p.y_shape, "bias": (p.out_channels,)}
    return shapes, {"input_size": p.input_size, "filter_size": p.filter_size}


def _known_of_rnn(p: Any) -> tuple[Mapping[str, Shape], Mapping[str, Any]]:
    return {name: shape(p) for name, (_, shape) in SHAPES.items()}, {"input_size": p.input_size}


def _of_convolutions(layer: Layer) -> tuple[str, ...]:
    return tuple(p.name for p in spec.primitives().values() if p.family == "conv")


def _of_cell(layer: Layer) -> tuple[str, ...]:
    cell = layer.forward.removesuffix("_forward")
    return tuple(name for name in spec.primitives() if name.startswith(f"{cell}_"))


DIRECTIONS = ("conv_forward", "conv_backward_data", "conv_backward_filter")

_FAMILIES = {
    "conv": _Family(_of_convolutions, lambda layer: DIRECTIONS, _known_of_conv),
    "rnn": _Family(_of_cell, _of_cell, _known_of_rnn),
}


# --- Networks of convolutions ---------------------------------------------------------------------


class _Network:
    """A tensor on its way through a network; records the convolutions that it passes."""

    def __init__(self, batch: int, channels: int, *extents: int) -> None:
        if batch < 0:
            raise ValueError(f"batch={batch} is negative; pass batch >= 0")
        self.shape: Shape = (batch, channels, *extents)
        self._layers: list[Layer] = []

    @property
    def channels(self) -> int:
        return self.shape[1]

    def conv(
        self,
        name: str,
        filters: int,
        filter_size: int | Shape,
        *,
        stride: int | Shape = 1,
        padding: Any = 0,
        groups: int = 1,
    ) -> None:
        """Pass a convolution."""
        self.shape = self._record(name, self.shape, filters, filter_size, stride, padding, groups)

    def branch(self, name: str, shape: Shape, filters: int, *, stride: int) -> None:
        """Record a 1×1 convolution on a parallel branch, whose tensor has ``shape``."""
        self._record(name, shape, filters, 1, stride, 0, 1)

    def up_conv(self, name: str, filters: int, factor: int) -> None:
        """Pass an up-convolution, which multiplies extents by ``factor``, equal to its filter and stride.

        It is recorded as the strided convolution whose gradient by the input it is: there,
        conv_backward_data is the up-convolution itself.
        """
        batch, channels, *extents = self.shape
        self.shape = (batch, filters, *(extent * factor for extent in extents))
        self._record(name, self.shape, channels, factor, factor, 0, 1)

    def pool(self, window: int, stride: int, padding: int = 0) -> None:
        """Pass a pooling."""
        extents = self.shape[2:]
        dims = len(extents)
        pairs = padding_pairs(padding, dims)
        ones, windows, strides = (1,) * dims, (window,) * dims, (stride,) * dims
        pooled = output_extents(extents, windows, pairs, strides, ones)
        self.shape = (*self.shape[:2], *pooled)

    def concatenate(self, channels: int) -> None:
        """Join as many channels of another tensor, cropped to this one's extents."""
        self.shape = (self.shape[0], self.channels + channels, *self.shape[2:])

    def layers(self) -> list[Layer]:
        """The recorded layers, equal ones merged."""
        return _merged(self._layers)

    def _record(
        self,
        name: str,
        x_shape: Shape,
        filters: int,
        filter_size: int | Shape,
        stride: int | Shape,
        padding: Any,
        groups: int,
    ) -> Shape:
        dims = len(x_shape) - 2
        size, steps, ones = per_dim(filter_size, dims), per_dim(stride, dims), (1,) * dims
        attributes = {
            "padding": resolve_padding(padding, x_shape[2:], size, steps, ones),
            "stride": steps,
            "dilation": ones,
            "groups": groups,
            "mode": "cross_correlation",
        }
        shapes = {"x": x_shape, "w": (filters, x_shape[1] // groups, *size)}
        layer = Layer(name, 1, "conv_forward", shapes, attributes)
        self._layers.append(layer)
        return _forward(layer).outputs[0].shape


def _merged(layers: Iterable[Layer]) -> list[Layer]:
    """Each distinct layer once, in order of first appearance, with its count."""
    merged: dict[tuple[Any, ...], Layer] = {}
    for layer in layers:
        key = (layer.forward, *layer.shapes.items(), *layer.attributes.items())
        known = merged.get(key)
        merged[key] = replace(known, count=known.count + layer.count) if known else layer
    return list(merged.values())


def _resnet50(batch: int) -> list[Layer]:
    net = _Network(batch, 3, 224, 224)
    net.conv("conv1", 64, 7, stride=2, padding=3)
    net.pool(3, stride=2, padding=1)
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            _bottleneck(net, f"layer{stage}.{block}", width, stride, projects=block == 0)
    return net.layers()


def _bottleneck(net: _Network, name: str, width: int, stride: int, projects: bool) -> None:
    """1×1 down to ``width``, 3×3, 1×1 up to four times ``width``; its shortcut may project."""
    entry = net.shape
    net.conv(f"{name}.conv1", width, 1)
    net.conv(f"{name}.conv2", width, 3, stride=stride, padding=1)
    net.conv(f"{name}.conv3", 4 * width, 1)
    if projects:
        net.branch(f"{name}.downsample", entry, 4 * width, stride=stride)


def _vgg16(batch: int) -> list[Layer]:
    net = _Network(batch, 3, 224, 224)
    for stage, (filters, convs) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for conv in range(1, convs + 1):
            net.conv(f"conv{stage}_{conv}", filters, 3, padding=1)
        net.pool(2, stride=2)
    return net.layers()


def _mobilenet_v2(batch: int) -> list[Layer]:
    # Expansion t, channels c, blocks n, stride s of the first block: the paper's table 2.
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    net = _Network(batch, 3, 224, 224)
    net.conv("stem", 32, 3, stride=2, padding=1)
    blocks = [
        (expansion, channels, stride if block == 0 else 1)
        for expansion, channels, count, stride in stages
        for block in range(count)
    ]
    for number, (expansion, channels, stride) in enumerate(blocks, start=1):
        _inverted_residual(net, f"block{number}", expansion, channels, stride)
    net.conv("head", 1280, 1)
    return net.layers()


def _inverted_residual(
    net: _Network, name: str, expansion: int, channels: int, stride: int
) -> None:
    """1×1 up by ``expansion``, 3×3 depthwise, 1×1 down to ``channels``."""
    width = expansion * net.channels
    if expansion > 1:
        net.conv(f"{name}.expand", width, 1)
    net.conv(f"{name}.depthwise", width, 3, stride=stride, padding=1, groups=width)
    net.conv(f"{name}.project", channels, 1)


def _unet3d(batch: int) -> list[Layer]:
    net, shortcuts = _Network(batch, 3, 132, 132, 116), []
    for level, width in enumerate((32, 64, 128, 256), start=1):
        net.conv(f"analysis{level}.conv1", width, 3)
        net.conv(f"analysis{level}.conv2", 2 * width, 3)
        if level < 4:
            shortcuts.append(net.channels)
            net.pool(2, stride=2)
    for level in (3, 2, 1):
        net.up_conv(f"synthesis{level}.up", net.channels, 2)
        shortcut = shortcuts.pop()
        net.concatenate(shortcut)
        net.conv(f"synthesis{level}.conv1", shortcut, 3)
        net.conv(f"synthesis{level}.conv2", shortcut, 3)
    net.conv("labels", 3, 1)
    return net.layers()


def _deepspeech2(batch: int) -> list[Layer]:
    net = _Network(batch, 1, 161, 700)
    net.conv("conv1", 32, (41, 11), stride=(2, 2), padding=((20, 20), (5, 5)))
    net.conv("conv2", 32, (21, 11), stride=(2, 1), padding=((10, 10), (5, 5)))
    net.conv("conv3", 96, (21, 11), stride=(2, 1), padding=((10, 10), (5, 5)))
    _, channels, frequencies, steps = net.shape
    inputs = (channels * frequencies, *(1280,) * 6)
    recurrent = [
        _recurrent(f"rnn{k}", "rnn_relu", (steps, batch, size, 1280), bidirectional=True)
        for k, size in enumerate(inputs, start=1)
    ]
    return _merged([*net.layers(), *recurrent])


# --- Networks of recurrent layers -----------------------------------------------------------------


def _recurrent(
    name: str, cell: str, sizes: tuple[int, int, int, int], *, bidirectional: bool = False
) -> Layer:
    """One layer; ``sizes`` are steps, batch, input and hidden size. One bias, as the papers have it."""
    steps, batch, inputs, hidden = sizes
    if batch < 0:
        raise ValueError(f"batch={batch} is negative; pass batch >= 0")
    attributes = {
        "hidden_size": hidden,
        "bias_mode": "single_input",
        "bidirectional": bidirectional,
    }
    layout = rnn_weight_layout(
        cell,
        input_size=inputs,
        hidden_size=hidden,
        bias_mode="single_input",
        bidirectional=bidirectional,
    )
    shapes = {"x": (steps, batch, inputs), "weights": (layout.size,)}
    return Layer(name, 1, f"{cell}_forward", shapes, attributes)


def _gnmt(batch: int) -> list[Layer]:
    # Each decoder layer reads the attention context, 1024 numbers, beside its input.
    sizes = [("encoder1", 1024, True), ("encoder2", 2048, False)]
    sizes += [(f"encoder{k}", 1024, False) for k in range(3, 9)]
    sizes += [(f"decoder{k}", 2048, False) for k in range(1, 9)]
    return _merged(
        _recurrent(name, "lstm", (50, batch, inputs, 1024), bidirectional=both)
        for name, inputs, both in sizes
    )


def _lstm_language_model(batch: int) -> list[Layer]:
    layers = (_recurrent(f"layer{k}", "lstm", (35, batch, 1500, 1500)) for k in (1, 2))
    return _merged(layers)


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        workload.name: workload
        for workload in (
            Workload(
                "resnet50",
                "ResNet-50 v1.5 on 3×224×224 images: 53 convolutions. v1.5 strides in the 3×3 "
                "convolution of a bottleneck. The fully connected layer is left out.",
                "He et al. 2015, arXiv:1512.03385, table 1; torchvision resnet50 for v1.5.",
                _resnet50,
            ),
            Workload(
                "vgg16",
                "VGG-16 on 3×224×224 images: 13 convolutions, 3×3 with padding 1. The three fully "
                "connected layers are left out.",
                "Simonyan and Zisserman 2014, arXiv:1409.1556, table 1, configuration D.",
                _vgg16,
            ),
            Workload(
                "mobilenet_v2",
                "MobileNetV2 of width 1.0 on 3×224×224 images: 52 convolutions, 17 of them depthwise. "
                "The classifier is left out.",
                "Sandler et al. 2018, arXiv:1801.04381, table 2; torchvision mobilenet_v2.",
                _mobilenet_v2,
            ),
            Workload(
                "unet3d",
                "3D U-Net on the paper's tile of 3×132×132×116 voxels, with valid convolutions: 14 of "
                "3×3×3, one of 1×1×1, and the 3 up-convolutions of 2×2×2, each as the strided "
                "convolution whose backward data it is. Pooling, cropping and concatenation are left out.",
                "Çiçek et al. 2016, arXiv:1606.06650, figure 2.",
                _unet3d,
            ),
            Workload(
                "deepspeech2",
                "Deep Speech 2 on spectrograms of 161 frequencies × 700 frames (7 s, one each 10 ms): the "
                'three-layer 2-D front end, padded to the extents of the paper\'s "same", and 7 '
                "bidirectional recurrent layers of 1280 units over the 350 steps that it leaves. The "
                "network adds its directions up and lets them share W; here each has its own. Batch "
                "normalization, the bound of 20 of its relu and the fully connected layer are left out, "
                "and so are the 5×20 and 5×10 filters that DeepBench lists for Deep Speech.",
                "Amodei et al. 2015, arXiv:1512.02595: table 3 for the front end, table 1 for the 1280 "
                "units of a network with 7 recurrent layers.",
                _deepspeech2,
            ),
            Workload(
                "gnmt",
                "Google's neural machine translation on sentences of 50 words: 8 encoder layers, the first "
                "bidirectional, and 8 decoder layers of 1024 units, each of which reads the attention "
                "context too. Embeddings, attention, residual connections and softmax are left out.",
                "Wu et al. 2016, arXiv:1609.08144, section 3.",
                _gnmt,
            ),
            Workload(
                "lstm_language_model",
                "The large LSTM language model of Penn Treebank: 2 layers of 1500 units over 35 steps, in "
                "batches of 20 in the paper. Embedding, dropout and softmax are left out.",
                "Zaremba et al. 2014, arXiv:1409.2329, section 4.1.",
                _lstm_language_model,
            ),
        )
    }
)
