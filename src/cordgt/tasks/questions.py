"""Questions about a horizon: does this node act within it, does this pair meet within it?

A question is asked at a random time ``t`` about a random node that was seen before: a user asks about all of them. It
sees the events up to ``t``. Half of the pairs are with an earlier partner of the source, half with any destination
that was seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numba import njit, prange

from cordgt.history.activity import ROLES, ActivityBank, is_in_role
from cordgt.history.index import flat_int64, run_loop

MIN_QUESTIONS = 1000  # for a small stream


def limit_questions(most: int, n_events: int) -> int:
    """Return a number of questions for a stream: one for each event, at least `MIN_QUESTIONS`, at most ``most``."""
    return min(most, max(MIN_QUESTIONS, n_events))


@dataclass(frozen=True)
class Questions:
    """Questions (n,), by time. Times are elapsed times."""

    node: np.ndarray  # (n,) int64
    t: np.ndarray  # (n,) float64
    cut: np.ndarray  # (n,) int64, number of visible events
    partner: np.ndarray | None = None  # (n,) int64, the destination of a question about a pair

    def __len__(self) -> int:
        return len(self.node)

    def take(self, rows: np.ndarray) -> Questions:
        """Return the questions at ``rows``, an array of places or a mask."""
        partner = None if self.partner is None else self.partner[rows]
        return Questions(self.node[rows], self.t[rows], self.cut[rows], partner)


def sample_questions(bank: ActivityBank, begin: float, end: float, *, n: int, seed: int) -> Questions:
    """Draw ``n`` questions about nodes of the bank's role, asked between two elapsed times.

    None if no node was seen by then, or if ``end`` is before ``begin``. The bank is on the CPU.
    """
    random = np.random.default_rng(seed)
    elapsed = bank.index.elapsed.numpy()
    t = np.sort(begin + (end - begin) * random.random(n if end >= begin else 0))
    cut = np.searchsorted(elapsed, t, side="right")
    node, is_known = choose_known(random.random(len(t)), bank, cut)
    return Questions(node, t, cut).take(is_known)


def choose_known(share: np.ndarray, bank: ActivityBank, cut: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a node with an event in the bank's role before each cut, the one at a share of them; False: none is.

    Shares are in [0, 1). Shapes broadcast.
    """
    first = bank.first_pos.numpy()
    order = np.argsort(first, kind="stable")
    order = order[first[order] >= 0]
    n_known = np.searchsorted(first[order], cut)
    place = (share * n_known).astype(np.int64)
    return (order[place] if len(order) else place), np.broadcast_to(n_known > 0, place.shape)


def add_partners(questions: Questions, destinations: ActivityBank, *, seed: int) -> Questions:
    """Add a destination to each question: half are those of earlier events of the source, half any that was seen."""
    random = np.random.default_rng((seed, 1))
    chance, share, is_past = random.random((3, len(questions)))
    any_partner, _ = choose_known(chance, destinations, questions.cut)
    past = torch.empty(len(questions), dtype=torch.int64)
    index = destinations.index
    columns = (torch.from_numpy(x) for x in (questions.node, questions.cut, share))
    run_loop(_fill_past_partners, index.row_start, index.nbr, index.pos, index.src, *columns, past)
    partner = np.where((is_past < 0.5) & (past.numpy() >= 0), past.numpy(), any_partner)
    return replace(questions, partner=partner)


def acts_within(bank: ActivityBank, questions: Questions, horizon: float) -> np.ndarray:
    """Return (n,) bool: the node has an event in the bank's role in ``(t, t + horizon]``."""
    return has_event(bank, questions.node, questions.cut, _cut_after(bank, questions, horizon))


def meets_within(bank: ActivityBank, questions: Questions, horizon: float) -> np.ndarray:
    """Return (n,) bool: the node has an event in the bank's role with its partner in ``(t, t + horizon]``."""
    return has_event(bank, questions.node, questions.cut, _cut_after(bank, questions, horizon), questions.partner)


