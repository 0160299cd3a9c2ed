"""The same query gets the same logits. Bit-identical: at another origin of time, with the same seed. Within the stated
tolerance: in another batch, with other candidates. On another device: within 1e-3. Unknown nodes get finite logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.callbacks import Callback
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.models.base import list_tensors
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import evaluate
from cordgt.tasks.metrics import link_metrics
from cordgt.tasks.protocol import VISIBILITIES, Protocol
from cordgt.tasks.run_metrics import SETTINGS, SPLITS
from cordgt.tasks.scoring import score_queries
from cordgt.tasks.ties import mean_ranks, merge_near_ties
from cordgt.training.model_factory import build_model
from cordgt.training.step import Step

from .worlds import (
    CPU,
    EDGE_DIM,
    NODE_DIM,
    Case,
    World,
    assert_scores_near,
    every_embedding_model,
    every_model,
    every_sampling_model,
    logits,
    predict_logits,
    query_events,
    random_world,
    worlds,
)


def rows(queries: Queries, part: Any) -> Queries:
    return Queries(**{name: value[part] for name, value in vars(queries).items()})


def assert_all_equal(got: Any, expected: Any) -> None:
    """Assert that all tensors of two readers' outputs are equal, bit by bit."""
    got, expected = list_tensors(got), list_tensors(expected)
    assert len(got) == len(expected) > 0
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


# --- another origin of time ---


@every_model
@settings(max_examples=6)
@given(world=worlds(), by=st.sampled_from((-1000, 7, 10**9)), rule=st.sampled_from(VISIBILITIES), data=st.data())
def test_shifting_all_times_changes_nothing(case: Case, world: World, by: int, rule: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, world.n_events - 1), label="start")
    positions = list(range(start, min(start + 5, world.n_events)))
    network = case.network(world)
    whole = world.times.dtype == np.int64
    later = world.shifted(by if whole else 1000.0)
    named, named_later = query_events(world, positions, rule), query_events(later, positions, rule)
    assert named_later.cut.tolist() == named.cut.tolist()
    got, expected = predict_logits(network, later, named_later), predict_logits(network, world, named)
    if whole:
        assert torch.equal(got, expected)
    assert_scores_near(got, expected)


@every_model
@pytest.mark.parametrize("split", ["quantile", "time"])
def test_shifting_all_times_leaves_the_metrics(case: Case, split: str) -> None:
    """Split, negatives and scores: everything between the file and the metrics."""
    world = random_world(11, 160, features=False)
    network = case.network(world)
    protocol = Protocol(split=split)
    first, later = (
        LinkTask.prepare(w.stream, protocol, seed=5, device=CPU) for w in (world, world.shifted(1_600_000_000_000_000))
    )
    for name in ("train", "validation", "test"):
        assert getattr(first.split, name).tolist() == getattr(later.split, name).tolist()
    for part in SPLITS:
        for setting in SETTINGS:
            assert evaluate(network, first, part, setting) == evaluate(network, later, part, setting)


@pytest.mark.parametrize("n_events", [91, 171])
def test_shifting_all_times_leaves_the_split(n_events: int) -> None:
    """0.7 * 90 falls just short of 63: near 0 that moment lies before event 63, near 10^15 it is rounded onto it."""
    world = World(("a",) * n_events, tuple("bc"[i % 2] for i in range(n_events)), tuple(range(n_events)))
    first, later = (
        LinkTask.prepare(w.stream, Protocol(mask_nodes=0), seed=5, device=CPU) for w in (world, world.shifted(10**15))
    )
    assert first.split.train.tolist() == later.split.train.tolist()


# --- another batch size ---


