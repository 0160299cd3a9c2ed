"""Queries on the command line: predict, recommend, embed; visible events, unknown nodes, and output formats."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from cordgt import Run, files
from cordgt.cli import console
from cordgt.io import open_table
from cordgt.tasks.link import LinkTask
from cordgt.tasks.metrics import link_metrics

from .conftest import SHOP_COLUMNS, SHOP_HEADER, Trained, shop_rows
from .helpers import TINY, CommandResult, call, events, fails, process, works, write_events, write_rows

LAST = events()[-1][2]


def pairs_file(path: Path, *rows: tuple[Any, ...]) -> Path:
    return write_rows(path, rows, header=("src", "dst", "time")[: len(rows[0])])


# -------------------- predict


@pytest.mark.parametrize("setting", ["transductive", "inductive"])
def test_predict_on_test_queries_gives_what_evaluate_gave(tmp_path: Path, trained: Trained, setting: str) -> None:
    run = Run.load(trained.run)
    task = LinkTask.prepare(run.stream, run.settings.protocol, seed=0, device=torch.device("cpu"))
    positions, queries = task.evaluation_queries("test", setting)
    ids = np.asarray(run.stream.ids.names)
    scores = []
    for candidate in range(2):
        rows = zip(ids[queries.src], ids[queries.dst[:, candidate]], run.stream.t[positions], strict=True)
        pairs = pairs_file(tmp_path / f"{candidate}.csv", *rows)
        scores.append(np.array([float(row["score"]) for row in works("predict", trained.run, "--pairs", pairs).rows]))
    assert all(((score > 0) & (score < 1)).all() for score in scores)
    metrics = link_metrics(*scores, run.settings.protocol.eval_batch_size)
    evaluated = works("evaluate", trained.run, "--json").json["test"][setting]
    assert metrics["events"] == evaluated["events"]
    for name in ("ap", "auc", "ap_batch", "auc_batch"):
        assert metrics[name] == pytest.approx(evaluated[name], abs=1e-4)


def test_without_a_time_the_whole_history_is_visible(tmp_path: Path, trained: Trained) -> None:
    """More than at the last event's time, which does not see events of that time; the same as later."""
    now, then, later = (
        works("predict", trained.run, "--pairs", pairs_file(tmp_path / f"{k}.csv", row)).rows[0]
        for k, row in enumerate([(*events()[-1][:2],), events()[-1], (*events()[-1][:2], LAST + 1)])
    )
    assert int(now["time"]) == LAST
    assert now["score"] != then["score"]
    with_events = [works("recommend", trained.run, "--source", "3", *at, "--json").json for at in ([], ["--at", LAST])]
    assert with_events[0] != with_events[1]
    assert int(later["time"]) == LAST + 1


def test_scores_of_a_ranking_model_have_a_note(tmp_path: Path, trained: Trained) -> None:
    data = write_events(tmp_path / "events.csv")
    small = [f"--set={key}" for key in ("epochs=1", "hidden=8", "heads=1", "layers=1", "time_dim=8")]
    works("train", data, "--model", "tgsrec", "--out", tmp_path / "run", *small)
    pairs = pairs_file(tmp_path / "pairs.csv", (3, 4, LAST))
    assert "compare scores of one source" in works("predict", tmp_path / "run", "--pairs", pairs).err
    assert "compare scores" not in works("predict", trained.run, "--pairs", pairs).err


def test_pairs_keep_their_order_and_ids(tmp_path: Path, trained: Trained) -> None:
    rows = [(3, 4, LAST), (3, 3, LAST - 50), (99, 4, LAST + 10**6), (3, 98, LAST), (99, 98, LAST)]
    found = works("predict", trained.run, "--pairs", pairs_file(tmp_path / "p.csv", *rows)).rows
    assert list(found[0]) == ["src", "dst", "time", "score", "note"]
    assert [(int(r["src"]), int(r["dst"]), int(r["time"])) for r in found] == rows
    notes = [r["note"] for r in found]
    assert notes[2] == "src: no history"
    assert notes[3] == "dst: no history"
    assert notes[4] == "src: no history; dst: no history"


