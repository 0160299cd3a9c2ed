"""The live service in one process: its event log, its history, its answers. No web server is needed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.errors import RunError, SettingError
from cordgt.events.stream import EventStream
from cordgt.inference.predictor import Predictor
from cordgt.inference.retrieval import ranking
from cordgt.inference.retrieval.destinations import Destinations
from cordgt.inference.retrieval.first_scorer import new_first_scorer
from cordgt.inference.run import Run
from cordgt.io.convert import convert_to_store
from cordgt.models import MODELS
from cordgt.models.base import SCORE_TOLERANCE
from cordgt.serving import engine as engine_module
from cordgt.serving.answerer import Answerer
from cordgt.serving.engine import Engine
from cordgt.serving.errors import (
    FutureEventError,
    KeyConflictError,
    LateEventError,
    LogDamagedError,
    LogUnavailableError,
    ModelGoneError,
    RequestError,
    UnknownAnswerError,
    UnsupportedError,
)
from cordgt.serving.event_batch import EventBatch, EventSchema
from cordgt.serving.event_log import LogRecord
from cordgt.serving.live_history import LiveHistory
from cordgt.serving.quality import QualityMonitor
from cordgt.serving.questions import Question, decode_answer_id, encode_answer_id
from cordgt.serving.replay import CHECKPOINTS
from cordgt.serving.service import Service, ServiceOptions
from cordgt.serving.sqlite_log import COUNT_FILE, LOG_FILE, SqliteLog
from cordgt.serving.time_limit import TimeLimit
from cordgt.store.store import open_store
from cordgt.tasks.histories import build_history
from cordgt.training.model_factory import build_model_for
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import known_keys, make_settings
from cordgt.workflows.train import train_run

from ..contract.worlds import SMALL

CPU = torch.device("cpu")
N_EVENTS, N_BASE = 300, 200
IS_STATEFUL = {name: spec.network.is_stateful for name, spec in MODELS.items()}


def make_columns(n: int = N_EVENTS, *, seed: int = 0, separate: bool = False) -> dict[str, Any]:
    """Raw events with ties, repeats, new nodes and self-loops."""
    rng = np.random.default_rng(seed)
    grows = np.arange(n) // 15
    src = [f"u{rng.integers(0, 5 + g)}" for g in grows]
    dst = [f"u{rng.integers(0, 6 + g)}" for g in grows]
    return {
        "src": src,
        "dst": [name.replace("u", "u" if not separate else "v") for name in dst],
        "t": np.cumsum(rng.integers(0, 3, n)),
        "edge_x": rng.normal(size=(n, 2)).astype(np.float32),
    }


def make_stream(columns: dict[str, Any], stop: int, *, with_features: bool = True) -> EventStream:
    edge_x = columns["edge_x"][:stop] if with_features else None
    return EventStream.from_columns(columns["src"][:stop], columns["dst"][:stop], columns["t"][:stop], edge_x)


def make_batch(columns: dict[str, Any], start: int, stop: int, *, with_features: bool = True) -> EventBatch:
    part = slice(start, stop)
    edge_x = columns["edge_x"][part] if with_features else None
    return EventBatch(columns["src"][part], columns["dst"][part], columns["t"][part], edge_x)


def make_events(columns: dict[str, Any], start: int, stop: int) -> list[dict[str, Any]]:
    return [
        {"src": columns["src"][i], "dst": columns["dst"][i], "time": int(columns["t"][i])} for i in range(start, stop)
    ]


@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    return make_columns()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, columns: dict[str, Any]) -> Path:
    """A run of `counts` on the first events. Read only."""
    return _train(tmp_path_factory.mktemp("run") / "run", make_stream(columns, N_BASE, with_features=False))


def _train(folder: Path, stream: EventStream, model: str = "counts", **changes: Any) -> Path:
    settings = {"epochs": 1} if MODELS[model].network.is_trainable else {}
    train_run(stream, make_settings(model, settings | changes, seed=3), folder, device="cpu")
    return folder


@pytest.fixture
def service(run: Path, tmp_path: Path) -> Iterator[Service]:
    service = open_service(run, tmp_path / "data")
    yield service
    service.close()


def open_service(run: Path, folder: Path, **options: Any) -> Service:
    return Service(run, ServiceOptions(folder, device="cpu", **options))


def add(service: Service, events: Any, key: str | None = None) -> Any:
    return service.add_events(events, key).result(10)


def partners(answer: dict[str, Any]) -> list[Any]:
    return [row["node"] for row in answer["partners"]]


def assert_same_answer(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Same ranking, and scores within the tolerance; a probability moves by at most a quarter of it."""
    assert {k: v for k, v in one.items() if k != "partners"} == {k: v for k, v in two.items() if k != "partners"}
    assert partners(one) == partners(two)
    scores = [[row["score"] for row in answer["partners"]] for answer in (one, two)]
    np.testing.assert_allclose(*scores, rtol=0, atol=SCORE_TOLERANCE)


