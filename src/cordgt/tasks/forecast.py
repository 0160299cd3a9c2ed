"""Forecaster: how likely a node acts, or a pair meets, within a horizon; and when a node acts next.

An event is a source that acts, at a time, and a partner that it picks: ``rate(u, v, t) = rate(u, t) * P(v | u, t)``.
The first factor is a `RateModel` with a correction for `Drift`, the second comes from a link model. Their product is
calibrated at several horizons (`Calibrator`). In between, probabilities are interpolated, so that a longer horizon
never has a smaller probability. Every answer is a pure function of ``cut``.

In a stream of few times at equal steps, such as years, horizons are counted in steps (`TimeGrid`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import RunError, SettingError, check_choice
from cordgt.history.activity import ActivityBank, DecayedCounts
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.models.activity import RateModel
from cordgt.models.activity_fit import fit_rate
from cordgt.models.activity_rhythm import Calendar, fit_rhythm
from cordgt.models.base import LinkModel
from cordgt.tasks.calibration import MIN_OUTCOMES, Calibrator, probability
from cordgt.tasks.drift import Drift
from cordgt.tasks.forecast_loops import CalibratorLoop, RateLoop
from cordgt.tasks.link import LinkTask
from cordgt.tasks.questions import (
    Questions,
    acts_within,
    add_partners,
    limit_questions,
    meets_within,
    sample_questions,
)
from cordgt.tasks.scoring import score_queries
from cordgt.tasks.time_grid import TimeGrid

ActRole = Literal["source", "destination"]
ACT_ROLES: tuple[ActRole, ActRole] = ("source", "destination")
KINDS = (*ACT_ROLES, "pair")  # what is calibrated
HORIZONS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.25)  # calibrated ones, as shares of the time before the test period
STEPS = (1, 2, 4, 8)  # the same in a stream of equal steps
N_QUESTIONS = 12_000  # about each role
N_PAIRS = 4_000  # pairs that the link model scores
MAX_REFERENCES = 256  # destinations that the softmax of a ranking model is normalized with
N_WINDOWS = 2.0  # horizons in the period of the questions that fit a calibrator, at least
N_BISECTIONS = 60


@dataclass(frozen=True)
class Forecaster:
    """Fitted rates of both roles, their calibration, and the destinations that a partner is chosen from."""

    rates: dict[ActRole, RateModel]
    drift: Drift
    grid: TimeGrid
    horizons: tuple[float, ...]  # at which the calibrators were fitted, ascending, in the stream's unit
    calibrators: dict[str, tuple[Calibrator | None, ...]]  # by kind, one for each horizon; None: too few outcomes
    references: tuple[int, ...]  # destinations of the training period, or a sample of them
    n_destinations: int  # of the training period
    cache: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # what belongs to the last index

    @classmethod
    def fit(cls, task: LinkTask, model: LinkModel, callbacks: Callback = NO_CALLBACK) -> Forecaster:
        """Fit the rates to the events before validation, and calibrate them on events before the test period.

        Pairs are calibrated on the validation period, unless a horizon is too long for it.
        """
        return cls.fit_nodes(task).calibrate_pairs(task, model, callbacks)

    @classmethod
    def fit_nodes(cls, task: LinkTask) -> Forecaster:
        """Return the part of `fit` that needs no link model: the rates of both roles and their calibration."""
        index = task.host_index
        train_stop, test_start = int(task.split.validation[0]), int(task.split.test[0])
        pool = task.pools.train.cpu().numpy()
        chosen = np.unique(np.linspace(0, len(pool) - 1, min(len(pool), MAX_REFERENCES)).round().astype(np.int64))
        elapsed = index.elapsed[:test_start].numpy()
        grid, span = TimeGrid.find(elapsed), float(elapsed[-1])
        rhythm = None if grid.step else fit_rhythm(index, train_stop, Calendar.of_stream(task.stream))
        options: dict[str, Any] = {"unit": "occasions", "rhythm": rhythm}
        rates = {role: fit_rate(index, train_stop, role=role, **options).model for role in ACT_ROLES}
        horizons = [grid.step * k for k in STEPS] if grid.step else [span * share for share in HORIZONS]
        horizons = [h for h in horizons if 0 < h <= span / 4]
        n_nodes = int(task.stream.src[:test_start].max()) + 1
        drift = Drift() if grid.step else Drift.from_span(span, n_nodes)
        raw = cls(rates, drift, grid, tuple(horizons), {}, tuple(pool[chosen].tolist()), len(pool))
        return raw._calibrate_nodes(task)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was computed from an index."""
        return vars(self) | {"cache": {}}

    @property
    def longest_horizon(self) -> float:
        """The longest horizon whose outcomes the calibration has seen, in the stream's unit; 0 if there is none."""
        return self.horizons[-1] if self.horizons and self.calibrators else 0.0

    # -------------------- answers

    def act_probability(
        self, index: TemporalIndex, node: Any, cut: Any, t: Any, horizon: Any, role: ActRole = "source"
    ) -> np.ndarray:
        """Return the probability (n,) that each node (n,) acts in the role within ``(t, t + horizon]``.

        ``t`` and ``horizon`` are elapsed times, one or one for each node. SettingError if a horizon is negative.
        """
        return probability(self._etas(index, node, cut, t, horizon, role, [(role, None)])[0])[:, 0]

    def pair_probability(
        self, index: TemporalIndex, log_partner: np.ndarray, src: Any, cut: Any, t: Any, horizon: Any
    ) -> np.ndarray:
        """Return the probability (B, M) that each source (B,) has an event with each candidate within the horizon.

        ``log_partner`` (B, M) is the output of `log_partner` for the same queries. It is at most the probability that
        the source acts at all.
        """
        kinds: list[tuple[str, np.ndarray | None]] = [("source", None), ("pair", log_partner)]
        acts, meets = self._etas(index, src, cut, t, horizon, "source", kinds)
        return probability(np.minimum(meets, acts))

    def next_time(
        self, index: TemporalIndex, node: Any, cut: Any, t: Any, probabilities: Any, role: ActRole = "source"
    ) -> np.ndarray:
        """Return (n, P): the time after ``t`` within which each node (n,) acts with each probability (P,).

        It agrees with `act_probability`, and is infinite if it is more than a million times the calibrated horizons.
        In a stream of equal steps it ends at a step.
        """
        outlook = self._outlook(index, node, cut, t, role)
        target = np.log(-np.log1p(-np.atleast_1d(np.asarray(probabilities, dtype=np.float64))))
        shape = (len(outlook.since), len(target))
        unit = self.horizons[-1] if self.horizons else 1.0
        low, high = np.full(shape, unit * 1e-12), np.full(shape, unit * 1e6)
        eta = self._curve(outlook, role)
        is_finite = eta(high) >= target
        for _ in range(N_BISECTIONS):
            middle = np.sqrt(low) * np.sqrt(high)  # the product of two long times can overflow
            is_less = eta(middle) < target
            low, high = np.where(is_less, middle, low), np.where(is_less, high, middle)
        return np.where(is_finite, self.grid.next_step(outlook.since, high), np.inf)

    def rate(self, index: TemporalIndex, node: Any, cut: Any, t: Any, role: ActRole = "source") -> np.ndarray:
        """Return the rate (n,) at which each node (n,) acts in the role at ``t``, per time of the stream's unit."""
        outlook = self._outlook(index, node, cut, t, role)
        rate: np.ndarray = outlook.rate.rate(outlook.counts).numpy()[:, 0] * np.exp(outlook.drift[:, 0])
        return rate

    def log_partner(
        self,
        model: LinkModel,
        history: History,
        queries: Queries,
        callbacks: Callback = NO_CALLBACK,
        logits: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return (B, M): the log probability that the source of each query picks the candidate at its next event.

        ``logits`` (B, M) are the model's scores of these queries, if the caller has them.

        A model that learns ranking has a softmax over destinations of the training period; for others, see
        `log_partner_of_logits`.
        """
        if logits is None:
            logits = score_queries(model, history, queries, callbacks=callbacks)
        if not model.learns_ranking:
            return self.log_partner_of_logits(logits)
        references = torch.tensor(self.references, device=queries.src.device).expand(len(queries.src), -1)
        others = score_queries(
            model, history, Queries(queries.src, references, queries.t, queries.cut, queries.pair_cut)
        )
        total = np.logaddexp.reduce(others, axis=1, keepdims=True) + np.log(self.n_destinations / len(self.references))
        return logits - np.logaddexp(total, logits)

    def log_partner_of_logits(self, logits: np.ndarray) -> np.ndarray:
        """Return `log_partner` for the logits of a model with a binary loss.

        Such a logit is the log of how much likelier the candidate is than a random destination.
        """
        return logits - math.log(self.n_destinations)

    # -------------------- how they are computed

    def bank(self, index: TemporalIndex, role: ActRole) -> ActivityBank:
        """Return the decayed counts of a role for an index, on the CPU. Those of the last index are kept."""
        if self.cache.get("index") is not index:
            self.cache.clear()
            self.cache["index"], self.cache["host"] = index, index.to("cpu")
        if role not in self.cache:
            rate = self.rates[role]
            bank = ActivityBank.build(self.cache["host"], rate.time_constants, role, rate.rhythm)
            self.cache[role] = bank, {}, RateLoop.build(bank, rate, self.grid, self.horizons)
        found: ActivityBank = self.cache[role][0]
        return found

    def _etas(
        self,
        index: TemporalIndex,
        node: Any,
        cut: Any,
        t: Any,
        horizon: Any,
        role: ActRole,
        kinds: Sequence[tuple[str, np.ndarray | None]],
    ) -> list[np.ndarray]:
        """Return, for each kind and its ``log_partner`` (n, M), the complementary log-log (n, 1 or M) of probabilities.

        The compiled loops and the plain `_curve` agree up to rounding.
        """
        h = _check_horizon(horizon)
        bank = self.bank(index, role)
        if not bank.index.uses_numba:
            outlook = self._outlook(index, node, cut, t, role)
            return [self._curve(outlook, kind, log_partner)(np.reshape(h, (-1, 1))) for kind, log_partner in kinds]
        check_choice("role", role, ACT_ROLES)
        nodes = _array(node, np.int64).reshape(-1)
        n = len(nodes)
        cuts, times = (_broadcast(_array(x, kind), n) for x, kind in ((cut, np.int64), (t, np.float64)))
        drift = self.drift.log_ratio(self.rates[role], bank, cuts, times, self.cache[role][1])
        expected, age = self.cache[role][2].log_expected(nodes, cuts, times, h)
        none = np.zeros((n, 1))
        etas = []
        for kind, log_partner in kinds:
            partner = none if log_partner is None else np.ascontiguousarray(log_partner, dtype=np.float64)
            etas.append(self._loops[kind].eta(expected, age, drift, partner))
        return etas

    @cached_property
    def _loops(self) -> dict[str, CalibratorLoop]:
        return {kind: CalibratorLoop.build(self.horizons, self.calibrators.get(kind, ())) for kind in KINDS}

    def _outlook(self, index: TemporalIndex, node: Any, cut: Any, t: Any, role: ActRole) -> _Outlook:
        check_choice("role", role, ACT_ROLES)
        bank, rate = self.bank(index, role), self.rates[role]
        nodes = _tensor(node, torch.int64).reshape(-1)
        cuts = _tensor(cut, torch.int64).expand(nodes.shape)
        times = _tensor(t, torch.float64).expand(nodes.shape).numpy()
        drift = self.drift.log_ratio(rate, bank, cuts.numpy(), times, self.cache[role][1])
        elapsed = bank.index.elapsed.numpy()
        last = elapsed[np.maximum(cuts.numpy() - 1, 0)] if len(elapsed) else np.zeros(len(times))
        since = np.maximum(times - last, 0.0)
        times = last + self.grid.start(since)
        counts = bank.lookup(nodes, cuts, torch.from_numpy(times))
        wide = DecayedCounts(**{name: value.unsqueeze(1) for name, value in vars(counts).items()})
        return _Outlook(rate, wide, drift[:, None], since[:, None], self.grid)

    def _curve(
        self, outlook: _Outlook, kind: str, log_partner: np.ndarray | None = None
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function from horizons (1, P), (n, 1) or (n, P) to the complementary log-log of probabilities.

        The result is (n, P). For the kind ``pair``, with ``log_partner`` (n, M), horizons are (1, 1) or (n, 1) and the
        result is (n, M).
        """
        fits = zip(self.horizons, self.calibrators.get(kind, ()), strict=False)
        calibrators = {h: calibrator for h, calibrator in fits if calibrator is not None}
        if not calibrators:
            constant = outlook.drift + (0.0 if log_partner is None else log_partner)
            return lambda horizon: outlook.log_expected(horizon) + constant
        grid = outlook.log_expected(np.array([[*calibrators]]))  # (n, K)
        points = []  # K of (n, 1 or M)
        for k, (h, calibrator) in enumerate(calibrators.items()):
            features = outlook.features(h, log_partner, grid[:, k : k + 1])
            eta = calibrator.eta(features)
            if not outlook.is_seen.all():
                eta = np.where(outlook.is_seen, eta, Calibrator.default(features.shape[-1]).eta(features))
            points.append(eta)
        eta = np.maximum.accumulate(np.stack(points, axis=-1), axis=-1)  # (n, 1 or M, K)
        return lambda horizon: _interpolate(outlook.log_expected(horizon), grid, eta)

    # -------------------- calibration

    def _calibrate_nodes(self, task: LinkTask) -> Forecaster:
        """Fit the calibrators of both roles to questions that are asked, and answered, before the test period."""
        if not self.horizons:
            return self
        begins, first, last, end = self._question_period(task)
        n = limit_questions(N_QUESTIONS, int(task.split.test[0]))
        found: dict[str, tuple[Calibrator | None, ...]] = {}
        for role in ACT_ROLES:
            questions = sample_questions(self.bank(task.host_index, role), first, last, n=n, seed=0)
            found[role] = self._fit_calibrators(task, questions, role, begins, end)
        return replace(self, calibrators=found, cache=self.cache)

    def calibrate_pairs(self, task: LinkTask, model: LinkModel, callbacks: Callback = NO_CALLBACK) -> Forecaster:
        """Return the forecaster with calibrators of pairs, fitted to questions that the link model answers too."""
        if not self.horizons:
            return self
        begins, first, last, end = self._question_period(task)
        banks = {role: self.bank(task.host_index, role) for role in ACT_ROLES}
        n = limit_questions(N_PAIRS // 4 if model.learns_ranking else N_PAIRS, int(task.split.test[0]))
        questions = sample_questions(banks["source"], first, last, n=n, seed=1)
        questions = add_partners(questions, banks["destination"], seed=1)
        callbacks.on_stage_start("evaluating: calibration", len(questions))
        log_partner = self.log_partner(model, task.full_history, pair_queries(task, questions), callbacks)
        pairs = self._fit_calibrators(task, questions, "pair", begins, end, log_partner)
        return replace(self, calibrators=self.calibrators | {"pair": pairs}, cache=self.cache)

    def _question_period(self, task: LinkTask) -> tuple[list[float], float, float, float]:
        """Return when the questions of each horizon begin, when the first and the last are asked, and the end.

        Questions begin with the validation period, or earlier where the horizon leaves too little of it. In a stream of
        few times they begin in its middle.
        """
        elapsed = task.host_index.elapsed
        begin, end = float(elapsed[int(task.split.validation[0]) - 1]), float(elapsed[int(task.split.test[0]) - 1])
        begins = [min(begin, end - h - max(N_WINDOWS * h, (end - begin) / 2)) for h in self.horizons]
        begins = [end / 2] * len(begins) if self.grid.step else begins
        return begins, max(min(begins), 0.0), end - self.horizons[0], end

    def _fit_calibrators(
        self,
        task: LinkTask,
        questions: Questions,
        kind: str,
        begins: list[float],
        end: float,
        log_partner: np.ndarray | None = None,
    ) -> tuple[Calibrator | None, ...]:
        """Fit a calibrator for each horizon to the questions from its begin whose horizon is over at the end."""
        role: ActRole = "destination" if kind == "destination" else "source"
        outlook = self._outlook(task.host_index, questions.node, questions.cut, questions.t, role)
        bank, elapsed = self.bank(task.host_index, role), task.host_index.elapsed.numpy()
        fits: list[Calibrator | None] = []
        for begin, h in zip(begins, self.horizons, strict=True):
            if np.subtract(*np.searchsorted(elapsed, [end, begin], side="right")) < 2 * MIN_OUTCOMES:
                fits.append(None)  # many questions, but about a few events
                continue
            rows = (questions.t >= begin) & (questions.t + h <= end)
            some = questions.take(rows)
            outcome = (acts_within if log_partner is None else meets_within)(bank, some, h)
            features = outlook.features(h, log_partner)[:, 0][rows]
            fits.append(Calibrator.fit(features, outcome, some.t, h, is_discrete=self.grid.step > 0))
        return tuple(fits)

    # -------------------- files

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "rates": {role: rate.to_dict() for role, rate in self.rates.items()},
            "drift": self.drift.to_dict(),
            "grid": {"step": self.grid.step, "tolerance": self.grid.tolerance},
            "horizons": list(self.horizons),
            "calibrators": {
                kind: [None if c is None else c.to_dict() for c in fits] for kind, fits in self.calibrators.items()
            },
            "references": list(self.references),
            "n_destinations": self.n_destinations,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Forecaster:
        """Restore the result of `to_dict`. RunError if it is damaged."""
        try:
            found = cls(
                {role: RateModel.from_dict(data["rates"][role]) for role in ACT_ROLES},
                Drift.from_dict(data["drift"]),
                TimeGrid(float(data["grid"]["step"]), float(data["grid"]["tolerance"])),
                tuple(float(x) for x in data["horizons"]),
                {
                    kind: tuple(None if c is None else Calibrator.from_dict(c) for c in data["calibrators"][kind])
                    for kind in KINDS
                    if kind in data["calibrators"]
                },
                tuple(int(x) for x in data["references"]),
                int(data["n_destinations"]),
            )
            for kind, fits in found.calibrators.items():
                n_features = 3 if kind == "pair" else 2
                if len(fits) != len(found.horizons) or any(c and len(c.slopes) != n_features for c in fits):
                    raise ValueError("a calibrator is missing, or has another number of features")
            return found
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"The activity of this run is damaged ({error}). Train the run again.") from None


@dataclass(frozen=True)
class _Outlook:
    """What is known about nodes (n,) in a role, each at its cut and time."""

    rate: RateModel
    counts: DecayedCounts  # (n, 1)
    drift: np.ndarray  # (n, 1)
    since: np.ndarray  # (n, 1) time since the last visible event of any node
    grid: TimeGrid

    @property
    def is_seen(self) -> np.ndarray:
        """(n, 1) bool: the node has an event in the role. Others were not in the questions of the calibration."""
        is_seen: np.ndarray = self.counts.count.numpy() > 0
        return is_seen

    def log_expected(self, horizon: np.ndarray) -> np.ndarray:
        """Return the log of the expected number of occasions (n, P), until the first one, within (n or 1, P).

        It is without the correction for drift.
        """
        length = torch.from_numpy(self.grid.length(self.since, horizon))
        hazard = self.rate.cumulative_hazard(self.counts, length).numpy()
        with np.errstate(divide="ignore"):
            log_expected: np.ndarray = np.log(hazard)
        return log_expected

    def features(
        self, horizon: float, log_partner: np.ndarray | None = None, log_expected: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the features of a calibrator at one horizon, (n, 1, 2); with ``log_partner`` (n, M), (n, M, 3).

        ``log_expected`` (n, 1) is that of the horizon, if the caller has it.
        """
        log_expected = self.log_expected(np.array([[horizon]])) if log_expected is None else log_expected
        age = (self.counts.t - self.counts.last).numpy()
        recency = np.where(self.is_seen, -np.log1p(np.maximum(age, 0.0) / horizon), 0.0)
        columns = [log_expected + self.drift, recency]
        columns += [] if log_partner is None else [log_partner]
        return np.stack(np.broadcast_arrays(*columns), axis=-1)


def pair_queries(task: LinkTask, questions: Questions) -> Queries:
    """Return questions about pairs as queries with one candidate each, on the device of the task's history."""
    assert questions.partner is not None
    columns = questions.node, questions.partner[:, None], questions.t, questions.cut, questions.cut
    return Queries(*(torch.from_numpy(x).to(task.device) for x in columns))


def _interpolate(x: np.ndarray, grid: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """Return values at x (n, P) of the broken lines through grid (n, K) and eta (n, M, K), both ascending.

    Outside the grid the slope is 1. P or M is 1; the result is (n, P or M).
    """
    k = (x[:, :, None] >= grid[:, None, :]).sum(-1)  # (n, P), grid points that are not above x
    low, high = np.maximum(k - 1, 0), np.minimum(k, grid.shape[1] - 1)
    x0, x1 = (np.take_along_axis(grid, i, axis=1) for i in (low, high))
    y0, y1 = (np.take_along_axis(eta, i[:, None, :], axis=2) for i in (low, high))  # (n, M, P)
    share = np.where(x1 > x0, (x - x0) / np.where(x1 > x0, x1 - x0, 1.0), 0.0)
    outside = np.minimum(x - grid[:, :1], 0.0) + np.maximum(x - grid[:, -1:], 0.0)
    inside = y0 + np.where(x1 > x0, share, 0.0)[:, None] * (y1 - y0)
    return inside.reshape(len(x), inside.shape[1] * inside.shape[2]) + outside


def _check_horizon(horizon: Any) -> float | np.ndarray:
    """Return one horizon, or (n, 1). SettingError if one is negative or not a number."""
    if isinstance(horizon, float) and 0 <= horizon < np.inf:
        return horizon
    values = np.asarray(horizon, dtype=np.float64).reshape(-1, 1)
    if not (values >= 0).all() or not np.isfinite(values).all():
        raise SettingError("A horizon must be a number from 0 up.")
    return values


def _array(values: Any, dtype: Any) -> np.ndarray:
    return values.cpu().numpy().astype(dtype, copy=False) if isinstance(values, Tensor) else np.asarray(values, dtype)


def _broadcast(values: np.ndarray, n: int) -> np.ndarray:
    """Return values of shape (), (1,) or (n,) as a contiguous array (n,)."""
    values = values.reshape(-1)
    return np.ascontiguousarray(values if len(values) == n else np.broadcast_to(values, n))


def _tensor(values: Any, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(values, dtype=dtype).cpu()
