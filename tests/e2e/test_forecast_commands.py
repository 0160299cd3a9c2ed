"""Commands about time and probability: predict and recommend with --within, recommend --destination, next, active."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from .conftest import SHOP_COLUMNS, Trained, shop_rows
from .helpers import call, events, fails, works, write_rows

LAST = events()[-1][2]
PAIR = ["--source", "3", "--destination", "4"]


@pytest.fixture(scope="session")
def epoch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on times in seconds since 1970."""
    folder = tmp_path_factory.mktemp("epoch")
    rows = [(u, v, 1_700_000_000 + 600 * t) for u, v, t in events()]
    data = write_rows(folder / "data.csv", rows, header=("src", "dst", "time"))
    works("train", data, "--model", "counts", "--set", "epochs=1", "--out", folder / "run")
    return folder / "run"


# -------------------- predict


def test_a_pair_within_a_horizon(shop: Trained) -> None:
    pair = ["--source", "001", "--destination", "002"]
    [row] = works("predict", shop.run, *pair, "--within", "2h", "--json").json
    assert list(row) == ["src", "dst", "time", "score", "probability", "note"]
    assert 0 < row["probability"] < 1
    [longer] = works("predict", shop.run, *pair, "--within", "6h", "--json").json
    assert longer["probability"] > row["probability"]
    assert longer["score"] == row["score"] == works("predict", shop.run, *pair, "--json").json[0]["score"]


def test_pairs_of_a_file_get_a_column(tmp_path: Path, trained: Trained) -> None:
    pairs = write_rows(tmp_path / "pairs.csv", [(3, 4, LAST - 50), (99, 4, LAST)], header=("src", "dst", "time"))
    found = works("predict", trained.run, "--pairs", pairs, "--within", "30").rows
    assert list(found[0]) == ["src", "dst", "time", "score", "probability", "note"]
    assert found[1]["note"] == "src: no history"
    assert all(0 <= float(row["probability"]) <= 1 for row in found)
    works("predict", trained.run, "--pairs", pairs, "--within", "30", "--output", "scored.parquet")
    table = pq.read_table("scored.parquet").to_pylist()
    assert [row["probability"] for row in table] == [pytest.approx(float(row["probability"])) for row in found]


@pytest.mark.parametrize(
    ("horizon", "words"),
    [
        ("7d", ["numbers without a known unit", f"from {events()[0][2]} to {LAST}", "such as 1."]),
        ("0", "longer than zero"),
        ("-5", "longer than zero"),
        ("1e300", "at most 9007199254740992"),
        ("soon", ["'soon' is not a duration", "90s, 15m, 12h, 7d, 4w"]),
    ],
)
def test_wrong_horizons(trained: Trained, horizon: str, words: str | Sequence[str]) -> None:
    for command in (
        ["predict", trained.run, *PAIR],
        ["recommend", trained.run, "--source", "3"],
        ["active", trained.run],
    ):
        fails(*command, f"--within={horizon}", containing=words)


def test_a_horizon_longer_than_the_history_is_mentioned(trained: Trained, shop: Trained) -> None:
    span = LAST - events()[0][2]
    note = "no event of this kind was seen for so long"
    assert note not in works("predict", trained.run, *PAIR, "--within", "20").err
    assert (
        f"{note}: the horizon is {span + 1}, the history before the query {span}"
        in works("predict", trained.run, *PAIR, "--within", span + 1).err
    )
    result = works("active", shop.run, "--within", "4w")
    assert f"{note}: the horizon is 28 days, the history before the query 13.9 hours" in result.err
    assert "The probability is an extrapolation" in result.err


def test_the_unit_of_a_bare_number_is_shown(trained: Trained, shop: Trained, epoch: Path) -> None:
    assert "--within 90: 90 seconds" in works("active", shop.run, "--within", "90").err
    assert "--within 90: 90 seconds" in works("active", epoch, "--within", "90").err
    assert "--within" not in works("active", trained.run, "--within", "90").err


# -------------------- recommend


