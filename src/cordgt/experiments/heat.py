"""What context nodes say of a true pair, by how far they are from either end: the paper's heat maps.

A model with the linear head gives each context node its say: Φ·h of its state h. The nodes of both trees are grouped by
their distance to the source and to the target, and the mean of each group is kept.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.api import Run
from cordgt.errors import SettingError
from cordgt.history import Queries
from cordgt.models.cordgt import Cordgt, Trees

GROUPS = 5  # of TD: as many even ones less one, and those that never met
PAIRS = 5000  # true pairs that are asked about, evenly over the test period
AT_ONCE = 200


def heat(run: Run) -> dict[str, Any]:
    """Mean say and number of context nodes by (distance to the source, distance to the target), for TD and for SD.

    Differs: the paper splits the range of TD evenly into five. Pairs that never met stand far outside the range of
    those that did, so they are a group of their own, and the range of the others is split into four.
    """
    model, task = run.measured()
    if not isinstance(model, Cordgt) or model.head_linear is None or not (model.settings.td and model.settings.sd):
        raise SettingError("A heat map needs CorDGT with the linear head and both distances (--set head=linear).")
    _, asked = task.evaluation_queries("test", "transductive")
    some = torch.linspace(0, len(asked.src) - 1, min(PAIRS, len(asked.src)), device=asked.src.device).long()
    true = Queries(**{name: value[some] for name, value in vars(asked).items()})
    true = replace(true, dst=true.dst[:, :1])
    scale = model.reader.scale
    most = max(model.settings.alpha, model.settings.beta)
    n_sd = scale.absent + 1
    totals = {"td": np.zeros((2, GROUPS, GROUPS)), "sd": np.zeros((2, n_sd, n_sd))}
    with torch.inference_mode():
        for start in range(0, len(true.src), AT_ONCE):
            chunk = Queries(**{name: value[start : start + AT_ONCE] for name, value in vars(true).items()})
            trees = model.read(task.whole, chunk)
            say, valid = _say(model, trees)
            td, sd = (_to_both_ends(x) for x in (trees.td, trees.sd))
            group = (td / most * (GROUPS - 1)).long().clamp(0, GROUPS - 2)
            group = torch.where(td >= scale.never_met, GROUPS - 1, group)
            for name, at in (("td", group), ("sd", sd)):
                _add(totals[name], at, say, valid)
    edges = [most * k / (GROUPS - 1) for k in range(GROUPS)]
    labels = {"td": [*(f"{a:.3g}–{b:.3g}" for a, b in pairwise(edges)), "never met"]}
    kept = [*range(model.shape.hops + 1), scale.absent]  # nothing lies between the last hop and absence
    labels["sd"] = [*map(str, kept[:-1]), "absent"]
    totals["sd"] = totals["sd"][:, kept][:, :, kept]
    maps = {
        name: {"groups": labels[name], "mean": _means(total), "nodes": total[1].astype(int).tolist()}
        for name, total in totals.items()
    }
    return {"pairs": len(true.src), **maps}


def _say(model: Cordgt, trees: Trees) -> tuple[Tensor, Tensor]:
    """Φ·h of every slot of both trees, (B, 2, C), and whether a node stands there. Shares of the mean, undone."""
    source, target = model.shares(trees)  # (B, 1, C) each
    valid = trees.valid  # (B, 2, C)
    return torch.cat([source, target], dim=1) * valid.sum(dim=-1, keepdim=True), valid


def _to_both_ends(x: Tensor) -> Tensor:
    """(B, 4, C) in the order of `distance.relations` to (2, B, 2, C): each tree's to the source, then to the target."""
    return torch.stack([torch.stack([x[:, 0], x[:, 3]], dim=1), torch.stack([x[:, 1], x[:, 2]], dim=1)])


def _add(total: np.ndarray, at: Tensor, say: Tensor, valid: Tensor) -> None:
    """Add sums and counts by group; ``total`` is (2, groups, groups)."""
    n = total.shape[1]
    place = (at[0] * n + at[1])[valid].cpu().numpy()
    total[0] += np.bincount(place, say[valid].double().cpu().numpy(), n * n).reshape(n, n)
    total[1] += np.bincount(place, minlength=n * n).reshape(n, n)


def _means(total: np.ndarray) -> list[list[float | None]]:
    return [[float(s / n) if n else None for s, n in zip(*rows, strict=True)] for rows in zip(*total, strict=True)]
