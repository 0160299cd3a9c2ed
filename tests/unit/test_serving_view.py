"""Answers of the page: node search, a node's past, top movers, events per second."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import cordgt
from cordgt.events.stream import EventStream
from cordgt.serving.history_view import (
    RATE_SECONDS,
    TIMELINE_BINS,
    EventRate,
    HistoryView,
    describe_past,
    find_nodes,
    top_movers,
)

HOSTILE = "<script>alert(1)</script>"


def view_of(src: list[object], dst: list[object], t: list[int], *, shared: bool = True) -> HistoryView:
    stream = EventStream.from_columns(src, dst, t, shared_ids=shared)
    return HistoryView(stream.src, stream.dst, stream.elapsed, stream.t, stream.ids, stream.format_time)


@pytest.fixture
def view() -> HistoryView:
    return view_of(["ann", "Anna", "bob", "ann"], ["bob", "joann", HOSTILE, "ann"], [10, 20, 20, 40])


def test_search_finds_the_same_id_first_then_beginnings_then_parts(view: HistoryView) -> None:
    assert [x["node"] for x in find_nodes(view, "ann", 10)] == ["ann", "Anna", "joann"]
    assert [x["node"] for x in find_nodes(view, "ANN", 2)] == ["ann", "Anna"]
    assert find_nodes(view, "ann", 1) == [{"node": "ann", "side": None, "events": 2}]  # a self-loop is one event
    assert [x["node"] for x in find_nodes(view, "<script", 5)] == [HOSTILE]
    assert find_nodes(view, "(.*", 5) == []  # text, not a pattern


def test_search_of_whole_numbers() -> None:
    large = 9007199254740993
    view = view_of([7, 70], [large, 17], [1, 2])
    assert [x["node"] for x in find_nodes(view, "7", 10)] == [7, 70, large, 17]
    assert [x["node"] for x in find_nodes(view, str(large), 10)] == [large]


def test_search_tells_the_id_space() -> None:
    view = view_of(["1", "2"], ["1", "1"], [1, 2], shared=False)
    assert find_nodes(view, "1", 5) == [
        {"node": "1", "side": "src", "events": 1},
        {"node": "1", "side": "dst", "events": 2},
    ]


def test_past_of_a_node(view: HistoryView) -> None:
    past = describe_past(view, "ann", None, 10)
    assert [(e["position"], e["time"], e["direction"], e["other"]) for e in past["events"]] == [
        (3, "40", "to", "ann"),
        (0, "10", "to", "bob"),
    ]
    assert (past["total"], past["cut"], past["events_first"], past["events_last"]) == (2, 4, "10", "40")
    assert len(past["bins"]) == TIMELINE_BINS and [b["count"] for b in past["bins"] if b["count"]] == [1, 1]
    assert describe_past(view, "bob", None, 1)["events"][0]["other"] == HOSTILE
    assert describe_past(view, "bob", None, 9)["events"][1]["direction"] == "from"


def test_past_of_an_unknown_node_is_empty(view: HistoryView) -> None:
    past = describe_past(view, "nobody", None, 10)
    assert (past["total"], past["events"], past["bins"], past["events_first"]) == (0, [], [], None)


def test_past_takes_the_node_of_the_asked_side() -> None:
    view = view_of(["1", "2"], ["1", "1"], [1, 2], shared=False)
    assert [describe_past(view, "1", side, 5)["total"] for side in ("src", "dst", None)] == [1, 2, 1]


def test_movers_compare_the_latest_events_with_those_before() -> None:
    view = view_of(["a", "a", "b", "b", "b", "c"], ["x", "y", "x", "x", "b", "x"], [1, 2, 3, 4, 5, 6])
    answer = top_movers(view, 2, window=3)
    assert answer["window"] == 3 and answer["cut"] == 6
    assert [(m["node"], m["now"], m["before"], m["change"]) for m in answer["movers"]] == [
        ("a", 0, 2, -2),
        ("b", 2, 1, 1),
    ]
    assert top_movers(view, 10, window=1000)["window"] == 3  # half of the events


def test_movers_of_one_event_are_empty() -> None:
    assert top_movers(view_of(["a"], ["b"], [1]), 5)["movers"] == []


def test_events_per_second() -> None:
    now = [100.5]
    rate = EventRate(lambda: now[0])
    assert rate.per_second() == []
    rate.record(3)
    now[0] = 101.2
    rate.record(2)
    assert rate.per_second() == [3]  # the current second is not over
    now[0] = 104.0
    assert rate.per_second() == [3, 2, 0, 0]
    now[0] = 104.0 + 5 * RATE_SECONDS
    assert rate.per_second() == [0] * RATE_SECONDS


def test_events_per_second_equal_a_plain_count() -> None:
    draw = np.random.default_rng(0)
    now, rate, seen = 0.0, None, dict[int, int]()
    clock = lambda: now  # noqa: E731
    rate = EventRate(clock)
    for _ in range(500):
        now += float(draw.exponential(1.7))
        n = int(draw.integers(0, 5))
        rate.record(n)
        seen[int(now)] = seen.get(int(now), 0) + n
        first = max(0, int(now) - RATE_SECONDS)
        assert rate.per_second() == [seen.get(s, 0) for s in range(first, int(now))]


def test_files_of_the_page_are_shipped_with_the_package() -> None:
    package = Path(cordgt.__file__).parent
    pyproject = tomllib.loads((package.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = pyproject["tool"]["setuptools"]["package-data"]["cordgt"]
    files = set((package / "serving" / "static").iterdir())
    assert {"index.html", "page.js", "page.css"} <= {path.name for path in files}
    assert files <= {path for pattern in patterns for path in package.glob(pattern)}


def test_page_never_sets_markup_and_loads_nothing_from_elsewhere() -> None:
    for path in (Path(cordgt.__file__).parent / "serving" / "static").iterdir():
        text = path.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", " onclick="):
            assert word not in text, f"{path.name}: {word}"
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}, path.name
