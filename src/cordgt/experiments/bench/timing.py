"""Timing: run something several times after a warm-up, and report the median and the quartiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

MIN_SAMPLE_SECONDS = 0.02  # shorter work is repeated within a sample


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median over the samples, and the quartiles."""

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def from_samples(cls, samples: list[float]) -> Timing:
        low, median, high = np.percentile(samples, [25, 50, 75])
        return cls(float(median), float(low), float(high), len(samples))

    def __sub__(self, part: Timing) -> Timing:
        """Time without a part; never negative."""
        median, low, high = self.median - part.median, self.low - part.high, self.high - part.low
        return Timing(max(median, 0.0), max(low, 0.0), max(high, 0.0), self.samples)


class Stopwatch:
    """Seconds between marks on a device. On a GPU, CUDA events are timed, not the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[Any] = []

    def mark(self) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def intervals(self) -> list[float]:
        """Return the seconds from each mark to the next."""
        if self.device.type != "cuda":
            return np.diff(self.marks).tolist()
        torch.cuda.synchronize(self.device)
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return [a.elapsed_time(b) / 1000 for a, b in pairs]


def time_calls(work: Callable[[], Any], device: torch.device, repeat: int) -> Timing:
    """Call ``work`` once to warm up (compilation, caches), then take ``repeat`` samples."""
    return time_in_turns([work], device, repeat)[0]


def time_in_turns(works: Sequence[Callable[[], Any]], device: torch.device, repeat: int) -> list[Timing]:
    """Time several as `time_calls` does, sample by sample in turns: a change of the machine's speed meets them all."""
    for work in works:
        work()
    n_calls = []
    for work in works:
        once = _time_sample(work, device, 1)
        n_calls.append(max(1, min(1000, int(np.ceil(MIN_SAMPLE_SECONDS / max(once, 1e-7))))))
    samples = [[_time_sample(x, device, n) / n for x, n in zip(works, n_calls, strict=True)] for _ in range(repeat)]
    return [Timing.from_samples(list(own)) for own in zip(*samples, strict=True)]


def _time_sample(work: Callable[[], Any], device: torch.device, n_calls: int) -> float:
    watch = Stopwatch(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    watch.mark()
    for _ in range(n_calls):
        work()
    watch.mark()
    return watch.intervals()[0]