def test_a_single_pair_needs_no_file(tmp_path: Path, trained: Trained) -> None:
    pairs = pairs_file(tmp_path / "pairs.csv", ("3", "5", LAST))
    from_file = works("predict", trained.run, "--pairs", pairs, "--json").json
    single = ["--source", "3", "--destination", "5"]
    assert works("predict", trained.run, *single, "--at", LAST, "--json").json == from_file
    assert "no file was given" in call("predict", trained.run, *single, "--src", "who").err
    for wrong in (["--source", "3"], ["--pairs", pairs, "--source", "3", "--destination", "5"], []):
        assert "either --pairs FILE, or --source ID and --destination ID" in call("predict", trained.run, *wrong).err
    fails("predict", trained.run, "--pairs", pairs, "--at", LAST, containing="has its own times")
    timeless = pairs_file(tmp_path / "timeless.csv", ("3", "5"))
    assert works("predict", trained.run, "--pairs", timeless, "--at", LAST, "--json").json == from_file


def test_not_in_training_is_explained_once(tmp_path: Path, trained: Trained) -> None:
    run = Run.load(trained.run)
    masked = next(n for n in range(run.stream.n_nodes) if run.predictor.notes(np.array([n]), np.array([10**6]))[0])
    name = run.stream.ids.names[masked].as_py()
    result = works("predict", trained.run, "--pairs", pairs_file(tmp_path / "p.csv", (name, "5"), (name, "6")))
    assert result.err.count("--refit") == 1
    assert "--refit" in works("recommend", trained.run, "--source", str(name)).err


def test_an_unknown_id_is_one_node_on_both_sides(tmp_path: Path, trained: Trained, shop: Trained) -> None:
    """With shared ids an unknown id paired with itself is one node; with separate ids it is two."""
    for run, alike in ((trained.run, False), (shop.run, True)):
        pairs = pairs_file(tmp_path / "p.csv", ("zed", "zed"), ("zed", "yak"), ("x", "yak"))
        scores = [row["score"] for row in works("predict", run, "--pairs", pairs).rows]
        assert (scores[0] == scores[1]) == alike
        assert scores[1] == scores[2]


# -------------------- later events


def test_new_events_are_appended_before_the_query(tmp_path: Path, trained: Trained) -> None:
    new = write_events(tmp_path / "new.csv", [(50, 4, LAST + 5), (50, 5, LAST + 6), (3, 50, LAST + 7)])
    result = works(
        "predict", trained.run, "--pairs", pairs_file(tmp_path / "p.csv", (50, 4), (50, 60)), "--events", new
    )
    assert "3 events appended" in result.err
    assert [row["note"] for row in result.rows] == ["src: not in training", "src: not in training; dst: no history"]
    assert {row["time"] for row in result.rows} == {str(LAST + 7)}
    found = works("recommend", trained.run, "--source", "3", "--events", new, "--top", "20", "--json").json
    (newcomer,) = [row for row in found if row["node"] == 50]
    assert newcomer["met"] == 1
    assert newcomer["note"] == "not in training"
    early = works(
        "recommend", trained.run, "--source", "3", "--events", new, "--at", LAST + 6, "--top", "20", "--json"
    ).json
    assert 50 not in {row["node"] for row in early}
    works("embed", trained.run, "--output", "v.parquet", "--events", new)
    assert pq.read_table("v.parquet")["node"].to_pylist()[-1] == 50


def test_new_events_in_any_order_and_at_the_last_moment(tmp_path: Path, trained: Trained) -> None:
    one = write_events(tmp_path / "one.csv", [(50, 4, LAST + 5), (50, 5, LAST)])
    two = write_events(tmp_path / "two.csv", [(50, 5, LAST), (50, 4, LAST + 5)])
    answers = [works("recommend", trained.run, "--source", "50", "--events", new, "--json").json for new in (one, two)]
    assert answers[0] == answers[1]


