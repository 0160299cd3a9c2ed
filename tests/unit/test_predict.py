"""Queries of a trained model: scores equal those of the evaluation, for the right nodes and the right history."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from cordgt.errors import DataError, SettingError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.history.queries import Queries
from cordgt.inference.predictor import NOTE_NO_HISTORY, NOTE_NONE, NOTE_NOT_IN_TRAINING
from cordgt.inference.run import Run
from cordgt.io.readers import read_events
from cordgt.tasks.histories import build_history
from cordgt.tasks.link import LinkTask
from cordgt.tasks.metrics import link_metrics
from cordgt.tasks.scoring import score_queries
from cordgt.workflows.train import train

TINY: dict[str, Any] = {"hidden": 8, "heads": 2, "fanout": (3, 2), "td_dim": 8, "sd_dim": 8, "epochs": 1, "lr": 0.01}
NUMBERS = TimeAxis("number")


def columns(n: int = 160, *, seed: int = 0, start: int = 50) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
    """Columns with text ids, ties, repeats, self-loops, and a new node now and then."""
    rng = np.random.default_rng(seed)
    src = [f"n{i}" for i in rng.integers(0, 8, n)]
    dst = [f"n{i}" for i in rng.integers(4, 12, n)]
    for i in range(30, n, 5):
        src[i] = f"late{i // 10}"
    steps = rng.choice([0, 1, 2], n)
    steps[0] = 0
    return src, dst, start + steps.cumsum(), rng.normal(size=(n, 2)).astype(np.float32)


def shared() -> EventStream:
    src, dst, t, edge_x = columns()
    return EventStream.from_columns(src, dst, t, edge_x, time=NUMBERS, name="shared")


def separate() -> EventStream:
    """Users 0–8 and items 0–8: the same numbers mean other nodes."""
    rng = np.random.default_rng(3)
    users, items = rng.integers(0, 9, (2, 150))
    return EventStream.from_columns(
        users, items, rng.integers(0, 60, 150), time=NUMBERS, shared_ids=False, name="sides"
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(shared(), out=tmp_path_factory.mktemp("runs") / "shared", device="cpu", seed=3, mask_nodes=0, **TINY)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(
        separate(), out=tmp_path_factory.mktemp("runs") / "separate", device="cpu", seed=3, mask_nodes=0.2, **TINY
    )


def ids(stream: EventStream, internal: Any) -> list[Any]:
    return stream.ids.decode(np.asarray(internal)).to_pylist()


# --- scores equal those of the evaluation ---


@pytest.mark.parametrize("setting", ["transductive", "inductive"])
@pytest.mark.parametrize("which", ["run", "sides"])
def test_scores_are_those_of_the_evaluation(which: str, setting: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(which)
    task = LinkTask.prepare(run.stream, run.settings.protocol, seed=run.settings.seed, device=torch.device("cpu"))
    positions, queries = task.evaluation_queries("test", setting)
    assert len(positions) > 3
    logits = score_queries(run.predictor.model, task.full_history, queries)
    src, t = ids(run.stream, queries.src), run.stream.t[positions]
    scores = np.stack([run.score(src, ids(run.stream, queries.dst[:, i]), at=t) for i in (0, 1)], axis=1)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), rtol=0, atol=1e-6)
    metrics = link_metrics(scores[:, 0], scores[:, 1])
    assert metrics["ap"] == pytest.approx(run.metrics["test"][setting]["ap"], abs=1e-4)
    assert metrics["auc"] == pytest.approx(run.metrics["test"][setting]["auc"], abs=1e-4)


def test_loaded_run_gives_the_same_scores(run: Run) -> None:
    loaded = Run.load(run.path, "cpu")
    src, dst, t, _ = columns()
    assert (loaded.score(src, dst, at=t) == run.score(src, dst, at=t)).all()
    assert loaded.recommend("n1") == run.recommend("n1")
    assert (loaded.embed() == run.embed()).all()


def test_scores_lie_between_0_and_1(run: Run) -> None:
    src, dst, t, _ = columns()
    found = run.score(src, dst, at=t)
    assert found.shape == (160,) and ((found > 0) & (found < 1)).all()


# --- how a question may be put ---


def test_one_pair_many_pairs_and_one_source_with_many_destinations(run: Run) -> None:
    single = run.score("n1", "n5", at=120)
    assert single.shape == (1,)
    many = run.score("n1", ["n5", "n6", "n7"], at=120)
    assert many.shape == (3,)
    np.testing.assert_allclose(many[0], single[0], atol=1e-6)
    each = [run.score("n1", d, at=120)[0] for d in ("n5", "n6", "n7")]
    np.testing.assert_allclose(many, each, atol=1e-6)
    np.testing.assert_allclose(run.score(["n1"] * 3, ("n5", "n6", "n7"), at=[120] * 3), many, atol=1e-6)
    assert run.score(["n5", "n6", "n7"], "n1", at=120).shape == (3,)
    for kind in (np.array, pa.array):
        np.testing.assert_allclose(run.score("n1", kind(["n5", "n6", "n7"]), at=120), many, atol=1e-6)
    assert run.score([], []).shape == (0,)


def test_different_lengths_raise(run: Run) -> None:
    with pytest.raises(SettingError, match="2 sources and 3 destinations"):
        run.score(["n1", "n2"], ["n5", "n6", "n7"])
    with pytest.raises(SettingError, match="3 times for 2 pairs"):
        run.score(["n1", "n2"], ["n5", "n6"], at=[100, 101, 102])


def test_each_pair_has_its_own_time(run: Run) -> None:
    """Asked together at different times, or one by one: the same."""
    src, dst, t, _ = columns()
    some = range(20, 160, 17)
    together = run.score([src[i] for i in some], [dst[i] for i in some], at=[int(t[i]) for i in some])
    alone = [run.score(src[i], dst[i], at=int(t[i]))[0] for i in some]
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_time_formats(run: Run) -> None:
    expected = run.score("n1", "n5", at=100)
    for written in ("100", 100.0, np.int64(100), " 100 "):
        assert run.score("n1", "n5", at=written) == expected
    # between two whole numbers: after all events of the first
    assert run.predictor.times_and_cuts(np.array([100.5]), 1)[1].item() == run.stream.cut_at(101)


def test_dates(tmp_path: Path) -> None:
    src, dst, t, _ = columns(100)
    when = [f"2024-01-01T{m // 60:02}:{m % 60:02}:00Z" for m in (t - t[0]).tolist()]
    made = train(EventStream.from_columns(src, dst, when, name="dated"), out=tmp_path / "run", device="cpu", **TINY)
    zoned = made.score("n1", "n5", at="2024-01-01T01:00:00Z")
    for same in ("2024-01-01T01:00:00", "2024-01-01 02:00:00+01:00", "2024-01-01T01:00"):
        assert made.score("n1", "n5", at=same) == zoned
    with pytest.raises(DataError, match="2023-12-31"):
        made.score("n1", "n5", at="2023-12-31")
    with pytest.raises(DataError, match="is a number"):
        made.score("n1", "n5", at="100")


@pytest.mark.parametrize("at", ["soon", "nan", float("inf"), "2024-01-01", True, [None]])
def test_bad_times(run: Run, at: Any) -> None:
    with pytest.raises(DataError):
        run.score("n1", "n5", at=at)


def test_time_before_the_history_raises(run: Run) -> None:
    with pytest.raises(DataError, match=r"The time 49 is before the history, which begins at 50\."):
        run.score("n1", "n5", at=49)
    with pytest.raises(DataError, match=r"The time 3 \(row 2 of the queries\) is before"):
        run.score(["n1", "n2"], ["n5", "n6"], at=[99, 3])
    with pytest.raises(DataError, match="before the history"):
        run.recommend("n1", at=49)
    with pytest.raises(DataError, match="before the history"):
        run.embed(at=49)


def test_query_at_the_first_event_sees_no_event(run: Run) -> None:
    """Everybody is new then, so everybody scores alike; there is nobody to recommend."""
    found = run.score(["n1", "n2", "nobody"], ["n5", "n9", "n5"], at=50)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, found[0], atol=1e-6)
    assert run.recommend("n1", at=50) == []
    assert np.isfinite(run.embed(at=50)).all()


# --- node ids ---


def test_unknown_nodes_get_a_score_and_a_note(run: Run) -> None:
    scores, notes = run.predictor.score(["n1", "nobody", "nobody", "other"], ["new", "n5", "nobody", "new"])
    assert np.isfinite(scores).all() and ((scores > 0) & (scores < 1)).all()
    assert notes.tolist() == [
        f"dst: {NOTE_NO_HISTORY}",
        f"src: {NOTE_NO_HISTORY}",
        f"src: {NOTE_NO_HISTORY}; dst: {NOTE_NO_HISTORY}",
        f"src: {NOTE_NO_HISTORY}; dst: {NOTE_NO_HISTORY}",
    ]


def test_notes_on_nodes(run: Run) -> None:
    """No note for training nodes, "not in training" for later ones, "no history" before a node's first event."""
    stream = run.stream
    task = LinkTask.prepare(stream, run.settings.protocol, seed=0, device=torch.device("cpu"))
    new = np.flatnonzero(task.split.new_node)
    assert len(new) > 1
    old = np.flatnonzero(~task.split.new_node)
    end = np.full(stream.n_nodes, stream.n_events)
    notes = run.predictor.notes(np.arange(stream.n_nodes), end)
    assert set(notes[new]) == {NOTE_NOT_IN_TRAINING} and set(notes[old]) == {NOTE_NONE}
    assert set(run.predictor.notes(np.arange(stream.n_nodes), np.zeros_like(end))) == {NOTE_NO_HISTORY}
    late = ids(stream, stream.src[[155]])[0]
    assert late == "late15"
    first = int(stream.t[150])
    assert run.predictor.score([late], ["n5"], np.array([first]))[1][0] == f"src: {NOTE_NO_HISTORY}"
    assert run.predictor.score([late], ["n5"], np.array([first + 1]))[1][0] == f"src: {NOTE_NOT_IN_TRAINING}"


