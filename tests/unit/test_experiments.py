"""Cells and reports: which results are trusted, which are made again, and when the paper's are shown."""

from __future__ import annotations

import csv
import fcntl
import json
import math
import os
import shlex
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.cm import ScalarMappable

from cordgt.callbacks import Callback
from cordgt.errors import DataError, RunError, SettingError
from cordgt.events.stream import EventStream
from cordgt.experiments import catalogue, measurements, paper, plots
from cordgt.experiments.ablation import CORDGT_ROWS, ablation_cells, ablation_report
from cordgt.experiments.cells import (
    Cell,
    CellStore,
    flatten_settings,
    make_cell,
    parse_models,
    parse_seeds,
    parse_shard,
)
from cordgt.experiments.estimates import estimate_seconds, list_experiments
from cordgt.experiments.heatmap import heatmap_cells, heatmap_report
from cordgt.experiments.link import DISPLAY_NAMES, link_cells, link_report
from cordgt.experiments.paper import Reported
from cordgt.experiments.provenance import cell_command
from cordgt.experiments.ranking import RankingRow
from cordgt.experiments.ranking import _draw as _draw_ranking
from cordgt.experiments.scalability import scalability_cells, scalability_report
from cordgt.experiments.scheduler import TimeBudget, expected_seconds, run_cells
from cordgt.experiments.sensitivity import sensitivity_cells, sensitivity_report
from cordgt.experiments.tables import Comparison, ExperimentRequest, ResultSet, write_report
from cordgt.models import MODELS
from cordgt.runtime import signals
from cordgt.runtime.signals import TrainingStopped
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import parse_assignments
from cordgt.workflows import train


def record(cell: Cell, ap: float, *, nodes: int = 1899, events: int = 59835, **changes: Any) -> dict[str, Any]:
    """Return the result of a finished cell with the given AP."""
    metrics = {"ap": ap, "auc": ap - 0.01, "ap_batch": ap, "auc_batch": ap, "events": 100}
    differs = "" if (nodes, events) == (1899, 59835) else f"not {cell.data} as published"
    stream = {"nodes": nodes, "events": events, "fingerprint": "1", "differs": differs}
    return {
        "kind": cell.kind,
        "data": cell.data,
        "model": cell.model,
        "seed": cell.seed,
        "variant": cell.variant,
        "quick": cell.quick,
        "settings": flatten_settings(cell.settings),
        "stream": stream,
        "figures": {"test": {"transductive": metrics, "inductive": metrics}},
        "seconds": 10.0,
        "device": "cpu",
        "machine": "an abacus",
        "code": {"version": "1", "source": "abc", "commit": "fedcba987"},
        **changes,
    }


def test_a_training_always_has_the_same_variant_name() -> None:
    assert make_cell("uci", "cordgt", 0).variant == "default"
    assert make_cell("uci", "cordgt", 0, {"alpha": "0.1", "beta": 1, "fanout": "32,1"}).variant == "default"
    assert make_cell("enron", "cordgt", 0, {"alpha": "0.1", "beta": 1}).variant == "alpha-0.1_beta-1.0"
    assert make_cell("uci", "cordgt", 0, {"mask": "true", "fanout": (8, 1)}).variant == "fanout-8x1_mask-true"
    assert make_cell("uci", "tgn", 0, {"alpha": 0.0}).variant == "default"  # which has no alpha
    assert make_cell("uci", "cordgt", 2).settings.protocol.mask_seed == 2
    with pytest.raises(SettingError, match="Did you mean 'alpha'"):
        make_cell("uci", "cordgt", 0, {"alfa": 1})


