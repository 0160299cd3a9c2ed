"""Retrieve, then rank: gatherers against obvious versions, the two stages against exhaustive ranking, and filters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.errors import SettingError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.experiments.bench.recommendation import measure_recommend
from cordgt.history.index import TemporalIndex
from cordgt.history.pair_features import LOG_SCALE
from cordgt.history.queries import History, Queries
from cordgt.inference.first_scorer_file import FIRST_SCORER_FILE
from cordgt.inference.predictor import Predictor
from cordgt.inference.retrieval import budget as budgets
from cordgt.inference.retrieval import gatherers, ranking
from cordgt.inference.retrieval.destinations import Destinations
from cordgt.inference.retrieval.first_scorer import FirstScorer, new_first_scorer
from cordgt.inference.retrieval.gatherers import Question
from cordgt.inference.retrieval.neighbor_features import N_RECENT, neighbor_features
from cordgt.inference.retrieval.neighborhood import WALK_EVENTS, NodeRows, find_neighborhood
from cordgt.inference.run import Run
from cordgt.workflows.train import train

SMALL: dict[str, Any] = {"hidden": 8, "heads": 2, "fanout": (3, 1), "td_dim": 8, "sd_dim": 8, "epochs": 2, "lr": 0.01}


def purchases(n: int = 1500, *, n_items: int = 220, seed: int = 0) -> EventStream:
    """Users 0-39 and items, with favourites, ties and popular items."""
    random = np.random.default_rng(seed)
    users = random.integers(0, 40, n)
    items = np.where(random.random(n) < 0.6, users * 5 + random.integers(0, 4, n), random.integers(0, n_items, n))
    times = random.integers(0, 2, n).cumsum()
    return EventStream.from_columns(users, items, times, shared_ids=False, time=TimeAxis("number"), name="purchases")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "purchases"
    return train(purchases(), out=out, device="cpu", model="cordgt_plus", mask_nodes=0, **SMALL)


def answer(run: Run, node: Any, top: int = 10, **options: Any) -> Any:
    names = ("candidates", "exclude", "new_only", "groups", "per_group")
    filters = {name: options.pop(name) for name in names if name in options}
    return run.predictor.answer(node, None, top, allowed=run.predictor.make_filter(**filters), **options)


# --- gatherers ---


@pytest.fixture(scope="module")
def stream() -> EventStream:
    return purchases(700)


@pytest.mark.parametrize("cut", [0, 1, 2, 130, 699, 700])
def test_destinations_are_those_of_the_first_cut_events(stream: EventStream, cut: int) -> None:
    found, dst = Destinations(stream.dst, stream.n_nodes), stream.dst[:cut].tolist()
    by_first = list(dict.fromkeys(dst))
    assert found.visible(cut).tolist() == by_first and found.count(cut) == len(by_first)
    assert found.newest(cut, 7).tolist() == by_first[::-1][:7]
    nodes = np.arange(-1, stream.n_nodes + 2)
    assert found.is_visible(nodes, cut).tolist() == [node in set(dst) for node in nodes.tolist()]
    assert found.recent(cut, 9).tolist() == list(dict.fromkeys(dst[::-1]))[:9]
    counts = Counter(dst[-512:])
    order = {node: rank for rank, node in enumerate(dict.fromkeys(dst[::-1]))}
    expected = sorted(counts, key=lambda node: (-counts[node], order[node]))
    assert found.trending(cut, 512, 9).tolist() == expected[:9]
    popular = found.popular(cut, 5)
    assert len(popular) == min(5, len(by_first)) and found.is_visible(popular, cut).all()


@pytest.mark.parametrize("cut", [0, 5, 300, 700])
def test_walks_over_latest_events(stream: EventStream, cut: int) -> None:
    """The slow twin walks over lists of neighbors."""
    index = TemporalIndex.build(stream.src, stream.dst, stream.elapsed, stream.n_nodes)
    events: dict[int, list[int]] = {}
    for u, v in zip(stream.src[:cut].tolist(), stream.dst[:cut].tolist(), strict=True):
        events.setdefault(u, []).append(v)
        events.setdefault(v, []).append(u)

    def latest(node: int, hop: int) -> list[int]:
        return events.get(node, [])[-WALK_EVENTS[hop] :]

    source = int(stream.src[0])
    two: Counter[int] = Counter()
    three: Counter[int] = Counter()
    first = latest(source, 0)
    for v in first:
        for w in latest(v, 1):
            share = 1 / len(first) / len(latest(v, 1))
            two[w] += share
            for x in latest(w, 2):
                three[x] += share / len(latest(w, 2))
    found = find_neighborhood(NodeRows.from_index(index), source, cut)
    assert found.node.tolist() == sorted(set(events.get(source, [])) | set(two) | set(three))
    np.testing.assert_allclose(found.two_hops, [two[x] for x in found.node.tolist()], atol=1e-12)
    np.testing.assert_allclose(found.three_hops, [three[x] for x in found.node.tolist()], atol=1e-12)
    assert found.partner.tolist() == [events.get(source, []).count(x) for x in found.node.tolist()]
    unknown = find_neighborhood(NodeRows.from_index(index), stream.n_nodes + 3, cut)
    assert len(unknown.node) == 0


def test_neighbor_features_of_a_pair(stream: EventStream) -> None:
    """Column by column against the events themselves."""
    index = TemporalIndex.build(stream.src, stream.dst, stream.elapsed, stream.n_nodes)
    source, candidate, t, cut = int(stream.src[5]), int(stream.dst[9]), 400.0, 611
    events = [(int(u), int(v)) for u, v in zip(stream.src[:cut], stream.dst[:cut], strict=True)]

    def latest(node: int) -> list[tuple[int, float]]:
        rows = [(v if u == node else u, stream.elapsed[i]) for i, (u, v) in enumerate(events) if node in (u, v)]
        return rows[::-1][:N_RECENT]

    def count(a: int, b: int) -> int:
        return sum(pair in ((a, b), (b, a)) for pair in events)

    columns: list[list[float]] = [[0.0] * N_RECENT for _ in range(5)]
    for slot, (partner, time) in enumerate(latest(candidate)):
        columns[0][slot] = np.log1p((t - time) / t * cut)
        columns[1][slot] = np.log1p(sum(partner in pair for pair in events))
        columns[2][slot] = np.log1p(count(partner, candidate))
        columns[3][slot] = np.log1p(count(partner, source))
        columns[4][slot] = sum(np.log1p(count(partner, own)) for own, _ in latest(source))
    cuts = torch.tensor([cut])
    dst, time = torch.tensor([[candidate, stream.n_nodes + 1]]), torch.tensor([t], dtype=torch.float64)
    queries = Queries(torch.tensor([source]), dst, time, cuts, cuts)
    got = neighbor_features(index, queries)[0]
    np.testing.assert_allclose(got[0], LOG_SCALE * np.concatenate(columns), rtol=1e-5)
    assert not got[1].any()  # a node without events
    assert torch.equal(neighbor_features(index.without_kernels(), queries)[0], got)
    planted = stream.dst.copy()
    planted[cut:] = candidate  # later events change nothing
    other = TemporalIndex.build(stream.src, planted, stream.elapsed, stream.n_nodes)
    assert torch.equal(neighbor_features(other, queries)[0], got)


# --- two stages ---


def test_two_stages_find_what_exhaustive_ranking_finds(run: Run) -> None:
    users = sorted(set(run.stream.ids.decode(run.stream.src).to_pylist()))
    n_found = n_best = 0
    for user in users:
        fast, exact = answer(run, user), answer(run, user, exhaustive=True)
        scores = {r.node: r.score for r in exact.recommendations}
        n_found += sum(r.node in scores for r in fast.recommendations)
        n_best += len(scores)
        for r in fast.recommendations:
            if r.node in scores:
                assert r.score == pytest.approx(scores[r.node], abs=1e-5)
    assert n_found / n_best >= 0.95


def test_an_answer_says_how_many_candidates_each_stage_saw(run: Run) -> None:
    n = run.predictor.destinations.count(run.stream.n_events)
    budget = run.predictor.first_scorer.budget
    assert answer(run, 3).candidates.to_dict() == {"destinations": n, "scored_first": n, "ranked": budget}
    assert answer(run, 3, budget=100).candidates.ranked == 100
    assert answer(run, 3, top=40).candidates.ranked == 160
    assert answer(run, 3, exhaustive=True).candidates.to_dict() == {"destinations": n, "scored_first": 0, "ranked": n}
    few = [0, 1, 2, 3, 4, 15]
    assert answer(run, 3, candidates=few).candidates.to_dict() == {"destinations": 6, "scored_first": 0, "ranked": 6}
    with pytest.raises(SettingError, match="budget of 5 candidates is too small for 10 answers"):
        answer(run, 3, budget=5)


def test_gathered_pools_of_a_wide_stream(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer places in the pool than destinations, the gatherers choose, and the recall stays high."""
    monkeypatch.setattr(ranking, "POOL_SIZE", 100)
    n = run.predictor.destinations.count(run.stream.n_events)
    n_found = 0
    for user in range(20):
        found = answer(run, user, budget=64)
        assert 64 <= found.candidates.scored_first < n and found.candidates.ranked == 64
        exact = {r.node for r in answer(run, user, exhaustive=True).recommendations}
        n_found += sum(r.node in exact for r in found.recommendations)
    assert n_found / 200 >= 0.9


