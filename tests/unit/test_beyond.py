"""Experiments beyond the paper: comparison with published results, hard negatives, ranking."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.callbacks import Callback
from cordgt.events.stream import EventStream
from cordgt.experiments import measurements, published_results
from cordgt.experiments.ablation import PLUS_ABLATION, ablation_cells, ablation_report
from cordgt.experiments.anchors import anchor_cells, anchor_report
from cordgt.experiments.beyond import beyond_cells, beyond_report
from cordgt.experiments.catalogue import EXPERIMENTS
from cordgt.experiments.cells import Cell, CellStore, flatten_settings, make_cell
from cordgt.experiments.hard_negatives import ANCHOR_NEGATIVES, RANKING_CANDIDATES
from cordgt.experiments.paper_protocol import paper_protocol_cells, paper_protocol_report
from cordgt.experiments.ranking import TRAINING_SETTINGS, ranking_cells, ranking_report
from cordgt.experiments.scheduler import run_cells
from cordgt.experiments.tables import ExperimentRequest
from cordgt.experiments.tgb_evaluator import find_tgb_evaluator
from cordgt.history.queries import Queries
from cordgt.inference.run import Run
from cordgt.tasks.baselines import BASELINES
from cordgt.tasks.link import EVALUATION_SETTINGS, LinkTask
from cordgt.tasks.link_evaluation import CandidateScores, split_scores
from cordgt.tasks.metrics import ranking_metrics
from cordgt.tasks.pair_scores import choose_pair_slope, validation_pairs
from cordgt.tasks.protocol import Protocol
from cordgt.tasks.run_metrics import SETTINGS
from cordgt.tasks.ties import mean_ranks
from cordgt.workflows import train


def few() -> EventStream:
    draw = np.random.default_rng(0)
    return EventStream.from_columns(*draw.integers(0, 9, (2, 120)), np.arange(120), name="few")


@pytest.fixture
def on_few(monkeypatch: pytest.MonkeyPatch) -> EventStream:
    stream = few()
    monkeypatch.setattr(measurements, "load_stream", lambda *_: stream)
    return stream


def record(cell: Cell, metrics: dict[str, Any], *, nodes: int = 1899, events: int = 59835) -> dict[str, Any]:
    """Return the result of a finished cell whose stream has the given size."""
    metadata = measurements.cell_metadata(cell, few(), torch.device("cpu"))
    metadata["stream"] |= {"nodes": nodes, "events": events, "differs": ""}
    return metadata | {"seconds": 10.0, "figures": metrics}


def hard_record(cell: Cell, ap: float, baseline: float = 0.5, **size: int) -> dict[str, Any]:
    """Return the result of a finished cell of kind "hard"."""

    def by_setting(value: float) -> dict[str, Any]:
        one = {"ap": value, "ap_batch": value + 0.001, "mrr": value / 2, "hits@10": value, "events": 100}
        return {setting: one | {"random_negatives": 10} for setting in ("transductive", "inductive")}

    part = {"test": by_setting(ap), "baselines": {name: by_setting(baseline) for name in BASELINES}}
    return record(cell, {**part, "historical": part, "inductive": part}, **size)


def test_comparison_with_the_best_published_and_by_seed(tmp_path: Path) -> None:
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["cordgt_plus", "cordgt"], [0, 1])
    for cell, ap in zip(beyond_cells(request), (0.98, 0.97, 0.96, 0.97), strict=True):
        store.write(cell, hard_record(cell, ap, baseline=0.968))
    report = beyond_report(request, store)
    pairs, plain, harder = report.sections
    assert pairs.rows == [["uci, CorDGT", *["1 of 2 seeds, +0.00 on average"] * 2]]
    rows = {row[0]: row[1:] for row in plain.rows}
    assert rows["CorDGT+"] == ["97.00 ± 1.41", "97.10 ± 1.41", "-0.25", "97.00 ± 1.41", "97.10 ± 1.41", "+1.36", "2"]
    assert rows["*popularity*"][0] == "96.80 ± 0.00"
    assert rows["best published"][1] == "97.35 (TPNet)"
    assert {row[0]: row[1] for row in harder.rows}["CorDGT+"] == "97.00 ± 1.41"
    assert any("10.0 % of the historical negatives" in note for note in report.notes)
    first = next(k for k in report.records if k["metric"] == "ap_batch" and k["negatives"] == "random")
    assert (first["name"], first["published"], first["published_by"], first["seeds"]) == (
        "cordgt_plus",
        97.35,
        "TPNet",
        2,
    )


def test_a_model_below_a_baseline_is_marked(tmp_path: Path) -> None:
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["cordgt_plus", "cordgt"], [0])
    cell = beyond_cells(request)[0]
    store.write(cell, hard_record(cell, 0.6, baseline=0.7, nodes=9, events=100))
    pairs, plain, harder = beyond_report(request, store).sections
    assert pairs.rows[0][1:] == ["–", "–"]
    assert plain.rows[0][1:4] == ["60.00 !", "60.10 !", "–"]  # another dataset of that name: nothing beside it
    assert [row[0] for row in plain.rows] == ["CorDGT+", "CorDGT", *(f"*{name}*" for name in BASELINES)]
    assert harder.rows[0][1] == "60.00 !"


def test_popularity_can_be_a_model_and_a_baseline(tmp_path: Path) -> None:
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["popularity"], [0])
    cell = beyond_cells(request)[0]
    store.write(cell, hard_record(cell, 0.6, baseline=0.7))
    report = beyond_report(request, store)
    assert [row[:2] for row in report.sections[0].rows[:2]] == [["popularity", "60.00 !"], ["*seen before*", "70.00"]]
    named = [(k["kind"], k["ours"]) for k in report.records if k["name"] == "popularity" and k["metric"] == "ap"]
    assert {("model", 60.0), ("baseline", 70.0)} == set(named)


def test_best_published_ap() -> None:
    assert published_results.best_ap("transductive", "enron") == (93.22, "DyG-Mamba")
    assert published_results.best_ap("inductive", "enron") == (91.65, "CorDGT's paper")
    assert published_results.best_ap("inductive", "wikipedia") == (98.91, "TPNet")
    assert published_results.best_ap("inductive", "mooc") == (95.07, "TPNet")
    assert published_results.best_ap("inductive", "lastfm_prefix") is None


def test_default_seeds_and_models() -> None:
    assert EXPERIMENTS["beyond"].default_seeds(quick=False) == [0, 1, 2, 3, 4]
    assert EXPERIMENTS["beyond"].default_seeds(quick=True) == [0]
    assert EXPERIMENTS["beyond"].default_models == ["cordgt_plus", "cordgt", "dygformer", "counts"]
    assert EXPERIMENTS["link-ap"].default_seeds(quick=False) == [0, 1, 2]


def test_a_subset_uses_the_published_settings_of_its_dataset() -> None:
    cells = {
        cell.model: cell
        for cell in beyond_cells(ExperimentRequest(["lastfm_prefix"], ["cordgt_plus", "dygformer"], [0]))
    }
    assert cells["dygformer"].variant == "max_seq_len-512_patch_size-16"
    assert cells["cordgt_plus"].variant == "default"


def test_hard_negatives_agree_with_run_evaluate(tmp_path: Path, on_few: EventStream) -> None:
    store, cell = CellStore(tmp_path), make_cell("few", "popularity", 0, kind="hard")
    measurements.run_cell(cell, store, keep=True)
    found, run = store.read(cell), Run.load(store.run_folder(cell))
    assert found is not None
    assert store.read(cell.with_kind("link")) is not None
    plain = run.evaluate(split="test", eval_batch_size=200, ranking=RANKING_CANDIDATES)
    assert found["figures"]["test"] == plain["test"]
    for kind in ("historical", "inductive"):
        again = run.evaluate(split="test", eval_batch_size=200, negatives=kind)
        assert found["figures"][kind]["test"] == again["test"]
        assert found["figures"][kind]["baselines"] == {k: v["test"] for k, v in again["baselines"].items()}


def test_evaluation_settings_do_not_change_the_split() -> None:
    assert set(EVALUATION_SETTINGS) < set(vars(Protocol())) - {"pool", "split", "mask_seed", "mask_nodes"}


class Interrupts(Callback):
    """Sends SIGINT during an evaluation, as Ctrl-C does."""

    def __init__(self, when: str) -> None:
        self.when, self.stages = when, [""]

    def on_stage_start(self, name: str, total: int | None) -> None:
        self.stages.append(name)

    def on_step(self, n: int, loss: float | None = None) -> None:
        if self.when in self.stages[-1]:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("kind", "when"), [("ranking", "test, ranked among all"), ("hard", "test, transductive")])
def test_an_interrupted_measurement_resumes_from_the_trained_run(
    kind: str, when: str, tmp_path: Path, on_few: EventStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cell = CellStore(tmp_path), make_cell("few", "edgebank", 0, {"ranking": "3"}, kind=kind)
    train.train_run(
        on_few, cell.settings, store.run_folder(cell), report=False
    )  # so that only measuring is interrupted
    outcome = run_cells([cell], store, callbacks=Interrupts(when))
    assert outcome.stopped is not None
    assert outcome.stopped.exit_code == 130
    assert store.read(cell) is None
    assert store.read(cell.with_kind("link")) is not None
    monkeypatch.setattr(train, "fit_and_evaluate", lambda *_, **__: pytest.fail("it is trained"))
    assert run_cells([cell], store).n_finished == 1
    assert not store.run_folder(cell).exists()


def test_ranking_among_all_destinations_agrees_with_run_evaluate(tmp_path: Path, on_few: EventStream) -> None:
    store, cell = CellStore(tmp_path), make_cell("few", "edgebank", 0, {"ranking": "3"}, kind="ranking")
    measurements.run_cell(cell, store, keep=True)
    found, run = store.read(cell), Run.load(store.run_folder(cell))
    again = run.evaluate(ranking="all")
    assert found is not None
    assert found["figures"]["test"]["transductive"].items() >= again["test"]["transductive"].items()
    assert run.metrics["test"]["transductive"]["mrr"] > again["test"]["transductive"]["mrr"]  # among three
    assert found["figures"]["validation"] == run.metrics["validation"]


def test_ranking_cells() -> None:
    cells = ranking_cells(
        ExperimentRequest(["wikipedia"], ["edgebank", "cordgt_plus", "tgat"], [0, 1], {"num_negatives": "5"})
    )
    assert [(cell.model, cell.settings.protocol.visibility, cell.seed) for cell in cells] == [
        *((model, rule, 0) for rule in ("event", "batch") for model in ("edgebank", "cordgt_plus", "tgat")),
        *((model, rule, 1) for rule in ("event", "batch") for model in ("cordgt_plus", "tgat")),
    ]
    for cell in cells:
        protocol = cell.settings.protocol
        assert (protocol.mask_nodes, protocol.eval_batch_size, protocol.ranking) == (0.0, 200, "100")
    assert cells[1].settings.training.num_negatives == 5  # --set before what is usual for a model
    assert (
        flatten_settings(cells[1].settings).items() >= (TRAINING_SETTINGS["cordgt_plus"] | {"num_negatives": 5}).items()
    )


def test_ranking_report_sorts_our_models_into_the_leaderboard(tmp_path: Path) -> None:
    store, request = CellStore(tmp_path), ExperimentRequest(["wikipedia"], ["edgebank", "cordgt_plus", "tgat"], [0, 1])
    for cell in ranking_cells(request):
        rule = cell.settings.protocol.visibility
        mrr = {
            ("edgebank", "batch", 0): 0.4947,
            ("cordgt_plus", "event", 0): 0.83,
            ("cordgt_plus", "event", 1): 0.82,
        }.get((cell.model, rule, cell.seed))
        if mrr is not None:
            part = {"transductive": {"ap": 0.9, "mrr": mrr, "hits@10": 0.9}}
            size = {"nodes": 9227, "events": 157474}
            store.write(cell, record(cell, {"validation": part, "test": part}, **size))
    report = ranking_report(request, store)
    rows = [row[:5] for row in report.sections[0].rows]
    assert rows[0][:4] == ["TPNet", "published", "mixed", "0.827"]
    assert rows[1] == ["**CorDGT+ here**", "here", "event", "0.8250 ± 0.0071", "0.8200"]
    names = [row[0] for row in rows]
    assert names.index("**EdgeBank here**") == names.index("EdgeBank, unlimited") + 1
    assert report.records[0]["test_mrr"] == 0.827
    assert any("tgbl-wiki-v2" in note for note in report.notes)
    assert any("Settings of all: `mask_nodes=0.0`, `eval_batch_size=200`." in note for note in report.notes)
    assert any("CorDGT+ was trained and its epoch selected with `ranking=100`" in note for note in report.notes)


def test_paper_protocol(tmp_path: Path) -> None:
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["cordgt", "tgat"], [0, 1])
    cells = paper_protocol_cells(request)
    assert [(cell.model, cell.variant) for cell in cells[:2]] == [
        ("cordgt", "mask-true_visibility-paper"),
        ("tgat", "default"),
    ]
    for cell in cells:
        part = {name: {"ap": 0.9, "ap_batch": 0.8, "auc": 0.9, "auc_batch": 0.7} for name in SETTINGS}
        store.write(cell, record(cell, {"validation": part, "test": part}, nodes=1899, events=59835))
    report = paper_protocol_report(request, store)
    ap, auc = report.sections
    assert ap.rows[0] == [
        "CorDGT",
        "paper",
        "96.03 ± 0.2",
        "80.00 ± 0.00",
        "-16.03",
        "94.70 ± 1.0",
        "80.00 ± 0.00",
        "-14.70",
        "2",
    ]
    assert [row[3] for row in auc.rows] == ["70.00 ± 0.00"] * 2


def test_py_tgb_evaluator_ranks_as_we_do() -> None:
    evaluator = find_tgb_evaluator()
    if evaluator is None:
        pytest.skip("py-tgb is not installed")
    rng = np.random.default_rng(0)
    ranks = []
    for n in (7, 20):
        true, others = rng.integers(0, 9, n).astype(float), rng.integers(0, 9, (n, 30)).astype(float)
        scores = CandidateScores(true, others, rng.random((n, 30)) < 0.8)
        ranks.append(mean_ranks(*scores, 0.0))
        evaluator.add(scores)
    ours = ranking_metrics(np.concatenate(ranks))
    found = evaluator.metrics()
    assert found["mrr_py_tgb"] == pytest.approx(ours["mrr"], abs=1e-6)
    assert found["hits@10_py_tgb"] == pytest.approx(ours["hits@10"], abs=1e-6)


def test_plus_ablation(tmp_path: Path) -> None:
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["cordgt_plus"], [0])
    cells = ablation_cells(request, PLUS_ABLATION)
    assert [cell.variant for cell in cells] == [
        "default",
        "sampling-uniform",
        "slot_features-false",
        "pair_features-false",
        "pair_features-false_slot_features-false",
        "ema_decay-0.0",
    ]
    for k, cell in enumerate(cells):
        metrics = {s: {"ap": 0.9 - k / 100} for s in ("transductive", "inductive")}
        store.write(cell, record(cell, {"validation": metrics, "test": metrics}))
    rows = ablation_report(request, store, PLUS_ABLATION).sections[0].rows
    assert rows[0] == ["full model", *["90.00", "+0.00"] * 4, "1"]
    assert rows[-1] == ["without weight averaging", *["85.00", "-5.00"] * 4, "1"]


# -------------------- activity, and negatives that replace the source


def bursts() -> EventStream:
    """Each source acts six times in a row, then rests."""
    i = np.arange(240)
    return EventStream.from_columns(i // 6 % 9, np.random.default_rng(0).integers(9, 18, 240), i, name="bursts")


def test_scores_of_pairs_include_how_often_the_source_acts(tmp_path: Path) -> None:
    run = train.train(bursts(), "edgebank", out=tmp_path / "run", report=False)
    model, task = run.evaluation_task(negatives="historical-pairs")
    _, queries = task.evaluation_queries("test", "transductive")
    plain = task.with_protocol(activity=False)
    model.pair_slope = 1.0
    (positive, negative, _), (without, _, _) = (split_scores(model, k, "test", "transductive") for k in (task, plain))
    np.testing.assert_allclose(positive - without, task.log_source_rates(queries), atol=1e-4)  # near ties
    assert np.ptp(positive - without) > 1 and np.isfinite(negative).all()
    random = task.with_protocol(negatives="random")  # the source is given
    for k in (random, random.with_protocol(activity=False)):
        assert set(split_scores(model, k, "test", "transductive")[0]) <= {-1.0, 1.0}


def test_source_rates_see_only_the_events_before_the_cut() -> None:
    """Other events after the training period, at or after ``cut``, leave every rate bit-identical."""
    stream = bursts()
    protocol, cpu = Protocol(negatives="historical-pairs"), torch.device("cpu")
    task = LinkTask.prepare(stream, protocol, seed=0, device=cpu)
    cut = int(task.split.test[0])
    src, dst = np.array(stream.src), np.array(stream.dst)
    src[cut:], dst[cut:] = src[cut:][::-1].copy(), dst[cut:][::-1].copy()
    changed = replace(stream, src=src, dst=dst)
    other = LinkTask.prepare(changed, protocol, seed=0, device=cpu)
    nodes = torch.from_numpy(np.unique(stream.src[:cut]))
    t, cuts = torch.full((len(nodes),), float(stream.elapsed[cut])), torch.full((len(nodes),), cut)
    queries = Queries(nodes, nodes[:, None], t, cuts, cuts)
    assert (task.log_source_rates(queries) == other.log_source_rates(queries)).all()


def test_slope_of_the_logit_in_scores_of_pairs(tmp_path: Path) -> None:
    """It is chosen on validation events, once; test events have no part in it. Other scores never see it."""
    run = train.train(bursts(), "edgebank", out=tmp_path / "run", report=False)
    model, task = run.evaluation_task(negatives="historical-pairs")
    random = split_scores(model, task.with_protocol(negatives="random"), "test", "transductive")[0]
    assert model.pair_slope is None
    plain = split_scores(model, task.with_protocol(activity=False), "test", "transductive")[0]
    assert model.pair_slope is None
    positive = split_scores(model, task, "test", "transductive")[0]
    slope = model.pair_slope
    assert slope is not None and 0 <= slope <= 1
    _, queries = task.evaluation_queries("test", "transductive")
    np.testing.assert_allclose(positive, task.log_source_rates(queries) + slope * plain, atol=1e-4)  # near ties
    assert (split_scores(model, task.with_protocol(negatives="random"), "test", "transductive")[0] == random).all()
    stream, cut = run.original_stream, int(task.split.test[0])
    dst = np.array(stream.dst)
    dst[cut:] = dst[cut:][::-1].copy()
    other = LinkTask.prepare(replace(stream, dst=dst), task.protocol, seed=0, device=torch.device("cpu"))
    for queries, same in zip(validation_pairs(task).values(), validation_pairs(other).values(), strict=True):
        assert (queries.src == same.src).all() and (queries.dst == same.dst).all()
    assert choose_pair_slope(model, other) == slope


def test_a_new_source_acts_at_the_rate_of_newcomers() -> None:
    """All sources without events share one rate, above that of one of them and of a source that left long ago."""
    stream = bursts()
    task = LinkTask.prepare(stream, Protocol(negatives="historical-pairs"), seed=0, device=torch.device("cpu"))
    cut, n = 120, stream.n_nodes
    nodes = torch.tensor([int(stream.src[0]), n, n + 1])
    t, cuts = torch.full((3,), float(stream.elapsed[cut])), torch.full((3,), cut)
    seen, new, other = task.log_source_rates(Queries(nodes, nodes[:, None], t, cuts, cuts))
    model = task.cache["source_rate"][0]
    assert new == other == np.log(model.arrival_rate) > np.log(model.newcomer_rate)
    assert seen != new


def test_anchors(tmp_path: Path, on_few: EventStream) -> None:
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["edgebank"], [0])
    (cell,) = anchor_cells(request)
    result = run_cells([cell], store)
    assert not result.failures
    found = store.read(cell)
    assert found is not None
    parts = {kind: set(found["figures"][kind]) for kind in ANCHOR_NEGATIVES}
    assert parts == {kind: {"test"} | ({"without_activity"} if kind != "random" else set()) for kind in parts}
    report = anchor_report(request, store)
    rows = report.sections[0].rows
    assert rows[0][:3] == ["best published", "97.35 (TPNet)", "96.00 (SNAM)"]
    assert [row[0] for row in rows[1:]] == ["EdgeBank", "EdgeBank, without activity"]


def test_anchors_compare_cordgt_plus_with_the_counts_network_in_it(tmp_path: Path, on_few: EventStream) -> None:
    tiny = {"hidden": 8, "heads": 2, "fanout": (2, 1), "epochs": 1}
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["cordgt_plus", "counts"], [0], tiny)
    cells = anchor_cells(replace(request, models=["cordgt_plus"], changes=tiny))
    assert not run_cells(cells, store).failures
    found = store.read(cells[0])
    assert found is not None
    figures = found["figures"]
    assert set(figures["counts_weight"]) == {"test", "without_activity"}
    for kind in (*ANCHOR_NEGATIVES, "historical", "inductive"):
        assert set(figures[kind]["counts_alone"]) == set(SETTINGS)
        if figures["counts_weight"]["without_activity"] == [1.0, 1.0]:
            part = "without_activity" if kind.endswith("-pairs") else "test"
            assert figures[kind][part] == figures[kind]["counts_alone"]
    section = anchor_report(request, store).sections[-1]
    assert section.heading == "CorDGT+ without activity, and its difference to the counts network in it"
    assert [row[0] for row in section.rows] == ["uci, transductive", "uci, inductive"]
