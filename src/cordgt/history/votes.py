"""Votes of item-kNN for the candidates of a source: what others interacted with around its latest partners.

For each of the source's latest partners, the latest visitors of that partner vote for what they interacted with just
before and just after it. Votes fade with the age of the partner and with the number of events in between. Everything is
read from the first ``cut`` events.

Votes are sums of integers, so the compiled loops and the torch operations agree bit for bit in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numba import get_num_threads, njit, prange
from torch import Tensor

from cordgt.history.index import TemporalIndex, degree_scalar, flat_int64, run_loop
from cordgt.history.queries import Queries

UNIT = 2**19  # a vote of 1, for the partner's age and for the distance alike
AFTER = 2  # a vote for what came after counts this much more than one for what came before
PRIOR = 1e-3  # weight of a candidate's share of all events: orders candidates without votes
SMALLEST = 1e-12  # score of a candidate without votes and events, before the logarithm
PENALTY = 0.3  # votes are divided by (events of the candidate) ** PENALTY
MAX_SLOTS = 4_000_000  # votes in memory at a time, in torch operations
LOG_SCALE = 0.25  # brings logarithms near 1
SHARE_SCALE = 256.0  # votes are small: they enter as log(1 + SHARE_SCALE * x)
STEP = 2.0**-20  # columns are multiples of it, so that they do not depend on how a logarithm is computed
VOTES_COLUMNS = ("votes", "votes, by events of the candidate", "score of item-kNN")
VOTES_DIM = len(VOTES_COLUMNS)


@dataclass(frozen=True)
class VoteOptions:
    """Which events vote, and how much. `ItemKnnSettings` has the same defaults."""

    num_partners: int = 20  # latest partners of the source
    num_visitors: int = 100  # latest visitors of each partner
    window: int = 5  # events of a visitor before and after its event with the partner
    decay: float = 0.85  # weight of a partner, relative to the next later one


def votes_columns(index: TemporalIndex, queries: Queries, options: VoteOptions = VoteOptions()) -> Tensor:
    """Return the `VOTES_COLUMNS` of every pair: (B, M, columns) float32."""
    degree = index.degree(queries.dst, queries.cut[:, None]).double()
    votes = count_votes(index, queries, options).double() / (UNIT * UNIT)
    divided = votes / (degree + 1.0) ** PENALTY
    score = votes_score(divided, degree, queries.cut[:, None])
    columns = [
        LOG_SCALE * torch.log1p(SHARE_SCALE * votes),
        LOG_SCALE * torch.log1p(SHARE_SCALE * divided),
        LOG_SCALE * score,
    ]
    return (torch.round(torch.stack(columns, dim=-1) / STEP) * STEP).float()


def votes_score(divided: Tensor, degree: Tensor, cut: Tensor) -> Tensor:
    """Return the score of item-kNN: the logarithm of votes that are divided by popularity, with a small prior."""
    return torch.log(divided + PRIOR * degree / (cut + 1) + SMALLEST)


@lru_cache(maxsize=16)  # made before a CUDA graph is recorded, which cannot copy from the host
def _weights(options: VoteOptions, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weight of each partner, the places around a visit, and their weights; int64 on the device."""
    ages = torch.round(UNIT * options.decay ** torch.arange(options.num_partners, dtype=torch.float64)).long()
    lags = torch.arange(-options.window, options.window + 1)
    distances = torch.where(lags > 0, AFTER, 1) * UNIT // (1 + lags.abs())
    return ages.to(device), lags.to(device), distances.to(device)


