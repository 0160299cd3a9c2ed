"""Explanations of CorDGT's scores: which context nodes raise or lower them.

`influence_by_distance` averages over many events the first-order influence of each context slot (`Cordgt.influences`;
exact with the linear head, as in the paper's figure). `ablate_context_nodes` explains a few events one by one: it
removes the nodes of largest influence from both trees, one at a time, and scores the pair again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.history.distance import group_by_endpoint, tree_distances
from cordgt.history.queries import Queries
from cordgt.models.base import LinkModel, to_device
from cordgt.models.cordgt import Cordgt, CordgtBatch
from cordgt.tasks.link import LinkTask

MAX_ABLATED = 16  # nodes removed per pair, those of largest influence
MAX_SHOWN = 4  # of them, those that change the score most
BATCH_SIZE = 200  # pairs
N_TD_BINS = 4  # for pairs with an earlier event; pairs without have a group of their own


@dataclass(frozen=True)
class NodeEffect:
    """The effect of one context node on the score of a pair."""

    node: int
    change: float  # logit with the node minus logit without it
    n_hops: tuple[int | None, int | None]  # from the source and from the destination; None: not in that tree


@dataclass(frozen=True)
class InfluenceGrid:
    """Mean influence of context nodes by their distance to the source (rows) and to the destination (columns)."""

    distance: str  # "TD" or "SD"
    group_names: list[str]  # near to far
    mean: np.ndarray  # (G, G) gain of the logit if all slots were like this; NaN for an empty group
    count: np.ndarray  # (G, G)


# -------------------- one by one


def ablate_context_nodes(model: LinkModel, task: LinkTask, queries: Queries) -> list[list[NodeEffect]]:
    """For each pair (one candidate per query), return the nodes that change its score most, largest effect first.

    The lists are empty for other models than CorDGT, and for pairs without history. A root stays in its own tree, but
    is removed from the other end's tree: that shows the effect of the pair's own earlier events.
    """
    if not isinstance(model, Cordgt) or not len(queries.src):
        return [[] for _ in queries.src]
    model.eval()
    with torch.no_grad():  # not inference mode: `influences` needs gradients of these tensors
        node = to_device(
            model.reader.sample(task.full_history, queries.endpoints, queries.cut).node, model.device
        )  # (B, 2, C)
        batch = model.read(task.full_history, queries)
    trees = node.cpu().numpy()
    rows, removed = _nodes_to_remove(model, batch, trees)
    change = _score_changes(model, batch, node, rows, removed)
    hop = model.shape.slot_hop.numpy()
    effects: list[list[NodeEffect]] = [[] for _ in trees]
    for k in np.argsort(-np.abs(change), kind="stable"):
        b = rows[k]
        if len(effects[b]) < MAX_SHOWN:
            n_hops = [int(hop[tree == removed[k]].min()) if (tree == removed[k]).any() else None for tree in trees[b]]
            effects[b].append(NodeEffect(int(removed[k]), float(change[k]), (n_hops[0], n_hops[1])))
    return effects


def _nodes_to_remove(model: Cordgt, batch: CordgtBatch, trees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each pair, the nodes below the roots with the largest influence: rows (K,) and nodes (K,)."""
    influence = torch.cat(model.influences(batch), dim=1).cpu().numpy()  # (B, 2, C)
    rows, removed = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for b, tree in enumerate(trees):
        nodes, slot = np.unique(tree[:, 1:], return_inverse=True)
        total = np.abs(np.bincount(slot.reshape(-1), weights=influence[b, :, 1:].reshape(-1)))
        nodes = nodes[np.argsort(-total, kind="stable")]
        removed.append(nodes[nodes >= 0][:MAX_ABLATED])  # -1 is padding
        rows.append(np.full(len(removed[-1]), b))
    return np.concatenate(rows), np.concatenate(removed)