@every_model
@pytest.mark.parametrize("features", [False, True])
def test_batch_size_changes_scores_by_rounding_only_under_the_event_rule(case: Case, features: bool) -> None:
    """Trees, negatives and distances are identical. Scores agree within the tolerance. Ranks and AP agree, because
    near-equal scores tie."""
    world = random_world(12, 200, features=features)
    network = case.network(world)
    tasks = [
        LinkTask.prepare(world.stream, Protocol(eval_batch_size=size), seed=5, device=CPU) for size in (30, 7, 1, 200)
    ]
    for part in SPLITS:
        for setting in SETTINGS:
            named = [task.evaluation_queries(part, setting) for task in tasks]
            for positions, queries in named[1:]:
                assert positions.tolist() == named[0][0].tolist()
                assert_all_equal(queries, named[0][1])
    _, queries = tasks[0].evaluation_queries("test", "transductive")
    history = tasks[0].full_history
    whole = network.reader.read(history, queries)
    scores = score_queries(network, history, queries)
    assert len(scores) >= 20 and evaluate(network, tasks[0], "test", "transductive")["ap"] is not None
    for size in (1, 7, 13):
        parts = [slice(i, i + size) for i in range(0, len(scores), size)]
        read = [list_tensors(network.reader.read(history, rows(queries, part))) for part in parts]
        assert_all_equal([torch.cat(pieces) for pieces in zip(*read, strict=True)], whole)
        chunked = score_queries(network, history, queries, max_pairs_per_batch=2 * size)
        assert_scores_near(chunked, scores)
        aps = [link_metrics(*merge_near_ties(x, network.score_tolerance).T)["ap"] for x in (chunked, scores)]
        assert aps[0] == pytest.approx(aps[1], abs=1e-4)  # a score at the end of a tie may change sides


@every_model
def test_training_batches_draw_the_same_whatever_their_size(case: Case) -> None:
    """Trees and negatives of a training event follow from its position and epoch, not from the rest of the batch."""
    world = random_world(13, 120, features=False)
    task = LinkTask.prepare(world.stream, Protocol(), seed=5, device=CPU)
    network = case.network(world)
    history = replace(task.train_history, epoch=3)
    position = torch.from_numpy(task.split.train)

    def read(size: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        queries = [task.queries(p, p[:1].expand_as(p), task.pools.train, seed=5, epoch=3) for p in position.split(size)]
        found = [list_tensors(network.reader.read(history, q)) for q in queries]
        joined = [torch.cat(pieces) for pieces in zip(*found, strict=True)]
        return [torch.cat(pieces) for pieces in zip(*(list_tensors(q) for q in queries), strict=True)], joined

    expected = read(50)
    for size in (1, 9, 1000):
        for got, wanted in zip(read(size), expected, strict=True):
            assert_all_equal(got, wanted)


# --- with other candidates ---


@every_model
@settings(max_examples=6)
@given(world=worlds(), rule=st.sampled_from(VISIBILITIES), data=st.data())
def test_candidates_together_or_alone(case: Case, world: World, rule: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, world.n_events - 1), label="start")
    named = query_events(world, list(range(start, min(start + 4, world.n_events))), rule, candidates=5)
    network = case.network(world)
    together = predict_logits(network, world, named)
    assert together.shape == (len(named), 5)
    for j in range(5):
        alone = replace(named, dst=[row[j : j + 1] for row in named.dst])
        assert_scores_near(predict_logits(network, world, alone)[:, 0], together[:, j])
    for i in range(len(named)):
        assert_scores_near(predict_logits(network, world, named.one(i))[0], together[i])


@every_model
def test_candidates_in_another_order(case: Case) -> None:
    world = random_world(14, 60, features=True)
    named = query_events(world, [40, 44, 51], "event", candidates=4)
    backwards = replace(named, dst=[row[::-1] for row in named.dst])
    network = case.network(world)
    assert_scores_near(predict_logits(network, world, backwards), predict_logits(network, world, named).flip(1))


@every_model
def test_no_candidates_or_no_queries_give_empty_scores(case: Case) -> None:
    """For example if only new partners are wanted and a source has interacted with everyone."""
    world = random_world(19, 30, features=True)
    network, history = case.network(world), world.history
    named = query_events(world, [20, 24], "event").to_queries(world.stream)
    steps: list[int] = []

    class Steps(Callback):
        def on_step(self, n: int, loss: float | None = None) -> None:
            steps.append(n)

    for queries, shape in ((replace(named, dst=named.dst[:, :0]), (2, 0)), (rows(named, slice(0, 0)), (0, 3))):
        assert score_queries(network, history, queries, callbacks=Steps()).shape == shape
    assert steps == [2, 0]


