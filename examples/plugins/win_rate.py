"""Two metrics: the share of events that score above their negative, and the mean rank of the true destination."""

import numpy as np

import cordgt


@cordgt.register_metric("win_rate", title="win rate")
def win_rate(positive: np.ndarray, negative: np.ndarray) -> float:
    """Share of events that score above their negative; a tie counts one half."""
    return float(((positive > negative) + 0.5 * (positive == negative)).mean())


@cordgt.register_metric("mean_rank", title="mean rank", higher_is_better=False, is_share=False)
def mean_rank(ranks: np.ndarray) -> float:
    """Mean rank of the true destination."""
    return float(ranks.mean())
