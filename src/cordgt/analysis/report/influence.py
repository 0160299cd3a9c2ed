"""What drove CorDGT's scores: its context nodes, by their distances to both ends, and one by one.

Two measures, each where it is honest and cheap. Over many events: what each slot adds to the logit to first order
(`Cordgt.influences`; exact with the linear head, as in the paper's figure). For the few events that are shown one by
one: the nodes of largest influence are taken out of both trees, one at a time, and the pair is scored again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.history.context import Context
from cordgt.history.distance import to_both_ends, tree_distances
from cordgt.history.queries import Queries
from cordgt.models.base import LinkModel, to_device
from cordgt.models.cordgt import Cordgt, Trees
from cordgt.tasks.link import LinkTask

TRIED = 16  # nodes taken out of a pair's trees, those of largest influence
SHOWN = 4  # of them, those that changed the score most
PAIRS_AT_ONCE = 200
TD_GROUPS = 4  # of pairs that have met, besides those that never did


@dataclass(frozen=True)
class Driver:
    """A context node and what it does to the score of a pair."""

    node: int
    change: float  # of the logit: with it, minus without it
    hops: tuple[int | None, int | None]  # from either end's root in its tree; None where it is not in that tree


@dataclass(frozen=True)
class Heat:
    """Mean influence of the context nodes by their distance to the source (rows) and to the destination (columns)."""

    what: str  # "TD" or "SD"
    names: list[str]  # of the groups, near to far
    mean: np.ndarray  # (G, G), NaN where there is no such node: what the logit would gain if all slots were such
    count: np.ndarray  # (G, G)


def drivers(model: LinkModel, task: LinkTask, queries: Queries) -> list[list[Driver]]:
    """For each pair (one candidate a query) the nodes that changed its score most, largest first; [] for other models.

    Neither end itself can be taken out of its own root, but out of the other end's tree it can: that is what the two
    owe to having met. A newcomer without a history has no drivers.
    """
    if not isinstance(model, Cordgt) or not len(queries.src):
        return [[] for _ in queries.src]
    model.eval()
    with torch.no_grad():  # what inference mode makes could not be learnt from, as `influences` does
        node = to_device(model.reader.sample(task.whole, queries.ends, queries.cut).node, model.device)  # (B, 2, C)
        batch = model.read(task.whole, queries)
    who = node.cpu().numpy()
    row, tried = _largest(model, batch, who)
    change = _changes(model, batch, node, row, tried)
    hop = model.shape.hop.numpy()
    return [
        [_driver(who[b], hop, tried[k], change[k]) for k in _most(change, row == b)] for b in range(len(queries.src))
    ]


def _most(change: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Where ``which`` is True, the largest changes, largest first."""
    there = np.flatnonzero(which)
    return there[np.argsort(-np.abs(change[there]), kind="stable")[:SHOWN]]


def _driver(trees: np.ndarray, hop: np.ndarray, node: int, change: float) -> Driver:
    near = [int(hop[tree == node].min()) if (tree == node).any() else None for tree in trees]
    return Driver(int(node), float(change), (near[0], near[1]))


