"""A query sees the first ``cut`` events and nothing else: any change of the rest leaves the logits equal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.tasks.protocol import VISIBILITIES

from .worlds import (
    Case,
    World,
    every_model,
    every_reading_model,
    other_futures,
    predict_logits,
    query_events,
    random_world,
    worlds,
)

every_rule = pytest.mark.parametrize("rule", VISIBILITIES)


def assert_same(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert torch.equal(got, expected), f"{what}: differs by up to {(got - expected).abs().max():.2g}"


@every_model
@every_rule
@settings(max_examples=8)
@given(world=worlds(), seed=st.integers(0, 99), data=st.data())
def test_batch_ignores_everything_from_its_largest_cut_on(
    case: Case, rule: str, world: World, seed: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, world.n_events - 1), label="start")
    positions = list(range(start, min(start + 6, world.n_events)))
    named = query_events(world, positions, rule)
    network = case.network(world)
    expected = predict_logits(network, world, named)
    for change, other in other_futures(world, int(named.cut.max()), seed):
        assert_same(predict_logits(network, other, named), expected, change)


@every_model
@every_rule
@settings(max_examples=4)
@given(world=worlds(), seed=st.integers(0, 99), data=st.data())
def test_query_ignores_everything_from_its_own_cut_on(
    case: Case, rule: str, world: World, seed: int, data: st.DataObject
) -> None:
    """Alone, and in a batch whose other queries see more."""
    start = data.draw(st.integers(0, world.n_events - 1), label="start")
    positions = list(range(start, min(start + 4, world.n_events)))
    named = query_events(world, positions, rule)
    network = case.network(world)
    together = predict_logits(network, world, named)
    for i in range(len(named)):
        expected = predict_logits(network, world, named.one(i))
        for change, other in other_futures(world, int(named.cut[i]), seed):
            assert_same(predict_logits(network, other, named.one(i)), expected, f"query {i} alone, {change}")
            assert_same(predict_logits(network, other, named)[i], together[i], f"query {i} among others, {change}")


@every_model
@pytest.mark.parametrize("features", [False, True])
def test_stream_that_ends_at_the_cut_gives_the_same(case: Case, features: bool) -> None:
    """This is what a live system would have."""
    world = random_world(3, 80, features=features)
    network = case.network(world)
    stream = world.stream
    for p in range(10, 80, 7):
        cut = int(stream.tie_start[p])
        named = query_events(world, [p], "event")
        assert_same(
            predict_logits(network, world.first(cut), named), predict_logits(network, world, named), f"event {p}"
        )


@every_model
@pytest.mark.parametrize("features", [False, True])
def test_events_of_the_same_moment_are_never_seen(case: Case, features: bool) -> None:
    """Six events at one time, the query's own among them: swap, change or remove the other five."""
    world = random_world(8, 40, features=features)
    start = 28
    tied = replace(world, t=(*world.t[:start], *[world.t[start - 1] + 3] * 6, *[world.t[-1] + 9] * 6))
    assert tied.stream.tie_start[33] == start
    network = case.network(tied)
    named = query_events(tied, list(range(start, start + 6)), "event")
    assert set(named.cut) == set(named.pair_cut) == {start}
    expected = predict_logits(network, tied, named)
    backwards = np.r_[0:start, start + 5 : start - 1 : -1, start + 6 : 40]
    swapped = World(
        tuple(tied.src[i] for i in backwards),
        tuple(tied.dst[i] for i in backwards),
        tied.t,
        None if tied.edge_x is None else tied.edge_x[backwards],
        tied.node_x,
    )
    assert_same(predict_logits(network, swapped, named), expected, "swapped")
    with_pair = replace(tied, src=(*tied.src[:start], *[named.src[0]] * 12))
    with_pair = replace(with_pair, dst=(*tied.dst[:start], *[named.dst[0][0]] * 12))
    assert_same(predict_logits(network, with_pair, named), expected, "the pair interacts at the same time")
    assert_same(predict_logits(network, tied.first(start), named), expected, "removed")


@every_reading_model
def test_visible_events_matter(case: Case) -> None:
    """A model that reads nothing would pass all other tests: changing the last visible event must change some score."""
    world = random_world(4, 60, features=True)
    named = query_events(world, [50, 52, 55], "event")
    last = int(named.cut.max()) - 1
    pairs = [(s, d) for s, row in zip(named.src, named.dst, strict=True) for d in row]
    network = case.network(world)
    expected = predict_logits(network, world, named)
    others = []
    for s, d in pairs:
        src, dst = list(world.src), list(world.dst)
        src[last], dst[last] = s, d
        others.append(replace(world, src=tuple(src), dst=tuple(dst)))
    assert any(not torch.equal(predict_logits(network, other, named), expected) for other in others)


@pytest.mark.parametrize("rule", ["paper", "batch"])
def test_pair_history_ends_at_pair_cut(rule: str) -> None:
    """EdgeBank reads pair history only. Under the paper's rule trees see more."""
    world = World(("a", "a", "a", "b"), ("c", "b", "b", "a"), (0, 1, 2, 3))
    edgebank = Case("edgebank", {}).network(world)
    for start, seen in ((1, False), (2, True)):
        named = replace(query_events(world, [3], rule, batch_start=start), dst=[["a", "c"]])
        assert predict_logits(edgebank, world, named).tolist() == [[1.0 if seen else -1.0, -1.0]]


@every_model
@every_rule
def test_visibility_rules(case: Case, rule: str) -> None:
    """`event` ends at the query's time; `paper` ends pair history at the batch's start, `batch` also trees."""
    world = random_world(6, 60, features=False)
    named = query_events(world, list(range(40, 50)), rule)
    own = world.stream.tie_start[40:50]
    start = np.minimum(own, 40)
    assert named.cut.tolist() == (start if rule == "batch" else own).tolist()
    assert named.pair_cut.tolist() == (own if rule == "event" else start).tolist()
    assert (named.pair_cut <= named.cut).all()
    if rule == "batch":  # the batch's own events are not visible
        network = case.network(world)
        assert_same(
            predict_logits(network, world.first(40), named),
            predict_logits(network, world, named),
            "the batch's own events",
        )
