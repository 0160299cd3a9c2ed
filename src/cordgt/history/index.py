"""TemporalIndex: lookups in the history of a stream, as pure functions of ``cut``, the number of visible events.

Two sorted views of the same events, built once in linear time and never changed:

- *rows*: the events of each node in stream order, so that those before ``cut`` are a prefix of its row;
- *pairs*: for each node its distinct neighbors in ascending order, and for each of them the positions of their common
  events, so that a pair's history before ``cut`` is a prefix too. A lookup is two short binary searches, by neighbor
  and by position; there is no packed key that could overflow.

Lookups take whole batches: compiled Numba loops on the CPU, Triton kernels on a GPU, or plain torch operations, with
identical results. `cordgt.history.index_builder` builds the arrays.
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
from cordgt.history.index_builder import IndexArrays
from cordgt.runtime import kernel_loader as kernels
from cordgt.runtime.threads import parallel_map

ROWS_PER_RANGE = 2048  # of a compiled loop in a thread, at least


@dataclass(frozen=True)
class TemporalIndex:
    """The two views over the indexed events of a stream. Positions and ids are always those of the whole stream.

    A self-loop appears once in its node's row. Nodes without events have empty rows. So do ids past the last node (new
    nodes) and -1 (padding), which every lookup accepts.

    Shapes: N nodes, E events of the stream, R row entries (two per indexed event, one per self-loop), U distinct pairs
    (node, neighbor).
    """

    row_start: Tensor  # (N+1,)
    nbr: Tensor  # (R,) neighbor
    pos: Tensor  # (R,) position of the event in the stream
    nbr_degree: Tensor  # (R,) number of events of nbr strictly earlier in time than this one
    pair_start: Tensor  # (N+1,) into pair_nbr
    pair_nbr: Tensor  # (U,) distinct neighbors of a node, ascending
    pair_pos_start: Tensor  # (U+1,) into pair_pos
    pair_pos: Tensor  # (R,) positions of a pair's events, ascending
    elapsed: Tensor  # (E,) float64, time since the stream's first event
    tie_start: Tensor  # (E,) position of the first event with the same time
    src: Tensor  # (E,) source node of each event
    max_degree: int  # most events of a node; bounds the search steps
    max_pairs: int  # most distinct neighbors of a node
    max_meetings: int  # most events of a pair (named as in store.json)
    use_kernels: bool = True  # False: torch operations only

    def __repr__(self) -> str:
        return f"<TemporalIndex: {len(self.elapsed):,} events of {self.n_nodes:,} nodes on {self.elapsed.device}>"

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
        return cls.from_arrays(*IndexArrays.build(src, dst, elapsed, n_nodes, keep))

    @classmethod
    def from_arrays(
        cls, index: IndexData, elapsed: np.ndarray, tie_start: np.ndarray, src: np.ndarray
    ) -> TemporalIndex:
        """Build an index from existing arrays, which may be memory-mapped: nothing is read or copied."""
        fields: dict[str, Any] = {name: as_tensor(array) for name, array in index.arrays.items()} | dict(index.longest)
        return cls(**fields, elapsed=as_tensor(elapsed), tie_start=as_tensor(tie_start), src=as_tensor(src))

    @property
    def n_nodes(self) -> int:
        return len(self.row_start) - 1

    @property
    def device(self) -> torch.device:
        return self.row_start.device

    @property
    def row_arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``(row_start, nbr, pos, nbr_degree)``."""
        return self.row_start, self.nbr, self.pos, self.nbr_degree

    @property
    def pair_arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``(pair_start, pair_nbr, pair_pos_start, pair_pos)``."""
        return self.pair_start, self.pair_nbr, self.pair_pos_start, self.pair_pos

    @property
    def uses_numba(self) -> bool:
        """True if lookups run as compiled loops on the CPU."""
        return self.use_kernels and self.device.type == "cpu"

    @property
    def triton_kernels(self) -> Any:
        """The module of Triton kernels if lookups use it, else None. Without Numba too, torch operations are used."""
        return kernels.load_kernels("history.kernels.trees", self.device) if self.use_kernels else None

    def to(self, device: torch.device | str) -> TemporalIndex:
        """Return this index on another device."""
        arrays: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **arrays)

    def share_event_arrays(self, other: TemporalIndex) -> TemporalIndex:
        """Return this index on the device of ``other``, an index of the same stream, sharing the per-event arrays."""
        shared = {name: getattr(other, name) for name in ("elapsed", "tie_start", "src")}
        return replace(self, **shared).to(other.device)

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(x.nbytes for x in vars(self).values() if isinstance(x, Tensor))

    def without_kernels(self) -> TemporalIndex:
        """Return this index with lookups in plain torch operations."""
        return replace(self, use_kernels=False)

    def degree(self, node: Tensor, cut: Tensor) -> Tensor:
        """Return the number of events of ``node`` among the first ``cut``; 0 for padding and new nodes.

        Shapes broadcast.
        """
        node, cut = torch.broadcast_tensors(node, cut)
        if self.uses_numba:
            out = torch.empty(node.shape, dtype=torch.int64)
            run_loop(_fill_degrees, self.row_start, self.pos, flat_int64(node), flat_int64(cut), out.view(-1))
            return out
        fused = self.triton_kernels
        if fused is not None:
            return fused.degree(self, node, cut)
        start, stop = self._bounds(self.row_start, node)
        return lower_bound(self.pos, start, stop, cut, self.max_degree) - start

    def row_entry(self, node: Tensor, rank: Tensor) -> Tensor:
        """Return the offset of the ``rank``-th (0 = oldest) event of ``node`` in ``nbr``, ``pos`` and ``nbr_degree``.

        If it does not exist, the result is some valid offset; the caller masks it.
        """
        start = self.row_start[node.clamp(0, max(self.n_nodes - 1, 0))]
        return (start + rank).clamp(0, max(len(self.nbr) - 1, 0))

    def pair_history(self, node: Tensor, other: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        """Like `pair_interactions`, with the time of the last event instead of its position.

        Returns:
            count: (…) int64. last: (…) float64, time since the stream's first event; 0 where count is 0.
        """
        count, last = self.pair_interactions(node, other, cut)
        return count, self.event_time(last)

    def last_position(self, node: Tensor, degree: Tensor) -> Tensor:
        """Return the position of a node's ``degree``-th event (1 = oldest); -1 where degree is 0. Shapes are equal."""
        if len(self.pos) == 0:
            return torch.full_like(degree, -1)
        return torch.where(degree > 0, self.pos[self.row_entry(node, degree - 1)].long(), -1)

    def event_time(self, position: Tensor) -> Tensor:
        """Return the times (…) float64 of the events at these positions, since the first event; 0 for position -1."""
        if len(self.elapsed) == 0:
            return torch.zeros_like(position, dtype=torch.float64)
        return torch.where(position >= 0, self.elapsed[position.clamp_min(0)], 0.0)

    def is_source(self, node: Tensor, position: Tensor) -> Tensor:
        """Return (…) bool: True if the node is the source of the event at the position; False for position -1."""
        if len(self.src) == 0:
            return torch.zeros_like(position, dtype=torch.bool)
        return (position >= 0) & (self.src[position.clamp_min(0)] == node)

    def pair_interactions(self, node: Tensor, other: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        """Count the events of two nodes among the first ``cut`` and find the last one.

        Symmetric. A node and itself are a pair like any other (self-loops). Padding has no events. Shapes broadcast.

        Returns:
            count: (…) int64. last: (…) int64, a position in the stream; -1 where count is 0.
        """
        node, other, cut = torch.broadcast_tensors(node, other, cut)
        if self.uses_numba:
            count, last = (torch.empty(node.shape, dtype=torch.int64) for _ in range(2))
            ids = (flat_int64(x) for x in (node, other, cut))
            run_loop(_fill_pair_interactions, *self.pair_arrays, *ids, count.view(-1), last.view(-1))
            return count, last
        fused = self.triton_kernels
        if fused is not None:
            return fused.pair_interactions(self, node, other, cut)
        return self._pair_interactions_torch(node, other, cut)

    def _pair_interactions_torch(self, node: Tensor, other: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        if len(self.pair_nbr) == 0:
            return torch.zeros_like(node, dtype=torch.int64), torch.full_like(node, -1, dtype=torch.int64)
        start, stop = self._bounds(self.pair_start, node)
        pair = lower_bound(self.pair_nbr, start, stop, other, self.max_pairs)
        at = pair.clamp_max(len(self.pair_nbr) - 1)
        exists = (pair < stop) & (self.pair_nbr[at] == other)
        first = torch.where(exists, self.pair_pos_start[at], 0).long()
        past_last = torch.where(exists, self.pair_pos_start[at + 1], 0).long()
        end = lower_bound(self.pair_pos, first, past_last, cut, self.max_meetings)
        count = end - first
        return count, torch.where(count > 0, self.pair_pos[(end - 1).clamp_min(0)].long(), -1)

    def _bounds(self, starts: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and past-the-last entry of each node's row; an empty row for padding and new nodes."""
        known = (node >= 0) & (node < self.n_nodes)
        at = torch.where(known, node, 0)
        return torch.where(known, starts[at], 0).long(), torch.where(known, starts[at + 1], 0).long()


def as_tensor(array: np.ndarray) -> Tensor:
    """Return a tensor that shares the array's memory. It may be read-only: streams and indexes are never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def run_loop(loop: Any, *args: Any) -> None:
    """Call a compiled Numba loop; tensors, including those it writes to, are passed as arrays on the same memory."""
    loop(*(x.numpy() if isinstance(x, Tensor) else x for x in args))


def run_ranges(loop: Any, n: int, *args: Any) -> None:
    """Call a compiled loop as ``loop(start, stop, *args)`` on ranges of ``n`` rows, in as many threads as torch has.

    The loop is compiled with ``nogil=True``. It compiles several times as fast as one with ``parallel=True``.
    """
    arrays = [x.numpy() if isinstance(x, Tensor) else x for x in args]
    size = max(ROWS_PER_RANGE, -(-n // (4 * torch.get_num_threads())))
    if n <= size:
        loop(0, n, *arrays)
        return
    for _ in parallel_map(lambda start: loop(start, min(start + size, n), *arrays), range(0, n, size)):
        pass


def flat_int64(x: Tensor) -> Tensor:
    """Return the values as a contiguous one-dimensional int64 tensor."""
    return x.reshape(-1).to(torch.int64).contiguous()


def lower_bound(values: Tensor, start: Tensor, stop: Tensor, target: Tensor, longest: int) -> Tensor:
    """Return the first offset in ``values[start:stop]`` (ascending) with a value not less than ``target``, or ``stop``.

    ``longest`` bounds ``stop - start``. The number of steps depends on it alone, so there is no device synchronization.
    """
    if len(values) == 0:
        return start
    at = start
    step = 1 << max(longest.bit_length() - 1, 0)
    while step > 0:
        probe = at + step
        is_less = (probe <= stop) & (values[(probe - 1).clamp_max(len(values) - 1)] < target)
        at = torch.where(is_less, probe, at)
        step >>= 1
    return at


@njit(inline="always")
def lower_bound_scalar(values, start, stop, target):  # type: ignore[no-untyped-def]
    while start < stop:
        middle = (start + stop) >> 1
        if values[middle] < target:
            start = middle + 1
        else:
            stop = middle
    return start


@njit(inline="always")
def degree_scalar(row_start, pos, node, cut):  # type: ignore[no-untyped-def]
    """`TemporalIndex.degree` of one node."""
    if 0 <= node < len(row_start) - 1:
        return lower_bound_scalar(pos, row_start[node], row_start[node + 1], cut) - row_start[node]
    return 0


@njit(parallel=True, cache=True)
def _fill_degrees(row_start, pos, node, cut, out):  # type: ignore[no-untyped-def]
    for i in prange(len(node)):
        out[i] = degree_scalar(row_start, pos, node[i], cut[i])


@njit(inline="always")
def pair_interactions_scalar(  # type: ignore[no-untyped-def]
    pair_start, pair_nbr, pair_pos_start, pair_pos, node, other, cut
):
    """`TemporalIndex.pair_interactions` of one pair: count and last position."""
    if 0 <= node < len(pair_start) - 1:
        pair = lower_bound_scalar(pair_nbr, pair_start[node], pair_start[node + 1], other)
        if pair < pair_start[node + 1] and pair_nbr[pair] == other:
            first = pair_pos_start[pair]
            end = lower_bound_scalar(pair_pos, first, pair_pos_start[pair + 1], cut)
            if end > first:
                return end - first, pair_pos[end - 1]
    return 0, -1


@njit(parallel=True, cache=True)
def _fill_pair_interactions(  # type: ignore[no-untyped-def]
    pair_start, pair_nbr, pair_pos_start, pair_pos, node, other, cut, count, last
):
    for i in prange(len(node)):
        count[i], last[i] = pair_interactions_scalar(
            pair_start, pair_nbr, pair_pos_start, pair_pos, node[i], other[i], cut[i]
        )
