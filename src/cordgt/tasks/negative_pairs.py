"""Negatives that replace the source too: whole pairs, drawn for a batch of events at once, at evaluation only.

- `draw_negative_pairs`: past pairs (source and destination) that are absent from the batch, as in DGB and DyGLib.
- `draw_random_pairs`: any pairs that are absent from the batch, where there are too few past ones.
"""

from __future__ import annotations

import numpy as np
import torch

from cordgt.history import rng

_MAX_ATTEMPTS = 64


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
    pairs, pair_of_event = np.unique(np.stack([src, dst], axis=1), axis=0, return_inverse=True)
    pair_of_event = pair_of_event.reshape(-1)
    first = np.full(len(pairs), len(src), dtype=np.int64)
    np.minimum.at(first, pair_of_event, np.arange(len(src)))
    n_trained = 0 if trained_until is None else int(np.searchsorted(t, trained_until, side="right"))
    found = []
    for number, batch in enumerate(batches):
        start, end = t[batch[0]], t[batch[-1]]
        past = first < np.searchsorted(t, start, side="right")
        in_batch = slice(np.searchsorted(t, start, side="left"), np.searchsorted(t, end, side="right"))
        past[pair_of_event[in_batch]] = False
        past &= first >= n_trained
        eligible = np.flatnonzero(past)
        key = (
            rng.fold_in(rng.fold_in_int(rng.mix64_int(seed), number), torch.from_numpy(eligible))
            .numpy()
            .view(np.uint64)
        )
        chosen = eligible[np.argsort(key, kind="stable")[: len(batch)]]
        found.append((pairs[chosen, 0], pairs[chosen, 1]))
    return found


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
