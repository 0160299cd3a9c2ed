"""Timing: run something several times after a warm-up, and report the median and the quartiles."""

from __future__ import annotations

import time
from collections.abc import Callable
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
    work()
    once = _time_sample(work, device, 1)
    n_calls = max(1, min(1000, int(np.ceil(MIN_SAMPLE_SECONDS / max(once, 1e-7)))))
    return Timing.from_samples([_time_sample(work, device, n_calls) / n_calls for _ in range(repeat)])


def _time_sample(work: Callable[[], Any], device: torch.device, n_calls: int) -> float:
    watch = Stopwatch(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    watch.mark()
    for _ in range(n_calls):
        work()
    watch.mark()
    return watch.intervals()[0]
