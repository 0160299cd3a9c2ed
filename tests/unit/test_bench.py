"""The benchmark suite at small size: every metric is there and they are consistent. Their values are not tested."""

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
from cordgt.experiments.bench.hardware import HardwareLimits
from cordgt.experiments.bench.rows import BenchRow
from cordgt.experiments.bench.setup import BenchSetup
from cordgt.experiments.bench.timing import Timing, time_calls
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.models.cordgt import Cordgt
from cordgt.runtime.distributed import ProcessGroup
from cordgt.training import oom
from cordgt.training.settings import make_settings

CPU = torch.device("cpu")
SMALL = {"hidden": 8, "heads": 2, "layers": 1, "fanout": (2, 1), "td_dim": 8, "sd_dim": 8, "batch_size": 20}
LIMITS = HardwareLimits(1e9, 1e9, 1e-6, 1, "a machine", "fp32")


def make_bench(model: str = "cordgt") -> BenchSetup:
    keys = SMALL if model == "cordgt" else {}
    return BenchSetup(
        synthetic_stream(nodes=30, events=400, seed=2).stream,
        make_settings(model, keys),
        CPU,
        LIMITS,
        repeat=1,
        quick=True,
    )


def test_stateful_model_gets_consecutive_batches() -> None:
    bench = make_bench("jodie")
    train = torch.from_numpy(bench.task.split.train)
    size, middle = len(train) // 4, len(train) // 2
    for start in (middle, middle + size, 0, size):  # from the middle on; from the start if too few are left
        assert torch.equal(bench.next_batch(size)[0], train[start : start + size])
    stateless = make_bench()
    assert torch.equal(stateless.next_batch(size)[0], stateless.next_batch(size)[0])


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return suite.run_stages(make_bench(), suite.STAGE_NAMES)


def test_every_stage_has_a_row_and_a_metric(result: dict[str, Any]) -> None:
    assert {row["stage"] for row in result["stages"]} == set(suite.STAGE_NAMES) - {"machine"}
    assert result["left_out"] == []
    for key in (
        "step_ms index_seconds sample_roots_per_second pairs_per_second read_ms encode_ms step_gflop "
        "step_peak_mb evaluate_events_per_second recommend_partners_per_second"
    ).split():
        assert result[key] > 0, key
    assert result["attention_ms"] >= 0  # a difference of two times, which is 0 if other work disturbs them
    assert result["data"]["name"] == "synthetic"
    json.dumps(result)


def test_step_parts(result: dict[str, Any]) -> None:
    parts = {row["part"]: row for row in result["stages"] if row["stage"] == "step"}
    assert " ".join(parts).replace("· ", "") == (
        "whole queries read trees distances forward tokens layers backward adam"
    )
    assert parts["whole"]["share"] == 1
    assert (
        parts["· layers"]["gflop"] + parts["· tokens"]["gflop"] < result["step_gflop"] / 2
    )  # backward is twice forward


def test_memory_grows_with_the_batch(result: dict[str, Any]) -> None:
    peaks = result["memory"]["peak_mb"]
    assert list(peaks) == ["5", "10", "20"]
    assert peaks["5"] < peaks["10"] < peaks["20"]
    assert result["memory"]["any_batch_fits"] and result["memory"]["batch_that_fits"] is None
    part = result["memory"]["at_once"]
    assert part > 20
    assert result["memory"]["at_once_mb"] == pytest.approx(part / 20 * peaks["20"], rel=0.1)


@pytest.mark.parametrize(
    ("free", "at_once", "message"),
    [
        (2**40, 6, r"6 events at a time, with a peak of \d+ MB. Any batch size fits in the 1,024.0 GB"),
        (2**16, 6, r"6 events at a time, with a peak of \d+ MB. This exceeds the 0.0 GB .*: about [1-5] events fit"),
        (2**40, None, r"About \d[\d,]+ events fit in the 1,024.0 GB"),
    ],
    ids=["chunk fits", "chunk does not fit", "no chunks"],
)
def test_which_batch_size_fits(monkeypatch: pytest.MonkeyPatch, free: int, at_once: int | None, message: str) -> None:
    """The peak grows linearly up to a chunk, and not beyond."""
    monkeypatch.setattr(Cordgt, "chunk_size", at_once)
    monkeypatch.setattr(stages, "free_memory", lambda _: free)
    memory = stages.measure_memory(make_bench())
    assert list(memory["peak_mb"]) == (["1", "3", "6", "20"] if at_once else ["5", "10", "20"])
    assert (memory["batch_that_fits"] is None) == memory["any_batch_fits"]
    lines = report.summary_lines({"memory": memory})
    assert any(re.search(message, line) for line in lines), lines