@pytest.mark.parametrize("which", ["run", "sides"])
def test_unknown_nodes_score_the_same_together_or_alone(which: str, request: pytest.FixtureRequest) -> None:
    """A score does not depend on the other pairs of a call, and two unknown ids are two nodes."""
    run: Run = request.getfixturevalue(which)
    known = ids(run.stream, [0])[0]
    src = ["x1", "x2", "x3", known, "x1", "x2"]
    dst = [known, "x2", "x4", "x5", "x1", "x1"]
    if which == "sides":
        src, dst = ([x if isinstance(x, int) else 100 + int(x[1]) for x in side] for side in (src, dst))
    together = run.score(src, dst)
    alone = [run.score(s, d)[0] for s, d in zip(src, dst, strict=True)]
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_unknown_ids_of_separate_id_spaces_are_different_nodes(sides: Run, run: Run) -> None:
    """User 100 and item 100 are two nodes; in a shared id space they are one."""
    np.testing.assert_allclose(sides.score(100, 100), sides.score(100, 101), atol=1e-6)
    assert abs(run.score("x", "x") - run.score("x", "y")) > 1e-6


def test_equal_ids_of_separate_id_spaces_are_different_nodes(sides: Run) -> None:
    stream = sides.stream
    user, item = stream.ids.encode([3], "src")[0], stream.ids.encode([3], "dst")[0]
    assert user != item
    found = sides.predictor.recommend(3, top=99)[0]
    assert 3 in [r.node for r in found]  # item 3 is not user 3
    assert {r.node for r in found} == set(ids(stream, np.unique(stream.dst)))


