"""Negatives: what a true event is told apart from, each draw a function of the seed and the event.

- `draw_negatives`: any destination of a pool but the true one.
- `draw_partners`: someone the source met before and does not meet now: harder, and pure in ``cut``.
- `draw_pairs`: whole pairs of the past that are absent from the batch, as the DGB benchmark and DyGLib draw them.
- `draw_candidates`: many destinations at once, for ranking.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.errors import DataError
from cordgt.past import draws
from cordgt.past.draws import below_u64, child_u64
from cordgt.past.index import TemporalIndex, lower_bound_scalar

_TAG = 0x6E6567  # keeps these draws apart from those of the trees


def check_pool(pool: Tensor) -> None:
    """DataError where a pool of destinations cannot give a negative for every event."""
    if len(pool) < 2:
        raise DataError(
            "There is only one destination to draw from, so no event can be told from a random one. "
            "Give data with at least two destinations, or draw among all nodes (--set pool=nodes)."
        )


def negatives_key(seed: int) -> int:
    """The hashed seed of every draw here."""
    return draws.child_int(draws.mix_int(seed), _TAG)


def draw_negatives(
    pool: Tensor, dst: Tensor, position: Tensor, *, seed: int, epoch: Tensor | int = 0, n: int = 1
) -> Tensor:
    """``n`` nodes of ``pool`` for each query, uniformly, never ``dst`` itself. The source may be drawn, a node twice.

    Shapes: pool (P,) int64, ascending and distinct, P >= 2; dst and position (B,) int64; (B, n) int64 comes back.
    """
    key = draws.epoch_key(negatives_key(seed), epoch)
    key = draws.child(key, position).unsqueeze(-1)
    more = draws.child(key, torch.arange(1, n, device=pool.device))  # the first draw is the same for every n
    key = torch.cat([key, more], dim=-1)
    dst = dst.unsqueeze(-1)
    place = torch.searchsorted(pool, dst)
    in_pool = pool[place.clamp_max(len(pool) - 1)] == dst
    drawn = draws.below(key, len(pool) - in_pool.long())
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
    """A node of the pool that each source met among the first ``cut`` events and does not meet now; -1 where none is.

    "Met" and "now" go either way. ``since`` asks for more: that the two first met at that position or later (0 for
    *historical* negatives; the end of training for *inductive* ones, pairs that training cannot have seen). The events
    ``own_start`` to ``own_end`` are those of the query's own time.

    Shapes: (B,) int64 each; pool (P,) ascending. The index is on the CPU. Uniform over the nodes that fit.
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
    """For each batch of positions, as many whole pairs of the past that its time does not hold, without repeats.

    As in the DGB benchmark and DyGLib: the past is every (src, dst) with a time up to that of the batch's first event,
    that time included; the pairs of the batch's own time range are taken out, and so, where ``trained_until`` is given,
    are those with a time up to it. Fewer pairs come back where there are fewer: the caller fills up.
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
        key = draws.child(draws.child_int(draws.mix_int(seed), number), torch.from_numpy(fits)).numpy().view(np.uint64)
        chosen = fits[np.argsort(key, kind="stable")[: len(batch)]]
        found.append((pairs[chosen, 0], pairs[chosen, 1]))
    return found


def draw_candidates(pool: np.ndarray, n: int, dst: np.ndarray, position: np.ndarray, *, seed: int) -> np.ndarray:
    """``n`` distinct nodes of the pool for each query, never ``dst``; all of the others where the pool has no more.

    Shapes: pool (P,) ascending; dst, position (B,); (B, n') int64 comes back, padded with -1 where dst is in the pool
    and so one fewer is left.
    """
    if n >= len(pool):
        everyone = np.broadcast_to(pool, (len(dst), len(pool)))
        return np.where(everyone == dst[:, None], -1, everyone)
    out = np.empty((len(dst), n), dtype=np.int64)
    _pick_candidates(pool, dst, position, np.uint64(negatives_key(seed) % 2**64), out)
    return out


@njit(parallel=True, cache=True)
def _pick_candidates(pool, dst, position, key, out):  # type: ignore[no-untyped-def]
    """Floyd's way to draw distinct numbers: the j-th draw is below its own bound, and yields to the bound if taken."""
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
