"""The paper's heat maps: the influence of context nodes on true pairs, by distance to source and target.

With the linear head, the influence of a context node is Φ·h of its state h. The nodes of both context trees are grouped
by their distance to the source and to the target. The result has the mean of each group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from cordgt.analysis.report.influence import even_bin_edges, influence_by_distance
from cordgt.callbacks import Callback
from cordgt.errors import SettingError
from cordgt.experiments.cells import nan_to_none
from cordgt.inference.run import Run
from cordgt.models.cordgt import Cordgt

MAX_PAIRS = 5000  # true pairs, evenly spaced over the test split


def measure_heatmap(run: Run, _: Callback) -> dict[str, Any]:
    """Return mean influence and number of context nodes by (distance to source, distance to target), for TD and SD.

    Differs: the paper splits the range of TD into five equal groups. Pairs that never met are far outside the range of
    the others, so they have their own group, and the possible range of the others is split into four. The possible
    range, not the observed one, gives all seeds the same groups.
    """
    model, task = run.evaluation_task()
    if not isinstance(model, Cordgt) or model.head_linear is None or not (model.settings.td and model.settings.sd):
        raise SettingError("A heat map needs CorDGT with the linear head and both distances (--set head=linear).")
    queries = task.evaluation_queries("test", "transductive")[1]
    evenly = torch.linspace(0, len(queries.src) - 1, min(MAX_PAIRS, len(queries.src)), device=queries.src.device).long()
    pairs = queries.take(evenly)
    pairs = replace(pairs, dst=pairs.dst[:, :1])
    edges = even_bin_edges(max(model.settings.alpha, model.settings.beta))
    maps = {
        grid.distance.lower(): {
            "groups": grid.group_names,
            "mean": [[nan_to_none(value) for value in row] for row in grid.mean.tolist()],
            "nodes": grid.count.tolist(),
        }
        for grid in influence_by_distance(model, task, pairs, edges=edges)
    }
    return {"pairs": len(pairs.src), **maps}
