"""Negatives that replace the source too: whole pairs, drawn for a batch of events at once, at evaluation only.

- `draw_negative_pairs`: past pairs (source and destination) that are absent from the batch, as in DGB and DyGLib.
- `draw_random_pairs`: any pairs that are absent from the batch, where there are too few past ones.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from cordgt.history import rng
from cordgt.runtime.threads import parallel_map

_MAX_ATTEMPTS = 64
_BATCHES_PER_TASK = 64  # drawn by one thread


def draw_negative_pairs(
    src: np.ndarray,
    dst: np.ndarray,
    t: np.ndarray,
    batches: list[np.ndarray],
    *,
    trained_until: float | None,
    seed: int,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each batch of positions, draw as many distinct past pairs that are absent from its time range.

    As in the DGB benchmark and DyGLib: the past is every (src, dst) up to and including the time of the batch's first
    event, without the pairs in the batch's own time range and, where ``trained_until`` is given, without those up to
    that time. Returns fewer pairs if too few exist.
    """
    width = np.int64(int(dst.max(initial=0)) + 1)
    pairs, first, pair_of_event = np.unique(src * width + dst, return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    n_trained = 0 if trained_until is None else int(np.searchsorted(t, trained_until, side="right"))
    start, end = (t[[batch[place] for batch in batches]] for place in (0, -1))
    until = np.searchsorted(t, start, side="right")
    # one past the last pair, by first event, of those that each batch may draw; and the events of its own time range
    bounds = np.searchsorted(first[by_first], np.stack([np.full_like(until, n_trained), until]))
    own = np.stack([np.searchsorted(t, start, side="left"), np.searchsorted(t, end, side="right")])
    keys = rng.fold_in(rng.mix64_int(seed), torch.arange(len(batches))).numpy().view(np.uint64)

    def draw(some: range) -> list[np.ndarray]:
        is_own, buffer = np.zeros(len(pairs), dtype=np.bool_), np.empty((2, len(pairs)), dtype=np.uint64)
        chosen = []
        for b in some:
            own_pairs = pair_of_event[own[0, b] : own[1, b]]
            is_own[own_pairs] = True
            chosen.append(
                _smallest_hashes(keys[b], len(batches[b]), by_first[bounds[0, b] : bounds[1, b]], is_own, buffer)
            )
            is_own[own_pairs] = False
        return chosen

    ranges = (range(i, min(i + _BATCHES_PER_TASK, len(batches))) for i in range(0, len(batches), _BATCHES_PER_TASK))
    found = (pairs[chosen] for some in parallel_map(draw, ranges) for chosen in some)
    return [(pair // width, pair % width) for pair in found]


def _smallest_hashes(
    key: np.uint64, size: int, candidates: np.ndarray, is_own: np.ndarray, buffer: np.ndarray
) -> np.ndarray:
    """Return the ``size`` candidates with the smallest hashes in ascending order of these, without the batch's own."""
    share = (2.0 * size + 32.0) / max(len(candidates), 1)  # of the hashes: nearly always enough, and few to sort
    while True:
        limit = int(min(share, 1.0) * 2.0**64) - 1
        n = _collect_hashes(key, np.uint64(limit), candidates, is_own, buffer)
        if n >= size or share >= 1.0:
            return buffer[1, :n][np.argsort(buffer[0, :n])][:size].astype(np.int64)
        share *= 4.0


@njit(cache=True, nogil=True)
def _collect_hashes(key, limit, candidates, is_own, buffer):  # type: ignore[no-untyped-def]
    """Write hash and number of each candidate up to ``limit`` into ``buffer`` (2, n); return how many."""
    n = 0
    for pair in candidates:
        value = rng.fold_in_u64(key, pair)
        if value <= limit and not is_own[pair]:
            buffer[0, n], buffer[1, n] = value, pair
            n += 1
    return n


def draw_random_pairs(
    src: np.ndarray, dst: np.ndarray, n: int, absent: tuple[np.ndarray, np.ndarray], *, key: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw ``n`` pairs of any source of ``src`` with any destination of ``dst``, uniformly, but none of ``absent``.

    A pair may be drawn twice. Where a draw is in ``absent`` 64 times in a row, it stays: nearly every pair is in it.
    """
    sources, destinations = np.unique(src), np.unique(dst)
    width = np.int64(max(int(x.max(initial=0)) for x in (dst, absent[1])) + 1)
    taken = np.unique(absent[0] * width + absent[1])
    u, v = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    left = np.arange(n)
    for attempt in range(_MAX_ATTEMPTS):
        if not len(left):
            break
        draw = rng.fold_in(rng.fold_in_int(key, attempt), torch.from_numpy(left))
        u[left] = sources[rng.randint(rng.fold_in(draw, torch.zeros_like(draw)), len(sources)).numpy()]
        v[left] = destinations[rng.randint(rng.fold_in(draw, torch.ones_like(draw)), len(destinations)).numpy()]
        left = left[np.isin(u[left] * width + v[left], taken)]
    return u, v
