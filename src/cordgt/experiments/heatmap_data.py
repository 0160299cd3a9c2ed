"""What context nodes say of a true pair, by how far they are from either end: the paper's heat maps.

A model with the linear head gives each context node its say: Φ·h of its state h. The nodes of both trees are grouped by
their distance to the source and to the target, and the mean of each group is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from cordgt.analysis.report.influence import even_edges, heats
from cordgt.errors import SettingError
from cordgt.inference.run import Run
from cordgt.models.cordgt import Cordgt

PAIRS = 5000  # true pairs that are asked about, evenly over the test period


def heat(run: Run) -> dict[str, Any]:
    """Mean say and number of context nodes by (distance to the source, distance to the target), for TD and for SD.

    Differs: the paper splits the range of TD evenly into five. Pairs that never met stand far outside the range of
    those that did, so they are a group of their own, and the range of the others is split into four: all that it can
    be, not what is found, so that seeds have the same groups.
    """
    model, task = run.evaluation_task()
    if not isinstance(model, Cordgt) or model.head_linear is None or not (model.settings.td and model.settings.sd):
        raise SettingError("A heat map needs CorDGT with the linear head and both distances (--set head=linear).")
    _, asked = task.evaluation_queries("test", "transductive")
    some = torch.linspace(0, len(asked.src) - 1, min(PAIRS, len(asked.src)), device=asked.src.device).long()
    true = asked.take(some)
    true = replace(true, dst=true.dst[:, :1])
    found = heats(model, task, true, edges=even_edges(max(model.settings.alpha, model.settings.beta)))
    maps = {
        each.what.lower(): {"groups": each.names, "mean": _or_none(each.mean), "nodes": each.count.tolist()}
        for each in found
    }
    return {"pairs": len(true.src), **maps}


def _or_none(mean: np.ndarray) -> list[list[float | None]]:
    """As JSON may hold it."""
    return [[value if np.isfinite(value) else None for value in row] for row in mean.tolist()]