def test_ids_are_returned_unchanged(run: Run, sides: Run) -> None:
    assert all(isinstance(r.node, str) for r in run.recommend("n1"))
    assert all(isinstance(r.node, int) for r in sides.recommend(1))
    assert sides.recommend("1") == sides.recommend(1)


# --- recommendations ---


@pytest.mark.parametrize("at", [None, 75, 140])
@pytest.mark.parametrize("node", ["n1", "n6", "late8", "nobody"])
def test_recommendations(run: Run, node: str, at: int | None) -> None:
    """Best first; every visible destination but the node itself; scores and counts equal those of single pairs."""
    stream = run.stream
    found = run.recommend(node, at=at, top=99)
    cut = stream.n_events if at is None else stream.cut_at(at)
    expected = set(ids(stream, np.unique(stream.dst[:cut]))) - {node}
    assert {r.node for r in found} == expected and len(found) == len(expected)
    scores = [r.score for r in found]
    assert scores == sorted(scores, reverse=True)
    np.testing.assert_allclose(scores, run.score(node, [r.node for r in found], at=at), atol=1e-6)
    src, dst = ids(stream, stream.src[:cut]), ids(stream, stream.dst[:cut])
    for r in found:
        assert r.met == sum({s, d} == {node, r.node} for s, d in zip(src, dst, strict=True))
    assert run.recommend(node, at=at, top=3) == found[:3]


