"""A row of a benchmark: how long, how much work, and which share of what the machine can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cordgt.bench.machine import Limits
from cordgt.bench.timing import Timing


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

    def fraction(self, limits: Limits) -> tuple[float, str] | None:
        """The share of the limit that comes nearest, and which it is: the matrix rate or the memory's bandwidth."""
        found = []
        if self.flops and self.timing.median:
            found.append((self.flops / self.timing.median / limits.matrix_flops, "matrix"))
        if self.bytes and self.timing.median:
            found.append((self.bytes / self.timing.median / limits.memory_bytes, "memory"))
        return max(found, default=None)

    def as_json(self, limits: Limits) -> dict[str, Any]:
        fraction = self.fraction(limits)
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
            "fraction": None if fraction is None else fraction[0],
            "of": "" if fraction is None else fraction[1],
            "peak_mb": None if self.peak is None else self.peak / 2**20,
        }
