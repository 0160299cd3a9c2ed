"""Rankings as a shop judges them: which candidates compete, which events count, and metrics of the lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cordgt.analysis.recommendation_tables import recommendation_tables
from cordgt.analysis.remarks import verdict
from cordgt.analysis.report.run_report import write_report
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.inference.run import Run
from cordgt.models.popularity import Popularity, PopularitySettings
from cordgt.tasks.candidate_filter import is_partner
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import compute_ranks, evaluate, recommendation_lists
from cordgt.tasks.protocol import Protocol
from cordgt.tasks.recommendation_metrics import RecommendationLists, add_lift, top_candidates
from cordgt.workflows.train import train

# a buys x, y, x, then z; b buys x, y; c buys z. The last three events are the test split; w is new at the end.
SRC = ["a", "b", "a", "c", "b", "a", "a", "c", "b"]
DST = ["x", "x", "y", "z", "y", "x", "z", "z", "w"]


def shop(**protocol: str) -> LinkTask:
    stream = EventStream.from_columns(SRC, DST, np.arange(len(SRC)), shared_ids=False)
    task = LinkTask.prepare(stream, Protocol(mask_nodes=0, train_ratio=0.4, val_ratio=0.25, **protocol))
    assert task.split.test.tolist() == [6, 7, 8]
    return task


def popularity() -> Popularity:
    return Popularity(PopularitySettings(), edge_dim=0, node_dim=0)


def ranks(**protocol: str) -> list[float]:
    return compute_ranks(popularity(), shop(**protocol), "test", "transductive").tolist()


def test_candidates_by_hand() -> None:
    """Before event 6, x has three events, y two, z one; before event 8, z has three; w has none."""
    assert ranks(ranking="all") == [3, 2.5, 4]
    assert ranks(ranking="all", filter="known") == [3, 2.5]  # w is unknown, so event 8 is left out
    # a has met x and y, so z is alone; c has met z itself, which stays, and x and y compete
    assert ranks(ranking="all", filter="seen") == [1, 2.5]
    assert ranks(ranking="all", filter="seen", positives="new") == [1]  # c and z have met before


def test_events_with_an_unknown_destination_are_counted() -> None:
    metrics = evaluate(popularity(), shop(ranking="all", filter="known"), "test", "transductive")
    assert metrics["events"] == 3 and metrics["unknown_destinations"] == 1
    assert metrics["mrr"] == pytest.approx((1 / 3 + 1 / 2.5) / 2)
    assert "unknown_destinations" not in evaluate(popularity(), shop(ranking="all"), "test", "transductive")


def test_unknown_destinations_do_not_compete() -> None:
    """Events 4 and 5 are ranked while w is unknown: EdgeBank-like ties with w would cost half a rank."""
    task = shop(ranking="all", filter="known")
    lists = recommendation_lists(popularity(), task, "validation")
    w = int(task.stream.dst[8])
    assert w not in lists.top and lists.n_known == 3


def test_lists_by_hand() -> None:
    task = shop(ranking="all", filter="seen")
    lists = recommendation_lists(popularity(), task, "test")
    names = task.stream.ids.names.to_pylist()
    shown = [sorted(names[k] for k in row if k >= 0) for row in lists.top]
    assert shown == [["z"], ["x", "y", "z"]]
    assert lists.history.tolist() == [3, 1]
    assert lists.novelty[0] == pytest.approx(np.log2(6 / 1))
    metrics = evaluate(popularity(), task, "test", "transductive")
    assert metrics["recall@10"] == 1 and metrics["coverage@10"] == 1
    assert metrics["by_history"]["3–9"] == {"events": 1, "mrr": 1.0, "hits@10": 1.0, "ndcg@10": 1.0}


def test_recall_is_a_mean_over_sources() -> None:
    """One source has two hits of three events, the other none of one."""
    rank = np.array([1.0, 2.0, 40.0, 11.0])
    top, novelty = np.full((4, 10), -1), np.full(4, np.nan)
    lists = RecommendationLists(rank, np.array([5, 5, 5, 7]), np.array([0, 1, 2, 0]), top, novelty, 0)
    metrics = lists.metrics()
    assert metrics["recall@10"] == pytest.approx((2 / 3 + 0) / 2)
    assert metrics["novelty@10"] is None and metrics["coverage@10"] == 0
    assert metrics["by_history"]["none"]["events"] == 2


def test_lift() -> None:
    metrics = {"hits@10": 0.3, "recall@10": 0.1}
    add_lift(metrics, {"hits@10": 0.2})
    assert metrics["lift@10"] == pytest.approx(1.5)
    add_lift(metrics, {"hits@10": 0.0})
    assert metrics["lift@10"] is None


def test_near_ties_do_not_depend_on_rounding() -> None:
    """Twelve equal scores, with noise below the tolerance: the ten first nodes are listed."""
    noise = np.random.default_rng(0).uniform(-4e-6, 4e-6, (1, 12))
    nodes = np.arange(12)[None]
    found = top_candidates(1.0 + noise, nodes, np.ones((1, 12), bool), 1e-5)
    assert sorted(found[0].tolist()) == list(range(10))


def test_partners_are_read_before_the_cut() -> None:
    index = shop().host_index
    a, x, y = 0, 1, 3
    candidates = np.array([[x, y, -1, 99]] * 3)
    got = is_partner(index, np.array([a, a, 50]), np.array([1, 3, 9]), candidates)
    assert got.tolist() == [[True, False, False, False], [True, True, False, False], [False] * 4]


def test_filter_needs_a_ranking() -> None:
    with pytest.raises(SettingError, match="ranking=none"):
        Protocol(filter="seen")
    with pytest.raises(SettingError, match="positives"):
        Protocol(positives="old")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 12, 300), rng.integers(0, 20, 300)
    stream = EventStream.from_columns(src, dst, np.arange(300), shared_ids=False, name="shop")
    out = tmp_path_factory.mktemp("shop") / "run"
    return train(stream, "popularity", out=out, device="cpu", report=False, ranking="all", filter="seen")


def test_run_has_tables_of_lists(run: Run) -> None:
    lists, by_history = recommendation_tables(run.metrics)
    assert lists.columns == ["", "MRR", "hits@10", "NDCG@10", "recall", "coverage", "novelty", "lift"]
    assert lists.rows[0][0] == "popularity" and lists.rows[0][-1] == "1.00"
    assert by_history.columns[:3] == ["earlier events", "events", "popularity"]
    assert "that the source has not met" in verdict(run.metrics)
    page = Path(write_report(run)).read_text(encoding="utf-8")
    assert "Recommendation lists" in page and "without past partners" in page


def test_evaluate_other_candidates(run: Run) -> None:
    seen = run.evaluate(split="test", positives="new")
    assert seen["test"]["transductive"]["events"] < run.metrics["test"]["transductive"]["events"]
    everyone = run.evaluate(split="test", filter="none")
    assert "recall@10" not in everyone["test"]["transductive"] and not recommendation_tables(everyone)
