"""Hide the events of some training candidates, so that a model learns to score new nodes (cold start).

Without it a model hardly ever sees a new node that is a true destination: it learns that few events mean a low score,
and not what the features of a new node are worth. The candidate ``v`` of a stream of N nodes is replaced by ``v + N``,
an id past the last node: every lookup finds no events there. `with_hidden_nodes` gives it the features of ``v``.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cordgt.history import rng
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries

_HIDDEN_TAG = 0x686964  # makes these draws independent of the others


def with_hidden_nodes(history: History) -> History:
    """Return the history with features for ids past the last node: ``v + N`` has those of ``v``."""
    node_x = history.node_x
    if node_x is None or len(node_x) > history.index.n_nodes:  # no features, or done already
        return history
    return replace(history, node_x=node_x.repeat(2, 1))


def hide_candidates(
    index: TemporalIndex, queries: Queries, position: Tensor, *, key: Tensor | int, share: float
) -> Queries:
    """Replace a share of the candidates ``v`` by ``v + N``, true destinations and negatives alike.

    A candidate that has met the source before ``cut`` is never hidden, because a new node has met nobody. Among the
    others, true destinations and negatives are hidden equally often, so being hidden says nothing about the label. The
    draws are hashes of ``key`` and the event's ``position`` (B,).
    """
    met = index.pair_interactions(queries.src.unsqueeze(-1), queries.dst, queries.cut.unsqueeze(-1))[0] > 0
    keys = rng.fold_in(rng.fold_in(key, position), torch.full_like(position, _HIDDEN_TAG)).unsqueeze(-1)
    keys = rng.fold_in(keys, torch.arange(queries.dst.shape[1], device=position.device))  # (B, M)
    is_hidden = (rng.uniform(keys) <= share) & ~met & (queries.dst != queries.src.unsqueeze(-1))
    return replace(queries, dst=torch.where(is_hidden, queries.dst + index.n_nodes, queries.dst))
