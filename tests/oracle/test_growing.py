"""`GrowingIndex` answers as an index that is built again after every append."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history.context import TreeShape, sample_trees
from cordgt.history.growing import GrowingIndex, SpareRoom
from cordgt.history.index import TemporalIndex
from cordgt.history.recent import recent_events

MAX_NODES = 7


@st.composite
def growing_streams(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """Source, destination and time of the events, and the sizes of the stream after each append."""
    n = draw(st.integers(2, 40))
    nodes = st.integers(0, MAX_NODES - 1)
    src, dst = (np.array(draw(st.lists(nodes, min_size=n, max_size=n))) for _ in range(2))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.5]), min_size=n, max_size=n))
    sizes = sorted(draw(st.sets(st.integers(1, n), min_size=1, max_size=8)) | {n})
    return src, dst, np.cumsum(gaps), sizes


def assert_same_lookups(grown: TemporalIndex, rebuilt: TemporalIndex, n_events: int) -> None:
    """Compare every lookup of every node and pair at every cut."""
    node, cut = (x.reshape(-1) for x in torch.meshgrid(torch.arange(-1, 9), torch.arange(n_events + 1), indexing="ij"))
    assert torch.equal(grown.degree(node, cut), rebuilt.degree(node, cut))
    other = torch.arange(-1, 9)[:, None]
    for one, two in zip(
        grown.pair_history(node[None], other, cut[None]),
        rebuilt.pair_history(node[None], other, cut[None]),
        strict=True,
    ):
        assert torch.equal(one, two)
    t = torch.full(node.shape, 1e6, dtype=torch.float64)
    one_hop, expected = (recent_events(index, node, t, cut, 3) for index in (grown, rebuilt))
    assert torch.equal(one_hop.pos, expected.pos) and torch.equal(one_hop.node, expected.node)
    assert torch.equal(one_hop.elapsed, expected.elapsed)
    for sampling in ("uniform", "mixed"):
        trees, slow = (
            sample_trees(index, TreeShape((3, 2)), node, cut, seed=1, sampling=sampling) for index in (grown, rebuilt)
        )
        assert torch.equal(trees.node, slow.node) and torch.equal(trees.pos, slow.pos)
    assert torch.equal(grown.tie_start[:n_events], rebuilt.tie_start)


@pytest.mark.parametrize(
    ("spare", "appends_later"),
    [
        (SpareRoom(0, 0, 0), 0),  # every append builds it again
        (SpareRoom(0, 9, 50), 0),  # every append moves rows
        (SpareRoom(1, 9, 1), 0),  # compaction is ready at the next append
        (SpareRoom(1, 9, 4), 2),  # events arrive while it runs
        (SpareRoom(30, 30, 30), 0),  # there is room for all
    ],
)
@settings(max_examples=40, deadline=None)
@given(growing_streams())
def test_growing_index_equals_a_rebuild_after_every_append(
    spare: SpareRoom, appends_later: int, stream: tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]
) -> None:
    """Also while a compaction runs, which here ends some appends after it began."""
    src, dst, elapsed, sizes = stream
    n = sizes[0]
    work: list[tuple[int, Callable[[], None]]] = []
    n_nodes = [int(max(src[:k].max(), dst[:k].max())) + 1 for k in sizes]
    growing = GrowingIndex(
        *(src[:n], dst[:n], elapsed[:n], n_nodes[0]),
        spare=spare,
        start_work=lambda one: work.append((appends_later, one)),
    )
    for start, stop, count in zip([0, *sizes], sizes, n_nodes, strict=False):
        if start:
            growing.append(src[start:stop], dst[start:stop], elapsed[start:stop], count)
        rebuilt = TemporalIndex.build(src[:stop], dst[:stop], elapsed[:stop], count)
        assert_same_lookups(growing.index(), rebuilt, stop)
        for _, one in [pair for pair in work if pair[0] == 0]:
            one()
        work = [(left - 1, one) for left, one in work if left > 0]


def test_full_rows_are_moved_and_not_built_again() -> None:
    """One busy node and many new ones; a batch of the busy node is longer than the spare entries around it."""
    rng = np.random.default_rng(0)
    n, size = 4000, 500
    src = np.where(rng.random(n) < 0.5, 3, rng.integers(0, 300, n))
    src[2000:2500] = 7
    dst = np.maximum.accumulate(rng.integers(0, 300 + np.arange(n) // 8))
    elapsed = np.arange(n) // 3 * 1.0
    counts = [int(max(src[:k].max(), dst[:k].max())) + 1 for k in range(size, n + 1, size)]
    growing = GrowingIndex(src[:size], dst[:size], elapsed[:size], counts[0], start_work=lambda work: None)
    for i, start in enumerate(range(size, n, size)):
        part = slice(start, start + size)
        growing.append(src[part], dst[part], elapsed[part], counts[i + 1])
    assert growing.n_builds == 1
    rebuilt = TemporalIndex.build(src, dst, elapsed, counts[-1])
    node, cut = torch.from_numpy(rng.integers(0, counts[-1], 5000)), torch.from_numpy(rng.integers(0, n + 1, 5000))
    node[:2000] = torch.from_numpy(rng.choice([3, 7], 2000))
    other = torch.from_numpy(dst[rng.integers(0, n, 5000)])
    assert torch.equal(growing.index().degree(node, cut), rebuilt.degree(node, cut))
    for one, two in zip(*(x.pair_history(node, other, cut) for x in (growing.index(), rebuilt)), strict=True):
        assert torch.equal(one, two)


def test_compaction_in_a_thread_while_events_arrive() -> None:
    rng = np.random.default_rng(2)
    n = 3000
    src, dst, elapsed = rng.integers(0, 40, n), rng.integers(0, 40, n), np.arange(n) * 1.0
    growing = GrowingIndex(src[:100], dst[:100], elapsed[:100], 40, spare=SpareRoom(1, 1, 100))
    for start in range(100, n, 20):
        growing.append(src[start : start + 20], dst[start : start + 20], elapsed[start : start + 20], 40)
    deadline = time.monotonic() + 30
    while growing.n_builds == 1 and time.monotonic() < deadline:
        growing.append(src[-1:], dst[-1:], elapsed[-1:], 40)
    assert growing.n_builds > 1
    rebuilt = TemporalIndex.build(growing.src, growing.dst, growing.elapsed, 40)
    node = torch.arange(40)
    for cut in (50, 1500, growing.n_events):
        at = torch.tensor(cut)
        assert torch.equal(growing.index().degree(node, at), rebuilt.degree(node, at))
        found = [x.pair_history(node[:, None], node, at) for x in (growing.index(), rebuilt)]
        for one, two in zip(*found, strict=True):
            assert torch.equal(one, two)


def test_torch_lookups_agree_too() -> None:
    """Without compiled loops, ``max_degree`` and the like bound the search."""
    from dataclasses import replace

    rng = np.random.default_rng(0)
    src, dst, elapsed = rng.integers(0, 5, 60), rng.integers(0, 5, 60), np.sort(rng.integers(0, 30, 60)).astype(float)
    growing = GrowingIndex(src[:20], dst[:20], elapsed[:20], 5)
    growing.append(src[20:], dst[20:], elapsed[20:], 5)
    plain = replace(growing.index(), use_kernels=False)
    assert_same_lookups(plain, TemporalIndex.build(src, dst, elapsed, 5), 60)


def test_an_append_without_a_rebuild_keeps_earlier_answers() -> None:
    rng = np.random.default_rng(1)
    src, dst, elapsed = rng.integers(0, 5, 40), rng.integers(0, 5, 40), np.arange(40.0)
    growing = GrowingIndex(src[:30], dst[:30], elapsed[:30], 5, spare=SpareRoom(40))
    before = growing.index()
    growing.append(src[30:], dst[30:], elapsed[30:], 5)
    assert growing.n_builds == 1
    assert_same_lookups(before, TemporalIndex.build(src[:30], dst[:30], elapsed[:30], 5), 30)
