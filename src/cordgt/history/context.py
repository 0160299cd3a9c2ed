"""Context: the sampled trees, as arrays.

A tree starts at a root and draws, hop by hop, earlier events of what it has drawn so far. Its shape is fixed by the
fan-outs, so a batch of trees is a rectangle: slot 0 is the root, then hop 1, then hop 2, each hop in the order of its
parents. Slots that could not be filled are padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.history import rng
from cordgt.history.index import TemporalIndex, lower_bound_scalar
from cordgt.history.rng import below_u64, child_u64, mix_u64

SAMPLINGS = ("uniform", "recent", "mixed")


def latest(sampling: str) -> int:
    """Which of a slot's draws are its latest events: 0: none of them, 1: every one, 2: every second one.

    So a larger fan-out keeps the smaller one's draws.
    """
    return {"uniform": 0, "recent": 1, "mixed": 2}[sampling]


@dataclass(frozen=True)
class TreeShape:
    """The slots of a tree with ``fanout[k]`` children at hop k+1. Any number of hops, any fan-outs from 1."""

    fanout: tuple[int, ...]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First slot of each hop, and past the last: hop k is ``starts[k]:starts[k+1]``."""
        starts, width = [0, 1], 1
        for n in self.fanout:
            width *= n
            starts.append(starts[-1] + width)
        return tuple(starts)

    @property
    def size(self) -> int:
        """C, the number of slots."""
        return self.starts[-1]

    @property
    def hops(self) -> int:
        return len(self.fanout)

    @cached_property
    def hop(self) -> Tensor:
        """(C,) the hop of each slot; 0 for the root."""
        return torch.repeat_interleave(torch.arange(self.hops + 1), torch.tensor(self.starts).diff())

    def hop_on(self, device: torch.device) -> Tensor:
        """`hop` on a device; moved there once."""
        return _moved_hop(self, device)

    @cached_property
    def parent(self) -> Tensor:
        """(C,) the slot whose event drew each slot; the root's is itself."""
        parents = [torch.zeros(1, dtype=torch.int64)]
        for k, n in enumerate(self.fanout):
            parents.append(torch.arange(self.starts[k], self.starts[k + 1]).repeat_interleave(n))
        return torch.cat(parents)


@lru_cache(maxsize=64)
def _moved_hop(shape: TreeShape, device: torch.device) -> Tensor:
    return shape.hop.to(device)


@dataclass(frozen=True)
class Context:
    """A batch of sampled trees. The root's slot is always valid, also for a newcomer."""

    node: Tensor  # (..., C) int64, -1 for padding
    pos: Tensor  # (..., C) int64, position of the event that drew the slot; -1 for the root and for padding

    @property
    def valid(self) -> Tensor:
        """(..., C) True where a node stands, False for padding."""
        return self.node >= 0


def in_pairs(x: Tensor) -> Tensor:
    """A value of each tree as one of each sequence: (B, 1 + M, ...) to (B, 2M, ...); a tree alone stays alone."""
    n = x.shape[1] - 1
    return x if n == 0 else torch.cat([x[:, :1].expand(-1, n, *x.shape[2:]), x[:, 1:]], dim=1)


def sample_trees(
    index: TemporalIndex,
    shape: TreeShape,
    root: Tensor,
    cut: Tensor,
    *,
    seed: int,
    epoch: Tensor | int = 0,
    sampling: str = "uniform",
) -> Context:
    """The tree of each root over the first ``cut`` events. ``root`` and ``cut`` broadcast.

    ``uniform`` draws with replacement among a node's earlier events, ``recent`` takes the latest ones, ``mixed`` draws
    and takes in turn, beginning with a draw. A slot drawn by an event looks strictly before that event's time. A draw
    depends on (seed, epoch, root, cut, path) alone.
    """
    root, cut = torch.broadcast_tensors(root, cut)
    if index.runs_compiled:
        return _sample_compiled(index, shape, root, cut, seed, int(epoch), sampling)
    past = index.fused
    if past is not None and past.draws_trees(shape.fanout):
        when = epoch if isinstance(epoch, Tensor) else torch.full((), epoch, dtype=torch.int64, device=root.device)
        key, every = rng.mix_int(seed), latest(sampling)
        return Context(
            *past.sample_trees(index, shape.fanout, shape.starts, root, cut, seed_key=key, epoch=when, latest=every)
        )
    return _sample_plain(index, shape, root, cut, seed, epoch, sampling)