# -------------------- history


@pytest.mark.parametrize("name", [name for name in MODELS if not IS_STATEFUL[name]])
def test_answers_equal_those_of_a_stream_read_at_once(name: str, columns: dict[str, Any]) -> None:
    """After every append, each model answers as the predictor does on a stream of the first ``cut`` events."""
    settings = make_settings(name, {k: v for k, v in SMALL.items() if k in known_keys()}, seed=5)
    base = make_stream(columns, N_BASE)
    model = build_model_for(settings, base).eval()
    live = LiveHistory(base)
    is_trained = np.ones(base.n_nodes, bool)
    answerer = Answerer(live, model, settings.seed, is_trained)
    for start, stop in ((N_BASE, 201), (201, 240), (240, N_EVENTS)):
        live.append(make_batch(columns, start, stop))
    for cut in (201, N_EVENTS):
        stream = make_stream(columns, cut)
        slow = Predictor(model, stream, build_history(stream, seed=settings.seed, device=CPU), is_trained)
        for source in ("u0", "new", stream.ids.names[-1].as_py()):
            expected, note = slow.recommend(source, top=5)
            question = Question("recommend", "m", cut, source=source, n=5)
            answer = answerer.answer([question, replace(question, source="u1"), replace(question, new_only=True)])
            assert partners(answer[0]) == [r.node for r in expected]
            assert [row["met"] for row in answer[0]["partners"]] == [r.met for r in expected]
            assert [row["note"] for row in answer[0]["partners"]] == [r.note for r in expected]
            assert answer[0]["note"] == note
            scores = [row["score"] for row in answer[0]["partners"]]
            np.testing.assert_allclose(scores, [r.score for r in expected], rtol=0, atol=SCORE_TOLERANCE)
            assert partners(answer[2]) == [r.node for r in slow.recommend(source, top=5, new_only=True)[0]]
            pairs = tuple((source, other) for other in ("u2", "other", source))
            scored = answerer.answer([Question("score", "m", cut, pairs=pairs)])[0]["scores"]
            expected_scores = slow.score([p[0] for p in pairs], [p[1] for p in pairs])[0]
            np.testing.assert_allclose([row["score"] for row in scored], expected_scores, rtol=0, atol=SCORE_TOLERANCE)


