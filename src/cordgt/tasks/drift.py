"""Drift: whether nodes act more or less often lately than their rates say.

The rates are fitted to the training period; later the whole stream can become busier or quieter. At a fixed spacing of
time, `Drift` compares how many of a sample of nodes acted within a window with how many the rates expected at the
window's start. The log of the ratio is shrunk towards 0 by pseudo-counts, and averaged over windows. A query uses the
last such time that is not after its last visible event, so the correction is a pure function of ``cut``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cordgt.history.activity import ActivityBank
from cordgt.models.activity import RateModel
from cordgt.tasks.questions import choose_known, has_event

WINDOWS = (0.01, 0.03, 0.1)  # shares of the time before the test period
N_SPACINGS = 200  # in the time before the test period
MAX_NODES = 200  # compared at each time
PSEUDO_COUNT = 5.0  # nodes that acted as expected


@dataclass(frozen=True)
class Drift:
    """When and over which windows observed and expected activity are compared. No windows: no correction."""

    windows: tuple[float, ...] = ()
    spacing: float = 1.0
    n_nodes: int = MAX_NODES  # compared at each time

    @classmethod
    def from_span(cls, span: float, n_nodes: int) -> Drift:
        """Return the default for a stream that has this time, and this number of nodes, before the test period."""
        windows = tuple(span * share for share in WINDOWS)
        return cls(windows, span / N_SPACINGS, min(n_nodes, MAX_NODES)) if span > 0 else cls()

    def log_ratio(
        self, model: RateModel, bank: ActivityBank, cut: np.ndarray, t: np.ndarray, memo: dict[int, float]
    ) -> np.ndarray:
        """Return the log of observed to expected activity (...) before each cut and time; 0 without windows.

        The bank is on the CPU. ``memo`` keeps ratios of the same model and bank. Shapes: cut and t (...), of one shape.
        """
        if not self.windows or not len(bank.index.elapsed):
            return np.zeros(cut.shape)
        elapsed = bank.index.elapsed.numpy()
        if _is_constant(cut) and _is_constant(t):  # an answer at one time: array operations would take most of it
            end, now = cut.item(0), t.item(0)
            latest = min(elapsed.item(end - 1) if end > 0 else 0.0, now)
            number = math.floor(latest / self.spacing)
            number -= number * self.spacing > latest  # the division can round up
            self._compute_ratios(model, bank, [number], memo)
            return np.full(cut.shape, memo[number])
        last = np.where(cut > 0, elapsed[np.maximum(cut - 1, 0)], 0.0)
        latest = np.minimum(last, t)
        numbers = np.floor(latest / self.spacing).astype(np.int64)
        numbers -= numbers * self.spacing > latest
        distinct, place = np.unique(numbers, return_inverse=True)
        self._compute_ratios(model, bank, distinct.tolist(), memo)
        values = np.array([memo[k] for k in distinct.tolist()])
        return values[place].reshape(cut.shape)

    def _compute_ratios(self, model: RateModel, bank: ActivityBank, numbers: list[int], memo: dict[int, float]) -> None:
        """Add the ratio at each of these multiples of the spacing to ``memo``, if it is missing."""
        missing = [k for k in numbers if k not in memo]
        if missing:
            rows = [self._window_ratio(model, bank, np.array(missing), window) for window in self.windows]
            memo.update(zip(missing, np.stack(rows).mean(axis=0).tolist(), strict=True))

    def _window_ratio(self, model: RateModel, bank: ActivityBank, number: np.ndarray, window: float) -> np.ndarray:
        """Return the log ratio (n,) of one window that ends at each multiple of the spacing."""
        elapsed = bank.index.elapsed.numpy()
        end = number * self.spacing
        start = np.maximum(end - window, 0.0)
        cut_start = np.searchsorted(elapsed, start, side="right")
        cut_end = np.maximum(np.searchsorted(elapsed, end, side="left"), cut_start)  # events of the end do not count
        random = np.stack([np.random.default_rng(k).random(self.n_nodes) for k in number.tolist()])
        nodes, is_known = choose_known(random, bank, cut_start[:, None])
        before = bank.lookup(
            torch.from_numpy(nodes), torch.from_numpy(cut_start)[:, None], torch.from_numpy(start)[:, None]
        )
        hazard = model.cumulative_hazard(before, torch.from_numpy(end - start)[:, None]).numpy()
        acted = (has_event(bank, nodes, cut_start[:, None], cut_end[:, None]) & is_known).sum(axis=1)
        expected = np.where(is_known, -np.expm1(-hazard), 0.0).sum(axis=1)
        ratio: np.ndarray = np.log((acted + PSEUDO_COUNT) / (expected + PSEUDO_COUNT))
        return ratio

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"windows": list(self.windows), "spacing": self.spacing, "n_nodes": self.n_nodes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Drift:
        """Restore the result of `to_dict`."""
        return cls(tuple(float(x) for x in data["windows"]), float(data["spacing"]), int(data["n_nodes"]))


def _is_constant(values: np.ndarray) -> bool:
    return values.size == 1 or (values.size > 1 and bool((values == values.flat[0]).all()))
