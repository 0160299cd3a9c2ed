"""Distributed training and evaluation, simulated rank by rank in one process; and the launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cordgt.callbacks import Callback
from cordgt.errors import RunError, SettingError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.experiments.bench import multiprocess as shared_bench
from cordgt.experiments.bench.hardware import HardwareLimits
from cordgt.experiments.bench.setup import BenchSetup
from cordgt.models.base import LinkModel
from cordgt.runtime import distributed, launch
from cordgt.runtime.distributed import ProcessGroup
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import compute_ranks
from cordgt.tasks.scoring import score_queries
from cordgt.training.model_factory import build_model
from cordgt.training.settings import Settings, make_settings
from cordgt.training.step import Step
from cordgt.training.trainer import check_distributed_support

DEVICE = torch.device("cpu")
SMALL = {"hidden": 8, "heads": 2, "fanout": (3,), "td_dim": 8, "sd_dim": 8, "layers": 1}


@dataclass(frozen=True)
class RecordingGroup(ProcessGroup):
    """A process of a group without the others: it records what it would sum, and returns it unchanged."""

    inputs: list[torch.Tensor] = field(default_factory=list)

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        self.inputs.append(tensor.clone())
        return tensor


@cache
def make_task() -> LinkTask:
    draw = np.random.default_rng(0)
    src = draw.integers(0, 9, 150)
    stream = EventStream.from_columns(
        src, 10 + (src + draw.integers(0, 3, 150)) % 9, draw.choice([0, 1, 2], 150).cumsum(), time=TimeAxis("number")
    )
    return LinkTask.prepare(stream, settings().protocol, seed=3, device=DEVICE)


def settings(model: str = "cordgt", **changes: Any) -> Settings:
    return make_settings(model, (SMALL if model == "cordgt" else {}) | changes, seed=3)


def make_shared_task(group: ProcessGroup) -> LinkTask:
    return with_changes(make_task(), group=group)


def gradients(
    group: ProcessGroup, n: int, *, micro_batches: int = 0, dropout: float = 0.0
) -> tuple[list[torch.Tensor], float]:
    """Return gradients and loss of one step on ``n`` events with a learning rate of 0."""
    model = build_model(settings(dropout=dropout), edge_dim=0, node_dim=0).train()
    step = Step(
        model, make_shared_task(group), torch.optim.SGD(model.parameters(), lr=0.0), 3, 1, micro_batches=micro_batches
    )
    torch.manual_seed(5)
    loss = step(torch.from_numpy(make_task().split.train[-n:]), torch.ones(n))
    return [q.grad.clone() for q in model.parameters() if q.grad is not None], float(loss)


# -------------------- shards


@given(n=st.integers(0, 50), size=st.integers(1, 9), chunk=st.integers(1, 7))
def test_shards_cover_all_items_once_in_whole_chunks(n: int, size: int, chunk: int) -> None:
    shards = [ProcessGroup(rank, size).shard(n, chunk) for rank in range(size)]
    assert [i for shard in shards for i in range(n)[shard]] == list(range(n))
    assert all(shard.start % chunk == 0 or shard.start == n for shard in shards)
    assert max(s.stop - s.start for s in shards) - min(s.stop - s.start for s in shards) < 2 * chunk


# -------------------- gradients


@pytest.mark.parametrize(("n", "size"), [(20, 2), (20, 3), (3, 5), (1, 4)])
def test_gradients_of_shards_sum_to_the_batch(n: int, size: int) -> None:
    """Also with fewer events than processes."""
    expected, loss = gradients(ProcessGroup(), n)
    groups = [RecordingGroup(rank, size) for rank in range(size)]
    for group in groups:
        gradients(group, n)
    total = torch.stack([group.inputs[0] for group in groups]).sum(0)[0]
    torch.testing.assert_close(total[:-1], torch.cat([g.flatten() for g in expected]), rtol=1e-4, atol=1e-6)
    assert float(total[-1]) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(("n", "size"), [(20, 2), (20, 3), (3, 5)])
def test_micro_batches_are_bit_identical_for_any_number_of_processes(n: int, size: int) -> None:
    """Including dropout."""
    one, groups = RecordingGroup(), [RecordingGroup(rank, size) for rank in range(size)]
    for group in (one, *groups):
        gradients(group, n, micro_batches=4, dropout=0.5)
    alone, together = one.inputs[0], torch.stack([group.inputs[0] for group in groups]).sum(0)
    assert torch.equal(together, alone)
    assert len(alone) == min(4, n)
    assert not torch.equal(alone[0], alone[1])


def test_gradients_of_micro_batches_sum_to_the_batch() -> None:
    (expected, loss), (found, other) = gradients(ProcessGroup(), 20), gradients(ProcessGroup(), 20, micro_batches=3)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert other == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_each_process_has_its_own_dropout(dropout: float) -> None:
    """With the same events, negatives and trees."""
    model = build_model(settings(dropout=dropout), edge_dim=0, node_dim=0).train()
    groups = [RecordingGroup(number, 2) for number in range(2)]
    for group in groups:
        torch.manual_seed(5)
        step = Step(model, make_shared_task(group), torch.optim.SGD(model.parameters(), lr=0.0), 3, 1)
        step(torch.full((6,), int(make_task().split.train[-1])), torch.ones(6))
    assert torch.equal(groups[0].inputs[0], groups[1].inputs[0]) is (dropout == 0)


# -------------------- evaluation


def trained() -> LinkModel:
    return build_model(settings(), edge_dim=0, node_dim=0)


class Counter(Callback):
    n = 0

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.n += n


class StageRecorder(Callback):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def on_stage_start(self, name: str, total: int | None) -> None:
        self.stages.append(name)


@pytest.mark.parametrize("size", [2, 3, 11])
def test_scores_do_not_depend_on_the_number_of_processes(size: int) -> None:
    model, task = trained(), make_task()
    _, queries = task.evaluation_queries("test", "transductive")
    expected = score_queries(model, task.full_history, queries, max_pairs_per_batch=8)
    groups = [RecordingGroup(rank, size) for rank in range(size)]
    counters = [Counter() for _ in groups]
    for counter, group in zip(counters, groups, strict=True):
        score_queries(model, task.full_history, queries, max_pairs_per_batch=8, group=group, callbacks=counter)
    assert np.array_equal(sum(group.inputs[0].numpy() for group in groups), expected)
    assert max(counter.n for counter in counters) <= len(expected)


def test_ranks_do_not_depend_on_the_number_of_processes() -> None:
    protocol = with_changes(make_task().protocol, ranking="5")
    model, task = trained(), with_changes(make_task(), protocol=protocol)
    expected = compute_ranks(model, task, "test", "transductive", max_pairs_per_batch=20)
    groups = [RecordingGroup(number, 3) for number in range(3)]
    for group in groups:
        compute_ranks(model, with_changes(task, group=group), "test", "transductive", max_pairs_per_batch=20)
    assert np.array_equal(sum(group.inputs[-1].numpy() for group in groups), expected)


# -------------------- supported models, same inputs, lost processes


def test_stateful_models_train_in_one_process() -> None:
    with pytest.raises(SettingError, match=r"tgn .* trains in one process"):
        check_distributed_support(settings("tgn"), ProcessGroup(0, 2))
    with pytest.raises(SettingError, match="micro_batches"):
        check_distributed_support(settings("tgn", micro_batches=2), ProcessGroup())
    check_distributed_support(settings("tgat"), ProcessGroup(0, 2))


@dataclass(frozen=True)
class FakeGroup(ProcessGroup):
    others: tuple[dict[str, str], ...] = ()

    def all_gather(self, value: Any) -> list[Any]:
        return [value, *(("elsewhere", other) for other in self.others)]


def test_error_names_the_process_with_other_inputs() -> None:
    ours = {"lr": "0.001", "the data": "7 events"}
    distributed.check_same_inputs(FakeGroup(0, 2, (ours,)), ours)
    with pytest.raises(RunError, match=r"process 2 on elsewhere, lr is 0\.01 \(process 0: 0\.001\)"):
        distributed.check_same_inputs(FakeGroup(0, 3, (ours, ours | {"lr": "0.01"})), ours)


def test_library_messages_are_shortened() -> None:
    message = (
        "[/a/gloo/tcp/pair.cc:537] Read error [::1]:18: Connection reset by peer. This is typically caused by\nmore"
    )
    assert distributed._reason(RuntimeError(message)) == "Read error [::1]:18: Connection reset by peer"


@pytest.mark.parametrize("ignores", [False, True])
def test_sigterm_is_ignored_after_a_loss_only_on_request(ignores: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Connection reset by peer")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(distributed, "_ignores_sigterm_after_loss", ignores)
    try:
        with pytest.raises(distributed.ProcessLostError, match="ended or does not respond: Connection reset"):
            distributed._run_collective(fail)
        assert signal.getsignal(signal.SIGTERM) is (signal.SIG_IGN if ignores else before)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_is_not_a_lost_process(error: RuntimeError) -> None:
    def too_large() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        distributed._run_collective(too_large)
    assert raised.value is error


def test_collectives_of_a_single_process() -> None:
    group = distributed.current_group()
    assert (group.world_size, group.is_main_process, group.all_reduce_max(7), group.broadcast("x")) == (1, True, 7, "x")
    assert group.all_gather(3) == [3]
    tensors = {"a": torch.arange(3)}
    assert group.broadcast_tensors(tensors) == tensors
    assert distributed.claim_error_report(RunError("x")) == ""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"WORLD_SIZE": "2"}, False),  # set by some schedulers without torchrun
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "x", "MASTER_PORT": "1"}, True),
        ({"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "x", "MASTER_PORT": "1"}, False),
        ({"WORLD_SIZE": "2", "RANK": "0", distributed.RENDEZVOUS: "/x"}, True),
    ],
)
def test_is_distributed(environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", distributed.RENDEZVOUS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert distributed.is_distributed() is expected


@pytest.mark.parametrize("minutes", ["0", "soon", "-1", "nan"])
def test_timeout_must_be_a_positive_number(minutes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(distributed.TIMEOUT_VARIABLE, minutes)
    with pytest.raises(SettingError, match="number of minutes above 0"):
        distributed._timeout_minutes()


# -------------------- launching, with children that need no torch


def launch_code(code: str, monkeypatch: pytest.MonkeyPatch, n: int = 2) -> int:
    start = subprocess.Popen

    def start_code(command: list[str], **options: Any) -> Any:
        return start([sys.executable, "-c", code], **options)

    monkeypatch.setattr(launch.subprocess, "Popen", start_code)
    return launch.launch(n, ["train"])


def test_environment_of_launched_processes(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    code = "import os; e = os.environ; print(e['RANK'], e['WORLD_SIZE'], e['OMP_NUM_THREADS'])"
    assert launch_code(code, monkeypatch) == 0
    threads = max(1, launch.available_cores() // 2)
    assert sorted(capfd.readouterr().out.splitlines()) == [f"0 2 {threads}", f"1 2 {threads}"]


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(2)", 2), ("os.kill(os.getpid(), 9)", 137)])
def test_a_failed_process_ends_all(ending: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.2)
    first = f"import os, sys, time\nif os.environ['RANK'] == '1': {ending}\ntime.sleep(60)"
    assert launch_code(first, monkeypatch) == code


def test_a_launched_process_exits_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the parent was killed: the pipe closes."""
    read_end, write_end = os.pipe()
    ended = threading.Event()
    monkeypatch.setattr(distributed.os, "kill", lambda *_: ended.set())
    distributed._exit_with_parent(read_end)
    assert not ended.wait(0.05)
    os.close(write_end)
    assert ended.wait(10)
    os.close(read_end)


