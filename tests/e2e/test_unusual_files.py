"""Files in many formats go through every command with only column options."""

from __future__ import annotations

import gzip
import json
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .conftest import SHOP_COLUMNS, SHOP_HEADER, Trained, shop_rows
from .helpers import TINY, CommandResult, call, events, works, write_events, write_rows


def run_every_command(data: Path, *columns: str, pairs: Path, source: str) -> tuple[CommandResult, CommandResult, Any]:
    """Train on a file, evaluate, predict, recommend and embed; return the last three results."""
    works("train", data, *columns, *TINY, "--out", "run")
    metrics = json.loads(Path("run/metrics.json").read_text())
    measured = works("evaluate", "run", "--json").json
    assert measured["test"] == metrics["test"]
    scored = works("predict", "run", "--pairs", pairs)
    recommended = works("recommend", "run", "--source", source, "--top", "3")
    works("embed", "run", "--output", "vectors.parquet")
    return scored, recommended, pq.read_table("vectors.parquet")


def test_snap_edge_list_without_a_header(tmp_path: Path) -> None:
    """White space of all kinds, comments, no header."""
    lines = ["# Directed graph: CollegeMsg.txt", "# Nodes: 12 Edges: 160", "# SRC DST UNIXTS"]
    lines += [f"{u}{' ' if k % 2 else chr(9)}{v}  {t}" for k, (u, v, t) in enumerate(events())]
    data = tmp_path / "CollegeMsg.txt"
    data.write_text("\n".join(lines) + "\n")
    pairs = write_rows(tmp_path / "pairs.txt", [(3, 4), (4, 3)], mark=" ")
    scored, recommended, vectors = run_every_command(data, pairs=pairs, source="3")
    assert [(row["src"], row["dst"]) for row in scored.rows] == [("3", "4"), ("4", "3")]
    assert {row["time"] for row in scored.rows} == {str(events()[-1][2])}
    assert [row["rank"] for row in recommended.rows] == ["1", "2", "3"]
    assert "3" not in {row["node"] for row in recommended.rows}
    assert sorted(vectors["node"].to_pylist()) == list(range(12))
    assert vectors["embedding"].type.list_size == 4


def test_edge_list_with_columns_in_another_order(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "edges", [(t, v, 1.0, u) for u, v, t in events()], mark=" ")
    works("train", data, "--src", "3", "--dst", "1", "--time", "0", *TINY, "--out", "run")
    plain = write_events(tmp_path / "plain.csv")
    works("train", plain, *TINY, "--out", "same")
    first, second = (json.loads(Path(run, "metrics.json").read_text()) for run in ("run", "same"))
    assert first["test"] == second["test"]


def test_text_ids_and_iso_dates_with_unusual_column_names(tmp_path: Path) -> None:
    """An unusual order, quotes where needed, ids with commas and umlauts: all of it comes back as written."""
    people = ["Müller, Anna", "007", "7", "O'Neill", 'Bo "the bee"', "x y"]
    start = datetime(2024, 2, 28, 22, 30)
    rows = [
        (f"{(start + timedelta(hours=k)).isoformat()}Z", _quoted(people[k % 6]), "ok", _quoted(people[(k * k + 1) % 6]))
        for k in range(120)
    ]
    data = write_rows(tmp_path / "log.csv", rows, header=("When?", "to whom", "state", "said by"))
    columns = ["--src", "said by", "--dst", "to whom", "--time", "When?"]
    pairs = write_rows(
        tmp_path / "pairs.csv",
        [("2024-03-02T10:00:00Z", _quoted(people[0]), "007"), ("2024-03-02", "7", "nobody")],
        header=("When?", "said by", "to whom"),
    )
    scored, recommended, vectors = run_every_command(data, *columns, pairs=pairs, source="007")
    assert [row["src"] for row in scored.rows] == ["Müller, Anna", "7"]
    assert [row["dst"] for row in scored.rows] == ["007", "nobody"]
    assert [row["time"] for row in scored.rows] == ["2024-03-02T10:00:00Z", "2024-03-02T00:00:00Z"]
    assert "no history" in scored.rows[1]["note"]
    assert {row["src"] for row in recommended.rows} == {"007"}
    assert {row["node"] for row in recommended.rows} <= set(people) - {"007"}
    assert set(vectors["node"].to_pylist()) == set(people)
    assert set(vectors["time"].to_pylist()) == {"2024-03-04T21:30:00Z"}


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"') else text


