"""What others than the paper's authors report, as data."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from cordgt.experiments import paper


class Published(NamedTuple):
    """A figure and whose it is."""

    value: float
    by: str


@cache
def figures() -> dict[str, Any]:
    """Everything in ``others.json``."""
    found: dict[str, Any] = json.loads(
        (files("cordgt.experiments") / "published_results.json").read_text(encoding="utf-8")
    )
    return found


def best_ap(setting: str, data: str) -> Published | None:
    """The highest AP of link prediction that is published for a dataset, in percent; None where there is none.

    Random negatives; means over batches of 200, and of 30 where it is the paper's own, which stands for CorDGT.
    """
    place = ("transductive", "inductive").index(setting)
    tables = {by: table for by, table in figures()["link_ap_by_batch"].items() if by != "about"}
    found = [Published(table[data][place], by) for by, table in tables.items() if data in table]
    own = paper.link("ap", setting, "cordgt", data)
    found += [] if own is None else [Published(own.mean, "CorDGT's paper")]
    return max(found, default=None)


def leaderboard(data: str) -> tuple[str, list[Published]]:
    """The name of the public ranking of a dataset and its test MRR, best first; nothing where there is none."""
    found = figures()["ranking"].get(data, {"leaderboard": "", "mrr": {}})
    return found["leaderboard"], [Published(value, by) for by, value in found["mrr"].items()]
