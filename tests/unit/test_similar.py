"""Similar nodes: hand-made answers, no leak from later events, sides, embeddings, mistakes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cordgt import DataError, EventStream, Run, SettingError, train
from cordgt.events.times import TimeAxis

NUMBERS = TimeAxis("number")
# customers a, b, c buy tea, milk and nails; then, much later, nails and tea are bought together
EVENTS = [("a", "tea"), ("b", "tea"), ("a", "milk"), ("b", "milk"), ("c", "nails"), ("c", "tea"), ("d", "saw")]
LATER = [("e", "nails"), ("e", "tea")] * 3


def shop(rows: list[tuple[str, str]]) -> EventStream:
    src, dst = zip(*rows, strict=True)
    return EventStream.from_columns(list(src), list(dst), np.arange(len(rows)), time=NUMBERS, shared_ids=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    rows = (EVENTS * 8)[:50]
    out = tmp_path_factory.mktemp("runs") / "shop"
    trained = train(shop(rows), "tgat", out=out, device="cpu", epochs=1, report=False, mask_nodes=0, hidden=4, heads=1)
    return on(trained, EVENTS + LATER)


def on(run: Run, rows: list[tuple[str, str]]) -> Run:
    """The same model with another history."""
    return replace(run, stream=shop(rows), original_stream=shop(rows))


def names(run: Run, node: str, **options: object) -> list[str]:
    return [found.node for found in run.similar(node, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["cosine", "bm25"])
def test_products_of_the_same_customers_are_similar(run: Run, by: str) -> None:
    found = run.similar("milk", at=7, by=by, half_life=math.inf)
    assert [(k.node, k.shared) for k in found] == [("tea", 2)]
    assert names(run, "a", at=7, by=by) == ["b", "c"]


def test_cosine_without_decay_by_hand(run: Run) -> None:
    tea, milk, nails = np.array([1, 1, 1]), np.array([1, 1, 0]), np.array([0, 0, 1])  # customers a, b, c
    found = {k.node: k.score for k in run.similar("tea", at=7, half_life=math.inf)}
    assert found == pytest.approx(
        {
            "milk": tea @ milk / np.linalg.norm(tea) / np.linalg.norm(milk),
            "nails": tea @ nails / np.linalg.norm(tea) / np.linalg.norm(nails),
        }
    )


def test_later_events_change_nothing(run: Run) -> None:
    first = on(run, EVENTS)
    for by in ("cosine", "bm25"):
        assert run.similar("tea", at=7, by=by) == first.similar("tea", at=7, by=by)
        assert run.similar("tea", by=by) != first.similar("tea", by=by)


def test_recent_events_count_more(run: Run) -> None:
    assert names(run, "tea", at=12, half_life=1)[0] == "nails"
    assert names(run, "tea", at=9, half_life=math.inf)[0] == "milk"


def test_answers_are_of_one_side_and_never_the_node(run: Run) -> None:
    for by in ("cosine", "bm25", "embedding"):
        assert set(names(run, "tea", by=by)) <= {"milk", "nails", "saw"}
        assert len(names(run, "tea", by=by, top=1)) == 1


def test_embeddings_compare_all_visible_nodes_of_the_side(run: Run) -> None:
    found = run.similar("tea", by="embedding")
    goods = ["tea", "milk", "nails", "saw"]
    vectors = dict(zip(goods, run.embed(goods), strict=True))
    expected = {
        name: v @ vectors["tea"] / np.linalg.norm(v) / np.linalg.norm(vectors["tea"])
        for name, v in vectors.items()
        if name != "tea"
    }
    assert {k.node: k.score for k in found} == pytest.approx(expected, abs=1e-4)
    assert {k.node: k.shared for k in found} == {"milk": 2, "nails": 2, "saw": 0}
    assert "nails" not in names(run, "tea", by="embedding", at=4)  # nails appear at time 4


def test_equal_nodes_stand_in_order_of_appearance(run: Run) -> None:
    rows = [("u", f"item{k}") for k in (3, 1, 2, 0)] * 8
    assert names(on(run, rows), "item2", half_life=math.inf) == ["item3", "item1", "item0"]


def test_a_node_without_history_has_no_similar_ones(run: Run) -> None:
    assert run.similar("nails", at=4) == []


def test_mistakes_are_explained(run: Run) -> None:
    with pytest.raises(DataError, match="no node 'coffee'"):
        run.similar("coffee")
    with pytest.raises(SettingError, match="cosine"):
        run.similar("tea", by="cosin")
    for half_life in (0, -1, math.nan):
        with pytest.raises(SettingError, match="half_life"):
            run.similar("tea", half_life=half_life)
    with pytest.raises(SettingError, match="half_life"):
        run.similar("tea", by="embedding", half_life=3)


def test_an_id_of_both_sides_needs_the_side(run: Run) -> None:
    both = on(run, [("x", "y"), ("y", "x"), ("z", "x")] * 8)
    with pytest.raises(DataError, match="side"):
        both.similar("x")
    assert names(both, "y", side="src") == ["z"]
    assert names(both, "y", side="dst") == []


def test_a_model_without_embeddings_says_so(tmp_path: Path) -> None:
    counts = train(shop(EVENTS * 6), "counts", out=tmp_path / "run", device="cpu", epochs=1, report=False)
    assert counts.similar("tea")
    with pytest.raises(DataError, match="no node embeddings"):
        counts.similar("tea", by="embedding")