# --- nodes without history ---


@every_model
@pytest.mark.parametrize("features", [False, True])
def test_unknown_nodes_and_empty_history_give_finite_scores(case: Case, features: bool) -> None:
    world = random_world(15, 50, features=features)
    history = world.history
    n = history.index.n_nodes
    network = case.network(world)
    queries = Queries(
        src=torch.tensor([0, n, n + 7, 1]),
        dst=torch.tensor([[n, 1], [0, n], [n + 8, n + 7], [2, n + 100]]),
        t=torch.tensor([3.0, 0.0, 5.0, 0.0], dtype=torch.float64),
        cut=torch.tensor([50, 0, 50, 0]),
        pair_cut=torch.tensor([50, 0, 20, 0]),
    )
    scores = logits(network, history, queries)
    assert scores.shape == (4, 2) and scores.isfinite().all()
    assert_scores_near(logits(network, history, rows(queries, slice(1, 3))), scores[1:3])


@every_model
@pytest.mark.parametrize("features", [False, True])
def test_unknown_nodes_are_alike(case: Case, features: bool) -> None:
    """The id of an unknown node does not change its scores, up to rounding."""
    world = random_world(16, 50, features=features)
    n = world.stream.n_nodes
    queries = Queries(
        src=torch.tensor([0, 0]),
        dst=torch.tensor([[n], [n + 40]]),
        t=torch.full((2,), 60.0, dtype=torch.float64),
        cut=torch.tensor([50, 50]),
        pair_cut=torch.tensor([50, 50]),
    )
    scores = logits(case.network(world), world.history, queries)
    assert_scores_near(scores[0], scores[1])


@every_model
def test_unknown_nodes_tie_at_every_place(case: Case) -> None:
    """Among nodes without history the rank is the mean rank, however many are scored at once, and AP is one half."""
    world = random_world(16, 50, features=False)
    n, n_queries, width = world.stream.n_nodes, 11, 13
    queries = Queries(
        src=torch.arange(n_queries) % n,
        dst=n + torch.arange(n_queries * width).reshape(n_queries, width),
        t=torch.full((n_queries,), 60.0, dtype=torch.float64),
        cut=torch.full((n_queries,), 50),
        pair_cut=torch.full((n_queries,), 50),
    )
    network = case.network(world)
    for size in (1, 3, 8, 40, 1000):
        scores = score_queries(network, world.history, queries, max_pairs_per_batch=size)
        ranks = mean_ranks(scores[:, 0], scores[:, 1:], np.ones((n_queries, width - 1), bool), network.score_tolerance)
        assert ranks.tolist() == [1 + (width - 1) / 2] * n_queries
        for row in merge_near_ties(scores, network.score_tolerance):
            assert link_metrics(row[:6], row[6:12])["ap"] == 0.5


@every_model
def test_rank_does_not_depend_on_the_place_of_a_row(case: Case) -> None:
    """Known and unknown candidates in another order, and in parts of other sizes: the same ranks."""
    world = random_world(20, 90, features=True)
    n = world.stream.n_nodes
    candidates = torch.cat([torch.arange(n), n + torch.arange(7)])
    positions = torch.arange(60, 90, 5)
    queries = Queries(
        src=torch.from_numpy(world.stream.src)[positions],
        dst=candidates.expand(len(positions), -1),
        t=torch.from_numpy(world.stream.elapsed)[positions],
        cut=torch.from_numpy(world.stream.tie_start)[positions].long(),
        pair_cut=torch.from_numpy(world.stream.tie_start)[positions].long(),
    )
    network = case.network(world)

    def ranks(order: torch.Tensor, size: int) -> np.ndarray:
        """The rank of every candidate among the others, by candidate."""
        ordered = replace(queries, dst=queries.dst[:, order])
        scores = np.empty(queries.dst.shape)
        scores[:, order] = score_queries(network, world.history, ordered, max_pairs_per_batch=size)
        every = np.ones_like(scores, dtype=bool)  # each ties with itself, in all cases alike
        return np.stack([mean_ranks(true, scores, every, network.score_tolerance) for true in scores.T], axis=1)

    expected = ranks(torch.arange(len(candidates)), 10**6)
    shuffled = torch.from_numpy(np.random.default_rng(1).permutation(len(candidates)))
    for order, size in ((shuffled, 10**6), (shuffled.flip(0), 10**6), (shuffled, 5), (shuffled, 1)):
        np.testing.assert_array_equal(ranks(order, size), expected)


