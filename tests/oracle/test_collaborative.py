"""Collaborative columns against their definition, on every device; and independent of threads and of the future."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history import collaborative
from cordgt.history.collaborative import COLLABORATIVE_DIM, CollaborativeOptions, collaborative_features
from cordgt.history.growing import GrowingIndex, SpareRoom
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import Queries
from cordgt.io.convert import convert_to_store
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.tasks.histories import build_history

from . import slow_collaborative as slow
from . import strategies as some
from .helpers import TEN, build
from .strategies import Stream, streams

SMALL = CollaborativeOptions(partners=4, visits=5, sequences=2, steps=2)


def make_queries(place: Any, src: list[int], dst: list[list[int]], t: float, cut: int) -> Queries:
    cuts = place.ints([cut] * len(src))
    return Queries(place.ints(src), place.ints(dst), place.floats([t] * len(src)), cuts, cuts)


def check(
    place: Any, stream: Stream, src: list[int], dst: list[list[int]], t: float, cut: int, options: CollaborativeOptions
) -> None:
    got = collaborative_features(place.index(build(stream)), make_queries(place, src, dst, t, cut), options)
    history = stream.history
    known = [
        [slow.collaborative_features(history, u, v, t, cut, **vars(options)) for v in row]
        for u, row in zip(src, dst, strict=True)
    ]
    torch.testing.assert_close(got.cpu(), torch.tensor(known), rtol=1e-5, atol=1e-5, check_dtype=True)


@settings(max_examples=40)
@given(
    stream=streams(),
    data=st.data(),
    later=st.sampled_from((0.0, 2.5, 1e308)),
    bounds=st.tuples(*(st.integers(1, 5) for _ in range(4))),
)
def test_random_streams(place: Any, stream: Stream, data: st.DataObject, later: float, bounds: tuple[int, ...]) -> None:
    """Ties, repeats, isolated and new nodes, self-loops and masked events; two queries share the tables."""
    roots = data.draw(st.lists(some.nodes(stream), min_size=6, max_size=6))
    cut, t = data.draw(some.cuts(stream)), stream.elapsed[-1] + later
    check(place, stream, roots[:2], [roots[2:4], roots[4:]], t, cut, CollaborativeOptions(*bounds))


def test_longer_stream(place: Any) -> None:
    """300 events of 4 users and 9 items: rows are longer than every bound."""
    draw = random.Random(3)
    src = [draw.randrange(4) for _ in range(300)]
    dst = [4 + draw.randrange(9) for _ in range(300)]
    stream = Stream(src, dst, sorted(draw.randrange(200) for _ in range(300)), 14, None)
    check(place, stream, [0, 3], [[4, 5, 13], [12, 2, 20]], 201.0, 280, CollaborativeOptions(6, 20, 3, 4))


def test_torch_operations_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch operations take some queries at a time, which changes nothing; no queries are fine too."""
    cuts, t = torch.arange(5, 11), torch.arange(5.0, 11.0, dtype=torch.float64) * 2
    queries = Queries(torch.arange(6), torch.arange(12).remainder(5).view(6, 2), t, cuts, cuts)
    index = build(TEN).without_kernels()
    whole = collaborative_features(index, queries, SMALL)
    monkeypatch.setattr(collaborative, "MAX_QUERIES", 4)
    assert torch.equal(collaborative_features(index, queries, SMALL), whole)
    assert collaborative_features(index, queries.take(slice(0, 0)), SMALL).shape == (0, 2, COLLABORATIVE_DIM)


def test_by_hand() -> None:
    """User 0 met item 3. User 1 met 3, then 4. User 2 met 4 and 5: item 4 shares user 1 with 3, item 5 nobody."""
    src, dst = np.array([1, 2, 0, 1, 2]), np.array([3, 4, 3, 4, 5])
    index = TemporalIndex.build(src, dst, np.arange(5.0), 6)
    cuts = torch.tensor([5])
    queries = Queries(torch.tensor([0]), torch.tensor([[4, 5]]), torch.tensor([5.0], dtype=torch.float64), cuts, cuts)
    x = torch.expm1(collaborative_features(index, queries).double() / 0.25)
    x[..., [1, 2, 3, 5, 6, 7, 8, 9]] /= 256
    shared, cosine, follows = x[0, 0, 0], x[0, 0, 1], x[0, 0, 6]
    assert [round(float(value), 4) for value in (shared, cosine, follows)] == [1.0, round(0.5**0.5, 4), 1.0]
    assert x[0, 1, :10].abs().max() < 1e-6  # nobody who met item 3 met item 5


def test_same_columns_with_any_number_of_threads() -> None:
    """One query with many candidates is split among threads."""
    queries = Queries(
        torch.tensor([0]), torch.arange(200).remainder(6)[None], torch.tensor([21.0], dtype=torch.float64),
        torch.tensor([10]), torch.tensor([10]),
    )  # fmt: skip
    index, n = build(TEN), numba.get_num_threads()
    one = collaborative_features(index, queries, SMALL)
    try:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        assert torch.equal(collaborative_features(index, queries, SMALL), one)
    finally:
        numba.set_num_threads(n)
    assert one.shape == (1, 200, COLLABORATIVE_DIM)


@pytest.mark.parametrize("cut", [0, 3, 7])
def test_growing_index(cut: int) -> None:
    """Events that come later change nothing, to the bit; spare entries of a growing index are never read."""
    src, dst, elapsed = np.array(TEN.src), np.array(TEN.dst), np.array(TEN.elapsed)
    growing = GrowingIndex(src[:cut], dst[:cut], elapsed[:cut], 6, spare=SpareRoom(entries=2))
    cuts, t = torch.tensor([cut, cut]), torch.tensor([9.0, 9.0], dtype=torch.float64)
    queries = Queries(torch.tensor([0, 2]), torch.tensor([[1, 2, 5], [0, 1, 4]]), t, cuts, cuts)
    before = collaborative_features(growing.index(), queries, SMALL)
    growing.append(src[cut:], dst[cut:], elapsed[cut:], 6)
    for index in (growing.index(), build(TEN), build(TEN.first(cut)) if cut else growing.index()):
        assert torch.equal(collaborative_features(index, queries, SMALL), before)


def test_no_candidates() -> None:
    cuts = torch.tensor([8, 10])
    t = torch.tensor([8.0, 20.0], dtype=torch.float64)
    queries = Queries(torch.tensor([0, 1]), torch.empty(2, 0, dtype=torch.int64), t, cuts, cuts)
    assert collaborative_features(build(TEN), queries).shape == (2, 0, COLLABORATIVE_DIM)


def test_memory_mapped_store(tmp_path: Path) -> None:
    """The columns of a store are those of its events in memory, to the bit."""
    stream = synthetic_stream(nodes=20, events=200, seed=2).stream
    store = convert_to_store(stream, tmp_path / "store")
    assert store.stream().backing is not None
    cuts = torch.tensor([150, 200])
    t = torch.from_numpy(stream.elapsed[[150, 199]])
    queries = Queries(torch.tensor([0, 3]), torch.tensor([[1, 2, 9], [4, 5, 19]]), t, cuts, cuts)
    known = build_history(stream, seed=0, device=torch.device("cpu")).index
    stored = build_history(store.stream(), seed=0, device=torch.device("cpu")).index
    assert torch.equal(collaborative_features(stored, queries), collaborative_features(known, queries))
