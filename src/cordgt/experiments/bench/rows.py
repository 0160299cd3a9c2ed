"""One row of a benchmark's table: time, work, and share of the hardware's limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cordgt.experiments.bench.hardware import HardwareLimits
from cordgt.experiments.bench.timing import Timing


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One stage, or one part of a stage. None: not counted."""

    stage: str
    part: str = ""
    timing: Timing
    share: float | None = None  # of the whole stage's time
    flops: int | None = None  # of matrix products
    n_bytes: int | None = None  # lower bound of what is read and written
    items: float | None = None  # processed in one call
    unit: str = ""  # of the items
    peak_bytes: int | None = None  # of all tensors that exist at once

    @property
    def rate(self) -> float | None:
        """Items per second."""
        return None if self.items is None or not self.timing.median else self.items / self.timing.median

    def hardware_shares(self, limits: HardwareLimits) -> dict[str, float]:
        """Return the used shares of the matrix rate and of the memory bandwidth, if the work was counted."""
        used = {"matrix": (self.flops, limits.matrix_flops), "memory": (self.n_bytes, limits.memory_bytes)}
        return {k: n / self.timing.median / most for k, (n, most) in used.items() if n and self.timing.median}

    def to_dict(self, limits: HardwareLimits) -> dict[str, Any]:
        shares = self.hardware_shares(limits)
        return {
            "stage": self.stage,
            "part": self.part,
            "ms": 1e3 * self.timing.median,
            "low_ms": 1e3 * self.timing.low,
            "high_ms": 1e3 * self.timing.high,
            "samples": self.timing.samples,
            "share": self.share,
            "gflop": None if self.flops is None else self.flops / 1e9,
            "mbytes": None if self.n_bytes is None else self.n_bytes / 1e6,
            "rate": self.rate,
            "unit": f"{self.unit}/s" if self.unit else "",
            "of_matrix_rate": shares.get("matrix"),
            "of_bandwidth": shares.get("memory"),
            "peak_mb": None if self.peak_bytes is None else self.peak_bytes / 2**20,
        }
