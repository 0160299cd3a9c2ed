"""Distinct slots and the folded encoder, against every slot on its own and the layers as they are trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history.context import Context, TreeShape, sample_trees
from cordgt.history.distinct_slots import find_distinct_slots
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel
from cordgt.models.cordgt import MIN_DISTINCT_CANDIDATES, Cordgt
from cordgt.runtime.kernel_loader import plain_torch
from cordgt.training.model_factory import build_model
from cordgt.training.settings import make_settings

NODE_DIM = 2
SMALL = {"hidden": 8, "heads": 3, "td_dim": 6, "sd_dim": 10}


def some_history(seed: int, *, n_events: int, nodes: bool) -> History:
    """Nodes 0 to 5 have events, with ties, repeats and self-loops; 6 and 7 have none."""
    random = np.random.default_rng(seed)
    src, dst = random.integers(0, 6, (2, n_events))
    elapsed = random.choice([0, 0, 1, 3], n_events).cumsum()
    index = TemporalIndex.build(src, dst, (elapsed - elapsed[:1]).astype(np.float64), 8)
    node_x = torch.from_numpy(random.normal(size=(8, NODE_DIM)).astype(np.float32)) if nodes else None
    return History(index, None, node_x, seed=seed)


def some_queries(history: History, seed: int, n: int, n_candidates: int) -> Queries:
    """Ask at any time, about any node, and about one that the history does not have."""
    random = np.random.default_rng(seed)
    position = torch.from_numpy(random.integers(0, len(history.index.elapsed), n))
    cut = history.index.tie_start[position].long()
    src, dst = (torch.from_numpy(random.integers(0, 9, size)) for size in ((n,), (n, n_candidates)))
    return Queries(src, dst, history.index.elapsed[position], cut, cut)


def some_model(name: str, nodes: bool, changes: dict[str, Any]) -> LinkModel:
    torch.manual_seed(3)
    return build_model(make_settings(name, SMALL | changes), edge_dim=0, node_dim=NODE_DIM * nodes).eval()


@given(
    seed=st.integers(0, 1000), fanout=st.sampled_from(((1,), (5,), (4, 1), (2, 3), (2, 1, 3))), sampling=st.booleans()
)
@settings(max_examples=25, deadline=None)
def test_distinct_slots_hold_every_node_and_event_once(seed: int, fanout: tuple[int, ...], sampling: bool) -> None:
    history = some_history(seed, n_events=30, nodes=False)
    queries = some_queries(history, seed, 3, 2)
    trees = sample_trees(
        history.index,
        TreeShape(fanout),
        queries.endpoints,
        queries.cut[:, None],
        seed=seed,
        sampling="mixed" if sampling else "uniform",
    )
    found = find_distinct_slots(trees)
    for node, pos, slot, count in zip(
        *(x.flatten(0, 1).tolist() for x in (trees.node, trees.pos, found.slot, found.count)), strict=True
    ):
        every = [(a, b) for a, b in zip(node, pos, strict=True) if a >= 0]
        expected = list(dict.fromkeys(every))
        n = len(expected)
        assert [(node[c], pos[c]) for c in slot[:n]] == expected
        assert slot[:n] == [list(zip(node, pos, strict=True)).index(key) for key in expected]
        assert count[:n] == [every.count(key) for key in expected]
        assert not any(count[n:])


def test_a_tree_of_its_root_has_one_slot() -> None:
    found = find_distinct_slots(Context(torch.tensor([[7, -1, -1]]), torch.full((1, 3), -1)))
    assert (found.slot.tolist(), found.count.tolist()) == ([[0]], [[1]])


@given(
    seed=st.integers(0, 1000),
    name=st.sampled_from(("cordgt", "cordgt_plus")),
    changes=st.sampled_from(
        (
            {},
            {"fanout": (4,)},
            {"stpe": "u"},
            {"td": False},
            {"sd": False},
            {"td": False, "sd": False},
            {"layers": 1},
            {"layers": 3},
            {"head": "linear"},
            {"sampling": "recent"},
        )
    ),
    nodes=st.booleans(),
    n_candidates=st.integers(MIN_DISTINCT_CANDIDATES, MIN_DISTINCT_CANDIDATES + 4),
)
@settings(max_examples=30, deadline=None)
def test_scores_equal_those_of_every_slot(
    seed: int, name: str, changes: dict[str, Any], nodes: bool, n_candidates: int
) -> None:
    history = some_history(seed, n_events=40, nodes=nodes)
    model = some_model(name, nodes, {"fanout": (5, 2)} | changes)
    batch = model.read(history, some_queries(history, seed, 3, n_candidates))
    with torch.inference_mode():
        found = model(batch)
        with plain_torch():
            expected = model(batch)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("changes", [{}, {"mask": True}])
def test_only_inference_without_a_mask_encodes_distinct_slots(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = some_history(1, n_events=30, nodes=False)
    model = some_model("cordgt", False, changes)
    batch = model.read(history, some_queries(history, 1, 3, MIN_DISTINCT_CANDIDATES))
    calls = []
    pooled = Cordgt._pooled_distinct
    monkeypatch.setattr(Cordgt, "_pooled_distinct", lambda *args: calls.append(1) or pooled(*args))
    model(batch)
    model.train()
    with torch.no_grad():
        model(batch)
    assert not calls
    model.eval()
    with torch.no_grad():
        model(batch)
        model(model.read(history, some_queries(history, 1, 3, MIN_DISTINCT_CANDIDATES - 1)))
    assert len(calls) == (not changes)


@pytest.mark.parametrize("name", ["cordgt", "cordgt_plus"])
def test_the_bits_of_a_query_do_not_depend_on_the_others_of_its_batch(name: str) -> None:
    history = some_history(2, n_events=40, nodes=True)
    model = some_model(name, True, {"fanout": (5, 2)})
    queries = [some_queries(history, seed, 3, 20) for seed in range(6)]
    for other in queries[1:]:
        mixed = Queries(*(torch.cat([a[:1], b[1:]]) for a, b in zip(*map(_values, (queries[0], other)), strict=True)))
        with torch.inference_mode():
            first, second = (model(model.read(history, q)) for q in (queries[0], mixed))
        assert torch.equal(first[0], second[0])


def _values(queries: Queries) -> list[torch.Tensor]:
    return list(vars(queries).values())
