"""Recent: the latest events of a node before ``cut``, as arrays.

What models that look one hop back read. A row has n places: slot j holds the j-th latest event, and padding follows
where a node has fewer. ``oldest_first`` turns the events around, but leaves the padding behind them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.history.index import TemporalIndex, lower_bound_scalar


@dataclass(frozen=True)
class Recent:
    """Whom a node met, in which event, and how long before the question; n places a node."""

    node: Tensor  # (..., n) int64, -1 for padding
    pos: Tensor  # (..., n) int64, position of the event in the stream; -1 for padding
    elapsed: Tensor  # (..., n) float64, from the event to the question, never negative; 0 for padding

    @property
    def valid(self) -> Tensor:
        """(..., n) True where an event stands, False for padding."""
        return self.pos >= 0


def recent_events(
    index: TemporalIndex, node: Tensor, t: Tensor, cut: Tensor, n: int, *, oldest_first: bool = False
) -> Recent:
    """The latest ``n`` events of each node among the first ``cut``, seen from time ``t``. Shapes broadcast.

    Newcomers and padding have none. Times are since the stream's first event, in its own unit.
    """
    node, t, cut = torch.broadcast_tensors(node, t, cut)
    if index.runs_compiled:
        return _read_compiled(index, node, t, cut, n, oldest_first)
    return _read_plain(index, node, t, cut, n, oldest_first)


def _read_compiled(index: TemporalIndex, node: Tensor, t: Tensor, cut: Tensor, n: int, oldest_first: bool) -> Recent:
    out_node, out_pos = (np.empty((node.numel(), n), dtype=np.int64) for _ in range(2))
    out_elapsed = np.empty((node.numel(), n), dtype=np.float64)
    _fill_recent(
        index.row_start.numpy(),
        index.nbr.numpy(),
        index.pos.numpy(),
        index.elapsed.numpy(),
        node.reshape(-1).numpy(),
        t.reshape(-1).numpy(),
        cut.reshape(-1).numpy(),
        oldest_first,
        out_node,
        out_pos,
        out_elapsed,
    )
    return Recent(*(torch.from_numpy(x).view(*node.shape, n) for x in (out_node, out_pos, out_elapsed)))


@njit(parallel=True, cache=True)
def _fill_recent(row_start, nbr, pos, elapsed, node, t, cut, oldest_first, out_node, out_pos, out_elapsed):  # type: ignore[no-untyped-def]
    n_nodes = len(row_start) - 1
    n = out_node.shape[1]
    for i in prange(len(node)):
        u = node[i]
        end, found = 0, 0
        if 0 <= u < n_nodes:
            end = lower_bound_scalar(pos, row_start[u], row_start[u + 1], cut[i])
            found = min(n, end - row_start[u])
        for j in range(found):
            at = end - found + j if oldest_first else end - 1 - j
            out_node[i, j], out_pos[i, j] = nbr[at], pos[at]
            out_elapsed[i, j] = t[i] - elapsed[pos[at]]
        for j in range(found, n):
            out_node[i, j], out_pos[i, j], out_elapsed[i, j] = -1, -1, 0.0


def _read_plain(index: TemporalIndex, node: Tensor, t: Tensor, cut: Tensor, n: int, oldest_first: bool) -> Recent:
    degree = index.degree(node, cut).unsqueeze(-1)  # (..., 1)
    found = degree.clamp_max(n)
    j = torch.arange(n, device=node.device)
    exists = j < found  # (..., n)
    at = index.entry(node.unsqueeze(-1), degree - found + j if oldest_first else degree - 1 - j)
    if len(index.nbr) == 0:
        nothing = torch.full_like(at, -1)
        return Recent(nothing, nothing, torch.zeros(at.shape, dtype=torch.float64, device=at.device))
    pos = index.pos[at].long()
    elapsed = torch.where(exists, t.unsqueeze(-1) - index.elapsed[pos], 0.0)
    return Recent(torch.where(exists, index.nbr[at].long(), -1), torch.where(exists, pos, -1), elapsed)


def recent_mean(index: TemporalIndex, table: Tensor, node: Tensor, cut: Tensor, n: int) -> Tensor:
    """The mean of the rows of those whom each node met in its latest ``n`` events among the first ``cut``.

    Zero where it met nobody. Summed in float64, where values of like size add up exactly: every order, so every device,
    gives the same.

    Shapes: table (N, D) float32, a row a node; node and cut broadcast; (..., D) float32 comes back.
    """
    node, cut = torch.broadcast_tensors(node, cut)
    if index.runs_compiled:
        out = np.empty((node.numel(), table.shape[1]), dtype=np.float32)
        _fill_means(
            index.row_start.numpy(),
            index.nbr.numpy(),
            index.pos.numpy(),
            table.numpy(),
            node.reshape(-1).numpy(),
            cut.reshape(-1).numpy(),
            n,
            out,
        )
        return torch.from_numpy(out).view(*node.shape, -1)
    total = torch.zeros(*node.shape, table.shape[1], dtype=torch.float64, device=node.device)
    degree = index.degree(node, cut).unsqueeze(-1)
    for start in range(0, min(n, index.max_degree), 100):  # in pieces: all at once would be n times the answer
        j = torch.arange(start, min(start + 100, n), device=node.device)
        nbr = index.nbr[index.entry(node.unsqueeze(-1), degree - 1 - j)].long()
        total += torch.where((j < degree).unsqueeze(-1), table[nbr].double(), 0.0).sum(-2)
    return (total / degree.clamp(1, n)).float()


@njit(parallel=True, cache=True)
def _fill_means(row_start, nbr, pos, table, node, cut, n, out):  # type: ignore[no-untyped-def]
    n_nodes, width = len(row_start) - 1, table.shape[1]
    for i in prange(len(node)):
        u = node[i]
        total = np.zeros(width, dtype=np.float64)
        found = 0
        if 0 <= u < n_nodes:
            end = lower_bound_scalar(pos, row_start[u], row_start[u + 1], cut[i])
            found = min(n, end - row_start[u])
            for at in range(end - found, end):
                for k in range(width):
                    total[k] += table[nbr[at], k]
        for k in range(width):
            out[i, k] = total[k] / max(found, 1)
