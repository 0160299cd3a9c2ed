"""Negatives by popularity: destinations of visible events, as often as they occur, and nothing of the future."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history.queries import Queries
from cordgt.tasks.negatives import NEGATIVES, NegativeRequest, event_keys

from . import slow
from . import strategies as some
from .helpers import TEN, build
from .strategies import Stream, streams


def sample(place: Any, stream: Stream, pool: list[int], cut: int, n: int) -> list[list[int]]:
    cuts = place.ints([cut, cut])
    queries = Queries(place.ints([0, 1]), place.ints([[99], [99]]), place.floats([9.0, 9.0]), cuts, cuts)
    key = event_keys(place.ints([5, 6]), seed=3)
    request = NegativeRequest(place.index(build(stream)), queries, place.ints(pool), n, key, stream.n_events)
    return NEGATIVES["popularity"].sample("popularity", request).tolist()


@settings(max_examples=30)
@given(stream=streams(), data=st.data())
def test_random_streams(place: Any, stream: Stream, data: st.DataObject) -> None:
    cut = data.draw(some.cuts(stream))
    pool = sorted(data.draw(st.sets(st.integers(0, stream.n_nodes - 1), min_size=1)))
    keep = stream.keep or [True] * stream.n_events
    key = slow.fold_in(slow.mix64(3), 0x6E6567)
    expected = []
    for position in (5, 6):
        event_key = slow.fold_in(slow.fold_in(key, 0), position)
        draws = [event_key, *(slow.fold_in(event_key, j) for j in range(1, 4))]
        found = [slow.randint(draw, cut) for draw in draws]
        expected.append([stream.dst[p] if cut and keep[p] and stream.dst[p] in pool else -1 for p in found])
    assert sample(place, stream, pool, cut, 4) == expected


def test_shares_and_future() -> None:
    """Among the first 7 of the ten events node 1 is the destination of three; later events change nothing."""

    class Cpu:
        index = staticmethod(lambda index: index)
        ints = staticmethod(lambda values: torch.as_tensor(values, dtype=torch.int64))
        floats = staticmethod(lambda values: torch.as_tensor(values, dtype=torch.float64))

    drawn = sample(Cpu, TEN, [0, 1, 2, 3, 4], 7, 2000)
    share = sum(row.count(1) for row in drawn) / 4000
    assert abs(share - 3 / 7) < 0.03
    assert sample(Cpu, TEN.first(7), [0, 1, 2, 3, 4], 7, 2000) == drawn
