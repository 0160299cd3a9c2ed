"""Temporal walks against their definition, step by step, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history.index import TemporalIndex
from cordgt.history.walks import sample_walks

from . import slow
from . import strategies as some
from .helpers import TEN, build, shape_of
from .strategies import Stream, streams


@settings(max_examples=50)
@given(
    stream=streams(),
    walks=st.integers(1, 4),
    length=st.integers(1, 4),
    scale=st.sampled_from((0.0, 0.1, 3.0)),
    seed=some.seeds,
    epoch=some.epochs,
    data=st.data(),
)
def test_walks(
    place: Any, stream: Stream, walks: int, length: int, scale: float, seed: int, epoch: int, data: st.DataObject
) -> None:
    queries = data.draw(st.lists(st.tuples(some.nodes(stream), some.cuts(stream)), min_size=1, max_size=4))
    root, cut = place.ints([u for u, _ in queries]), place.ints([c for _, c in queries])
    unit = max(stream.elapsed[-1], 1.0) / 20  # makes weights differ without vanishing, for any unit of time
    index = place.index(build(stream))
    got = sample_walks(index, root, cut, n_walks=walks, length=length, scale=scale / unit, seed=seed, epoch=epoch)
    size = (len(queries), walks, length)
    found = [shape_of(x, torch.int64, size, place.device) for x in (got.node, got.pos)]
    for i, (u, c) in enumerate(queries):
        for j in range(walks):
            nodes, positions = slow.walk(stream.history, u, c, j, length, scale / unit, seed, epoch)
            assert found[0][i][j] == nodes and found[1][i][j] == positions


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_event_frequencies_follow_the_weights(place: Any, scale: float) -> None:
    """One node with 8 events a unit apart: each is drawn with weight exp(scale * t) (chi-square, 7 df)."""
    index = place.index(TemporalIndex.build(np.zeros(8, int), np.arange(1, 9), np.arange(8.0), 9))
    positions = sample_walks(index, place.ints(0), place.ints(8), n_walks=20_000, length=1, scale=scale, seed=4).pos
    seen = torch.bincount(positions.flatten(), minlength=8).double().cpu()
    weight = torch.exp(scale * torch.arange(8.0, dtype=torch.float64))
    expected = 20_000 * weight / weight.sum()
    assert float(((seen - expected) ** 2 / expected).sum()) < 30


def test_weights_that_overflow_floating_point(place: Any) -> None:
    """exp(1e-4 * 1e8) overflows, its logarithm does not."""
    t = np.array([0.0, 1.0, 1e8, 1e8 + 1, 2e8])
    index = place.index(TemporalIndex.build(np.zeros(5, int), np.arange(1, 6), t, 6))
    walks = sample_walks(index, place.ints(0), place.ints([2, 4, 5]), n_walks=50, length=2, scale=1e-4, seed=0)
    assert [set(row) for row in walks.pos[..., 0].tolist()] == [{0, 1}, {2, 3}, {4}]
    assert (walks.pos[..., 1] == -1).all()


def test_later_events_do_not_change_walks(place: Any) -> None:
    whole, part = (place.index(build(stream)) for stream in (TEN, TEN.first(7)))
    args = {"n_walks": 6, "length": 3, "scale": 0.2, "seed": 3, "epoch": place.ints(2) if place.name != "cpu" else 2}
    a, b = (sample_walks(index, place.ints([0, 1, 2]), place.ints(7), **args) for index in (whole, part))
    assert a.node.equal(b.node) and a.pos.equal(b.pos)
