"""Negative sampling. Each draw is a function of the seed and the event.

- `draw_negatives`: any destination of a pool except the true one.
- `draw_partners`: a past partner of the source that it does not meet now. Harder, and a pure function of ``cut``.
- `draw_pairs`: past pairs (source and destination) that are absent from the batch, as in the DGB benchmark and DyGLib.
- `draw_candidates`: many destinations at once, for ranking.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.errors import DataError
from cordgt.history import rng
from cordgt.history.index import TemporalIndex, lower_bound_scalar
from cordgt.history.rng import below_u64, child_u64

_TAG = 0x6E6567  # makes these draws independent of those that sample history


def check_pool(pool: Tensor) -> None:
    """DataError where a pool has too few destinations to draw a negative for every event."""
    if len(pool) < 2:
        raise DataError(
            "There is only one destination to draw negatives from. "
            "Give data with at least two destinations, or draw among all nodes (--set pool=nodes)."
        )


def negatives_key(seed: int) -> int:
    """The hashed seed of all draws in this module."""
    return rng.child_int(rng.mix_int(seed), _TAG)


def draw_negatives(
    pool: Tensor, dst: Tensor, position: Tensor, *, seed: int, epoch: Tensor | int = 0, n: int = 1
) -> Tensor:
    """Draw ``n`` nodes of ``pool`` for each query, uniformly and never ``dst``: (B, n) int64.

    The source may be drawn, and a node may be drawn twice. Shapes: pool (P,) int64, ascending and distinct, P >= 2; dst
    and position (B,) int64.
    """
    key = rng.epoch_key(negatives_key(seed), epoch)
    key = rng.child(key, position).unsqueeze(-1)
    more = rng.child(key, torch.arange(1, n, device=pool.device))  # the first draw does not depend on n
    key = torch.cat([key, more], dim=-1)
    dst = dst.unsqueeze(-1)
    place = torch.searchsorted(pool, dst)
    in_pool = pool[place.clamp_max(len(pool) - 1)] == dst
    drawn = rng.below(key, len(pool) - in_pool.long())
    return pool[drawn + (in_pool & (drawn >= place)).long()]


def draw_partners(
    index: TemporalIndex,
    pool: np.ndarray,
    src: np.ndarray,
    cut: np.ndarray,
    own_start: np.ndarray,
    own_end: np.ndarray,
    position: np.ndarray,
    *,
    since: int,
    seed: int,
) -> np.ndarray:
    """Draw a node of the pool that the source met in its first ``cut`` events and does not meet now; -1 where none is.

    Both directions count as a meeting. The pair must have met first at position ``since`` or later: 0 gives
    *historical* negatives, the end of training gives *inductive* ones, which training cannot have seen. "Now" is the
    query's own time, the events from ``own_start`` up to ``own_end``. All matching nodes are equally likely.

    Shapes: (B,) int64 each; pool (P,) ascending. The index is on the CPU.
    """
    out = np.empty(len(src), dtype=np.int64)
    key = np.uint64(negatives_key(seed) % 2**64)
    in_pool = np.zeros(max(index.n_nodes, int(pool.max(initial=-1)) + 1), dtype=np.bool_)
    in_pool[pool] = True
    arrays = (index.pair_start, index.pair_nbr, index.pair_pos_start, index.pair_pos)
    pair_start, pair_nbr, pair_pos_start, pair_pos = (a.numpy() for a in arrays)
    _pick_partners(
        pair_start, pair_nbr, pair_pos_start, pair_pos, in_pool, src, cut, own_start, own_end, position, since, key, out
    )
    return out


@njit(inline="always")
def _fits(pair, pair_nbr, pair_pos_start, pair_pos, in_pool, cut, own_start, own_end, since):  # type: ignore[no-untyped-def]
    first, end = pair_pos_start[pair], pair_pos_start[pair + 1]
    met = since <= pair_pos[first] < cut
    if not (met and in_pool[pair_nbr[pair]]):
        return False
    now = lower_bound_scalar(pair_pos, first, end, own_start)
    return not (now < end and pair_pos[now] < own_end)


@njit(parallel=True, cache=True)
def _pick_partners(  # type: ignore[no-untyped-def]
    pair_start, pair_nbr, pair_pos_start, pair_pos, in_pool, src, cut, own_start, own_end, position, since, key, out
):
    for i in prange(len(src)):
        u = src[i]
        start, stop = pair_start[u], pair_start[u + 1]
        n = 0
        for pair in range(start, stop):
            if _fits(pair, pair_nbr, pair_pos_start, pair_pos, in_pool, cut[i], own_start[i], own_end[i], since):
                n += 1
        out[i] = -1
        left = below_u64(child_u64(child_u64(key, 0), position[i]), n)
        if n > 0:
            for pair in range(start, stop):
                if _fits(pair, pair_nbr, pair_pos_start, pair_pos, in_pool, cut[i], own_start[i], own_end[i], since):
                    if left == 0:
                        out[i] = pair_nbr[pair]
                        break
                    left -= 1


def draw_pairs(
    src: np.ndarray,
    dst: np.ndarray,
    t: np.ndarray,
    batches: list[np.ndarray],
    *,
    trained_until: float | None,
    seed: int,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each batch of positions, draw as many distinct past pairs that do not occur in its time range.

    As in the DGB benchmark and DyGLib: the past is every (src, dst) up to and including the time of the batch's first
    event, without the pairs in the batch's own time range and, where ``trained_until`` is given, without those up to
    that time. Returns fewer pairs where too few exist; the caller fills up.
    """
    pairs, which = np.unique(np.stack([src, dst], axis=1), axis=0, return_inverse=True)
    which = which.reshape(-1)
    first = np.full(len(pairs), len(src), dtype=np.int64)
    np.minimum.at(first, which, np.arange(len(src)))
    trained = 0 if trained_until is None else int(np.searchsorted(t, trained_until, side="right"))
    found = []
    for number, batch in enumerate(batches):
        start, end = t[batch[0]], t[batch[-1]]
        past = first < np.searchsorted(t, start, side="right")
        past[which[np.searchsorted(t, start, side="left") : np.searchsorted(t, end, side="right")]] = False
        past &= first >= trained
        fits = np.flatnonzero(past)
        key = rng.child(rng.child_int(rng.mix_int(seed), number), torch.from_numpy(fits)).numpy().view(np.uint64)
        chosen = fits[np.argsort(key, kind="stable")[: len(batch)]]
        found.append((pairs[chosen, 0], pairs[chosen, 1]))
    return found


