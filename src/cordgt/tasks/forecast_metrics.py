"""How good the probabilities and times of a `Forecaster` are on the test period, next to simple baselines.

Probabilities: questions of `cordgt.tasks.questions` at three horizons, judged by log loss, Brier score and expected
calibration error. Times: the next event of a source after each of its events, judged by negative log likelihood and by
mean absolute error. Where a source does not act again, the time until the period's end counts, for all predictions. In
a stream of equal steps the events of the last step before the test period count too: the test period has few steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.history.activity import ActivityBank
from cordgt.models.activity_fit import period_likelihood
from cordgt.models.base import LinkModel
from cordgt.tasks.forecast import Forecaster, pair_queries
from cordgt.tasks.link import LinkTask
from cordgt.tasks.perfect_ece import perfect_ece
from cordgt.tasks.probability import log_loss, probability_metrics
from cordgt.tasks.questions import (
    Questions,
    acts_within,
    add_partners,
    limit_questions,
    meets_within,
    next_event_times,
    sample_questions,
)

SHARES = (0.001, 0.01, 0.1)  # horizons, as shares of the stream's span
N_QUESTIONS = 10_000  # about sources, at each horizon
N_PAIRS = 10_000  # pairs that the link model scores, at each horizon; most of them never meet
N_BASELINE = 3_000  # pairs that fit the baselines
N_TIMES = 4_000  # events whose next one is predicted
SMALL_BASE = 0.05  # share of the constant rate in the exponential decay


def forecast_metrics(
    forecaster: Forecaster, task: LinkTask, model: LinkModel, callbacks: Callback = NO_CALLBACK
) -> dict[str, Any]:
    """Return ``{"calibration": …, "next_event": …}`` of the test period, for metrics.json."""
    test_start, elapsed = int(task.split.test[0]), task.host_index.elapsed.numpy()
    begin, end = float(elapsed[test_start - 1]), float(elapsed[-1])
    end += 0.99 * forecaster.grid.step  # a grid is known to have no event before its next step
    baselines = Baselines.fit(forecaster, task)
    rows = []
    for share in SHARES:
        horizon = share * float(elapsed[-1])
        row: dict[str, Any] = {"share": share, "horizon": horizon}
        row["source"] = _judge_sources(forecaster, task, baselines, begin, end, horizon)
        row["pair"] = _judge_pairs(forecaster, task, model, baselines, begin, end, horizon, callbacks)
        rows.append(row)
    kinds = {
        kind: ["too few outcomes" if c is None else c.kind for c in fits]
        for kind, fits in forecaster.calibrators.items()
    }
    calibration = {"horizons": rows, "calibrators": kinds, "longest_horizon": forecaster.longest_horizon}
    return {"calibration": calibration, "next_event": _judge_times(forecaster, task, baselines, end)}


def _judge_sources(
    forecaster: Forecaster, task: LinkTask, baselines: Baselines, begin: float, end: float, horizon: float
) -> dict[str, Any]:
    bank = forecaster.bank(task.host_index, "source")
    questions = sample_questions(
        bank,
        begin,
        end - horizon,
        n=limit_questions(N_QUESTIONS, len(bank.index.elapsed)),
        seed=task.protocol.eval_seed,
    )
    outcome = acts_within(bank, questions, horizon)
    predicted = forecaster.act_probability(task.host_index, questions.node, questions.cut, questions.t, horizon)
    hazards = baselines.hazards(questions, horizon)
    metrics = _with_baselines(predicted, outcome, {name: -np.expm1(-x) for name, x in hazards.items()})
    return metrics | {"perfect_ece": perfect_ece(questions, predicted, horizon, forecaster.grid.step)}


def _judge_pairs(
    forecaster: Forecaster,
    task: LinkTask,
    model: LinkModel,
    baselines: Baselines,
    begin: float,
    end: float,
    horizon: float,
    callbacks: Callback,
) -> dict[str, Any]:
    source, destination = (forecaster.bank(task.host_index, role) for role in ("source", "destination"))
    n = limit_questions(N_PAIRS // 12 if model.learns_ranking else N_PAIRS, task.stream.n_events)
    questions = sample_questions(source, begin, end - horizon, n=n, seed=task.protocol.eval_seed + 1)
    questions = add_partners(questions, destination, seed=task.protocol.eval_seed + 1)
    outcome = meets_within(source, questions, horizon)
    callbacks.on_stage_start("evaluating: probabilities", len(questions))
    log_partner = forecaster.log_partner(model, task.full_history, pair_queries(task, questions), callbacks)
    predicted = forecaster.pair_probability(
        task.host_index, log_partner, questions.node, questions.cut, questions.t, horizon
    )[:, 0]
    share = baselines.partner_shares(questions)
    hazards = {name: x * share for name, x in baselines.hazards(questions, horizon).items()}
    hazards["constant rate"] = np.full(len(questions), baselines.pair_rate * horizon)
    metrics = _with_baselines(predicted, outcome, {name: -np.expm1(-x) for name, x in hazards.items()})
    return metrics | {"perfect_ece": perfect_ece(questions, predicted, horizon, forecaster.grid.step)}


def _with_baselines(predicted: np.ndarray, outcome: np.ndarray, others: dict[str, np.ndarray]) -> dict[str, Any]:
    metrics = probability_metrics(predicted, outcome)
    names = ("log_loss", "brier", "ece")
    metrics["baselines"] = {
        name: {key: value for key, value in probability_metrics(p, outcome).items() if key in names}
        for name, p in others.items()
    }
    return metrics


def _judge_times(forecaster: Forecaster, task: LinkTask, baselines: Baselines, end: float) -> dict[str, Any]:
    """Return metrics of the time from a source's test event to its next one."""
    index, test = task.host_index, task.split.test
    bank, rate = forecaster.bank(index, "source"), forecaster.rates["source"]
    elapsed = index.elapsed.numpy()
    first = int(index.tie_start[test[0] - 1]) if forecaster.grid.step else int(test[0])
    positions = np.linspace(first, len(elapsed) - 1, min(len(elapsed) - first, N_TIMES)).round().astype(np.int64)
    node, t = index.src.numpy()[positions].astype(np.int64), elapsed[positions]
    node, t = np.unique(np.stack([node.astype(np.float64), t]), axis=1)  # events of one time are one occasion
    node = node.astype(np.int64)
    cut = np.searchsorted(elapsed, t, side="right")
    following = next_event_times(bank, node, cut)
    is_last, left = np.isinf(following), end - t
    gap = np.where(is_last, left, following - t)
    counts = bank.lookup(*(torch.from_numpy(x) for x in (node, cut, t)))
    drift = forecaster.drift.log_ratio(rate, bank, cut, t, {})
    horizon = torch.from_numpy(gap)
    hazard = rate.cumulative_hazard(counts, horizon).numpy()
    log_rate = rate.log_density(counts, horizon).numpy() + hazard
    own_nll = np.exp(drift) * hazard - np.where(is_last, 0.0, log_rate + drift)
    if step := forecaster.grid.step:  # the probability of a step is spread over the time since the one before
        until, before = (forecaster.act_probability(index, node, cut, t, h) for h in (gap, (gap - step).clip(0)))
        own_nll = -np.log(np.maximum(np.where(is_last, 1 - until, (until - before) / step), 1e-300))
    median = forecaster.next_time(index, node, cut, t, [0.5])[:, 0]
    questions = Questions(node, t, cut)
    earlier = bank.lookup(torch.from_numpy(node), torch.from_numpy(np.searchsorted(elapsed, t)), torch.from_numpy(t))
    last_gap = np.where(earlier.count.numpy() > 0, t - earlier.last.numpy(), 1 / baselines.rate)
    mean_gap = 1 / baselines.source_rates(questions)
    poisson = np.full(len(t), 1 / baselines.rate)
    predictions = {"last gap": last_gap, "mean gap": mean_gap, "Poisson": poisson}
    points = {**predictions, "Poisson": poisson * np.log(2)}

    def mae(prediction: np.ndarray) -> float | None:
        return float(np.abs(np.minimum(prediction, left) - gap).mean()) if len(t) else None

    def nll(values: np.ndarray) -> float | None:
        return float(values.mean()) if len(t) else None

    likelihood = period_likelihood(rate, bank, int(test[0]), len(elapsed))
    return {
        "n": len(t),
        "share_without_next": float(is_last.mean()) if len(t) else None,
        "nll": nll(own_nll),
        "mae": mae(median),
        "baselines": {
            name: {"nll": nll(gap / scale + np.where(is_last, 0.0, np.log(scale))), "mae": mae(points[name])}
            for name, scale in predictions.items()
        },
        "log_likelihood": likelihood.mean,
        "log_likelihood_n": likelihood.n,
    }


