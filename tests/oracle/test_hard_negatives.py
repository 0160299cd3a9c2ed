"""Hard negatives, negative pairs and ranking candidates, compared with Python sets."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.tasks.negative_pairs import draw_negative_pairs, draw_random_pairs
from cordgt.tasks.negatives import draw_candidates, draw_hard_negatives

from . import slow
from .helpers import TEN, build
from .strategies import Stream, seeds, streams
from .test_negatives import TAG

pools = st.lists(st.integers(0, 11), max_size=10, unique=True).map(sorted)


def ints(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def chi_square(samples: list[Any], among: list[Any]) -> float:
    expected = len(samples) / len(among)
    assert set(samples) <= set(among)
    return sum((samples.count(one) - expected) ** 2 / expected for one in among)


# Partners ------------------------------------------------------------------------------------------------------------


Query = tuple[int, int, range, int]  # source, cut, the events of its own time, position


def partners(stream: Stream, pool: list[int], batch: list[Query], since: int = 0, seed: int = 0) -> list[int]:
    src, cut, now, position = zip(*batch, strict=True)
    got = draw_hard_negatives(
        build(stream), ints(pool), ints(src), ints(cut), ints([r.start for r in now]), ints([r.stop for r in now]),
        ints(position), since=since, seed=seed,
    )  # fmt: skip
    assert got.dtype == np.int64 and got.shape == (len(batch),)
    return got.tolist()


def own_time(stream: Stream, position: int) -> range:
    t = stream.t[position]
    return range(stream.t.index(t), stream.n_events - stream.t[::-1].index(t))


@st.composite
def queries(draw: st.DrawFn, stream: Stream) -> Query:
    """At some event's time, by its source or by anyone, seeing what is before that time or any other part."""
    p = draw(st.integers(0, stream.n_events - 1))
    now = own_time(stream, p)
    src = draw(st.one_of(st.just(stream.src[p]), st.integers(0, stream.n_nodes - 1)))
    cut = draw(st.one_of(st.just(now.start), st.integers(0, stream.n_events)))
    return src, cut, now, draw(st.one_of(st.just(p), st.integers(0, 2**40)))


@settings(max_examples=100)
@given(data=st.data(), stream=streams(), pool=pools, seed=seeds)
def test_hard_negatives(data: st.DataObject, stream: Stream, pool: list[int], seed: int) -> None:
    batch = data.draw(st.lists(queries(stream), min_size=1, max_size=6))
    since = data.draw(st.one_of(st.just(0), st.integers(0, stream.n_events + 1)))
    got = partners(stream, pool, batch, since, seed)
    for one, (src, cut, now, position) in zip(got, batch, strict=True):
        assert one == slow.partner(stream.history, pool, src, cut, now, position, since, seed, TAG)
        fit = slow.partners(stream.history, pool, src, cut, now, since)
        assert one in fit if fit else one == slow.PADDING


@settings(max_examples=30)
@given(data=st.data(), stream=streams(min_events=4), pool=pools)
def test_hard_negatives_are_pure_in_cut(data: st.DataObject, stream: Stream, pool: list[int]) -> None:
    """Whatever follows the query's own time may be missing, and whoever else is asked about may be too."""
    batch = [(src, now.start, now, p) for src, _, now, p in data.draw(st.lists(queries(stream), min_size=1))]
    whole = partners(stream, pool, batch)
    for one, query in zip(whole, batch, strict=True):
        assert partners(stream.first(query[2].stop), pool, [query]) == [one]


def test_hard_negatives_by_hand() -> None:
    """Events 0-1, 1-2, 0-1, 2-2, then at one time 0-3, 3-1, 1-0, then 4-0, 2-0, 1-4."""
    everyone, at_5, at_8, at_9 = list(range(6)), range(4, 7), range(8, 9), range(9, 10)
    assert partners(TEN, everyone, [(1, 4, at_5, 5)]) == [2]  # 1 met 0 and 2, and meets 3 and 0 now
    assert partners(TEN, everyone, [(0, 4, at_5, 4)]) == [-1]  # 0 met only 1, and meets it now as a destination
    assert partners(TEN, [0, 1, 3], [(2, 8, at_8, 8)]) == [1]  # 2 met 1 and itself, who is not in the pool
    assert partners(TEN, [2], [(2, 8, at_8, 8)]) == [2]  # a self-loop is a meeting
    assert partners(TEN, everyone, [(1, 9, at_9, 9)], since=5) == [3]  # 0 and 2 came first
    assert partners(TEN, everyone, [(1, 9, at_9, 9)], since=6) == [-1]  # 1 met 0 at 6, but not for the first time
    assert partners(TEN, everyone, [(5, 9, at_9, 9)]) == [-1]
    assert partners(TEN, [], [(1, 9, at_9, 9)]) == [-1]


