"""Steps that are fed from the host: the same training as one that reads for itself, and nothing left running."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from cordgt.errors import SettingError
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.runtime.threads import side_by_side
from cordgt.tasks import link
from cordgt.tasks.link import LinkTask, home_of
from cordgt.training.model_factory import network_for
from cordgt.training.settings import make
from cordgt.training.step import FedStep, Step

SIZES: dict[str, Any] = {"hidden": 8, "heads": 2, "fanout": (3, 1), "dropout": 0.0, "batch_size": 20}
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def trained(feed: bool, model: str, epochs: int = 2) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of a few batches, the last of them short."""
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    settings = make(model, {k: v for k, v in SIZES.items() if k in ("batch_size", "hidden", "dropout")} | _own(model))
    task = LinkTask.prepare(stream, settings.protocol, seed=0, device=CPU)
    network = network_for(settings, stream).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    plain = Step(network, task, optimizer, 0, 1)
    step = FedStep(plain, 20) if feed else plain
    losses = []
    for epoch in range(1, epochs + 1):
        batches = torch.from_numpy(task.split.train[:90]).split(20)
        step.at(epoch)
        if isinstance(step, FedStep):
            step.expect(batches)
        losses += [float(step(batch, torch.ones(len(batch)))) for batch in batches]
    if isinstance(step, FedStep):
        step.close()
    return losses, network.state_dict()


def _own(model: str) -> dict[str, Any]:
    return {"fanout": (3, 1), "heads": 2} if model.startswith("cordgt") else {"num_neighbors": 4, "time_dim": 6}


@pytest.mark.parametrize("model", ["cordgt", "cordgt_plus", "graphmixer"])
def test_fed_from_the_host(model: str) -> None:
    (expected, weights), (losses, others) = trained(False, model), trained(True, model)
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-3, atol=1e-5)
    assert not [k for k in threading.enumerate() if k.name.startswith("cordgt-reads")]


def test_batches_come_as_they_were_announced() -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    settings = make("cordgt", SIZES)
    task = LinkTask.prepare(stream, settings.protocol, seed=0, device=CPU)
    network = network_for(settings, stream)
    step = FedStep(Step(network, task, torch.optim.Adam(network.parameters()), 0, 1), 20)
    first, second, third = torch.from_numpy(task.split.train[:60]).split(20)
    step.expect([first, second])
    with pytest.raises(ValueError, match="not expected"):
        step(second, torch.ones(20))
    step.expect([third])  # whatever waits is forgotten
    assert float(step(third, torch.ones(20))) > 0
    step.close()


def test_a_mistake_while_reading_is_told_where_the_batch_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    task = LinkTask.prepare(stream, make("cordgt", SIZES).protocol, seed=0, device=CPU)
    network = network_for(make("cordgt", SIZES), stream)
    step = FedStep(Step(network, task, torch.optim.Adam(network.parameters()), 0, 1), 20)

    def fails(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(step.step, "read", fails)
    batch = torch.from_numpy(task.split.train[:20])
    step.expect([batch])
    with pytest.raises(MemoryError, match="no room"):
        step(batch, torch.ones(20))
    step.close()


def test_where_the_past_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the GPU, unless it would take more than half of what is free there; ``CORDGT_PAST`` says otherwise."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    assert home_of(CPU, 10**12) == CPU
    assert home_of(CUDA, 500) == CUDA and home_of(CUDA, 501) == CPU
    monkeypatch.setenv(link.PAST, "host")
    assert home_of(CUDA, 1) == CPU and home_of(CPU, 1) == CPU
    monkeypatch.setenv(link.PAST, "device")
    assert home_of(CUDA, 10**12) == CUDA
    monkeypatch.setenv(link.PAST, "moon")
    with pytest.raises(SettingError, match="CORDGT_PAST=moon"):
        home_of(CUDA, 1)


def test_work_side_by_side_comes_in_order_and_each_thread_is_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = list(side_by_side(lambda k: (k, torch.get_num_threads()), range(20)))
        assert found == [(k, 1) for k in range(20)]
        assert torch.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError):
            list(side_by_side(lambda k: 1 // (5 - k), range(20)))
    finally:
        torch.set_num_threads(before)
