"""No candidate comes from the future: every gatherer and the first scorer read only the first ``cut`` events.

A destination that everybody interacts with after ``cut`` is planted. With it, without it, and without any later event,
the answers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from cordgt import EventStream, Run, train
from cordgt.events.times import TimeAxis
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History
from cordgt.inference import recommend_batch
from cordgt.inference.recommend_batch import BatchRecommender
from cordgt.inference.retrieval import ranking
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


# --- whole answers: a planted item and a planted user, both popular after the time of the question ---

Answer = Callable[[Run, float], object]


def answer_all(run: Run, at: float) -> object:
    """Return the answers of `recommend --all`, made in memory."""
    found = BatchRecommender.at_time(run.predictor, at, top=20, budget=64)
    return found.recommend(found.sources()).to_pylist()


ANSWERS: dict[str, Answer] = {
    "recommend": lambda run, at: run.recommend(3, at=at, top=20, budget=64),
    "recommend exhaustive": lambda run, at: run.recommend(3, at=at, top=20, exhaustive=True),
    "recommend new only": lambda run, at: run.recommend(3, at=at, top=20, new_only=True, budget=64),
    "recommend --all": answer_all,
    "recommend --destination": lambda run, at: run.recommend(destination=101, at=at, top=20),
    "recommend --destination --within": lambda run, at: run.recommend(destination=101, at=at, top=20, within=50),
    "similar items, cosine": lambda run, at: run.similar(101, at=at, side="dst"),
    "similar items, bm25": lambda run, at: run.similar(101, at=at, side="dst", by="bm25"),
    "similar users": lambda run, at: run.similar(3, at=at, side="src"),
    "similar items, embedding": lambda run, at: run.similar(101, at=at, side="dst", by="embedding"),
}
PLANTED_ITEM, PLANTED_USER = 77777777, 66666666  # no digits of a score


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    random, n = np.random.default_rng(2), 600
    src = random.integers(0, 30, n)
    dst = 100 + np.where(random.random(n) < 0.6, src * 4 % 140, random.integers(0, 140, n))
    stream = EventStream.from_columns(src, dst, np.arange(n) // 2, time=TimeAxis("number"), shared_ids=False)
    folder = tmp_path_factory.mktemp("runs")
    small = {"epochs": 1, "mask_nodes": 0.0}
    return {
        "counts": train(stream, "counts", out=folder / "counts", device="cpu", report=False, **small),
        "tgat": train(stream, "tgat", out=folder / "tgat", device="cpu", report=False, hidden=4, heads=1, **small),
    }


@pytest.mark.parametrize("model", ["counts", "tgat"])
@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_never_knows_a_planted_later_event(
    runs: dict[str, Run], model: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "embedding" in kind and model == "counts":
        pytest.skip("counts has no embeddings")
    for module in (ranking, recommend_batch):  # so that the gatherers choose the candidates
        monkeypatch.setattr(module, "POOL_SIZE", 80)
    monkeypatch.setattr(ranking, "CHEAP_POOL_SIZE", 80)
    run, ask = runs[model], ANSWERS[kind]
    at = int(run.stream.t[-1]) + 5
    users, items = np.arange(30), 100 + np.arange(140)
    src = np.concatenate([users, np.full(140, PLANTED_USER), users])
    dst = np.concatenate([np.full(30, PLANTED_ITEM), items, np.full(30, 101)])
    time = TimeAxis("number")
    later = EventStream.from_columns(src, dst, np.full(len(src), at), shared_ids=False, time=time)
    longer = run.with_events(later)
    before = ask(longer, at)
    assert before == ask(run, at)
    assert str(PLANTED_ITEM) not in str(before) and str(PLANTED_USER) not in str(before)
    assert ask(longer, at + 1) != before  # once they are visible, they count