def _largest(model: Cordgt, batch: Trees, node: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which nodes to take out: the row of each and the node, those below the roots with the largest influence."""
    influence = torch.cat(model.influences(batch), dim=1).cpu().numpy()  # (B, 2, C)
    rows, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for b in range(len(node)):
        nodes, which = np.unique(node[b, :, 1:], return_inverse=True)
        total = np.abs(np.bincount(which.reshape(-1), weights=influence[b, :, 1:].reshape(-1)))
        order = np.argsort(-total, kind="stable")
        kept = nodes[order][nodes[order] >= 0][:TRIED]  # -1 is padding
        rows.append(np.full(len(kept), b))
        found.append(kept)
    return np.concatenate(rows), np.concatenate(found)


def _changes(model: Cordgt, batch: Trees, node: Tensor, row: np.ndarray, tried: np.ndarray) -> np.ndarray:
    """What the logit of each row loses without a node: (K,). The roots stay."""
    found = [np.empty(0)]
    with torch.inference_mode():
        whole = model(batch)[:, 0]
        for start in range(0, len(row), PAIRS_AT_ONCE):
            rows, out = (torch.from_numpy(x[start : start + PAIRS_AT_ONCE]).to(node.device) for x in (row, tried))
            some = _each(batch, rows)
            stays = some.valid & (node[rows] != out[:, None, None])
            stays[..., 0] = some.valid[..., 0]
            without = model(replace(some, valid=stays))[:, 0]
            found.append((whole[rows] - without).double().cpu().numpy())
    return np.concatenate(found)


def _each(batch: Trees, rows: Tensor) -> Trees:
    """Some rows of the trees, possibly several times."""
    made: dict[str, Any] = {key: None if x is None else x[rows] for key, x in vars(batch).items()}
    return replace(batch, **made)


# -------------------- by distance


def heats(model: LinkModel, task: LinkTask, queries: Queries, *, edges: Sequence[float] | None = None) -> list[Heat]:
    """Influence by temporal and by spatial distance over true pairs (one candidate a query); none for other models.

    ``edges``: between the groups of TD, ascending, with both ends; by default even ones over what is found.
    """
    if not isinstance(model, Cordgt) or not len(queries.src):
        return []
    model.eval()
    parts = []
    for start in range(0, len(queries.src), PAIRS_AT_ONCE):
        parts.append(_by_slot(model, task, queries.take(slice(start, start + PAIRS_AT_ONCE))))
    td, sd, gain = (np.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True))
    scale = model.reader.scale
    hops = [*map(str, range(model.shape.hops + 1)), "absent"]
    place = np.where(sd >= scale.absent, len(hops) - 1, np.minimum(sd, len(hops) - 1))
    return [_heat("TD", *_td_groups(td, scale.never_met, edges), gain), _heat("SD", place, hops, gain)]


def _by_slot(model: Cordgt, task: LinkTask, queries: Queries) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """TD and SD (2, S) of every slot to source and destination, and its gain (S,), over the slots that are filled."""
    reader, history = model.reader, task.whole
    with torch.no_grad():
        trees: Context = reader.sample(history, queries.ends, queries.cut)
        td, sd = tree_distances(  # to both ends, also where the model itself is told of one (STPE-U)
            history.index, reader.shape, trees, queries.t, queries.pair_cut, reader.scale, correlated=True
        )
        batch = model.read(history, queries)
    influence = torch.stack(model.influences(batch), dim=1)[:, :, 0]  # (B, 2, C)
    gain = influence * batch.valid.sum(-1, keepdim=True)  # a mean over the slots has their number in it
    valid = batch.valid.cpu().numpy()
    of_td, of_sd = (to_both_ends(x).cpu().numpy()[:, valid] for x in (td, sd))
    return of_td, of_sd, gain.detach().cpu().numpy()[valid]


def even_edges(most: float) -> list[float]:
    """The edges of `TD_GROUPS` even groups of TD from 0 to ``most``."""
    return [most * k / TD_GROUPS for k in range(TD_GROUPS + 1)]


def _td_groups(td: np.ndarray, never_met: float, edges: Sequence[float] | None) -> tuple[np.ndarray, list[str]]:
    """The group of each pair that met, by ``edges`` or evenly over their range, and one for the others; their names.

    Differs: the paper parts the whole range evenly, where "very large" for pairs that never met leaves the rest in one.
    """
    met = td != never_met
    digits = 2 if edges is None else 3  # what is merely found needs no more
    edges = even_edges(float(td[met].max(initial=0.0)) or 1.0) if edges is None else edges
    place = np.searchsorted(edges[1:-1], td, side="right")
    names = [f"{a:.{digits}g}–{b:.{digits}g}" for a, b in pairwise(edges)]
    return np.where(met, place, len(names)), [*names, "never met"]


def _heat(what: str, place: np.ndarray, names: list[str], gain: np.ndarray) -> Heat:
    n = len(names)
    cell = place[0] * n + place[1]
    count = np.bincount(cell, minlength=n * n)
    total = np.bincount(cell, weights=gain, minlength=n * n)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return Heat(what, names, mean.reshape(n, n), count.reshape(n, n))
