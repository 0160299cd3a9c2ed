"""TemporalIndex: degrees, rows and pair histories against a scan over the whole stream."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from . import strategies as some
from .helpers import TEN, build, shape_of
from .strategies import Stream, streams

INT, FLOAT = torch.int64, torch.float64


# Ten events by hand


def test_degree_by_hand(place: Any) -> None:
    index = place.index(build(TEN))
    cut = place.ints([0, 1, 3, 4, 7, 10])
    expected = {
        0: [0, 1, 2, 2, 4, 6],  # in 0 2 4 6 7 8
        1: [0, 1, 3, 3, 5, 6],  # in 0 1 2 5 6 9
        2: [0, 0, 1, 2, 2, 3],  # in 1 3 8: the self-loop counts once
        3: [0, 0, 0, 0, 2, 2],  # in 4 5
        4: [0, 0, 0, 0, 0, 2],  # in 7 9
        5: [0] * 6,  # isolated
        6: [0] * 6,  # a new node
        -1: [0] * 6,  # padding
    }
    for node, degrees in expected.items():
        assert index.degree(place.ints(node), cut).tolist() == degrees, node


def test_pair_history_by_hand(place: Any) -> None:
    index = place.index(build(TEN))
    expected = {  # (node, other, cut): (count, last)
        (0, 1, 0): (0, 0.0),
        (0, 1, 1): (1, 0.0),  # met, at the very start
        (0, 1, 2): (1, 0.0),  # event 1 is another pair's
        (0, 1, 3): (2, 2.0),
        (0, 1, 6): (2, 2.0),  # event 6 is not among the first 6
        (0, 1, 7): (3, 5.0),  # 0 -> 1 twice and 1 -> 0 once
        (1, 0, 10): (3, 5.0),
        (1, 2, 10): (1, 2.0),
        (2, 2, 3): (0, 0.0),
        (2, 2, 4): (1, 3.0),  # the self-loop
        (2, 2, 10): (1, 3.0),
        (0, 0, 10): (0, 0.0),
        (0, 4, 10): (1, 8.0),
        (4, 1, 9): (0, 0.0),
        (4, 1, 10): (1, 20.0),
        (3, 4, 10): (0, 0.0),
        (5, 0, 10): (0, 0.0),
        (6, 0, 10): (0, 0.0),
        (6, 6, 10): (0, 0.0),
        (-1, 0, 10): (0, 0.0),
        (0, -1, 10): (0, 0.0),
        (-1, -1, 10): (0, 0.0),
    }
    node, other, cut = place.ints(list(expected)).unbind(1)
    count, last = index.pair_history(node, other, cut)
    assert list(zip(count.tolist(), last.tolist(), strict=True)) == list(expected.values())


def test_rows_by_hand(place: Any) -> None:
    index = place.index(build(TEN))
    at = index.row_entry(place.ints(0), place.ints([0, 1, 2, 3, 4, 5]))
    assert index.nbr[at].tolist() == [1, 1, 3, 1, 4, 2]
    assert index.pos[at].tolist() == [0, 2, 4, 6, 7, 8]
    # 3 and 1 had no event and three events before time 15, though some of that same time stand earlier in the stream
    assert index.nbr_degree[at].tolist() == [0, 1, 0, 3, 0, 2]
    assert index.tie_start.tolist() == [0, 1, 1, 3, 4, 4, 4, 7, 8, 9]


def test_masked_events_by_hand(place: Any) -> None:
    """Without events 0, 4 and 5 the others keep their positions, and ties still start where they did."""
    hidden = Stream(TEN.src, TEN.dst, TEN.t, TEN.n_nodes, [p not in (0, 4, 5) for p in range(10)])
    index = place.index(build(hidden))
    assert index.degree(place.ints([0, 1, 3]), place.ints(7)).tolist() == [2, 3, 0]
    count, last = index.pair_history(place.ints([0, 1, 0]), place.ints([1, 0, 3]), place.ints([2, 7, 10]))
    assert count.tolist() == [0, 2, 0]
    assert last.tolist() == [0.0, 5.0, 0.0]
    assert index.tie_start[6].item() == 4


def test_index_without_events(place: Any) -> None:
    index = place.index(build(Stream(TEN.src, TEN.dst, TEN.t, TEN.n_nodes, [False] * 10)))
    node = place.ints([-1, 0, 2, 5, 6])
    assert index.degree(node, place.ints(10)).tolist() == [0] * 5
    count, last = index.pair_history(node, place.ints([[0], [2]]), place.ints(10))
    assert count.tolist() == [[0] * 5] * 2
    assert last.tolist() == [[0.0] * 5] * 2


# Random streams


@given(data=st.data(), stream=streams())
def test_degree(place: Any, data: st.DataObject, stream: Stream) -> None:
    index, history = place.index(build(stream)), stream.history
    cut = data.draw(st.lists(some.cuts(stream), min_size=1, max_size=4))
    node = list(range(-1, stream.n_nodes + 2))
    got = index.degree(place.ints(node)[:, None], place.ints(cut))
    expected = [[history.degree(u, c) for c in cut] for u in node]
    assert shape_of(got, INT, (len(node), len(cut)), place.device) == expected


@given(data=st.data(), stream=streams())
def test_pair_history(place: Any, data: st.DataObject, stream: Stream) -> None:
    index, history = place.index(build(stream)), stream.history
    node = place.ints(list(range(-1, stream.n_nodes + 2)))
    cut = data.draw(st.lists(some.cuts(stream), min_size=1, max_size=3))
    count, last = index.pair_history(node[:, None, None], node[:, None], place.ints(cut))
    expected = [[[history.pair_history(u, w, c) for c in cut] for w in node.tolist()] for u in node.tolist()]
    size = (len(node), len(node), len(cut))
    assert shape_of(count, INT, size, place.device) == [[[n for n, _ in c] for c in w] for w in expected]
    assert shape_of(last, FLOAT, size, place.device) == [[[t for _, t in c] for c in w] for w in expected]
    assert count.equal(count.transpose(0, 1)) and last.equal(last.transpose(0, 1))


@given(stream=streams())
def test_rows(place: Any, stream: Stream) -> None:
    """Every entry of every row, what its neighbour had behind it, and where its time began."""
    index, history = place.index(build(stream)), stream.history
    for p, first in enumerate(index.tie_start.tolist()):
        assert first == history.tie_start(p)
    for node in range(stream.n_nodes):
        n = history.degree(node, stream.n_events)
        at = index.row_entry(place.ints([node] * n), place.ints(list(range(n))))
        nbr, pos, behind = (
            (index.nbr[at].tolist(), index.pos[at].tolist(), index.nbr_degree[at].tolist()) if n else ([],) * 3
        )
        assert list(zip(nbr, pos, strict=True)) == [history.neighbor(node, rank) for rank in range(n)]
        assert behind == [history.degree(w, history.tie_start(p)) for w, p in zip(nbr, pos, strict=True)]


@given(data=st.data(), stream=streams(min_events=2))
def test_later_events_change_nothing(place: Any, data: st.DataObject, stream: Stream) -> None:
    """An index of the first ``cut`` events answers like one of the whole stream."""
    cut = data.draw(st.integers(1, stream.n_events))
    whole, first = place.index(build(stream)), place.index(build(stream.first(cut)))
    node = place.ints(list(range(-1, stream.n_nodes + 2)))
    seen = place.ints(data.draw(st.integers(0, cut)))
    assert whole.degree(node, seen).equal(first.degree(node, seen))
    for a, b in zip(
        whole.pair_history(node[:, None], node, seen), first.pair_history(node[:, None], node, seen), strict=True
    ):
        assert a.equal(b)


@given(stream=streams(filtered=True))
def test_a_masked_event_is_as_if_it_had_not_happened(place: Any, stream: Stream) -> None:
    """Counts of a filtered index at the end are those of the kept events indexed alone."""
    selected = [p for p in range(stream.n_events) if stream.keep and stream.keep[p]]
    if not selected:
        return
    alone = Stream(
        [stream.src[p] for p in selected], [stream.dst[p] for p in selected], [0] * len(selected), stream.n_nodes, None
    )
    node = place.ints(list(range(stream.n_nodes)))
    filtered, plain = place.index(build(stream)), place.index(build(alone))
    end, plain_end = place.ints(stream.n_events), place.ints(len(selected))
    assert filtered.degree(node, end).equal(plain.degree(node, plain_end))
    counts = filtered.pair_history(node[:, None], node, end)[0], plain.pair_history(node[:, None], node, plain_end)[0]
    assert counts[0].equal(counts[1])


@settings(max_examples=10)
@given(data=st.data(), stream=streams(min_events=60, max_events=140))
def test_long_rows(place: Any, data: st.DataObject, stream: Stream) -> None:
    """Rows long enough for several steps of a search, asked at every cut."""
    index, history = place.index(build(stream)), stream.history
    u, w = data.draw(some.nodes(stream)), data.draw(some.nodes(stream))
    cut = list(range(stream.n_events + 1))
    assert index.degree(place.ints(u), place.ints(cut)).tolist() == [history.degree(u, c) for c in cut]
    count, last = index.pair_history(place.ints(u), place.ints(w), place.ints(cut))
    expected = [history.pair_history(u, w, c) for c in cut]
    assert list(zip(count.tolist(), last.tolist(), strict=True)) == expected


def test_lookups_of_any_shape(place: Any) -> None:
    index = place.index(build(TEN))
    assert index.degree(place.ints(0), place.ints(10)).item() == 6
    assert index.degree(place.ints([]), place.ints(10)).shape == (0,)
    assert index.degree(place.ints([[0], [1]]).expand(2, 3), place.ints([1, 3, 7])).tolist() == [[1, 2, 4], [1, 3, 5]]
    count, last = index.pair_history(place.ints([]), place.ints(0), place.ints(10))
    assert count.shape == last.shape == (0,)
    every_other = place.ints([0, 9, 1, 9])[::2]  # not contiguous
    assert index.degree(every_other, place.ints(10)).tolist() == [6, 6]


def test_indexes_on_other_devices_hold_the_same(place: Any) -> None:
    index = build(TEN)
    on_device = place.index(index)
    assert on_device.n_nodes == 6
    assert on_device.nbr.tolist() == index.nbr.tolist()
    assert on_device.device.type == place.device.type
