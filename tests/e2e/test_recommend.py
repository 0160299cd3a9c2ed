"""`cordgt recommend` in two stages, with filters, and `cordgt bench recommend`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from .helpers import TINY, fails, works, write_rows

BENCH_MODEL = [f"--set={k}" for k in ("fanout=2,1", "hidden=8", "heads=2", "layers=1", "td_dim=8", "sd_dim=8")]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on purchases of 100 items."""
    folder = tmp_path_factory.mktemp("shop")
    random = np.random.default_rng(0)
    items = [f"item {i}" for i in [*range(100), *random.integers(0, 100, 500)]]
    rows = [(f"user {u}", item, t) for t, (u, item) in enumerate(zip(random.integers(0, 30, 600), items, strict=True))]
    data = write_rows(folder / "shop.csv", rows, header=("user", "item", "time"))
    works("train", data, "--out", folder / "run", "--device", "cpu", *TINY)
    return folder / "run"


def test_json_says_how_many_candidates_each_stage_saw(shop: Path) -> None:
    fast = works("recommend", shop, "--source", "user 3", "--budget", 64, "--json")
    assert (shop / "first_scorer.safetensors").exists()  # so that the next question is fast
    assert [row["candidates"] for row in fast.json] == [{"destinations": 100, "scored_first": 100, "ranked": 64}] * 10
    assert "candidates: 100, 100 scored first, 64 ranked by the model" in fast.err
    small = works("recommend", shop, "--source", "user 3", "--budget", 20, "--json").json
    assert small[0]["candidates"]["ranked"] == 20
    exact = works("recommend", shop, "--source", "user 3", "--exhaustive", "--json")
    assert exact.json[0]["candidates"] == {"destinations": 100, "scored_first": 0, "ranked": 100}
    assert len({row["node"] for row in exact.json} & {row["node"] for row in fast.json}) >= 8
    fails("recommend", shop, "--source", "user 3", "--budget", 5, containing="too small for 10 answers")


def test_filters(tmp_path: Path, shop: Path) -> None:
    plain = [row["node"] for row in works("recommend", shop, "--source", "user 3").rows]
    out = write_rows(tmp_path / "out.csv", [(node,) for node in plain[:3]], header=("item",))
    found = works("recommend", shop, "--source", "user 3", "--exclude", out, "--exclude-id", plain[3]).rows
    assert len(found) == 10 and not {row["node"] for row in found} & set(plain[:4])
    nothing = write_rows(tmp_path / "nothing.csv", [], header=("item",))
    assert [row["node"] for row in works("recommend", shop, "--source", "user 3", "--exclude", nothing).rows] == plain
    groups = write_rows(tmp_path / "g.csv", [(f"item {i}", f"c{i % 11}") for i in range(100)], header=("item", "group"))
    grouped = works("recommend", shop, "--source", "user 3", "--groups", groups, "--per-group", 1, "--new-only").rows
    assert len(grouped) == 10 and {row["met"] for row in grouped} == {"0"}
    assert len({int(row["node"].split()[1]) % 11 for row in grouped}) == 10
    second = write_rows(tmp_path / "h.csv", [(f"item {i}", f"c{i % 4}") for i in range(100)], header=("item", "kind"))
    assert len(works("recommend", shop, "--source", "user 3", "--groups", second, "--per-group", 2).rows) == 8
    rows = [(f"c{i % 4}", f"item {i}") for i in range(100)]
    third = write_rows(tmp_path / "i.csv", rows, header=("Group", "number"))  # no usual name of the ids
    assert len(works("recommend", shop, "--source", "user 3", "--groups", third, "--per-group", 2).rows) == 8


def test_mistakes(tmp_path: Path, shop: Path) -> None:
    fails("recommend", shop, "--source", "user 3", "--per-group", 1, containing="--per-group N and --groups FILE")
    one = write_rows(tmp_path / "o.csv", [("item 1",), ("item 2",)], header=("item",))
    fails("recommend", shop, "--source", "user 3", "--per-group", 1, "--groups", one, containing="a column 'group'")
    alone = write_rows(tmp_path / "a.csv", [("a",), ("b",)], header=("group",))
    fails("recommend", shop, "--source", "user 3", "--per-group", 1, "--groups", alone, containing="need two columns")
    twice = write_rows(tmp_path / "g.csv", [("item 1", "a"), ("item 1", "b")], header=("item", "group"))
    fails("recommend", shop, "--source", "user 3", "--per-group", 1, "--groups", twice, containing="'item 1' is in the")
    fails("recommend", shop, "--source", "user 3", "--exhaustive", "--budget", 70, containing="Give one of the two")
    fails("bench", "step", "--candidates", 100, containing="--candidates is for `cordgt bench recommend`")
    fails("bench", "recommend", "--questions", 3, containing="--candidates N or --run RUN")


@pytest.mark.parametrize("model", ["counts", "cordgt_plus"])
def test_bench_compares_two_stages_with_all(tmp_path: Path, model: str) -> None:
    file = tmp_path / "bench.json"
    sizes = BENCH_MODEL if model == "cordgt_plus" else []
    works(
        "bench", "recommend", "--candidates", 120, "--model", model, *sizes, "--questions", 12, "--budget", 64,
        "--quick", "--device", "cpu", "--json", file,
    )  # fmt: skip
    found = json.loads(file.read_text())
    assert found["destinations"] == 120 and found["events"] == 2400
    assert found["two_stage_ms"] > 0 and found["exhaustive_ms"] > 0 and not found["exhaustive_is_estimate"]
    assert found["recall_at_10"] == 1.0 if model == "counts" else found["recall_at_10"] > 0.6
    assert abs(found["two_stage_mrr"] - found["exhaustive_mrr"]) < 0.2
    assert found["candidates"]["ranked"] == (120 if model == "counts" else 64)


def test_bench_of_a_run(shop: Path) -> None:
    found = works("bench", "recommend", "--run", shop, "--questions", 5, "--json").json
    assert found["model"] == "cordgt" and found["questions"] == 5 and found["recall_at_10"] > 0.6