def test_parquet_file(tmp_path: Path) -> None:
    """Typed columns: timestamps, text ids, a list of features."""
    rows = events()
    when = [datetime(2021, 5, 1) + timedelta(seconds=t) for _, _, t in rows]
    table = pa.table(
        {
            "features": pa.array([[k % 3, 0.5] for k in range(len(rows))], pa.list_(pa.float32(), 2)),
            "at": pa.array(when, pa.timestamp("ms")),
            "receiver": [f"u{v}" for _, v, _ in rows],
            "sender": [f"u{u}" for u, _, _ in rows],
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    pq.write_table(table.slice(150).drop_columns(["features"]), tmp_path / "pairs.parquet")
    scored, recommended, _ = run_every_command(
        tmp_path / "log.parquet", "--time", "at", pairs=tmp_path / "pairs.parquet", source="u3"
    )
    assert len(scored.rows) == 10
    assert scored.rows[0]["time"].startswith("2021-05-01T00:")
    assert all(row["node"].startswith("u") for row in recommended.rows)


@pytest.mark.parametrize(
    ("name", "mark", "packed"), [("d.csv.gz", ",", True), ("d.tsv", "\t", False), ("d", ";", False)]
)
def test_other_formats_of_the_same_file(tmp_path: Path, trained: Trained, name: str, mark: str, packed: bool) -> None:
    """Gzip, tabs and semicolons are detected by content, and give the same metrics."""
    data = write_rows(tmp_path / name, events(), header=("src", "dst", "time"), mark=mark)
    if packed:
        data.write_bytes(gzip.compress(data.read_bytes()))
    works("train", data, *TINY, "--out", "run")
    first, second = (json.loads((run / "metrics.json").read_text()) for run in (trained.run, Path("run")))
    assert first["test"] == second["test"]


def test_customers_and_products_whose_ids_overlap(shop: Trained, tmp_path: Path) -> None:
    """The same id is two nodes: a customer can be recommended the product of its own id."""
    pairs = write_rows(tmp_path / "pairs.csv", [("001", "001"), ("009", "007")], header=("who", "thing"))
    scored = works("predict", shop.run, "--pairs", pairs).rows
    assert [(row["src"], row["dst"]) for row in scored] == [("001", "001"), ("009", "007")]
    assert scored[0]["time"] == "2024-03-01T13:53:00Z"
    found = works("recommend", shop.run, "--source", "001", "--top", "20", "--json").json
    assert sorted(row["node"] for row in found) == [f"{k:03d}" for k in range(1, 8)]
    works("embed", shop.run, "--output", "all.csv")
    header, *lines = Path("all.csv").read_text().splitlines()
    assert header.startswith("node,side,time,embedding_0,")
    assert sorted(line.split(",")[1] for line in lines) == ["dst"] * 7 + ["src"] * 9


def test_users_and_items_get_separate_id_spaces(tmp_path: Path) -> None:
    rows = [(u, v, t) for u, v, t in events(120)]
    data = write_rows(tmp_path / "d.csv", rows, header=("user_id", "item_id", "timestamp"))
    result = works("train", data, *TINY, "--out", "run")
    assert "two id spaces" in result.err
    assert works("data", "describe", data, "--json").json["nodes"] == 24
    assert works("data", "describe", data, "--ids", "shared", "--json").json["nodes"] == 12


def test_features_of_events_and_nodes(tmp_path: Path) -> None:
    """Edge and node features change the predictions, and new nodes have features too."""
    rows = [(u, v, t, k % 5, 0.25) for k, (u, v, t) in enumerate(events())]
    data = write_rows(tmp_path / "d.csv", rows, header=("src", "dst", "time", "amount", "weight"))
    nodes = write_rows(tmp_path / "n.csv", [(k, k / 10, 1 - k % 2) for k in range(12)], header=("id", "age", "kind"))
    result = works("train", data, "--features", "amount,weight", "--node-features", nodes, *TINY, "--out", "run")
    assert "2 features per event" in result.err
    assert "2 features per node" in result.err
    pairs = write_rows(tmp_path / "p.csv", [(3, 4), (20, 4)], header=("src", "dst"))
    before = works("predict", "run", "--pairs", pairs).rows
    assert "no history" in before[1]["note"]
    last = rows[-1][2]
    new = write_rows(tmp_path / "new.csv", [(20, 4, last + 5, 1, 1)], header=("src", "dst", "time", "amount", "weight"))
    for k, kind in enumerate((0, 5)):
        write_rows(tmp_path / f"n{k}.csv", [(20, 3, kind)], header=("id", "age", "kind"))
    after = [
        works("predict", "run", "--pairs", pairs, "--events", new, "--node-features", tmp_path / f"n{k}.csv").rows
        for k in range(2)
    ]
    assert "not in training" in after[0][1]["note"]
    assert after[0][1]["score"] != before[1]["score"]
    assert after[0][1]["score"] != after[1][1]["score"]
    works("recommend", "run", "--source", "20", "--events", new)
    works("embed", "run", "--output", "v.parquet", "--events", new)
    assert pq.read_table("v.parquet").num_rows == 13


def test_ml_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``$CORDGT_DATA/NAME/ml_NAME.csv`` with both arrays, by name."""
    folder = tmp_path / "data" / "mine"
    folder.mkdir(parents=True)
    rows = [(k, u + 1, v + 1, float(t), 0, k + 1) for k, (u, v, t) in enumerate(events())]
    write_rows(folder / "ml_mine.csv", rows, header=("", "u", "i", "ts", "label", "idx"))
    draw = np.random.default_rng(0)
    np.save(folder / "ml_mine.npy", draw.normal(size=(161, 3)))
    np.save(folder / "ml_mine_node.npy", draw.normal(size=(13, 2)))
    monkeypatch.setenv("CORDGT_DATA", str(tmp_path / "data"))
    result = works("train", "mine", *TINY)
    assert "3 features per event" in result.err
    assert "2 features per node" in result.err
    assert Path("runs/mine-cordgt-seed0/metrics.json").exists()
    found = [row["name"] for row in works("data", "list", "--json").json if row["found"]]
    assert [name for name in found if not name.endswith("-twin")] == ["mine"]
    works("recommend", "runs/mine-cordgt-seed0", "--source", "3")


def test_jodie_layout(tmp_path: Path) -> None:
    lines = ["user_id,item_id,timestamp,state_label,comma_separated_list_of_features"]
    lines += [f"{u},{v},{t}.0,0,0.1,{k % 3},-1" for k, (u, v, t) in enumerate(events())]
    (tmp_path / "wiki.csv").write_text("\n".join(lines) + "\n")
    result = works("train", "wiki.csv", *TINY, "--out", "run")
    assert "3 features per event" in result.err
    assert "two id spaces" in result.err
    works("recommend", "run", "--source", "3")


def test_convert_gives_the_same_stream(shop: Trained) -> None:
    works("data", "convert", shop.data, "out.parquet", *SHOP_COLUMNS, "--ids", "separate")
    works("data", "convert", shop.data, "out.csv", *SHOP_COLUMNS, "--ids", "separate")
    described = works("data", "describe", shop.data, *SHOP_COLUMNS, "--ids", "separate", "--json").json
    for name in ("out.parquet", "out.csv"):
        again = works("data", "describe", name, "--ids", "separate", "--json").json
        different = {key for key in described if described[key] != again[key]}
        assert different == {"name", "notes"}


def test_column_options_of_training_apply_to_queries(shop: Trained, tmp_path: Path) -> None:
    """New events, pairs, sources and nodes in the same layout need no options."""
    later = write_rows(tmp_path / "later.csv", shop_rows(9, 120), header=SHOP_HEADER)
    result = works("recommend", shop.run, "--source", "001", "--events", later, "--json")
    assert "9 events appended" in result.err
    same = works("recommend", shop.run, "--source", "001", "--events", later, *SHOP_COLUMNS, "--json")
    assert same.json == result.json
    pairs = write_rows(tmp_path / "pairs.csv", [("003", "x", "004")], header=("thing", "remark", "who"))
    row = works("predict", shop.run, "--pairs", pairs).rows[0]
    assert (row["src"], row["dst"]) == ("004", "003")
    sources = write_rows(tmp_path / "s.csv", [("x", "004"), ("y", "005")], header=("remark", "who"))
    assert {r["src"] for r in works("recommend", shop.run, "--sources", sources).rows} == {"004", "005"}


def test_queries_with_other_columns_than_training(shop: Trained, tmp_path: Path) -> None:
    """Usual names are still recognized, options still win, and positions are never read as names."""
    rows = [(who, thing, date, price) for date, thing, price, who in shop_rows(5, 120)]
    usual = write_rows(tmp_path / "usual.csv", rows, header=("user", "item", "time", "feature_0"))
    first = works("recommend", shop.run, "--source", "001", "--events", usual, "--json")
    odd = write_rows(tmp_path / "odd.csv", rows, header=("a", "b", "c", "d"))
    named = ["--src", "a", "--dst", "b", "--time", "c", "--features", "d"]
    assert works("recommend", shop.run, "--source", "001", "--events", odd, *named, "--json").json == first.json
    partly = write_rows(tmp_path / "partly.csv", rows, header=("a", "thing", "bought on", "price"))
    assert (
        works("recommend", shop.run, "--source", "001", "--events", partly, "--src", "a", "--json").json == first.json
    )


def test_positions_of_training_apply_to_files_without_a_header(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "d.txt", [(t, v, u) for u, v, t in events()], mark=" ")
    works("train", data, "--src", "2", "--dst", "1", "--time", "0", *TINY, "--out", "run")
    last = events()[-1][2]
    bare = write_rows(tmp_path / "bare.txt", [(last + 1, 4, 30), (last + 2, 5, 30)], mark=" ")
    named = write_rows(tmp_path / "named.csv", [(30, 4, last + 1), (30, 5, last + 2)], header=("src", "dst", "time"))
    answers = [works("recommend", "run", "--source", "30", "--events", file, "--json").json for file in (bare, named)]
    assert answers[0] == answers[1]
    assert {row["src_note"] for row in answers[0]} == {"not in training"}


def test_column_options_may_apply_to_the_events_only(shop: Trained, tmp_path: Path) -> None:
    rows = [(who, thing, date, price) for date, thing, price, who in shop_rows(5, 120)]
    odd = write_rows(tmp_path / "odd.csv", rows, header=("a", "b", "c", "d"))
    named = ["--src", "a", "--dst", "b", "--time", "c", "--features", "d"]
    pairs = write_rows(tmp_path / "pairs.csv", [("001", "002")], header=("src", "dst"))
    both = write_rows(tmp_path / "both.csv", [("002", "001")], header=("b", "a"))
    answers = [works("predict", shop.run, "--pairs", p, "--events", odd, *named).out for p in (pairs, both)]
    assert answers[0] == answers[1]


# -------------------- published layouts without a header

START = 1_396_640_000
FOUR_COLUMNS = {
    "KONECT": ("% sym weighted\n", " ", (0, 1, 2, 3)),
    "Network Repository": ("", ",", (0, 1, 2, 3)),
    "SNAP signed": ("", ",", (0, 1, 2, 3)),
    "MovieLens u.data": ("", "\t", (0, 1, 2, 3)),
    "MovieLens ratings.dat": ("", "::", (0, 1, 2, 3)),
    "SocioPatterns": ("", "\t", (3, 0, 1)),
}


def write_layout(path: Path, layout: str) -> Path:
    comment, mark, order = FOUR_COLUMNS[layout]
    rows = [(u, v, k * 7 % 5 + 1, START + 60 * t) for k, (u, v, t) in enumerate(events())]
    path.write_text(comment + "".join(mark.join(str(row[k]) for k in order) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("layout", FOUR_COLUMNS)
def test_describe_finds_the_time(tmp_path: Path, layout: str) -> None:
    data = write_layout(tmp_path / "list.txt", layout)
    facts = works("data", "describe", data, "--json").json
    first, last = (START + 60 * events()[k][2] for k in (0, -1))
    assert (facts["first_time"], facts["last_time"], facts["span_unit"]) == (first, last, "seconds")
    column = FOUR_COLUMNS[layout][2].index(3)
    assert any(f"column {column} (counted from 0) is the time because" in note for note in facts["notes"])
    shown = works("data", "describe", data).out
    assert f"{first} ({datetime.fromtimestamp(first, UTC):%Y-%m-%d %H:%M} UTC)" in shown


def test_train_says_which_column_is_the_time(tmp_path: Path) -> None:
    data = write_layout(tmp_path / "list.txt", "KONECT")
    result = works("train", data, *TINY, "--out", "run")
    flat = " ".join(result.err.split())
    assert "times from column 3" in flat
    assert "is the time because its values are seconds since 1970, 2014-04-0" in flat
    recommended = works("recommend", "run", "--source", "3", "--top", "2")
    assert "time of the query:" in recommended.err and "(2014-04-0" in recommended.err
    late = START + 60 * events()[-1][2] + 3600
    pairs = write_rows(tmp_path / "pairs.csv", [(3, 4, late), (4, 3, late + 86400)], header=("src", "dst", "time"))
    scored = works("predict", "run", "--pairs", pairs)
    assert [row["time"] for row in scored.rows] == [str(late), str(late + 86400)]
    assert (
        "times of the queries:" in scored.err
        and f"({datetime.fromtimestamp(late, UTC):%Y-%m-%d %H:%M} UTC)" in " ".join(scored.err.split())
    )
    later = tmp_path / "later.txt"
    later.write_text(f"3 9 1 {late}\n")
    assert "1 events appended" in works("recommend", "run", "--source", "3", "--events", later).err


def test_relative_times_beside_a_weight_are_asked_for(tmp_path: Path) -> None:
    rows = [(u, v, (7 * t) % 91, (31 * t) % 997) for u, v, t in events()]
    data = write_rows(tmp_path / "list.txt", rows, mark=" ")
    for command in (("train", data, *TINY), ("data", "describe", data), ("data", "convert", data, "s.store")):
        result = call(*command)
        assert result.code == 2
        assert "it is not clear which column is the time" in " ".join(result.err.split())
        assert "--time 3" in result.err
    assert works("data", "describe", data, "--time", "3", "--json").json["events"] == len(rows)


def test_a_weight_as_time_is_not_cured_by_more_events(tmp_path: Path) -> None:
    rows = [(u, v, k % 5 + 1, t) for k, (u, v, t) in enumerate(events())]
    data = write_rows(tmp_path / "ratings.csv", rows, header=("src", "dst", "rating", "when"))
    result = call("train", data, "--time", "rating", *TINY)
    text = " ".join(result.err.split())
    assert result.code == 2
    assert "Too few different times to split: 160 events at 5 times" in text
    assert "name another with --time" in text
    assert "more events" not in text


def test_options_for_formats_archives_and_bad_rows(tmp_path: Path) -> None:
    start = datetime(2024, 3, 1, 8)
    lines = ["who;whom;at;amount"]
    lines += [f"{u};{v};{start + timedelta(minutes=t):%d.%m.%Y %H:%M};{t},5" for u, v, t in events()]
    lines[20:20] = ["broken line", "1;2;yesterday;0,5"]
    with zipfile.ZipFile(tmp_path / "log.zip", "w") as archive:
        archive.writestr("log/march.csv", "\n".join(lines) + "\n")
        archive.writestr("log/README", "hello\n")
    columns = ["--src", "who", "--dst", "whom", "--time", "at", "--features", "amount"]
    asked = call("data", "describe", "log.zip", *columns)
    assert asked.code == 2 and "--member log/march.csv" in asked.err
    columns += ["--member", "march.csv"]
    assert "line 21" in call("data", "describe", "log.zip", *columns).err
    columns += ["--skip-bad-rows", "--time-format", "%d.%m.%Y %H:%M"]
    facts = works("data", "describe", "log.zip", *columns, "--json").json
    assert (facts["events"], facts["times"]) == (160, "date")
    assert any(
        note.startswith("2 bad rows skipped (--skip-bad-rows): line 21: found 1 fields") for note in facts["notes"]
    )
    works("train", "log.zip", *columns, *TINY, "--out", "run")
    works("data", "convert", "log.zip", "log.store", *columns)
    assert works("data", "describe", "log.store", "--json").json["last_time"] == facts["last_time"]
    Path("later.csv").write_text(
        "who;whom;at;amount\n1;2;02.03.2024 08:00;1,5\n1;2;never;1,5\n1;3;02.03.2024 09:00;2,5\n"
    )
    appended = works("data", "append", "log.store", "later.csv", "--skip-bad-rows")
    assert "1 bad row skipped" in appended.err and "added 2 events" in appended.err
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("who;whom;at\n1;2;03.03.2024 08:00\n")
    assert works("predict", "run", "--pairs", pairs).rows[0]["time"] == "2024-03-03T08:00:00Z"
    recommended = works("recommend", "run", "--source", "1", "--events", "later.csv", "--skip-bad-rows", "--json")
    assert "2 events appended" in recommended.err and "1 bad row skipped" in recommended.err