# -------------------- benchmark


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        ("SystemExit(143)", 143, ""),
        ("SystemExit(2)", 2, ""),
        ("SystemExit()", 0, ""),
        ("SystemExit('text')", 1, "text"),
        ("ValueError('a bug')", 1, "ValueError: a bug"),
    ],
)
def test_a_process_that_stops_early_skips_the_cleanup_that_can_abort(error: str, code: int, printed: str) -> None:
    script = f"""
import atexit, os, sys
os.environ |= {{"WORLD_SIZE": "2", "RANK": "1", "CORDGT_RENDEZVOUS": "file"}}
from cordgt import cli
from cordgt.runtime import distributed
distributed._group = distributed.ProcessGroup(1, 2)
atexit.register(os.abort)  # as the threads of a process group do at times
def run():
    raise {error}
cli._run_command = run
cli.main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    assert (ended.stderr.splitlines() or [""])[-1] == printed


def test_benchmark_of_each_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes with one thread each, then one process with as many threads; speed-up over one process, one thread."""

    def fake_launch(n: int, argv: list[str], extra: dict[str, str]) -> int:
        found = {"processes": n, "threads": int(extra["OMP_NUM_THREADS"]), "step_ms": 60.0 / n}
        Path(extra[shared_bench.RESULT_FILE]).write_text(json.dumps(found))
        return 0

    monkeypatch.setattr(shared_bench, "launch", fake_launch)
    monkeypatch.setattr(shared_bench, "available_cores", lambda: 4)
    recorder = StageRecorder()
    rows = shared_bench.compare_process_counts(shared_bench.parse_process_counts("3,2"), ["bench"], recorder)
    assert [(r["processes"], r["threads"], r["speed_up"]) for r in rows] == [
        (1, 1, 1.0), (2, 1, 2.0), (3, 1, 3.0), (1, 2, 1.0), (1, 3, 1.0)
    ]  # fmt: skip
    assert recorder.stages[:2] == ["1 process of 1 thread", "2 processes of 1 thread"]
    assert shared_bench.oversubscription_note([1, 4]) == ""
    monkeypatch.setattr(shared_bench, "available_cores", lambda: 2)
    rows = shared_bench.compare_process_counts([1, 2, 6], ["bench"], recorder)
    assert [(r["processes"], r["threads"]) for r in rows] == [(1, 1), (2, 1), (6, 1), (1, 2)]  # torch takes no more
    assert shared_bench.oversubscription_note([1, 2, 6]).startswith("6 processes share 2 cores")
    monkeypatch.setattr(shared_bench, "launch", lambda *_: 2)
    with pytest.raises(RunError, match="exit code 2"):
        shared_bench.compare_process_counts([1], ["bench"], recorder)


@pytest.mark.parametrize("text", ["0,2", "two", "", "1;2"])
def test_process_counts_must_be_positive_integers(text: str) -> None:
    with pytest.raises(SettingError, match="give numbers from 1 up"):
        shared_bench.parse_process_counts(text)


def test_benchmark_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared_bench.RESULT_FILE, str(tmp_path / "figures.json"))
    limits = HardwareLimits(1.0, 1.0, 1.0, 1, "toy", "fp32")
    shared_bench.measure_shared_step(
        BenchSetup(make_task().stream, settings(batch_size=9), DEVICE, limits, repeat=1, quick=True)
    )
    found = json.loads((tmp_path / "figures.json").read_text())
    assert (found["processes"], found["batch_size"]) == (1, 9)
    assert found["step_ms"] > found["sum_ms"] > 0