@pytest.mark.parametrize("at", [None, 75])
def test_recommendations_for_several_nodes(run: Run, at: int | None) -> None:
    """A dictionary with the answer of each id, equal to those of single calls, for any kind of list."""
    expected = {node: run.recommend(node, at=at, top=4) for node in ("n1", "n6", "nobody")}
    for nodes in (list(expected), tuple(expected), np.array(list(expected)), pa.array(list(expected))):
        found = run.recommend(nodes, at=at, top=4)
        assert found == expected and list(found) == list(expected)
    assert run.recommend([], at=at) == {}
    assert run.recommend(["n1"], at=at, top=4) == {"n1": expected["n1"]}


def test_recommendations_among_candidates(run: Run, sides: Run) -> None:
    every = run.recommend("n1", top=99)
    some = [r.node for r in every][1::2]
    found = run.recommend("n1", candidates=[*some, some[0], "n1"], top=99)  # a repeated one counts once, n1 not at all
    scores = {r.node: r.score for r in every}
    assert {r.node for r in found} == set(some) and len(found) == len(some)
    np.testing.assert_allclose([r.score for r in found], [scores[r.node] for r in found], atol=1e-6)
    assert run.recommend("n1", candidates=some, top=1) == found[:1]
    assert run.recommend("n1", candidates=[]) == []
    new = run.recommend("n1", candidates=some, top=99, new_only=True)
    assert {r.node for r in new} == {r.node for r in found if r.met == 0}
    assert run.recommend("n1", candidates=["nobody", *some, "none"], top=99) == found  # ids without events
    with pytest.raises(DataError, match="has no node 'nobody' or the other 1"):
        run.recommend(["n1", "n6"], candidates=["nobody", "none"])
    with pytest.raises(DataError, match="has no destination '987', so there is no candidate"):
        sides.recommend(1, candidates=[987])


