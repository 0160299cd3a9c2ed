"""Metrics of link prediction: average precision, area under the ROC curve, mean reciprocal rank, hits.

AP and AUC equal those of scikit-learn: ties count fairly and the order of the scores does not matter. They are computed
for many batches at once. Near-equal scores are made equal before (`cordgt.tasks.ties`).

A metric is one function, registered by `register_metric`. Evaluation, metrics.json, the tables, the report, `compare`
and the setting ``monitor`` take it from `LINK_METRICS`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cordgt.errors import CordgtError, PluginWarning, SettingError
from cordgt.plugins import Registry, check_inputs, first_line

HITS = (1, 3, 10)
# Metrics of one split and setting; None if they are not defined. Besides the names of `LINK_METRICS`:
# "events", the number of true events; "random_negatives", how many negatives are random because the source has none of
# the requested kind (absent with random negatives); "unknown_destinations", how many events a filtered ranking leaves
# out. Where destinations are recommended, also those of `RecommendationLists.metrics`.
LinkMetrics = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class SplitScores:
    """Scores of one split, in stream order. A metric is a function of this."""

    positive: np.ndarray = field(default_factory=lambda: np.empty(0))  # (n,) scores of the true events
    negative: np.ndarray = field(default_factory=lambda: np.empty(0))  # (n,) scores of one negative per event
    batch_size: int = 30  # of the means over batches; batches are counted from the first event, the last may be shorter
    ranks: np.ndarray = field(default_factory=lambda: np.empty(0))  # (n,) rank of each true destination, 1 is best

    @cached_property
    def ap_auc(self) -> tuple[float, float]:
        """AP and AUC over the whole split."""
        ap, auc = ap_and_auc(self.positive[None], self.negative[None])
        return float(ap[0]), float(auc[0])

    @cached_property
    def batch_ap_auc(self) -> tuple[float, float]:
        """AP and AUC, each as the mean over batches."""
        size = self.batch_size
        full = len(self.positive) - len(self.positive) % size  # full batches are rows of one array
        rows = [(x[:full].reshape(-1, size), x[full:].reshape(1, -1)) for x in (self.positive, self.negative)]
        batches = [ap_and_auc(p, q) for p, q in zip(*rows, strict=True) if p.size]
        ap, auc = (np.concatenate(values) for values in zip(*batches, strict=True))
        return float(ap.mean()), float(auc.mean())

    def resample(self, count: np.ndarray) -> SplitScores:
        """Return the scores with event i ``count[i]`` times, in the same order."""
        rows = np.repeat(np.arange(len(count)), count.astype(np.int64))
        some = (x[rows] if len(x) else x for x in (self.positive, self.negative, self.ranks))
        positive, negative, ranks = some
        return SplitScores(positive, negative, self.batch_size, ranks)


class LinkMetric(NamedTuple):
    """One metric of link prediction."""

    title: str  # the column of a table; {batch} is replaced by the protocol's
    description: str  # what it is, after "TITLE: "
    compute: Callable[[SplitScores], float]  # called with at least one event
    needs_ranks: bool = False  # True: computed only where the protocol ranks candidates
    checks_baselines: bool = False  # True: a model that is worse than a baseline in it is reported
    in_tables: bool = True
    in_summary: bool = True  # True: shown after each epoch and in comparisons of runs
    higher_is_better: bool = True
    is_share: bool = True  # True: from 0 to 1, shown in percent; False: any number, shown as it is

    @property
    def scale(self) -> float:
        """Factor of the numbers that people see: 100 for a percentage."""
        return 100.0 if self.is_share else 1.0

    @property
    def unit(self) -> str:
        """Text after a number: `` %`` or nothing."""
        return " %" if self.is_share else ""

    @property
    def points(self) -> str:
        """Text after a difference: `` points`` of a percentage, or nothing."""
        return " points" if self.is_share else ""

    def format(self, value: float, sign: str = "") -> str:
        """Format a value for people, without the unit; ``sign="+"`` shows the sign of a difference."""
        return f"{self.scale * value:{sign}.2f}" if self.is_share else f"{value:{sign}.4g}"

    def is_better(self, a: float, b: float) -> bool:
        """Return whether the value ``a`` is better than ``b``."""
        return a > b if self.higher_is_better else a < b


def ndcg(ranks: np.ndarray, k: int = 10) -> float:
    """Return the normalized discounted cumulative gain at ``k`` of queries with one true destination each."""
    return float(np.where(ranks <= k, 1 / np.log2(1 + ranks), 0.0).mean())


METRIC_INPUTS = ("positive", "negative", "ranks", "batch_size")
_INTERNAL_INPUTS = ("ap_auc", "batch_ap_auc")  # shared by metrics of cordgt
_RESERVED_NAMES = (  # of other facts and columns
    "events", "random_negatives", "unknown_destinations", "split", "setting", "predictor", "name",
)  # fmt: skip


def make_metric(name: str, function: Callable[..., Any], **options: Any) -> LinkMetric:
    """Return the metric that a function defines. Options as in `register_metric`; SettingError for unknown inputs."""
    inputs = check_inputs("metric", name, function, METRIC_INPUTS, _INTERNAL_INPUTS)
    needs_ranks = "ranks" in inputs
    if needs_ranks and len(set(inputs) - {"ranks", "batch_size"}):
        raise SettingError(f"The metric '{name}' needs ranks and scores. Use either ranks, or positive and negative.")

    def compute(scores: SplitScores) -> float:
        given = {key: getattr(scores, key) for key in inputs}
        # copies: a function that sorts its input in place must not change the other metrics
        return float(function(**{key: x.copy() if isinstance(x, np.ndarray) else x for key, x in given.items()}))

    title, description = options.pop("title", None) or name, options.pop("description", None) or first_line(function)
    if not options.get("higher_is_better", True):
        description = f"{description}; lower is better" if description else "lower is better"
    return LinkMetric(title, description or "no description", compute, needs_ranks=needs_ranks, **options)


# fmt: off
LINK_METRICS: Registry[LinkMetric] = Registry("metric", {
    "ap": make_metric(
        "ap", lambda ap_auc: ap_auc[0], title="AP", description="average precision over the whole split",
        checks_baselines=True,
    ),
    "auc": make_metric(
        "auc", lambda ap_auc: ap_auc[1], title="AUC", description="area under the ROC curve over the whole split",
        checks_baselines=True,
    ),
    "ap_batch": make_metric(
        "ap_batch", lambda batch_ap_auc: batch_ap_auc[0], title="AP/{batch}",
        description="mean of AP over batches of {batch} events, as papers report it", in_summary=False,
    ),
    "auc_batch": make_metric(
        "auc_batch", lambda batch_ap_auc: batch_ap_auc[1], title="AUC/{batch}",
        description="mean of AUC over batches of {batch} events, as papers report it", in_summary=False,
    ),
    "mrr": make_metric(
        "mrr", lambda ranks: (1.0 / ranks).mean(), title="MRR",
        description="mean reciprocal rank of the true destination", checks_baselines=True,
    ),
    **{
        f"hits@{k}": make_metric(
            f"hits@{k}", lambda ranks, k=k: (ranks <= k).mean(), title=f"hits@{k}",
            description=f"share of true destinations at rank {k} or better", in_tables=k == 10, in_summary=False,
        )
        for k in HITS
    },
    "ndcg@10": make_metric(
        "ndcg@10", lambda ranks: ndcg(ranks), title="NDCG@10",
        description="1 / log2(1 + rank) of true destinations at rank 10 or better, else 0; mean over the events",
        in_tables=False, in_summary=False,
    ),
}, lambda name, function: register_metric(name)(function), _RESERVED_NAMES)
# fmt: on


def register_metric(
    name: str,
    *,
    title: str | None = None,
    description: str | None = None,
    higher_is_better: bool = True,
    is_share: bool = True,
    checks_baselines: bool = False,
) -> Callable[[F], F]:
    """Register a function as a metric. Its parameters choose what it gets, by name; it returns a number.

    ``positive`` and ``negative`` are logits (n,) of the true events and of one negative each, in stream order.
    ``ranks`` (n,) are ranks of the true destinations, 1 is best; such a metric exists only where the protocol ranks
    candidates. ``batch_size`` is that of the evaluation. The function is called with at least one event.

    Args:
        name: the key in metrics.json, and the value of ``--set monitor=NAME``.
        title: the column of a table; the default is the name.
        description: the definition below a table; the default is the first line of the docstring.
        higher_is_better: False for losses and mean ranks.
        is_share: the metric lies between 0 and 1 and is shown in percent. False: any number, shown as it is.
        checks_baselines: say so if the model is worse than a trivial baseline in this metric.

    Examples:
        >>> @cordgt.register_metric("mean_margin", is_share=False)
        ... def mean_margin(positive, negative):
        ...     "Mean difference of the logits of an event and its negative."
        ...     return float((positive - negative).mean())
        >>> run = cordgt.train("purchases.csv", "counts", epochs=1)
        >>> "mean_margin" in run.metrics["test"]["transductive"]
        True
    """
    LINK_METRICS.check_name(name)

    def register(function: F) -> F:
        metric = make_metric(
            name,
            function,
            title=title,
            description=description,
            higher_is_better=higher_is_better,
            is_share=is_share,
            checks_baselines=checks_baselines,
        )
        LINK_METRICS.add(name, metric, function)
        return function

    return register


def link_metrics(positive: np.ndarray, negative: np.ndarray, batch_size: int = 30) -> LinkMetrics:
    """Return the metrics of scores of true events and of one negative for each, in stream order. Shapes: (n,), (n,).

    All are None if n is 0.
    """
    n = len(positive)
    return _compute(SplitScores(positive, negative, batch_size), n, needs_ranks=False) | {"events": n}


def ranking_metrics(ranks: np.ndarray) -> LinkMetrics:
    """Return ``mrr`` and ``hits@k`` of ranks (n,), 0-1; None if n is 0."""
    return _compute(SplitScores(ranks=ranks), len(ranks), needs_ranks=True)


def _compute(scores: SplitScores, n: int, *, needs_ranks: bool) -> LinkMetrics:
    names = [name for name, metric in LINK_METRICS.items() if metric.needs_ranks == needs_ranks]
    return {name: compute_metric(name, scores) if n else None for name in names}


def compute_metric(name: str, scores: SplitScores) -> float | None:
    """Return a metric of at least one event; None, with a warning, if a plug-in's metric is not a usable number.

    SettingError that names the metric if its function fails.
    """
    metric = LINK_METRICS[name]
    if LINK_METRICS.is_built_in(name):
        return metric.compute(scores)
    try:
        value = metric.compute(scores)
    except CordgtError:
        raise
    except Exception as error:
        raise SettingError(f"The metric '{name}' failed: {type(error).__name__}: {error}") from error
    problem = ""
    if not math.isfinite(value):
        problem = "which is not a finite number"
    elif metric.is_share and not -1e-9 <= value <= 1 + 1e-9:
        problem = "which is not between 0 and 1; register it with is_share=False"
    if problem:
        warnings.warn(
            f"The metric '{name}' is {value:g}, {problem}. It is left undefined.", PluginWarning, stacklevel=2
        )
        return None
    return value


def summary_metrics(*, ranks: bool) -> list[str]:
    """Return the metrics that comparisons of runs show: without those that need ranks unless ``ranks``."""
    return [name for name, metric in LINK_METRICS.items() if metric.in_summary and (ranks or not metric.needs_ranks)]


def is_constant(metrics: Mapping[str, Any]) -> bool:
    """Return True if every pair of a split has the same score: AP and AUC are then exactly one half.

    A split of a handful of pairs can reach that by chance. False if the metrics are not defined.
    """
    return metrics["ap"] == 0.5 and metrics["auc"] == 0.5


def ap_and_auc(positive: np.ndarray, negative: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return AP and AUC of each row, (R,) and (R,). Scores: (R, P) and (R, N), P and N at least 1."""
    scores = np.concatenate([positive, negative], axis=1)
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=1)
    is_true = order < positive.shape[1]
    places = np.arange(scores.shape[1])
    last_of_tie = np.ones_like(is_true)
    last_of_tie[:, :-1] = ranked[:, 1:] != ranked[:, :-1]
    # the last place of each tie: a threshold at this score accepts everything up to there
    end = np.minimum.accumulate(np.where(last_of_tie, places, scores.shape[1])[:, ::-1], axis=1)[:, ::-1]
    n_true_through = np.take_along_axis(np.cumsum(is_true, axis=1), end, axis=1)
    ap = np.where(is_true, n_true_through / (end + 1), 0.0).sum(axis=1) / positive.shape[1]
    first_of_tie = np.ones_like(is_true)
    first_of_tie[:, 1:] = last_of_tie[:, :-1]
    start = np.maximum.accumulate(np.where(first_of_tie, places, 0), axis=1)
    rank_from_below = scores.shape[1] - (start + end) / 2  # 1 = lowest score, ties share their mean rank
    n_pos, n_neg = positive.shape[1], negative.shape[1]
    above = np.where(is_true, rank_from_below, 0.0).sum(axis=1) - n_pos * (n_pos + 1) / 2
    return ap, above / (n_pos * n_neg)