def test_bfloat16_on_a_cpu_makes_the_cell_of_a_gpu(tmp_path: Path) -> None:
    """A GPU trains in bfloat16 by default; the command still names the setting that a CPU needs."""
    cell = make_cell("uci", "cordgt", 0, {"precision": "bf16-cpu"})
    assert cell.variant == "default" and cell_command(cell).endswith("--set precision=bf16-cpu")
    assert make_cell("uci", "cordgt", 0, {"precision": "fp32"}).variant == "precision-fp32"
    store, gpu_cell = CellStore(tmp_path), make_cell("uci", "cordgt", 0)
    store.write(cell, record(cell, 0.5))
    assert store.read(gpu_cell) is not None and store.read(cell) is not None


def test_command_of_a_link_cell() -> None:
    cell = make_cell("uci", "cordgt", 1, {"mask": True, "fanout": (8, 1)})
    assert (
        cell_command(cell)
        == "cordgt train uci --model cordgt --seed 1 --set mask_seed=1 --set fanout=8,1 --set mask=true"
    )


@pytest.mark.parametrize("name", [k for k, v in catalogue.EXPERIMENTS.items() if v.cells is not None])
@pytest.mark.parametrize("quick", [False, True])
def test_command_of_a_cell_requests_the_same_cell(name: str, quick: bool) -> None:
    """`cordgt reproduce` with that command makes the same cell, for every kind."""
    experiment = catalogue.find_experiment(name)
    assert experiment.cells is not None
    request = ExperimentRequest(["uci"], list(experiment.models), [0, 4], {"lr": "0.01"}, quick=quick)
    for cell in experiment.cells(request):
        words = shlex.split(cell_command(cell))
        if cell.kind == "link" and not quick:
            assert words[:3] == ["cordgt", "train", "uci"]
            continue
        given = {k: v for k, v in pairwise(words) if k in ("--datasets", "--models", "--seeds")}
        again = ExperimentRequest(
            [given["--datasets"]],
            parse_models(given["--models"], catalogue.find_experiment(words[2]).models),
            parse_seeds(given["--seeds"]),
            parse_assignments([v for k, v in pairwise(words) if k == "--set"]),
            quick="--quick" in words,
        )
        makes = catalogue.find_experiment(words[2]).cells
        assert makes is not None and cell in makes(again), words


def test_every_model_has_a_display_name_and_an_estimate() -> None:
    assert set(DISPLAY_NAMES) == set(MODELS)
    for name, kind in MODELS.items():
        seconds = estimate_seconds(make_cell("uci", name, 0), "cpu")
        assert seconds is not None and (seconds > 5.0) == kind.network.is_trainable, name