def count_votes(index: TemporalIndex, queries: Queries, options: VoteOptions) -> Tensor:
    """Return the votes for each candidate, (B, M) int64."""
    ages, lags, distances = _weights(options, index.device)
    if index.uses_numba:
        out = torch.zeros(queries.dst.shape, dtype=torch.int64)
        rows = index.row_arrays
        sizes = options.num_visitors, options.window, get_num_threads()
        ids = (flat_int64(queries.src), flat_int64(queries.cut), queries.dst.long().contiguous())
        run_loop(_fill_votes, *rows, *ids, ages, distances, *sizes, out)
        return out
    if len(index.nbr) == 0 or len(queries.src) == 0:
        return torch.zeros_like(queries.dst, dtype=torch.int64)
    n_slots = len(ages) * options.num_visitors * len(lags) + index.n_nodes
    step = max(1, MAX_SLOTS // n_slots)
    parts = [queries.take(slice(i, i + step)) for i in range(0, len(queries.src), step)]
    return torch.cat([_votes_torch(index, part, options.num_visitors, ages, lags, distances) for part in parts])


def _votes_torch(
    index: TemporalIndex, queries: Queries, num_visitors: int, ages: Tensor, lags: Tensor, distances: Tensor
) -> Tensor:
    """`count_votes` in torch operations. P partners, V visitors, W events around a visit."""
    device, n_queries = index.device, len(queries.src)
    cut, src = queries.cut[:, None], queries.src[:, None]
    rank = index.degree(src, cut) - 1 - torch.arange(len(ages), device=device)  # (B, P)
    partner = torch.where(rank >= 0, index.nbr[index.row_entry(src.expand_as(rank), rank)].long(), -1)
    totals = torch.zeros(n_queries, index.n_nodes, dtype=torch.int64, device=device)
    totals.scatter_add_(1, partner.clamp_min(0), torch.where(partner >= 0, ages * UNIT, 0))
    degree = index.degree(partner, cut)
    rank = degree.unsqueeze(-1) - 1 - torch.arange(num_visitors, device=device)  # (B, P, V)
    at = index.row_entry(partner.unsqueeze(-1).expand_as(rank), rank)
    visitor = torch.where(rank >= 0, index.nbr[at].long(), -1)
    visitor = torch.where(visitor == src.unsqueeze(-1), -1, visitor)
    place = index.nbr_degree[at].long().unsqueeze(-1) + lags  # (B, P, V, W) in the visitor's row
    exists = (place >= 0) & (place < index.degree(visitor, cut.unsqueeze(-1)).unsqueeze(-1))
    node = index.nbr[index.row_entry(visitor.unsqueeze(-1).expand_as(place), place)].long()
    exists &= node != partner[..., None, None]
    n_visitors = degree.clamp(1, num_visitors)[..., None, None]
    votes = ages[:, None, None] * distances // n_visitors
    votes = torch.where(exists, votes, 0).reshape(n_queries, -1)
    totals.scatter_add_(1, torch.where(exists, node, 0).reshape(n_queries, -1), votes)
    known = (queries.dst >= 0) & (queries.dst < index.n_nodes)
    return torch.where(known, totals.gather(1, torch.where(known, queries.dst, 0)), 0)


@njit(parallel=True, cache=True)
def _fill_votes(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, nbr_degree, src, cut, dst, ages, distances, num_visitors, window, n_parts, out
):
    n_nodes = len(row_start) - 1
    for part in prange(n_parts):
        totals = np.zeros(n_nodes, dtype=np.int64)
        voted = np.empty(len(ages) * (1 + num_visitors * len(distances)), dtype=np.int64)
        for b in range(part, len(src), n_parts):
            n_voted = 0
            degree = degree_scalar(row_start, pos, src[b], cut[b])
            for j in range(min(len(ages), degree)):
                partner = nbr[row_start[src[b]] + degree - 1 - j]
                totals[partner] += ages[j] * UNIT
                voted[n_voted] = partner
                n_voted += 1
                end = row_start[partner] + degree_scalar(row_start, pos, partner, cut[b])
                n_visitors = min(num_visitors, end - row_start[partner])
                for at in range(end - n_visitors, end):
                    visitor, place = nbr[at], nbr_degree[at]
                    if visitor == src[b]:
                        continue
                    start = row_start[visitor]
                    stop = degree_scalar(row_start, pos, visitor, cut[b])
                    for k in range(max(0, place - window), min(stop, place + window + 1)):
                        node = nbr[start + k]
                        if node != partner:
                            totals[node] += ages[j] * distances[k - place + window] // n_visitors
                            voted[n_voted] = node
                            n_voted += 1
            for m in range(dst.shape[1]):
                if 0 <= dst[b, m] < n_nodes:
                    out[b, m] = totals[dst[b, m]]
            for k in range(n_voted):
                totals[voted[k]] = 0