QUERIES: dict[str, tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = {
    "predict": ("--pairs", ("thing", "who"), [("002", "001"), ("003", "zed")]),
    "recommend": ("--sources", ("age", "who"), [("31", "001"), ("40", "zed")]),
    "embed": ("--nodes", ("side", "who"), [("src", "001"), ("dst", "002")]),
}


@pytest.mark.parametrize("command", QUERIES)
def test_files_are_read_once_and_may_be_pipes(
    tmp_path: Path, shop: Trained, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Queries and events both have the columns of the training, found by name."""
    option, header, rows = QUERIES[command]
    queries = write_rows(tmp_path / "queries.csv", rows, header=header)
    later = write_rows(tmp_path / "later.csv", shop_rows(5, 120), header=SHOP_HEADER)
    reads: Counter[str] = Counter()

    def read_bytes(path: Path) -> bytes:
        reads[path.name] += 1
        return files.read_bytes(path)

    monkeypatch.setattr(open_table, "read_bytes", read_bytes)

    def answer(queries: Path, later: Path) -> Any:
        result = works(command, shop.run, option, queries, "--events", later, "--output", "answer.json")
        assert "5 events appended" in result.err
        return json.loads(Path("answer.json").read_text())

    expected = answer(queries, later)
    assert {row.get("src", row.get("node")) for row in expected} == {row[-1] for row in rows}
    assert reads == {"queries.csv": 1, "later.csv": 1}
    assert answer(fed_pipe(queries), fed_pipe(later)) == expected


def fed_pipe(file: Path) -> Path:
    """Return a named pipe that gives the content of a file, once."""
    pipe = file.with_suffix(".pipe")
    os.mkfifo(pipe)
    Thread(target=pipe.write_bytes, args=(file.read_bytes(),), daemon=True).start()
    return pipe


def test_events_from_standard_input(tmp_path: Path, trained: Trained) -> None:
    new = write_events(tmp_path / "new.csv", [(50, 4, LAST + 5)])
    pairs = pairs_file(tmp_path / "p.csv", (50, 4))
    whole = works("predict", trained.run, "--pairs", pairs, "--events", new).out
    child = process("predict", trained.run, "--pairs", pairs, "--events", "/dev/stdin", stdin=new.open())
    assert child.communicate()[0] == whole


def test_events_from_a_store(tmp_path: Path, shop: Trained) -> None:
    """The columns of the training do not apply to a store."""
    later = write_rows(tmp_path / "later.csv", shop_rows(5, 120), header=SHOP_HEADER)
    works("data", "convert", later, "later.store", *SHOP_COLUMNS, "--ids", "separate")
    pair = ["--source", "001", "--destination", "002", "--json"]
    expected = works("predict", shop.run, *pair, "--events", later).json
    assert works("predict", shop.run, *pair, "--events", "later.store").json == expected


# -------------------- recommend


def test_partners_are_destinations_and_never_the_source(trained: Trained) -> None:
    found = works("recommend", trained.run, "--source", "3", "--top", "100", "--json").json
    assert [row["rank"] for row in found] == list(range(1, 12))
    assert {row["node"] for row in found} == set(range(12)) - {3}
    scores = [row["score"] for row in found]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    assert {row["src"] for row in found} == {3}
    times = [{v for u, v, _ in events() if u == 3}, {u for u, v, _ in events() if v == 3}]
    assert {row["node"] for row in found if row["met"]} == (times[0] | times[1]) - {3}


def test_only_new_partners(trained: Trained) -> None:
    found = works("recommend", trained.run, "--source", "3", "--new-only", "--json").json
    everyone = works("recommend", trained.run, "--source", "3", "--top", "100", "--json").json
    assert [row["node"] for row in found] == [row["node"] for row in everyone if not row["met"]]
    assert {row["met"] for row in found} == {0}


def test_an_unknown_source_gets_recommendations_and_a_note(trained: Trained) -> None:
    result = works("recommend", trained.run, "--source", "zed", "--top", "2", "--json")
    assert "zed: no history" in result.err
    assert {(row["src"], row["src_note"]) for row in result.json} == {("zed", "no history")}


def test_a_destination_given_as_a_source(tmp_path: Path) -> None:
    data = write_rows(
        tmp_path / "d.csv", [(f"u{u}", f"i{v}", t) for u, v, t in events()], header=("user", "item", "time")
    )
    works("train", data, *TINY, "--out", "run")
    result = works("recommend", "run", "--source", "i3")
    assert "i3: no history as a source; it is a destination" in result.err


def test_no_partner_to_recommend_yet(trained: Trained) -> None:
    """At the first event's time no event is visible."""
    result = works("recommend", trained.run, "--source", "3", "--at", events()[0][2], "--json")
    assert result.json == []
    assert "no partner" in result.err
    assert works("recommend", trained.run, "--source", "3", "--at", events()[0][2]).rows == []


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".json"])
def test_many_sources_into_a_file(tmp_path: Path, trained: Trained, ending: str) -> None:
    sources = write_rows(tmp_path / "s.csv", [(3,), (5,), (99,)], header=("id",))
    output = tmp_path / f"out{ending}"
    result = works("recommend", trained.run, "--sources", sources, "--top", "2", "--output", output)
    assert result.out == ""
    assert "6 rows written" in result.err
    rows = _read(output)
    assert [int(row["src"]) for row in rows] == [3, 3, 5, 5, 99, 99]
    alone = works("recommend", trained.run, "--source", "5", "--top", "2", "--json").json
    assert [int(row["node"]) for row in rows[2:4]] == [row["node"] for row in alone]
    assert [float(row["score"]) for row in rows[2:4]] == pytest.approx([row["score"] for row in alone], abs=1e-6)
    assert rows[5]["src_note"] == "no history"


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".json":
        return json.loads(path.read_text())
    with path.open() as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def test_several_sources_and_candidates(tmp_path: Path, trained: Trained) -> None:
    """Options may be repeated, or name a file; the answers are those of single calls."""
    both = works("recommend", trained.run, "--source", "3", "--source", "5", "--top", "2", "--json").json
    assert [row["src"] for row in both] == [3, 3, 5, 5]
    for source, rows in ((3, both[:2]), (5, both[2:])):
        alone = works("recommend", trained.run, "--source", source, "--top", "2", "--json").json
        assert [row["node"] for row in rows] == [row["node"] for row in alone]
    file = write_rows(tmp_path / "c.csv", [(4,), (7,), (8,)], header=("id",))
    titled = write_rows(tmp_path / "titled.csv", [(4,), (7,), (8,)], header=("item",))
    assert works("recommend", trained.run, "--source", "3", "--candidates", titled).out == (
        works("recommend", trained.run, "--source", "3", "--candidates", file).out
    )
    chosen = works("recommend", trained.run, "--source", "3", "--candidates", file, "--json").json
    assert {row["node"] for row in chosen} == {4, 7, 8} and [row["rank"] for row in chosen] == [1, 2, 3]
    options = [f"--candidate={node}" for node in (4, 7, 8)]
    assert works("recommend", trained.run, "--source", "3", *options, "--json").json == chosen
    partly = works("recommend", trained.run, "--source", "3", *options, "--candidate", "zed", "--json")
    assert partly.json == chosen and "1 of 4 candidates are left out, because they have no event: 'zed'" in partly.err
    fails("recommend", trained.run, "--source", "3", "--candidate", "zed", containing="no node 'zed'")
    fails("recommend", trained.run, "--source", "3", *options, "--candidates", file, containing="either --candidate")