def test_a_cheap_model_ranks_all(tmp_path: Path) -> None:
    made = train(purchases(), out=tmp_path / "run", device="cpu", model="counts", epochs=1)
    found = answer(made, 3)
    assert found.candidates.ranked == found.candidates.destinations and found.candidates.scored_first == 0
    assert found == answer(made, 3, exhaustive=True)
    assert not made.folder.has(FIRST_SCORER_FILE)


def test_the_recall_of_a_cheap_model_counts_only_what_was_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few random candidates it misses most of the best ones, and the benchmark says so."""
    made = train(purchases(), out=tmp_path / "run", device="cpu", model="counts", epochs=1)
    monkeypatch.setattr(ranking, "CHEAP_POOL_SIZE", 40)
    monkeypatch.setattr(gatherers, "GATHERERS", {"random": (gatherers.random_destinations, 1.0)})
    found = measure_recommend(made.predictor, np.arange(1300, 1500), n_questions=20)
    assert found["recall_at_10"] < 0.5 and found["candidates"]["ranked"] <= 64
    assert found["two_stage_mrr"] < found["exhaustive_mrr"]


def test_only_the_past_is_recommended(run: Run) -> None:
    """A planted future item is no candidate before its first event, with either way of ranking."""
    last = int(run.stream.t[-1])
    later = EventStream.from_columns(
        np.arange(40), np.full(40, 999), np.full(40, last + 5), shared_ids=False, time=TimeAxis("number")
    )
    longer = run.with_events(later)
    for exhaustive in (False, True):
        before = longer.recommend(3, at=last + 5, top=500, budget=500, exhaustive=exhaustive)
        assert 999 not in [r.node for r in before]
        assert before == run.recommend(3, at=last + 5, top=500, budget=500, exhaustive=exhaustive)
        assert 999 in [r.node for r in longer.recommend(3, at=last + 6, top=500, exhaustive=exhaustive)]
    assert longer.recommend(3, at=last + 5) == run.recommend(3, at=last + 5)


# --- filters ---


@pytest.mark.parametrize("exhaustive", [False, True])
def test_filters_and_still_as_many_answers(run: Run, exhaustive: bool) -> None:
    plain = [r.node for r in run.recommend(3, exhaustive=exhaustive)]
    without = run.recommend(3, exclude=[*plain[:4], 123456], exhaustive=exhaustive)
    assert len(without) == 10 and not {r.node for r in without} & set(plain[:4])
    new = run.recommend(3, new_only=True, exhaustive=exhaustive)
    assert len(new) == 10 and {r.met for r in new} == {0}
    every = run.stream.ids.decode(run.predictor.destinations.by_first).to_pylist()
    groups = {item: f"group {item % 12}" for item in every}
    found = run.recommend(3, groups=groups, per_group=1, exhaustive=exhaustive)
    assert len(found) == 10 and len({groups[r.node] for r in found}) == 10
    assert len(run.recommend(3, groups=groups, per_group=1, top=20, exhaustive=exhaustive)) == 12
    free = run.recommend(3, groups={plain[0]: "a", plain[1]: "a"}, per_group=1, exhaustive=exhaustive)
    assert [r.node for r in free][:2] == [plain[0], plain[2]] and len(free) == 10


def test_groups_that_hold_the_best_candidates_are_refilled(run: Run) -> None:
    """The first budget of candidates is of one group: the next ones are ranked until there are enough answers."""
    best = [r.node for r in run.recommend(3, top=64, budget=64)]
    groups = dict.fromkeys(best, "full")
    found = answer(run, 3, groups=groups, per_group=2, budget=64)
    assert len(found.recommendations) == 10 and found.candidates.ranked > 64
    assert sum(r.node in groups for r in found.recommendations) == 2


def test_filters_that_leave_little_of_the_pool(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the gatherers find too few that are allowed, all destinations are searched."""
    monkeypatch.setattr(ranking, "POOL_SIZE", 70)
    question_pool = {r.node for r in run.recommend(3, top=70, budget=70)}
    every = set(run.stream.ids.decode(run.predictor.destinations.by_first).to_pylist())
    rare = sorted(every - question_pool)[:12]
    found = run.recommend(3, exclude=sorted(every - set(rare)))
    assert len(found) == 10 and {r.node for r in found} <= set(rare)
    many = sorted(every)[: len(every) - 3]
    assert len(run.recommend(3, candidates=many)) == 10


