"""ActivityBank: decayed counts of a node's own events at several time constants, as pure functions of ``cut``.

The decayed count of a node at time constant ``tau_k`` is

    S_k(node, cut, t) = sum of exp(-(t - t_i) / tau_k) over the node's events i < cut in the bank's role.

The bank stores these sums after every 32nd entry of a node's row in the `TemporalIndex`. A lookup is one binary search,
one stored row and at most 31 row entries. Stored sums depend on the entries before them alone, so an event at or after
``cut`` changes nothing, to the bit. Sums are stored in float64: rates of whole periods are differences of sums. This
costs ``K / 4`` bytes for each row entry: 3.5 bytes with 14 time constants.

Compiled Numba loops on the CPU and torch operations elsewhere agree to a relative difference of 1e-11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numba import njit
from torch import Tensor

from cordgt.errors import DataError, check_choice
from cordgt.history.index import TemporalIndex, degree_scalar, flat_int64, run_loop, run_ranges
from cordgt.history.rhythm import NO_KNOTS, Rhythm, rescale_scalar

Role = Literal["source", "destination", "either"]
ROLES = ("source", "destination", "either")
STRIDE = 32  # row entries between two stored sums
_UNDERFLOW = 745.2  # exp(-x) is 0 in float64 from here on


@dataclass(frozen=True)
class DecayedCounts:
    """What a bank knows about nodes in its role, each at a time and a ``cut``. Padding and new nodes have zeros."""

    sums: Tensor  # (..., K) float64, decayed counts
    count: Tensor  # (...) int64, events in the role
    degree: Tensor  # (...) int64, events in any role
    first: Tensor  # (...) float64, time of the first event in the role; 0 if there is none
    last: Tensor  # (...) float64, time of the last event in the role; 0 if there is none
    t: Tensor  # (...) float64, the time asked for, since the stream's first event


@dataclass(frozen=True)
class ActivityBank:
    """Decayed counts of nodes as ``source``, as ``destination`` or as ``either`` end of their events.

    A self-loop counts once in each role: once as source, once as destination, and once as either. With a rhythm, ages
    are in operational time. A time before the node's last visible event, in any role, counts as that event's time.

    Shapes: N nodes, K time constants, P stored sums. A node without events in the role has none.
    """

    index: TemporalIndex
    role: Role
    time_constants: tuple[float, ...]  # K positive times, in the stream's unit
    rhythm: Rhythm | None
    taus: Tensor  # (K,) float64, the time constants
    knots: Tensor  # (bins + 1,) float64, of the rhythm; empty without one
    start: Tensor  # (N+1,) int64, offsets of each node's stored sums
    stored: Tensor  # (P, K) float64, sums at the time of the last row entry before them
    stored_count: Tensor  # (P,) int64, events in the role
    stored_last: Tensor  # (P,) int64, position of the last event in the role; -1 for none
    first_pos: Tensor  # (N,) int64, position of the first event in the role; -1 for none

    @classmethod
    def build(
        cls, index: TemporalIndex, time_constants: tuple[float, ...], role: Role, rhythm: Rhythm | None = None
    ) -> ActivityBank:
        """Build the bank of an index on the CPU in one pass over its rows, which may be memory-mapped."""
        check_choice("role", role, ROLES)
        if not time_constants or not all(0 < tau < math.inf for tau in time_constants):
            raise DataError(f"Time constants must be positive, finite numbers, not {time_constants}.")
        taus = torch.tensor(time_constants, dtype=torch.float64)
        knots = torch.from_numpy(NO_KNOTS if rhythm is None else rhythm.knots)
        first_pos = torch.empty(index.n_nodes, dtype=torch.int64)
        rows = index.row_start, index.nbr, index.pos, index.src
        run_ranges(_fill_first, index.n_nodes, *rows, ROLES.index(role), first_pos)
        n_stored = torch.where(first_pos >= 0, index.row_start.diff().long() // STRIDE, 0)
        start = torch.cat([torch.zeros(1, dtype=torch.int64), n_stored.cumsum(0)])
        stored = torch.empty((int(start[-1]), len(taus)), dtype=torch.float64)
        stored_count, stored_last = (torch.empty(len(stored), dtype=torch.int64) for _ in range(2))
        clock = _clock(rhythm), knots
        run_ranges(
            _fill_stored,
            index.n_nodes,
            *(*rows, index.elapsed, ROLES.index(role), *clock, taus),
            *(start, stored, stored_count, stored_last),
        )
        return cls(
            index, role, time_constants, rhythm, taus, knots, start, stored, stored_count, stored_last, first_pos
        )

    def with_index(self, index: TemporalIndex) -> ActivityBank:
        """Return this bank for the same index on another device, or with other kernels."""
        arrays: dict[str, Any] = {k: v.to(index.device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, index=index, **arrays)

    @property
    def nbytes(self) -> int:
        """Size of the bank's own arrays in bytes."""
        return sum(x.nbytes for x in vars(self).values() if isinstance(x, Tensor))

    def lookup(self, node: Tensor, cut: Tensor, t: Tensor) -> DecayedCounts:
        """Return the decayed counts of each node among the first ``cut`` events at time ``t``. Shapes broadcast."""
        node, cut, t = torch.broadcast_tensors(node, cut, t)
        if not self.index.uses_numba:
            return self._lookup_torch(node, cut, t)
        index = self.index
        sums = torch.empty((*node.shape, len(self.taus)), dtype=torch.float64)
        count, degree = (torch.empty(node.shape, dtype=torch.int64) for _ in range(2))
        first, last = (torch.empty(node.shape, dtype=torch.float64) for _ in range(2))
        run_ranges(
            _fill_lookup,
            node.numel(),
            *(index.row_start, index.nbr, index.pos, index.src, index.elapsed, ROLES.index(self.role)),
            *(_clock(self.rhythm), self.knots, self.taus),
            *(self.start, self.stored, self.stored_count, self.stored_last, self.first_pos),
            *(flat_int64(node), flat_int64(cut), t.reshape(-1).contiguous()),
            *(sums.view(-1, len(self.taus)), count.view(-1), degree.view(-1), first.view(-1), last.view(-1)),
        )
        return DecayedCounts(sums, count, degree, first, last, t)

    def _lookup_torch(self, node: Tensor, cut: Tensor, t: Tensor) -> DecayedCounts:
        index, j = self.index, torch.arange(STRIDE - 1, device=node.device)
        degree = index.degree(node, cut)
        if len(index.pos) == 0:
            zero = torch.zeros(node.shape, dtype=torch.float64, device=node.device)
            return DecayedCounts(
                zero.unsqueeze(-1).repeat_interleave(len(self.taus), -1), degree, degree, zero, zero, t
            )
        known = torch.where(degree > 0, node, 0)
        first_pos = self.first_pos[known]
        is_active = (degree > 0) & (first_pos >= 0) & (first_pos < cut)  # has an event in the role before the cut
        n_stored = torch.where(is_active, degree // STRIDE, 0)
        at = index.row_entry(known.unsqueeze(-1), n_stored.unsqueeze(-1) * STRIDE + j)  # (..., 31)
        pos = index.pos[at].long()
        counts = is_active.unsqueeze(-1) & (n_stored.unsqueeze(-1) * STRIDE + j < degree.unsqueeze(-1))
        is_source = index.src[pos] == node.unsqueeze(-1)
        if self.role == "source":
            counts = counts & is_source
        elif self.role == "destination":
            counts = counts & (~is_source | (index.nbr[at] == node.unsqueeze(-1)))
        latest = self.operational_time(index.elapsed[index.pos[index.row_entry(known, degree - 1)].long()])
        now = torch.maximum(self.operational_time(t), latest)
        age = (now.unsqueeze(-1) - self.operational_time(index.elapsed[pos])).clamp_min(0.0)
        sums = torch.stack([torch.where(counts, torch.exp(-age / tau), 0.0).sum(-1) for tau in self.taus], dim=-1)
        count, last = counts.sum(-1), torch.where(counts, pos, -1).amax(-1)
        if len(self.stored):
            has_stored = n_stored > 0
            which = torch.where(has_stored, self.start[known] + n_stored - 1, 0)
            base = self.operational_time(index.elapsed[index.pos[index.row_entry(known, n_stored * STRIDE - 1)].long()])
            decay = torch.exp(-(now - base).clamp_min(0.0).unsqueeze(-1) / self.taus)
            sums = sums + torch.where(has_stored.unsqueeze(-1), self.stored[which] * decay, 0.0)
            count = count + torch.where(has_stored, self.stored_count[which], 0)
            last = torch.maximum(last, torch.where(has_stored, self.stored_last[which], -1))
        first = torch.where(is_active, first_pos, -1)
        return DecayedCounts(sums, count, degree, index.event_time(first), index.event_time(last), t)

    def last_event_integrals(self, taus: Tensor, low: Tensor, high: Tensor, cut: int) -> np.ndarray:
        """Return (len(taus),) integrals of ``exp(-(t - last) / tau) / tau`` over all nodes from time low to high.

        ``last`` is the node's last event in the role at each moment. Times are operational; high is not before the
        last of the first ``cut`` events, which are the ones that count. The bank is on the CPU.
        """
        index, out = self.index, torch.zeros(len(taus), dtype=torch.float64)
        run_loop(
            _sum_last_events,
            *(index.row_start, index.nbr, index.pos, index.src, index.elapsed, ROLES.index(self.role)),
            *(_clock(self.rhythm), self.knots, taus, float(low), float(high), cut, out),
        )
        return out.numpy()

    def operational_time(self, t: Tensor) -> Tensor:
        """Return the operational time of ``t`` (…) float64: the time itself without a rhythm."""
        return t if self.rhythm is None else self.rhythm.rescale(t)


def _clock(rhythm: Rhythm | None) -> tuple[float, float]:
    """Return period and phase for the compiled loops."""
    return (1.0, 0.0) if rhythm is None else (rhythm.period, rhythm.phase)


@njit(inline="always")
def is_in_role(role, node, nbr, src):  # type: ignore[no-untyped-def]
    """Return whether an entry of the node's row, with this neighbor and source, counts in a role (place in ROLES)."""
    return role == 2 or (src == node if role == 0 else (src != node or nbr == node))


@njit(nogil=True, cache=True)
def _fill_first(begin, end, row_start, nbr, pos, src, role, first_pos):  # type: ignore[no-untyped-def]
    for u in range(begin, end):
        first_pos[u] = -1
        for at in range(row_start[u], row_start[u + 1]):
            if is_in_role(role, u, nbr[at], src[pos[at]]):
                first_pos[u] = pos[at]
                break


@njit
def _decay(sums, age, taus):  # type: ignore[no-untyped-def]
    if age > 0:
        for k in range(len(taus)):
            x = age / taus[k]
            sums[k] = sums[k] * math.exp(-x) if x < _UNDERFLOW else 0.0


@njit(nogil=True, cache=True)
def _fill_stored(  # type: ignore[no-untyped-def]
    begin, end, row_start, nbr, pos, src, elapsed, role, clock, knots, taus, start, stored, stored_count, stored_last
):
    for u in range(begin, end):
        _store_row(
            u, row_start, nbr, pos, src, elapsed, role, clock, knots, taus, start, stored, stored_count, stored_last
        )


@njit
def lookup_scalar(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, src, elapsed, role, clock, knots, taus, start, stored, stored_count, stored_last, first_pos,
    tau_index, u, cut, t, sums,
):  # fmt: skip
    """`ActivityBank.lookup` of one node: fill ``sums`` (K,); return count, degree, and the first and the last time.

    ``taus`` (K,) are some of the bank's time constants, ``tau_index`` (K,) their places there.
    """
    n = degree_scalar(row_start, pos, u, cut)
    sums[:] = 0.0
    if n == 0 or not 0 <= first_pos[u] < cut:
        return 0, n, 0.0, 0.0
    row, count, latest = row_start[u], 0, -1
    now = rescale_scalar(t, clock[0], clock[1], knots)
    now = max(now, rescale_scalar(elapsed[pos[row + n - 1]], clock[0], clock[1], knots))
    n_stored = n // STRIDE
    if n_stored > 0:
        which = start[u] + n_stored - 1
        for k in range(len(tau_index)):
            sums[k] = stored[which, tau_index[k]]
        base = elapsed[pos[row + n_stored * STRIDE - 1]]
        _decay(sums, now - rescale_scalar(base, clock[0], clock[1], knots), taus)
        count, latest = stored_count[which], stored_last[which]
    for at in range(row + n_stored * STRIDE, row + n):
        if is_in_role(role, u, nbr[at], src[pos[at]]):
            age = max(now - rescale_scalar(elapsed[pos[at]], clock[0], clock[1], knots), 0.0)
            for k in range(len(taus)):
                x = age / taus[k]
                if x < _UNDERFLOW:
                    sums[k] += math.exp(-x)
            count += 1
            latest = pos[at]
    return count, n, elapsed[first_pos[u]], elapsed[latest]


@njit
def _store_row(  # type: ignore[no-untyped-def]
    u, row_start, nbr, pos, src, elapsed, role, clock, knots, taus, start, stored, stored_count, stored_last
):
    if start[u + 1] == start[u]:
        return
    sums = np.zeros(len(taus))
    count, last, now = 0, -1, 0.0
    for c in range(start[u + 1] - start[u]):
        first = row_start[u] + c * STRIDE
        for at in range(first, first + STRIDE):
            in_role = is_in_role(role, u, nbr[at], src[pos[at]])
            if in_role or at == first + STRIDE - 1:  # decay is needed only here
                t = rescale_scalar(elapsed[pos[at]], clock[0], clock[1], knots)
                _decay(sums, t - now, taus)
                now = max(now, t)
            if in_role:
                count, last = count + 1, pos[at]
                for k in range(len(taus)):
                    sums[k] += 1.0
        for k in range(len(taus)):
            stored[start[u] + c, k] = sums[k]
        stored_count[start[u] + c], stored_last[start[u] + c] = count, last


@njit(nogil=True, cache=True)
def _fill_lookup(  # type: ignore[no-untyped-def]
    begin, end,
    row_start, nbr, pos, src, elapsed, role, clock, knots, taus, start, stored, stored_count, stored_last, first_pos,
    node, cut, t, sums, count, degree, first, last,
):  # fmt: skip
    tau_index = np.arange(len(taus))
    for i in range(begin, end):
        count[i], degree[i], first[i], last[i] = lookup_scalar(
            row_start, nbr, pos, src, elapsed, role, clock, knots, taus,
            start, stored, stored_count, stored_last, first_pos, tau_index, node[i], cut[i], t[i], sums[i],
        )  # fmt: skip


@njit(cache=True)
def _sum_last_events(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, src, elapsed, role, clock, knots, taus, low, high, cut, out
):
    for u in range(len(row_start) - 1):
        last = -1.0
        for at in range(row_start[u], row_start[u + 1]):
            if pos[at] >= cut:
                break
            if is_in_role(role, u, nbr[at], src[pos[at]]):
                t = rescale_scalar(elapsed[pos[at]], clock[0], clock[1], knots)
                _add_last_event(out, taus, last, low, t)
                last = t
        _add_last_event(out, taus, last, low, high)


@njit
def _add_last_event(out, taus, last, low, until):  # type: ignore[no-untyped-def]
    """Add the integrals from ``low``, or the last event if it is later, to ``until``. A negative time: no event."""
    since = max(low - last, 0.0)
    if last >= 0 and until - last > since:
        for k in range(len(taus)):
            out[k] += math.exp(-since / taus[k]) - math.exp(-(until - last) / taus[k])
