"""What the paper reports, as data: percent, mean and standard deviation over its three runs."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from cordgt.io.datasets.registry import KNOWN


class Reported(NamedTuple):
    """A figure of the paper's, in percent."""

    mean: float
    std: float


# The rows of its tables, in their order, by our names.
LINK_MODELS = ("jodie", "dyrep", "tgat", "tgn", "cawn", "tgsrec", "tcl", "graphmixer", "cordgt")
LINK_DATASETS = ("reddit", "wikipedia", "lastfm", "uci", "enron", "social_evolution", "flights")
ABLATION_DATASETS = ("reddit", "wikipedia", "lastfm", "uci")
NODE_DATASETS = ("wikipedia", "reddit")


@cache
def figures() -> dict[str, Any]:
    """Everything in ``paper.json``."""
    found: dict[str, Any] = json.loads((files("cordgt.experiments") / "paper.json").read_text(encoding="utf-8"))
    return found


def link(metric: str, setting: str, model: str, data: str) -> Reported | None:
    """AP or AUC of link prediction (its Table 1, and that of its appendix); None where it has none."""
    return _reported(figures()["link"][metric][setting].get(model, {}).get(data))


def ablation(metric: str, row: str, data: str) -> Reported | None:
    """Inductive AP or AUC of a row of its ablation table."""
    return _reported(figures()["ablation"].get(row, {}).get(data, {}).get(metric))


def node_auc(model: str, data: str) -> Reported | None:
    """AUC of node classification."""
    return _reported(figures()["node_auc"].get(model, {}).get(data))


def epoch_seconds(model: str, data: str) -> float | None:
    """Seconds of an epoch, where its text says them; on the GPU of `figures` ``epoch_gpu``."""
    found = figures()["epoch_seconds"].get(data, {})
    return next((float(v) for k, v in found.items() if k.lower() == model), None)


def is_published(data: str, nodes: int, events: int) -> bool:
    """Whether a stream has the size of the dataset of that name in the paper, so that its figures may stand beside.

    Features are not compared: a table says where they are missing.
    """
    known = KNOWN.get(data)
    return known is not None and known.in_paper and (known.nodes, known.links) == (nodes, events)


def _reported(values: Any) -> Reported | None:
    return None if values is None else Reported(float(values[0]), float(values[1]))
