"""Prefetched steps train the same as direct ones and leave no thread running."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from cordgt.errors import SettingError
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.runtime.threads import parallel_map
from cordgt.tasks import histories
from cordgt.tasks.histories import choose_history_device
from cordgt.tasks.link import LinkTask
from cordgt.training.model_factory import build_model_for
from cordgt.training.settings import make_settings
from cordgt.training.step import PrefetchStep, Step

SIZES: dict[str, Any] = {"hidden": 8, "heads": 2, "fanout": (3, 1), "dropout": 0.0, "batch_size": 20}
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def trained(feed: bool, model: str, epochs: int = 2) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of a few batches, the last of them short."""
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    settings = make_settings(
        model, {k: v for k, v in SIZES.items() if k in ("batch_size", "hidden", "dropout")} | _own(model)
    )
    task = LinkTask.prepare(stream, settings.protocol, seed=0, device=CPU)
    network = build_model_for(settings, stream).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    plain = Step(network, task, optimizer, 0, 1)
    step = PrefetchStep(plain, 20) if feed else plain
    losses = []
    for epoch in range(1, epochs + 1):
        batches = torch.from_numpy(task.split.train[:90]).split(20)
        step.set_epoch(epoch)
        if isinstance(step, PrefetchStep):
            step.prefetch(batches)
        losses += [float(step(batch, torch.ones(len(batch)))) for batch in batches]
    if isinstance(step, PrefetchStep):
        step.close()
    return losses, network.state_dict()


def _own(model: str) -> dict[str, Any]:
    return {"fanout": (3, 1), "heads": 2} if model.startswith("cordgt") else {"num_neighbors": 4, "time_dim": 6}


@pytest.mark.parametrize("model", ["cordgt", "cordgt_plus", "graphmixer"])
def test_prefetched_training_equals_direct_training(model: str) -> None:
    (expected, weights), (losses, others) = trained(False, model), trained(True, model)
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-3, atol=1e-5)
    assert not [k for k in threading.enumerate() if k.name.startswith("cordgt-reads")]


def test_batches_must_come_in_the_prefetched_order() -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    settings = make_settings("cordgt", SIZES)
    task = LinkTask.prepare(stream, settings.protocol, seed=0, device=CPU)
    network = build_model_for(settings, stream)
    step = PrefetchStep(Step(network, task, torch.optim.Adam(network.parameters()), 0, 1), 20)
    first, second, third = torch.from_numpy(task.split.train[:60]).split(20)
    step.prefetch([first, second])
    with pytest.raises(ValueError, match="not the next one"):
        step(second, torch.ones(20))
    step.prefetch([third])  # whatever waits is forgotten
    assert float(step(third, torch.ones(20))) > 0
    step.close()


def test_read_error_is_raised_where_the_batch_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    task = LinkTask.prepare(stream, make_settings("cordgt", SIZES).protocol, seed=0, device=CPU)
    network = build_model_for(make_settings("cordgt", SIZES), stream)
    step = PrefetchStep(Step(network, task, torch.optim.Adam(network.parameters()), 0, 1), 20)

    def fails(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(step.step, "read", fails)
    batch = torch.from_numpy(task.split.train[:20])
    step.prefetch([batch])
    with pytest.raises(MemoryError, match="no room"):
        step(batch, torch.ones(20))
    step.close()


def test_history_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """History is on the GPU unless it takes more than half of the free memory, or the environment says otherwise."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    assert choose_history_device(CPU, 10**12) == CPU
    assert choose_history_device(CUDA, 500) == CUDA and choose_history_device(CUDA, 501) == CPU
    monkeypatch.setenv(histories.HISTORY_DEVICE_VARIABLE, "host")
    assert choose_history_device(CUDA, 1) == CPU and choose_history_device(CPU, 1) == CPU
    monkeypatch.setenv(histories.HISTORY_DEVICE_VARIABLE, "device")
    assert choose_history_device(CUDA, 10**12) == CUDA
    monkeypatch.setenv(histories.HISTORY_DEVICE_VARIABLE, "moon")
    with pytest.raises(SettingError, match="CORDGT_HISTORY_DEVICE=moon"):
        choose_history_device(CUDA, 1)


def test_parallel_map_keeps_order_and_uses_single_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = list(parallel_map(lambda k: (k, torch.get_num_threads()), range(20)))
        assert found == [(k, 1) for k in range(20)]
        assert torch.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError):
            list(parallel_map(lambda k: 1 // (5 - k), range(20)))
    finally:
        torch.set_num_threads(before)
