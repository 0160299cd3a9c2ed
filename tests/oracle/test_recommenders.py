"""Item-kNN and ALS, compared with lists and with exact solutions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from cordgt.events.stream import EventStream
from cordgt.history.queries import History, Queries
from cordgt.history.votes import PRIOR, SMALLEST, UNIT, VoteOptions, count_votes, votes_columns
from cordgt.models.als import Als, AlsSettings, Partners, _pair_table, _solve_side, fit_vectors
from cordgt.models.item_knn import ItemKnn, ItemKnnSettings
from cordgt.tasks.baselines import BASELINES, BIPARTITE_BASELINES, baseline_metrics, is_bipartite
from cordgt.tasks.histories import build_history
from cordgt.tasks.link import LinkTask
from cordgt.tasks.protocol import Protocol

from . import slow
from .strategies import Stream, streams

CPU = torch.device("cpu")


def history_of(stream: EventStream) -> History:
    return build_history(stream, seed=0, device=CPU)


@settings(max_examples=40)
@given(
    stream=streams(min_events=1, max_events=25, filtered=False),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)),
    data=st.data(),
)
def test_votes(stream: Stream, sizes: tuple[int, int, int], data: st.DataObject) -> None:
    """Compiled, and in torch operations; candidates without history and padding have none."""
    events = EventStream.from_columns(stream.src, stream.dst, stream.times)
    src, dst, elapsed = events.src.tolist(), events.dst.tolist(), (events.t - events.t[0]).astype(float).tolist()
    plain = slow.History(src, dst, elapsed, [True] * len(src))
    n, cut = events.n_nodes, data.draw(st.integers(0, len(src)))
    index = history_of(events).index
    queries = Queries(
        torch.arange(n + 1),
        torch.tensor([*range(n), n + 3, -1]).expand(n + 1, -1),
        torch.full((n + 1,), elapsed[-1], dtype=torch.float64),
        torch.full((n + 1,), cut),
        torch.full((n + 1,), cut),
    )
    own = VoteOptions(*sizes, decay=0.7)
    got = count_votes(index, queries, own)
    definition = slow.ItemKnn(*sizes, decay=0.7)
    expected = [[definition.votes(plain, u, v, cut) for v in range(n)] + [0, 0] for u in range(n)]
    assert got.tolist() == [*expected, [0] * (n + 2)]
    assert torch.equal(count_votes(index.without_kernels(), queries, own), got)


def test_votes_columns_hold_the_score_of_item_knn() -> None:
    stream = random_shop()
    history, cuts = history_of(stream), torch.tensor([100, 250])
    queries = Queries(torch.tensor([0, 3]), torch.arange(stream.n_nodes).expand(2, -1), 1.0 * cuts, cuts, cuts)
    model = ItemKnn(ItemKnnSettings(), edge_dim=0, node_dim=0)
    columns = votes_columns(history.index, queries)
    torch.testing.assert_close(
        columns[..., 2].double() * 4, model(model.reader.read(history, queries)), rtol=1e-6, atol=1e-5
    )
    votes = count_votes(history.index, queries, VoteOptions()) / UNIT**2
    torch.testing.assert_close(torch.expm1(4 * columns[..., 0].double()) / 256, votes.double(), rtol=1e-5, atol=1e-6)
    assert torch.equal(votes_columns(history.index.without_kernels(), queries), columns)
    assert (columns[..., 1] <= columns[..., 0]).all()


def test_item_knn_scores_by_hand() -> None:
    """b met x, then y. So a, who met x, is recommended y: half of the vote of the one visitor of x, b."""
    stream = EventStream.from_columns(["b", "b", "a", "c"], ["x", "y", "x", "z"], np.arange(4), shared_ids=False)
    names = stream.ids.names.to_pylist()
    ids = {name: torch.tensor([[names.index(name)]]) for name in "axyz"}
    cut = torch.tensor([4])
    dst = torch.cat([ids["x"], ids["y"], ids["z"]], dim=1)
    queries = Queries(ids["a"][0], dst, torch.tensor([9.0], dtype=torch.float64), cut, cut)
    model = ItemKnn(ItemKnnSettings(penalty=0.5), edge_dim=0, node_dim=0)
    votes = count_votes(history_of(stream).index, queries, VoteOptions())
    # the two visitors of x are a itself, who has no vote, and b; y came after x, at a distance of 1
    assert votes.tolist() == [[UNIT * UNIT, UNIT * UNIT // 2, 0]]
    scores = model(model.reader.read(history_of(stream), queries))[0].tolist()
    assert scores == pytest.approx(
        [
            np.log(1 / np.sqrt(3) + PRIOR * 2 / 5 + SMALLEST),
            np.log(0.5 / np.sqrt(2) + PRIOR * 1 / 5 + SMALLEST),
            np.log(PRIOR * 1 / 5 + SMALLEST),
        ]
    )


def random_shop(n: int = 250) -> EventStream:
    """Two groups of customers with their own products."""
    rng = np.random.default_rng(1)
    src = rng.integers(0, 16, n)
    dst = 2 * rng.integers(0, 7, n) + src % 2
    return EventStream.from_columns(src, dst, np.arange(n), shared_ids=False)


def test_als_step_solves_the_least_squares_problem() -> None:
    """Conjugate gradients in three dimensions end after three steps, so one pass gives the exact solution."""
    stream, own = random_shop(), AlsSettings(dim=3)
    n, cut = stream.n_nodes, 200
    count = np.zeros((n, n))
    np.add.at(count, (stream.src[:cut], stream.dst[:cut]), 1)
    users, items = _pair_table(history_of(stream).index, cut)
    rng = np.random.default_rng(3)
    for (start, other, events), counts in ((users, count), (items, count.T)):
        y = rng.normal(size=(n, own.dim))
        x = np.where(counts.any(axis=1)[:, None], rng.normal(size=(n, own.dim)), 0.0)
        _solve_side(start, other, events, x, y, y.T @ y, own.regularization, own.confidence)
        base = y.T @ y + own.regularization * np.eye(own.dim)
        for row, c in zip(x, counts, strict=True):
            matrix = base + (y.T * (own.confidence * c)) @ y
            exact = np.linalg.solve(matrix, y.T @ ((1 + own.confidence * c) * (c > 0)))
            assert row == pytest.approx(exact, abs=1e-8)


def test_als_has_vectors_of_training_destinations() -> None:
    stream = random_shop()
    vectors = fit_vectors(history_of(stream).index, 60, AlsSettings(dim=4), seed=0)
    known = np.unique(stream.dst[:60])
    assert vectors[known].any(axis=1).all()
    assert not np.delete(vectors, known, axis=0).any()


def test_als_folds_in_later_events() -> None:
    """A source that is new after training is scored by its first events; a destination without training has 0."""
    stream = random_shop()
    history = history_of(stream)
    model = Als(AlsSettings(dim=4, num_partners=5), edge_dim=0, node_dim=0, n_nodes=stream.n_nodes)
    model.prepare(history, 60)
    u = int(stream.src[249])
    everyone = torch.arange(stream.n_nodes + 1)[None]
    t = torch.tensor([249.0], dtype=torch.float64)
    scores = []
    for cut in (0, 249):
        c = torch.tensor([cut])
        scores.append(model(model.reader.read(history, Queries(torch.tensor([u]), everyone, t, c, c)))[0])
    assert not scores[0].any() and scores[1].any()
    one_by_one = [
        model(model.reader.read(history, Queries(torch.tensor([u]), v[None, None], t, c, c))) for v in everyone[0]
    ]
    torch.testing.assert_close(torch.cat(one_by_one)[:, 0], scores[1], rtol=0, atol=1e-12)  # without the product of all
    known = set(stream.dst[:60].tolist())
    assert all((scores[1][v] == 0) == (v not in known) for v in range(stream.n_nodes + 1))
    own_group = [v for v in known if stream.ids.names.to_pylist()[v] % 2 == stream.ids.names.to_pylist()[u] % 2]
    other_group = [v for v in known if v not in own_group]
    assert scores[1][own_group].mean() > scores[1][other_group].mean() + 0.2


def test_als_makes_no_matrix_of_sources_by_nodes_for_few_candidates() -> None:
    """A test period of 150,000 events in a stream of 75,000 nodes would need 60 GB."""
    model = Als(AlsSettings(dim=4, num_partners=5), edge_dim=0, node_dim=0, n_nodes=1000)
    largest = 0

    class LargestTensor(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            largest = max([largest, *(x.numel() for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor))])
            return result

    with LargestTensor():
        scores = model(Partners(torch.zeros(600, 5, dtype=torch.int64), torch.zeros(600, 2, dtype=torch.int64)))
    assert scores.shape == (600, 2) and largest < 600 * 1000 / 10


def test_baselines_of_a_bipartite_stream() -> None:
    """Item-kNN and ALS find the groups, popularity cannot; a stream with shared ids has the three usual baselines."""
    task = LinkTask.prepare(random_shop(400), Protocol(mask_nodes=0, ranking="all", filter="known"))
    assert is_bipartite(task)
    metrics = {name: splits["test"]["transductive"]["mrr"] for name, splits in baseline_metrics(task, ["test"]).items()}
    assert list(metrics) == [*BASELINES, *BIPARTITE_BASELINES]
    assert min(metrics["item-kNN"], metrics["ALS"]) > 1.3 * metrics["popularity"]
    shared = EventStream.from_columns([0, 1, 2, 0] * 20, [1, 2, 0, 2] * 20, np.arange(80))
    assert baseline_metrics(LinkTask.prepare(shared, Protocol(mask_nodes=0)), ["test"]).keys() == BASELINES.keys()
