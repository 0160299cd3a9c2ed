"""Results published by others than the paper's authors, read from ``published_results.json``."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from cordgt.experiments import paper


class PublishedResult(NamedTuple):
    """A value and who published it."""

    value: float
    source: str


@cache
def load_published() -> dict[str, Any]:
    """Return the content of ``published_results.json``."""
    text = (files("cordgt.experiments") / "published_results.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def best_ap(setting: str, data: str) -> PublishedResult | None:
    """Return the highest published link prediction AP of a dataset, in percent; None if there is none.

    Random negatives; mean over batches of 200, or of 30 for CorDGT's own paper.
    """
    column = ("transductive", "inductive").index(setting)
    tables = {source: table for source, table in load_published()["link_ap_by_batch"].items() if source != "about"}
    results = [PublishedResult(table[data][column], source) for source, table in tables.items() if data in table]
    own = paper.link_result("ap", setting, "cordgt", data)
    if own is not None:
        results.append(PublishedResult(own.mean, "CorDGT's paper"))
    return max(results, default=None)


def best_ap_by_negatives(setting: str, negatives: str, data: str) -> PublishedResult | None:
    """Return the highest published AP of a dataset with a kind of negatives, in percent, mean over batches of 200."""
    entry = load_published()["link_ap_by_negatives"][setting].get(data)
    return None if entry is None else PublishedResult(*entry[negatives])


def has_published_size(data: str, nodes: int, events: int) -> bool:
    """Return whether a stream has as many nodes and events as the published dataset of that name."""
    return paper.has_published_size(data, nodes, events) or load_published()["sizes"].get(data) == [nodes, events]


class LeaderboardEntry(NamedTuple):
    """A row of a public leaderboard."""

    name: str
    mrr: float  # 0-1
    visibility: str  # what its public code sees: "event", "batch" or "mixed"; empty if not known


def leaderboard(data: str) -> tuple[str, list[LeaderboardEntry]]:
    """Return the name of a dataset's public leaderboard and its rows, best first; empty if there is none."""
    entry = load_published()["ranking"].get(data, {"leaderboard": "", "mrr": {}, "visibility": {}})
    visibility = entry["visibility"]
    rows = [LeaderboardEntry(name, mrr, visibility.get(name, "")) for name, mrr in entry["mrr"].items()]
    return entry["leaderboard"], rows