def _score_changes(
    model: Cordgt, batch: CordgtBatch, node: Tensor, rows: np.ndarray, removed: np.ndarray
) -> np.ndarray:
    """(K,) logit of each row minus its logit without one node. The roots stay."""
    changes = [np.empty(0)]
    with torch.inference_mode():
        whole = model(batch)[:, 0]
        for start in range(0, len(rows), BATCH_SIZE):
            part = slice(start, start + BATCH_SIZE)
            row, out = (torch.from_numpy(x[part]).to(node.device) for x in (rows, removed))
            columns: dict[str, Any] = {key: None if x is None else x[row] for key, x in vars(batch).items()}
            some = replace(batch, **columns)
            valid = some.valid & (node[row] != out[:, None, None])
            valid[..., 0] = some.valid[..., 0]
            without = model(replace(some, valid=valid))[:, 0]
            changes.append((whole[row] - without).double().cpu().numpy())
    return np.concatenate(changes)


# -------------------- by distance


def influence_by_distance(
    model: LinkModel, task: LinkTask, queries: Queries, *, edges: Sequence[float] | None = None
) -> list[InfluenceGrid]:
    """Mean influence by temporal (TD) and by spatial distance (SD) over pairs (one candidate per query).

    The list is empty for other models than CorDGT. ``edges`` are the bin edges of TD, ascending, with both ends; by
    default even ones over the observed range.
    """
    if not isinstance(model, Cordgt) or not len(queries.src):
        return []
    model.eval()
    starts = range(0, len(queries.src), BATCH_SIZE)
    parts = [_slot_influence(model, task, queries.take(slice(k, k + BATCH_SIZE))) for k in starts]
    td, sd, gain = (np.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True))
    options = model.reader.distance_options
    hops = [*map(str, range(model.shape.n_hops + 1)), "absent"]
    sd_group = np.where(sd >= options.sd_unseen, len(hops) - 1, np.minimum(sd, len(hops) - 1))
    return [_grid("TD", *_td_groups(td, options.td_unseen, edges), gain), _grid("SD", sd_group, hops, gain)]


def _slot_influence(model: Cordgt, task: LinkTask, queries: Queries) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """TD and SD (2, S) of every filled slot to source and destination, and its gain (S,)."""
    reader, history = model.reader, task.full_history
    with torch.no_grad():
        trees = reader.sample(history, queries.endpoints, queries.cut)
        td, sd = tree_distances(  # to both ends, even if the model itself uses one (STPE-U)
            history.index, reader.shape, trees, queries.t, queries.pair_cut, reader.distance_options, correlated=True
        )
        batch = model.read(history, queries)
    influence = torch.stack(model.influences(batch), dim=1)[:, :, 0]  # (B, 2, C)
    gain = influence * batch.valid.sum(-1, keepdim=True)  # mean pooling divides by the number of slots
    valid = batch.valid.cpu().numpy()
    slot_td, slot_sd = (group_by_endpoint(x).cpu().numpy()[:, valid] for x in (td, sd))
    return slot_td, slot_sd, gain.detach().cpu().numpy()[valid]


def even_bin_edges(high: float) -> list[float]:
    """The edges of `N_TD_BINS` even bins of TD from 0 to ``high``."""
    return [high * k / N_TD_BINS for k in range(N_TD_BINS + 1)]


def _td_groups(td: np.ndarray, td_unseen: float, edges: Sequence[float] | None) -> tuple[np.ndarray, list[str]]:
    """Group of each TD, and the names of the groups: the bins, then one for pairs without an earlier event.

    Differs: the paper divides the whole range evenly; its "very large" TD of pairs that never met then leaves all
    other pairs in one bin.
    """
    is_seen = td != td_unseen
    digits = 2 if edges is None else 3
    if edges is None:
        edges = even_bin_edges(float(td[is_seen].max(initial=0.0)) or 1.0)
    names = [f"{a:.{digits}g}–{b:.{digits}g}" for a, b in pairwise(edges)]
    group = np.searchsorted(edges[1:-1], td, side="right")
    return np.where(is_seen, group, len(names)), [*names, "never met"]


def _grid(distance: str, group: np.ndarray, names: list[str], gain: np.ndarray) -> InfluenceGrid:
    n = len(names)
    cell = group[0] * n + group[1]
    count = np.bincount(cell, minlength=n * n)
    total = np.bincount(cell, weights=gain, minlength=n * n)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return InfluenceGrid(distance, names, mean.reshape(n, n), count.reshape(n, n))