def test_sources_without_a_header(tmp_path: Path, trained: Trained) -> None:
    (tmp_path / "s.txt").write_text("3\n5\n")
    assert [r["src"] for r in works("recommend", trained.run, "--sources", "s.txt", "--top", "1").rows] == ["3", "5"]


# -------------------- embed


def test_embeddings_of_some_nodes(tmp_path: Path, trained: Trained) -> None:
    nodes = write_rows(tmp_path / "n.csv", [(5,), (99,), (3,)], header=("node",))
    works("embed", trained.run, "--output", "some.parquet", "--nodes", nodes)
    works("embed", trained.run, "--output", "all.parquet")
    some, everyone = (pq.read_table(name).to_pylist() for name in ("some.parquet", "all.parquet"))
    assert [row["node"] for row in some] == [5, 99, 3]
    assert [row["note"] for row in some][1] == "no history"
    by_node = {row["node"]: row["embedding"] for row in everyone}
    assert some[0]["embedding"] == pytest.approx(by_node[5], abs=1e-6)
    assert {row["time"] for row in everyone} == {LAST}
    works("embed", trained.run, "--output", "then.json", "--nodes", nodes, "--at", LAST - 100)
    then = json.loads(Path("then.json").read_text())
    assert {row["time"] for row in then} == {LAST - 100}
    assert then[0]["embedding"] != pytest.approx(by_node[5], abs=1e-6)


