"""Context: sampled trees of earlier events, as arrays.

A tree starts at a root node and samples, hop by hop, earlier events of the nodes sampled so far. The fan-outs fix its
shape, so a batch of trees is a rectangular array: slot 0 is the root, then come hop 1 and hop 2, each hop in the order
of its parents. Slots that could not be filled are padding (-1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.history import rng
from cordgt.history.index import TemporalIndex, degree_scalar, flat_int64, run_loop
from cordgt.history.rng import fold_in_u64, mix64_u64, randint_u64

SAMPLINGS = ("uniform", "recent", "mixed")


def recent_stride(sampling: str) -> int:
    """Return k if every k-th child of a slot is one of its latest events and the others are random; 0: all random.

    A child depends on its number, not on the fan-out, so a larger fan-out keeps the children of a smaller one.
    """
    return {"uniform": 0, "recent": 1, "mixed": 2}[sampling]


@dataclass(frozen=True)
class TreeShape:
    """The slots of a tree with ``fanout[k]`` children per slot of hop k. Fan-outs are at least 1."""

    fanout: tuple[int, ...]

    @cached_property
    def hop_starts(self) -> tuple[int, ...]:
        """First slot of each hop, then the number of slots: hop k is ``hop_starts[k]:hop_starts[k+1]``."""
        starts, width = [0, 1], 1
        for n in self.fanout:
            width *= n
            starts.append(starts[-1] + width)
        return tuple(starts)

    @property
    def n_slots(self) -> int:
        """C, the number of slots."""
        return self.hop_starts[-1]

    @property
    def n_hops(self) -> int:
        return len(self.fanout)

    @cached_property
    def slot_hop(self) -> Tensor:
        """(C,) hop of each slot; 0 for the root."""
        return torch.from_numpy(np.repeat(np.arange(self.n_hops + 1), np.diff(self.hop_starts)))

    def slot_hop_on(self, device: torch.device) -> Tensor:
        """Return `slot_hop` on a device; copied there once."""
        return _slot_hop_on(self, device)

    @cached_property
    def parent(self) -> Tensor:
        """(C,) parent slot of each slot; the root is its own parent."""
        parents = [np.zeros(1, np.int64)]
        for k, n in enumerate(self.fanout):
            parents.append(np.repeat(np.arange(self.hop_starts[k], self.hop_starts[k + 1]), n))
        return torch.from_numpy(np.concatenate(parents))


@lru_cache(maxsize=64)
def _slot_hop_on(shape: TreeShape, device: torch.device) -> Tensor:
    return shape.slot_hop.to(device)


@dataclass(frozen=True)
class Context:
    """A batch of sampled trees. The root's slot is always valid, even if the node is new."""

    node: Tensor  # (..., C) int64, -1 for padding
    pos: Tensor  # (..., C) int64, position of the sampled event; -1 for the root and for padding

    @property
    def valid(self) -> Tensor:
        """(..., C) True for a node, False for padding."""
        return self.node >= 0


def expand_to_pairs(x: Tensor) -> Tensor:
    """Turn values per tree (B, 1 + M, ...) into values per sequence (B, 2M, ...); M = 0: return them unchanged.

    The source's value is repeated for each of its M candidates.
    """
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
    """Sample the tree of each root over the first ``cut`` events. ``root`` and ``cut`` broadcast.

    ``uniform`` samples a node's earlier events with replacement, ``recent`` takes its latest ones, and ``mixed``
    alternates, starting with a random one. The children of a slot are strictly earlier in time than the slot's own
    event. A draw depends only on (seed, epoch, root, cut, path in the tree).
    """
    root, cut = torch.broadcast_tensors(root, cut)
    if index.uses_numba:
        return _sample_numba(index, shape, root, cut, seed, int(epoch), sampling)
    fused = index.triton_kernels
    if fused is not None and fused.supports_fanout(shape.fanout):
        epoch = epoch if isinstance(epoch, Tensor) else torch.full((), epoch, dtype=torch.int64, device=root.device)
        key, stride = rng.mix64_int(seed), recent_stride(sampling)
        return Context(
            *fused.sample_trees(
                index, shape.fanout, shape.hop_starts, root, cut, seed_key=key, epoch=epoch, recent_stride=stride
            )
        )
    return _sample_torch(index, shape, root, cut, seed, epoch, sampling)