@every_model
@pytest.mark.parametrize("hidden", [True, False])
def test_no_events_at_all(case: Case, hidden: bool) -> None:
    """An empty stream, or one whose events are all masked from training."""
    n = 6 if hidden else 0
    ends = np.arange(n) % 3
    index = TemporalIndex.build(ends, ends[::-1].copy(), np.arange(n, dtype=np.float64), 3, keep=np.zeros(n, bool))
    history = History(index, torch.ones(n, EDGE_DIM) if hidden else None, torch.ones(3, NODE_DIM), seed=1)
    network = build_model(case.settings, edge_dim=EDGE_DIM if hidden else 0, node_dim=NODE_DIM).eval()
    queries = Queries(
        src=torch.tensor([0, 4]),
        dst=torch.tensor([[1, 2], [0, 5]]),
        t=torch.zeros(2, dtype=torch.float64),
        cut=torch.tensor([0, n]),
        pair_cut=torch.tensor([0, n]),
    )
    for view in (index, index.without_kernels()):
        assert logits(network, replace(history, index=view), queries).isfinite().all()


# --- seeds ---


@every_model
@settings(max_examples=6)
@given(world=worlds(min_events=30), seed=st.integers(0, 2**62))
def test_seed_decides_what_is_read(case: Case, world: World, seed: int) -> None:
    named = query_events(world, list(range(world.n_events - 6, world.n_events)), "event")
    queries = named.to_queries(world.stream)
    network, again = case.network(world), case.network(world)
    history = replace(world.history, seed=seed)
    assert torch.equal(logits(network, history, queries), logits(again, replace(world.history, seed=seed), queries))
    assert_all_equal(network.reader.read(history, queries), network.reader.read(history, queries))
    if not case.samples:
        for other in (replace(world.history, seed=seed + 1), replace(history, epoch=1)):
            assert_all_equal(network.reader.read(other, queries), network.reader.read(history, queries))


@every_sampling_model
def test_other_seeds_and_epochs_sample_other_input(case: Case) -> None:
    world = random_world(17, 100, features=True)
    queries = query_events(world, list(range(80, 100)), "event").to_queries(world.stream)
    reader = case.network(world).reader
    history = world.history
    others = [replace(world.history, seed=6), *(replace(history, epoch=e) for e in (1, 2))]
    found = [list_tensors(reader.read(h, queries)) for h in (history, *others)]
    for i, a in enumerate(found):
        for b in found[:i]:
            assert any(not torch.equal(x, y) for x, y in zip(a, b, strict=True))


@every_model
def test_weights_come_from_the_seed_alone(case: Case) -> None:
    made = []
    for disturb in (0, 1):
        torch.manual_seed(100 + disturb)
        torch.randn(disturb)
        made.append(build_model(case.settings, edge_dim=2, node_dim=0).state_dict())
    assert all(torch.equal(made[0][key], made[1][key]) for key in made[0])
    other = build_model(replace(case.settings, seed=6), edge_dim=2, node_dim=0)
    weights = dict(other.named_parameters())
    if weights:
        assert any(not torch.equal(made[0][key], weight) for key, weight in weights.items())


# --- compiled and plain implementations ---


