"""Tables of recommendation metrics, for the console and the report. Does not need torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cordgt.tasks.metrics import LINK_METRICS
from cordgt.tasks.recommendation_metrics import DEGREE_BINS, DESCRIPTIONS, LIFT, NOVELTY, RECALL
from cordgt.tasks.run_metrics import Metric, RunMetrics

RANK_COLUMNS = ("mrr", "hits@10", "ndcg@10")
MISSING = "–"


class RecommendationTable(NamedTuple):
    """A title, the names of the columns, and the rows as text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def recommendation_tables(metrics: RunMetrics) -> list[RecommendationTable]:
    """Return the tables of the last split: the lists of the model and of each baseline, and hits by history.

    Empty if the protocol does not rank all destinations under a filter.
    """
    if not metrics.splits or RECALL not in metrics[metrics.splits[-1]]["transductive"]:
        return []
    split = metrics.splits[-1]
    own: dict[str, Mapping[str, Any]] = {metrics["model"]: metrics[split]["transductive"]}
    own |= {name: splits[split]["transductive"] for name, splits in metrics.baselines.items() if split in splits}
    titles = [LINK_METRICS[name].title for name in RANK_COLUMNS] + [title for title, _ in DESCRIPTIONS.values()]
    rows = [
        [name, *(_format(key, values.get(key)) for key in (*RANK_COLUMNS, *DESCRIPTIONS))]
        for name, values in own.items()
    ]
    lists = RecommendationTable(f"Lists of ten, {split}: {candidates_text(metrics)}", ["", *titles], rows)
    return [lists, *_history_tables(metrics, split, own)]


def _history_tables(metrics: RunMetrics, split: str, own: Mapping[str, Mapping[str, Any]]) -> list[RecommendationTable]:
    groups = [name for name, _, _ in DEGREE_BINS if name in own[metrics["model"]]["by_history"]]
    if not groups:
        return []
    rows = []
    for group in groups:
        by_predictor = [values.get("by_history", {}).get(group, {}) for values in own.values()]
        n_events = Metric.parse(by_predictor[0].get("events")).mean
        events = MISSING if n_events is None else f"{n_events:,.0f}"
        rows.append([group, events, *(_format("hits@10", values.get("hits@10")) for values in by_predictor)])
    title = f"hits@10 by the number of earlier events of the source, {split}"
    return [RecommendationTable(title, ["earlier events", "events", *own], rows)]


def candidates_text(metrics: RunMetrics) -> str:
    """Say which destinations compete, and which events are evaluated."""
    protocol = metrics["protocol"]
    candidates = {
        "known": "all destinations known at the time",
        "seen": "all destinations known at the time, without past partners of the source",
    }.get(protocol.get("filter", "none"), "all destinations")
    return f"{candidates}; new pairs only" if protocol.get("positives") == "new" else candidates


def recommendation_legend() -> str:
    """The definitions of the columns."""
    return " ".join(f"{title}: {text}." for title, text in DESCRIPTIONS.values())


def _format(name: str, value: Any) -> str:
    metric = Metric.parse(value)
    if metric.mean is None:
        return MISSING
    scale = 1 if name in (NOVELTY, LIFT) else 100
    text = f"{scale * metric.mean:.2f}"
    return text if metric.std is None else f"{text} ± {scale * metric.std:.2f}"
