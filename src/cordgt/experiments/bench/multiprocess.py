"""How much faster several processes train: the same step, shared among more and more of them."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cordgt.callbacks import Callback
from cordgt.errors import RunError, SettingError
from cordgt.experiments.bench.setup import Place
from cordgt.experiments.bench.timing import Stopwatch, summary
from cordgt.runtime import distributed
from cordgt.runtime.launch import FIGURES, cores, launch
from cordgt.training.step import Step


def counts_of(text: str) -> list[int]:
    """``1,2,4`` as numbers, ascending, with 1 among them: what all others are compared with."""
    try:
        found = sorted({1, *(int(word) for word in text.split(","))})
    except ValueError:
        found = [0]
    if found[0] < 1:
        raise SettingError(f"--processes {text}: give numbers from 1 up, as in 1,2,4.")
    return found


def crowded(counts: Sequence[int]) -> str:
    """What to say of more processes than cores; empty where there are enough."""
    if counts[-1] <= cores():
        return ""
    return f"{counts[-1]} processes share {cores()} core{'s' * (cores() > 1)}: they take turns, and gain nothing by it."


def compare(counts: Sequence[int], argv: Sequence[str], callbacks: Callback) -> list[dict[str, Any]]:
    """Measure a step with each number of processes of one thread, and with one process of as many threads instead.

    There are no more threads than cores: torch takes none. ``cordgt ARGV`` is run for each, and calls `measure`.
    """
    rows = []
    threaded = sorted({min(n, cores()) for n in counts} - {1})
    for n, threads in [(n, 1) for n in counts] + [(1, n) for n in threaded]:
        callbacks.on_stage_start(f"{n} process{'es' * (n > 1)} of {threads} thread{'s' * (threads > 1)}", None)
        with tempfile.TemporaryDirectory(prefix="cordgt-") as folder:
            file = Path(folder) / "figures.json"
            code = launch(n, argv, {FIGURES: str(file), "OMP_NUM_THREADS": str(threads)})
            if code or not file.exists():
                raise RunError(f"The measurement with {n} process{'es' * (n > 1)} ended with exit code {code}.")
            rows.append(json.loads(file.read_text(encoding="utf-8")))
    first = rows[0]["step_ms"]
    return [row | {"speed_up": first / row["step_ms"]} for row in rows]


def measure(place: Place) -> None:
    """Time steps that this process shares with the others of its group; the first one leaves the figures.

    A sample runs from when all are ready until all have the sum. ``sum_ms`` is the sum of the gradients alone, and
    ``cpu_ms`` the time that the cores worked for the first process: what others on the machine do hardly matters to it.
    """
    group, repeat = distributed.join(), place.repeat
    step = shared_step(place, group)
    with place.memory_explained():
        position, weight = place.batch()
    gradients = torch.zeros(sum(q.numel() for q in place.model.parameters()), device=place.device)

    def medians(work: Callable[[], Any]) -> tuple[float, float]:
        samples = [_seconds(place, group, work) for _ in range(repeat + 1)][1:]  # the first one warms up
        of_wall, of_cpu = (1e3 * summary(list(times)).median for times in zip(*samples, strict=True))
        return of_wall, of_cpu

    with place.memory_explained():
        step_ms, cpu_ms = medians(lambda: step(position, weight))
    sum_ms, _ = medians(lambda: group.add_up(gradients))
    if group.leads:
        found: dict[str, Any] = {
            "processes": group.size,
            "threads": torch.get_num_threads(),
            "batch_size": len(position),
        }
        found |= {
            "step_ms": step_ms,
            "cpu_ms": cpu_ms,
            "sum_ms": sum_ms,
            "events_per_second": 1e3 * len(position) / step_ms,
        }
        Path(os.environ[FIGURES]).write_text(json.dumps(found), encoding="utf-8")


def shared_step(place: Place, group: distributed.Group) -> Step:
    """The step that settings ask for, shared among the processes of a group."""
    place.model.train()
    return replace(place.step(), task=replace(place.task, group=group))


def _seconds(place: Place, group: distributed.Group, work: Callable[[], Any]) -> tuple[float, float]:
    """Of one call, once all processes are there: on the clock, and of this process's threads."""
    group.largest(0)
    watch, cpu = Stopwatch(place.device), time.process_time()
    watch.mark()
    work()
    watch.mark()
    return watch.gaps()[0], time.process_time() - cpu
