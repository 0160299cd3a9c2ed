"""Near-equal scores tie: ranks and orders that do not depend on rounding.

Matrix products may round the same row differently at another place in a batch. An exact comparison would order nodes
with equal histories at random. So scores that differ by at most ``tolerance * max(1, |score|)`` tie.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cordgt.models.base import SCORE_TOLERANCE


def mean_ranks(
    true: np.ndarray, others: np.ndarray, competes: np.ndarray, tolerance: float = SCORE_TOLERANCE
) -> np.ndarray:
    """Return the rank of each true score among its candidates, (B,) float64; 1 is best.

    A candidate ties if its score is at most ``tolerance * max(1, |true score|)`` away from the true one. A tie counts
    as the mean of the optimistic and the pessimistic rank. Shapes: true (B,); others (B, M); competes (B, M) bool,
    False: ignored.
    """
    difference = others - true[:, None]
    margin = tolerance * np.maximum(1.0, np.abs(true))[:, None]
    above = ((difference > margin) & competes).sum(axis=1)
    tied = ((np.abs(difference) <= margin) & competes).sum(axis=1)
    return 1.0 + above + tied / 2


def merge_near_ties(scores: np.ndarray, tolerance: float = SCORE_TOLERANCE) -> np.ndarray:
    """Return scores of any shape, float64, in which near-equal ones are equal. The order of the scores does not matter.

    Ties form from the highest score down. The highest score without a tie opens one, and all scores at most
    ``tolerance * max(1, |score|)`` below it take its value. So no score moves by more than that, and scores further
    apart keep their order. Rounding can still split equal inputs that lie just at the end of a higher tie; any rule
    has such a border.
    """
    flat = np.asarray(scores, dtype=np.float64).reshape(-1)
    order = np.argsort(-flat, kind="stable")
    merged = np.empty_like(flat)
    merged[order] = _tie_values(flat[order], tolerance)
    return merged.reshape(np.shape(scores))


def find_contenders(scores: np.ndarray, n: int, tolerance: float = SCORE_TOLERANCE) -> np.ndarray:
    """Return the positions, ascending, of the scores (M,) that can be among the best n after `merge_near_ties`.

    Merging the contenders alone gives the best n the same values, because ties form from the highest score down.
    """
    scores = np.asarray(scores, np.float64)
    if n >= len(scores):
        return np.arange(len(scores))
    best = np.partition(scores, len(scores) - n)[len(scores) - n :]
    margin = tolerance * max(1.0, float(np.abs(best).max()))  # at least that of the tie of the n-th best score
    return np.flatnonzero(scores >= best[0] - 2 * margin)  # twice, for rounding


@njit(cache=True)
def _tie_values(ranked, tolerance):  # type: ignore[no-untyped-def]
    """Return for each score of a descending array the score that opened its tie."""
    values = np.empty_like(ranked)
    top, margin = 0.0, -1.0
    for i in range(len(ranked)):
        if i == 0 or top - ranked[i] > margin:
            top = ranked[i]
            margin = tolerance * max(1.0, abs(top))
        values[i] = top
    return values