def test_hard_negatives_are_uniform() -> None:
    """One that met the source a hundred times is as likely as one that met it once (chi-square, 4 df)."""
    dst = [1] * 100 + [2, 3, 4, 5, 6]
    stream = Stream([0] * len(dst), dst, list(range(len(dst))), 8, None)
    n = 5000
    batch = [(0, len(dst) - 1, range(104, 105), p) for p in range(n)]
    assert chi_square(partners(stream, list(range(8)), batch, seed=3), [1, 2, 3, 4, 5]) < 25
    assert chi_square(partners(stream, list(range(8)), batch, since=101, seed=3), [3, 4, 5]) < 22
    negatives = [partners(stream, list(range(8)), batch[:1], seed=seed)[0] for seed in range(400)]
    assert chi_square(negatives, [1, 2, 3, 4, 5]) < 25


@pytest.mark.usefixtures("all_threads")
def test_hard_negatives_do_not_depend_on_threads() -> None:
    """The compiled loop shares nothing between queries."""
    rng = np.random.default_rng(0)
    n, n_nodes = 4000, 60
    stream = Stream(
        rng.integers(0, n_nodes, n).tolist(), rng.integers(0, n_nodes, n).tolist(), list(range(n)), 60, None
    )
    batch = [(stream.src[p], p, range(p, p + 1), p) for p in range(n)]
    got = partners(stream, list(range(0, 60, 2)), batch, since=500)
    for p in range(0, n, 97):
        fit = slow.partner(stream.history, range(0, 60, 2), *batch[p], 500, 0, TAG)
        assert got[p] == fit


# Whole pairs ---------------------------------------------------------------------------------------------------------


def pairs(
    stream: Stream, batches: list[list[int]], trained_until: float | None = None, seed: int = 0
) -> list[list[slow.Pair]]:
    got = draw_negative_pairs(
        ints(stream.src), ints(stream.dst), stream.times, [ints(b) for b in batches],
        trained_until=trained_until, seed=seed,
    )  # fmt: skip
    return [list(zip(u.tolist(), v.tolist(), strict=True)) for u, v in got]


@settings(max_examples=100)
@given(data=st.data(), stream=streams(filtered=False), seed=seeds, size=st.integers(1, 9))
def test_negative_pairs(data: st.DataObject, stream: Stream, seed: int, size: int) -> None:
    positions = range(data.draw(st.integers(0, stream.n_events - 1)), stream.n_events)
    if data.draw(st.booleans()):  # only some of the events, as those of new nodes
        positions = [p for p in positions if stream.src[p] % 2 == 0] or list(positions)
    batches = [list(positions[i : i + size]) for i in range(0, len(positions), size)]
    until = data.draw(st.one_of(st.none(), st.sampled_from(stream.t)))
    got = pairs(stream, batches, until, seed)
    assert got == slow.pairs(stream.src, stream.dst, stream.t, batches, until, seed)
    for batch, negatives in zip(batches, got, strict=True):
        fit = slow.past_pairs(stream.src, stream.dst, stream.t, batch, until)
        assert set(negatives) <= fit
        assert len(negatives) == len(set(negatives)) == min(len(fit), len(batch))


def test_negative_pairs_by_hand() -> None:
    """Events 0-1, 1-2, 0-1, 2-2, then at one time 0-3, 3-1, 1-0, then 4-0, 2-0, 1-4. Pairs have a direction."""

    def every(start: int, end: int, until: float | None = None) -> set[slow.Pair]:
        """All that a batch from one event to another may draw: more room than pairs, by repeating the first."""
        return set(pairs(TEN, [[start] * 10 + [end]], until)[0])

    assert every(4, 6) == {(0, 1), (1, 2), (2, 2)}  # 1-0 now does not take out 0-1
    assert every(6, 6) == every(4, 6)  # the batch begins amid its time
    assert every(2, 4) == set()  # 0-1 and 1-2 are of the batch's first time, and 2-2 is still to come
    assert every(7, 7) == every(4, 6) | {(0, 3), (3, 1), (1, 0)}  # 4-0 is of the batch's time, 2-0 to come
    assert every(7, 7, until=13) == {(0, 3), (3, 1), (1, 0)}  # up to 13, that included
    assert every(9, 9) == set(zip(TEN.src, TEN.dst, strict=True)) - {(1, 4)}
    assert len(pairs(TEN, [[7, 8]])[0]) == 2
    assert pairs(TEN, [[7], [0]], trained_until=15) == [[], []]
    assert pairs(TEN, []) == []


