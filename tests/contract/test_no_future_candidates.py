"""No candidate comes from the future: every gatherer and the first scorer read only the first ``cut`` events.

A destination that everybody interacts with after ``cut`` is planted. With it, without it, and without any later event,
the answers are the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History
from cordgt.inference.retrieval.destinations import Destinations
from cordgt.inference.retrieval.first_scorer import new_first_scorer
from cordgt.inference.retrieval.gatherers import GATHERERS, Question, gather_candidates
from cordgt.inference.retrieval.ranking import CandidateFilter, candidate_pools, score_nodes

N_USERS, N_NODES, N_EVENTS = 40, 260, 700
PLANTED = N_NODES  # has events only after ``cut``
CUTS = (1, 40, 333, 500)


def questions(cut: int, source: int = 3) -> Iterator[Question]:
    """Yield one question about three streams with the same first ``cut`` events."""
    random = np.random.default_rng(0)
    src = random.integers(0, N_USERS, N_EVENTS)
    favourite = N_USERS + src * 5 + random.integers(0, 4, N_EVENTS)
    dst = np.where(random.random(N_EVENTS) < 0.6, favourite, random.integers(N_USERS, N_NODES, N_EVENTS))
    elapsed = random.integers(0, 2, N_EVENTS).cumsum().astype(float)
    planted = np.where(np.arange(N_EVENTS) < cut, dst, PLANTED)
    for sources, destinations in ((src, dst), (src, planted), (src[:cut], dst[:cut])):
        index = TemporalIndex.build(sources, destinations, elapsed[: len(sources)], N_NODES + 1)
        yield Question(index, Destinations(destinations, N_NODES + 1), source, cut, elapsed[cut], seed=3)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", GATHERERS)
def test_a_gatherer_reads_only_the_first_cut_events(cut: int, name: str) -> None:
    found = [GATHERERS[name][0](question, 30).tolist() for question in questions(cut)]
    assert found[0] == found[1] == found[2] and PLANTED not in found[1]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("n", [20, 1000])
def test_gathered_candidates_are_past_destinations_without_the_source(cut: int, n: int) -> None:
    found = [gather_candidates(question, n).tolist() for question in questions(cut)]
    assert found[0] == found[1] == found[2]
    visible = next(questions(cut)).destinations.visible(cut)
    assert set(found[1]) <= set(visible.tolist()) - {3}


@pytest.mark.parametrize("cut", CUTS)
def test_the_first_scorer_reads_only_the_first_cut_events(cut: int) -> None:
    scorer = new_first_scorer()
    scores = []
    for question in questions(cut):
        pools = candidate_pools(question, CandidateFilter(), 64, is_cheap=False, exhaustive=False)[1]
        pool = next(pools)
        assert PLANTED not in pool
        history = History(question.index, None, None, seed=0)
        scores.append(torch.from_numpy(score_nodes(scorer, history, question, pool)))
    assert torch.equal(scores[0], scores[1]) and torch.equal(scores[0], scores[2])


def test_popular_destinations_that_tie_do_not_depend_on_later_nodes() -> None:
    """6,000 destinations have one event each, more than are kept. Later ones change nothing."""
    dst = np.random.default_rng(0).permutation(6000)
    popular = [Destinations(np.append(dst, np.arange(6000, n)), n).popular(6000, 4096) for n in (6000, 9000)]
    assert len(popular[0]) == 4096 and (popular[0] == popular[1]).all()
