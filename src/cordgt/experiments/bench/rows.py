"""A row of a benchmark: how long, how much work, and which share of what the machine can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cordgt.experiments.bench.hardware import Limits
from cordgt.experiments.bench.timing import Timing


@dataclass(frozen=True, kw_only=True)
class Row:
    """One stage, or one part of a stage.

    ``share`` is that of the stage's whole; ``flops`` are of matrix products, ``bytes`` what must at least be read and
    written; ``items`` of ``unit`` are done in one call; ``peak`` is the most that tensors take at once, in bytes. None
    where it was not counted.
    """

    stage: str
    part: str = ""
    timing: Timing
    share: float | None = None
    flops: int | None = None
    bytes: int | None = None
    items: float | None = None
    unit: str = ""
    peak: int | None = None

    @property
    def rate(self) -> float | None:
        """Items a second."""
        return None if self.items is None or not self.timing.median else self.items / self.timing.median

    def fractions(self, limits: Limits) -> dict[str, float]:
        """The share of the matrix rate and of the memory's bandwidth that was used, where the work was counted."""
        used = {"matrix": (self.flops, limits.matrix_flops), "memory": (self.bytes, limits.memory_bytes)}
        return {k: n / self.timing.median / most for k, (n, most) in used.items() if n and self.timing.median}

    def as_json(self, limits: Limits) -> dict[str, Any]:
        fractions = self.fractions(limits)
        return {
            "stage": self.stage,
            "part": self.part,
            "ms": 1e3 * self.timing.median,
            "low_ms": 1e3 * self.timing.low,
            "high_ms": 1e3 * self.timing.high,
            "samples": self.timing.samples,
            "share": self.share,
            "gflop": None if self.flops is None else self.flops / 1e9,
            "mbytes": None if self.bytes is None else self.bytes / 1e6,
            "rate": self.rate,
            "unit": f"{self.unit}/s" if self.unit else "",
            "of_matrix_rate": fractions.get("matrix"),
            "of_bandwidth": fractions.get("memory"),
            "peak_mb": None if self.peak is None else self.peak / 2**20,
        }
