"""Parts of a batch and of a split, as several processes would take them, worked off one after the other in one."""

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
from cordgt.experiments.bench.hardware import Limits
from cordgt.experiments.bench.setup import Place
from cordgt.models.base import LinkModel
from cordgt.runtime import distributed, launch
from cordgt.runtime.distributed import Group
from cordgt.tasks.link import LinkTask, rank, score_queries
from cordgt.training.model_factory import make_network
from cordgt.training.settings import Settings, make
from cordgt.training.step import Step
from cordgt.training.trainer import check_may_share

DEVICE = torch.device("cpu")
SMALL = {"hidden": 8, "heads": 2, "fanout": (3,), "td_dim": 8, "sd_dim": 8, "layers": 1}


@dataclass(frozen=True)
class Listed(Group):
    """A process that others would have to be asked about: what it gives to a sum is kept, and no sum is taken."""

    given: list[torch.Tensor] = field(default_factory=list)

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        self.given.append(tensor.clone())
        return tensor


@cache
def task_of() -> LinkTask:
    draw = np.random.default_rng(0)
    src = draw.integers(0, 9, 150)
    stream = EventStream.from_columns(
        src, 10 + (src + draw.integers(0, 3, 150)) % 9, draw.choice([0, 1, 2], 150).cumsum(), time=TimeAxis("number")
    )
    return LinkTask.prepare(stream, settings().protocol, seed=3, device=DEVICE)


def settings(model: str = "cordgt", **changes: Any) -> Settings:
    return make(model, (SMALL if model == "cordgt" else {}) | changes, seed=3)


def shared(group: Group) -> LinkTask:
    return with_changes(task_of(), group=group)


def gradients(
    group: Group, n: int, *, micro_batches: int = 0, dropout: float = 0.0
) -> tuple[list[torch.Tensor], float]:
    """Of the model's weights and the loss, after one step on ``n`` events; weights stay as they are."""
    model = make_network(settings(dropout=dropout), edge_dim=0, node_dim=0).train()
    step = Step(model, shared(group), torch.optim.SGD(model.parameters(), lr=0.0), 3, 1, micro_batches=micro_batches)
    torch.manual_seed(5)
    loss = step(torch.from_numpy(task_of().split.train[-n:]), torch.ones(n))
    return [q.grad.clone() for q in model.parameters() if q.grad is not None], float(loss)


# -------------------- who does what


@given(n=st.integers(0, 50), size=st.integers(1, 9), piece=st.integers(1, 7))
def test_parts_cover_everything_once_in_whole_pieces(n: int, size: int, piece: int) -> None:
    parts = [Group(rank, size).part(n, piece) for rank in range(size)]
    assert [i for part in parts for i in range(n)[part]] == list(range(n))
    assert all(part.start % piece == 0 or part.start == n for part in parts)
    assert max(p.stop - p.start for p in parts) - min(p.stop - p.start for p in parts) < 2 * piece


# -------------------- sums


@pytest.mark.parametrize(("n", "size"), [(20, 2), (20, 3), (3, 5), (1, 4)])
def test_parts_of_a_batch_add_up_to_it(n: int, size: int) -> None:
    """Also where there are fewer events than processes, some of which then have nothing to add."""
    expected, loss = gradients(Group(), n)
    groups = [Listed(rank, size) for rank in range(size)]
    for group in groups:
        gradients(group, n)
    total = torch.stack([group.given[0] for group in groups]).sum(0)[0]
    torch.testing.assert_close(total[:-1], torch.cat([g.flatten() for g in expected]), rtol=1e-4, atol=1e-6)
    assert float(total[-1]) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(("n", "size"), [(20, 2), (20, 3), (3, 5)])
def test_micro_batches_give_the_same_bits_in_any_process(n: int, size: int) -> None:
    """Dropout too."""
    one, groups = Listed(), [Listed(rank, size) for rank in range(size)]
    for group in (one, *groups):
        gradients(group, n, micro_batches=4, dropout=0.5)
    alone, together = one.given[0], torch.stack([group.given[0] for group in groups]).sum(0)
    assert torch.equal(together, alone)
    assert len(alone) == min(4, n)
    assert not torch.equal(alone[0], alone[1])