def draw_candidates(pool: np.ndarray, n: int, dst: np.ndarray, position: np.ndarray, *, seed: int) -> np.ndarray:
    """Draw ``n`` distinct nodes of the pool for each query, never ``dst``: (B, n) int64.

    Where the pool has at most ``n`` nodes, all of them are returned, (B, P), with -1 in the place of ``dst``. Shapes:
    pool (P,) ascending; dst and position (B,).
    """
    if n >= len(pool):
        everyone = np.broadcast_to(pool, (len(dst), len(pool)))
        return np.where(everyone == dst[:, None], -1, everyone)
    out = np.empty((len(dst), n), dtype=np.int64)
    _pick_candidates(pool, dst, position, np.uint64(negatives_key(seed) % 2**64), out)
    return out


@njit(parallel=True, cache=True)
def _pick_candidates(pool, dst, position, key, out):  # type: ignore[no-untyped-def]
    """Floyd's algorithm for distinct draws: the j-th draw is below its own bound, and is the bound itself if taken."""
    n = out.shape[1]
    for i in prange(len(dst)):
        own = child_u64(child_u64(key, 0), position[i])
        place = np.searchsorted(pool, dst[i])
        skip = place < len(pool) and pool[place] == dst[i]
        free = len(pool) - (1 if skip else 0)
        chosen = np.empty(n, dtype=np.int64)
        for j in range(n):
            bound = free - n + j
            drawn = below_u64(child_u64(own, j), bound + 1)
            for k in range(j):
                if chosen[k] == drawn:
                    drawn = bound
                    break
            chosen[j] = drawn
            at = drawn + 1 if skip and drawn >= place else drawn
            out[i, j] = pool[at]
