"""Running stages: limits first, then each stage; everything found in one object that JSON can hold."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numba
import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.experiments.bench import hardware
from cordgt.experiments.bench.rows import Row
from cordgt.experiments.bench.setup import Place
from cordgt.experiments.bench.stages import STAGES
from cordgt.files import write_atomically
from cordgt.runtime.threads import keep_threads
from cordgt.training.devices import use_precision
from cordgt.training.oom import memory_explained
from cordgt.training.settings import Settings

ALL = ("machine", *STAGES)


def prepare(stream: EventStream, settings: Settings, device: torch.device, *, repeat: int, quick: bool) -> Place:
    """Set torch as training does, and measure the limits of the device."""
    keep_threads()
    use_precision(settings, device)
    with memory_explained(settings):
        limits = hardware.measure(device, repeat=max(repeat, 3), toy=quick)
    return Place(stream, settings, device, limits, repeat, quick)


def run(place: Place, stages: Sequence[str], callbacks: Callback = NO_CALLBACK) -> dict[str, Any]:
    """Measure the stages in order.

    A stage that a model does not have (a step where there is nothing to train) is left out when it is one of several,
    and a SettingError when it is the only one.
    """
    rows: list[Row] = []
    figures: dict[str, Any] = {}
    left_out = []
    for name in stages:
        if name == "machine":
            continue
        callbacks.on_stage_start(name, None)
        try:
            with place.memory_explained():
                measured = STAGES[name](place)
        except SettingError as error:
            if len(stages) == 1:
                raise
            left_out.append(str(error))
            continue
        rows += measured.rows
        figures |= measured.figures
    return (
        about(place)
        | figures
        | {"stages": [row.as_json(place.limits) for row in rows], "left_out": list(dict.fromkeys(left_out))}
    )


def about(place: Place) -> dict[str, Any]:
    """What was measured on: versions, machine, data, settings."""
    stream, settings = place.stream, place.settings
    return {
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numba": numba.__version__},
        "device": str(place.device),
        "machine": place.limits.as_json(),
        "data": {"name": stream.name, "events": stream.n_events, "nodes": stream.n_nodes, "notes": list(stream.notes)},
        "model": settings.model,
        "settings": dict(vars(settings.model_settings)),
        "batch_size": settings.training.batch_size,
        "repeat": place.repeat,
    }


def trace(place: Place, path: Path) -> None:
    """One training step as a trace that Chrome and Perfetto show, written whole or not at all. Not captured."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if place.device.type == "cuda" else [])
    with place.memory_explained():
        place.model.train()
        run_step, (position, weight) = place.step(), place.batch()
        run_step(position, weight)
        with profile(activities=activities, record_shapes=True) as profiler:
            run_step(position, weight)
    write_atomically(path, lambda part: profiler.export_chrome_trace(str(part)))
