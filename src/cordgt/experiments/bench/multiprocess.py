"""Speed-up of distributed training: the same step, shared among more and more processes."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cordgt.callbacks import Callback
from cordgt.errors import RunError, SettingError
from cordgt.experiments.bench.setup import BenchSetup
from cordgt.experiments.bench.timing import Stopwatch
from cordgt.runtime import distributed
from cordgt.runtime.launch import RESULT_FILE, available_cores, launch
from cordgt.training.step import Step


def parse_process_counts(text: str) -> list[int]:
    """Parse ``1,2,4`` into ascending numbers. 1 is always added: all others are compared with it."""
    try:
        counts = sorted({1, *(int(word) for word in text.split(","))})
    except ValueError:
        counts = [0]
    if counts[0] < 1:
        raise SettingError(f"--processes {text}: give numbers from 1 up, as in 1,2,4.")
    return counts


def oversubscription_note(counts: Sequence[int]) -> str:
    """Return a note if there are more processes than cores, else an empty string."""
    if counts[-1] <= available_cores():
        return ""
    return f"{counts[-1]} processes share {_plural(available_cores(), 'core')}: this cannot make them faster."


def _plural(n: int, noun: str) -> str:
    ending = "" if n == 1 else "es" if noun.endswith("s") else "s"
    return f"{n} {noun}{ending}"


def compare_process_counts(counts: Sequence[int], argv: Sequence[str], callbacks: Callback) -> list[dict[str, Any]]:
    """Measure a step with each number of processes of one thread, and with one process of as many threads.

    No run has more threads than cores, since torch uses no more. Each runs ``cordgt ARGV``, which calls
    `measure_shared_step`.
    """
    rows = []
    threaded = sorted({min(n, available_cores()) for n in counts} - {1})
    for n, threads in [(n, 1) for n in counts] + [(1, n) for n in threaded]:
        callbacks.on_stage_start(f"{_plural(n, 'process')} of {_plural(threads, 'thread')}", None)
        with tempfile.TemporaryDirectory(prefix="cordgt-") as folder:
            file = Path(folder) / "metrics.json"
            code = launch(n, argv, {RESULT_FILE: str(file), "OMP_NUM_THREADS": str(threads)})
            if code or not file.exists():
                raise RunError(f"The measurement with {_plural(n, 'process')} ended with exit code {code}.")
            rows.append(json.loads(file.read_text(encoding="utf-8")))
    first = rows[0]["step_ms"]
    return [row | {"speed_up": first / row["step_ms"]} for row in rows]


def measure_shared_step(bench: BenchSetup) -> None:
    """Time steps that this process shares with its group. The main process writes the result to `RESULT_FILE`.

    A sample starts when all processes are ready and ends when all have the summed gradients. ``sum_ms`` is the
    all-reduce of the gradients alone. ``cpu_ms`` is the CPU time of the main process, which other programs on the
    machine hardly change.
    """
    group = distributed.init_process_group()
    step = make_shared_step(bench, group)

    def median_ms(work: Callable[[], Any]) -> list[float]:
        """Return wall and CPU time."""
        samples = [_time_shared(bench, group, work) for _ in range(bench.repeat + 1)][1:]  # the first one warms up
        return (1e3 * np.median(samples, axis=0)).tolist()

    with bench.explain_oom():
        position, weight = bench.next_batch()
        step_ms, cpu_ms = median_ms(lambda: step(position, weight))
    gradients = torch.zeros(sum(p.numel() for p in bench.model.parameters()), device=bench.device)
    sum_ms, _ = median_ms(lambda: group.all_reduce_sum(gradients))
    if group.is_main_process:
        result = {
            "processes": group.world_size,
            "threads": torch.get_num_threads(),
            "batch_size": len(position),
            "step_ms": step_ms,
            "cpu_ms": cpu_ms,
            "sum_ms": sum_ms,
            "events_per_second": 1e3 * len(position) / step_ms,
        }
        Path(os.environ[RESULT_FILE]).write_text(json.dumps(result), encoding="utf-8")


def make_shared_step(bench: BenchSetup, group: distributed.ProcessGroup) -> Step:
    """Make a training step that the processes of a group share."""
    bench.model.train()
    return replace(bench.make_step(), task=replace(bench.task, group=group))


def _time_shared(bench: BenchSetup, group: distributed.ProcessGroup, work: Callable[[], Any]) -> tuple[float, float]:
    """Return the wall and CPU seconds of one call, after a barrier."""
    group.all_reduce_max(0)
    watch, cpu = Stopwatch(bench.device), time.process_time()
    watch.mark()
    work()
    watch.mark()
    return watch.intervals()[0], time.process_time() - cpu