def test_rounding_does_not_order_recommendations(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal inputs whose scores differ in the last bits tie, and a tie is listed by first appearance in the stream."""
    expected: list[int] = []
    for direction in (1e-6, -1e-6):

        def three_levels(model: Any, history: Any, queries: Queries, *, rounding: float = direction) -> np.ndarray:
            candidates = queries.dst[0].numpy()
            expected[:] = sorted(candidates.tolist(), key=lambda node: (-(node % 3), node))
            return (candidates % 3 + rounding * (np.arange(len(candidates)) % 7))[None]

        monkeypatch.setattr("cordgt.inference.retrieval.ranking.score_queries", three_levels)
        found = run.recommend("nobody", top=99)
        assert run.stream.ids.encode([r.node for r in found], "dst").tolist() == expected and len(expected) > 7
        scores = [r.score for r in found]
        assert len(set(scores)) == 3 and scores == sorted(scores, reverse=True)


def test_only_new_partners(run: Run) -> None:
    every = run.recommend("n1", top=99)
    new = run.recommend("n1", top=99, new_only=True)
    assert [r.node for r in new] == [r.node for r in every if r.met == 0]
    assert all(r.met == 0 for r in new)
    np.testing.assert_allclose([r.score for r in new], [r.score for r in every if r.met == 0], atol=1e-6)
    early = run.recommend("n1", at=60, top=99, new_only=True)  # fewer earlier partners
    assert {r.node for r in early} - {r.node for r in new}


def test_no_candidate_left_to_recommend(tmp_path: Path) -> None:
    """A source with events with every destination gets an empty list, not an error."""
    n = 60
    stream = EventStream.from_columns(np.arange(n) % 2, 5 + np.arange(n) // 2 % 3, np.arange(n), time=NUMBERS)
    made = train(stream, out=tmp_path / "run", device="cpu", **TINY)
    assert made.recommend(0, new_only=True) == []
    assert [r.node for r in made.recommend(99, new_only=True, top=9)] == [r.node for r in made.recommend(99, top=9)]


def test_notes_on_recommended_nodes(run: Run) -> None:
    """A destination without training events has a note, and so has the source."""
    _, _, _, edge_x = columns()
    later = EventStream.from_columns(["n1", "n2"], ["brand new", "n5"], [500, 501], edge_x[:2], time=NUMBERS)
    grown = run.with_events(later)
    notes = {r.node: r.note for r in grown.recommend("n1", top=99)}
    assert notes["brand new"] == NOTE_NOT_IN_TRAINING and notes["n5"] == NOTE_NONE
    assert grown.predictor.recommend("nobody")[1] == NOTE_NO_HISTORY
    assert grown.predictor.recommend("n1")[1] == NOTE_NONE


# --- newer data ---


@pytest.fixture(scope="module")
def later() -> EventStream:
    src, dst, t, edge_x = columns(40, seed=9, start=400)
    return EventStream.from_columns([*src[:-1], "stranger"], dst, t, edge_x, time=NUMBERS)


def test_appended_events_give_the_scores_of_a_run_with_all_events(run: Run, later: EventStream) -> None:
    grown = run.with_events(later)
    a, b = columns(), columns(40, seed=9, start=400)
    whole = EventStream.from_columns(
        [*a[0], *b[0][:-1], "stranger"],
        a[1] + b[1],
        np.concatenate([a[2], b[2]]),
        np.concatenate([a[3], b[3]]),
        time=NUMBERS,
    )
    expected = replace(run, stream=whole)
    assert ids(grown.stream, np.arange(grown.stream.n_nodes)) == ids(whole, np.arange(whole.n_nodes))
    src, dst = ["n1", "stranger", "n2", "late3"], ["n5", "n6", "stranger", "n4"]
    for at in (None, 100, 420):
        assert (grown.score(src, dst, at=at) == expected.score(src, dst, at=at)).all()
        assert grown.recommend("n1", at=at) == expected.recommend("n1", at=at)
        assert (grown.embed(src, at=at) == expected.embed(src, at=at)).all()
    assert not np.allclose(grown.score(src, dst), run.score(src, dst), atol=1e-6)


def test_appended_events_do_not_change_earlier_scores(run: Run, later: EventStream) -> None:
    grown = run.with_events(later)
    src, dst, t, _ = columns()
    assert (grown.score(src, dst, at=t) == run.score(src, dst, at=t)).all()
    assert grown.recommend("n2", at=130) == run.recommend("n2", at=130)
    assert grown.evaluate() == run.evaluate()
    assert run.stream.n_events == 160  # the run itself is as it was


def test_events_can_be_appended_twice(run: Run, later: EventStream) -> None:
    src, dst, t, edge_x = columns(5, seed=4, start=900)
    once_more = EventStream.from_columns(src, dst, t, edge_x, time=NUMBERS)
    both = run.with_events(later).with_events(once_more)
    assert both.stream.n_events == 205
    assert np.isfinite(both.score("n1", "n5")).all()


def test_older_or_incompatible_events_raise(run: Run) -> None:
    src, dst, t, edge_x = columns(5)
    with pytest.raises(DataError, match="before the last event of the history"):
        run.with_events(EventStream.from_columns(src, dst, t, edge_x, time=NUMBERS))
    with pytest.raises(DataError, match="features"):
        run.with_events(EventStream.from_columns(src, dst, t + 900, time=NUMBERS))
    with pytest.raises(DataError):
        run.with_events(EventStream.from_columns(src, dst, ["2030-01-01"] * 5, edge_x))


def test_appended_files_are_read(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "later.csv"
    path.write_text("src,dst,t,f1,f2\nn1,n5,700,0.5,1\nn1,brand new,701,0,0\n", encoding="utf-8")
    grown = run.with_events(path, features="f1,f2")
    assert grown.stream.n_events == 162 and grown.stream.t[-1] == 701
    assert "brand new" in [r.node for r in grown.recommend("n1", top=99)]


# --- embeddings ---


def test_embeddings(run: Run) -> None:
    every = run.embed()
    assert every.shape == (run.stream.n_nodes, TINY["hidden"]) and every.dtype == np.float32
    assert np.isfinite(every).all()
    names = ids(run.stream, np.arange(run.stream.n_nodes))
    np.testing.assert_allclose(run.embed(names), every, atol=1e-5)
    np.testing.assert_allclose(run.embed(names[::-1])[::-1], every, atol=1e-5)
    np.testing.assert_allclose(run.embed("n1"), every[[names.index("n1")]], atol=1e-5)
    assert len(np.unique(every.round(5), axis=0)) > 5
    assert not np.allclose(run.embed(at=70), every, atol=1e-4)


def test_unknown_nodes_have_the_same_embedding(run: Run) -> None:
    found = run.embed(["x", "n1", "y"])
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0], found[2], atol=1e-6)
    assert run.embed([]).shape[0] == 0


def test_embeddings_do_not_depend_on_the_batch_size(run: Run) -> None:
    nodes = np.arange(run.stream.n_nodes)
    np.testing.assert_allclose(run.predictor.embed(nodes, batch_size=3), run.predictor.embed(nodes), atol=1e-5)


def test_embeddings_do_not_see_later_events(run: Run) -> None:
    src, dst, t, edge_x = columns()
    cut = run.stream.cut_at(110)
    past = EventStream.from_columns(src[:cut], dst[:cut], t[:cut], edge_x[:cut], time=NUMBERS)
    history = build_history(past, seed=run.settings.seed, device=torch.device("cpu"))
    then = replace(run.predictor, stream=past, history=history)
    names = ["n1", "n2", "nobody"]
    assert (then.embed(then.node_indices((names, "src"))[0], at=110) == run.embed(names, at=110)).all()


def test_embeddings_of_either_side(sides: Run) -> None:
    """Both sides have an id 3, so ``sides`` is needed."""
    stream = sides.stream
    every = sides.embed()
    for side in ("src", "dst"):
        found = sides.embed([3, 5], sides=[side, side])
        np.testing.assert_allclose(found, every[stream.ids.encode([3, 5], side)], atol=1e-5)
    with pytest.raises(DataError, match="Add a column 'side'"):
        sides.embed([3])
    with pytest.raises(DataError, match="must be src or dst"):
        sides.embed([3], sides=["both"])


def test_model_without_embeddings_raises(tmp_path: Path) -> None:
    made = train(shared(), "edgebank", out=tmp_path / "run", device="cpu")
    with pytest.raises(DataError, match="no node embeddings"):
        made.embed(["n1"])
    met = {r.node for r in made.recommend("n1", top=99) if r.met}
    assert all((r.score > 0.5) == (r.node in met) for r in made.recommend("n1", top=99))


@pytest.mark.parametrize("wrong", [["3", "5"], None, True, 1.5, float("nan"), np.array([3, 5])])
def test_invalid_ids_raise(run: Run, wrong: Any) -> None:
    """A list where one id is asked for, or a hole in a column, would otherwise be answered as somebody unknown."""
    for options in ({"node": ["n1", wrong]}, {"node": "n1", "candidates": [wrong]}):
        with pytest.raises(SettingError, match="is not a node id"):
            run.recommend(**options)
    with pytest.raises(SettingError, match="is not a node id"):
        run.score([wrong], ["5"])


def test_later_events_without_a_training_column_name_it(tmp_path: Path) -> None:
    """Not that sources cannot be found, which have their column."""
    rows = [f"k{i % 7},a{i % 5},{i},{i % 3}" for i in range(60)]
    (tmp_path / "shop.csv").write_text("\n".join(["Kunde,Artikel,Tag,Preis", *rows]))
    columns = {"src": "Kunde", "dst": "Artikel", "time": "Tag", "features": "Preis"}
    stream = read_events(tmp_path / "shop.csv", **columns)
    run = train(stream, "counts", out=tmp_path / "run", device="cpu", columns=columns, epochs=1, batch_size=20)
    (tmp_path / "later.csv").write_text("Kunde,Artikel,Tag\nk1,a2,99\n")
    with pytest.raises(DataError, match="has no column 'Preis'"):
        run.with_events(tmp_path / "later.csv")
