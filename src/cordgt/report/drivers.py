"""What drove CorDGT's scores: its context nodes, by their distances to both ends, and one by one.

Two measures, each where it is honest and cheap. Over many events: what each slot adds to the logit to first order
(`Cordgt.influences`; exact with the linear head, as in the paper's figure). For the few events that are shown one by
one: the nodes of largest influence are taken out of both trees, one at a time, and the pair is scored again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.context import Context
from cordgt.distance import tree_distances
from cordgt.history import Queries
from cordgt.models.base import LinkModel
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
    if not isinstance(model, Cordgt):
        return [[] for _ in queries.src]
    model.eval()
    return [_taken_out(model, task, one) for one in _one_by_one(queries)]


def _taken_out(model: Cordgt, task: LinkTask, query: Queries) -> list[Driver]:
    with torch.inference_mode():
        node = model.reader.sample(task.whole, query.ends, query.cut).node[0]  # (2, C)
        batch = model.reader.pairs(task.whole, query)
    tried = _largest(model, batch, node)
    if not len(tried):
        return []
    with torch.inference_mode():
        is_it = node[None, :, 1:] == tried[:, None, None]  # (K, 2, C-1); the roots stay
        valid = batch.valid.expand(len(tried), -1, -1).clone()
        valid[:, :, 1:] &= ~is_it
        many = _each(batch, lambda x: x.expand(len(tried), *x.shape[1:]))
        without = torch.cat([model(_part(replace(many, valid=valid), i)) for i in range(0, len(tried), PAIRS_AT_ONCE)])
        change = (model(batch) - without)[:, 0].double().cpu().numpy()
    hop = model.shape.hop_on(node.device)
    found = []
    for k in np.argsort(-np.abs(change), kind="stable")[:SHOWN]:
        at = node == tried[k]
        near = [int(hop[at[end]].min()) if bool(at[end].any()) else None for end in (0, 1)]
        found.append(Driver(int(tried[k]), float(change[k]), (near[0], near[1])))
    return found


def _largest(model: Cordgt, batch: Trees, node: Tensor) -> Tensor:
    """The nodes below the roots whose slots have the largest influence together, (K,), largest first."""
    influence = torch.cat(model.influences(batch), dim=1)[0]  # (2, C)
    below, size = node[:, 1:].reshape(-1), influence[:, 1:].reshape(-1)
    nodes, which = torch.unique(below, return_inverse=True)
    total = torch.zeros(len(nodes), dtype=size.dtype, device=size.device).index_add_(0, which, size).abs()
    total[nodes < 0] = -1.0  # padding
    order = total.argsort(descending=True, stable=True)[:TRIED]
    return nodes[order[total[order] >= 0]]


def _part(batch: Trees, start: int) -> Trees:
    return _each(batch, lambda x: x[start : start + PAIRS_AT_ONCE])


def _each(batch: Trees, change: Callable[[Tensor], Tensor]) -> Trees:
    """The trees with all their arrays changed alike."""
    made: dict[str, Any] = {key: None if x is None else change(x) for key, x in vars(batch).items()}
    return Trees(**made)


def _one_by_one(queries: Queries) -> Iterator[Queries]:
    for i in range(len(queries.src)):
        yield Queries(**{name: value[i : i + 1] for name, value in vars(queries).items()})


# -------------------- by distance


def heats(model: LinkModel, task: LinkTask, queries: Queries) -> list[Heat]:
    """Influence by temporal and by spatial distance over true pairs (one candidate a query); none for other models."""
    if not isinstance(model, Cordgt) or not len(queries.src):
        return []
    model.eval()
    parts = []
    for start in range(0, len(queries.src), PAIRS_AT_ONCE):
        some = Queries(**{name: value[start : start + PAIRS_AT_ONCE] for name, value in vars(queries).items()})
        parts.append(_by_slot(model, task, some))
    td, sd, gain = (np.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True))
    scale = model.reader.scale
    hops = [*map(str, range(model.shape.hops + 1)), "absent"]
    place = np.where(sd >= scale.absent, len(hops) - 1, np.minimum(sd, len(hops) - 1))
    return [_heat("TD", *_td_groups(td, scale.never_met), gain), _heat("SD", place, hops, gain)]


def _by_slot(model: Cordgt, task: LinkTask, queries: Queries) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """TD and SD (2, S) of every slot to source and destination, and its gain (S,), over the slots that are filled."""
    reader, history = model.reader, task.whole
    with torch.inference_mode():
        trees: Context = reader.sample(history, queries.ends, queries.cut)
        td, sd = tree_distances(  # to both ends, also where the model itself is told of one (STPE-U)
            history.index, reader.shape, trees, queries.t, queries.pair_cut, reader.scale, correlated=True
        )
        batch = reader.pairs(history, queries)
    influence = torch.stack(model.influences(batch), dim=1)[:, :, 0]  # (B, 2, C)
    gain = influence * batch.valid.sum(-1, keepdim=True)  # a mean over the slots has their number in it
    own = torch.tensor([0, 3], device=td.device), torch.tensor([1, 2], device=td.device)  # `distance.relations`
    valid = batch.valid.cpu().numpy()
    both = [[x[:, of].cpu().numpy()[valid] for of in own] for x in (td, sd)]
    return np.stack(both[0]), np.stack(both[1]), gain.detach().cpu().numpy()[valid]


def _td_groups(td: np.ndarray, never_met: float) -> tuple[np.ndarray, list[str]]:
    """Even groups over the range of those that met, and one for the others.

    Differs: the paper parts the whole range evenly, where "very large" for pairs that never met leaves the rest in one.
    """
    met = td != never_met
    most = float(td[met].max(initial=0.0)) or 1.0
    place = np.minimum((td / most * TD_GROUPS).astype(np.int64), TD_GROUPS - 1)
    edges = [most * k / TD_GROUPS for k in range(TD_GROUPS + 1)]
    names = [f"{a:.2g}–{b:.2g}" for a, b in pairwise(edges)]
    return np.where(met, place, TD_GROUPS), [*names, "never met"]


def _heat(what: str, place: np.ndarray, names: list[str], gain: np.ndarray) -> Heat:
    n = len(names)
    cell = place[0] * n + place[1]
    count = np.bincount(cell, minlength=n * n)
    total = np.bincount(cell, weights=gain, minlength=n * n)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return Heat(what, names, mean.reshape(n, n), count.reshape(n, n))