def test_micro_batches_add_up_to_the_batch() -> None:
    (expected, loss), (found, other) = gradients(Group(), 20), gradients(Group(), 20, micro_batches=3)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert other == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_processes_draw_their_own_dropout(dropout: float) -> None:
    """Two that have the same events, the same negatives and the same trees."""
    model = make_network(settings(dropout=dropout), edge_dim=0, node_dim=0).train()
    groups = [Listed(number, 2) for number in range(2)]
    for group in groups:
        torch.manual_seed(5)
        step = Step(model, shared(group), torch.optim.SGD(model.parameters(), lr=0.0), 3, 1)
        step(torch.full((6,), int(task_of().split.train[-1])), torch.ones(6))
    assert torch.equal(groups[0].given[0], groups[1].given[0]) is (dropout == 0)


# -------------------- evaluation


def trained() -> LinkModel:
    return make_network(settings(), edge_dim=0, node_dim=0)


class Counter(Callback):
    n = 0

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.n += n


@pytest.mark.parametrize("size", [2, 3, 11])
def test_scores_of_parts_are_those_of_one(size: int) -> None:
    model, task = trained(), task_of()
    _, queries = task.evaluation_queries("test", "transductive")
    expected = score_queries(model, task.whole, queries, max_pairs_per_batch=8)
    groups = [Listed(rank, size) for rank in range(size)]
    counters = [Counter() for _ in groups]
    for counter, group in zip(counters, groups, strict=True):
        score_queries(model, task.whole, queries, max_pairs_per_batch=8, group=group, callbacks=counter)
    assert np.array_equal(sum(group.given[0].numpy() for group in groups), expected)
    assert max(counter.n for counter in counters) <= len(expected)


def test_ranks_of_parts_are_those_of_one() -> None:
    protocol = with_changes(task_of().protocol, ranking="5")
    model, task = trained(), with_changes(task_of(), protocol=protocol)
    expected = rank(model, task, "test", "transductive", max_pairs_per_batch=20)
    groups = [Listed(number, 3) for number in range(3)]
    for group in groups:
        rank(model, with_changes(task, group=group), "test", "transductive", max_pairs_per_batch=20)
    assert np.array_equal(sum(group.given[-1].numpy() for group in groups), expected)


# -------------------- who may, and who agrees


def test_memory_trains_in_one_process() -> None:
    with pytest.raises(SettingError, match=r"tgn has a memory .* trains in one process"):
        check_may_share(settings("tgn"), Group(0, 2))
    with pytest.raises(SettingError, match="micro_batches=2 is not for it"):
        check_may_share(settings("tgn", micro_batches=2), Group())
    check_may_share(settings("tgat"), Group(0, 2))


@dataclass(frozen=True)
class Told(Group):
    others: tuple[dict[str, str], ...] = ()

    def from_all(self, value: Any) -> list[Any]:
        return [value, *(("elsewhere", other) for other in self.others)]


def test_processes_that_do_not_agree_are_named() -> None:
    ours = {"lr": "0.001", "the data": "7 events"}
    distributed.check_same(Told(0, 2, (ours,)), ours)
    with pytest.raises(RunError, match=r"process 2, on elsewhere, lr is 0\.01 and not 0\.001, as in process 0"):
        distributed.check_same(Told(0, 3, (ours, ours | {"lr": "0.01"})), ours)


def test_what_libraries_say_is_cut_short() -> None:
    said = "[/a/gloo/tcp/pair.cc:537] Read error [::1]:18: Connection reset by peer. This is typically caused by\nmore"
    assert distributed._reason(RuntimeError(said)) == "Read error [::1]:18: Connection reset by peer"


