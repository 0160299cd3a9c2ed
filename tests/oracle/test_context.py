"""Sampled trees against their definition, slot by slot, for every device, batch and order of roots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history.context import Context, TreeShape, sample_trees
from cordgt.history.index import TemporalIndex

from . import slow
from . import strategies as some
from .helpers import TEN, build, nodes_of, positions_of, shape_of
from .strategies import Stream, streams


def sample(
    place: Any, stream: Stream, fanout: Any, root: Any, cut: Any, seed: int, epoch: int, sampling: str
) -> Context:
    return sample_trees(
        place.index(build(stream)),
        TreeShape(tuple(fanout)),
        place.ints(root),
        place.ints(cut),
        seed=seed,
        epoch=epoch,
        sampling=sampling,
    )


# Shapes


@given(fanout=some.fanouts)
def test_shape(fanout: tuple[int, ...]) -> None:
    shape = TreeShape(fanout)
    slots = slow.tree(slow.History([], [], [], []), fanout, root=0, cut=0, seed=0, epoch=0)
    place_of = {slot.path: i for i, slot in enumerate(slots)}
    assert shape.n_slots == len(slots)
    assert shape.slot_hop.tolist() == [len(slot.path) for slot in slots]
    assert shape.parent.tolist() == [place_of[slot.path[:-1]] for slot in slots]


def test_shape_by_hand() -> None:
    shape = TreeShape((2, 3))
    assert shape.n_slots == 1 + 2 + 6
    assert shape.slot_hop.tolist() == [0, 1, 1, 2, 2, 2, 2, 2, 2]
    assert shape.parent.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


# Ten events by hand


def test_recent_tree_by_hand(place: Any) -> None:
    """Before time 30 node 1 interacted with 0 (event 6), 3 (event 5) and 0 (event 2), latest first.

    Below event 6 (time 15) node 0 sees the first 4 events: 2 and 0, both with 1. Below event 5 node 3 sees nothing:
    its event 4 has the same time. Below event 2 (time 12) node 0 sees only the first event.
    """
    got = sample(place, TEN, (3, 2), 1, 9, seed=0, epoch=0, sampling="recent")
    assert got.node.tolist() == [1, 0, 3, 0, 1, 1, -1, -1, 1, -1]
    assert got.pos.tolist() == [-1, 6, 5, 2, 2, 0, -1, -1, 0, -1]
    assert got.valid.tolist() == [True] * 6 + [False, False, True, False]


def test_recent_tree_through_a_self_loop_by_hand(place: Any) -> None:
    """At the end node 2 has events 8 (with 0), 3 (with itself) and 1 (with 1)."""
    got = sample(place, TEN, (4, 1), 2, 10, seed=0, epoch=0, sampling="recent")
    assert got.node.tolist() == [2, 0, 2, 1, -1, 4, 1, 0, -1]
    assert got.pos.tolist() == [-1, 8, 3, 1, -1, 7, 1, 0, -1]


def test_uniform_tree_without_a_choice_by_hand(place: Any) -> None:
    """Before event 9 node 4 has only event 7, so every draw is that one, with replacement."""
    got = sample(place, TEN, (3,), 4, 9, seed=11, epoch=2, sampling="uniform")
    assert got.node.tolist() == [4, 0, 0, 0]
    assert got.pos.tolist() == [-1, 7, 7, 7]


def test_uniform_tree_equals_the_golden_one(place: Any) -> None:
    """Golden: ``slow.tree(TEN.history, (3, 2), root=0, cut=9, seed=12, epoch=1)``. Draws must never change."""
    got = sample(place, TEN, (3, 2), 0, 9, seed=12, epoch=1, sampling="uniform")
    assert got.node.tolist() == [0, 2, 1, 3, 1, 2, 0, 2, -1, -1]
    assert got.pos.tolist() == [-1, 8, 6, 4, 1, 3, 0, 1, -1, -1]


def test_new_and_isolated_roots(place: Any) -> None:
    got = sample(place, TEN, (2, 1), [5, 6, 99, 0], [10, 10, 10, 0], seed=1, epoch=0, sampling="uniform")
    assert got.node.tolist() == [[5, -1, -1, -1, -1], [6, -1, -1, -1, -1], [99, -1, -1, -1, -1], [0, -1, -1, -1, -1]]
    assert got.pos.tolist() == [[-1] * 5] * 4
    assert got.valid.tolist() == [[True, False, False, False, False]] * 4


# Random streams


@settings(max_examples=150)
@given(
    data=st.data(), stream=streams(), fanout=some.fanouts, seed=some.seeds, epoch=some.epochs, sampling=some.samplings
)
def test_trees(
    place: Any, data: st.DataObject, stream: Stream, fanout: tuple[int, ...], seed: int, epoch: int, sampling: str
) -> None:
    queries = data.draw(
        st.lists(st.tuples(some.nodes(stream, padding=False), some.cuts(stream)), min_size=1, max_size=6)
    )
    root, cut = zip(*queries, strict=True)
    got = sample(place, stream, fanout, root, cut, seed, epoch, sampling)
    expected = [slow.tree(stream.history, fanout, r, c, seed, epoch, sampling) for r, c in queries]
    size = (len(queries), TreeShape(fanout).n_slots)
    assert shape_of(got.node, torch.int64, size, place.device) == [nodes_of(slots) for slots in expected]
    assert shape_of(got.pos, torch.int64, size, place.device) == [positions_of(slots) for slots in expected]
    assert got.valid.equal(got.node >= 0)


@given(data=st.data(), stream=streams(min_events=5), fanout=some.fanouts, seed=some.seeds, sampling=some.samplings)
def test_trees_do_not_depend_on_the_batch(
    place: Any, data: st.DataObject, stream: Stream, fanout: tuple[int, ...], seed: int, sampling: str
) -> None:
    """One root at a time, all at once, in another order, in another shape: the same trees."""
    queries = data.draw(
        st.lists(st.tuples(some.nodes(stream, padding=False), some.cuts(stream)), min_size=6, max_size=6)
    )
    order = data.draw(st.permutations(range(6)))
    index, shape = place.index(build(stream)), TreeShape(fanout)
    root, cut = place.ints(queries).unbind(1)

    def trees(root: torch.Tensor, cut: torch.Tensor) -> Context:
        return sample_trees(index, shape, root, cut, seed=seed, epoch=3, sampling=sampling)

    whole = trees(root, cut)
    shuffled = trees(root[place.ints(order)], cut[place.ints(order)])
    folded = trees(root.view(2, 3), cut.view(2, 3))
    across = trees(root[:, None], cut)  # every root at every cut; the diagonal holds the queries
    for name in ("node", "pos"):
        want = getattr(whole, name)
        assert getattr(shuffled, name).equal(want[place.ints(order)])
        assert getattr(folded, name).reshape(6, -1).equal(want)
        assert getattr(across, name).diagonal(dim1=0, dim2=1).T.equal(want)
        for i in range(6):
            assert getattr(trees(root[i], cut[i]), name).equal(want[i])


@given(data=st.data(), stream=streams(min_events=5), fanout=some.fanouts, seed=some.seeds, sampling=some.samplings)
def test_a_larger_fanout_keeps_the_earlier_draws(
    place: Any, data: st.DataObject, stream: Stream, fanout: tuple[int, ...], seed: int, sampling: str
) -> None:
    """The node at a path (second child of the first child, ...) depends only on the path."""
    larger = tuple(n + data.draw(st.integers(0, 2)) for n in fanout) + data.draw(st.sampled_from(((), (2,))))
    root, cut = data.draw(some.nodes(stream, padding=False)), data.draw(some.cuts(stream))
    small = sample(place, stream, fanout, root, cut, seed, 1, sampling)
    large = sample(place, stream, larger, root, cut, seed, 1, sampling)
    paths = {slot.path: i for i, slot in enumerate(slow.tree(stream.history, larger, root, cut, seed, 1, sampling))}
    at = [paths[slot.path] for slot in slow.tree(stream.history, fanout, root, cut, seed, 1, sampling)]
    assert large.node[place.ints(at)].equal(small.node)
    assert large.pos[place.ints(at)].equal(small.pos)


@given(data=st.data(), stream=streams(min_events=2), fanout=some.fanouts, seed=some.seeds, sampling=some.samplings)
def test_later_events_do_not_change_trees(
    place: Any, data: st.DataObject, stream: Stream, fanout: tuple[int, ...], seed: int, sampling: str
) -> None:
    """Events from ``cut`` on, with any times and new nodes, leave the trees as they are."""
    cut = data.draw(st.integers(1, stream.n_events - 1))
    n_later = data.draw(st.integers(0, 9))
    n_nodes = stream.n_nodes + 3
    end = st.lists(st.integers(0, n_nodes - 1), min_size=n_later, max_size=n_later)
    first = stream.first(cut)
    later = [
        first.t[-1] + step
        for step in sorted(data.draw(st.lists(st.integers(0, 3), min_size=n_later, max_size=n_later)))
    ]
    keep = None if first.keep is None else first.keep + [True] * n_later
    other = Stream(first.src + data.draw(end), first.dst + data.draw(end), [*first.t, *later], n_nodes, keep)
    root = list(range(n_nodes + 1))
    one = sample(place, stream, fanout, root, cut, seed, 0, sampling)
    two = sample(place, other, fanout, root, cut, seed, 0, sampling)
    assert one.node.equal(two.node)
    assert one.pos.equal(two.pos)


@given(data=st.data(), stream=streams(min_events=3), fanout=some.fanouts, seed=some.seeds, sampling=some.samplings)
def test_every_slot_is_an_earlier_event_of_its_parent(
    place: Any, data: st.DataObject, stream: Stream, fanout: tuple[int, ...], seed: int, sampling: str
) -> None:
    """Properties of every tree, however it is sampled."""
    cut = data.draw(some.cuts(stream))
    shape = TreeShape(fanout)
    trees = sample(place, stream, fanout, list(range(stream.n_nodes)), cut, seed, 2, sampling)
    history, parent = stream.history, shape.parent.tolist()
    for node, pos in zip(trees.node.tolist(), trees.pos.tolist(), strict=True):
        for slot in range(1, shape.n_slots):
            up, p = parent[slot], pos[slot]
            if p < 0:
                assert node[slot] == -1
                continue
            assert node[up] >= 0 and history.keep[p] and p < cut
            assert {node[up], node[slot]} == {stream.src[p], stream.dst[p]}
            assert up == 0 or stream.t[p] < stream.t[pos[up]]


def test_uniform_sampling_is_uniform(place: Any) -> None:
    """One node with 8 events: over many seeds each event is drawn about equally often (chi-square, 7 df)."""
    index = place.index(TemporalIndex.build(np.zeros(8, int), np.arange(1, 9), np.arange(8.0), 9))
    trees = sample_trees(index, TreeShape((40,)), place.ints(0), place.ints(8).expand(1), seed=5, epoch=0)
    many = [
        sample_trees(index, TreeShape((40,)), place.ints(0), place.ints(8), seed=s, epoch=0).pos[1:] for s in range(100)
    ]
    seen = torch.bincount(torch.cat(many), minlength=8).double()
    assert len(seen) == 8 and trees.pos.shape == (1, 41)
    assert float(((seen - 500) ** 2 / 500).sum()) < 30


@pytest.mark.parametrize("sampling", ["uniform", "recent", "mixed"])
def test_seed_and_epoch_change_only_random_sampling(place: Any, sampling: str) -> None:
    def trees(seed: int, epoch: int) -> list[int]:
        return sample(place, TEN, (5, 3), list(range(6)), 10, seed, epoch, sampling).pos.tolist()

    changed = [trees(0, 0) != trees(1, 0), trees(0, 0) != trees(0, 1), trees(0, 1) != trees(1, 0)]
    assert changed == [sampling != "recent"] * 3


def test_epoch_as_a_tensor(place: Any) -> None:
    index, shape = place.index(build(TEN)), TreeShape((4, 2))
    root, cut = place.ints([0, 1, 2]), place.ints([9, 10, 7])
    plain = sample_trees(index, shape, root, cut, seed=3, epoch=4)
    from_tensor = sample_trees(index, shape, root, cut, seed=3, epoch=place.ints(4))
    assert plain.node.equal(from_tensor.node) and plain.pos.equal(from_tensor.pos)


def test_large_batches_on_many_threads(place: Any, all_threads: None) -> None:
    """4,001 trees at once over 1,500 events equal the Numba trees, and some of them the slow ones."""
    rng = np.random.default_rng(3)
    ends = (rng.zipf(1.4, (2, 1500)) - 1) % 61  # a few busy nodes, many quiet ones, self-loops
    stream = Stream(ends[0].tolist(), ends[1].tolist(), np.sort(rng.integers(0, 700, 1500)).tolist(), 64, None)
    root, cut = rng.integers(0, 66, 4001), rng.integers(0, 1501, 4001)
    index, shape = build(stream), TreeShape((7, 3))
    want = sample_trees(index, shape, torch.from_numpy(root), torch.from_numpy(cut), seed=2, epoch=6)
    got = sample_trees(place.index(index), shape, place.ints(root), place.ints(cut), seed=2, epoch=6)
    assert got.node.cpu().equal(want.node) and got.pos.cpu().equal(want.pos)
    for i in range(0, 4001, 250):
        slots = slow.tree(stream.history, shape.fanout, int(root[i]), int(cut[i]), seed=2, epoch=6)
        assert got.node[i].tolist() == nodes_of(slots) and got.pos[i].tolist() == positions_of(slots)