def test_groups_need_a_number(run: Run) -> None:
    with pytest.raises(SettingError, match="Groups need both"):
        run.recommend(3, groups={1: "a"})
    with pytest.raises(SettingError, match="per_group=0"):
        run.recommend(3, groups={1: "a"}, per_group=0)
    with pytest.raises(SettingError, match="a dictionary"):
        run.recommend(3, groups=[(1, "a")], per_group=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("top", [0, -1, 2.5, True])
def test_the_number_of_answers_is_at_least_1(run: Run, top: Any) -> None:
    """``top=-1`` would otherwise be all answers but one."""
    for options in ({"node": 3}, {"destination": 5}):
        with pytest.raises(SettingError, match="at least 1"):
            run.recommend(**options, top=top)
    with pytest.raises(SettingError, match="at least 1"):
        run.similar(3, top=top, side="src")


# --- the first scorer and its budget ---


@pytest.mark.parametrize(("n_wrong", "expected"), [(0, 64), (70, 96), (1000, 1024), (2900, 2048)])
def test_the_budget_is_the_smallest_that_finds_the_top_10(
    run: Run, monkeypatch: pytest.MonkeyPatch, n_wrong: int, expected: int
) -> None:
    """A first scorer that puts ``n_wrong`` other candidates before those of the model needs a larger budget."""
    made, monotone = run.predictor, np.linspace(1.0, 0.0, 3000)
    scorer = new_first_scorer()

    def scores(model: Any, history: History, question: Question, nodes: np.ndarray) -> np.ndarray:
        place = (nodes + n_wrong) % 3000 if isinstance(model, FirstScorer) else nodes
        return monotone[place]

    pool = np.arange(3000)
    monkeypatch.setattr(budgets, "score_nodes", scores)
    monkeypatch.setattr(budgets, "candidate_pools", lambda *args, **options: (3000, iter([pool])))
    positions = np.arange(1000, 1500)
    choice = budgets.choose_budget(made.model, scorer, made.history, made.destinations, positions)
    assert choice.budget == expected and choice.n_questions >= 8
    assert choice.recall[64] == (1.0 if n_wrong == 0 else 0.0)


def test_a_short_validation_period_gives_a_budget(run: Run) -> None:
    made = run.predictor
    for positions in (np.empty(0, np.int64), np.array([1499])):
        choice = budgets.choose_budget(made.model, made.first_scorer, made.history, made.destinations, positions)
        assert choice.budget in budgets.BUDGETS and choice.n_questions == len(positions)


def test_training_stores_the_first_scorer(run: Run) -> None:
    assert run.folder.has(FIRST_SCORER_FILE) and not run.needs_first_scorer()
    loaded = Run.load(run.path, "cpu")
    for x, y in zip(loaded.predictor.first_scorer.parameters(), run.predictor.first_scorer.parameters(), strict=True):
        assert torch.equal(x, y)
    assert loaded.recommend(5) == run.recommend(5)
    assert loaded.predictor.first_scorer.budget == run.predictor.first_scorer.budget in budgets.BUDGETS
    measured = run.folder.read_tensors(FIRST_SCORER_FILE)[1]
    assert measured["recall"]["2048"] == 1.0 and measured["questions"] >= 8


@pytest.mark.parametrize("damage", ["missing", "damaged", "of other weights"])
def test_a_first_scorer_that_does_not_fit_is_made_again(run: Run, tmp_path: Path, damage: str) -> None:
    import shutil

    assert run.predictor.first_scorer is not None  # the folder has it now
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    file = copy / FIRST_SCORER_FILE
    loaded = Run.load(copy, "cpu")
    if damage == "missing":
        file.unlink()
    elif damage == "damaged":
        file.write_bytes(file.read_bytes()[:-8])
    else:
        loaded.folder.write_tensors(FIRST_SCORER_FILE, run.predictor.first_scorer.state_dict(), {"weights": "other"})
    assert loaded.needs_first_scorer()
    assert loaded.recommend(5) == run.recommend(5)
    assert not loaded.needs_first_scorer() and Run.load(copy, "cpu").recommend(5) == run.recommend(5)


def test_a_predictor_without_a_run_trains_its_own(run: Run) -> None:
    made = run.predictor
    alone = Predictor(made.model, made.stream, made.history, made.has_training_events)
    assert len(alone.recommend(3)[0]) == 10


def test_many_ids_are_looked_up_without_reading_all(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr("cordgt.inference.predictor.MIN_LOOKUP_NODES", 1)
    made = run.predictor
    other = Predictor(made.model, made.stream, made.history, made.has_training_events, made.make_first_scorer)
    assert other.ids.lookup is not None
    for node in (3, "3", 39, 12345, "x"):
        assert other.recommend(node) == made.recommend(node)
    assert other.recommend(3, candidates=["5", 7])[0] == made.recommend(3, candidates=[5, "7"])[0]