def _sample_numba(
    index: TemporalIndex, shape: TreeShape, root: Tensor, cut: Tensor, seed: int, epoch: int, sampling: str
) -> Context:
    node, pos = (torch.empty((*root.shape, shape.n_slots), dtype=torch.int64) for _ in range(2))
    run_loop(
        _fill_trees,
        *index.row_arrays,
        np.array(shape.fanout, dtype=np.int64),
        np.array(shape.hop_starts, dtype=np.int64),
        flat_int64(root),
        flat_int64(cut),
        np.uint64(seed % 2**64),
        np.uint64(epoch),
        recent_stride(sampling),
        node.view(-1, shape.n_slots),
        pos.view(-1, shape.n_slots),
    )
    return Context(node=node, pos=pos)


_BLOCK = 64  # roots per thread and step: they share one scratch buffer, and their memory accesses overlap


@njit(parallel=True, cache=True)
def _fill_trees(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, nbr_degree, fanout, starts, root, cut, seed, epoch, stride, out_node, out_pos
):
    n_hops = len(fanout)
    epoch_key = fold_in_u64(mix64_u64(seed), epoch)
    for block in prange((len(root) + _BLOCK - 1) // _BLOCK):
        first = block * _BLOCK
        n = min(_BLOCK, len(root) - first)
        # For slots with children: random key, start of the node's row, and number of events visible to the slot.
        width = max(starts[n_hops], 1)  # a tree without hops still has a root
        key = np.empty((n, width), dtype=np.uint64)
        row = np.zeros((n, width), dtype=np.int64)
        degree = np.zeros((n, width), dtype=np.int64)
        for i in range(n):
            u, visible = root[first + i], cut[first + i]
            key[i, 0] = fold_in_u64(fold_in_u64(epoch_key, u), visible)
            degree[i, 0] = degree_scalar(row_start, pos, u, visible)
            if degree[i, 0] > 0:
                row[i, 0] = row_start[u]
            out_node[first + i, 0], out_pos[first + i, 0] = u, -1
        for hop in range(n_hops):
            has_children = hop + 1 < n_hops
            for i in range(n):
                slot = starts[hop + 1]
                for parent in range(starts[hop], starts[hop + 1]):
                    d = degree[i, parent]
                    for j in range(fanout[hop]):
                        child_key = fold_in_u64(key[i, parent], j)
                        is_recent = stride > 0 and (j + 1) % stride == 0
                        rank = d - 1 - j // stride if is_recent else randint_u64(child_key, d)
                        if d > 0 and rank >= 0:
                            at = row[i, parent] + rank
                            out_node[first + i, slot], out_pos[first + i, slot] = nbr[at], pos[at]
                            if has_children:
                                row[i, slot], degree[i, slot] = row_start[nbr[at]], nbr_degree[at]
                        else:
                            out_node[first + i, slot], out_pos[first + i, slot] = -1, -1
                        if has_children:
                            key[i, slot] = child_key
                        slot += 1


def _sample_torch(
    index: TemporalIndex, shape: TreeShape, root: Tensor, cut: Tensor, seed: int, epoch: Tensor | int, sampling: str
) -> Context:
    node, pos = [root.unsqueeze(-1)], [torch.full_like(root, -1).unsqueeze(-1)]
    key = rng.root_key(seed, epoch, root, cut).unsqueeze(-1)  # (..., 1), then (..., slots of the hop)
    degree, stride = index.degree(root, cut).unsqueeze(-1), recent_stride(sampling)
    for n in shape.fanout:
        j = torch.arange(n, device=root.device)
        key = rng.fold_in(key.unsqueeze(-1), j)  # (..., parents, n)
        d = degree.unsqueeze(-1)
        rank = rng.randint(key, d)
        if stride > 0:
            rank = torch.where((j + 1) % stride == 0, d - 1 - j // stride, rank)
        exists = (rank >= 0) & (d > 0)
        at = index.row_entry(node[-1].unsqueeze(-1), rank)
        if len(index.nbr) == 0:
            child, child_pos, degree = (torch.full_like(at, v) for v in (-1, -1, 0))
        else:
            child = torch.where(exists, index.nbr[at], -1).long()
            child_pos = torch.where(exists, index.pos[at], -1).long()
            degree = torch.where(exists, index.nbr_degree[at], 0).long()
        node.append(child.flatten(-2))
        pos.append(child_pos.flatten(-2))
        key, degree = key.flatten(-2), degree.flatten(-2)
    return Context(node=torch.cat(node, dim=-1), pos=torch.cat(pos, dim=-1))
