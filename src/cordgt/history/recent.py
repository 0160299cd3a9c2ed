"""The latest events of a node before ``cut``, as arrays: what models that look one hop back read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.history.index import TemporalIndex, degree_scalar, flat_int64, run_loop


@dataclass(frozen=True)
class RecentEvents:
    """The latest n events of each node. Slot j holds the j-th latest one (or oldest, if ordered so), then padding."""

    node: Tensor  # (..., n) int64, the neighbor; -1 for padding
    pos: Tensor  # (..., n) int64, position of the event in the stream; -1 for padding
    elapsed: Tensor  # (..., n) float64, query time minus event time, never negative; 0 for padding

    @property
    def valid(self) -> Tensor:
        """(..., n) True for an event, False for padding."""
        return self.pos >= 0


def recent_events(
    index: TemporalIndex, node: Tensor, t: Tensor, cut: Tensor, n: int, *, oldest_first: bool = False
) -> RecentEvents:
    """Return the latest ``n`` events of each node among the first ``cut``, seen from time ``t``. Shapes broadcast.

    New nodes and padding have none. Times are since the stream's first event, in its own unit. ``oldest_first``
    reverses the events, not the padding after them.
    """
    node, t, cut = torch.broadcast_tensors(node, t, cut)
    if index.uses_numba:
        size = (*node.shape, n)
        out = (torch.empty(size, dtype=dtype) for dtype in (torch.int64, torch.int64, torch.float64))
        recent = RecentEvents(*out)
        run_loop(
            _fill_recent,
            *(index.row_start, index.nbr, index.pos, index.elapsed),
            *(flat_int64(node), t.reshape(-1), flat_int64(cut), oldest_first),
            *(x.view(-1, n) for x in (recent.node, recent.pos, recent.elapsed)),
        )
        return recent
    degree = index.degree(node, cut).unsqueeze(-1)  # (..., 1)
    found = degree.clamp_max(n)
    j = torch.arange(n, device=node.device)
    exists = j < found  # (..., n)
    at = index.row_entry(node.unsqueeze(-1), degree - found + j if oldest_first else degree - 1 - j)
    if len(index.nbr) == 0:
        padding = torch.full_like(at, -1)
        return RecentEvents(padding, padding, torch.zeros(at.shape, dtype=torch.float64, device=at.device))
    pos = index.pos[at].long()
    elapsed = torch.where(exists, t.unsqueeze(-1) - index.elapsed[pos], 0.0)
    return RecentEvents(torch.where(exists, index.nbr[at].long(), -1), torch.where(exists, pos, -1), elapsed)


@njit(parallel=True, cache=True)
def _fill_recent(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, elapsed, node, t, cut, oldest_first, out_node, out_pos, out_elapsed
):
    n = out_node.shape[1]
    for i in prange(len(node)):
        degree = degree_scalar(row_start, pos, node[i], cut[i])
        found = min(n, degree)
        for j in range(found):
            at = row_start[node[i]] + (degree - found + j if oldest_first else degree - 1 - j)
            out_node[i, j], out_pos[i, j] = nbr[at], pos[at]
            out_elapsed[i, j] = t[i] - elapsed[pos[at]]
        for j in range(found, n):
            out_node[i, j], out_pos[i, j], out_elapsed[i, j] = -1, -1, 0.0


def recent_neighbor_mean(index: TemporalIndex, table: Tensor, node: Tensor, cut: Tensor, n: int) -> Tensor:
    """Return the mean of the neighbors' rows of ``table`` over each node's latest ``n`` events among the first ``cut``.

    Zero for a node without events. Sums are in float64, where values of similar size add up exactly, so every order of
    summation, and therefore every device, gives the same result.

    Shapes: table (N, D) float32, one row per node; node and cut broadcast. Returns (..., D) float32.
    """
    node, cut = torch.broadcast_tensors(node, cut)
    if index.uses_numba:
        out = torch.empty((*node.shape, table.shape[1]), dtype=torch.float32)
        arrays = index.row_start, index.nbr, index.pos, table
        run_loop(_fill_means, *arrays, flat_int64(node), flat_int64(cut), n, out.view(node.numel(), table.shape[1]))
        return out
    total = torch.zeros(*node.shape, table.shape[1], dtype=torch.float64, device=node.device)
    degree = index.degree(node, cut).unsqueeze(-1)
    for start in range(0, min(n, index.max_degree), 100):  # in chunks: all at once needs n times the memory
        j = torch.arange(start, min(start + 100, n), device=node.device)
        nbr = index.nbr[index.row_entry(node.unsqueeze(-1), degree - 1 - j)].long()
        total += torch.where((j < degree).unsqueeze(-1), table[nbr].double(), 0.0).sum(-2)
    return (total / degree.clamp(1, n)).float()


@njit(parallel=True, cache=True)
def _fill_means(row_start, nbr, pos, table, node, cut, n, out):  # type: ignore[no-untyped-def]
    dim = table.shape[1]
    for i in prange(len(node)):
        total = np.zeros(dim, dtype=np.float64)
        degree = degree_scalar(row_start, pos, node[i], cut[i])
        found = min(n, degree)
        for j in range(degree - found, degree):
            at = row_start[node[i]] + j
            for k in range(dim):
                total[k] += table[nbr[at], k]
        for k in range(dim):
            out[i, k] = total[k] / max(found, 1)
