"""The workloads hold the layers that the networks' authors and users count."""

import math
from collections.abc import Callable

import pytest

from dnncanon import spec
from dnncanon.conformance.workloads import DIRECTIONS, WORKLOADS, Layer, arguments
from dnncanon.spec.conv import ConvProblem
from dnncanon.spec.rnn_problem import RnnProblem


def problem(layer: Layer) -> ConvProblem:
    call = spec.conv_forward.bind_arguments(arguments(layer, "conv_forward", "float32"))
    return call.problem


def convolutions(name: str, batch: int = 1) -> list[Layer]:
    return [layer for layer in WORKLOADS[name].layers(batch) if layer.family == "conv"]


def recurrent(name: str, batch: int = 1) -> list[Layer]:
    return [layer for layer in WORKLOADS[name].layers(batch) if layer.family == "rnn"]


def network(layer: Layer) -> RnnProblem:
    primitive = spec.primitives()[layer.forward]
    return primitive.bind_arguments(arguments(layer, layer.forward, "float32")).problem


def total(name: str, figure: Callable[[Layer], int]) -> int:
    return sum(layer.count * figure(layer) for layer in convolutions(name))


def filters(layer: Layer) -> int:
    return layer.shapes["w"][0]


def weights(layer: Layer) -> int:
    return math.prod(layer.shapes["w"])


def macs(layer: Layer) -> int:
    return problem(layer).multiplications


@pytest.mark.parametrize(
    ("name", "convolutions"),
    [("resnet50", 53), ("vgg16", 13), ("mobilenet_v2", 52), ("unet3d", 18), ("deepspeech2", 3)],
)
def test_number_of_convolutions(name: str, convolutions: int) -> None:
    assert total(name, lambda layer: 1) == convolutions


def test_every_workload_is_counted_here() -> None:
    of_convolutions = {"resnet50", "vgg16", "mobilenet_v2", "unet3d", "deepspeech2"}
    assert set(WORKLOADS) == of_convolutions | {"gnmt", "lstm_language_model"}


# The published parameter counts are those of whole models: what is not a convolution is subtracted.


def test_resnet50_against_torchvision() -> None:
    fully_connected = 2048 * 1000 + 1000
    batch_norms = 2 * 26_560  # scale and shift of each channel
    assert total("resnet50", weights) == 25_557_032 - fully_connected - batch_norms
    assert total("resnet50", macs) == 4_089_184_256 - 2048 * 1000  # 4.09 G with the last layer


def test_resnet50_batch_norm_channels_are_the_filters() -> None:
    assert total("resnet50", filters) == 26_560


