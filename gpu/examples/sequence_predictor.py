"""Train an LSTM to predict the next value of a signal, with this library alone: NumPy in, a plot out.

    python gpu/examples/sequence_predictor.py --out predictor.html

The signals are sums of two sines of random phases and loudness. An LSTM reads them step by step, a linear layer
makes of its output what it expects next, and Adam (Kingma and Ba 2015) learns both from the mean square error.
The page shows the loss, and what the network goes on with where the signal stops. The exit code is 1 unless the
loss falls below ``GOAL``, a tenth of that of repeating the last value.
"""
# ruff: noqa: INP001

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

import dnncanon.gpu as gpu

Floats = NDArray[np.float32]

STEPS, BATCH, HIDDEN = 24, 16, 16
PERIODS = (11.0, 17.0)
"""Of the two sines, in steps."""

GOAL = 0.003


@dataclass
class Adam:
    """Steps along the gradient, each weight's as long as its own gradients have been alike."""

    rate: float
    count: int = 0
    mean: dict[str, Floats] = field(default_factory=dict)
    square: dict[str, Floats] = field(default_factory=dict)

    def step(self, weights: dict[str, Floats], gradients: dict[str, Floats]) -> dict[str, Floats]:
        """The weights after one step."""
        self.count += 1
        return {name: w - self._change(name, gradients[name]) for name, w in weights.items()}

    def _change(self, name: str, g: Floats) -> Floats:
        mean = self.mean[name] = 0.9 * self.mean.get(name, np.zeros_like(g)) + 0.1 * g
        square: Floats = 0.99 * self.square.get(name, np.zeros_like(g)) + 0.01 * g * g
        self.square[name] = square
        unbiased = square / (1 - 0.99**self.count)
        change: Floats = self.rate * mean / (1 - 0.9**self.count) / (np.sqrt(unbiased) + 1e-8)
        return change


class Predictor:
    """An LSTM and a linear layer behind it."""

    def __init__(self, seed: int) -> None:
        self.lstm = gpu.LSTM(1, HIDDEN, seed=seed)
        self.readout = np.zeros((HIDDEN, 1), np.float32)

    def predict(self, x: Floats) -> Floats:
        """What comes next, after each step of x [S, B, 1]."""
        y, _ = self.lstm(x)
        return gpu.matmul_forward(y.reshape(-1, HIDDEN), self.readout).reshape(x.shape)

    def learn(self, x: Floats, target: Floats, adam: Adam) -> float:
        """One step of training; the mean square error before it."""
        y, _ = self.lstm(x, training=True)
        rows = y.reshape(-1, HIDDEN)
        error = gpu.matmul_forward(rows, self.readout) - target.reshape(-1, 1)
        gradient = (2.0 / error.size) * error
        self.lstm.gradient = None
        self.lstm.backward(gpu.matmul_forward(gradient, self.readout.T).reshape(y.shape))
        of_readout = gpu.matmul_forward(rows.T, gradient)
        weights = {"lstm": self.lstm.weights, "readout": self.readout}
        gradients = {"lstm": self.lstm.gradient, "readout": of_readout}
        moved = adam.step(weights, gradients)
        self.lstm.weights, self.readout = moved["lstm"], moved["readout"]
        return float(np.mean(np.square(error)))

    def go_on(self, x: Floats, steps: int) -> Floats:
        """x and so many values more, each predicted from those before it."""
        for _ in range(steps):
            x = np.concatenate([x, self.predict(x)[-1:]])
        return x


def signals(rng: np.random.Generator, steps: int, batch: int) -> Floats:
    """[S, B, 1]"""
    time = np.arange(steps)[:, None]
    total = np.zeros((steps, batch))
    for period in PERIODS:
        phase, loudness = rng.uniform(0, period, batch), rng.uniform(0.2, 0.5, batch)
        total += loudness * np.sin(2 * np.pi * (time + phase) / period)
    return total[:, :, None].astype(np.float32)


def train(iterations: int, seed: int = 0) -> tuple[Predictor, list[float]]:
    """A predictor, and the loss of each iteration."""
    rng, predictor, adam = np.random.default_rng(seed), Predictor(seed), Adam(rate=0.02)
    losses = []
    for _ in range(iterations):
        drawn = signals(rng, STEPS + 1, BATCH)
        losses.append(predictor.learn(drawn[:-1], drawn[1:], adam))
    return predictor, losses


def page(predictor: Predictor, losses: list[float]) -> go.Figure:
    """The loss, and a signal that the network goes on with."""
    signal = signals(np.random.default_rng(99), 2 * STEPS, 1)
    alone = predictor.go_on(signal[:STEPS], STEPS)
    figure = make_subplots(rows=1, cols=2, subplot_titles=("mean square error", "a signal"))
    figure.add_scatter(y=losses, name="loss", row=1, col=1)
    figure.add_scatter(y=signal[:, 0, 0], name="signal", row=1, col=2)
    figure.add_scatter(y=alone[:, 0, 0], name="goes on by itself", row=1, col=2)
    figure.add_vline(x=STEPS - 1, line_dash="dot", row=1, col=2)
    figure.update_yaxes(type="log", dtick=1, row=1, col=1)
    figure.update_xaxes(title="steps of training", row=1, col=1)
    figure.update_xaxes(title="steps of the sequence", row=1, col=2)
    return figure


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--out", default="predictor.html", help="the page")
    arguments = parser.parse_args(words)
    predictor, losses = train(arguments.iterations)
    reached = float(np.mean(losses[-5:]))
    page(predictor, losses).write_html(Path(arguments.out), include_plotlyjs=True)
    print(f"loss {losses[0]:.4f} -> {reached:.4f} in {len(losses)} steps; wrote {arguments.out}")
    return 0 if reached < GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