def test_recommend_within_a_horizon(trained: Trained) -> None:
    found = works("recommend", trained.run, "--source", "3", "--within", "20", "--top", "4", "--json").json
    assert list(found[0]) == ["src", "rank", "node", "score", "probability", "met", "note", "src_note", "candidates"]
    probabilities = [row["probability"] for row in found]
    assert len(found) == 4 and probabilities == sorted(probabilities, reverse=True)
    plain = works("recommend", trained.run, "--source", "3", "--top", "4", "--json").json
    assert "probability" not in plain[0]
    assert [row["node"] for row in plain] == [row["node"] for row in found]


def test_best_sources_of_a_destination(tmp_path: Path, shop: Trained) -> None:
    found = works("recommend", shop.run, "--destination", "003", "--within", "2h", "--json").json
    columns = ["dst", "rank", "node", "score", "rate", "probability", "met", "note", "dst_note"]
    assert list(found[0]) == [*columns, "candidates"]
    assert found[0]["candidates"] == {"destinations": 9, "scored_first": 0, "ranked": 9}
    assert {row["dst"] for row in found} == {"003"}
    assert [row["rank"] for row in found] == list(range(1, 10))
    assert {row["node"] for row in found} == {f"{k:03d}" for k in range(1, 10)}  # customers, 003 included
    met = {row["node"]: row["met"] for row in found}
    assert met == {u: sum(row[1] == "003" and row[3] == u for row in shop_rows()) for u in met}
    by_rate = works("recommend", shop.run, "--destination", "003", "--destination", "007", "--top", "2").rows
    assert [row["dst"] for row in by_rate] == ["003", "003", "007", "007"]
    assert float(by_rate[0]["rate"]) >= float(by_rate[1]["rate"]) > 0
    assert "probability" not in by_rate[0]
    few = write_rows(tmp_path / "few.csv", [("004",), ("005",)], header=("who",))
    chosen = works("recommend", shop.run, "--destination", "003", "--candidates", few).rows
    assert {row["node"] for row in chosen} == {"004", "005"}
    others = works("recommend", shop.run, "--destination", "003", "--exclude", few, "--exclude-id", "006").rows
    assert {row["node"] for row in others} == {f"{k:03d}" for k in range(1, 10)} - {"004", "005", "006"}
    rows = [(f"{k:03d}", "even" if k % 2 == 0 else "odd") for k in range(1, 10)]
    groups = write_rows(tmp_path / "groups.csv", rows, header=("who", "group"))
    limited = works("recommend", shop.run, "--destination", "003", "--per-group", "1", "--groups", groups).rows
    assert sorted(int(row["node"]) % 2 for row in limited) == [0, 1]


def test_a_destination_that_was_never_seen(shop: Trained) -> None:
    result = works("recommend", shop.run, "--destination", "tea", "--top", "1")
    assert "tea: no history" in result.err
    assert result.rows[0]["dst_note"] == "no history"


def test_source_or_destination(trained: Trained) -> None:
    words = "--source ID, --sources FILE, --destination ID or --all"
    fails("recommend", trained.run, "--source", "3", "--destination", "4", containing=words)
    fails("recommend", trained.run, containing=words)


# -------------------- next


def test_next_event_of_a_source(trained: Trained) -> None:
    [answer] = works("next", trained.run, "--source", "3", "--top", "2", "--json").json
    assert list(answer) == ["src", "time", "median", "low", "high", "wait", "partners", "note"]
    assert LAST == answer["time"] <= answer["low"] <= answer["median"] <= answer["high"]
    assert answer["median"] == pytest.approx(LAST + answer["wait"], abs=0.51)
    assert [list(p) for p in answer["partners"]] == [["node", "score", "met", "note"]] * 2
    assert all(p["node"] != 3 for p in answer["partners"])


