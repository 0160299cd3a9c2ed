"""A query sees the first ``cut`` events and nothing else: whatever happens to the rest, the logits keep every bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.tasks.protocol import VISIBILITIES

from .worlds import Case, World, answers, ask, every_model, every_reading_model, other_futures, random_world, worlds

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
    asked = ask(world, positions, rule)
    network = case.network(world)
    expected = answers(network, world, asked)
    for change, other in other_futures(world, int(asked.cut.max()), seed):
        assert_same(answers(network, other, asked), expected, change)


@every_model
@every_rule
@settings(max_examples=4)
@given(world=worlds(), seed=st.integers(0, 99), data=st.data())
def test_query_ignores_everything_from_its_own_cut_on(
    case: Case, rule: str, world: World, seed: int, data: st.DataObject
) -> None:
    """Alone, and also in the midst of a batch whose other queries see more than it does."""
    start = data.draw(st.integers(0, world.n_events - 1), label="start")
    positions = list(range(start, min(start + 4, world.n_events)))
    asked = ask(world, positions, rule)
    network = case.network(world)
    together = answers(network, world, asked)
    for i in range(len(asked)):
        expected = answers(network, world, asked.one(i))
        for change, other in other_futures(world, int(asked.cut[i]), seed):
            assert_same(answers(network, other, asked.one(i)), expected, f"query {i} alone, {change}")
            assert_same(answers(network, other, asked)[i], together[i], f"query {i} among others, {change}")


@every_model
@pytest.mark.parametrize("features", [False, True])
def test_the_past_alone_gives_the_same(case: Case, features: bool) -> None:
    """A stream that ends where the query begins, whole cuts of it: what a live system would have had."""
    world = random_world(3, 80, features=features)
    network = case.network(world)
    stream = world.stream
    for p in range(10, 80, 7):
        cut = int(stream.tie_start[p])
        asked = ask(world, [p], "event")
        assert_same(answers(network, world.first(cut), asked), answers(network, world, asked), f"event {p}")


@every_model
@pytest.mark.parametrize("features", [False, True])
def test_events_of_the_same_moment_are_never_seen(case: Case, features: bool) -> None:
    """Six events at one time, the query's own among them: swap, change or remove the other five."""
    world = random_world(8, 40, features=features)
    start = 28
    tied = replace(world, t=(*world.t[:start], *[world.t[start - 1] + 3] * 6, *[world.t[-1] + 9] * 6))
    assert tied.stream.tie_start[33] == start
    network = case.network(tied)
    asked = ask(tied, list(range(start, start + 6)), "event")
    assert set(asked.cut) == set(asked.pair_cut) == {start}
    expected = answers(network, tied, asked)
    backwards = np.r_[0:start, start + 5 : start - 1 : -1, start + 6 : 40]
    swapped = World(
        tuple(tied.src[i] for i in backwards),
        tuple(tied.dst[i] for i in backwards),
        tied.t,
        None if tied.edge_x is None else tied.edge_x[backwards],
        tied.node_x,
    )
    assert_same(answers(network, swapped, asked), expected, "swapped")
    with_pair = replace(tied, src=(*tied.src[:start], *[asked.src[0]] * 12))
    with_pair = replace(with_pair, dst=(*tied.dst[:start], *[asked.dst[0][0]] * 12))
    assert_same(answers(network, with_pair, asked), expected, "the pair meets at that very moment")
    assert_same(answers(network, tied.first(start), asked), expected, "removed")


@every_reading_model
def test_what_is_seen_does_matter(case: Case) -> None:
    """A model that reads nothing would pass all this: the last visible event, changed, must move some score."""
    world = random_world(4, 60, features=True)
    asked = ask(world, [50, 52, 55], "event")
    last = int(asked.cut.max()) - 1
    pairs = [(s, d) for s, row in zip(asked.src, asked.dst, strict=True) for d in row]
    network = case.network(world)
    expected = answers(network, world, asked)
    others = []
    for s, d in pairs:
        src, dst = list(world.src), list(world.dst)
        src[last], dst[last] = s, d
        others.append(replace(world, src=tuple(src), dst=tuple(dst)))
    assert any(not torch.equal(answers(network, other, asked), expected) for other in others)


@pytest.mark.parametrize("rule", ["paper", "batch"])
def test_pairs_that_met_within_the_batch_are_not_recorded_yet(rule: str) -> None:
    """Records stop at ``pair_cut``, though under the paper's own rule trees see more. EdgeBank reads records alone."""
    world = World(("a", "a", "a", "b"), ("c", "b", "b", "a"), (0, 1, 2, 3))
    edgebank = Case("edgebank", {}).network(world)
    for start, seen in ((1, False), (2, True)):
        asked = replace(ask(world, [3], rule, batch_start=start), dst=[["a", "c"]])
        assert answers(edgebank, world, asked).tolist() == [[1.0 if seen else -1.0, -1.0]]


@every_model
@every_rule
def test_rules_see_what_they_say(case: Case, rule: str) -> None:
    """`event` stops at the query's own time, `paper` the records at the batch's start too, `batch` also the trees."""
    world = random_world(6, 60, features=False)
    asked = ask(world, list(range(40, 50)), rule)
    own = world.stream.tie_start[40:50]
    start = np.minimum(own, 40)
    assert asked.cut.tolist() == (start if rule == "batch" else own).tolist()
    assert asked.pair_cut.tolist() == (own if rule == "event" else start).tolist()
    assert (asked.pair_cut <= asked.cut).all()
    if rule == "batch":  # the batch's own events might as well not be there
        network = case.network(world)
        assert_same(answers(network, world.first(40), asked), answers(network, world, asked), "the batch's own events")
