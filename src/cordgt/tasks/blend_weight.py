"""Choose the weight of the second of two scores on validation data.

`choose_by_ap` takes the best weight. `choose_by_gain` moves away from the second score only if the gain is sure.
"""

from __future__ import annotations

import numpy as np

from cordgt.tasks.metrics import ap_and_auc

WEIGHTS = np.linspace(0.0, 1.0, 11)
MARGIN = 0.001  # AP that the blend may lose to one of both scores with any kind of negatives
MAX_PAIRS = 30_000  # of the validation split that are scored
MIN_TIMES = 5  # different times in the validation split; with fewer, the choice would be chance
N_BLOCKS = 10  # of the events, by time, whose gains in AP are compared
MIN_BLOCKS = 5  # with fewer, the standard error of a gain says little
N_STANDARD_ERRORS = 0.5  # subtracted from a gain before it is compared with -MARGIN


def choose_by_ap(positive: np.ndarray, negatives: dict[str, np.ndarray], *, reference: int = 1) -> float:
    """Return the weight with the highest mean AP among those that lose at most `MARGIN` with each kind of negatives.

    ``positive`` and each of ``negatives`` are two scores (2, B): of the true events, and of one kind of negatives.
    ``reference``: the weight, 0 or 1, to which no other may lose more.
    """
    table = np.array([average_precisions(positive, negatives, w) for w in WEIGHTS])
    is_allowed = (table >= table[-1 if reference else 0] - MARGIN).all(axis=1)
    return float(WEIGHTS[np.where(is_allowed, table.mean(axis=1), -1.0).argmax()])


def choose_by_gain(positive: np.ndarray, negatives: dict[str, np.ndarray], t: np.ndarray) -> float:
    """Return the weight with the highest mean gain in AP over weight 1, among those whose gain is sure.

    A gain is sure if, with each kind of negatives, the gain minus `N_STANDARD_ERRORS` standard errors over blocks of
    time is at least ``-MARGIN``. 1 if the times are too few for `MIN_BLOCKS` blocks. ``t`` (B,), ascending, are the
    times of the true events; the scores are those of `choose_by_ap`, the negatives those of the same events.
    """
    blocks = time_blocks(t)
    if len(blocks) < MIN_BLOCKS:
        return 1.0
    ap = np.array(
        [
            [average_precisions(positive[:, b], {k: x[:, b] for k, x in negatives.items()}, w) for b in blocks]
            for w in WEIGHTS
        ]
    )  # (weights, blocks, kinds)
    gain = ap - ap[-1]
    error = gain.std(axis=1, ddof=1) / np.sqrt(len(blocks))
    mean = gain.mean(axis=1)
    is_sure = (mean - N_STANDARD_ERRORS * error >= -MARGIN).all(axis=1)
    best = np.where(is_sure, mean.mean(axis=1), -np.inf)
    return float(WEIGHTS[::-1][best[::-1].argmax()])  # of equal gains the largest weight


def time_blocks(t: np.ndarray) -> list[slice]:
    """Divide events with these ascending times into at most `N_BLOCKS` ranges of about one size.

    Events of one time are in one range, so there are fewer ranges if there are few times.
    """
    wanted = np.arange(N_BLOCKS) * len(t) // N_BLOCKS
    starts = np.unique(np.searchsorted(t, t[wanted], side="left"))
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(t)], strict=True)]


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
