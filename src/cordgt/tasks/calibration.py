"""Calibrators: turn an expected number of events within a horizon into a probability that can be trusted.

Without calibration the probability of at least one event is ``1 - exp(-m)``, where ``m`` is the expected number. A
calibrator is fitted to the outcomes of questions. It keeps the complementary log-log scale ``eta = log(-log(1 - p))``,
on which the uncalibrated value is ``log m``. There are three kinds: ``none``; ``platt``, a line in the features whose
sum is ``log m``; and ``isotonic``, a non-decreasing function of that line. The log loss of later questions chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cordgt.tasks.probability import log_loss

MIN_ETA, MAX_ETA = -30.0, 3.5  # probabilities of 1e-13 and 1 - 4e-15
MIN_OUTCOMES = 20  # of each kind that a fit needs; with fewer the calibrator changes nothing
MIN_WINDOWS = 10.0  # that a step function needs
_PRIOR = 4.0  # information that pulls the line to its default: a fit to separable outcomes stays finite
_MAX_STEPS = 50

Fit = Callable[[np.ndarray, np.ndarray, float], "Calibrator"]


@dataclass(frozen=True)
class Calibrator:
    """A fitted calibrator of F features. The default changes nothing."""

    intercept: float = 0.0
    slopes: tuple[float, ...] = (1.0,)  # (F,)
    steps: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # of isotonic: eta before and after, ascending

    @property
    def kind(self) -> str:
        """``none``, ``platt`` or ``isotonic``."""
        if self.steps is not None:
            return "isotonic"
        return "none" if self.intercept == 0 and set(self.slopes) == {1.0} else "platt"

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
        cls, features: np.ndarray, outcome: np.ndarray, n_windows: float = np.inf, fallback: Calibrator | None = None
    ) -> Calibrator:
        """Fit each kind to the earlier half of the questions; return the best one on the later half, fitted to all.

        If there are too few outcomes, the result is ``fallback``, or the default line.

        Questions whose horizons overlap share what happened. ``n_windows`` is how many horizons fit into their period.
        The default line has the weight of one of them.

        Shapes: features (n, F), outcome (n,) bool. The questions are in order of time.
        """
        default = cls(slopes=(1.0,) * features.shape[1])
        half = len(outcome) // 2
        if min(min(part.sum(), (~part).sum()) for part in (outcome[:half], outcome[half:])) < MIN_OUTCOMES:
            return fallback or default

        def loss(fit: Fit) -> float:
            return log_loss(fit(features[:half], outcome[:half], n_windows / 2)(features[half:]), outcome[half:])

        kinds: list[Fit] = [lambda x, y, n: default, cls._fit_platt]
        if n_windows >= MIN_WINDOWS:
            kinds.append(cls._fit_isotonic)
        return min(kinds, key=loss)(features, outcome, n_windows)

    @classmethod
    def _fit_platt(cls, features: np.ndarray, outcome: np.ndarray, n_windows: float) -> Calibrator:
        """Maximize the likelihood by Newton's method with Fisher information."""
        design = np.concatenate([np.ones((len(outcome), 1)), features], axis=1)
        prior = np.concatenate([[0.0], np.ones(features.shape[1])])
        weights = prior.copy()
        for _ in range(_MAX_STEPS):
            eta = np.clip(design @ weights, MIN_ETA, MAX_ETA)
            p = np.clip(probability(eta), 1e-12, 1 - 1e-12)
            slope = np.exp(eta) * (1 - p)  # of the probability
            information = (design * (slope**2 / (p * (1 - p)))[:, None]).T @ design
            pull = information / n_windows + _PRIOR * np.eye(len(prior))
            gradient = design.T @ ((outcome - p) * slope / (p * (1 - p))) - pull @ (weights - prior)
            information += pull
            step = np.clip(np.linalg.solve(information, gradient), -1.0, 1.0)
            weights = weights + step
            if np.abs(step).max() < 1e-8:
                break
        return cls(float(weights[0]), tuple(np.maximum(weights[1:], 0.05).tolist()))

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


def probability(eta: np.ndarray) -> np.ndarray:
    """Return ``1 - exp(-exp(eta))``."""
    p: np.ndarray = -np.expm1(-np.exp(np.minimum(eta, MAX_ETA)))
    return p
