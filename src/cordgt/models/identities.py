"""Learned identities: an embedding per node, and attention from a candidate to the source's recent partners.

The idea is that of CRAFT (TGB-Seq): the question is whether the candidate fits the partners of before. The source
itself has no embedding, so a new source needs none.

A node gets a row of the table if it has at least ``MIN_EVENTS`` training events (`Identities.assign_rows`). A candidate
without a row, or with fewer visible events than that, is the mean of the nodes that its visitors met lately. So new
nodes are read as training read young ones. A candidate without such relatives adds nothing to the score.

The table has ``num_embeddings * dim`` float32 values, three times with Adam's moments: 6 MB for 16,384 rows of 32.

Axes: B queries, M candidates, L recent partners, R relatives, H heads, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cordgt.history.index import TemporalIndex
from cordgt.history.queries import Queries
from cordgt.history.recent import recent_events
from cordgt.nn.layers import make_mlp

MIN_EVENTS = 5
N_PARTNERS = 20  # L
N_VISITORS, N_THEIR_PARTNERS = 4, 4  # their product is R
DIM, HEADS = 32, 2


@dataclass(frozen=True)
class IdentityBatch:
    """Nodes that the network looks up."""

    partner: Tensor  # (B, L) int64, latest first; -1 for padding
    candidate: Tensor  # (B, M) int64
    is_young: Tensor  # (B, M) bool, True: fewer than MIN_EVENTS visible events
    relative: Tensor  # (B, M, R) int64, nodes that the candidate's visitors met lately; -1 for padding


def read_identities(index: TemporalIndex, queries: Queries) -> IdentityBatch:
    """Return the nodes of the queries among their first ``cut`` events."""
    q = queries
    partner = recent_events(index, q.src, q.t, q.cut, N_PARTNERS).node
    t, cut = q.t[:, None], q.cut[:, None]
    visitor = recent_events(index, q.dst, t, cut, N_VISITORS).node  # (B, M, visitors)
    relative = recent_events(index, visitor, t.unsqueeze(-1), cut.unsqueeze(-1), N_THEIR_PARTNERS).node.flatten(2)
    relative = torch.where(relative == q.dst.unsqueeze(-1), -1, relative)
    return IdentityBatch(partner, q.dst, index.degree(q.dst, cut) < MIN_EVENTS, relative)


class Identities(nn.Module):
    """Adds to a pair's logit what the identities of the candidate and of the source's partners say."""

    owner: Tensor  # (num_embeddings,) int64, the node of each row; -1: none

    def __init__(self, num_embeddings: int) -> None:
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(num_embeddings, DIM))
        self.register_buffer("owner", torch.full((num_embeddings,), -1))
        self.query, self.key, self.value = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.place = nn.Parameter(torch.zeros(HEADS, N_PARTNERS))  # how much the k-th latest partner counts
        self.score = make_mlp(3 * DIM, DIM, 1)

    @torch.no_grad()
    def assign_rows(self, index: TemporalIndex, cut: int) -> None:
        """Give a row to every node with enough events among the first ``cut``; of two for one row, to the busier."""
        node = torch.arange(index.n_nodes, device=index.device)
        degree = index.degree(node, torch.full_like(node, cut)).cpu()
        order = degree.sort(stable=True).indices  # the busiest last, so that it stays
        order = order[degree[order] >= MIN_EVENTS]
        owner = torch.full((len(self.owner),), -1)
        for nodes in order.split(1 << 20):
            owner.numpy()[nodes.remainder(len(owner)).numpy()] = nodes.numpy()  # the last of equal indices stays
        self.owner.copy_(owner)

    def forward(self, batch: IdentityBatch) -> Tensor:
        """Return what to add to the logits, (B, M)."""
        partner, is_known = self._rows(batch.partner)  # (B, L, D)
        candidate, has_identity = self._candidates(batch)  # (B, M, D)
        q, k, v = (
            f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)  # (B, H, M or L, D / H)
            for f, x in ((self.query, candidate), (self.key, partner), (self.value, partner))
        )
        logits = q @ k.transpose(-1, -2) / (DIM // HEADS) ** 0.5 + self.place[:, None]  # (B, H, M, L)
        attn_mask = is_known[:, None, None]
        weight = logits.masked_fill(~attn_mask, -1e10).softmax(dim=-1) * attn_mask  # all 0 without partners
        attended = (weight @ v).transpose(1, 2).flatten(2)  # (B, M, D)
        score = self.score(torch.cat([attended, candidate * attended, candidate], dim=-1)).squeeze(-1)
        return torch.where(has_identity, score, 0.0)

    def _candidates(self, batch: IdentityBatch) -> tuple[Tensor, Tensor]:
        own, has_row = self._rows(batch.candidate)
        has_row = has_row & ~batch.is_young
        relatives, is_known = self._rows(batch.relative)  # (B, M, R, D)
        n = is_known.sum(-1, keepdim=True)
        mean = relatives.sum(-2) / n.clamp_min(1)
        return torch.where(has_row.unsqueeze(-1), own, mean), has_row | (n.squeeze(-1) > 0)

    def _rows(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings (..., D) of nodes (...,), and whether each has one; zeros where not."""
        row = node.clamp_min(0).remainder(len(self.owner))
        is_known = (node >= 0) & (self.owner[row] == node)
        return torch.where(is_known.unsqueeze(-1), nn.functional.embedding(row, self.table), 0.0), is_known