def test_embeddings_of_an_id_of_two_nodes(tmp_path: Path, shop: Trained) -> None:
    """A column ``side`` is needed only for an id of both sides."""
    works("embed", shop.run, "--output", "all.parquet")
    by_node = {(r["node"], r["side"]): r["embedding"] for r in pq.read_table("all.parquet").to_pylist()}
    nodes = write_rows(tmp_path / "n.csv", [("003", "dst"), ("003", "src"), ("zed", "dst")], header=("id", "side"))
    works("embed", shop.run, "--output", "two.parquet", "--nodes", nodes)
    two = pq.read_table("two.parquet").to_pylist()
    assert [(row["node"], row["side"]) for row in two] == [("003", "dst"), ("003", "src"), ("zed", "dst")]
    for row in two[:2]:
        assert row["embedding"] == pytest.approx(by_node[row["node"], row["side"]], abs=1e-6)
    nodes = write_rows(tmp_path / "m.csv", [("009",), ("zed",)], header=("who",))
    works("embed", shop.run, "--output", "one.parquet", "--nodes", nodes)
    one = pq.read_table("one.parquet").to_pylist()
    assert [(row["node"], row["side"], row["note"]) for row in one] == [("009", "src", ""), ("zed", None, "no history")]


def test_embeddings_of_ids_that_only_destinations_have(tmp_path: Path) -> None:
    rows = [(f"u{u}", f"i{v}", t) for u, v, t in events()]
    data = write_rows(tmp_path / "d.csv", rows, header=("user", "item", "time"))
    works("train", data, *TINY, "--out", "run")
    nodes = write_rows(tmp_path / "n.csv", [("i3",), ("u3",)], header=("id",))
    works("embed", "run", "--output", "v.csv", "--nodes", nodes)
    assert [(row["node"], row["side"]) for row in _read(Path("v.csv"))] == [("i3", "dst"), ("u3", "src")]


# -------------------- output formats


def questions(run: Path, data: Path, pairs: Path) -> dict[str, list[Any]]:
    """Every command that prints an answer."""
    return {
        "evaluate": ["evaluate", run],
        "predict": ["predict", run, "--pairs", pairs],
        "recommend": ["recommend", run, "--source", "3"],
        "train": ["train", data, *TINY, "--out", run, "--resume"],
        "describe": ["data", "describe", data],
        "list": ["data", "list"],
        "models": ["models"],
        "version": ["version"],
    }


@pytest.mark.parametrize("name", list(questions(Path(), Path(), Path())))
def test_json_of_every_answer(tmp_path: Path, trained: Trained, name: str) -> None:
    """Standard output has only the answer; a file has the same."""
    command = questions(trained.run, trained.data, pairs_file(tmp_path / "p.csv", (3, 4)))[name]
    printed = works(*command, "--json")
    dashed = works(*command, "--json", "-")
    result = works(*command, "--json", "answer.json")
    written = json.loads(Path("answer.json").read_text())
    assert printed.json == dashed.json == written
    assert written
    if name in ("predict", "recommend"):
        assert result.out == ""
    else:
        assert result.out.strip()


def test_json_before_the_argument(trained: Trained) -> None:
    """``--json`` takes the next word as its file only if it can be one."""
    assert works("evaluate", "--json", trained.run).json["model"] == "cordgt"
    assert works("data", "describe", "--json", trained.data).json["events"] == 160
    assert trained.data.read_text().startswith("src,dst,time")
    works("evaluate", "--json", "new.json", trained.run)
    works("evaluate", "--json", "new.json", trained.run)
    assert json.loads(Path("new.json").read_text())["model"] == "cordgt"


def test_notes_go_to_standard_error(trained: Trained) -> None:
    result = works("data", "describe", trained.data)
    assert "one id space" in result.out
    assert result.err == ""
    result = works("data", "convert", trained.data, "out.csv")
    assert "one id space" in result.err
    assert "out.csv: written" in result.err
    assert result.out == ""
    result = works("recommend", trained.run, "--source", "3")
    assert result.err == ""


