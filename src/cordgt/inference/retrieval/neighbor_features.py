"""Features of a candidate's latest events: how its latest partners relate to the candidate and to the source.

They show the first scorer what a model with sampled trees reads: the neighbors of both ends, and what these have in
common. All are pure functions of ``cut``. Counts and ages enter as in `cordgt.history.pair_features`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cordgt.history.index import TemporalIndex
from cordgt.history.pair_features import LOG_SCALE
from cordgt.history.queries import Queries
from cordgt.history.recent import recent_events

N_RECENT = 8  # latest events of either end
NEIGHBOR_COLUMNS = (
    "age of the candidate's event", "events of the partner", "events of the partner with the candidate",
    "events of the partner with the source", "events of the partner with the source's latest partners",
)  # fmt: skip
NEIGHBOR_DIM = len(NEIGHBOR_COLUMNS) * N_RECENT  # F, columns of `neighbor_features`


def neighbor_features(index: TemporalIndex, queries: Queries) -> Tensor:
    """Return the `NEIGHBOR_COLUMNS` of each candidate's latest events, the latest first: (B, M, F) float32.

    0 where there are fewer events. A pair costs `N_RECENT` squared lookups of pairs, whatever the size of the stream.
    """
    candidate = queries.dst.unsqueeze(-1)  # (B, M, 1)
    source, t, cut = (x[:, None, None] for x in (queries.src, queries.t, queries.cut))  # (B, 1, 1)
    pair_cut = queries.pair_cut[:, None, None]
    recent = recent_events(index, queries.dst, t[..., 0], cut[..., 0], N_RECENT)  # (B, M, K)
    own = recent_events(index, queries.src, queries.t, queries.cut, N_RECENT).node[:, None, None]  # (B, 1, 1, K)
    partner = recent.node
    shared = index.pair_interactions(partner.unsqueeze(-1), own, pair_cut.unsqueeze(-1))[0]  # (B, M, K, K)
    age = torch.where(t > 0, recent.elapsed / t.clamp_min(1e-300) * cut, 0.0)
    counts = [
        index.degree(partner, cut),
        index.pair_interactions(partner, candidate, pair_cut)[0],
        index.pair_interactions(partner, source, pair_cut)[0],
    ]
    columns = [torch.log1p(x.float()) for x in (age, *counts)]
    columns.append(torch.log1p(shared.float()).sum(dim=-1))
    return LOG_SCALE * torch.cat([torch.where(recent.valid, x, 0.0) for x in columns], dim=-1)
