"""The test events that a report shows, spread evenly over the split, with their scores.

Their number is limited, so that a report of a large dataset stays fast. The metrics of the run are not affected: they
cover the whole split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.events.arrays import evenly_spaced
from cordgt.history.queries import Queries
from cordgt.models.base import LinkModel
from cordgt.tasks.link import LinkTask
from cordgt.tasks.metrics import ap_and_auc
from cordgt.tasks.negatives import NEGATIVES
from cordgt.tasks.pair_scores import negative_pair_queries, score_pairs
from cordgt.tasks.recommendation_metrics import DEGREE_BINS
from cordgt.tasks.scoring import score_queries
from cordgt.tasks.ties import merge_near_ties

MAX_EVENTS = 2000  # default number of test events


@dataclass(frozen=True)
class ScoredSample:
    """n test events, each with its negative, scored as in the evaluation. Arrays are (n,), in stream order."""

    n_total: int  # test events in the split
    positions: np.ndarray  # in the stream
    positive_queries: Queries  # one candidate each, on the task's device
    negative_queries: Queries
    positive: np.ndarray  # logits
    negative: np.ndarray
    pair_count: np.ndarray  # earlier events of the same pair
    negative_pair_count: np.ndarray
    src_degree: np.ndarray  # earlier events of the source
    dst_degree: np.ndarray
    has_new_node: np.ndarray  # bool: an end is in no training event

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def margin(self) -> np.ndarray:
        """(n,) logit of each event minus the logit of its negative."""
        return self.positive - self.negative

    @property
    def is_partial(self) -> bool:
        """True if the split has more events than the sample."""
        return len(self) < self.n_total


def score_sample(
    model: LinkModel,
    task: LinkTask,
    *,
    max_events: int | None = MAX_EVENTS,
    callbacks: Callback = NO_CALLBACK,
) -> ScoredSample:
    """Score at most ``max_events`` test events (all if None), evenly spread; always the same ones."""
    positions, queries = task.evaluation_queries("test", "transductive")
    n = len(positions)
    rows = evenly_spaced(n, n if max_events is None else max_events)
    true = replace(queries, dst=queries.dst[:, :1]).take(rows)
    if NEGATIVES[task.protocol.negatives].replaces_source:
        false = negative_pair_queries(task, "test", "transductive")[0].take(rows)
        scores = score_pairs(model, task, true, false, callbacks=callbacks)
    else:  # an event and its negative share the source, which is read once
        false = replace(queries, dst=queries.dst[:, 1:]).take(rows)
        both = replace(true, dst=torch.cat([true.dst, false.dst], dim=1))
        scores = score_queries(model, task.full_history, both, callbacks=callbacks)
    positive, negative = merge_near_ties(scores, model.score_tolerance).T
    positions, index, is_new = positions[rows], task.full_history.index, task.split.new_node
    return ScoredSample(
        n_total=n,
        positions=positions,
        positive_queries=true,
        negative_queries=false,
        positive=positive,
        negative=negative,
        pair_count=index.pair_history(true.src, true.dst[:, 0], true.pair_cut)[0].cpu().numpy(),
        negative_pair_count=index.pair_history(false.src, false.dst[:, 0], false.pair_cut)[0].cpu().numpy(),
        src_degree=index.degree(true.src, true.cut).cpu().numpy(),
        dst_degree=index.degree(true.dst[:, 0], true.cut).cpu().numpy(),
        has_new_node=is_new[task.stream.src[positions]] | is_new[task.stream.dst[positions]],
    )


# -------------------- metrics of groups of events


@dataclass(frozen=True)
class GroupMetrics:
    """How well a model separates a group of events from their negatives. None if the group is empty."""

    name: str
    n_events: int
    ap: float | None = None
    win_rate: float | None = None  # share of events that score above their own negative; ties count half
    low: float | None = None  # 95 % confidence interval of the win rate (Wilson)
    high: float | None = None


def group_metrics(name: str, sample: ScoredSample, rows: np.ndarray | slice) -> GroupMetrics:
    """Metrics of some events; ``rows`` is a mask (n,) or a slice."""
    positive, negative = sample.positive[rows], sample.negative[rows]
    n = len(positive)
    if n == 0:
        return GroupMetrics(name, 0)
    ap = float(ap_and_auc(positive[None], negative[None])[0][0])
    win_rate = float(((positive > negative) + 0.5 * (positive == negative)).mean())
    return GroupMetrics(name, n, ap, win_rate, *wilson_interval(win_rate, n))


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """95 % confidence interval of a share of n."""
    z = 1.959964
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return float(max(middle - half, 0.0)), float(min(middle + half, 1.0))


def group_by_novelty(sample: ScoredSample) -> list[GroupMetrics]:
    """Groups by whether the pair is new and whether one of its nodes is new to training."""
    is_new_pair, has_new_node = sample.pair_count == 0, sample.has_new_node
    return [
        group_metrics("repeated pair", sample, ~is_new_pair & ~has_new_node),
        group_metrics("new pair", sample, is_new_pair & ~has_new_node),
        group_metrics("repeated pair with a new node", sample, ~is_new_pair & has_new_node),
        group_metrics("new pair with a new node", sample, is_new_pair & has_new_node),
    ]


def group_by_degree(sample: ScoredSample, degree: np.ndarray) -> list[GroupMetrics]:
    """Groups by the number of earlier events of one end; ``degree`` (n,) is the sample's src_degree or dst_degree."""
    return [group_metrics(name, sample, (degree >= low) & (degree <= high)) for name, low, high in DEGREE_BINS]


