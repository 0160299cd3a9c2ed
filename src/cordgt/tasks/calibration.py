"""Calibrators: turn an expected number of events within a horizon into a probability that can be trusted.

Without calibration the probability of at least one event is ``1 - exp(-m)``, where ``m`` is the expected number. A
calibrator is fitted to the outcomes of questions. It keeps the complementary log-log scale ``eta = log(-log(1 - p))``,
on which the uncalibrated value is ``log m``. There are three kinds: ``none``; ``platt``, a line in the features; and
``isotonic``, a non-decreasing function of that line. The log loss of later questions chooses.

The features of a node are ``log m`` without a partner, and the recency ``-log(1 + age / horizon)`` of its last event: a
node that was silent for many horizons may have left. A pair also has the log probability of the partner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cordgt.tasks.probability import log_loss

MIN_ETA, MAX_ETA = -30.0, 3.5  # probabilities of 1e-13 and 1 - 4e-15
MIN_OUTCOMES = 20  # of each kind that a fit needs, in both parts of the questions
MIN_WINDOWS = 10.0  # that a step function needs
MIN_WINDOWS_APART = 1.5  # that the questions need before their two parts are set apart
DEFAULT_SLOPES = (1.0, 0.0, 1.0)  # of log m, recency and the log probability of the partner
LEAST_SLOPES = (0.05, 0.0, 0.05)
_PRIOR = 4.0  # information that pulls the line to its default: a fit to separable outcomes stays finite
_MAX_STEPS = 50

Fit = Callable[[np.ndarray, np.ndarray, float], "Calibrator"]


@dataclass(frozen=True)
class Calibrator:
    """A fitted calibrator of F features: 2 of a node, 3 of a pair. The default, of a node, changes nothing."""

    intercept: float = 0.0
    slopes: tuple[float, ...] = DEFAULT_SLOPES[:2]  # (F,)
    steps: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # of isotonic: eta before and after, ascending

    @property
    def kind(self) -> str:
        """``none``, ``platt`` or ``isotonic``."""
        if self.steps is not None:
            return "isotonic"
        return "none" if self == self.default(len(self.slopes)) else "platt"

    @classmethod
    def default(cls, n_features: int) -> Calibrator:
        """Return the calibrator that changes nothing."""
        return cls(slopes=DEFAULT_SLOPES[:n_features])

    def eta(self, features: np.ndarray) -> np.ndarray:
        """Return the complementary log-log (...) of the probability for features (..., F)."""
        eta = self.intercept + (features * np.array(self.slopes)).sum(-1)
        if self.steps is None:
            return eta
        before, after = (np.array(x) for x in self.steps)
        outside = np.minimum(eta - before[0], 0.0) + np.maximum(eta - before[-1], 0.0)  # slope 1 beyond the steps
        return np.interp(eta, before, after) + outside

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return the probability (...) for features (..., F)."""
        return probability(self.eta(features))

    @classmethod
    def fit(
        cls, features: np.ndarray, outcome: np.ndarray, t: np.ndarray, horizon: float, *, is_discrete: bool = False
    ) -> Calibrator | None:
        """Fit each kind to the earlier part of the questions; return the best one on the later part, fitted to all.

        None if there are too few outcomes. Questions whose horizons overlap share what happened, so the number of
        horizons that fit into their period counts, and the default line has the weight of one of them. If time is
        discrete, the number of questions counts. There a line is also fitted if nearly all questions came true: a rate
        of one event a step alone would give ``1 - exp(-1)``.

        Shapes: features (n, F), outcome (n,) bool, t (n,) ascending times of the questions.
        """
        early, late = split_questions(t, horizon)
        n_true, n_false = (min(x[part].sum() for part in (early, late)) for x in (outcome, ~outcome))
        if n_true < MIN_OUTCOMES or (n_false < MIN_OUTCOMES and not is_discrete):
            return None
        n_windows = np.inf if is_discrete else 1 + np.ptp(t) / horizon
        default = cls.default(features.shape[1])

        def loss(fit: Fit) -> float:
            fitted = fit(features[early], outcome[early], max(n_windows / 2, 1.0))
            return log_loss(fitted(features[late]), outcome[late])

        kinds: list[Fit] = [lambda x, y, n: default, cls._fit_platt]
        if n_windows >= MIN_WINDOWS and n_false >= MIN_OUTCOMES:
            kinds.append(cls._fit_isotonic)
        return min(kinds, key=loss)(features, outcome, n_windows)

    @classmethod
    def _fit_platt(cls, features: np.ndarray, outcome: np.ndarray, n_windows: float) -> Calibrator:
        """Maximize the likelihood. Slopes that would fall below their least value stay there."""
        n = features.shape[1]
        design = np.concatenate([np.ones((len(outcome), 1)), features], axis=1)
        weights = np.array([0.0, *DEFAULT_SLOPES[:n]])
        least = np.array([-np.inf, *LEAST_SLOPES[:n]])
        is_free = np.ones(n + 1, dtype=bool)
        while True:
            weights = _maximize(design, outcome, weights, is_free, n_windows)
            is_low = is_free & (weights < least)
            if not is_low.any():
                return cls(float(weights[0]), tuple(weights[1:].tolist()))
            weights, is_free = np.maximum(weights, least), is_free & ~is_low

    @classmethod
    def _fit_isotonic(cls, features: np.ndarray, outcome: np.ndarray, n_windows: float) -> Calibrator:
        from sklearn.isotonic import IsotonicRegression  # slow to import, and needed only to fit

        line = cls._fit_platt(features, outcome, n_windows)
        fitted = IsotonicRegression(out_of_bounds="clip").fit(line.eta(features), outcome.astype(float))
        n = len(outcome)  # half an outcome of each kind: a step of zeros or ones is not certain
        p = (fitted.y_thresholds_ * n + 0.5) / (n + 1)
        return replace(line, steps=(tuple(fitted.X_thresholds_.tolist()), tuple(np.log(-np.log1p(-p)).tolist())))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        steps = None if self.steps is None else [list(column) for column in self.steps]
        return {"intercept": self.intercept, "slopes": list(self.slopes), "steps": steps}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Calibrator:
        """Restore the result of `to_dict`. KeyError, TypeError or ValueError if it is damaged."""
        steps = None
        if data["steps"] is not None:
            before, after = (tuple(float(x) for x in column) for column in data["steps"])
            if not before or len(before) != len(after) or sorted(before) != list(before):
                raise ValueError("steps of a calibration must be ascending pairs")
            steps = before, after
        return cls(float(data["intercept"]), tuple(float(x) for x in data["slopes"]), steps)


