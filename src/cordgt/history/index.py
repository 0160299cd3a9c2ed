"""TemporalIndex: every question about the past as a pure function of ``cut``.

Two sorted views of the same events, built once in linear time and never changed:

- *rows*: the events of each node in stream order, so that those before ``cut`` are a prefix of its row;
- *pairs*: for each node its distinct neighbours in ascending order, and for each of these the positions of their common
  events, so that a pair's history before ``cut`` is a prefix too. Neighbour first, then position: two short searches,
  and no packed key that could overflow.

Lookups answer a whole batch at once: compiled loops on the CPU, fused kernels on a GPU, torch operations where asked
for, with identical results.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.events.backing import IndexData
from cordgt.events.times import tie_starts
from cordgt.history.index_builder import build_index, index_dtype
from cordgt.runtime import kernel_loader as kernels


@dataclass(frozen=True)
class TemporalIndex:
    """The two views over the kept events of a stream. Positions and ids are always those of the whole stream.

    A self-loop stands once in its node's row. Nodes without events have empty rows; so do ids past the last node
    (newcomers) and -1 (padding), which may be asked about like any other.

    Shapes: N nodes, E events of the stream, R row entries (two a kept event, one a self-loop), U distinct pairs
    (node, neighbour).
    """

    row_start: Tensor  # (N+1,)
    nbr: Tensor  # (R,) who was met
    pos: Tensor  # (R,) at which position of the stream
    nbr_degree: Tensor  # (R,) how many events nbr had strictly earlier in time than this one
    pair_start: Tensor  # (N+1,) into pair_nbr
    pair_nbr: Tensor  # (U,) distinct neighbours of a node, ascending
    pair_pos_start: Tensor  # (U+1,) into pair_pos
    pair_pos: Tensor  # (R,) positions of a pair's events, ascending
    elapsed: Tensor  # (E,) float64, time since the stream's first event
    tie_start: Tensor  # (E,) position of the first event with the same time
    src: Tensor  # (E,) whose event it was
    max_degree: int  # longest row: bounds the search steps
    max_pairs: int  # most distinct neighbours of a node
    max_meetings: int  # most events of one pair
    compiled: bool = True  # False: torch operations alone

    @classmethod
    def build(
        cls,
        src: np.ndarray,
        dst: np.ndarray,
        elapsed: np.ndarray,
        n_nodes: int,
        keep: np.ndarray | None = None,
    ) -> TemporalIndex:
        """Index the events where ``keep`` is True (all, if None). ``elapsed`` never decreases."""
        dtype = index_dtype(n_nodes, len(src))
        src, dst = (np.ascontiguousarray(x, dtype) for x in (src, dst))
        elapsed = np.ascontiguousarray(elapsed, np.float64)
        tie_start = tie_starts(elapsed, dtype=dtype)
        keep = None if keep is None else np.ascontiguousarray(keep, np.bool_)
        return cls.from_arrays(build_index(src, dst, tie_start, n_nodes, keep), elapsed, tie_start, src)

    @classmethod
    def from_arrays(
        cls, index: IndexData, elapsed: np.ndarray, tie_start: np.ndarray, src: np.ndarray
    ) -> TemporalIndex:
        """An index from existing arrays, which may be mapped from files: nothing is read or copied."""
        found: dict[str, Any] = {name: as_tensor(array) for name, array in index.arrays.items()} | dict(index.longest)
        return cls(**found, elapsed=as_tensor(elapsed), tie_start=as_tensor(tie_start), src=as_tensor(src))

    @property
    def n_nodes(self) -> int:
        return len(self.row_start) - 1

    @property
    def device(self) -> torch.device:
        return self.row_start.device

    @property
    def runs_compiled(self) -> bool:
        """True where the compiled loops of the CPU answer."""
        return self.compiled and self.device.type == "cpu"

    @property
    def fused(self) -> Any:
        """The kernels that answer on a GPU, or None; where there are no compiled loops either, torch operations do."""
        return kernels.fused("history.kernels.trees", self.device) if self.compiled else None

    def to(self, device: torch.device | str) -> TemporalIndex:
        """The same index on another device."""
        moved: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    def beside(self, other: TemporalIndex) -> TemporalIndex:
        """This index of some of the events where another one of the same stream lies, sharing what both have."""
        shared = {name: getattr(other, name) for name in ("elapsed", "tie_start", "src")}
        return replace(self, **shared).to(other.device)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(x.nbytes for x in vars(self).values() if isinstance(x, Tensor))

    def plain(self) -> TemporalIndex:
        """The same index answering through torch operations, as on CUDA."""
        return replace(self, compiled=False)

    def degree(self, node: Tensor, cut: Tensor) -> Tensor:
        """How many events ``node`` has among the first ``cut``; 0 for padding and newcomers. Shapes broadcast."""
        node, cut = torch.broadcast_tensors(node, cut)
        if self.runs_compiled:
            out = np.empty(node.numel(), dtype=np.int64)
            _degrees(self.row_start.numpy(), self.pos.numpy(), _flat(node), _flat(cut), out)
            return torch.from_numpy(out).view(node.shape)
        past = self.fused
        if past is not None:
            return past.degree(self, node, cut)
        start, stop = self._bounds(self.row_start, node)
        return lower_bound(self.pos, start, stop, cut, self.max_degree) - start

    def entry(self, node: Tensor, rank: Tensor) -> Tensor:
        """Where the ``rank``-th (0 = oldest) event of ``node`` stands in ``nbr``, ``pos`` and ``nbr_degree``.

        The caller makes sure that it exists; otherwise some entry in range comes back, to be masked.
        """
        start = self.row_start[node.clamp(0, max(self.n_nodes - 1, 0))]
        return (start + rank).clamp(0, max(len(self.nbr) - 1, 0))

    def pair_history(self, node: Tensor, other: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        """How often, and when last, two nodes met among the first ``cut`` events; as `meetings`, but with a time.

        Returns:
            count: (…) int64. last: (…) float64, time since the stream's first event; 0 where count is 0.
        """
        count, last = self.meetings(node, other, cut)
        return count, self.time_of(last)

    def latest(self, node: Tensor, degree: Tensor) -> Tensor:
        """The position of the last of a node's first ``degree`` events; -1 where that is 0. Of one shape."""
        if len(self.pos) == 0:
            return torch.full_like(degree, -1)
        return torch.where(degree > 0, self.pos[self.entry(node, degree - 1)].long(), -1)

    def time_of(self, position: Tensor) -> Tensor:
        """(…) float64, when the events at these positions happened, since the stream's first; 0 for position -1."""
        if len(self.elapsed) == 0:
            return torch.zeros_like(position, dtype=torch.float64)
        return torch.where(position >= 0, self.elapsed[position.clamp_min(0)], 0.0)

    def sent(self, node: Tensor, position: Tensor) -> Tensor:
        """(…) bool, True where a node was the source of the event at a position; False for position -1."""
        if len(self.src) == 0:
            return torch.zeros_like(position, dtype=torch.bool)
        return (position >= 0) & (self.src[position.clamp_min(0)] == node)

    def meetings(self, node: Tensor, other: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        """How often, and in which event last, two nodes met among the first ``cut`` events.

        Symmetric. A node and itself count like any pair (self-loops); padding never met anyone. Shapes broadcast.

        Returns:
            count: (…) int64. last: (…) int64, a position in the stream; -1 where count is 0.
        """
        node, other, cut = torch.broadcast_tensors(node, other, cut)
        if self.runs_compiled:
            count, last = (np.empty(node.numel(), dtype=np.int64) for _ in range(2))
            _all_meetings(
                self.pair_start.numpy(),
                self.pair_nbr.numpy(),
                self.pair_pos_start.numpy(),
                self.pair_pos.numpy(),
                _flat(node),
                _flat(other),
                _flat(cut),
                count,
                last,
            )
            return torch.from_numpy(count).view(node.shape), torch.from_numpy(last).view(node.shape)
        past = self.fused
        if past is not None:
            return past.meetings(self, node, other, cut)
        return self._meetings_plain(node, other, cut)

    def _meetings_plain(self, node: Tensor, other: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        if len(self.pair_nbr) == 0:
            return torch.zeros_like(node, dtype=torch.int64), torch.full_like(node, -1, dtype=torch.int64)
        start, stop = self._bounds(self.pair_start, node)
        pair = lower_bound(self.pair_nbr, start, stop, other, self.max_pairs)
        at = pair.clamp_max(len(self.pair_nbr) - 1)
        met = (pair < stop) & (self.pair_nbr[at] == other)
        first = torch.where(met, self.pair_pos_start[at], 0).long()
        past = torch.where(met, self.pair_pos_start[at + 1], 0).long()
        end = lower_bound(self.pair_pos, first, past, cut, self.max_meetings)
        count = end - first
        return count, torch.where(count > 0, self.pair_pos[(end - 1).clamp_min(0)].long(), -1)

    def _bounds(self, starts: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
        """First and past-the-last entry of each node's row; an empty row for padding and newcomers."""
        known = (node >= 0) & (node < self.n_nodes)
        at = torch.where(known, node, 0)
        return torch.where(known, starts[at], 0).long(), torch.where(known, starts[at + 1], 0).long()


def as_tensor(array: np.ndarray) -> Tensor:
    """A tensor on the same memory. Nothing here writes into a stream or an index, so read-only arrays will do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _flat(x: Tensor) -> np.ndarray:
    return x.reshape(-1).to(torch.int64).contiguous().numpy()


def lower_bound(values: Tensor, start: Tensor, stop: Tensor, target: Tensor, longest: int) -> Tensor:
    """First place in ``values[start:stop]`` (ascending) that is not less than ``target``; ``stop`` if there is none.

    ``longest`` bounds ``stop - start``: the number of steps depends on it alone, so nothing waits for the device.
    """
    if len(values) == 0:
        return start
    place = start
    step = 1 << max(longest.bit_length() - 1, 0)
    while step > 0:
        probe = place + step
        ahead = (probe <= stop) & (values[(probe - 1).clamp_max(len(values) - 1)] < target)
        place = torch.where(ahead, probe, place)
        step >>= 1
    return place


@njit(inline="always")
def lower_bound_scalar(values, start, stop, target):  # type: ignore[no-untyped-def]
    while start < stop:
        middle = (start + stop) >> 1
        if values[middle] < target:
            start = middle + 1
        else:
            stop = middle
    return start


@njit(parallel=True, cache=True)
def _degrees(row_start, pos, node, cut, out):  # type: ignore[no-untyped-def]
    n_nodes = len(row_start) - 1
    for i in prange(len(node)):
        u = node[i]
        out[i] = 0
        if 0 <= u < n_nodes:
            out[i] = lower_bound_scalar(pos, row_start[u], row_start[u + 1], cut[i]) - row_start[u]


@njit(inline="always")
def meetings_scalar(pair_start, pair_nbr, pair_pos_start, pair_pos, node, other, cut):  # type: ignore[no-untyped-def]
    """`TemporalIndex.meetings` of one pair: count and last."""
    if 0 <= node < len(pair_start) - 1:
        pair = lower_bound_scalar(pair_nbr, pair_start[node], pair_start[node + 1], other)
        if pair < pair_start[node + 1] and pair_nbr[pair] == other:
            first = pair_pos_start[pair]
            end = lower_bound_scalar(pair_pos, first, pair_pos_start[pair + 1], cut)
            if end > first:
                return end - first, pair_pos[end - 1]
    return 0, -1


@njit(parallel=True, cache=True)
def _all_meetings(pair_start, pair_nbr, pair_pos_start, pair_pos, node, other, cut, count, last):  # type: ignore[no-untyped-def]
    for i in prange(len(node)):
        count[i], last[i] = meetings_scalar(pair_start, pair_nbr, pair_pos_start, pair_pos, node[i], other[i], cut[i])