class Baselines:
    """Simple rates of sources, fitted to the training period: constant, by source, and with exponential decay."""

    def __init__(
        self, forecaster: Forecaster, bank: ActivityBank, rate: float, pair_rate: float, n_destinations: int
    ) -> None:
        self.forecaster, self.bank, self.n_destinations = forecaster, bank, n_destinations
        self.rate, self.pair_rate = rate, pair_rate  # of a source, and of a pair of the questions
        self.events_per_occasion = forecaster.rates["source"].events_per_unit
        self.train_questions: Questions | None = None
        self.train_end = 0.0

    @classmethod
    def fit(cls, forecaster: Forecaster, task: LinkTask) -> Baselines:
        """Fit to the events before validation."""
        index = task.host_index
        bank = forecaster.bank(index, "source")
        stop = int(task.split.validation[0])
        end = float(index.elapsed[stop - 1])
        counts = bank.lookup(torch.arange(index.n_nodes), torch.tensor(stop), torch.tensor(end, dtype=torch.float64))
        seen = counts.count > 0
        per_occasion = forecaster.rates["source"].events_per_unit
        occasions = float(((counts.count - 1).clamp_min(0) / per_occasion).sum())
        exposure = float((end - counts.first)[seen].sum())
        found = cls(forecaster, bank, (occasions + 0.5) / max(exposure, 1e-300), 0.0, forecaster.n_destinations)
        found.train_end = end
        found.train_questions = sample_questions(bank, end / 2, end, n=limit_questions(N_BASELINE, stop), seed=2)
        pairs = add_partners(found.train_questions, forecaster.bank(index, "destination"), seed=2)
        horizon = end / 10
        pairs = pairs.take(pairs.t + horizon <= end)
        n_meets = meets_within(bank, pairs, horizon).sum() if horizon else 0
        found.pair_rate = -np.log1p(-(n_meets + 0.5) / (len(pairs) + 1)) / max(horizon, 1e-300)
        return found

    def hazards(self, questions: Questions, horizon: float) -> dict[str, np.ndarray]:
        """Return the expected number of occasions (n,) within the horizon by each baseline."""
        return {
            "constant rate": np.full(len(questions), self.rate * horizon),
            "per-source rate": self.source_rates(questions) * horizon,
            "exponential decay": self._decay(questions, horizon),
        }

    def source_rates(self, questions: Questions) -> np.ndarray:
        """Return each source's own mean rate (n,) so far; one occasion at the constant rate shrinks it."""
        counts = self._lookup(questions)
        exposure = (counts.t - counts.first).numpy() + 1 / self.rate
        n = (counts.count.numpy() - 1).clip(0) / self.events_per_occasion + 1
        rates: np.ndarray = n / exposure
        return rates

    def partner_shares(self, questions: Questions) -> np.ndarray:
        """Return the share (n,) of each source's events that were with its partner, in either direction."""
        assert questions.partner is not None
        columns = (torch.from_numpy(x) for x in (questions.node, questions.partner, questions.cut))
        n_pair = self.bank.index.pair_history(*columns)[0].numpy()
        n = self.bank.index.degree(torch.from_numpy(questions.node), torch.from_numpy(questions.cut)).numpy()
        shares: np.ndarray = (n_pair + 1 / self.n_destinations) / (n + 1)
        return shares

    def _decay(self, questions: Questions, horizon: float) -> np.ndarray:
        """Return ``c * S * (1 - exp(-h / tau)) + b * h``; log loss in the training period chooses c and tau."""
        assert self.train_questions is not None
        rows = self.train_questions.t + horizon <= self.train_end
        past = self.train_questions.take(rows)
        outcome = acts_within(self.bank, past, horizon)
        sums, own = (self._lookup(x).sums.numpy() for x in (past, questions))
        base = SMALL_BASE * self.rate * horizon
        options = [(c, k) for k in range(sums.shape[1]) for c in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)]
        fade = -np.expm1(-horizon / np.array(self.bank.time_constants))

        def loss(option: tuple[float, int]) -> float:
            c, k = option
            return log_loss(-np.expm1(-(c * sums[:, k] * fade[k] + base)), outcome) if len(outcome) else 0.0

        c, k = min(options, key=loss)
        hazard: np.ndarray = c * own[:, k] * fade[k] + base
        return hazard

    def _lookup(self, questions: Questions) -> Any:
        return self.bank.lookup(*(torch.from_numpy(x) for x in (questions.node, questions.cut, questions.t)))