def test_ids_that_look_like_csv_or_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are unchanged in CSV, in JSON and in the table."""
    names = ["a,b", 'say "x"', "#1", "[bold]x[/bold]", "1,000", "007", "7"]
    rows = [(_quoted(names[u % 7]), _quoted(names[v % 7]), t) for u, v, t in events()]
    data = write_rows(tmp_path / "d.csv", rows, header=("src", "dst", "time"))
    works("train", data, *TINY, "--out", "run")
    assert {row["node"] for row in works("recommend", "run", "--source", "7").rows} == set(names) - {"7"}
    assert {row["node"] for row in works("recommend", "run", "--source", "7", "--json").json} == set(names) - {"7"}
    works("recommend", "run", "--source", "#1", "--output", "answers.csv")
    assert {row["node"] for row in _read(Path("answers.csv"))} == set(names) - {"#1"}
    works("recommend", "run", "--sources", "answers.csv", "--top", "1", "--src", "node")
    monkeypatch.setattr(console, "is_piped", lambda: False)
    shown = works("recommend", "run", "--source", "7").out
    assert all(name in shown for name in set(names) - {"7"})


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def test_a_table_on_a_terminal(tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "is_piped", lambda: False)
    shown = works("recommend", trained.run, "--source", "3", "--top", "3").out
    assert "rank" in shown
    assert "src_note" not in shown
    rows = [(3, 4, 1234567 + k) for k in range(25)]
    result = works("predict", trained.run, "--pairs", pairs_file(tmp_path / "p.csv", *rows))
    assert "1234567" in result.out
    assert "5 more rows" in result.err
    assert max(map(len, result.out.splitlines())) <= 80


def test_evaluate_with_another_protocol(trained: Trained) -> None:
    own = works("evaluate", trained.run, "--json").json
    for visibility in ("event", "paper", "batch"):
        found = works("evaluate", trained.run, "--visibility", visibility, "--set", "batch_size=200", "--json").json
        assert found["protocol"]["visibility"] == visibility
        assert found["protocol"]["eval_batch_size"] == 200
        assert found["test"]["transductive"]["events"] == own["test"]["transductive"]["events"]
        if visibility == "event":
            assert found["test"]["transductive"]["ap"] == pytest.approx(own["test"]["transductive"]["ap"], abs=1e-4)
    other = works("evaluate", trained.run, "--set", "eval_seed=5", "--json").json
    assert other["test"]["transductive"]["ap"] != own["test"]["transductive"]["ap"]


def test_a_closed_pipe(trained: Trained) -> None:
    child = process("recommend", trained.run, "--source", "3")
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    assert "Traceback" not in child.stderr.read()
    child.wait(timeout=300)


def test_a_command_in_its_own_process(shop: Trained) -> None:
    """``python -m cordgt`` prints the answer and no warning of a library."""
    out, err = process("recommend", shop.run, "--source", "001", "--json").communicate(timeout=300)
    assert len(json.loads(out)) == 7
    assert err == ""


# -------------------- from Python


def test_python_gives_the_same_answers(tmp_path: Path, trained: Trained, shop: Trained) -> None:
    run = Run.load(trained.run)
    row = works("predict", trained.run, "--pairs", pairs_file(tmp_path / "p.csv", (3, 4, LAST))).rows[0]
    assert run.score(3, 4, LAST)[0] == pytest.approx(float(row["score"]))
    assert run.score([3, 5], 4).shape == (2,)
    found = works("recommend", trained.run, "--source", "3", "--json").json
    assert [r.node for r in run.recommend(3)] == [r["node"] for r in found]
    assert run.embed().shape == (12, 4)
    assert run.embed([3, "zed"], at=LAST).shape == (2, 4)
    assert Run.load(shop.run).embed(["003", "003"], sides=["src", "dst"]).shape == (2, 4)
    assert run.metrics["test"] == json.loads((trained.run / "metrics.json").read_text())["test"]


def test_python_uses_the_training_columns_too(tmp_path: Path, shop: Trained) -> None:
    later = write_rows(tmp_path / "later.csv", shop_rows(5, 120), header=SHOP_HEADER)
    assert Run.load(shop.run).with_events(later).stream.n_events == 125


# -------------------- the demo


def test_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a small size; `make demo` runs the real one."""
    from cordgt.cli import demo
    from cordgt.io.datasets import synthetic

    small: dict[str, Any] = {"fanout": (2, 1), "hidden": 4, "heads": 1, "layers": 1, "epochs": 1}
    make: Callable[..., Any] = synthetic.synthetic_stream
    monkeypatch.setattr(demo, "SMALL_SETTINGS", small)
    monkeypatch.setattr(demo, "synthetic_stream", lambda seed: make(nodes=40, events=400, seed=seed))
    result: CommandResult = works("demo")
    for words in ("oracle", "CorDGT", "pairs seen before", "will most likely interact", "runs/demo", "recommend"):
        assert words in result.out
    found = works("demo", "--json").json
    assert found["run"] == "runs/demo-2"
    assert found["ap"]["oracle"]["transductive"] > 0.5
    assert call("demo", "--out", "runs/demo").code == 2