def _sample_compiled(
    index: TemporalIndex, shape: TreeShape, root: Tensor, cut: Tensor, seed: int, epoch: int, sampling: str
) -> Context:
    node = np.empty((root.numel(), shape.size), dtype=np.int64)
    pos = np.empty((root.numel(), shape.size), dtype=np.int64)
    _fill_trees(
        index.row_start.numpy(),
        index.nbr.numpy(),
        index.pos.numpy(),
        index.nbr_degree.numpy(),
        np.array(shape.fanout, dtype=np.int64),
        np.array(shape.starts, dtype=np.int64),
        root.reshape(-1).numpy(),
        cut.reshape(-1).numpy(),
        np.uint64(seed % 2**64),
        np.uint64(epoch),
        latest(sampling),
        node,
        pos,
    )
    size = (*root.shape, shape.size)
    return Context(node=torch.from_numpy(node).view(size), pos=torch.from_numpy(pos).view(size))


ROOTS_AT_ONCE = 64  # of a thread: their scratch is allocated once, and what they wait for from memory overlaps


@njit(parallel=True, cache=True)
def _fill_trees(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, nbr_degree, fanout, starts, root, cut, seed, epoch, latest, out_node, out_pos
):
    n_nodes, hops = len(row_start) - 1, len(fanout)
    of_epoch = child_u64(mix_u64(seed), epoch)
    for block in prange((len(root) + ROOTS_AT_ONCE - 1) // ROOTS_AT_ONCE):
        first = block * ROOTS_AT_ONCE
        n = min(ROOTS_AT_ONCE, len(root) - first)
        # Of the slots that have children: their keys, where their rows begin, and their events before their own cut.
        width = max(starts[hops], 1)  # a tree without hops has a root all the same
        key = np.empty((n, width), dtype=np.uint64)
        row = np.zeros((n, width), dtype=np.int64)
        degree = np.zeros((n, width), dtype=np.int64)
        for i in range(n):
            u, before = root[first + i], cut[first + i]
            key[i, 0] = child_u64(child_u64(of_epoch, u), before)
            if 0 <= u < n_nodes:
                row[i, 0] = row_start[u]
                degree[i, 0] = lower_bound_scalar(pos, row_start[u], row_start[u + 1], before) - row_start[u]
            out_node[first + i, 0], out_pos[first + i, 0] = u, -1
        for hop in range(hops):
            has_children = hop + 1 < hops
            for i in range(n):
                slot = starts[hop + 1]
                for parent in range(starts[hop], starts[hop + 1]):
                    d = degree[i, parent]
                    for j in range(fanout[hop]):
                        own = child_u64(key[i, parent], j)
                        takes_latest = latest > 0 and (j + 1) % latest == 0
                        rank = d - 1 - j // latest if takes_latest else below_u64(own, d)
                        if d > 0 and rank >= 0:
                            at = row[i, parent] + rank
                            out_node[first + i, slot], out_pos[first + i, slot] = nbr[at], pos[at]
                            if has_children:
                                row[i, slot], degree[i, slot] = row_start[nbr[at]], nbr_degree[at]
                        else:
                            out_node[first + i, slot], out_pos[first + i, slot] = -1, -1
                        if has_children:
                            key[i, slot] = own
                        slot += 1


def _sample_plain(
    index: TemporalIndex, shape: TreeShape, root: Tensor, cut: Tensor, seed: int, epoch: Tensor | int, sampling: str
) -> Context:
    node, pos = [root.unsqueeze(-1)], [torch.full_like(root, -1).unsqueeze(-1)]
    key = rng.root_key(seed, epoch, root, cut).unsqueeze(-1)  # (..., 1), then (..., slots of the hop)
    degree, every = index.degree(root, cut).unsqueeze(-1), latest(sampling)
    for n in shape.fanout:
        j = torch.arange(n, device=root.device)
        key = rng.child(key.unsqueeze(-1), j)  # (..., parents, n)
        d = degree.unsqueeze(-1)
        rank = rng.below(key, d)
        if every > 0:
            rank = torch.where((j + 1) % every == 0, d - 1 - j // every, rank)
        exists = (rank >= 0) & (d > 0)
        at = index.entry(node[-1].unsqueeze(-1), rank)
        if len(index.nbr) == 0:
            drawn, drawn_pos, degree = (torch.full_like(at, v) for v in (-1, -1, 0))
        else:
            drawn = torch.where(exists, index.nbr[at], -1).long()
            drawn_pos = torch.where(exists, index.pos[at], -1).long()
            degree = torch.where(exists, index.nbr_degree[at], 0).long()
        node.append(drawn.flatten(-2))
        pos.append(drawn_pos.flatten(-2))
        key, degree = key.flatten(-2), degree.flatten(-2)
    return Context(node=torch.cat(node, dim=-1), pos=torch.cat(pos, dim=-1))