def group_by_time(
    sample: ScoredSample, max_groups: int = 12, min_events: int = 25
) -> list[tuple[int, int, GroupMetrics]]:
    """Consecutive groups of about equal size: first and last row, and the metrics of each."""
    n_groups = max(1, min(max_groups, len(sample) // min_events))
    edges = np.linspace(0, len(sample), n_groups + 1).round().astype(int).tolist()
    return [(a, b - 1, group_metrics("", sample, slice(a, b))) for a, b in pairwise(edges)]


# -------------------- curves and extremes


def precision_recall(sample: ScoredSample) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision at every threshold, from the highest score down; tied scores share a threshold."""
    scores = np.concatenate([sample.positive, sample.negative])
    order = np.argsort(-scores, kind="stable")
    is_last = np.append(np.diff(scores[order]) != 0, True)
    n_true = np.cumsum(order < len(sample))[is_last]
    n_accepted = np.arange(1, len(scores) + 1)[is_last]
    recall = np.append(0.0, n_true / max(len(sample), 1))
    return recall, np.append(n_true[:1] / n_accepted[:1], n_true / n_accepted)


def precision_recall_steps(sample: ScoredSample) -> tuple[list[float], list[float]]:
    """`precision_recall` as a step function, for a plot."""
    recall, precision = precision_recall(sample)
    return np.repeat(recall, 2)[1:-1].tolist(), np.repeat(precision[1:], 2).tolist()


def extreme_events(sample: ScoredSample, n: int) -> dict[str, np.ndarray]:
    """Rows of the most surprising events, at most ``n`` of each kind, the most extreme first.

    "hits" are new pairs that score above their negative and above a logit of 0. "misses" are events below 0, "alarms"
    negatives above 0.
    """
    is_hit = (sample.pair_count == 0) & (sample.positive > 0) & (sample.positive > sample.negative)
    return {
        "hits": _largest(sample.positive, is_hit, n),
        "misses": _largest(-sample.positive, sample.positive < 0, n),
        "alarms": _largest(sample.negative, sample.negative > 0, n),
    }


def extreme_margins(sample: ScoredSample, n: int) -> dict[str, np.ndarray]:
    """`extreme_events` of a model that ranks: its scores compare only within one query, so margins replace scores.

    "hits" are new pairs with the largest margins, "misses" are events with the most negative ones.
    """
    margin = sample.margin
    return {
        "hits": _largest(margin, (sample.pair_count == 0) & (margin > 0), n),
        "misses": _largest(-margin, margin < 0, n),
    }


def _largest(values: np.ndarray, mask: np.ndarray, n: int) -> np.ndarray:
    """Rows of the ``n`` largest values where ``mask`` is True, largest first; of tied ones, the earliest."""
    rows = np.flatnonzero(mask)
    return rows[np.argsort(-values[rows], kind="stable")[:n]]
