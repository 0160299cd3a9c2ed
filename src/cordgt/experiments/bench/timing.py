"""How long something takes: after a warm-up, several times, with the spread; and what it holds in memory meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

SHORTEST = 0.02  # seconds of a sample: quicker work is repeated within it


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median over the samples, and the quartiles."""

    median: float
    low: float
    high: float
    samples: int


class Stopwatch:
    """Marks moments on a device and tells the seconds between them; on a GPU by its own events, not by the host."""

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

    def gaps(self) -> list[float]:
        """Seconds from each mark to the next."""
        if self.device.type != "cuda":
            return np.diff(self.marks).tolist()
        torch.cuda.synchronize(self.device)
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return [a.elapsed_time(b) / 1000 for a, b in pairs]


def summary(samples: list[float]) -> Timing:
    low, median, high = np.percentile(samples, [25, 50, 75])
    return Timing(float(median), float(low), float(high), len(samples))


def timed(work: Callable[[], Any], device: torch.device, repeat: int) -> Timing:
    """Call ``work`` to warm up (compiling, caches), then time it ``repeat`` times."""
    work()
    once = _seconds(work, device, 1)
    inner = max(1, min(1000, int(np.ceil(SHORTEST / max(once, 1e-7)))))
    return summary([_seconds(work, device, inner) / inner for _ in range(repeat)])


def _seconds(work: Callable[[], Any], device: torch.device, times: int) -> float:
    watch = Stopwatch(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    watch.mark()
    for _ in range(times):
        work()
    watch.mark()
    return watch.gaps()[0]