def has_event(
    bank: ActivityBank, node: np.ndarray, cut: np.ndarray, later: np.ndarray, partner: np.ndarray | None = None
) -> np.ndarray:
    """Return (...) bool: the node has an event in the bank's role, with the partner, from ``cut`` up to ``later``.

    Without partners any event counts. The bank is on the CPU. Shapes broadcast.
    """
    index = bank.index
    partner = np.array(-1) if partner is None else partner
    columns = [torch.from_numpy(np.ascontiguousarray(x)) for x in np.broadcast_arrays(node, partner, cut, later)]
    outcome = torch.empty(columns[0].shape, dtype=torch.bool)
    rows = index.row_start, index.nbr, index.pos, index.src
    run_loop(_fill_outcomes, *rows, ROLES.index(bank.role), *(flat_int64(x) for x in columns), outcome.view(-1))
    return outcome.numpy()


def next_event_times(bank: ActivityBank, node: np.ndarray, cut: np.ndarray) -> np.ndarray:
    """Return the elapsed time (n,) of each node's first event in the bank's role from ``cut`` on; inf if none is."""
    index, out = bank.index, torch.empty(len(node), dtype=torch.float64)
    rows = index.row_start, index.nbr, index.pos, index.src, index.elapsed
    run_loop(_fill_next, *rows, ROLES.index(bank.role), *(torch.from_numpy(x) for x in (node, cut)), out)
    return out.numpy()


def _cut_after(bank: ActivityBank, questions: Questions, horizon: float) -> np.ndarray:
    return np.searchsorted(bank.index.elapsed.numpy(), questions.t + horizon, side="right")


@njit(parallel=True, cache=True)
def _fill_past_partners(row_start, nbr, pos, src, node, cut, share, past):  # type: ignore[no-untyped-def]
    """Find the destination of a random earlier event of each source: the one at a share of them. -1: none."""
    for i in prange(len(node)):
        count, u = 0, node[i]
        for at in range(row_start[u], row_start[u + 1]):
            if pos[at] >= cut[i]:
                break
            count += src[pos[at]] == u
        rank = int(share[i] * count)
        past[i] = -1
        for at in range(row_start[u], row_start[u + 1]):
            if pos[at] >= cut[i]:
                break
            if src[pos[at]] == u:
                if rank == 0:
                    past[i] = nbr[at]
                    break
                rank -= 1


@njit(inline="always")
def _first_entry(row_start, pos, node, cut):  # type: ignore[no-untyped-def]
    """Return the place of the node's first row entry at or after the cut."""
    low, high = row_start[node], row_start[node + 1]
    while low < high:
        middle = (low + high) // 2
        if pos[middle] < cut:
            low = middle + 1
        else:
            high = middle
    return low


@njit(parallel=True, cache=True)
def _fill_outcomes(row_start, nbr, pos, src, role, node, partner, cut, later, outcome):  # type: ignore[no-untyped-def]
    """Find whether each node has an event in the role, with its partner unless that is -1, from cut up to later."""
    for i in prange(len(node)):
        u = node[i]
        outcome[i] = False
        for at in range(_first_entry(row_start, pos, u, cut[i]), row_start[u + 1]):
            if pos[at] >= later[i]:
                break
            if is_in_role(role, u, nbr[at], src[pos[at]]) and (partner[i] < 0 or nbr[at] == partner[i]):
                outcome[i] = True
                break


@njit(parallel=True, cache=True)
def _fill_next(row_start, nbr, pos, src, elapsed, role, node, cut, out):  # type: ignore[no-untyped-def]
    for i in prange(len(node)):
        u = node[i]
        out[i] = np.inf
        for at in range(_first_entry(row_start, pos, u, cut[i]), row_start[u + 1]):
            if is_in_role(role, u, nbr[at], src[pos[at]]):
                out[i] = elapsed[pos[at]]
                break
