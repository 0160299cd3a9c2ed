"""Spatial and temporal distance against the formulas, computed one pair at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history.context import TreeShape, sample_trees
from cordgt.history.distance import DistanceOptions, spatial_distance, temporal_distance, tree_distances
from cordgt.history.index import TemporalIndex

from . import slow
from . import strategies as some
from .helpers import TEN, build, shape_of
from .strategies import Stream, streams

unseen_distances = st.sampled_from((4, 5, 99))
OPTIONS = DistanceOptions(alpha=0.5, beta=2.0, td_unseen=50.0, sd_unseen=7)
weights = st.sampled_from((0.0, 0.1, 1.0, 10.0))


# Ten events by hand


def test_spatial_distance_by_hand(place: Any) -> None:
    """The recent tree of 4 before event 9: 4, then 0 (event 7), then 1 and 3 (events 6 and 4)."""
    shape = TreeShape((1, 2))
    to = sample_trees(place.index(build(TEN)), shape, place.ints(4), place.ints(9), seed=0, sampling="recent")
    assert to.node.tolist() == [4, 0, 1, 3]
    got = spatial_distance(place.ints([4, 0, 1, 3, 2, 5, 6, -1]), to, shape, 7)
    assert got.tolist() == [0, 1, 2, 2, 7, 7, 7, 7]


def test_spatial_distance_is_the_smallest_hop_by_hand(place: Any) -> None:
    """In the tree 1 | 0 3 0 | 1 1 . . 1 . the root is at hop 2 as well; padding is nowhere."""
    shape = TreeShape((3, 2))
    to = sample_trees(place.index(build(TEN)), shape, place.ints(1), place.ints(9), seed=0, sampling="recent")
    assert to.node.tolist() == [1, 0, 3, 0, 1, 1, -1, -1, 1, -1]
    assert spatial_distance(place.ints([1, 0, 3, 2, -1]), to, shape, 4).tolist() == [0, 1, 1, 4, 4]
    assert spatial_distance(to.node, to, shape, 4).tolist() == [0, 1, 1, 1, 0, 0, 4, 4, 0, 4]


@pytest.mark.parametrize("sd_unseen", [-1, 0, 1, 2])
def test_distance_of_unseen_nodes_may_be_smaller_than_a_hop(place: Any, sd_unseen: int) -> None:
    """``sd_unseen`` applies only to nodes that are not in the tree."""
    shape = TreeShape((1, 2))
    to = sample_trees(place.index(build(TEN)), shape, place.ints(4), place.ints(9), seed=0, sampling="recent")
    assert spatial_distance(place.ints([4, 0, 1, 2, -1]), to, shape, sd_unseen).tolist() == [
        0,
        1,
        2,
        sd_unseen,
        sd_unseen,
    ]


def test_temporal_distance_by_hand(place: Any) -> None:
    """At time 30 (20 after the start), to node 0, over the first 9 events, with alpha 0.5 and beta 2."""
    got = temporal_distance(
        place.index(build(TEN)),
        place.ints([0, 1, 2, 3, 4, 5, 6, -1]),
        place.ints(0),
        place.floats(20.0),
        place.ints(9),
        OPTIONS,
    )
    expected = [
        0.0,  # the root itself
        0.5 * 5 / (20 * 3) + 2 * 15 / 20,  # 3 events, the last at 5
        0.5 * 10 / (20 * 1) + 2 * 10 / 20,  # 1 event at 10
        0.5 * 5 / (20 * 1) + 2 * 15 / 20,  # 1 event at 5
        0.5 * 8 / (20 * 1) + 2 * 12 / 20,  # 1 event at 8
        50.0,  # isolated
        50.0,  # a new node
        50.0,  # padding
    ]
    assert expected[1:5] == pytest.approx([1.5 + 1 / 24, 1.25, 1.625, 1.4])
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(expected, rel=1e-14)


def test_temporal_distance_with_self_loops_and_at_the_start_by_hand(place: Any) -> None:
    index = place.index(build(TEN))

    def distance(node: int, root: int, t: float, pair_cut: int) -> float:
        query = (place.ints([node]), place.ints(root), place.floats(t), place.ints(pair_cut))
        return temporal_distance(index, *query, OPTIONS).item()

    assert distance(2, 2, 10.0, 8) == 0.0  # a self-loop, but the node is the root
    assert distance(6, 6, 10.0, 8) == 0.0  # a new node is its own root too
    assert distance(1, 0, 2.0, 1) == 2.0  # one event, at time 0: no intensity term
    assert distance(1, 0, 2.0, 0) == 50.0
    assert distance(1, 0, 0.0, 0) == 50.0  # no events at the stream's start
    assert distance(0, 0, 0.0, 0) == 0.0


# Random streams


@given(
    data=st.data(),
    stream=streams(),
    fanout=some.fanouts,
    seed=some.seeds,
    sampling=some.samplings,
    sd_unseen=unseen_distances,
)
def test_spatial_distance(
    place: Any, data: st.DataObject, stream: Stream, fanout: tuple[int, ...], seed: int, sampling: str, sd_unseen: int
) -> None:
    """From the nodes of every tree to every tree, as models compute it, and from any other ids."""
    queries = data.draw(
        st.lists(st.tuples(some.nodes(stream, padding=False), some.cuts(stream)), min_size=1, max_size=4)
    )
    shape = TreeShape(fanout)
    root, cut = place.ints(queries).unbind(1)
    to = sample_trees(place.index(build(stream)), shape, root, cut, seed=seed, sampling=sampling)
    trees = [slow.tree(stream.history, fanout, r, c, seed, 0, sampling) for r, c in queries]
    n = len(queries)
    for of in (to.node, place.ints(list(range(-1, stream.n_nodes + 3))).expand(n, -1)):
        got = spatial_distance(of, to, shape, sd_unseen)
        expected = [
            [slow.spatial_distance(w, slots, sd_unseen) for w in row]
            for row, slots in zip(of.tolist(), trees, strict=True)
        ]
        assert shape_of(got, torch.int64, tuple(of.shape), place.device) == expected
    crossed = spatial_distance(
        to.node[:, None], to.__class__(to.node[None], to.pos[None]), shape, sd_unseen
    )  # (n, n, C)
    expected_crossed = [
        [[slow.spatial_distance(slot.node, slots, sd_unseen) for slot in of_tree] for slots in trees]
        for of_tree in trees
    ]
    assert crossed.tolist() == expected_crossed


@settings(max_examples=150)
@given(data=st.data(), stream=streams(), alpha=weights, beta=weights, td_unseen=st.sampled_from((0.0, 1.0, 33.0)))
def test_temporal_distance(
    place: Any, data: st.DataObject, stream: Stream, alpha: float, beta: float, td_unseen: float
) -> None:
    history, elapsed = stream.history, stream.elapsed
    node = list(range(-1, stream.n_nodes + 2))
    queries = []
    for _ in range(data.draw(st.integers(1, 4))):
        t = data.draw(st.one_of(st.sampled_from(elapsed), st.sampled_from((elapsed[-1] + 1, elapsed[-1] * 2 + 0.3))))
        before = sum(e < t for e in elapsed)
        queries.append((data.draw(some.nodes(stream, padding=False)), t, data.draw(st.integers(0, before))))
    root, t, pair_cut = zip(*queries, strict=True)
    got = temporal_distance(
        place.index(build(stream)),
        place.ints(node).expand(len(queries), -1),
        place.ints(root),
        place.floats(t),
        place.ints(pair_cut),
        DistanceOptions(alpha=alpha, beta=beta, td_unseen=td_unseen, sd_unseen=7),
    )
    values = shape_of(got, torch.float64, (len(queries), len(node)), place.device)
    for row, (root_, t_, cut_) in zip(values, queries, strict=True):
        expected = [slow.temporal_distance(history, w, root_, t_, cut_, alpha, beta, td_unseen) for w in node]
        assert row == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(data=st.data(), stream=streams(min_events=2))
def test_temporal_distance_is_symmetric(place: Any, data: st.DataObject, stream: Stream) -> None:
    node = place.ints(list(range(stream.n_nodes)))
    n, t = stream.n_nodes, stream.elapsed[-1] + 1
    cut = place.ints(data.draw(some.cuts(stream)))
    index = place.index(build(stream))
    got = temporal_distance(index, node.expand(n, n), node, place.floats(t).expand(n), cut.expand(n), OPTIONS)
    assert got.equal(got.T)


@pytest.mark.parametrize("fanout", [(3, 2), (20, 15)], ids=["scanned", "sorted"])
@pytest.mark.parametrize("correlated", [False, True])
def test_numba_loop_equals_torch_operations(fanout: tuple[int, ...], correlated: bool) -> None:
    """All relations of a few queries at once, to the last bit."""
    draw = torch.Generator().manual_seed(4)
    src, dst = torch.randint(0, 30, (2, 400), generator=draw)
    times = torch.randint(0, 90, (400,), generator=draw).sort().values.double()
    index, shape = TemporalIndex.build(src.numpy(), dst.numpy(), times.numpy(), 30), TreeShape(fanout)
    cut = torch.tensor([0, 7, 200, 399])
    trees = sample_trees(index, shape, torch.randint(0, 32, (4, 3), generator=draw), cut[:, None], seed=1)
    options = DistanceOptions(alpha=0.1, beta=3.0, td_unseen=30.0, sd_unseen=7)
    t = index.elapsed[cut] + 1
    got, expected = (
        tree_distances(i, shape, trees, t, cut, options, correlated=correlated)
        for i in (index, index.without_kernels())
    )
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)
