"""The emulator against Numba's own simulator (NUMBA_ENABLE_CUDASIM=1), alternating.

    python gpu/benchmarks/emulator_vs_simulator.py [--rounds 3] [--json FILE]

Each round runs every side in a process of its own, so that neither sees the other's settings, and
drift of the machine hits both. Printed are the best running times without compilation (load of
other processes only ever adds time), and the emulator's time for a first call (compile and run, in
a process that has compiled another kernel before). Shapes: tiled matmul 64³, direct convolution
2×8×16×16 with 8 filters 3×3; with `--large` also matmul 512³ on one and on all cores.
"""

# ruff: noqa: INP001

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SIDES = ("simulator", "emulator", "emulator-check", "emulator-profile")


def cases() -> dict[str, tuple[str, Any, Any, list[Any]]]:
    """name -> (kernel's name, grid, block, arguments)."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape).astype(np.float32)

    def zeros(*shape: int) -> np.ndarray[Any, Any]:
        return np.zeros(shape, np.float32)

    return {
        "matmul 64^3": ("matmul", (4, 4), (16, 16), [normal(64, 64), normal(64, 64), zeros(64, 64)]),
        "convolution 2x8x16x16": (
            "convolution", 16, 256, [normal(2, 8, 16, 16), normal(8, 8, 3, 3), zeros(2, 8, 16, 16)],
        ),
    }  # fmt: skip


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The best time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_side(side: str, large: bool) -> dict[str, float]:
    """Run in a process of its own: figures of one side."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emulator")]
    kernels: Any = importlib.import_module("kernels")
    if side == "simulator":
        return {name: _simulate(kernels, *case) for name, case in cases().items()}
    from dnncanon.gpu.emulator import launch

    mode: Any = {"emulator": "fast"}.get(side, side.removeprefix("emulator-"))
    warm = np.ones((1, 32), np.float32)
    launch(kernels.softmax, 1, (32, 1), (warm, warm.copy()), mode=mode)
    figures = {}
    for name, (kernel, grid, block, args) in cases().items():
        function = getattr(kernels, kernel)
        start = time.perf_counter()
        launch(function, grid, block, args, mode=mode)
        figures[f"{name}, first call"] = time.perf_counter() - start
        figures[name] = seconds(partial(launch, function, grid, block, args, mode=mode), 21)
    if large and side == "emulator":
        figures |= _large(kernels, launch)
    return figures


def _simulate(kernels: Any, name: str, grid: Any, block: Any, args: list[Any]) -> float:
    cuda: Any = importlib.import_module("numba.cuda")
    kernel = cuda.jit(getattr(kernels, name))
    kernel[grid, block](*args)
    return seconds(lambda: kernel[grid, block](*args), 1)


def _large(kernels: Any, launch: Any) -> dict[str, float]:
    a, b, c = (np.ones((512, 512), np.float32) for _ in range(3))
    figures = {}
    for threads in (1, os.cpu_count()):
        run = partial(launch, kernels.matmul, (32, 32), (16, 16), (a, b, c), threads=threads)
        run()
        figures[f"matmul 512^3, {threads} cores"] = seconds(run, 5)
    return figures


def measure(side: str, large: bool) -> dict[str, float]:
    """Figures of one side, from a fresh process."""
    environment = dict(os.environ)
    environment["NUMBA_ENABLE_CUDASIM"] = "1" if side == "simulator" else "0"
    command = [sys.executable, __file__, "--side", side, *(["--large"] if large else [])]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure_side(options.side, options.large)))
        return
    collected: dict[str, dict[str, list[float]]] = {side: {} for side in SIDES}
    for _ in range(options.rounds):
        for side in SIDES:
            for name, value in measure(side, options.large).items():
                collected[side].setdefault(name, []).append(value)
    best = {
        side: {name: min(values) for name, values in figures.items()}
        for side, figures in collected.items()
    }
    for side, figures in best.items():
        for name, value in figures.items():
            simulated = best["simulator"].get(name)
            ratio = f"  {simulated / value:8.0f}x" if simulated and side != "simulator" else ""
            print(f"{side:18}{name:36}{1e3 * value:12.3f} ms{ratio}")
    if options.json:
        options.json.write_text(json.dumps(best, indent=1))


if __name__ == "__main__":
    main()