@every_model
@settings(max_examples=5)
@given(world=worlds(), rule=st.sampled_from(VISIBILITIES))
def test_compiled_loops_and_tensor_operations_agree(case: Case, place: Any, world: World, rule: str) -> None:
    """Input and scores are the same everywhere, up to the rounding of logarithms on another device."""
    named = query_events(world, list(range(world.n_events // 2, world.n_events, 3)), rule)
    queries, history, network = named.to_queries(world.stream), world.history, case.network(world)
    there = History(
        place.index(history.index),
        *(None if x is None else x.to(place.device) for x in (history.edge_x, history.node_x)),
        seed=history.seed,
    )
    queries_there = Queries(**{name: value.to(place.device) for name, value in vars(queries).items()})
    read = [x.cpu() for x in list_tensors(network.reader.read(there, queries_there))]
    if place.device.type == "cpu":
        assert_all_equal(read, network.reader.read(history, queries))
    torch.testing.assert_close(read, list_tensors(network.reader.read(history, queries)), rtol=1e-6, atol=1e-6)
    expected = logits(network, history, queries)
    got = logits(network.to(place.device), there, queries_there).cpu()
    if place.device.type == "cpu":
        assert torch.equal(got, expected)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


# --- embeddings ---


@every_embedding_model
@pytest.mark.parametrize("features", [False, True])
def test_embeddings_are_finite_and_ignore_later_events(case: Case, features: bool) -> None:
    world = random_world(18, 60, features=features)
    network = case.network(world)
    node = torch.tensor([0, 1, 2, world.stream.n_nodes + 3])
    t = torch.tensor([40.0, 0.0, 30.0, 30.0], dtype=torch.float64)
    cut = torch.tensor([40, 0, 30, 30])

    def embed(w: World) -> torch.Tensor:
        with torch.inference_mode():
            return network.embed(network.read_nodes(w.history, node, t, cut))

    found = embed(world)
    assert found.ndim == 2 and len(found) == 4 and found.isfinite().all()
    if not features:  # features of unknown nodes may change when they become known
        assert torch.equal(embed(world.first(40)), found)
    else:
        assert torch.equal(embed(world.first(40))[:3], found[:3])


# --- odd sizes ---


@every_model
def test_no_query_and_one_with_many_candidates(case: Case) -> None:
    """No queries give no scores; a query with too many candidates for one chunk is scored as in smaller chunks."""
    world = random_world(13, 60, features=False)
    network = case.network(world)
    task = LinkTask.prepare(world.stream, Protocol(), seed=5, device=CPU)
    _, queries = task.evaluation_queries("test", "transductive")
    none = rows(queries, slice(0, 0))
    network.eval()
    with torch.inference_mode():
        assert network(network.reader.read(task.full_history, none)).shape == (0, 2)
    assert score_queries(network, task.full_history, none).shape == (0, 2)
    one = rows(queries, slice(3, 4))
    wide = replace(one, dst=torch.arange(world.stream.n_nodes)[None])
    whole = score_queries(network, task.full_history, wide)
    assert_scores_near(score_queries(network, task.full_history, wide, max_pairs_per_batch=4), whole)


@every_model
def test_weights_changed_in_place_are_noticed(case: Case) -> None:
    """A fused Adam does not change the version counters of weights: a step must invalidate the model's cache."""
    world = random_world(14, 80, features=False)
    network = case.network(world)
    if not network.is_trainable:
        pytest.skip("nothing to train")
    task = LinkTask.prepare(world.stream, Protocol(), seed=5, device=CPU)
    _, queries = task.evaluation_queries("test", "transductive")
    score_queries(network, task.full_history, queries)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1, fused=True)
    position = torch.from_numpy(task.split.train[-10:])
    Step(network.train(), task, optimizer, 0, 1)(position, torch.ones(10))
    fresh = case.network(world)
    fresh.load_state_dict(network.state_dict())
    np.testing.assert_array_equal(
        score_queries(network, task.full_history, queries), score_queries(fresh, task.full_history, queries)
    )
