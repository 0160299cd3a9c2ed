"""`PairTable` scores pairs as the network of `counts` does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.inference.retrieval.pair_table import PairTable
from cordgt.models.base import SCORE_TOLERANCE
from cordgt.models.counts import Counts, CountsSettings
from cordgt.tasks.scoring import score_queries


@pytest.mark.parametrize("cut", [0, 1, 150, 400])
def test_scores_are_those_of_the_network(cut: int) -> None:
    rng = np.random.default_rng(3)
    n_nodes = 60  # the last ones have no events
    src, dst = rng.integers(0, 40, (2, 400))
    elapsed = np.sort(rng.integers(0, 90, 400)).astype(float)
    history = History(TemporalIndex.build(src, dst, elapsed - elapsed[0], n_nodes), None, None, seed=0)
    torch.manual_seed(1)
    scorer = Counts(CountsSettings(hidden=24), edge_dim=0, node_dim=0).eval()
    table = PairTable.build(scorer, history, 95.0, cut)
    sources = np.array([0, 7, 55, 61, 13])  # 55: no events; 61: unknown
    pools = [np.arange(60), np.array([3, 5, 59]), np.arange(0, 60, 7), np.arange(40), np.empty(0, np.int64)]
    got = table.score(sources, pools)
    u, v = np.repeat(sources, [len(pool) for pool in pools]), np.concatenate(pools)
    n = len(u)
    t, cuts = torch.full((n,), 95.0, dtype=torch.float64), torch.full((n,), cut)
    expected = score_queries(scorer, history, Queries(torch.from_numpy(u), torch.from_numpy(v)[:, None], t, cuts, cuts))
    np.testing.assert_allclose(got, expected[:, 0], atol=SCORE_TOLERANCE)
    assert table.nodes.shape[1] == (0 if cut == 0 else table.nodes.shape[1])
    assert table.nodes.shape[1] <= 7


def test_later_events_change_nothing() -> None:
    rng = np.random.default_rng(4)
    src, dst = rng.integers(0, 20, (2, 100))
    other = np.concatenate([dst[:60], rng.integers(0, 20, 40)])
    elapsed = np.arange(100.0)
    scorer = Counts(CountsSettings(hidden=8), edge_dim=0, node_dim=0).eval()
    scores = []
    for destinations in (dst, other):
        history = History(TemporalIndex.build(src, destinations, elapsed, 20), None, None, seed=0)
        scores.append(PairTable.build(scorer, history, 60.0, 60).score(np.arange(20), [np.arange(20)] * 20))
    assert (scores[0] == scores[1]).all()
