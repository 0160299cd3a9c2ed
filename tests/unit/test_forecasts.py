"""Who acts, when and how likely: answers of a run follow from the forecaster, and see only earlier events."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordgt.errors import DataError, RunWarning, SettingError
from cordgt.events.stream import EventStream
from cordgt.history.queries import Queries
from cordgt.inference import forecasts
from cordgt.inference.predictor import Recommendation
from cordgt.inference.retrieval.ranking import StageCounts
from cordgt.inference.run import Run
from cordgt.tasks.scoring import score_queries
from cordgt.workflows.train import train

DAY = 86_400
FIRST = 1_700_000_000  # seconds since 1970
USERS, ITEMS = ["ada", "bob", "cy", "dee", "eve"], ["tea", "milk", "rice", "ada"]  # "ada" is also an item


def columns(n: int = 320, *, seed: int = 0, start: int = 0) -> tuple[list[str], list[str], np.ndarray]:
    """Users of different activity, with favorites; ties now and then."""
    rng = np.random.default_rng(seed)
    users = rng.choice(len(USERS), n, p=[0.45, 0.25, 0.15, 0.1, 0.05])
    items = (users + rng.choice(4, n, p=[0.6, 0.2, 0.1, 0.1])) % len(ITEMS)
    return [USERS[i] for i in users], [ITEMS[i] for i in items], start + rng.choice([0, 600, 3600, 7200], n).cumsum()


def make_run(folder: Path, stream: EventStream, **settings: Any) -> Run:
    return train(stream, "counts", out=folder, device="cpu", report=False, mask_nodes=0, **({"epochs": 2} | settings))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Users and items with times in seconds since 1970, in separate id spaces."""
    src, dst, t = columns(start=FIRST)
    stream = EventStream.from_columns(src, dst, t, shared_ids=False, name="shop")
    return make_run(tmp_path_factory.mktemp("runs") / "shop", stream)


@pytest.fixture(scope="module")
def dates(tmp_path_factory: pytest.TempPathFactory) -> Run:
    src, dst, t = columns()
    stream = EventStream.from_columns(src, dst, np.datetime64("2024-03-01", "us") + t.astype("timedelta64[s]"))
    return make_run(tmp_path_factory.mktemp("runs") / "dates", stream)


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunWarning)
        yield


def last_time(run: Run) -> int:
    return int(run.stream.t[-1])


# --- probabilities of pairs ---


def test_probability_is_that_of_the_forecaster(run: Run) -> None:
    src, dst, t = (x[100:130] for x in columns(start=FIRST))
    found = run.score(src, dst, at=t, within="2h")
    predictor, forecaster = run.predictor, run.forecasts.forecaster
    queries = predictor.pair_queries(src, dst, np.asarray(t))
    log_partner = forecaster.log_partner(predictor.model, predictor.history, queries)
    index = predictor.history.index
    expected = forecaster.pair_probability(index, log_partner, queries.src, queries.cut, queries.t, 7200.0)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found.shape == (30,) and ((found >= 0) & (found <= 1)).all() and len(np.unique(found)) > 10


def test_probability_grows_with_the_horizon(run: Run) -> None:
    found = np.array([run.score("ada", ITEMS, within=h) for h in ("10m", "1h", "12h", timedelta(days=1), 2 * DAY)])
    assert (np.diff(found, axis=0) >= 0).all() and (found[-1] > found[0]).all()
    assert (run.score("ada", ITEMS, within=3600) == run.score("ada", ITEMS, within="60m")).all()


def test_scores_without_a_horizon_stay_as_they_were(run: Run) -> None:
    score, _, notes = run.forecasts.score(["ada", "bob"], ["tea", "new"], 3600.0)
    assert score.tolist() == run.score(["ada", "bob"], ["tea", "new"]).tolist()
    assert notes.tolist() == ["", "dst: no history"]


def test_model_scores_each_pair_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    n_pairs = []

    def count(model: Any, history: Any, queries: Queries, **options: Any) -> np.ndarray:
        n_pairs.append(queries.dst.numel())
        return score_queries(model, history, queries, **options)

    monkeypatch.setattr(forecasts, "score_queries", count)
    monkeypatch.setattr("cordgt.tasks.forecast.score_queries", count)
    run.score("ada", ITEMS, within="1h")
    assert n_pairs == [len(ITEMS)]


# --- recommendations ---


