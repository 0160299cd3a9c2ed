"""Compiled loops for `cordgt.history.collaborative`, which defines the columns; they are written by number here.

A thread works on its queries one after the other. Its hash tables are allocated once: an entry counts only if it
carries the number of the present item of work, so nothing is cleared.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from cordgt.history.index import degree_scalar, lower_bound_scalar


@njit
def _find(keys, owner, key, query):  # type: ignore[no-untyped-def]
    """Return the slot of a key in an open hash table: its own, or the free one where it belongs."""
    mask = len(keys) - 1
    slot = (key * 2654435761) & mask
    while owner[slot] == query and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@njit
def _rarity(n_events):  # type: ignore[no-untyped-def]
    """Return the weight of a visitor that had ``n_events`` events before its visit: busy visitors say less."""
    return 1.0 / math.log2(2.0 + n_events)


@njit
def _age(row_start, pos, elapsed, node, degree, rank, t, cut):  # type: ignore[no-untyped-def]
    """Return the age of the ``rank``-th latest event (1: the latest), or of the stream if there are fewer events."""
    if t <= 0:
        return 0.0
    since = 0.0
    if degree >= rank:
        since = elapsed[pos[row_start[node] + degree - rank]]
    return max(t - since, 0.0) / max(t, 1e-300) * cut


@njit
def _read_partners(row_start, nbr, pos, nbr_degree, u, degree, n_events, partner, rarity):  # type: ignore[no-untyped-def]
    """Fill the distinct partners of the latest events of ``u``, latest first; return their number."""
    n = 0
    for r in range(min(n_events, degree)):
        at = row_start[u] + degree - 1 - r
        i = nbr[at]
        is_new = i != u
        for a in range(n):
            if partner[a] == i:
                is_new = False
        if is_new:
            partner[n], rarity[n] = i, _rarity(nbr_degree[at])
            n += 1
    return n


@njit
def _table_size(n):  # type: ignore[no-untyped-def]
    """Return a power of two that leaves half of a hash table of ``n`` keys free."""
    size = 4
    while size < 2 * n:
        size *= 2
    return size


@njit(cache=True)
def _fill_items(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, nbr_degree, elapsed, src, dst, t, cut, n_partners, n_visits, n_sequences, n_steps, n_ranks,
    first_item, end_item, n_blocks, out,
):  # fmt: skip
    n_candidates = dst.shape[1]
    size, after_size = _table_size(n_partners * n_visits), _table_size(n_sequences * n_visits * n_steps)
    seen_size = _table_size(n_visits)
    keys, owner, stamp = np.empty(size, np.int64), np.full(size, -1, np.int64), np.empty(size, np.int64)
    value = np.empty((size, 3))  # of a visitor: cosine, decayed, decayed and by rarity
    after_keys, after_owner = np.empty(after_size, np.int64), np.full(after_size, -1, np.int64)
    after_value = np.empty((after_size, 3))  # of a next node: next, soon after the last partner, after recent ones
    seen_keys, seen_owner = np.empty(seen_size, np.int64), np.full(seen_size, -1, np.int64)
    partner, partner_rarity = np.empty(n_partners, np.int64), np.empty(n_partners)
    visitor, visitor_rarity = np.empty(n_visits, np.int64), np.empty(n_visits)
    for item in range(first_item, end_item):
        b, block = item // n_blocks, item % n_blocks
        u, limit, now = src[b], cut[b], t[b]
        degree = degree_scalar(row_start, pos, u, limit)
        n_found = _read_partners(row_start, nbr, pos, nbr_degree, u, degree, n_partners, partner, partner_rarity)
        for a in range(n_found):
            i = partner[a]
            degree_i = degree_scalar(row_start, pos, i, limit)
            n_distinct, n_counted = 0, 0
            n_read = min(n_visits, degree_i)
            for r in range(n_read):
                at = row_start[i] + degree_i - 1 - r
                w = nbr[at]
                if w in (u, i):
                    continue
                n_counted += 1
                slot = _find(keys, owner, w, item)
                if owner[slot] != item:
                    owner[slot], keys[slot], stamp[slot] = item, w, -1
                    value[slot] = 0.0
                if stamp[slot] != a:
                    stamp[slot] = a
                    visitor[n_distinct], visitor_rarity[n_distinct] = slot, _rarity(nbr_degree[at])
                    n_distinct += 1
            for k in range(n_distinct):
                slot, share = visitor[k], 1.0 / math.sqrt(n_distinct)
                value[slot, 0] += share
                value[slot, 1] += share / (1 + a)
                value[slot, 2] += share / (1 + a) * visitor_rarity[k]
            if a >= n_sequences:
                continue
            for r in range(n_read):
                at = row_start[i] + degree_i - 1 - r
                w = nbr[at]
                if w in (u, i):
                    continue
                end = row_start[w + 1]
                follow = lower_bound_scalar(pos, row_start[w] + nbr_degree[at], end, pos[at] + 1)
                for s in range(n_steps):
                    if follow + s >= end or pos[follow + s] >= limit:
                        break
                    x = nbr[follow + s]
                    slot = _find(after_keys, after_owner, x, item)
                    if after_owner[slot] != item:
                        after_owner[slot], after_keys[slot] = item, x
                        after_value[slot] = 0.0
                    soon = 1.0 / ((1 + s) * math.sqrt(n_counted))
                    if a == 0 and s == 0:
                        after_value[slot, 0] += 1.0 / n_counted
                    if a == 0:
                        after_value[slot, 1] += soon
                    after_value[slot, 2] += soon / (1 + a)
        for m in range(block * n_candidates // n_blocks, (block + 1) * n_candidates // n_blocks):
            v, query = dst[b, m], b * n_candidates + m
            row = out[b, m]
            row[:] = 0.0
            degree_v = degree_scalar(row_start, pos, v, limit)
            n_distinct = 0
            for r in range(min(n_visits, degree_v)):
                at = row_start[v] + degree_v - 1 - r
                w = nbr[at]
                if w in (u, v):
                    continue
                seen = _find(seen_keys, seen_owner, w, query)
                if seen_owner[seen] == query:
                    continue
                seen_owner[seen], seen_keys[seen] = query, w
                n_distinct += 1
                slot = _find(keys, owner, w, item)
                if owner[slot] == item:
                    row[0] += 1
                    row[1] += value[slot, 0]
                    row[2] += value[slot, 1]
                    row[3] += value[slot, 2]
                for a in range(n_found):
                    if partner[a] == w:
                        row[4] += 1
                        row[5] += partner_rarity[a]
            if n_distinct:
                for k in range(1, 4):
                    row[k] /= math.sqrt(n_distinct)
            if v >= 0:
                slot = _find(after_keys, after_owner, v, item)
                if after_owner[slot] == item:
                    for k in range(3):
                        row[6 + k] = after_value[slot, k]
                    row[9] = row[8] / math.sqrt(max(degree_v, 1))
            row[10], row[11] = n_found, n_distinct
            row[12] = _age(row_start, pos, elapsed, u, degree, max(degree, 1), now, limit)
            row[13] = _age(row_start, pos, elapsed, v, degree_v, max(degree_v, 1), now, limit)
            for k in range(n_ranks):
                rank = 4 ** (k + 1)
                row[14 + k] = _age(row_start, pos, elapsed, u, degree, rank, now, limit)
                row[14 + n_ranks + k] = _age(row_start, pos, elapsed, v, degree_v, rank, now, limit)


@njit(parallel=True, cache=True)
def fill_collaborative(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, nbr_degree, elapsed, src, dst, t, cut, n_partners, n_visits, n_sequences, n_steps, n_ranks,
    n_threads, out,
):  # fmt: skip
    """Write all columns of every pair: out (B, M, Q) float64.

    An item of work is a query, or a block of its candidates where there are fewer queries than threads.
    """
    n_queries, n_candidates = dst.shape
    n_blocks = max(1, min(n_threads // max(n_queries, 1), n_candidates // 64))
    n_items = n_queries * n_blocks
    for thread in prange(n_threads):
        _fill_items(
            row_start, nbr, pos, nbr_degree, elapsed, src, dst, t, cut, n_partners, n_visits, n_sequences, n_steps,
            n_ranks, thread * n_items // n_threads, (thread + 1) * n_items // n_threads, n_blocks, out,
        )  # fmt: skip
