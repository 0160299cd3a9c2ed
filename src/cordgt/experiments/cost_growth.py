"""How the cost of a training step grows with the batch, the context and the events, on one machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cordgt.events.stream import EventStream
from cordgt.experiments.bench.hardware import Limits
from cordgt.experiments.bench.scaling import first_events
from cordgt.experiments.bench.setup import Place
from cordgt.experiments.bench.timing import timed
from cordgt.experiments.cells import Cell
from cordgt.runtime.profiling import peak_bytes
from cordgt.runtime.threads import keep_threads
from cordgt.training.settings import Settings
from cordgt.training.step import CapturedStep

BATCHES = (50, 100, 200, 400)
QUICKLY = 10  # times smaller batches with --quick
CONTEXTS = (0.5, 1, 2)  # times the nodes drawn at a hop
EVENTS = (1 / 16, 1 / 4, 1)  # of the stream, from its start
LEAST = 40  # events that can be split
NO_LIMITS = Limits(math.inf, math.inf, 0.0, 1, "", "")


def grow(cell: Cell, stream: EventStream, device: torch.device) -> dict[str, Any]:
    """Milliseconds and peak memory of a step for each size; and the exponent that fits each growth best."""
    keep_threads()
    smaller = QUICKLY if cell.quick else 1
    usual = _batch(cell.settings, max(1, cell.settings.training.batch_size // smaller))
    place = Place(stream, usual, device, NO_LIMITS, repeat=1 if cell.quick else 5, quick=cell.quick)
    batches = [{"size": n, **_step(replace(place, settings=_batch(usual, n)))} for n in (k // smaller for k in BATCHES)]
    contexts = []
    for times in CONTEXTS:
        settings, size = _context(usual, times)
        contexts.append({"size": size, **_step(replace(place, settings=settings))})
    events = []
    for share in EVENTS:
        part = first_events(stream, max(LEAST, int(stream.n_events * share)))
        events.append({"size": part.n_events, **_step(replace(place, stream=part))})
    found: dict[str, Any] = {"batch": batches, "context": contexts, "events": events}
    return found | {f"{name}_order": order([k["size"] for k in v], [k["ms"] for k in v]) for name, v in found.items()}


def order(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent k of cost ~ size^k, by least squares on logarithms."""
    x, y = [math.log(v) for v in sizes], [math.log(max(v, 1e-9)) for v in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def _step(place: Place) -> dict[str, float]:
    """The time of a step as training takes it, captured on a GPU where that can be, and its peak memory."""
    place.model.train()
    run = place.step()
    step: Any = run
    if place.device.type == "cuda" and not place.model.is_stateful:
        step = CapturedStep(run, place.settings.training.batch_size)
    timing = timed(lambda: step(*place.batch()), place.device, place.repeat)
    peak = peak_bytes(lambda: run(*place.batch()), place.device)
    return {
        "ms": 1e3 * timing.median,
        "low_ms": 1e3 * timing.low,
        "high_ms": 1e3 * timing.high,
        "peak_mb": peak / 2**20,
    }


def _batch(settings: Settings, n: int) -> Settings:
    return replace(settings, training=replace(settings.training, batch_size=n))


def _context(settings: Settings, times: float) -> tuple[Settings, int]:
    """The settings with so many times the nodes of the first hop, and how many those are."""
    own = settings.model_settings
    if hasattr(own, "fanout"):
        size = max(1, round(own.fanout[0] * times))
        return replace(settings, model_settings=replace(own, fanout=(size, *own.fanout[1:]))), size
    size = max(1, round(own.num_neighbors * times))
    return replace(settings, model_settings=replace(own, num_neighbors=size)), size
