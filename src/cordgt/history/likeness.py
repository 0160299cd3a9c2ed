"""Likeness columns of a pair: the cosine similarity of the candidate's features to those of the source's partners.

This is content-based recommendation, for the cold start: it tells something of a candidate that nobody has met yet,
such as a new product of a known category. Exact, without parameters, pure functions of ``cut``. The similarity is 0 if
one of both rows of features is zero.

Axes: B queries, M candidates, L partners, Dn node features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cordgt.history.queries import History, Queries
from cordgt.history.recent import recent_events

N_PARTNERS = 20  # L, latest events of the source
STEP = 2.0**-20  # columns are multiples of it, so that they do not depend on the order of sums in a matrix product
LIKENESS_COLUMNS = (
    "candidate has features",
    "likeness to the mean of the source's partners",
    "likeness to the most alike of them",
    "likeness to the last of them",
    "mean likeness to them, later ones count more",
)
LIKENESS_DIM = len(LIKENESS_COLUMNS)  # Q


def likeness_columns(history: History, queries: Queries) -> Tensor:
    """Return the `LIKENESS_COLUMNS` of every pair: (B, M, Q) float32; zeros without node features.

    The partners are the other ends of the latest `N_PARTNERS` events of the source, one for each event.
    """
    q = queries
    partner = recent_events(history.index, q.src, q.t, q.cut, N_PARTNERS).node  # (B, L)
    candidates, partners = history.node_features(q.dst), history.node_features(partner)
    if candidates is None or partners is None or not candidates.shape[-1]:
        return torch.zeros(*q.dst.shape, LIKENESS_DIM, device=q.dst.device)
    own, theirs = F.normalize(candidates.double(), dim=-1), F.normalize(partners.double(), dim=-1)
    alike = own @ theirs.transpose(1, 2)  # (B, M, L)
    weight = 1.0 / torch.arange(1, N_PARTNERS + 1, device=alike.device, dtype=torch.float64)
    columns = [
        (candidates != 0).any(dim=-1).to(own.dtype),
        (own @ F.normalize(theirs.sum(dim=1), dim=-1).unsqueeze(-1)).squeeze(-1),
        torch.where((partner >= 0).unsqueeze(1), alike, -1.0).amax(dim=-1),
        alike[..., 0],
        alike @ (weight / weight.sum()),
    ]
    has_partner = (partner >= 0).any(dim=-1)[:, None]
    found = torch.stack([columns[0], *(torch.where(has_partner, x, 0.0) for x in columns[1:])], dim=-1)
    return (torch.round(found / STEP) * STEP).float()
