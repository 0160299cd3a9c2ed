"""Metrics of probabilities: log loss, Brier score, expected calibration error, and the bins of a reliability plot."""

from __future__ import annotations

from typing import Any

import numpy as np

N_BINS = 10  # of equal numbers of predictions
MIN_PROBABILITY = 1e-9  # keeps the log loss finite


def probability_metrics(probability: np.ndarray, outcome: np.ndarray) -> dict[str, Any]:
    """Return the metrics of predictions (n,) of outcomes (n,) bool. All are None if n is 0.

    The expected calibration error compares mean prediction and share of outcomes in bins of equal numbers of
    predictions, because most probabilities are small.
    """
    n = len(outcome)
    if n == 0:
        return {"n": 0, "share": None, "log_loss": None, "brier": None, "ece": None, "bins": []}
    bins = reliability_bins(probability, outcome)
    return {
        "n": n,
        "share": float(outcome.mean()),
        "log_loss": log_loss(probability, outcome),
        "brier": float(np.mean((probability - outcome) ** 2)),
        "ece": expected_calibration_error(probability, outcome, bins),
        "bins": bins,
    }


def expected_calibration_error(
    probability: np.ndarray, outcome: np.ndarray, bins: list[dict[str, float]] | None = None
) -> float:
    """Return the mean distance of forecast and share of outcomes over the bins of predictions (n,), n at least 1."""
    bins = reliability_bins(probability, outcome) if bins is None else bins
    return float(sum(abs(k["predicted"] - k["observed"]) * k["n"] for k in bins) / len(outcome))


def log_loss(probability: np.ndarray, outcome: np.ndarray) -> float:
    """Return the mean negative log likelihood of outcomes (n,) bool."""
    p = np.clip(probability, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return float(-np.mean(np.where(outcome, np.log(p), np.log1p(-p))))


def reliability_bins(probability: np.ndarray, outcome: np.ndarray) -> list[dict[str, float]]:
    """Return mean prediction, share of outcomes and size of each bin, lowest predictions first.

    Equal predictions are in the same bin, so there can be fewer than `N_BINS`.
    """
    edges = np.unique(np.quantile(probability, np.linspace(0, 1, N_BINS + 1)[1:-1]))
    which = np.searchsorted(edges, probability, side="right")
    return [
        {"predicted": float(probability[own].mean()), "observed": float(outcome[own].mean()), "n": int(own.sum())}
        for own in (which == k for k in range(len(edges) + 1))
        if own.any()
    ]