def test_two_stages_answer_as_on_a_stream_read_at_once(
    columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later events change neither the gathered candidates nor the choice of the first scorer."""
    for name, value in (("DEFAULT_BUDGET", 6), ("MIN_BUDGET", 6), ("POOL_SIZE", 10), ("MIN_BUDGET_PER_ANSWER", 1)):
        monkeypatch.setattr(ranking, name, value, raising=False)
    monkeypatch.setattr("cordgt.serving.answerer.FEW_CANDIDATES", 4)
    settings = make_settings("tgat", {k: v for k, v in SMALL.items() if k in known_keys()}, seed=5)
    base, scorer = make_stream(columns, N_BASE), new_first_scorer()
    model, is_trained = build_model_for(settings, base).eval(), np.ones(base.n_nodes, bool)
    live = LiveHistory(base)
    answerer = Answerer(live, model, settings.seed, is_trained, lambda predictor: scorer)
    for start, stop in ((N_BASE, 239), (239, N_EVENTS)):
        live.append(make_batch(columns, start, stop))
    for cut, at in ((N_BASE, None), (239, None), (N_EVENTS, None), (N_EVENTS, int(columns["t"][220]))):
        stream = make_stream(columns, cut)
        history = build_history(stream, seed=settings.seed, device=CPU)
        slow = Predictor(model, stream, history, is_trained, lambda predictor: scorer)
        for source, options in (("u1", {}), ("u4", {"new_only": True}), ("new", {"exclude": ("u2", "u7")})):
            result = slow.answer(source, at, 5, allowed=slow.make_filter(**options))
            assert result.candidates.ranked < result.candidates.destinations
            answer = answerer.answer([Question("recommend", "m", cut, at, source, 5, **options)])[0]
            assert partners(answer) == [r.node for r in result.recommendations] and answer["note"] == result.note


def test_popular_destinations_do_not_depend_on_later_nodes() -> None:
    """Ties at the last place are broken by order of appearance, however many nodes come later."""
    short, long = Destinations(np.arange(6000), 6000), Destinations(np.arange(9000), 9000)
    assert short.popular(6000, 4096).tolist() == long.popular(6000, 4096).tolist() == list(range(4096))


def test_destinations_grow_as_if_read_at_once(columns: dict[str, Any]) -> None:
    live = LiveHistory(make_stream(columns, 50))
    for start in range(50, N_EVENTS, 25):
        live.append(make_batch(columns, start, start + 25))
    whole = make_stream(columns, N_EVENTS)
    expected = Destinations(whole.dst, whole.n_nodes)
    for cut in (20, 50, 120, N_EVENTS):
        assert live.destinations.visible(cut).tolist() == expected.visible(cut).tolist()
        nodes = np.arange(-1, whole.n_nodes + 2)
        assert live.destinations.is_visible(nodes, cut).tolist() == expected.is_visible(nodes, cut).tolist()
        assert live.destinations.popular(cut, 9).tolist() == expected.popular(cut, 9).tolist()
        assert live.destinations.recent(cut, 9).tolist() == expected.recent(cut, 9).tolist()


def test_question_at_an_earlier_time_sees_fewer_events(columns: dict[str, Any]) -> None:
    live = LiveHistory(make_stream(columns, N_BASE))
    live.append(make_batch(columns, N_BASE, N_EVENTS))
    settings = make_settings("counts", {}, seed=5)
    stream = make_stream(columns, N_EVENTS)
    model = build_model_for(settings, stream).eval()
    answerer = Answerer(live, model, 5, np.ones(stream.n_nodes, bool))
    slow = Predictor(model, stream, build_history(stream, seed=5, device=CPU), np.ones(stream.n_nodes, bool))
    for at in (3, int(columns["t"][150]), int(columns["t"][-1]), 10_000):
        answer = answerer.answer([Question("recommend", "m", N_EVENTS, at=at, source="u2", n=4)])[0]
        assert partners(answer) == [r.node for r in slow.recommend("u2", at, top=4)[0]]


def test_live_stream_is_the_stream_read_at_once_also_with_two_id_spaces() -> None:
    columns = make_columns(separate=False)
    for shared in (True, False):
        raw = [columns[name] for name in ("src", "dst", "t")]
        whole = EventStream.from_columns(*raw, shared_ids=shared)
        base = EventStream.from_columns(*(x[:50] for x in raw), shared_ids=shared)
        live = LiveHistory(base)
        for start in range(50, N_EVENTS, 50):
            live.append(make_batch(columns, start, start + 50, with_features=False))
            stream = live.stream()
        assert np.array_equal(stream.src, whole.src) and np.array_equal(stream.dst, whole.dst)
        assert np.array_equal(stream.t, whole.t) and np.array_equal(stream.elapsed, whole.elapsed)
        assert stream.ids.names.equals(whole.ids.names)
        assert shared == (stream.ids.side is None)
        assert shared or np.array_equal(stream.ids.side, whole.ids.side)
        assert live.destinations_at(120).tolist() == np.unique(whole.dst[:120]).tolist()
        assert live.n_nodes_at(120) == max(whole.src[:120].max(), whole.dst[:120].max()) + 1


def test_fractional_times_after_whole_ones_are_kept(columns: dict[str, Any]) -> None:
    live = LiveHistory(make_stream(columns, 20, with_features=False))
    last = live.last_time
    live.append(EventBatch(["u1"], ["u2"], np.array([last + 0.5]), None))
    assert live.last_time == last + 0.5
    assert live.stream().elapsed[-1] == last + 0.5 - columns["t"][0]


# -------------------- requests


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"dst": "a", "time": 1}, "events[0] has no 'src'"),
        ({"src": "", "dst": "a", "time": 1}, "1 to 1000 characters"),
        ({"src": 1.5, "dst": "a", "time": 1}, "not a node id"),
        ({"src": True, "dst": "a", "time": 1}, "not a node id"),
        ({"src": "\ud800", "dst": "a", "time": 1}, "Unicode"),
        ({"src": "a", "dst": "a", "time": "soon"}, "events[0]"),
        ({"src": "a", "dst": "a", "time": float("nan")}, "not a finite number"),
        ({"src": "a", "dst": "a", "time": 10**400}, "events"),
        ({"src": "a", "dst": "a", "time": [1]}, "is not a number"),
        ({"src": "a", "dst": "a", "time": "2024-01-01"}, "is a date"),
        ({"src": "a", "dst": "a", "time": 1, "prize": 3}, "unknown key 'prize'"),
        ("text", "an object with src"),
    ],
)
def test_wrong_events_are_named(event: Any, text: str, columns: dict[str, Any]) -> None:
    schema = EventSchema.of_stream(make_stream(columns, 20, with_features=False), {})
    with pytest.raises(RequestError) as error:
        schema.parse_events([event])
    assert text in str(error.value)


def test_ids_keep_the_type_of_the_history() -> None:
    numbers = EventSchema.of_stream(EventStream.from_columns([1, 2], [3, 4], [0, 1]), {})
    assert numbers.parse_id("7", "id") == 7 and numbers.parse_id(7.0, "id") == 7
    for value in ("007", "a", 2**63):
        with pytest.raises(RequestError, match="whole numbers"):
            numbers.parse_id(value, "id")
    text = EventSchema.of_stream(EventStream.from_columns(["a"], ["b"], [0]), {})
    assert text.parse_id(7, "id") == "7"


def test_features_come_as_a_list_or_by_name(columns: dict[str, Any]) -> None:
    schema = EventSchema.of_stream(make_stream(columns, 20), {"features": "price, size"})
    event = {"src": "a", "dst": "b", "time": 5}
    by_name = schema.parse_events([event | {"price": 1, "size": 2.5}])
    as_list = schema.parse_events([event | {"features": [1, 2.5]}])
    assert by_name.edge_x.tolist() == as_list.edge_x.tolist() == [[1.0, 2.5]]
    for features in ([1], [1, "x"], [1, float("inf")], 3):
        with pytest.raises(RequestError, match="features"):
            schema.parse_events([event | {"features": features}])


def test_events_of_one_request_are_sorted_by_time(service: Service) -> None:
    last = service.live.last_time
    receipt = add(service, [{"src": "a", "dst": "b", "time": last + k} for k in (3, 1, 2)])
    assert receipt.cut == N_BASE + 3
    assert service.call(lambda live: live.stream().t[-3:].tolist()).result() == [last + 1, last + 2, last + 3]


def test_late_events_are_refused_and_nothing_of_the_request_is_kept(service: Service) -> None:
    last = service.live.last_time
    with pytest.raises(LateEventError, match="--late accept"):
        add(service, [{"src": "a", "dst": "b", "time": last + 1}, {"src": "a", "dst": "b", "time": last - 1}])
    assert service.cut == N_BASE
    assert add(service, {"src": "a", "dst": "b", "time": last}).accepted == 1  # the same time is not late


def test_late_events_get_the_last_time_if_they_are_accepted(run: Path, tmp_path: Path) -> None:
    service = open_service(run, tmp_path / "data", late="accept")
    last = service.live.last_time
    receipt = add(service, [{"src": "a", "dst": "b", "time": last - 5}, {"src": "a", "dst": "c", "time": last + 1}])
    assert (receipt.accepted, receipt.late) == (2, 1)
    assert service.call(lambda live: live.stream().t[-2:].tolist()).result() == [last, last + 1]
    service.close()


def test_events_far_in_the_future_are_refused(service: Service) -> None:
    """Otherwise one wrong time would make every later event late."""
    last, span = service.live.last_time, float(service.live.stream().elapsed[-1])
    for time in (2**62, last + 101 * span):
        with pytest.raises(FutureEventError, match="--max-ahead"):
            add(service, [{"src": "a", "dst": "b", "time": last}, {"src": "a", "dst": "b", "time": time}])
    assert service.cut == N_BASE
    assert add(service, {"src": "a", "dst": "b", "time": last + 99 * span}).accepted == 1


def test_limit_of_times_with_a_clock() -> None:
    now = 1_700_000_000
    epoch = EventStream.from_columns([1, 2], [3, 4], [now - 10**6, now])
    assert epoch.epoch_unit == "seconds"
    limit = replace(TimeLimit.of_stream(epoch), clock=lambda: now + 500.0)
    assert limit.latest(now) == now + 500 + 86_400
    assert limit.latest(now + 10**6) == now + 10**6 + 86_400  # events that are later than the clock already
    dates = EventStream.from_columns([1, 2], [3, 4], ["2023-11-14T00:00:00Z", "2023-11-14T01:00:00Z"])
    limit = replace(TimeLimit.of_stream(dates, "1h"), clock=lambda: float(now))
    assert limit.latest(dates.t[-1]) == (now + 3600) * 1e6 and limit.text == "1 hour"
    numbers = EventStream.from_columns([1, 2], [3, 4], [5, 9])
    assert TimeLimit.of_stream(numbers).latest(9) == 409 and TimeLimit.of_stream(numbers, "7").latest(9) == 16
    one = EventStream.from_columns([1], [3], [5])
    assert TimeLimit.of_stream(one).latest(5) == float("inf")
    with pytest.raises(SettingError, match="--max-ahead 1h"):
        TimeLimit.of_stream(numbers, "1h")


def test_key_makes_a_retry_harmless_also_after_a_restart(run: Path, tmp_path: Path) -> None:
    service = open_service(run, tmp_path / "data")
    events = [{"src": "a", "dst": "b", "time": service.live.last_time + 1}]
    first = add(service, events, "k")
    add(service, [{"src": "a", "dst": "b", "time": service.live.last_time + 10}])
    again = add(service, events, "k")
    assert (again.accepted, again.cut, again.repeated) == (first.accepted, first.cut, True)
    with pytest.raises(KeyConflictError):
        add(service, [{"src": "a", "dst": "c", "time": service.live.last_time + 1}], "k")
    service.close()
    service = open_service(run, tmp_path / "data")
    assert add(service, events, "k").repeated
    assert service.cut == N_BASE + 2
    service.close()


def test_requests_that_wait_together_with_one_key_are_accepted_once(service: Service) -> None:
    events = [{"src": "a", "dst": "b", "time": service.live.last_time + 1}]
    with ThreadPoolExecutor(16) as pool:
        receipts = list(pool.map(lambda _: add(service, events, "same"), range(64)))
    assert sum(not receipt.repeated for receipt in receipts) == 1
    assert service.cut == N_BASE + 1


# -------------------- answers


def test_answers_during_ingest_equal_a_run_with_the_first_cut_events(
    service: Service, run: Path, columns: dict[str, Any]
) -> None:
    answers = []
    for start in range(N_BASE, N_EVENTS, 10):
        add(service, make_events(columns, start, start + 10))
        answers += [service.recommend(f"u{k}", n=5, new_only=k % 2 == 0) for k in range(6)]
    trained = Run.load(run, "cpu")
    whole = make_stream(columns, N_EVENTS, with_features=False)
    for k, future in enumerate(answers):
        answer = future.result(10)
        cut = answer["cut"]
        assert cut >= N_BASE + 10 * (k // 6 + 1)  # it sees what was acknowledged before it was asked
        slow = replace(trained, stream=make_stream(columns, cut, with_features=False))
        expected = slow.recommend(answer["source"], top=5, new_only=k % 6 % 2 == 0)
        assert partners(answer) == [r.node for r in expected]
        np.testing.assert_allclose(
            [row["score"] for row in answer["partners"]], [r.score for r in expected], rtol=0, atol=SCORE_TOLERANCE
        )
    assert whole.n_events == service.cut


def test_candidates_and_exclude_limit_the_answer(service: Service) -> None:
    everyone = partners(service.recommend("u0", n=100).result())
    answer = service.recommend("u0", candidates=["u3", "u1", "nobody"], n=100).result()
    assert set(partners(answer)) == {"u3", "u1"} and answer["unknown_candidates"] == 1
    assert partners(service.recommend("u0", n=100, exclude=["u3"]).result()) == [k for k in everyone if k != "u3"]
    with pytest.raises(RequestError):
        service.recommend("u0", n=0)
    with pytest.raises(RequestError):
        service.recommend("u0", at=-1)


def test_replay_gives_the_same_answer_after_more_events_a_swap_and_a_restart(
    run: Path, tmp_path: Path, columns: dict[str, Any]
) -> None:
    service = open_service(run, tmp_path / "data")
    long_list = [f"u{k}" for k in range(5)] + [f"none-{k}-{hash((k, 'x'))}" for k in range(2000)]
    early = [
        service.recommend("u1").result(),
        service.recommend("not yet seen").result(),
        service.recommend("u1", candidates=long_list, exclude=["u2"]).result(),
        service.recommend("u1", within="30", candidates=["u3", "none"]).result(),
        service.score([{"src": "u1", "dst": "not yet seen"}]).result(),
    ]
    last = service.live.last_time
    add(service, [{"src": "not yet seen", "dst": f"u{k}", "time": last + k} for k in range(20)])
    other = _train(tmp_path / "other", make_stream(columns, N_BASE, with_features=False), hidden=8)
    service.swap_model(other)
    later = service.recommend("u1").result()
    assert later["model"] != early[0]["model"]
    service.close()
    service = open_service(run, tmp_path / "data")
    assert service.model.id == later["model"]  # a restart keeps the model that was swapped in
    for answer in (*early, later):
        replayed = service.replay(answer["answer_id"]).result(10)
        if "scores" in answer:
            assert replayed == answer
        else:
            assert_same_answer(replayed, answer)
    service.close()


def test_answer_id_holds_the_question() -> None:
    question = Question("recommend", "m1", 7, at=2.5, source="<script>", exclude=("a", 3), candidates=())
    answer_id, body = encode_answer_id(question)
    assert body is None and decode_answer_id(answer_id) == question
    pairs = tuple((f"{k}-{k**7 % 99991}", f"{k**5 % 99991}") for k in range(500))
    answer_id, body = encode_answer_id(Question("score", "m1", 7, pairs=pairs))
    assert body is not None and len(answer_id) == 65


@pytest.mark.parametrize("answer_id", ["", "a", "b123", "aAAAA", "q" + "0" * 64, "a" + "é" * 5, "a" * 1500])
def test_unknown_answer_ids(answer_id: str, service: Service) -> None:
    with pytest.raises(UnknownAnswerError):
        service.replay(answer_id)


def test_forged_answer_ids(service: Service) -> None:
    good = Question("recommend", service.model.id, service.cut, source="u1")
    for forged in (replace(good, cut=10**9), replace(good, source=None), replace(good, exclude=(None,))):
        with pytest.raises(UnknownAnswerError):
            service.replay(encode_answer_id(forged)[0])
    for model in ("../../etc", "0" * 16):
        with pytest.raises(ModelGoneError):
            service.replay(encode_answer_id(replace(good, model=model))[0])


@pytest.mark.parametrize(
    "values",
    [
        *({"model": model} for model in (5, None, [1], {}, "x" * 1000, "é" * 16, "a\0b")),
        *({"n": n} for n in (10**9, 10**30, True, 1.5, "3")),
        *({"cut": True}, {"cut": 0}, {"new_only": "x"}, {"mark": [1]}, {"mark": "other"}, {"kind": {}}),
    ],
    ids=lambda values: ascii(values)[:30],
)
def test_forged_answer_ids_with_wrong_types(values: dict[str, Any], service: Service) -> None:
    good = decode_answer_id(service.recommend("u1").result(10)["answer_id"])
    assert isinstance(good, Question)
    forged = replace(good, **values)
    with pytest.raises((UnknownAnswerError, ModelGoneError)):
        service.replay(encode_answer_id(forged)[0]).result(10)


def test_answer_of_another_data_folder_is_refused(run: Path, tmp_path: Path) -> None:
    first, second = (open_service(run, tmp_path / name) for name in ("first", "second"))
    before, last = first.recommend("u1").result(10), first.live.last_time
    for service, other in ((first, "u2"), (second, "u3")):
        add(service, {"src": "u1", "dst": other, "time": last})
    after = first.recommend("u1").result(10)
    assert after["cut"] == second.cut
    assert_same_answer(second.replay(before["answer_id"]).result(10), before)  # both began with these events
    with pytest.raises(UnknownAnswerError, match="not those of this answer"):
        second.replay(after["answer_id"]).result(10)
    assert_same_answer(first.replay(after["answer_id"]).result(10), after)
    first.close()
    second.close()


def test_mark_tells_histories_apart_and_survives_a_restart(run: Path, tmp_path: Path) -> None:
    def marks(name: str, events: list[dict[str, Any]]) -> list[str]:
        service = open_service(run, tmp_path / name)
        for event in events:
            add(service, event)
        found = service.call(lambda live: [live.mark(cut) for cut in (1, N_BASE, live.n_events, 1)]).result(10)
        service.close()
        return list(found)

    event = {"src": "u1", "dst": "u2", "time": 1000}
    events = [event, event | {"time": 1001.5}]
    one = marks("one", events)
    assert one[0] == one[3] and len(set(one)) == 3
    assert marks("one", []) == marks("same", events) == one
    changed = [[event | {name: value}, events[1]] for name, value in (("src", "u9"), ("dst", "x"), ("time", 1001))]
    assert len({marks(str(k), other)[2] for k, other in enumerate([events, *changed, events[:1]])}) == 5


def test_questions_that_this_run_cannot_answer(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RunError("The run has no activity.")

    monkeypatch.setattr(RunFolder, "read_activity", fail)
    for asked in (service.active("7"), service.next_event("u0"), service.recommend("u1", within="7")):
        with pytest.raises(UnsupportedError, match="no activity"):
            asked.result(10)


def test_questions_about_time(service: Service) -> None:
    run = service.model.run
    found = service.recommend("u1", n=3, within="30").result(10)
    best = run.recommend("u1", top=3, within="30", exhaustive=True)
    assert [(x["node"], x["probability"]) for x in found["partners"]] == [(r.node, r.probability) for r in best]
    without = service.recommend("u1", n=3, within="30", exclude=[best[0].node]).result(10)
    assert best[0].node not in partners(without) and len(without["partners"]) == 3
    active = service.active("30", n=4).result(10)["nodes"]
    assert [(x["node"], x["probability"]) for x in active] == [(x.node, x.probability) for x in run.active("30", top=4)]
    assert service.next_event("u1").result(10)["median"] == run.next_event("u1").median


def test_questions_for_a_whole_run_see_the_first_cut_events(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def next_event(self: Run, node: Any, at: Any = None, *, top: int = 3) -> Any:
        best = self.recommend(node, at, top)
        return {"events": self.stream.n_events, "nodes": self.stream.n_nodes, "wait": np.inf, "partners": best}

    monkeypatch.setattr(Run, "next_event", next_event, raising=False)
    last = service.live.last_time
    answer = service.next_event("u1").result(10)
    assert answer["events"] == answer["cut"] == N_BASE and answer["wait"] is None
    assert partners(answer) == partners(service.recommend("u1", n=3).result(10))
    add(service, [{"src": "u1", "dst": f"new{k}", "time": last + k} for k in range(5)])
    assert service.next_event("u1").result(10)["nodes"] == answer["nodes"] + 5
    assert service.replay(answer["answer_id"]).result(10) == answer


# -------------------- the log


def _record(first: int, key: str | None = None) -> LogRecord:
    return LogRecord(first, 1, key, "d", EventBatch(["a"], ["b"], np.array([first]), None).to_json())


def test_sqlite_log_syncs_every_commit(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path)
    assert log._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert log._database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    log.append([_record(0, "k"), _record(1)])
    assert log.find("k") == _record(0, "k") and log.find("x") is None
    log.close()
    log = SqliteLog(tmp_path)
    assert log.count == 2 and list(log.read()) == [_record(0, "k"), _record(1)] and list(log.read(1)) == [_record(1)]
    log.close()


def test_lost_tail_of_the_log_is_refused(tmp_path: Path) -> None:
    """SQLite drops a damaged end of its write-ahead log silently. The number of acknowledged events tells."""
    log = SqliteLog(tmp_path)
    for k in range(3):
        log.append([_record(k)])
    wal = tmp_path / f"{LOG_FILE}-wal"
    content = bytearray(wal.read_bytes())
    copy = tmp_path / "copy"
    copy.mkdir()
    content[-100] ^= 0xFF
    (copy / wal.name).write_bytes(content)
    (copy / LOG_FILE).write_bytes((tmp_path / LOG_FILE).read_bytes())
    (copy / COUNT_FILE).write_bytes((tmp_path / COUNT_FILE).read_bytes())
    log.close()
    with pytest.raises(LogDamagedError, match="3 events were acknowledged, and it has 2"):
        SqliteLog(copy)


def test_changed_record_is_refused(run: Path, tmp_path: Path) -> None:
    log = SqliteLog(tmp_path)
    log.append([_record(0), _record(1)])
    log.close()
    with sqlite3.connect(tmp_path / LOG_FILE) as database:
        database.execute("UPDATE batches SET body = replace(body, 'a', 'c') WHERE first = 1")
    log = SqliteLog(tmp_path)
    with pytest.raises(LogDamagedError, match="at event 1"):
        list(log.read())
    log.close()


def test_checkpoint_saves_time_and_changes_nothing(
    run: Path, tmp_path: Path, columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cordgt.serving.replay.MIN_NEW_EVENTS", 30)
    read: list[int] = []
    original = SqliteLog.read
    monkeypatch.setattr(SqliteLog, "read", lambda self, start=0: read.append(start) or original(self, start))
    answers = []
    for start in (N_BASE, 240, 280):
        service = open_service(run, tmp_path / "data")
        assert service.cut == start
        add(service, make_events(columns, start, min(start + 40, N_EVENTS)))
        answers.append(service.recommend("u1").result())
        for answer in answers:
            assert_same_answer(service.replay(answer["answer_id"]).result(), answer)
        service.close()
    assert read == [0, 40, 80]  # a checkpoint is written while the service runs
    checkpoint = next((tmp_path / "data" / CHECKPOINTS).iterdir())
    assert checkpoint.name == "80"
    (checkpoint / "events.parquet").write_bytes(b"damaged")
    service = open_service(run, tmp_path / "data")
    assert read[-1] == 0 and service.cut == N_EVENTS
    stream, expected = service.live.stream(), make_stream(columns, N_EVENTS, with_features=False)
    assert np.array_equal(stream.src, expected.src) and stream.ids.names.equals(expected.ids.names)
    service.close()


def test_file_that_is_not_a_log_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).write_bytes(b"not a database" * 100)
    with pytest.raises(LogDamagedError, match="backup"):
        open_service(run, tmp_path)


def test_full_disk_refuses_events_and_loses_none(run: Path, tmp_path: Path) -> None:
    service = open_service(run, tmp_path / "data")
    last = service.live.last_time
    add(service, {"src": "a", "dst": "b", "time": last})
    database = service._log._database  # type: ignore[attr-defined]
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")
    big = [{"src": f"a{k}", "dst": "b", "time": last} for k in range(3000)]
    with pytest.raises(LogUnavailableError, match="full"):
        add(service, big)
    assert service.readiness()[0] is False and service.cut == N_BASE + 1
    assert service.recommend("u1").result()["cut"] == N_BASE + 1  # it still answers
    database.execute("PRAGMA max_page_count = 1000000")
    assert add(service, big).accepted == 3000
    assert service.readiness() == (True, "")
    service.close()


def test_read_only_log_refuses_events(service: Service) -> None:
    service._log._database.execute("PRAGMA query_only = 1")  # type: ignore[attr-defined]
    with pytest.raises(LogUnavailableError, match="readonly"):
        add(service, {"src": "a", "dst": "b", "time": service.live.last_time})
    assert service.cut == N_BASE


def test_two_services_cannot_share_a_folder(service: Service, run: Path) -> None:
    with pytest.raises(RunError, match="in use"):
        open_service(run, service.options.data_dir)


# -------------------- models


@pytest.mark.parametrize("name", [name for name in MODELS if IS_STATEFUL[name]][:1])
def test_models_with_memory_are_refused(name: str, columns: dict[str, Any], tmp_path: Path) -> None:
    folder = _train(tmp_path / "run", make_stream(columns, N_BASE, with_features=False), name, memory_dim=4, block=20)
    with pytest.raises(RunError, match="keeps a memory"):
        open_service(folder, tmp_path / "data")


def test_swap_and_roll_back_while_questions_are_asked(
    service: Service, run: Path, tmp_path: Path, columns: dict[str, Any]
) -> None:
    add(service, make_events(columns, N_BASE, 250))
    other = _train(tmp_path / "other", make_stream(columns, 240, with_features=False))
    first = service.model.id
    asked = []
    for k in range(60):
        asked.append(service.recommend("u1"))
        if k == 20:
            second = service.swap_model(other).id
        if k == 40:
            assert service.roll_back().id == first
    models = [future.result(10)["model"] for future in asked]
    assert models == [first] * 21 + [second] * 20 + [first] * 19
    with pytest.raises(RequestError, match="no earlier model"):
        service.roll_back()


def test_run_on_a_store_is_kept_with_its_store(columns: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / "log.store"
    convert_to_store(make_stream(columns, N_BASE, with_features=False), store)
    first = _train(tmp_path / "first", open_store(store).stream())
    service = open_service(first, tmp_path / "data")
    answer = service.recommend("u1").result()
    service.swap_model(_train(tmp_path / "second", open_store(store).stream(), hidden=8))
    service.close()
    shutil.rmtree(tmp_path / "second")
    service = open_service(first, tmp_path / "data")
    assert service.roll_back().id == answer["model"]
    assert_same_answer(service.replay(answer["answer_id"]).result(), answer)
    service.close()


def test_run_of_other_events_is_refused(service: Service, tmp_path: Path) -> None:
    other = _train(tmp_path / "other", make_stream(make_columns(seed=9), N_BASE, with_features=False))
    with pytest.raises(RunError, match="other events"):
        service.swap_model(other)
    assert len(list((service.options.data_dir / "models").iterdir())) == 1  # nothing of it is kept
    service.close()
    with pytest.raises(RunError, match="other events"):
        open_service(other, service.options.data_dir)


def test_quality_scores_events_before_they_are_visible(run: Path, columns: dict[str, Any]) -> None:
    trained = Run.load(run, "cpu")
    live = LiveHistory(make_stream(columns, N_BASE, with_features=False))
    monitor = QualityMonitor(window=50)
    answerer = Answerer(live, trained.predictor.model, 3, trained.predictor.has_training_events)
    live.append(make_batch(columns, N_BASE, N_EVENTS, with_features=False))
    monitor.on_append(live, N_BASE)
    while monitor.step(live, answerer):
        pass
    summary = monitor.summary()
    assert summary["scored"] == N_EVENTS - N_BASE and summary["events"] == 50
    for partners_of in ("random", "popular"):
        assert 0 <= summary[partners_of]["ap"] <= 1 and 0 < summary[partners_of]["mrr"] <= 1
    # The true event's logit is that of a query at the number of events before its time.
    whole = make_stream(columns, N_EVENTS, with_features=False)
    e = N_EVENTS - 1
    pair = tuple(whole.ids.decode([int(x[e]) for x in (whole.src, whole.dst)]).to_pylist())
    at = int(columns["t"][e])
    score = answerer.answer([Question("score", "m", N_EVENTS, at=at, pairs=(pair,))])[0]["scores"][0]["score"]
    assert 1 / (1 + np.exp(-monitor._scores[-1][0])) == pytest.approx(score, abs=1e-6)


def test_quality_warns_when_it_falls() -> None:
    monitor = QualityMonitor(window=100)
    rng = np.random.default_rng(0)
    monitor._scores.extend(np.concatenate([np.full((100, 1), 3.0), rng.normal(size=(100, 20))], axis=1))
    monitor._ranks.extend([(1.0, 1.0)] * 100)
    assert monitor.summary()["warning"] == ""
    monitor._scores.extend(rng.normal(size=(100, 21)))
    assert "Train the model again" in monitor.summary()["warning"]


def test_one_failing_question_does_not_spoil_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(questions: list[Question]) -> list[dict[str, Any]]:
        if any(question.source == "bad" for question in questions):
            raise ValueError("bad")
        return [{"source": question.source} for question in questions]

    class FakeHistory:
        n_events = 1

    engine = Engine(FakeHistory(), answer)  # type: ignore[arg-type]
    asked = [engine.ask(lambda live, s=s: Question("recommend", "m", 1, source=s)) for s in ("a", "bad", "b")]
    engine.start()
    assert asked[0].result(5) == {"source": "a"} and asked[2].result(5) == {"source": "b"}
    with pytest.raises(ValueError, match="bad"):
        asked[1].result(5)
    engine.stop()
    assert engine_module.MAX_TOGETHER > 1


def test_unknown_options_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="late"):
        ServiceOptions(tmp_path, late="maybe")


def test_batches_survive_json(columns: dict[str, Any]) -> None:
    batch = make_batch(columns, 0, 20)
    again = EventBatch.from_json(batch.to_json())
    assert again.src == batch.src and again.dst == batch.dst
    assert again.t.tolist() == batch.t.tolist() and np.array_equal(again.edge_x, batch.edge_x)
    assert json.loads(batch.to_json()).keys() == {"src", "dst", "time", "features"}
