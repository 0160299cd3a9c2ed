"""The benchmark suite at toy size: it runs, its figures are there and hang together. How large they are is no test."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cordgt.errors import DataError, RunError, SettingError
from cordgt.experiments.bench import multiprocess, report, scaling, stages, suite
from cordgt.experiments.bench.hardware import Limits
from cordgt.experiments.bench.rows import Row
from cordgt.experiments.bench.setup import Place
from cordgt.experiments.bench.step_parts import queries_of
from cordgt.experiments.bench.timing import Timing, timed
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.models.cordgt import Cordgt
from cordgt.runtime.distributed import Group
from cordgt.training import oom
from cordgt.training.settings import make

CPU = torch.device("cpu")
SMALL = {"hidden": 8, "heads": 2, "layers": 1, "fanout": (2, 1), "td_dim": 8, "sd_dim": 8, "batch_size": 20}
LIMITS = Limits(1e9, 1e9, 1e-6, 1, "a machine", "fp32")


def place(model: str = "cordgt") -> Place:
    keys = SMALL if model == "cordgt" else {}
    return Place(
        synthetic_stream(nodes=30, events=400, seed=2).stream, make(model, keys), CPU, LIMITS, repeat=1, quick=True
    )


def test_a_memory_is_shown_one_batch_after_the_other() -> None:
    here = place("jodie")
    train = torch.from_numpy(here.task.split.train)
    size, middle = len(train) // 4, len(train) // 2
    for start in (middle, middle + size, 0, size):  # from the middle on; from the start where too few are left
        assert torch.equal(here.batch(size)[0], train[start : start + size])
    again = place()
    assert torch.equal(again.batch(size)[0], again.batch(size)[0])


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return suite.run(place(), suite.ALL)


def test_every_stage_has_its_row_and_its_figure(found: dict[str, Any]) -> None:
    assert {row["stage"] for row in found["stages"]} == set(suite.ALL) - {"machine"}
    assert found["left_out"] == []
    for key in (
        "step_ms index_seconds sample_roots_per_second pairs_per_second read_ms encode_ms attention_ms step_gflop "
        "step_peak_mb evaluate_events_per_second recommend_partners_per_second"
    ).split():
        assert found[key] > 0, key
    assert found["data"]["name"] == "synthetic"
    json.dumps(found)


def test_the_parts_of_a_step(found: dict[str, Any]) -> None:
    parts = {row["part"]: row for row in found["stages"] if row["stage"] == "step"}
    assert " ".join(parts).replace("· ", "") == (
        "whole queries read trees distances forward tokens layers head backward adam"
    )
    assert parts["whole"]["share"] == 1
    assert (
        parts["· layers"]["gflop"] + parts["· tokens"]["gflop"] < found["step_gflop"] / 2
    )  # backward is twice forward


def test_memory_grows_with_the_batch(found: dict[str, Any]) -> None:
    peaks = found["memory"]["peak_mb"]
    assert list(peaks) == ["5", "10", "20"]
    assert peaks["5"] < peaks["10"] < peaks["20"]
    assert found["memory"]["any_batch_fits"] and found["memory"]["batch_that_fits"] is None
    part = found["memory"]["at_once"]
    assert part > 20
    assert found["memory"]["at_once_mb"] == pytest.approx(part / 20 * peaks["20"], rel=0.1)


@pytest.mark.parametrize(
    ("free", "at_once", "said"),
    [
        (2**40, 6, r"6 events at a time, \d+ MB at the peak: in the 1,024.0 GB free now a batch of any size fits"),
        (2**16, 6, r"6 events at a time, \d+ MB at the peak, which the 0.0 GB free now do not hold: about [1-5] ev"),
        (2**40, None, r"In the 1,024.0 GB free now, about \d[\d,]+ fit"),
    ],
    ids=["a part fits", "no part fits", "no parts"],
)
def test_what_fits(monkeypatch: pytest.MonkeyPatch, free: int, at_once: int | None, said: str) -> None:
    """The line goes through sizes up to a part; beyond it the peak stays what it is."""
    monkeypatch.setattr(Cordgt, "micro_batch_size", at_once)
    monkeypatch.setattr(stages, "free_memory", lambda _: free)
    held = stages.memory(place())
    assert list(held["peak_mb"]) == (["1", "3", "6", "20"] if at_once else ["5", "10", "20"])
    assert (held["batch_that_fits"] is None) == held["any_batch_fits"]
    assert any(re.search(said, text) for text in report.sentences({"memory": held})), report.sentences({"memory": held})


def test_memory_that_runs_out_is_said_as_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"^Memory ran out. With a smaller batch_size \(now 1000000000000\).* less\.$"):
        at = place()
        training = replace(at.settings.training, batch_size=10**12)
        suite.run(replace(at, settings=replace(at.settings, training=training)), ["step"])

    def fails(_: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setitem(stages.STAGES, "evaluate", fails)
    monkeypatch.setattr(oom, "free_memory", lambda _: 2**17)
    with pytest.raises(RunError, match=r"By a step of 8 events, batch_size=[1-9] would fit the 0.0 GB that are free"):
        suite.run(place(), ["evaluate"])
    monkeypatch.setattr(scaling, "whole_step", fails)
    with pytest.raises(RunError, match=r"Memory ran out"):
        scaling.grow(place())


def test_a_table_and_sentences(found: dict[str, Any]) -> None:
    table = report.stages_table(found)
    assert table.row_count == len(found["stages"])
    assert report.machine_line(found) == "a machine, 1 threads: 1 GFLOP/s (fp32), 1.0 GB/s, 1.0 μs an operation"
    said = report.sentences(found)
    assert any("a batch of any size fits" in text for text in said)
    assert any("at the matrix rate" in text and "at the bandwidth" in text for text in said)


def test_what_is_measured_is_the_step_that_settings_ask_for() -> None:
    """Its candidates and its average, in the step, in its parts, and where processes share it."""
    asked = replace(place(), settings=make("cordgt", SMALL | {"num_negatives": 3, "ema_decay": 0.9}))
    assert queries_of(asked).dst.shape == (20, 4)
    step = multiprocess.shared_step(asked, Group(1, 2))
    assert (step.num_negatives, step.task.group) == (3, Group(1, 2))
    assert step.ema is not None and step.ema.decay == 0.9


def test_a_network_that_knows_nodes_by_number_has_all_of_them() -> None:
    assert len(place("ctdne").model.state_dict()["vectors"]) == place().stream.n_nodes


@pytest.mark.parametrize(("precision", "products"), [("bf16", "high"), ("tf32", "high"), ("fp32", "highest")])
def test_limits_are_measured_in_the_precision_of_training(
    monkeypatch: pytest.MonkeyPatch, precision: str, products: str
) -> None:
    before, at_work = torch.get_float32_matmul_precision(), []

    def measure(*_: Any, **__: Any) -> Limits:
        at_work.append(torch.get_float32_matmul_precision())
        return LIMITS

    monkeypatch.setattr(suite.machine, "measure", measure)
    settings = make("cordgt", {"precision": precision})
    try:
        suite.prepare(place().stream, settings, torch.device("cuda"), repeat=1, quick=True)
    finally:
        torch.set_float32_matmul_precision(before)
    assert at_work == [products]


def test_a_rule_has_no_step() -> None:
    with pytest.raises(SettingError, match="edgebank has nothing to train"):
        suite.run(place("edgebank"), ["step"])
    found = suite.run(place("edgebank"), ["index", "step", "encode", "attention", "evaluate"])
    assert [row["stage"] for row in found["stages"]] == ["index", "evaluate"]
    assert len(found["left_out"]) == 2  # two stages are left out for the same reason: it is said once


def test_growth_and_its_plot(tmp_path: Path) -> None:
    found = scaling.grow(place())
    assert [k["events"] for k in found["events"]] == [25, 100, 400]
    assert [k["fanout"] for k in found["context"]] == [[2, 1], [4, 1], [8, 1]]
    gflop = [k["step_gflop"] for k in found["context"]]
    assert gflop[0] < gflop[1] < gflop[2]
    assert report.growth_table(found).row_count == 6
    scaling.plot(found, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SettingError, match="popularity has none"):
        scaling.grow(place("popularity"))
    few = scaling.first_events(place().stream, 4)
    with pytest.raises(DataError, match="4 events are too few to see cost grow"):
        scaling.grow(replace(place(), stream=few))


def test_a_trace(tmp_path: Path) -> None:
    suite.trace(place(), tmp_path / "step.json")
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]


def test_fractions_of_both_limits() -> None:
    row = Row(stage="s", timing=Timing(2.0, 1.9, 2.2, 3), flops=10**9, bytes=10**8, items=4, unit="events")
    assert row.fractions(LIMITS) == {"matrix": 0.5, "memory": 0.05}
    assert row.rate == 2
    assert replace(row, flops=None).fractions(LIMITS) == {"memory": 0.05}
    assert replace(row, flops=None, bytes=None).fractions(LIMITS) == {}


def test_quick_work_is_repeated_within_a_sample() -> None:
    calls = 0

    def work() -> None:
        nonlocal calls
        calls += 1

    timing = timed(work, CPU, repeat=3)
    assert timing.samples == 3 and timing.low <= timing.median <= timing.high
    assert calls > 100


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (45e-6, "45 μs"), (1234.0, "1,234 s"), (0.0, "0 μs")]
)
def test_durations(seconds: float, text: str) -> None:
    assert report.duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(1.5e6, "1.5M"), (2e9, "2G"), (1500, "1.5k"), (12.34, "12.3")])
def test_quantities(value: float, text: str) -> None:
    assert report.quantity(value) == text