def test_file_names_keep_decimal_points(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    cells = [make_cell("uci", "cordgt", 0, {"alpha": a}) for a in (0.25, 0.5)]
    assert len({store.path(cell) for cell in cells}) == 2
    assert store.path(cells[0]).name == "alpha-0.25-seed0.json"


def test_a_written_cell_is_read_again(tmp_path: Path) -> None:
    store, cell = CellStore(tmp_path), make_cell("uci", "cordgt", 0)
    assert store.read(cell) is None
    store.write(cell, record(cell, 0.9))
    found = store.read(cell)
    assert found is not None
    assert found["figures"]["test"]["inductive"]["ap"] == 0.9
    assert store.path(cell).stat().st_size < 8192
    assert store.read(make_cell("uci", "cordgt", 1)) is None
    assert store.read(make_cell("uci", "cordgt", 0, {"mask": True})) is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format": 1}', '{"format": 99}', "\x00", "[" * 100_000],
    ids=["empty", "truncated", "a list", "no keys", "another format", "binary", "deeply nested"],
)
def test_a_damaged_cell_is_made_again(tmp_path: Path, content: str) -> None:
    store, cell = CellStore(tmp_path), make_cell("uci", "cordgt", 0)
    store.write(cell, record(cell, 0.9))
    store.path(cell).write_text(content)
    assert store.read(cell) is None
    assert store.read_all("link") == []


def test_a_cell_of_other_settings_is_not_trusted(tmp_path: Path) -> None:
    store, cell = CellStore(tmp_path), make_cell("uci", "cordgt", 0)
    settings = flatten_settings(cell.settings)
    store.write(cell, record(cell, 0.9, settings=settings | {"td_unseen": 1.0}))  # a default of another day
    assert store.read(cell) is None
    request = ExperimentRequest(["uci"], ["cordgt"], [0])
    assert any("1 cells were made with other settings" in k for k in link_report(request, store, "ap").notes)
    without = {k: v for k, v in settings.items() if k != "td_unseen"}  # made before there was such a setting
    store.write(cell, record(cell, 0.9, settings=without | {"checkpoint_minutes": 1.0, "gone": 3}))
    assert store.read(cell) is not None


def test_only_one_process_claims_a_cell(tmp_path: Path) -> None:
    store, cell = CellStore(tmp_path), make_cell("uci", "cordgt", 0)
    with store.claim(cell) as ours:
        assert ours
        with store.claim(cell) as again:
            assert not again
        with store.claim(make_cell("uci", "cordgt", 1)) as other:
            assert other
    with store.claim(cell) as ours:
        assert ours
        store.run_folder(cell).mkdir()
        store.write_elapsed(cell, 12.5)
    assert store.elapsed_seconds(cell) == 12.5
    with store.claim(cell):
        store.remove_run(cell, keep=False)
    assert store.elapsed_seconds(cell) == 0.0
    assert list(tmp_path.rglob("*")) == []


def test_a_cell_too_long_for_the_budget_leaves_no_claim(tmp_path: Path) -> None:
    store, cell, other = CellStore(tmp_path), make_cell("uci", "cordgt", 0), make_cell("uci", "cordgt", 1)
    store.write(make_cell("uci", "cordgt", 2), record(cell, 0.9, seconds=100.0))
    short = TimeBudget(time.monotonic() + 50.0, 200.0)
    with store.claim(cell) as ours:
        assert ours
        outcome = run_cells([cell, other], store, device="cpu", limits=short)
    assert (outcome.n_claimed_elsewhere, outcome.n_too_long) == (1, 1)
    assert not list(tmp_path.rglob("*seed1*"))  # and no trace of it is left


def test_folders_removed_by_another_process_are_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, cell, opened, swept = CellStore(tmp_path), make_cell("uci", "cordgt", 0), os.open, []

    def late(path: Any, *rest: Any, **options: Any) -> int:
        if not swept:
            swept.append(path)
            store.remove_empty_folders()
        return opened(path, *rest, **options)

    monkeypatch.setattr(os, "open", late)
    with store.claim(cell) as ours:
        assert ours
        store.run_folder(cell).mkdir()
        store.remove_empty_folders()
        assert store.run_folder(cell).exists()  # where a training is about to begin
    assert swept


def test_a_removed_claim_file_does_not_lock_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner removes it after we opened it and before we lock it."""
    store, cell, locked, removed = CellStore(tmp_path), make_cell("uci", "cordgt", 0), fcntl.flock, []

    def late(handle: int, how: int) -> None:
        if not removed:
            removed.append(handle)
            store.remove_run(cell, keep=False)
        locked(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with store.claim(cell) as ours:
        assert ours
        with store.claim(cell) as again:
            assert not again  # though ours was opened first
    assert removed
    with store.claim(cell) as first:
        assert first
        store.remove_run(cell, keep=False)
        with store.claim(cell) as second:  # finished: the next one may have it
            assert second
            assert list(tmp_path.rglob("*.claim"))


def test_releasing_a_claim_keeps_the_claim_of_the_next_process(tmp_path: Path) -> None:
    store, cell = CellStore(tmp_path), make_cell("uci", "cordgt", 0)
    first, second = store.claim(cell), store.claim(cell)
    assert first.__enter__()
    store.remove_run(cell, keep=False)
    assert second.__enter__()
    first.__exit__(None, None, None)
    with store.claim(cell) as third:
        assert not third
    second.__exit__(None, None, None)
    assert list(tmp_path.rglob("*.claim")) == []


class Messages(Callback):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_message(self, text: str) -> None:
        self.texts.append(text)


def test_only_a_run_known_to_be_different_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    stream = EventStream.from_columns(*draw.integers(0, 9, (2, 100)), np.arange(100), name="few")
    monkeypatch.setattr(measurements, "load_stream", lambda *_: stream)
    store, cell = CellStore(tmp_path), make_cell("few", "edgebank", 0)
    folder, messages = RunFolder(store.run_folder(cell)), Messages()
    folder.create(make_cell("few", "edgebank", 1).settings, stream)
    found = folder.path / "config.toml"
    newer = found.read_text().replace("format = 3", "format = 4")
    found.write_text(newer)
    with pytest.raises(RunError, match=r"has format 4.*remove"):
        measurements.run_cell(cell, store, callbacks=messages)
    assert found.read_text() == newer
    assert messages.texts == []
    found.write_text(newer.replace("format = 4", "format = 3"))
    measurements.run_cell(cell, store, callbacks=messages, keep=True)
    (text,) = messages.texts
    assert "seed=1, now 0" in text
    assert (folder.path / "report.html").exists()


def test_no_run_report_without_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, made = np.random.default_rng(0), []
    stream = EventStream.from_columns(*draw.integers(0, 9, (2, 100)), np.arange(100), name="few")
    monkeypatch.setattr(measurements, "load_stream", lambda *_: stream)
    monkeypatch.setattr(train, "write_report", lambda *_: made.append(1))
    store, cell = CellStore(tmp_path), make_cell("few", "edgebank", 0)
    measurements.run_cell(cell, store)
    assert store.read(cell) is not None
    assert made == []


def test_parse_seeds_models_and_shards() -> None:
    assert parse_seeds("3") == [0, 1, 2]
    assert parse_seeds("4,") == [4]
    assert parse_seeds("2,0,2") == [2, 0]
    for wrong in ("0", "", "a", "1,b", "-1,2", "-3"):
        with pytest.raises(SettingError, match="--seeds"):
            parse_seeds(wrong)
    assert parse_models("all", ("a", "b")) == ["a", "b"]
    assert parse_models("tgn,cordgt,tgn", ("cordgt", "tgn")) == ["tgn", "cordgt"]
    with pytest.raises(SettingError, match="Did you mean 'tgat'"):
        parse_models("tgatt", ("tgat",))
    with pytest.raises(SettingError, match="does not support tgat"):
        parse_models("tgat", ("cordgt",))
    assert parse_shard("2/3") == (2, 3)
    for wrong in ("0/3", "4/3", "1", "a/b", "/"):
        with pytest.raises(SettingError, match="--shard"):
            parse_shard(wrong)


def test_cells_are_ordered_by_seed() -> None:
    cells = link_cells(ExperimentRequest(["uci", "enron"], ["cordgt", "tgn"], [0, 1]))
    assert [cell.seed for cell in cells] == [0] * 4 + [1] * 4
    assert len(set(cells)) == 8


def test_ablation_rows_are_those_of_the_paper() -> None:
    assert list(CORDGT_ROWS) == list(paper.load_paper()["ablation"])
    cells = ablation_cells(ExperimentRequest(["uci"], ["cordgt"], [0]))
    assert len(set(cells)) == 8
    assert [cell.variant for cell in cells if not cell.settings.model_settings.mask] == ["default"]


def test_link_report_shows_the_papers_results(tmp_path: Path) -> None:
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["cordgt", "dygformer", "tgn"], [0, 1])
    for seed, ap in ((0, 0.95), (1, 0.97)):
        for model in ("cordgt", "dygformer"):
            cell = make_cell("uci", model, seed)
            store.write(cell, record(cell, ap))
    report = link_report(request, store, "ap")
    rows = {row[0]: row[1:] for row in report.sections[0].rows}
    assert rows["CorDGT"][:3] == ["96.03 ± 0.2", "96.00 ± 1.41", "-0.03"]
    assert rows["DyGFormer"][:3] == ["–", "96.00 ± 1.41", "–"]  # not in the paper
    assert rows["TGN"][1] == "–"
    assert rows["TGN"][-1] == "0"
    assert any("4 of 6 cells are finished" in note for note in report.notes)
    paths = write_report(report, tmp_path, "link-ap")
    assert sorted(p.suffix for p in paths) == [".csv", ".md", ".png"]
    assert paths[0].parent.joinpath("link-ap.png").read_bytes()[:4] == b"\x89PNG"
    with open(tmp_path / "link-ap.csv") as file:
        first = next(row for row in csv.DictReader(file) if row["model"] == "cordgt")
    assert (first["paper"], first["ours"], first["seeds"]) == ("96.03", "96.0", "2")
    assert math.isclose(float(first["difference"]), -0.03)


def test_a_dataset_of_another_size_is_not_compared_with_the_paper(tmp_path: Path) -> None:
    store, cell = CellStore(tmp_path), make_cell("uci", "cordgt", 0)
    store.write(cell, record(cell, 0.95, nodes=10, events=100))
    report = link_report(ExperimentRequest(["uci"], ["cordgt"], [0]), store, "ap")
    assert report.sections[0].rows[0][1:4] == ["–", "95.00", "–"]
    assert any("not uci as published" in note for note in report.notes)


def test_one_value_has_no_standard_deviation() -> None:
    assert Comparison((50.0,)).text == "50.00"
    assert Comparison(()).texts == ("–", "–", "–")


def test_a_cell_starts_only_if_it_fits_the_budget() -> None:
    cell, done = make_cell("uci", "cordgt", 1), record(make_cell("uci", "cordgt", 0), 0.9)
    assert expected_seconds(cell, []) is None
    assert expected_seconds(cell, [done]) == 10.0
    assert expected_seconds(cell, [done], elapsed=4.0) == 6.0
    assert expected_seconds(cell, [done], "cuda") is None
    assert expected_seconds(cell.with_kind("node"), [done]) is None
    slower = record(make_cell("uci", "cordgt", 0, {"mask": True}), 0.9, seconds=30.0)
    assert expected_seconds(cell, [done, slower]) == 10.0
    assert TimeBudget().allows(10.0)
    soon = TimeBudget(time.monotonic() + 5, 60)
    assert not soon.allows(10.0)
    assert soon.allows(4.0)
    assert soon.allows(None)
    assert soon.allows(100.0)  # too long for any call of a minute: started now, resumed in the next call


def test_a_time_limit_stops_like_a_signal() -> None:
    with (
        signals.time_limit(time.monotonic() - 1),
        signals.defer_signals() as stop,
        pytest.raises(TrainingStopped) as stopped,
    ):
        stop.raise_if_requested()
    assert stopped.value.is_timeout
    with signals.defer_signals() as stop:
        stop.raise_if_requested()


def test_paper_results_are_shown_in_all_rows_of_a_dataset_or_in_none(tmp_path: Path) -> None:
    request = ExperimentRequest(["uci", "enron"], ["cordgt", "tgat"], [0])

    def theirs(folder: str, request: ExperimentRequest, **changes: Any) -> dict[tuple[str, str], Any]:
        store, cell = CellStore(tmp_path / folder), make_cell("uci", "cordgt", 0, quick=request.quick)
        store.write(cell, record(cell, 0.9, **changes))
        report = link_report(request, store, "ap")
        assert all((k["ours"] is None) == ((k["data"], k["model"]) != ("uci", "cordgt")) for k in report.records)
        return {(k["data"], k["model"]): k["paper"] for k in report.records if k["setting"] == "transductive"}

    found = theirs("as published", request)
    assert None not in (found["uci", "cordgt"], found["uci", "tgat"])  # finished, and not yet
    assert found["enron", "cordgt"] is found["enron", "tgat"] is None  # nothing is known of the file here
    assert set(theirs("a prefix", request, events=1500).values()) == {None}
    assert set(theirs("quick", replace(request, quick=True), events=1500).values()) == {None}
    assert set(theirs("quick, and whole", replace(request, quick=True)).values()) == {None}


def test_ablation_records_have_no_paper_results_for_other_data(tmp_path: Path) -> None:
    request, store = ExperimentRequest(["uci"], ["cordgt"], [0]), CellStore(tmp_path)
    for cell in ablation_cells(request):
        store.write(cell, record(cell, 0.9, events=1500))
    report = ablation_report(request, store)
    assert {(k["paper"], k["paper_costs"]) for k in report.records} == {(None, None)}


def test_ablation_differences_use_the_same_seeds(tmp_path: Path) -> None:
    request, store = ExperimentRequest(["uci"], ["cordgt"], [0, 1]), CellStore(tmp_path)
    easy = {0: 0.5, 1: 0.9}  # the second seed's masked nodes are easy ones
    for cell in ablation_cells(request):
        masked = flatten_settings(cell.settings)["mask"]
        if masked or cell.seed == 0:  # the row without the mask is not finished for both
            store.write(cell, record(cell, easy[cell.seed] + (0.0 if masked else 0.01)))
    report = ablation_report(request, store)
    costs = {k["row"]: k["costs"] for k in report.records if k["metric"] == "ap"}
    assert costs["full"] == 0.0
    assert costs["no_mask"] == pytest.approx(1.0), "not 20 below, which the seeds alone would give"


def test_sensitivity_uses_the_shared_seeds(tmp_path: Path) -> None:
    """The default setting may have more seeds, from other experiments; its mean would differ by the draw alone."""
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["cordgt"], [0, 1, 2])
    for cell in sensitivity_cells(request):
        if cell.seed == 0 or cell.variant == "default":
            store.write(cell, record(cell, 0.9 + cell.seed / 100))
    report = sensitivity_report(request, store)
    assert {row["ours"] for row in report.records} == {90.0}
    assert {row["seeds"] for row in report.records} == {1}
    for cell in sensitivity_cells(request):
        store.write(cell, record(cell, 0.9 + cell.seed / 100))
    assert {row["ours"] for row in sensitivity_report(request, store).records} == {91.0}


def test_finished_cells_without_a_common_seed_are_not_shown(tmp_path: Path) -> None:
    """This happens while the shares of several machines are incomplete; a note says so."""
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["cordgt"], [0, 1])
    for seed in request.seeds:
        for cell in [cell for cell in sensitivity_cells(request) if cell.seed == seed][seed::2]:
            store.write(cell, record(cell, 0.9))
    report = sensitivity_report(request, store)
    assert {row["ours"] for row in report.records} == {None}
    assert "uci, batch size: the finished cells share no seed, so none is shown." in report.notes
    assert report.draw is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a legend of nothing would be one
        report.draw(tmp_path / "it.png")


def test_a_setting_without_cells_does_not_hide_the_others(tmp_path: Path) -> None:
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["cordgt"], [0, 1])
    for cell in sensitivity_cells(request):
        if flatten_settings(cell.settings)["batch_size"] != 50:
            store.write(cell, record(cell, 0.9))
    found = {row["setting"]: row["seeds"] for row in sensitivity_report(request, store).records}
    assert found.pop("batch_size=50 visibility=paper") == 0
    assert set(found.values()) == {2}


@pytest.mark.parametrize("kind", ["link", "hard", "ranking"])
def test_a_note_names_cells_with_constant_scores(tmp_path: Path, kind: str) -> None:
    store = CellStore(tmp_path)
    guessing = {"ap": 0.5, "auc": 0.5, "ap_batch": 0.5, "auc_batch": 0.5, "events": 100}
    constant = {"figures": {"test": {"transductive": guessing, "inductive": guessing}}}
    cells = [make_cell("uci", "cordgt", 0, changes, kind=kind) for changes in ({}, {"mask": True}, {"fanout": (8, 1)})]
    rule = make_cell("uci", "popularity", 0, kind=kind)  # not trained: a constant score is no defect
    for cell in (*cells, rule):
        epochs = {"epochs": 0 if cell is rule else 3}
        store.write(cell, record(cell, 0.9, **epochs, **({} if cell is cells[0] else constant)))
    results = ResultSet(ExperimentRequest([], [], []), store, [*cells, rule])
    notes = [note for note in results.notes() if "same score" in note]
    assert [note.split("**")[1] for note in notes] == [
        "uci, cordgt, mask-true, seed 0",
        "uci, cordgt, fanout-8x1, seed 0",
    ]
    assert all("lr=0.001" in note for note in notes)


@pytest.mark.parametrize("quick", [False, True])
def test_a_twin_is_compared_with_the_papers_seconds(tmp_path: Path, quick: bool) -> None:
    """But not with --quick, which uses only its first events."""
    store, request = CellStore(tmp_path), ExperimentRequest(["food-twin"], ["cordgt", "cawn"], [0], quick=quick)
    stream = {"nodes": 673858, "events": 2708688, "fingerprint": "1", "differs": ""}
    for cell in scalability_cells(request):
        store.write(cell, record(cell, 0.8, stream=stream, seconds_per_epoch=30.0, peak_memory_mb=100.0, epochs=1))
    report = scalability_report(request, store)
    known = {"CorDGT-10": 3319, "CorDGT-20": None, "CAWN": 3234}
    assert {k["model"]: k["paper_seconds"] for k in report.records} == (dict.fromkeys(known) if quick else known)
    assert any("food-twin" in note and "is not food" in note for note in report.notes)
    assert any("can be compared with the paper's" in note for note in report.notes) is not quick


def test_heatmap_report_shows_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, request = CellStore(tmp_path), ExperimentRequest(["uci"], ["cordgt"], [0, 1])
    grid: dict[str, Any] = {"groups": ["near", "far"], "mean": [[1.0, None], [0.5, 0.25]], "nodes": [[1000, 0], [2, 3]]}
    for cell in heatmap_cells(request):
        own = grid if cell.seed == 0 else grid | {"mean": [[1.0, None], [None, 0.25]], "nodes": [[1000, 0], [0, 3]]}
        store.write(cell, record(cell, 0.9, figures={"pairs": 10, "td": own, "sd": own}))
    report = heatmap_report(request, store)
    assert report.sections[0].rows == [
        ["source: near", "1.00 ± 0.00 (2,000)", "–"],
        ["source: far", "0.50 (2)", "0.25 ± 0.00 (6)"],
    ]
    plotted_counts: list[np.ndarray] = []
    monkeypatch.setattr(
        plots, "annotated_heatmap", lambda *_, counts: plotted_counts.append(counts) or ScalarMappable()
    )
    assert report.draw is not None
    report.draw(tmp_path / "it.png")
    assert [counts.tolist() for counts in plotted_counts] == [[[2000, 0], [2, 6]]] * 2
    nothing = heatmap_report(ExperimentRequest(["enron"], ["cordgt"], [0]), store)
    assert nothing.draw is not None
    nothing.draw(tmp_path / "blank.png")


def test_an_empty_panel_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    @contextmanager
    def recording_figure(*args: Any, **options: Any) -> Iterator[Any]:
        with figure(*args, **options) as (made, axes):
            yield made, axes
            texts.extend(text.get_text() for place in axes.flat for text in place.texts)
            texts.extend(text.get_text() for legend in made.legends for text in legend.get_texts())

    figure = plots.figure
    monkeypatch.setattr(plots, "figure", recording_figure)
    panels = {
        ("", "a"): {"x": Comparison((), None, 2)},
        ("", "b"): {"x": Comparison(())},
        ("", "c"): {"x": Comparison((50.0,))},
    }
    plots.dot_plot(tmp_path / "a.png", "title", panels, "AUC, %")
    assert texts[:2] == ["not defined on these data", "not finished yet"]
    assert len(texts) == 3 and "here" in texts[2]  # no legend of what is not shown


def test_paper_results() -> None:
    for metric in ("ap", "auc"):
        for setting in ("transductive", "inductive"):
            for model in paper.LINK_MODELS:
                for data in paper.LINK_DATASETS:
                    assert paper.link_result(metric, setting, model, data) is not None
    assert paper.link_result("ap", "inductive", "cordgt", "uci") == (94.7, 1.0)
    assert paper.ablation_result("ap", "stpe_u", "uci") == (64.32, 4.6)
    assert paper.node_auc("cordgt", "wikipedia") == (88.16, 0.3)
    assert paper.link_result("ap", "inductive", "dygformer", "uci") is None


def test_unknown_experiments_and_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cordgt.experiments.cells import choose_datasets

    monkeypatch.setenv("CORDGT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SettingError, match="Did you mean 'link-ap'"):
        catalogue.find_experiment("link-pa")
    with pytest.raises(DataError, match="None of this experiment's datasets"):
        choose_datasets(None, ("uci", "enron"))
    with pytest.raises(DataError, match="uci was not found"):
        choose_datasets("uci", ("uci",))
    with pytest.raises(SettingError, match="not paths"):
        choose_datasets("data/uci.csv", ("uci",))
    assert choose_datasets("uci", ("uci",), require_data=False) == ["uci"]
    assert choose_datasets(None, ("uci", "food-twin")) == ["food-twin"]
    assert choose_datasets(None, ("uci", "food"), twins=True) == ["food-twin"]
    rows = {row["name"]: row for row in list_experiments(CellStore(tmp_path), "cpu")}
    assert rows["complexity"]["data"] == "food-twin"  # of UCI there is no twin


def test_cells_are_plain_json(tmp_path: Path) -> None:
    store, cell = CellStore(tmp_path), make_cell("uci", "cordgt", 0)
    with pytest.raises(ValueError, match="JSON"):
        store.write(cell, record(cell, float("nan")))
    assert store.read(cell) is None
    store.write(cell, record(cell, 0.5))
    assert json.loads(store.path(cell).read_text())["format"] == 2


def test_labels_of_near_points_do_not_overlap(tmp_path: Path) -> None:
    points = [(1.0, 1.0, "CorDGT-10", "black"), (1.02, 1.0, "CorDGT-20", "black"), (1.0, 1.02, "CorDGT+", "black")]
    with plots.figure(tmp_path / "labels.png", 1, 1, (5, 4)) as (canvas, axes):
        axis = axes[0][0]
        axis.set(xlim=(0.5, 1.5), ylim=(0.5, 1.5))
        plots.label_points(axis, points)
        canvas.draw_without_rendering()
        boxes = [text.get_window_extent() for text in axis.texts]
    assert [text.get_text() for text in axis.texts] == [point[2] for point in points]
    assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])


def test_ranking_figure_has_a_panel_for_each_rule(tmp_path: Path) -> None:
    def row(name: str, rule: str, mrr: float) -> RankingRow:
        return RankingRow(name, rule, Comparison((), Reported(mrr, 0.0)))

    rows = [row("a", "event", 80.0), row("b", "batch", 70.0), row("c", "", 10.0)]
    _draw_ranking(tmp_path / "ranking.png", title="MRR", rows_by_data={"wikipedia *": rows})
    assert (tmp_path / "ranking.png").stat().st_size > 5000
