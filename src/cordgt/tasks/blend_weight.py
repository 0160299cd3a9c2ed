"""Choose the weight of the second of two scores on validation data."""

from __future__ import annotations

import numpy as np

from cordgt.tasks.metrics import ap_and_auc

WEIGHTS = np.linspace(0.0, 1.0, 11)
MARGIN = 0.001  # AP that the blend may lose to one of both scores with any kind of negatives
MAX_PAIRS = 30_000  # of the validation split that are scored
MIN_TIMES = 5  # different times of the validation split, without which a choice is chance


def choose_by_ap(positive: np.ndarray, negatives: dict[str, np.ndarray], *, reference: int = 1) -> float:
    """Return the weight with the highest mean AP among those that lose at most `MARGIN` with each kind of negatives.

    ``positive`` and each of ``negatives`` are two scores (2, B): of the true events, and of one kind of negatives.
    ``reference``: the weight, 0 or 1, to which no other may lose more.
    """
    table = np.array([average_precisions(positive, negatives, w) for w in WEIGHTS])
    is_allowed = (table >= table[-1 if reference else 0] - MARGIN).all(axis=1)
    return float(WEIGHTS[np.where(is_allowed, table.mean(axis=1), -1.0).argmax()])


def average_precisions(positive: np.ndarray, negatives: dict[str, np.ndarray], w: float) -> list[float]:
    """Return the AP of two scores (2, B), blended, against the negatives of each kind."""
    return [ap_and_auc(blend(positive, w)[None], blend(x, w)[None])[0].item() for x in negatives.values()]


def blend(scores: np.ndarray, w: float) -> np.ndarray:
    """Return the mean of two scores (2, …), with weight ``w`` for the second."""
    mean: np.ndarray = (1 - w) * scores[0] + w * scores[1]
    return mean


def sample_validation(n: int, pairs_per_event: int, max_pairs: int = MAX_PAIRS) -> np.ndarray:
    """Return the positions of at most ``max_pairs`` / ``pairs_per_event`` of ``n`` events, evenly spread."""
    n_chosen = min(n, max(1, max_pairs // pairs_per_event))
    return np.linspace(0, n - 1, n_chosen).astype(np.int64)
