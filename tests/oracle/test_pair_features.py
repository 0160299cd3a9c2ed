"""Features of slots and pairs against their definition, on every device."""

from __future__ import annotations

import random
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history import pair_features
from cordgt.history.context import TreeShape, sample_trees
from cordgt.history.queries import Queries

from . import slow
from . import strategies as some
from .helpers import build
from .strategies import Stream, streams


def check(place: Any, stream: Stream, roots: list[int], cut: int, pair_cut: int, later: float, how: str) -> None:
    """Compare all features of one query: the first root is the source, the others are its candidates."""
    index, shape, history = place.index(build(stream)), TreeShape((4, 1)), stream.history
    t = stream.elapsed[-1] + later
    endpoints, cuts = place.ints([roots]), place.ints([cut])
    trees = sample_trees(index, shape, endpoints, cuts[:, None], seed=1, sampling=how)
    got = pair_features.slot_features(index, trees, place.floats([t]), cuts, place.ints([pair_cut]))
    slots = [slow.tree(history, shape.fanout, u, cut, 1, 0, how) for u in roots]
    pairs: list[tuple[int, int | None]] = [(0, None)]
    if len(roots) > 1:
        others = range(1, len(roots))
        pairs = [*((0, k) for k in others), *((k, 0) for k in others)]
    expected = [
        [
            slow.slot_features(history, slot, slots[of], None if to is None else slots[to], t, cut, pair_cut)
            for slot in slots[of]
        ]
        for of, to in pairs
    ]
    torch.testing.assert_close(got.cpu(), torch.tensor([expected]), rtol=1e-6, atol=1e-6)
    if len(roots) > 1:
        queries = Queries(endpoints[:, 0], endpoints[:, 1:], place.floats([t]), cuts, place.ints([pair_cut]))
        known = [slow.pair_features(history, roots[0], v, t, cut, pair_cut) for v in roots[1:]]
        torch.testing.assert_close(
            pair_features.pair_features(index, queries).cpu(),
            torch.tensor([known]),
            rtol=1e-6,
            atol=1e-6,
            check_dtype=True,
        )


@settings(max_examples=40)
@given(stream=streams(), data=st.data(), how=some.samplings, later=st.sampled_from((0.0, 2.5, 1e9, 1e308)))
def test_features_of_random_streams(place: Any, stream: Stream, data: st.DataObject, how: str, later: float) -> None:
    roots = data.draw(st.lists(some.nodes(stream, padding=False), min_size=1, max_size=4))
    cut = data.draw(some.cuts(stream))
    check(place, stream, roots, cut, data.draw(st.integers(0, cut)), later, how)


def test_windows_of_a_longer_stream(place: Any) -> None:
    """700 events, so that two windows end within it."""
    draw = random.Random(3)
    src, dst = ([draw.randrange(9) for _ in range(700)] for _ in range(2))
    t = sorted(draw.randrange(400) for _ in range(700))
    for cut, pair_cut in ((700, 700), (610, 600), (63, 63), (0, 0)):
        check(place, Stream(src, dst, t, 9, None), [3, 4, 3, 20], cut, pair_cut, 1.0, "mixed")
