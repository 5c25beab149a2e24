"""Attention: row by row, central differences, identities, PyTorch, and what is not seen."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon.reference.philox import words
from dnncanon.spec.attention_problem import alibi_slopes
from dnncanon.spec.dropout import threshold
from dnncanon.spec.stream import Stream

Array = NDArray[Any]
BATCH, ROWS, COLUMNS, SIZE, VALUES = 2, 4, 5, 3, 2

CAUSAL = {"right_bound": 0}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": CAUSAL,
    "causal, bottom right": {"alignment": "bottom_right", **CAUSAL},
    "window": {"left_bound": 2, "right_bound": 1},
    "lengths": {"q_lengths": (4, 2), "kv_lengths": (3, 0)},
    "lengths, causal, bottom right": {
        "q_lengths": (4, 2),
        "kv_lengths": (2, 5),
        "alignment": "bottom_right",
        **CAUSAL,
    },
    "soft cap": {"soft_cap": 0.6},
    "ALiBi": {"alibi": True, **CAUSAL},
    "dropout": {"dropout": 0.4, "seed": 3, "offset": 5},
}


class Call:
    """Random tensors for four query heads, two of keys and one of values, and options."""

    def __init__(self, options: dict[str, Any], heads: tuple[int, int, int] = (4, 2, 1)) -> None:
        self.options = {"scale": 0.7, **options}
        self.heads = heads
        rng = np.random.default_rng(1)
        hq, hk, hv = heads
        self.tensors: dict[str, Array] = {
            "q": rng.standard_normal((BATCH, hq, ROWS, SIZE)),
            "k": rng.standard_normal((BATCH, hk, COLUMNS, SIZE)),
            "v": rng.standard_normal((BATCH, hv, COLUMNS, VALUES)),
            "bias": rng.standard_normal((1, hq, ROWS, COLUMNS)),
            "sink": rng.standard_normal(hq),
        }
        self.do = rng.standard_normal((BATCH, hq, ROWS, VALUES))

    def forward(self, tensors: dict[str, Array] | None = None) -> Any:
        given = tensors or self.tensors
        arguments = [given.get(name) for name in ("q", "k", "v", "bias", "sink")]
        return ref.sdpa_forward(*arguments, **self.options, return_stats=True)

    def backward(self) -> Any:
        t, forward = self.tensors, self.forward()
        given = (t["q"], t["k"], t["v"], forward.o, forward.stats, t.get("bias"), t.get("sink"))
        return ref.sdpa_backward(self.do, *given, **self.options)

    def row(self, b: int, h: int, i: int) -> tuple[Array, float]:
        """o and stats of one row, by its definition."""
        option, t = self.options.get, self.tensors
        hq, hk, hv = self.heads
        q_length = option("q_lengths", (ROWS,) * BATCH)[b]
        kv_length = option("kv_lengths", (COLUMNS,) * BATCH)[b]
        shift = kv_length - q_length if option("alignment") == "bottom_right" else 0
        last = i + shift + option("right_bound", COLUMNS)
        first = i + shift - option("left_bound", COLUMNS + ROWS) + 1
        seen = [j for j in range(kv_length) if first <= j <= last and i < q_length]
        scores = []
        for j in seen:
            s = self.options["scale"] * float(t["q"][b, h, i] @ t["k"][b, h * hk // hq, j])
            cap = option("soft_cap")
            s = cap * math.tanh(s / cap) if cap else s
            s += float(t["bias"][0, h, i, j]) if "bias" in t else 0.0
            s += alibi_slopes(hq)[h] * (j - i) if option("alibi") else 0.0
            scores.append(s)
        others = [float(t["sink"][h])] if "sink" in t and i < q_length else []
        total = sum(math.exp(s) for s in scores + others)
        if total == 0.0:
            return np.zeros(VALUES), -math.inf
        kept = [
            math.exp(s) / total * self.kept(b, h, i, j) for s, j in zip(scores, seen, strict=True)
        ]
        rows = [p * t["v"][b, h * hv // hq, j] for p, j in zip(kept, seen, strict=True)]
        return sum(rows, np.zeros(VALUES)), math.log(total)

    def kept(self, b: int, h: int, i: int, j: int) -> float:
        """The factor that dropout leaves a probability."""
        probability = self.options.get("dropout", 0.0)
        stream = Stream(self.options.get("seed", 0), 0, self.options.get("offset", 0))
        number = ((b * self.heads[0] + h) * ROWS + i) * COLUMNS + j
        word = int(words(stream, number + 1)[number])
        return 1.0 / (1.0 - probability) if word >= threshold(probability) else 0.0


# --- Forward --------------------------------------------------------------------------------------


@pytest.mark.parametrize("without", [(), ("bias",), ("sink",)], ids=["all", "no bias", "no sink"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_row(options: dict[str, Any], without: tuple[str, ...]) -> None:
    call = Call(options)
    for name in without:
        del call.tensors[name]
    o, stats = call.forward()
    for b, h, i in np.ndindex(*stats.shape):
        expected, log_sum = call.row(b, h, i)
        np.testing.assert_allclose(o[b, h, i], expected, 1e-12, 1e-12)
        assert stats[b, h, i] == pytest.approx(log_sum, rel=1e-12)


# --- Backward -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_are_derivatives(options: dict[str, Any]) -> None:
    """By each tensor, along a random direction: central differences of the forward pass."""
    call = Call(options)
    gradients, step = call.backward(), 1e-6
    for name, tensor in call.tensors.items():
        along = np.random.default_rng(9).standard_normal(tensor.shape)
        ends = [
            float(
                np.sum(
                    call.forward(call.tensors | {name: tensor + sign * step * along}).o * call.do
                )
            )
            for sign in (1.0, -1.0)
        ]
        found = float(np.sum(getattr(gradients, f"d{name}") * along))
        assert found == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 4, 1, 5), (2, 1, 4, 1), (2, 4, 4, 5)])
def test_gradient_by_a_broadcast_bias_is_a_sum(shape: tuple[int, ...]) -> None:
    whole, part = Call({}), Call({})
    part.tensors["bias"] = np.random.default_rng(2).standard_normal(shape)
    whole.tensors["bias"] = np.broadcast_to(part.tensors["bias"], (BATCH, 4, ROWS, COLUMNS))
    axes = tuple(d for d, n in enumerate(shape) if n == 1)
    summed = np.sum(whole.backward().dbias, axis=axes, keepdims=True)
    np.testing.assert_allclose(part.backward().dbias, summed, 1e-12, 1e-14)


def test_gradients_that_nobody_asked_for_are_not_there() -> None:
    call = Call({})
    del call.tensors["bias"], call.tensors["sink"]
    assert call.backward()._fields == ("dq", "dk", "dv")


# --- Identities -----------------------------------------------------------------------------------


def test_grouped_heads_are_repeated_heads() -> None:
    grouped, repeated = Call(CAUSAL), Call(CAUSAL, (4, 4, 4))
    repeated.tensors |= {
        "q": grouped.tensors["q"],
        "k": np.repeat(grouped.tensors["k"], 2, axis=1),
        "v": np.repeat(grouped.tensors["v"], 4, axis=1),
        "bias": grouped.tensors["bias"],
        "sink": grouped.tensors["sink"],
    }
    repeated.do = grouped.do
    np.testing.assert_array_equal(grouped.forward().o, repeated.forward().o)
    one, all_heads = grouped.backward(), repeated.backward()
    of_groups = all_heads.dk.reshape(BATCH, 2, 2, COLUMNS, SIZE).sum(axis=2)
    np.testing.assert_allclose(one.dk, of_groups, 1e-12, 1e-14)


@pytest.mark.parametrize("name", ["causal", "window", "causal, bottom right"])
def test_a_mask_is_a_bias_of_minus_infinity(name: str) -> None:
    masked, biased = Call(OPTIONS[name]), Call({})
    hidden = np.isneginf(_scores_of(masked))
    biased.tensors |= masked.tensors
    biased.tensors["bias"] = np.where(hidden, -np.inf, masked.tensors["bias"])
    for one, other in zip(masked.forward(), biased.forward(), strict=True):
        np.testing.assert_array_equal(one, other)
    for name_of in ("dq", "dk", "dv", "dsink"):
        one, other = (getattr(call.backward(), name_of) for call in (masked, biased))
        np.testing.assert_array_equal(one, other)


def _scores_of(call: Call) -> Array:
    """[1, 1, Sq, Skv]: −Inf where a column is not seen."""
    i, j = np.arange(ROWS)[:, None], np.arange(COLUMNS)[None, :]
    shift = COLUMNS - ROWS if call.options.get("alignment") == "bottom_right" else 0
    right, left = call.options.get("right_bound", 99), call.options.get("left_bound", 99)
    seen = (j <= i + shift + right) & (j > i + shift - left)
    return np.where(seen, 0.0, -np.inf)[None, None]


def test_a_sink_is_a_column_without_a_value() -> None:
    with_sink, with_column = Call({}), Call({})
    t = with_sink.tensors
    column = np.broadcast_to(t["sink"][None, :, None, None], (1, 4, ROWS, 1))
    with_column.tensors |= {
        "q": t["q"],
        "k": np.concatenate([t["k"], np.zeros((BATCH, 2, 1, SIZE))], axis=2),
        "v": np.concatenate([t["v"], np.zeros((BATCH, 1, 1, VALUES))], axis=2),
        "bias": np.concatenate([t["bias"], column], axis=3),
    }
    del with_column.tensors["sink"]
    for one, other in zip(with_sink.forward(), with_column.forward(), strict=True):
        np.testing.assert_allclose(one, other, 1e-12)


def test_a_constant_in_all_scores_changes_the_statistics_alone() -> None:
    call = Call({})
    del call.tensors["sink"]
    o, stats = call.forward()
    for shift in (1e4, -1e4):
        moved = call.forward(call.tensors | {"bias": call.tensors["bias"] + shift})
        np.testing.assert_allclose(moved.o, o, 1e-10)
        np.testing.assert_allclose(moved.stats, stats + shift, 1e-12)


def test_the_soft_cap_of_large_scores_is_a_sign() -> None:
    call = Call({"soft_cap": 2.0, "scale": 1e6})
    del call.tensors["sink"], call.tensors["bias"]
    o, stats = call.forward()
    assert np.isfinite(o).all()
    assert (np.abs(stats) <= 2.0 + math.log(COLUMNS)).all()


# --- What is not seen -----------------------------------------------------------------------------


def test_behind_the_ends_nothing_is_read() -> None:
    options = {"q_lengths": (4, 2), "kv_lengths": (3, 5), "return_stats": True, "scale": 1.0}
    call = Call(options)
    t = {name: array.copy() for name, array in call.tensors.items()}
    t["q"][1, :, 2:], t["k"][0, :, 3:], t["v"][0, :, 3:] = np.nan, np.nan, np.nan
    clean = ref.sdpa_forward(*call.tensors.values(), **options)
    spoiled = ref.sdpa_forward(*t.values(), **options)
    for one, other in zip(clean, spoiled, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.any(spoiled.o[1, :, 2:])
    assert np.isneginf(spoiled.stats[1, :, 2:]).all()


def test_rows_that_see_nothing_are_zeros() -> None:
    options = {"kv_lengths": (0, 5), "scale": 1.0}
    call = Call(options)
    with_sink, stats = call.forward()
    assert not np.any(with_sink[0])
    np.testing.assert_array_equal(stats[0], np.repeat(call.tensors["sink"][:, None], ROWS, axis=1))
    del call.tensors["sink"]
    without, stats = call.forward()
    assert not np.any(without[0])
    assert np.isneginf(stats[0]).all()
    gradients = call.backward()
    assert np.isfinite(gradients.dq).all()
    assert not np.any(gradients.dq[0])
    assert not np.any(gradients.dk[0])


def test_a_bias_of_minus_infinity_everywhere_is_no_nan() -> None:
    call = Call({})
    del call.tensors["sink"]
    call.tensors["bias"] = np.full((1, 1, 1, 1), -np.inf)
    o, stats = call.forward()
    assert not np.any(o)
    assert np.isneginf(stats).all()
    assert all(not np.any(gradient) for gradient in call.backward())


# --- PyTorch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
def test_pytorch_has_the_same_numbers(causal: bool) -> None:
    torch = pytest.importorskip("torch")
    call = Call(CAUSAL if causal else {}, (4, 2, 2))
    del call.tensors["sink"]
    q, k, v, bias = (torch.from_numpy(t).requires_grad_() for t in call.tensors.values())
    mask = torch.zeros(ROWS, COLUMNS, dtype=torch.bool)
    if causal:
        mask = torch.ones_like(mask).triu(1)
    added = bias.masked_fill(mask, -torch.inf)
    attend = torch.nn.functional.scaled_dot_product_attention
    o = attend(q, k, v, attn_mask=added, scale=0.7, enable_gqa=True)
    o.backward(torch.from_numpy(call.do))
    np.testing.assert_allclose(call.forward().o, o.detach().numpy(), 1e-10, 1e-12)
    gradients = call.backward()
    for name, tensor in zip(("dq", "dk", "dv", "dbias"), (q, k, v, bias), strict=True):
        np.testing.assert_allclose(getattr(gradients, name), tensor.grad.numpy(), 1e-9, 1e-12)
