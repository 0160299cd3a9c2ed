"""Rhythm: a periodic profile of activity, such as one value for each hour of the week, as a change of the clock.

Operational time runs fast where the profile is high and slow where it is low: ``R(t) = integral of g from 0 to t``. A
process with rate ``g(t) * r(R(t))`` in the stream's time has rate ``r`` in operational time, so the closed forms of
decayed counts and of their rates stay as they are. The profile has mean 1, so one period stays one period.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from cordgt.errors import DataError


@dataclass(frozen=True)
class Rhythm:
    """A periodic profile, constant within each of its equal bins.

    Times are since the stream's first event, in the stream's unit.
    """

    period: float
    phase: float  # place of the stream's first event in the period, from 0 up to the period
    profile: tuple[float, ...]  # relative rate of each bin; positive, mean 1

    def __post_init__(self) -> None:
        if not (0 < self.period < math.inf and 0 <= self.phase < self.period):
            raise DataError(f"A rhythm needs a positive period and a phase within it, not {self.period}, {self.phase}.")
        if not self.profile or not all(0 < g < math.inf for g in self.profile):
            raise DataError("A rhythm needs a profile of positive, finite numbers.")
        if abs(sum(self.profile) / len(self.profile) - 1) > 1e-6:
            raise DataError("The profile of a rhythm must have mean 1. Divide it by its mean.")

    @cached_property
    def knots(self) -> np.ndarray:
        """(bins + 1,) float64: operational time at the bounds of the bins, minus that of the stream's first event."""
        total = np.concatenate([[0.0], np.cumsum(self.profile)])
        total *= self.period / total[-1]
        return total - np.interp(self.phase, np.linspace(0, self.period, len(total)), total)

    @cached_property
    def _knots(self) -> tuple[float, ...]:
        return tuple(self.knots.tolist())

    def relative_rate(self, t: Tensor) -> Tensor:
        """Return the profile's value at times ``t`` (…) float64."""
        _, which, _ = self._locate(t + self.phase)
        return cached_tensor(self.profile, t.device)[which]

    def rescale(self, t: Tensor) -> Tensor:
        """Return the operational times of ``t`` (…) float64; 0 at the stream's first event."""
        whole, which, rest = self._locate(t + self.phase)
        knots = cached_tensor(self._knots, t.device)
        width = self.period / len(self.profile)
        low = knots[which]
        return whole * self.period + low + (knots[which + 1] - low) / width * (rest - which * width)

    def invert(self, r: Tensor) -> Tensor:
        """Return the times at which operational time is ``r`` (…) float64."""
        knots = cached_tensor(self._knots, r.device)
        whole = torch.floor((r - knots[0]) / self.period)
        rest = r - whole * self.period
        which = (torch.searchsorted(knots, rest.contiguous(), right=True) - 1).clamp(0, len(self.profile) - 1)
        width = self.period / len(self.profile)
        low = knots[which]
        return whole * self.period + (which + (rest - low) / (knots[which + 1] - low)) * width - self.phase

    def _locate(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the number of whole periods before ``x``, the bin (int64), and the time since the period's start."""
        n = len(self.profile)
        whole = torch.floor(x / self.period)
        rest = x - whole * self.period
        return whole, (rest / self.period * n).long().clamp(0, n - 1), rest

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"period": self.period, "phase": self.phase, "profile": list(self.profile)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rhythm:
        """Restore the result of `to_dict`."""
        return cls(float(data["period"]), float(data["phase"]), tuple(float(g) for g in data["profile"]))


NO_KNOTS = np.zeros(0)


@njit
def rescale_scalar(t, period, phase, knots):  # type: ignore[no-untyped-def]
    """`Rhythm.rescale` of one time; the time itself without knots."""
    n = len(knots) - 1
    if n < 1:
        return t
    x = t + phase
    whole = math.floor(x / period)
    rest = x - whole * period
    which = min(max(int(rest / period * n), 0), n - 1)
    width = period / n
    return whole * period + knots[which] + (knots[which + 1] - knots[which]) / width * (rest - which * width)


@lru_cache(maxsize=64)
def cached_tensor(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return float64 values on a device. Cached, so that only the first call copies to a GPU."""
    return torch.tensor(values, dtype=torch.float64, device=device)