def test_vgg16_against_the_paper() -> None:
    fully_connected = (25_088 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 1000
    biases = total("vgg16", filters)
    assert total("vgg16", weights) + biases + fully_connected == 138_357_544
    assert total("vgg16", macs) / 1e9 == pytest.approx(15.3, abs=0.05)


def test_mobilenet_v2_against_torchvision() -> None:
    classifier = 1280 * 1000 + 1000
    batch_norms = 2 * total("mobilenet_v2", filters)
    assert total("mobilenet_v2", weights) + batch_norms + classifier == 3_504_872
    assert total("mobilenet_v2", macs) / 1e9 == pytest.approx(0.30, abs=0.005)


def test_mobilenet_v2_has_17_depthwise_convolutions() -> None:
    depthwise = [
        layer
        for layer in WORKLOADS["mobilenet_v2"].layers(1)
        if layer.attributes["groups"] == layer.shapes["x"][1]
    ]
    assert sum(layer.count for layer in depthwise) == 17
    assert all(layer.shapes["w"][1:] == (1, 3, 3) for layer in depthwise)


def test_unet3d_against_the_paper() -> None:
    """19,069,955 parameters: all weights, and a bias for each filter of the 3³ and 1³ convolutions."""
    layers = [layer for layer in WORKLOADS["unet3d"].layers(1) if not layer.name.endswith(".up")]
    biases = sum(layer.count * filters(layer) for layer in layers)
    assert total("unet3d", weights) + biases == 19_069_955
    assert problem(layers[-1]).y_shape == (1, 3, 44, 44, 28)


def test_unet3d_up_convolutions_double_the_extents() -> None:
    ups = [layer for layer in WORKLOADS["unet3d"].layers(1) if layer.name.endswith(".up")]
    assert [problem(layer).output_size for layer in ups] == [(9, 9, 7), (14, 14, 10), (24, 24, 16)]
    assert [layer.shapes["x"][2:] for layer in ups] == [(18, 18, 14), (28, 28, 20), (48, 48, 32)]


def test_deepspeech2_front_end() -> None:
    """81, 41 and 21 frequencies are left of 161; time is halved once."""
    layers = convolutions("deepspeech2")
    assert [problem(layer).y_shape[1:] for layer in layers] == [
        (32, 81, 350),
        (32, 41, 350),
        (96, 21, 350),
    ]
    assert [layer.shapes["w"] for layer in layers] == [
        (32, 1, 41, 11),
        (32, 32, 21, 11),
        (96, 32, 21, 11),
    ]


def test_resnet50_first_and_last_shapes() -> None:
    first, *_, last = WORKLOADS["resnet50"].layers(8)
    assert (first.shapes["x"], problem(first).y_shape) == ((8, 3, 224, 224), (8, 64, 112, 112))
    assert problem(last).y_shape[2:] == (7, 7)


def test_deepspeech2_recurrent_layers() -> None:
    """Some 34 of the 38 million parameters of table 1: W of a layer is shared there by both directions."""
    first, others = recurrent("deepspeech2")
    assert (first.count, others.count) == (1, 6)
    assert first.shapes["x"] == (350, 1, 96 * 21)
    assert others.shapes["x"] == (350, 1, 1280)
    assert others.attributes["bidirectional"]
    shared = 7 * (1 + 2) * 1280**2
    assert shared / 1e6 == pytest.approx(34, abs=0.5)


def test_gnmt_has_8_encoder_and_8_decoder_layers() -> None:
    layers = recurrent("gnmt")
    assert {layer.name: layer.count for layer in layers} == {
        "encoder1": 1,
        "encoder2": 9,
        "encoder3": 6,
    }
    assert [network(layer).input_size for layer in layers] == [1024, 2048, 1024]
    assert {network(layer).hidden_size for layer in layers} == {1024}


def test_lstm_language_model_against_the_paper() -> None:
    """66 million parameters, with embeddings of 10,000 words and a softmax of as many."""
    (layer,) = recurrent("lstm_language_model")
    of_words = 2 * 10_000 * 1500 + 10_000
    assert (2 * network(layer).layout.size + of_words) / 1e6 == pytest.approx(66, abs=0.5)
    assert (layer.count, layer.shapes["x"]) == (2, (35, 1, 1500))


# --- The interface --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("primitive_name", DIRECTIONS)
@pytest.mark.parametrize("batch", [0, 1, 32])
def test_every_layer_binds_in_every_direction(name: str, primitive_name: str, batch: int) -> None:
    primitive = spec.primitives()[primitive_name]
    outputs = {"conv_forward": "y_shape", "conv_backward_data": "x_shape"}
    for layer in convolutions(name, batch):
        call = primitive.bind_arguments(arguments(layer, primitive_name, "float16"))
        expected = getattr(problem(layer), outputs.get(primitive_name, "w_shape"))
        assert call.outputs == (spec.TensorType("float16", expected),)
        assert call.problem.stride == layer.attributes["stride"]


@pytest.mark.parametrize("name", ["deepspeech2", "gnmt", "lstm_language_model"])
@pytest.mark.parametrize("batch", [0, 1, 32])
def test_every_recurrent_layer_binds_in_every_direction(name: str, batch: int) -> None:
    for layer in recurrent(name, batch):
        x, weights = layer.shapes["x"], layer.shapes["weights"]
        results = {"backward_data": x, "backward_weights": weights, "backward": x}
        cell = layer.forward.removesuffix("_forward")
        assert set(layer.forms) == {f"{cell}_{of}" for of in ("forward", *results)}
        for direction, shape in results.items():
            name = f"{cell}_{direction}"
            primitive = spec.primitives()[name]
            call = primitive.bind_arguments(arguments(layer, name, "float16"))
            assert call.outputs[0] == spec.TensorType("float16", shape)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("primitive_name", ["conv_backward_bias", "conv_bias_activation_forward"])
def test_the_other_primitives_of_the_family_have_arguments_too(
    name: str, primitive_name: str
) -> None:
    primitive = spec.primitives()[primitive_name]
    for layer in convolutions(name):
        primitive.bind_arguments(arguments(layer, primitive_name, "float32"))


@pytest.mark.parametrize("name", WORKLOADS)
def test_attributes_are_explicit(name: str) -> None:
    for layer in convolutions(name):
        assert list(layer.attributes) == ["padding", "stride", "dilation", "groups", "mode"]
        dims = len(layer.shapes["x"]) - 2
        assert all(len(layer.attributes[key]) == dims for key in ("padding", "stride", "dilation"))
        assert all(len(pair) == 2 for pair in layer.attributes["padding"])


@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_layers_are_merged_and_names_unique(name: str) -> None:
    layers = WORKLOADS[name].layers(1)
    keys = [(str(layer.shapes), str(layer.attributes)) for layer in layers]
    assert len(set(keys)) == len(keys)
    assert len({layer.name for layer in layers}) == len(layers)


def test_merging_counts_the_repeated_blocks_of_resnet50() -> None:
    """The 3×3 convolutions of the third stage: one with stride 2, five without."""
    counts = {layer.name: layer.count for layer in WORKLOADS["resnet50"].layers(1)}
    assert counts["layer3.0.conv2"] == 1
    assert counts["layer3.1.conv2"] == 5


@pytest.mark.parametrize("name", WORKLOADS)
def test_batch_is_the_only_thing_that_batch_changes(name: str) -> None:
    for one, many in zip(WORKLOADS[name].layers(1), WORKLOADS[name].layers(5), strict=True):
        dim = 0 if one.family == "conv" else 1
        assert (one.shapes["x"][dim], many.shapes["x"][dim]) == (1, 5)
        others = [
            [*shape[:dim], *shape[dim + 1 :]] for shape in (one.shapes["x"], many.shapes["x"])
        ]
        assert others[0] == others[1]
        assert [*one.shapes.values()][1:] == [*many.shapes.values()][1:]


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_say_what_they_are(name: str) -> None:
    workload = WORKLOADS[name]
    assert workload.name == name
    assert "left out" in workload.doc
    assert "arXiv:" in workload.source


def test_negative_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="batch=-1 is negative"):
        WORKLOADS["vgg16"].layers(-1)


def test_primitives_of_other_families_are_refused() -> None:
    layer = WORKLOADS["vgg16"].layers(1)[0]
    message = "conv1_1 has no call of 'pool_forward'; pass one of conv_"
    with pytest.raises(ValueError, match=message):
        arguments(layer, "pool_forward", "float32")
    (layer,) = WORKLOADS["lstm_language_model"].layers(1)
    with pytest.raises(ValueError, match="'gru_forward'; pass one of lstm_forward, "):
        arguments(layer, "gru_forward", "float32")