def split_questions(t: np.ndarray, horizon: float) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of the earlier and the later half of the time of questions (n,).

    If the time is long enough, the two parts are a horizon apart: the outcomes of the earlier one are known before the
    later one begins.
    """
    if not len(t):
        return np.zeros(0, dtype=bool), np.zeros(0, dtype=bool)
    length = float(np.ptp(t))
    gap = horizon if length > MIN_WINDOWS_APART * horizon else 0.0
    middle = t[0] + (length - gap) / 2
    return t <= middle, t > middle + gap


def _maximize(
    design: np.ndarray, outcome: np.ndarray, weights: np.ndarray, is_free: np.ndarray, n_windows: float
) -> np.ndarray:
    """Return the free weights of greatest likelihood, by Newton's method with Fisher information."""
    prior = np.array([0.0, *DEFAULT_SLOPES[: len(weights) - 1]])
    for _ in range(_MAX_STEPS):
        eta = np.clip(design @ weights, MIN_ETA, MAX_ETA)
        p = np.clip(probability(eta), 1e-12, 1 - 1e-12)
        slope = np.exp(eta) * (1 - p)  # of the probability
        information = (design * (slope**2 / (p * (1 - p)))[:, None]).T @ design
        pull = information / n_windows + _PRIOR * np.eye(len(prior))
        gradient = design.T @ ((outcome - p) * slope / (p * (1 - p))) - pull @ (weights - prior)
        total = (information + pull)[np.ix_(is_free, is_free)]
        step = np.zeros(len(weights))
        step[is_free] = np.clip(np.linalg.solve(total, gradient[is_free]), -1.0, 1.0)
        weights = weights + step
        if np.abs(step).max() < 1e-8:
            break
    return weights


def probability(eta: np.ndarray) -> np.ndarray:
    """Return ``1 - exp(-exp(eta))``."""
    p: np.ndarray = -np.expm1(-np.exp(np.minimum(eta, MAX_ETA)))
    return p