def test_out_of_memory_is_reported_as_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"^Memory ran out\. Use a smaller batch_size \(now 1000000000000\)[^.]*\.$"):
        bench = make_bench()
        training = replace(bench.settings.training, batch_size=10**12)
        suite.run_stages(replace(bench, settings=replace(bench.settings, training=training)), ["step"])

    def fails(_: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setitem(stages.STAGES, "evaluate", fails)
    monkeypatch.setattr(oom, "free_memory", lambda _: 2**17)
    with pytest.raises(RunError, match=r"batch_size=[1-9] fits in the 0\.0 GB"):
        suite.run_stages(make_bench(), ["evaluate"])
    monkeypatch.setattr(scaling, "measure_full_step", fails)
    with pytest.raises(RunError, match=r"Memory ran out"):
        scaling.measure_growth(make_bench())


def test_table_and_summary(result: dict[str, Any]) -> None:
    table = report.stages_table(result)
    assert table.row_count == len(result["stages"])
    assert report.hardware_line(result) == "a machine, 1 threads: 1 GFLOP/s (fp32), 1.0 GB/s, 1.0 μs per operation"
    lines = report.summary_lines(result)
    assert any("Any batch size fits" in text for text in lines)
    assert any("GFLOP would take" in text and "memory traffic" in text for text in lines)


def test_measured_step_follows_the_settings() -> None:
    """Number of negatives and moving average, in the step, in its parts, and among processes."""
    bench = replace(make_bench(), settings=make_settings("cordgt", SMALL | {"num_negatives": 3, "ema_decay": 0.9}))
    assert bench.next_queries().dst.shape == (20, 4)
    step = multiprocess.make_shared_step(bench, ProcessGroup(1, 2))
    assert (step.num_negatives, step.task.group) == (3, ProcessGroup(1, 2))
    assert step.ema is not None and step.ema.decay == 0.9


def test_transductive_model_has_a_vector_for_every_node() -> None:
    assert len(make_bench("ctdne").model.state_dict()["vectors"]) == make_bench().stream.n_nodes


@pytest.mark.parametrize(("precision", "products"), [("bf16", "high"), ("tf32", "high"), ("fp32", "highest")])
def test_limits_are_measured_in_the_precision_of_training(
    monkeypatch: pytest.MonkeyPatch, precision: str, products: str
) -> None:
    before, used = torch.get_float32_matmul_precision(), []

    def measure(*_: Any, **__: Any) -> HardwareLimits:
        used.append(torch.get_float32_matmul_precision())
        return LIMITS

    monkeypatch.setattr(suite.hardware, "measure_limits", measure)
    settings = make_settings("cordgt", {"precision": precision})
    try:
        suite.prepare(make_bench().stream, settings, torch.device("cuda"), repeat=1, quick=True)
    finally:
        torch.set_float32_matmul_precision(before)
    assert used == [products]


def test_model_without_parameters_has_no_step() -> None:
    with pytest.raises(SettingError, match="edgebank has nothing to train"):
        suite.run_stages(make_bench("edgebank"), ["step"])
    result = suite.run_stages(make_bench("edgebank"), ["index", "step", "encode", "attention", "evaluate"])
    assert [row["stage"] for row in result["stages"]] == ["index", "evaluate"]
    assert len(result["left_out"]) == 2  # two stages are skipped for the same reason, which is listed once


def test_growth_and_plot(tmp_path: Path) -> None:
    result = scaling.measure_growth(make_bench())
    assert [row["events"] for row in result["events"]] == [25, 100, 400]
    assert [row["fanout"] for row in result["context"]] == [[2, 1], [4, 1], [8, 1]]
    gflop = [row["step_gflop"] for row in result["context"]]
    assert gflop[0] < gflop[1] < gflop[2]
    assert report.growth_table(result).row_count == 6
    scaling.plot_growth(result, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SettingError, match="popularity has none"):
        scaling.measure_growth(make_bench("popularity"))
    few = scaling.first_events(make_bench().stream, 4)
    with pytest.raises(DataError, match="4 events are too few"):
        scaling.measure_growth(replace(make_bench(), stream=few))


def test_trace(tmp_path: Path) -> None:
    suite.write_trace(make_bench(), tmp_path / "step.json")
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]


def test_hardware_shares() -> None:
    row = BenchRow(stage="s", timing=Timing(2.0, 1.9, 2.2, 3), flops=10**9, n_bytes=10**8, items=4, unit="events")
    assert row.hardware_shares(LIMITS) == {"matrix": 0.5, "memory": 0.05}
    assert row.rate == 2
    assert replace(row, flops=None).hardware_shares(LIMITS) == {"memory": 0.05}
    assert replace(row, flops=None, n_bytes=None).hardware_shares(LIMITS) == {}


def test_short_work_is_repeated_within_a_sample() -> None:
    calls = 0

    def work() -> None:
        nonlocal calls
        calls += 1

    timing = time_calls(work, CPU, repeat=3)
    assert timing.samples == 3 and timing.low <= timing.median <= timing.high
    assert calls > 100


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (45e-6, "45 μs"), (1234.0, "1,234 s"), (0.0, "0 μs")]
)
def test_durations(seconds: float, text: str) -> None:
    assert report.format_duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(1.5e6, "1.5M"), (2e9, "2G"), (1500, "1.5k"), (12.34, "12.3")])
def test_quantities(value: float, text: str) -> None:
    assert report.format_quantity(value) == text