@pytest.mark.parametrize("outlives", [False, True])
def test_only_a_command_ignores_its_end_when_another_is_lost(outlives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise RuntimeError("Connection reset by peer")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(distributed, "_outlives", outlives)
    try:
        with pytest.raises(distributed.Lost, match="gone or silent: Connection reset"):
            distributed._talking(gone)
        assert signal.getsignal(signal.SIGTERM) is (signal.SIG_IGN if outlives else before)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_memory_that_runs_out_is_no_lost_process(error: RuntimeError) -> None:
    def too_large() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        distributed._talking(too_large)
    assert raised.value is error


def test_one_process_is_asked_nothing() -> None:
    alone = distributed.current()
    assert (alone.size, alone.leads, alone.largest(7), alone.from_first("x")) == (1, True, 7, "x")
    assert alone.from_all(3) == [3]
    tensors = {"a": torch.arange(3)}
    assert alone.tensors_from_first(tensors) == tensors
    assert distributed.speaks_for_all(RunError("x")) == ""


@pytest.mark.parametrize(
    ("environment", "several"),
    [
        ({}, False),
        ({"WORLD_SIZE": "2"}, False),  # some schedulers say so of what is not torchrun's
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "x", "MASTER_PORT": "1"}, True),
        ({"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "x", "MASTER_PORT": "1"}, False),
        ({"WORLD_SIZE": "2", "RANK": "0", distributed.MEETING: "/x"}, True),
    ],
)
def test_who_is_one_of_several(environment: dict[str, str], several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", distributed.MEETING):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert distributed.asked() is several


@pytest.mark.parametrize("minutes", ["0", "soon", "-1", "nan"])
def test_minutes_that_are_none(minutes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(distributed.WAIT, minutes)
    with pytest.raises(SettingError, match="number of minutes above 0"):
        distributed._minutes()


# -------------------- launching, with children that need no torch


def launched(code: str, monkeypatch: pytest.MonkeyPatch, n: int = 2) -> int:
    start = subprocess.Popen

    def instead(command: list[str], **options: Any) -> Any:
        return start([sys.executable, "-c", code], **options)

    monkeypatch.setattr(launch.subprocess, "Popen", instead)
    return launch.launch(n, ["train"])


def test_launched_processes_know_each_other(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    code = "import os; e = os.environ; print(e['RANK'], e['WORLD_SIZE'], e['OMP_NUM_THREADS'])"
    assert launched(code, monkeypatch) == 0
    threads = max(1, launch.cores() // 2)
    assert sorted(capfd.readouterr().out.splitlines()) == [f"0 2 {threads}", f"1 2 {threads}"]


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(2)", 2), ("os.kill(os.getpid(), 9)", 137)])
def test_one_that_fails_ends_all(ending: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE", 0.2)
    first = f"import os, sys, time\nif os.environ['RANK'] == '1': {ending}\ntime.sleep(60)"
    assert launched(first, monkeypatch) == code


def test_a_launched_process_ends_with_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, that one can tell nobody; the pipe it held does."""
    reading, writing = os.pipe()
    ended = threading.Event()
    monkeypatch.setattr(distributed.os, "kill", lambda *_: ended.set())
    distributed._live_with(reading)
    assert not ended.wait(0.05)
    os.close(writing)
    assert ended.wait(10)
    os.close(reading)


# -------------------- measuring


def test_measured_with_each_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of one thread, then one process of as many threads; what they gain is over one of one."""

    def instead(n: int, argv: list[str], extra: dict[str, str]) -> int:
        found = {"processes": n, "threads": int(extra["OMP_NUM_THREADS"]), "step_ms": 60.0 / n}
        Path(extra[shared_bench.FIGURES]).write_text(json.dumps(found))
        return 0

    monkeypatch.setattr(shared_bench, "launch", instead)
    monkeypatch.setattr(shared_bench, "cores", lambda: 4)
    said: list[str] = []
    rows = shared_bench.compare(shared_bench.counts_of("3,2"), ["bench"], said.append)
    assert [(r["processes"], r["threads"], r["speed_up"]) for r in rows] == [
        (1, 1, 1.0), (2, 1, 2.0), (3, 1, 3.0), (1, 2, 1.0), (1, 3, 1.0)
    ]  # fmt: skip
    assert said[:2] == ["1 process of 1 thread", "2 processes of 1 thread"]
    assert shared_bench.crowded([1, 4]) == ""
    monkeypatch.setattr(shared_bench, "cores", lambda: 2)
    rows = shared_bench.compare([1, 2, 6], ["bench"], said.append)
    assert [(r["processes"], r["threads"]) for r in rows] == [(1, 1), (2, 1), (6, 1), (1, 2)]  # torch takes no more
    assert shared_bench.crowded([1, 2, 6]).startswith("6 processes share 2 cores")
    monkeypatch.setattr(shared_bench, "launch", lambda *_: 2)
    with pytest.raises(RunError, match="exit code 2"):
        shared_bench.compare([1], ["bench"], said.append)


@pytest.mark.parametrize("text", ["0,2", "two", "", "1;2"])
def test_numbers_of_processes_that_are_none(text: str) -> None:
    with pytest.raises(SettingError, match="give numbers from 1 up"):
        shared_bench.counts_of(text)


def test_one_process_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared_bench.FIGURES, str(tmp_path / "figures.json"))
    limits = Limits(1.0, 1.0, 1.0, 1, "toy", "fp32")
    shared_bench.measure(Place(task_of().stream, settings(batch_size=9), DEVICE, limits, repeat=1, quick=True))
    found = json.loads((tmp_path / "figures.json").read_text())
    assert (found["processes"], found["batch_size"]) == (1, 9)
    assert found["step_ms"] > found["sum_ms"] > 0