def test_recommendations_have_probabilities_and_are_ranked_by_them(run: Run) -> None:
    plain, found = run.recommend("bob"), run.recommend("bob", within="12h")
    assert [r.probability for r in plain] == [None] * len(ITEMS)
    assert sorted(str(r.node) for r in found) == sorted(ITEMS)
    probabilities = [r.probability for r in found]
    assert probabilities == sorted(probabilities, reverse=True)  # type: ignore[type-var]
    alone = run.score("bob", [r.node for r in found], within="12h")
    np.testing.assert_allclose(np.array(probabilities, dtype=float), alone, rtol=1e-4)
    assert {r.node: replace(r, probability=None).score for r in found} == {r.node: r.score for r in plain}
    several = run.recommend(["bob", "cy"], within="12h", top=2)
    assert [r.node for r in several["bob"]] == [r.node for r in found[:2]]
    assert several["bob"][0].probability == pytest.approx(found[0].probability, rel=1e-5)
    assert len(several["cy"]) == 2


def test_best_sources_of_a_destination(run: Run) -> None:
    by_rate = run.recommend(destination="tea", top=9)
    assert {r.node for r in by_rate} == set(USERS)  # "ada" the item is another node
    rates = np.array([r.rate for r in by_rate], dtype=float)
    assert (np.diff(rates) <= 0).all() and (rates > 0).all()
    within = run.recommend(destination="tea", within="12h")
    probabilities = np.array([r.probability for r in within], dtype=float)
    assert (np.diff(probabilities) <= 0).all()
    alone = run.score([r.node for r in within], "tea", within="12h")
    np.testing.assert_allclose(probabilities, alone, rtol=1e-4)
    assert [r.node for r in run.recommend(destination="tea", top=2)] == [r.node for r in by_rate[:2]]


def test_rate_is_rate_of_the_source_times_probability_of_the_partner(run: Run) -> None:
    predictor, forecaster = run.predictor, run.forecasts.forecaster
    queries = predictor.pair_queries(USERS, ["tea"] * len(USERS))
    log_partner = forecaster.log_partner(predictor.model, predictor.history, queries)[:, 0]
    rate = forecaster.rate(predictor.history.index, queries.src, queries.cut, queries.t)
    expected = dict(zip(USERS, rate * np.exp(np.minimum(log_partner, 0)) * DAY, strict=True))  # per day
    for r in run.recommend(destination="tea"):
        assert r.rate == pytest.approx(expected[r.node], rel=1e-4)


def test_an_active_source_stands_before_a_quiet_one_with_the_same_taste(tmp_path: Path) -> None:
    src = ["quiet" if k % 8 == 0 else "busy" for k in range(240)]
    dst = [f"x{k % 3}" for k in range(240)]
    trained = make_run(tmp_path / "run", EventStream.from_columns(src, dst, np.arange(240), name="two"))
    assert [r.node for r in trained.recommend(destination="x0", candidates=["quiet", "busy"])] == ["busy", "quiet"]
    assert [r.node for r in trained.recommend(destination="x0", within=5, top=2)] == ["busy", "quiet"]


def test_candidates_and_new_sources_of_a_destination(run: Run) -> None:
    assert {r.node for r in run.recommend(destination="tea", candidates=["cy", "dee"])} == {"cy", "dee"}
    assert [r.node for r in run.recommend(destination="tea", candidates=["cy", "milk"])] == ["cy"]  # no source
    with pytest.raises(DataError, match="has no source 'milk', so there is no candidate"):
        run.recommend(destination="tea", candidates=["milk"])
    early = FIRST + 30_000
    known, new = (run.recommend(destination="tea", at=early, new_only=x) for x in (False, True))
    assert {r.node for r in known if r.met == 0} == {r.node for r in new} != set()
    everyone = [r.node for r in run.recommend(destination="tea", top=9)]
    first, second, *others = everyone
    without = run.recommend(destination="tea", top=9, exclude=[first, "nobody"])
    assert [r.node for r in without] == [second, *others]
    groups = {first: "north", second: "north", **dict.fromkeys(others, "south")}
    limited = run.recommend(destination="tea", top=9, per_group=1, groups=groups)
    assert [r.node for r in limited] == [first, others[0]]
    assert [r.node for r in run.recommend(destination="tea", top=9, exhaustive=True)] == everyone
    both = run.recommend(destination=["tea", "nothing"], top=1)
    assert len(both["tea"]) == len(both["nothing"]) == 1
    with pytest.raises(SettingError, match="either a node, or destination=ID"):
        run.recommend()  # type: ignore[call-overload]
    with pytest.raises(SettingError, match="either a node, or destination=ID"):
        run.recommend("ada", destination="tea")  # type: ignore[call-overload]


