"""Similar nodes against their definition, on random streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.inference import similar

from . import slow
from . import strategies as some
from .helpers import build
from .strategies import Stream, streams


@settings(max_examples=60)
@given(
    stream=streams(filtered=False),
    data=st.data(),
    half_life=st.sampled_from((0.5, 3.0, 1e10, math.inf)),
    later=st.sampled_from((0.0, 2.5)),
)
@pytest.mark.parametrize("by", ["cosine", "bm25"])
def test_shared_partners(by: str, stream: Stream, data: st.DataObject, half_life: float, later: float) -> None:
    stream = number_by_first_appearance(stream)
    node, cut = data.draw(st.integers(0, stream.n_nodes - 1)), data.draw(some.cuts(stream))
    index, t, rate = build(stream), stream.elapsed[-1] + later, math.log(2) / half_life
    nodes, score, shared = similar.shared_partners(index, node, t, cut, rate, use_bm25=by == "bm25")
    if by == "cosine":
        score = similar.to_cosine(index, node, nodes, score, t, cut, rate)
    expected = slow.similar_nodes(stream.history, stream.n_nodes, node, t, cut, half_life, use_bm25=by == "bm25")
    assert dict(zip(nodes.tolist(), shared.tolist(), strict=True)) == {n: k for n, (_, k) in expected.items()}
    np.testing.assert_allclose(score, [expected[n][0] for n in nodes.tolist()], rtol=1e-9, atol=1e-300)


def number_by_first_appearance(stream: Stream) -> Stream:
    """Return the stream with nodes numbered as an `EventStream` does, and its isolated nodes after all others."""
    ends = [node for pair in zip(stream.src, stream.dst, strict=True) for node in pair]
    number = {node: i for i, node in enumerate(dict.fromkeys([*ends, *range(stream.n_nodes)]))}
    src, dst = ([number[node] for node in side] for side in (stream.src, stream.dst))
    return Stream(src, dst, stream.t, stream.n_nodes, stream.keep)
