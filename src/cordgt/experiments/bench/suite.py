"""Run stages: the hardware's limits first, then each stage; all results in one dictionary for JSON."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numba
import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.experiments.bench import hardware
from cordgt.experiments.bench.setup import BenchSetup
from cordgt.experiments.bench.stages import STAGES
from cordgt.files import write_atomically
from cordgt.runtime.threads import pin_num_threads
from cordgt.training.devices import set_matmul_precision
from cordgt.training.oom import explain_out_of_memory
from cordgt.training.settings import Settings

STAGE_NAMES = ("machine", *STAGES)


def prepare(stream: EventStream, settings: Settings, device: torch.device, *, repeat: int, quick: bool) -> BenchSetup:
    """Configure torch as training does, and measure the limits of the device."""
    pin_num_threads()
    set_matmul_precision(settings, device)
    with explain_out_of_memory(settings):
        limits = hardware.measure_limits(device, repeat=max(repeat, 3), quick=quick)
    return BenchSetup(stream, settings, device, limits, repeat, quick)


def run_stages(bench: BenchSetup, stages: Sequence[str], callbacks: Callback = NO_CALLBACK) -> dict[str, Any]:
    """Measure the stages in order.

    A stage that the model does not have (a step without anything to train) is skipped and listed under "left_out".
    Raise SettingError if it is the only stage.
    """
    rows: list[dict[str, Any]] = []
    metrics: dict[str, Any] = {}
    skipped = []
    for name in stages:
        if name == "machine":
            continue
        callbacks.on_stage_start(name, None)
        try:
            with bench.explain_oom():
                result = STAGES[name](bench)
        except SettingError as error:
            if len(stages) == 1:
                raise
            skipped.append(str(error))
            continue
        rows += [row.to_dict(bench.limits) for row in result.rows]
        metrics |= result.metrics
    return describe_setup(bench) | metrics | {"stages": rows, "left_out": list(dict.fromkeys(skipped))}


def describe_setup(bench: BenchSetup) -> dict[str, Any]:
    """Return what was measured on: versions, machine, data, settings."""
    stream, settings = bench.stream, bench.settings
    return {
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numba": numba.__version__},
        "device": str(bench.device),
        "machine": asdict(bench.limits),
        "data": {"name": stream.name, "events": stream.n_events, "nodes": stream.n_nodes, "notes": list(stream.notes)},
        "model": settings.model,
        "settings": dict(vars(settings.model_settings)),
        "batch_size": settings.training.batch_size,
        "repeat": bench.repeat,
    }


def write_trace(bench: BenchSetup, path: Path) -> None:
    """Write a trace of one training step for Chrome or Perfetto. On a GPU without CUDA graph."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if bench.is_cuda else [])
    with bench.explain_oom():
        bench.model.train()
        step, (position, weight) = bench.make_step(), bench.next_batch()
        step(position, weight)
        with profile(activities=activities, record_shapes=True) as profiler:
            step(position, weight)
    write_atomically(path, lambda part: profiler.export_chrome_trace(str(part)))