def test_the_model_scores_a_limited_number_of_sources(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier partners of the destination stay, then those that act most often."""
    at = FIRST + 30_000
    everyone = run.recommend(destination="rice", at=at)
    monkeypatch.setattr(forecasts, "MAX_SOURCES", 2)
    found = run.recommend(destination="rice", at=at, top=2)
    assert len(found) == 2 < len(everyone)
    assert {r.node for r in found} <= {r.node for r in everyone}
    assert sum(r.met > 0 for r in found) == min(2, sum(r.met > 0 for r in everyone))
    monkeypatch.undo()
    assert run.recommend(destination="rice", at=at, top=2, budget=2) == found
    result = run.forecasts.recommend_sources("rice", at=at, top=2, budget=2)
    assert result.candidates == StageCounts(len(everyone), 0, 2)


def test_full_groups_do_not_leave_too_few_sources(run: Run) -> None:
    """Sources beyond the budget are scored if the groups of the others are full."""
    everyone = [r.node for r in run.recommend(destination="tea", top=9)]
    for first in everyone:  # whichever has the highest rate
        groups = {node: "one" if node == first else "rest" for node in everyone}
        found = run.recommend(destination="tea", top=2, budget=2, per_group=1, groups=groups)
        assert [groups[r.node] for r in found] in (["one", "rest"], ["rest", "one"])


def test_a_budget_is_checked(run: Run) -> None:
    for target in ({"destination": "tea"}, {"node": "ada"}):
        with pytest.raises(SettingError, match="budget of 1 candidates is too small for 5 answers"):
            run.recommend(**target, top=5, budget=1)  # type: ignore[call-overload]
        for wrong in (0, -3, 2.5, True, "x"):
            with pytest.raises(SettingError, match=r"budget=.*: give a whole number of at least 1"):
                run.recommend(**target, top=1, budget=wrong)  # type: ignore[call-overload]
        with pytest.raises(SettingError, match=r"recommend has no option 'excluded'. Did you mean 'exclude'"):
            run.recommend(**target, excluded=["cy"])  # type: ignore[call-overload]


# --- next event ---


def test_next_event(run: Run) -> None:
    now, answer = last_time(run), run.next_event("ada", top=2)
    assert answer.node == "ada" and answer.time == now and answer.note == ""
    assert now <= answer.low < answer.median < answer.high  # type: ignore[operator]
    assert answer.median == pytest.approx(now + answer.wait, abs=1)
    assert isinstance(answer.median, int)
    predictor = run.predictor
    node = predictor.node_indices((["ada"], "src"))[0]
    times = np.array([320]), predictor.stream.elapsed[-1:]  # visible events, elapsed time
    low, median, high = run.forecasts.forecaster.next_time(
        predictor.history.index, node, *times, np.array([0.1, 0.5, 0.9])
    )[0]
    assert answer.wait == median
    assert (answer.low, answer.high) == (round(now + low), round(now + high))
    assert [type(r) for r in answer.partners] == [Recommendation] * 2
    at_median, _ = predictor.recommend("ada", float(now) + answer.wait, 2)
    assert list(answer.partners) == at_median


def test_next_events_of_several_and_of_unknown_sources(run: Run) -> None:
    found = run.next_event(["ada", "eve", "nobody"], top=0)
    assert list(found) == ["ada", "eve", "nobody"]
    assert found["ada"].wait < found["eve"].wait
    assert found["nobody"].note.startswith("no history")
    assert found["ada"].partners == ()


def test_dates_are_shown_as_dates(dates: Run) -> None:
    answer = dates.next_event("ada")
    assert str(answer.time) == dates.stream.time.format_one(dates.stream.t[-1])
    for value in (answer.low, answer.median, answer.high):
        assert str(value).startswith("2024-0") and str(value).endswith("Z")
    times = [dates.stream.time.parse(x) for x in (answer.time, answer.low, answer.median, answer.high)]
    assert times == sorted(times)
    assert (times[2] - times[0]) / 1e6 == pytest.approx(answer.wait, abs=1)


def test_a_time_that_never_comes_has_no_date(dates: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    never = np.array([[5.0, np.inf, np.inf]])
    monkeypatch.setattr(type(dates.forecasts.forecaster), "next_time", lambda *args, **options: never)
    answer = dates.next_event("ada", top=1)
    assert answer.low is not None and answer.median is None and answer.high is None
    assert answer.wait == np.inf and len(answer.partners) == 1
    assert answer.note == forecasts.NOTE_BEYOND_HISTORY


# --- active nodes ---


@pytest.mark.parametrize("role", ["source", "destination"])
def test_active_nodes(run: Run, role: str) -> None:
    found = run.active("6h", top=None, role=role)
    stream = run.stream
    names, ends = (USERS, stream.src) if role == "source" else (ITEMS, stream.dst)
    assert sorted(a.node for a in found) == sorted(names)
    probabilities = [a.probability for a in found]
    assert probabilities == sorted(probabilities, reverse=True)
    side: Any = "src" if role == "source" else "dst"
    for a in found:
        own = ends == stream.ids.encode([a.node], side)[0]
        assert a.events == own.sum() and a.last == stream.t[own][-1]
    assert run.active("6h", top=2, role=role) == found[:2]
    assert run.active("6h")[0].node == "ada"


def test_a_date_is_a_time_of_seconds_since_1970(run: Run) -> None:
    assert run.active("2h", at="2023-11-20") == run.active("2h", at=1_700_438_400)
    assert (run.score("ada", "tea", at="2023-11-20") == run.score("ada", "tea", at=1_700_438_400)).all()
    assert run.next_event("ada", at="2023-11-20").time == 1_700_438_400


def test_an_unknown_role_is_refused(run: Run) -> None:
    with pytest.raises(SettingError, match="role=item"):
        run.active("6h", role="item")


# --- horizons ---


def test_a_horizon_beyond_the_data_has_a_warning(run: Run) -> None:
    with pytest.warns(RunWarning, match=r"no event of this kind was seen for so long: the horizon is 1,000 days"):
        run.score("ada", "tea", within="1000d")
    with pytest.warns(RunWarning, match=r"horizon is 12 hours, the history before the query 1 hour\."):
        run.active("12h", at=int(run.stream.t[0]) + 3600)
    forecaster = replace(run.forecasts.forecaster, horizons=(3600.0, 7200.0))
    answers = replace(run.forecasts, forecaster=forecaster)
    assert "calibrated (up to 2 hours)" in answers.horizon_note(7201.0)
    assert answers.horizon_note(7200.0) == ""


def test_a_query_long_after_the_history_is_an_extrapolation(run: Run) -> None:
    """The horizon is short, but nothing was seen for as long as the silence before it."""
    now, first = last_time(run), int(run.stream.t[0])
    run.active("2h", at=now + 7200)  # no warning
    with pytest.warns(RunWarning, match=r"the query is 1,000 days after the last event, the history is .* long"):
        run.active("2h", at=now + 1000 * DAY)
    with pytest.warns(RunWarning, match="no event of this kind was seen for so long"):
        run.score(["ada", "ada"], ["tea", "tea"], at=[now, now + 1000 * DAY], within="2h")
    with pytest.raises(DataError, match="before the history"):  # and no note about the horizon
        run.active("2h", at=first - DAY)


def test_a_wrong_horizon_is_refused(run: Run) -> None:
    for ask in (
        lambda h: run.score("ada", "tea", within=h),
        lambda h: run.recommend("ada", within=h),
        lambda h: run.recommend(destination="tea", within=h),
        lambda h: run.active(h),
    ):
        with pytest.raises(SettingError, match="longer than zero"):
            ask("0d")


# --- only earlier events are visible ---


def test_later_events_change_nothing(run: Run) -> None:
    now = last_time(run) + 1
    src, dst, t = columns(60, seed=1, start=now)
    later = run.with_events(EventStream.from_columns([*src, "zoe"], [*dst, "zoe"], [*t, now], shared_ids=False))
    questions: list[Any] = [
        lambda r: r.score(USERS[:4], ITEMS, at=now, within="6h").tolist(),
        lambda r: r.recommend("bob", at=now, within="6h"),
        lambda r: r.recommend(destination="rice", at=now),
        lambda r: r.recommend(destination="rice", at=now, within="6h"),
        lambda r: r.next_event(["ada", "eve", "zoe"], at=now),
        lambda r: r.active("6h", at=now),
        lambda r: r.active("6h", at=now, role="destination"),
    ]
    for ask in questions:
        assert ask(run) == ask(later)
    assert run.active("6h", at=now) != later.active("6h")


# --- unusual streams ---


def test_a_model_that_learns_to_rank(run: Run, tmp_path: Path) -> None:
    ranking = make_run(tmp_path / "run", run.stream, loss="ranking")
    found = ranking.recommend(destination="tea", within="12h")
    assert {r.node for r in found} == set(USERS)
    alone = ranking.score([r.node for r in found], "tea", within="12h")
    np.testing.assert_allclose([r.probability for r in found], alone, rtol=1e-3)


def test_shared_ids_leave_out_the_node_itself(dates: Run) -> None:
    assert "ada" not in {r.node for r in dates.recommend(destination="ada")}
    assert "ada" not in {r.node for r in dates.recommend("ada", within="6h")}
