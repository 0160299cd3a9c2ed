"""Measure how the cost of a training step grows with batch size, context size and number of events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cordgt.events.stream import EventStream
from cordgt.experiments.bench.hardware import HardwareLimits
from cordgt.experiments.bench.scaling import first_events
from cordgt.experiments.bench.setup import BenchSetup
from cordgt.experiments.bench.timing import time_calls
from cordgt.experiments.cells import Cell
from cordgt.runtime.profiling import measure_peak_bytes
from cordgt.runtime.threads import pin_num_threads
from cordgt.training.settings import Settings
from cordgt.training.step import CudaGraphStep, prepare_capture

BATCH_SIZES = (50, 100, 200, 400)
QUICK_DIVISOR = 10  # --quick uses batches this many times smaller
CONTEXT_FACTORS = (0.5, 1, 2)  # of the nodes sampled at the first hop
EVENT_SHARES = (1 / 16, 1 / 4, 1)  # of the stream, its first events
MIN_EVENTS = 40  # fewer events cannot be split
NO_LIMITS = HardwareLimits(math.inf, math.inf, 0.0, 1, "", "")


def measure_cost_growth(cell: Cell, stream: EventStream, device: torch.device) -> dict[str, Any]:
    """Return milliseconds and peak memory of a step for each size, and the exponent fitted to each growth."""
    pin_num_threads()
    divisor = QUICK_DIVISOR if cell.quick else 1
    settings = _with_batch_size(cell.settings, max(1, cell.settings.training.batch_size // divisor))
    context = BenchSetup(stream, settings, device, NO_LIMITS, repeat=1 if cell.quick else 5, quick=cell.quick)
    sizes = [n // divisor for n in BATCH_SIZES]
    batches = [{"size": n, **_measure_step(replace(context, settings=_with_batch_size(settings, n)))} for n in sizes]
    contexts = []
    for factor in CONTEXT_FACTORS:
        changed, size = _with_context_size(settings, factor)
        contexts.append({"size": size, **_measure_step(replace(context, settings=changed))})
    events = []
    for share in EVENT_SHARES:
        prefix = first_events(stream, max(MIN_EVENTS, int(stream.n_events * share)))
        events.append({"size": prefix.n_events, **_measure_step(replace(context, stream=prefix))})
    points: dict[str, Any] = {"batch": batches, "context": contexts, "events": events}
    exponents = {f"{k}_order": fit_exponent([p["size"] for p in v], [p["ms"] for p in v]) for k, v in points.items()}
    return points | exponents


def fit_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the exponent k of cost ~ size^k, by least squares on logarithms."""
    x, y = [math.log(v) for v in sizes], [math.log(max(v, 1e-9)) for v in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def _measure_step(context: BenchSetup) -> dict[str, float]:
    """Time a training step, as a CUDA graph on a GPU if one can capture it, and measure its peak memory."""
    context.model.train()
    plain_step = context.make_step()
    step: Any = plain_step
    size = context.settings.training.batch_size
    if context.device.type == "cuda" and prepare_capture(context.task, context.model, size):
        step = CudaGraphStep(plain_step, size)
    timing = time_calls(lambda: step(*context.next_batch()), context.device, context.repeat)
    peak = measure_peak_bytes(lambda: plain_step(*context.next_batch()), context.device)
    return {
        "ms": 1e3 * timing.median,
        "low_ms": 1e3 * timing.low,
        "high_ms": 1e3 * timing.high,
        "peak_mb": peak / 2**20,
    }


def _with_batch_size(settings: Settings, n: int) -> Settings:
    return replace(settings, training=replace(settings.training, batch_size=n))


def _with_context_size(settings: Settings, factor: float) -> tuple[Settings, int]:
    """Scale the number of nodes sampled at the first hop; return the settings and that number."""
    own = settings.model_settings
    if hasattr(own, "fanout"):
        size = max(1, round(own.fanout[0] * factor))
        return replace(settings, model_settings=replace(own, fanout=(size, *own.fanout[1:]))), size
    size = max(1, round(own.num_neighbors * factor))
    return replace(settings, model_settings=replace(own, num_neighbors=size)), size
