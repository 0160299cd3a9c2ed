"""The paper's results, read from ``paper.json``: percent, mean and standard deviation over its three runs."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from cordgt.io.datasets.registry import KNOWN_DATASETS


class Reported(NamedTuple):
    """A result of the paper, in percent."""

    mean: float
    std: float


# The rows of the paper's tables, in their order.
LINK_MODELS = ("jodie", "dyrep", "tgat", "tgn", "cawn", "tgsrec", "tcl", "graphmixer", "cordgt")
LINK_DATASETS = ("reddit", "wikipedia", "lastfm", "uci", "enron", "social_evolution", "flights")
ABLATION_DATASETS = ("reddit", "wikipedia", "lastfm", "uci")
NODE_DATASETS = ("wikipedia", "reddit")


@cache
def load_paper() -> dict[str, Any]:
    """Return the content of ``paper.json``."""
    content: dict[str, Any] = json.loads((files("cordgt.experiments") / "paper.json").read_text(encoding="utf-8"))
    return content


def link_result(metric: str, setting: str, model: str, data: str) -> Reported | None:
    """Return AP or AUC of link prediction (Table 1 and the appendix); None if the paper has none."""
    return _reported(load_paper()["link"][metric][setting].get(model, {}).get(data))


def ablation_result(metric: str, row: str, data: str) -> Reported | None:
    """Return inductive AP or AUC of a row of the ablation table (Table 2)."""
    return _reported(load_paper()["ablation"].get(row, {}).get(data, {}).get(metric))


def node_auc(model: str, data: str) -> Reported | None:
    """Return the AUC of node classification."""
    return _reported(load_paper()["node_auc"].get(model, {}).get(data))


def epoch_seconds(model: str, data: str) -> float | None:
    """Return the seconds of an epoch, if the paper's text has them; measured on the GPU ``epoch_gpu``."""
    seconds = load_paper()["epoch_seconds"].get(data, {})
    return next((float(v) for k, v in seconds.items() if k.lower() == model), None)


def has_published_size(data: str, n_nodes: int, n_events: int) -> bool:
    """Return whether a stream has the size of the paper's dataset of that name, so that results can be compared.

    Features are not compared: a note says where they are missing.
    """
    known = KNOWN_DATASETS.get(data)
    return known is not None and known.in_paper and (known.nodes, known.links) == (n_nodes, n_events)


def _reported(values: Any) -> Reported | None:
    return None if values is None else Reported(float(values[0]), float(values[1]))
