"""`GrowingIndex` answers as an index that is built again after every append."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history.context import TreeShape, sample_trees
from cordgt.history.growing import GrowingIndex
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


@pytest.mark.parametrize("spare", [0, 1, 30])
@settings(max_examples=25, deadline=None)
@given(growing_streams())
def test_growing_index_equals_a_rebuild_after_every_append(
    spare: int, stream: tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]
) -> None:
    src, dst, elapsed, sizes = stream
    n = sizes[0]
    room = {"min_spare": spare, "min_spare_nodes": spare, "min_spare_events": spare}
    n_nodes = [int(max(src[:k].max(), dst[:k].max())) + 1 for k in sizes]
    growing = GrowingIndex(src[:n], dst[:n], elapsed[:n], n_nodes[0], **room)
    for start, stop, count in zip([0, *sizes], sizes, n_nodes, strict=False):
        if start:
            growing.append(src[start:stop], dst[start:stop], elapsed[start:stop], count)
        rebuilt = TemporalIndex.build(src[:stop], dst[:stop], elapsed[:stop], count)
        assert_same_lookups(growing.index(), rebuilt, stop)


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
    growing = GrowingIndex(src[:30], dst[:30], elapsed[:30], 5, min_spare=40)
    before = growing.index()
    growing.append(src[30:], dst[30:], elapsed[30:], 5)
    assert growing.n_builds == 1
    assert_same_lookups(before, TemporalIndex.build(src[:30], dst[:30], elapsed[:30], 5), 30)