def test_next_events_in_a_table(tmp_path: Path, shop: Trained) -> None:
    who = write_rows(tmp_path / "who.csv", [("001",), ("009",), ("nobody",)], header=("who",))
    result = works("next", shop.run, "--sources", who)
    assert list(result.rows[0]) == [
        *("src", "time", "median", "low", "high", "wait", "partner_1", "partner_2", "partner_3", "note")
    ]
    assert [row["src"] for row in result.rows] == ["001", "009", "nobody"]
    assert all(re.fullmatch(r"2024-\d\d-\d\dT[\d:.]+Z", row["median"]) for row in result.rows[:2])
    assert result.rows[0]["low"] <= result.rows[0]["median"] <= result.rows[0]["high"]
    assert "no history" in result.rows[2]["note"]
    assert "nobody: no history: the answer is that of any new source" in result.err
    for name in ("next.csv", "next.parquet", "next.json"):
        works("next", shop.run, "--sources", who, "--output", name, "--top", "1")
    rows = pq.read_table("next.parquet").to_pylist()
    assert rows == json.loads(Path("next.json").read_text())
    assert list(rows[0])[-2:] == ["partner_1", "note"]
    assert [row["median"] for row in rows] == [row["median"] for row in result.rows]


def test_next_events_of_numbers_since_1970_have_dates(epoch: Path) -> None:
    [answer] = works("next", epoch, "--source", "3", "--json").json
    assert list(answer)[2:8] == ["median", "low", "high", "median_date", "low_date", "high_date"]
    assert answer["median_date"].startswith("2023-") and isinstance(answer["median"], int)


def test_next_event_long_after_the_history(shop: Trained) -> None:
    later = works("next", shop.run, "--source", "001", "--at", "2031-01-01", "--json").json
    assert "later than the last event by more than the history's length" in later[0]["note"]


def test_next_needs_a_source(shop: Trained) -> None:
    fails("next", shop.run, containing="either --source ID or --sources FILE")


# -------------------- active


def test_active_sources(trained: Trained) -> None:
    found = works("active", trained.run, "--within", "30", "--json").json
    assert list(found[0]) == ["rank", "node", "probability", "events", "last", "note"]
    assert [row["rank"] for row in found] == list(range(1, 11))
    probabilities = [row["probability"] for row in found]
    assert probabilities == sorted(probabilities, reverse=True)
    best = found[0]["node"]
    assert found[0]["events"] == sum(u == best for u, _, _ in events())
    assert found[0]["last"] == max(t for u, _, t in events() if u == best)


def test_active_destinations(shop: Trained) -> None:
    found = works("active", shop.run, "--within", "1h", "--role", "destination", "--top", "3").rows
    assert len(found) == 3
    assert {row["node"] for row in found} <= {f"{k:03d}" for k in range(1, 8)}
    assert found[0]["last"].startswith("2024-03-01T")
    fails("active", shop.run, "--within", "1h", "--role", "item", containing="role=item")
    assert call("active", shop.run).code == 2


# -------------------- times and later events


def test_time_of_the_query_and_later_events(tmp_path: Path, shop: Trained) -> None:
    later = write_rows(tmp_path / "later.csv", shop_rows(40, first=120), header=("bought on", "thing", "price", "who"))
    at = ["--at", "2024-03-01T13:59:00Z"]
    questions: list[list[Any]] = [
        ["predict", shop.run, "--source", "001", "--destination", "002", "--within", "1h"],
        ["recommend", shop.run, "--source", "002", "--within", "1h"],
        ["recommend", shop.run, "--destination", "002"],
        ["next", shop.run, "--source", "001"],
        ["active", shop.run, "--within", "1h"],
    ]
    for question in questions:
        before = works(*question, *at, "--json").json
        assert works(*question, *at, "--events", later, *SHOP_COLUMNS, "--json").json == before
        assert works(*question, "--events", later, *SHOP_COLUMNS, "--json").json != before


# -------------------- a run without activity


def test_a_run_without_activity(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.csv", events(), header=("src", "dst", "time"))
    off = ["--set", "activity=false", "--set", "epochs=1"]
    works("train", data, "--model", "counts", *off, "--out", tmp_path / "run")
    run = tmp_path / "run"
    for question in (
        ["predict", run, *PAIR, "--within", "20"],
        ["recommend", run, "--source", "3", "--within", "20"],
        ["recommend", run, "--destination", "4"],
        ["next", run, "--source", "3"],
        ["active", run, "--within", "20"],
    ):
        fails(*question, containing=["has no activity", "activity=false"])
    works("predict", run, *PAIR)
    works("recommend", run, "--source", "3")