@given(stream=streams(filtered=False), seed=seeds, n=st.integers(0, 20), data=st.data())
def test_random_pairs(stream: Stream, seed: int, n: int, data: st.DataObject) -> None:
    """Any source with any destination, but no pair of the batch, unless nearly all pairs are in the batch."""
    batch = data.draw(st.lists(st.integers(0, stream.n_events - 1), min_size=1, max_size=4))
    src, dst = ints(stream.src), ints(stream.dst)
    u, v = draw_random_pairs(src, dst, n, (src[batch], dst[batch]), key=seed)
    possible = set(product(stream.src, stream.dst))
    absent = {(stream.src[p], stream.dst[p]) for p in batch}
    got = list(zip(u.tolist(), v.tolist(), strict=True))
    assert got == slow.random_pairs(stream.src, stream.dst, n, absent, seed)
    assert len(got) == n and set(got) <= possible
    if 2 * len(absent) <= len(possible):
        assert not set(got) & absent
    elif possible <= absent:
        assert set(got) <= absent


def test_random_pairs_are_uniform() -> None:
    """Sources 0, 1, 2 with destinations 0, 1, 2, without 0-0: eight pairs (chi-square, 7 df)."""
    three = np.arange(3)
    u, v = draw_random_pairs(three, three, 4000, (three[:1], three[:1]), key=5)
    assert (
        chi_square(list(zip(u.tolist(), v.tolist(), strict=True)), sorted(set(product(range(3), range(3))) - {(0, 0)}))
        < 30
    )


def test_negative_pairs_are_uniform() -> None:
    """However often a pair met; each batch has a draw of its own (chi-square, 9 df: ten ways to choose 3 of 5)."""
    dst = [1] * 50 + [2, 3, 4, 5] + [6] * 3
    stream = Stream([0] * len(dst), dst, list(range(len(dst))), 8, None)
    negatives = pairs(stream, [[54, 55, 56]] * 2000, seed=1)
    subsets = [frozenset(v for _, v in batch) for batch in negatives]
    assert chi_square(subsets, [frozenset(c) for c in combinations((1, 2, 3, 4, 5), 3)]) < 35


# Candidates ----------------------------------------------------------------------------------------------------------


def candidates(pool: list[int], n: int, dst: list[int], position: list[int], seed: int = 0) -> list[list[int]]:
    """Without the padding."""
    got = draw_candidates(ints(pool), n, ints(dst), ints(position), seed=seed)
    assert got.dtype == np.int64 and got.shape == (len(dst), min(n, len(pool)))
    return [[one for one in row if one != slow.PADDING] for row in got.tolist()]


@settings(max_examples=100)
@given(
    pool=st.lists(st.integers(0, 30), min_size=2, max_size=14, unique=True).map(sorted),
    n=st.integers(1, 18),
    events=st.lists(st.tuples(st.integers(0, 32), st.integers(0, 2**40)), min_size=1, max_size=6),
    seed=seeds,
)
def test_candidates(pool: list[int], n: int, events: list[tuple[int, int]], seed: int) -> None:
    dst, position = (list(column) for column in zip(*events, strict=True))
    got = candidates(pool, n, dst, position, seed)
    assert got == [slow.candidates(pool, n, d, p, seed, TAG) for d, p in events]
    for row, d, p in zip(got, dst, position, strict=True):
        others = set(pool) - {d}
        assert set(row) <= others
        assert len(row) == len(set(row)) == min(n, len(others))
        assert candidates(pool, n, [d], [p], seed) == [row]  # whoever else is asked about


@pytest.mark.parametrize("dst", [2, 5, 11, 7])
def test_candidates_are_uniform(dst: int) -> None:
    """Every way to choose three of the others about equally often (chi-square, at most 9 df)."""
    pool, n = [2, 3, 5, 9, 11], 5000
    subsets = [frozenset(row) for row in candidates(pool, 3, [dst] * n, list(range(n)), seed=2)]
    ways = [frozenset(c) for c in combinations([node for node in pool if node != dst], 3)]
    assert chi_square(subsets, ways) < 35


def test_many_candidates_are_uniform() -> None:
    """A hundred of a thousand: each of the others a tenth of the time (chi-square, 998 df: 0 ± 5 deviations)."""
    n, dst = 2000, 300
    rows = draw_candidates(np.arange(1000), 100, np.full(n, dst), np.arange(n), seed=7)
    counts = np.bincount(rows.reshape(-1), minlength=1000)
    assert counts[dst] == 0
    others = np.delete(counts, dst)
    share = 100 / 999
    score = ((others - n * share) ** 2 / (n * share * (1 - share))).sum()
    assert abs(score - 999) < 5 * np.sqrt(2 * 999)
