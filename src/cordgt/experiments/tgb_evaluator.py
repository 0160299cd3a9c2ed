"""The evaluator of the Temporal Graph Benchmark (package py-tgb, optional): an independent check of our ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from cordgt.tasks.link_evaluation import CandidateScores

DATASET = "tgbl-wiki"  # the evaluator is the same for every dataset
METRICS = {"mrr": "mrr_py_tgb", "hits@10": "hits@10_py_tgb"}  # py-tgb's name, ours


class TgbEvaluator:
    """Adds up the metrics of py-tgb's evaluator over batches of events."""

    def __init__(self, evaluator: Any) -> None:
        self._evaluator, self._sums, self._n_events = evaluator, dict.fromkeys(METRICS, 0.0), 0

    def add(self, scores: CandidateScores) -> None:
        """Evaluate some events. py-tgb has no mask, so a candidate that does not compete gets the lowest score."""
        others = np.where(scores.competes, scores.others, -np.inf)
        found = self._evaluator.eval({"y_pred_pos": scores.true, "y_pred_neg": others, "eval_metric": ["mrr"]})
        n = len(scores.true)
        self._n_events += n
        for name in METRICS:
            self._sums[name] += float(found[name]) * n

    def metrics(self) -> dict[str, float | None]:
        """Return the means over all events."""
        n = self._n_events
        return {ours: self._sums[name] / n if n else None for name, ours in METRICS.items()}


def find_tgb_evaluator() -> TgbEvaluator | None:
    """Return py-tgb's evaluator; None if the package is not installed."""
    try:
        from tgb.linkproppred.evaluate import Evaluator
    except ImportError:
        return None
    return TgbEvaluator(Evaluator(name=DATASET))
