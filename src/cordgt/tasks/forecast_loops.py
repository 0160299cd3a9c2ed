"""Compiled loops of `Forecaster`: expected numbers of occasions, and probabilities between calibrated horizons.

They compute what the plain methods of the forecaster compute with tensors, in one pass over the nodes: an answer about
one pair costs little next to its score. `tests/oracle/test_forecasts.py` compares both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import njit, prange
from torch import Tensor

from cordgt.history.activity import ROLES, ActivityBank, lookup_scalar
from cordgt.history.rhythm import rescale_scalar
from cordgt.models.activity import RateModel
from cordgt.tasks.calibration import DEFAULT_SLOPES, Calibrator
from cordgt.tasks.time_grid import OFF_GRID, TimeGrid

MAX_MEMO = 1000  # horizons whose rows are tau_index


@dataclass(frozen=True)
class RateLoop:
    """A rate, the decayed counts of an index, and a time grid, as the arrays that a compiled loop reads."""

    arguments: tuple[Any, ...]
    taus: np.ndarray  # (K,), those with an effect
    horizons: tuple[float, ...]  # of the forecaster
    lengths_are_horizons: bool  # False: a rhythm or a time grid changes the lengths
    memo: dict[float, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # `_horizon_rows` by horizon

    @classmethod
    def build(cls, bank: ActivityBank, rate: RateModel, grid: TimeGrid, horizons: tuple[float, ...]) -> RateLoop:
        """Return the loop of a bank on the CPU."""
        index, rhythm = bank.index, bank.rhythm
        rows = (index.row_start, index.nbr, index.pos, index.src, index.elapsed)
        sums = (bank.start, bank.stored, bank.stored_count, bank.stored_last, bank.first_pos)
        clock = (1.0, 0.0) if rhythm is None else (float(rhythm.period), float(rhythm.phase))
        weights = np.array((rate.excitation, rate.renewal), dtype=np.float64)
        tau_index = np.flatnonzero((weights > 0).any(axis=0))  # the other decayed counts have no effect
        taus = bank.taus.numpy()[tau_index]
        constants = (float(rate.base_rate), float(rate.known_rate), float(rate.newcomer_rate))
        steps = (float(grid.step), float(grid.tolerance), OFF_GRID)
        arrays = (*_as_arrays(rows), ROLES.index(bank.role), clock, bank.knots.numpy(), taus, *_as_arrays(sums))
        own = (tau_index, *np.ascontiguousarray(weights[:, tau_index]), constants, steps)
        return cls((*arrays, *own), taus, horizons, rhythm is None and not grid.step)

    def log_expected(
        self, node: np.ndarray, cut: np.ndarray, t: np.ndarray, horizon: float | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the log expected number of occasions (n, P), and the age (n,) of the last event; -1: none.

        The P horizons are those of the forecaster, and at last that of the question. Shapes: node and cut (n,) int64, t
        (n,) float64, horizon one number or (n, 1).
        """
        horizons, decay = self._horizon_rows(horizon)
        expected, age = np.empty((len(node), horizons.shape[1])), np.empty(len(node))
        _fill_log_expected(*self.arguments, decay, node, cut, t, horizons, expected, age)  # type: ignore[call-arg]
        return expected, age

    def _horizon_rows(self, horizon: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the horizons (1 or n, P), and ``expm1(-horizon / tau)`` (P, K) if all nodes share it, else empty."""
        known = self.memo.get(horizon) if isinstance(horizon, float) else None
        if known is not None:
            return known
        last = np.reshape(horizon, (-1, 1))
        rows = np.empty((len(last), len(self.horizons) + 1))
        rows[:, :-1], rows[:, -1:] = self.horizons, last
        is_shared = self.lengths_are_horizons and len(rows) == 1
        decay = np.expm1(-rows[0][:, None] / self.taus) if is_shared else np.empty((0, 0))
        if isinstance(horizon, float):
            if len(self.memo) >= MAX_MEMO:
                self.memo.clear()
            self.memo[horizon] = rows, decay
        return rows, decay


@dataclass(frozen=True)
class CalibratorLoop:
    """The K calibrators of a kind, as the arrays that a compiled loop reads."""

    columns: np.ndarray  # (K,) int64, their places among the forecaster's horizons
    horizons: np.ndarray  # (K,)
    weights: np.ndarray  # (K, 4): intercept, and slopes of log m, recency and the log probability of the partner
    step_start: np.ndarray  # (K+1,) int64, offsets of each calibrator's steps; an empty range: no steps
    steps: np.ndarray  # (2, S), eta before and after

    @classmethod
    def build(cls, horizons: Sequence[float], calibrators: Sequence[Calibrator | None]) -> CalibratorLoop:
        """Return the loop of the horizons that have a calibrator."""
        pairs = enumerate(zip(horizons, calibrators, strict=False))
        known = [(k, h, c) for k, (h, c) in pairs if c is not None]
        weights = np.zeros((len(known), 1 + len(DEFAULT_SLOPES)))
        tables = [np.array(c.steps) if c.steps is not None else np.empty((2, 0)) for *_, c in known]
        for row, (*_, c) in zip(weights, known, strict=True):
            row[0], row[1 : 1 + len(c.slopes)] = c.intercept, c.slopes
        start = np.cumsum([0, *(table.shape[1] for table in tables)])
        steps = np.ascontiguousarray(np.concatenate([np.empty((2, 0)), *tables], axis=1))
        columns, own = np.array([k for k, *_ in known], dtype=np.int64), np.array([h for _, h, _ in known], dtype=float)
        return cls(columns, own, weights, start.astype(np.int64), steps)

    def eta(
        self,
        log_expected: np.ndarray,
        age: np.ndarray,
        drift: np.ndarray,
        log_partner: np.ndarray,
    ) -> np.ndarray:
        """Return the complementary log-log (n, M) of the probability within the last horizon of ``log_expected``.

        Shapes: log_expected (n, P), for the forecaster's horizons and the one asked for; drift (n,); log_partner
        (n, M), or zeros (n, 1) for nodes.
        """
        eta = np.empty(log_partner.shape)
        arrays = self.columns, self.horizons, self.weights, self.step_start, self.steps
        _fill_eta(*arrays, log_expected, age, drift, log_partner, eta)
        return eta


def _as_arrays(values: Sequence[Any]) -> tuple[np.ndarray, ...]:
    return tuple(x.numpy() if isinstance(x, Tensor) else x for x in values)


@njit(inline="always")
def _steps_before(since, step, tolerance):  # type: ignore[no-untyped-def]
    """`TimeGrid._steps_before` of one time."""
    return max(float(math.floor(since / step - tolerance)), 0.0)


@njit
def _fill_one(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, src, elapsed, role, clock, knots, taus, start, stored, stored_count, stored_last, first_pos,
    tau_index, excitation, renewal, constants, steps, decay, node, cut, t, horizon, expected,
):  # fmt: skip
    """Fill the log expected numbers (P,) of one node for horizons (P,); return the age of its last event.

    ``decay`` (P, K) is ``expm1(-horizon / tau)`` where all nodes share it, else empty.
    """
    step, tolerance, off_grid = steps
    last_time = elapsed[max(cut - 1, 0)] if len(elapsed) else 0.0
    since = max(t - last_time, 0.0)
    before = _steps_before(since, step, tolerance) if step > 0 else 0.0
    now = last_time + (before * step if step > 0 else since)
    caused = np.empty(len(taus))
    count, degree, _, last = lookup_scalar(
        row_start, nbr, pos, src, elapsed, role, clock, knots, taus,
        start, stored, stored_count, stored_last, first_pos, tau_index, node, cut, now, caused,
    )  # fmt: skip
    clock_now = rescale_scalar(now, clock[0], clock[1], knots)
    age = max(clock_now - rescale_scalar(last, clock[0], clock[1], knots), 0.0)
    for k in range(len(taus)):
        caused[k] *= excitation[k]
        if count > 0 and renewal[k] > 0:
            caused[k] += renewal[k] * math.exp(-age / taus[k])
    constant = constants[0] if count > 0 else (constants[1] if degree > 0 else constants[2])
    for j in range(len(horizon)):
        length = horizon[j]
        if step > 0:
            n_steps = max(float(math.floor((since + length) / step + tolerance)) - before, 0.0) if length > 0 else 0.0
            length = n_steps * step + off_grid * length
        if len(knots):
            length = max(rescale_scalar(now + length, clock[0], clock[1], knots) - clock_now, 0.0)
        hazard = constant * length
        for k in range(len(taus)):
            if caused[k] > 0:
                hazard -= caused[k] * (decay[j, k] if len(decay) else math.expm1(-length / taus[k]))
        expected[j] = math.log(hazard) if hazard > 0 else -math.inf
    return max(now - last, 0.0) if count > 0 else -1.0


@njit(parallel=True, cache=True)
def _fill_log_expected(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, src, elapsed, role, clock, knots, taus, start, stored, stored_count, stored_last, first_pos,
    tau_index, excitation, renewal, constants, steps, decay, node, cut, t, horizon, expected, age,
):  # fmt: skip
    for i in prange(len(node)):
        age[i] = _fill_one(
            row_start, nbr, pos, src, elapsed, role, clock, knots, taus, start, stored, stored_count, stored_last,
            first_pos, tau_index, excitation, renewal, constants, steps, decay,
            node[i], cut[i], t[i], horizon[min(np.int64(i), len(horizon) - 1)], expected[i],
        )  # fmt: skip


@njit(inline="always")
def _interpolate_scalar(x, grid, value, n):  # type: ignore[no-untyped-def]
    """Return the broken line through the first n points of an ascending grid at x; the slope outside is 1."""
    if x < grid[0]:
        return value[0] + (x - grid[0])
    if x >= grid[n - 1]:
        return value[n - 1] + (x - grid[n - 1])
    k = 1
    while x >= grid[k]:
        k += 1
    return value[k - 1] + (x - grid[k - 1]) / (grid[k] - grid[k - 1]) * (value[k] - value[k - 1])


@njit(inline="always")
def _step_value(eta, before, after, first, last):  # type: ignore[no-untyped-def]
    """Return the value of a calibrator's step function, of slope 1 outside."""
    if eta <= before[first]:
        return after[first] + (eta - before[first])
    if eta >= before[last - 1]:
        return after[last - 1] + (eta - before[last - 1])
    low, high = first, last - 1  # before[low] <= eta < before[high]
    while high - low > 1:
        middle = (low + high) >> 1
        if before[middle] <= eta:
            low = middle
        else:
            high = middle
    return after[low] + (eta - before[low]) / (before[high] - before[low]) * (after[high] - after[low])


@njit(parallel=True, cache=True)
def _fill_eta(  # type: ignore[no-untyped-def]
    columns, horizons, weights, step_start, steps, log_expected, age, drift, log_partner, eta
):
    n_points, last = len(horizons), log_expected.shape[1] - 1
    for i in prange(len(log_expected)):
        grid, base, value = np.empty(n_points), np.empty(n_points), np.empty(n_points)
        for k in range(n_points):
            grid[k] = log_expected[i, columns[k]]
            base[k] = grid[k] + drift[i]
            if age[i] >= 0:
                recency = -math.log1p(age[i] / horizons[k])
                base[k] = weights[k, 0] + weights[k, 1] * base[k] + weights[k, 2] * recency
        for m in range(eta.shape[1]):
            partner = log_partner[i, m]
            if n_points == 0:
                eta[i, m] = log_expected[i, last] + drift[i] + partner
                continue
            highest = -math.inf
            for k in range(n_points):
                if age[i] < 0:
                    own = base[k] + partner
                else:
                    own = base[k] + weights[k, 3] * partner
                    if step_start[k + 1] > step_start[k]:
                        own = _step_value(own, steps[0], steps[1], step_start[k], step_start[k + 1])
                highest = max(highest, own)
                value[k] = highest
            eta[i, m] = _interpolate_scalar(log_expected[i, last], grid, value, n_points)
