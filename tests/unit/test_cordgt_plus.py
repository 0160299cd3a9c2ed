"""CorDGT+: each part can be switched off, a run has a report, and every weight gets a gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cordgt.errors import SettingError
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.tasks.link import LinkTask
from cordgt.training.model_factory import build_model_for
from cordgt.training.settings import make_settings
from cordgt.workflows.train import train

CPU = torch.device("cpu")
TINY: dict[str, Any] = {"hidden": 8, "heads": 2, "fanout": (4, 1), "epochs": 1, "batch_size": 50}


@pytest.mark.parametrize("head", ["mlp", "linear"])
def test_run_and_report(tmp_path: Path, head: str) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    run = train(stream, model="cordgt_plus", out=tmp_path / "run", device="cpu", head=head, **TINY)
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    source = stream.ids.decode(stream.src[-1:])[0].as_py()
    assert len(run.recommend(source, top=3)) == 3


@pytest.mark.parametrize(
    "part",
    [{}, {"slot_features": False}, {"pair_features": False}, {"slot_features": False, "pair_features": False}],
    ids=str,
)
@pytest.mark.parametrize("head", ["mlp", "linear"])
def test_every_weight_gets_a_gradient(part: dict[str, bool], head: str) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    settings = make_settings("cordgt_plus", {k: v for k, v in TINY.items() if k != "epochs"} | part | {"head": head})
    task = LinkTask.prepare(stream, settings.protocol, seed=0, device=CPU)
    network = build_model_for(settings, stream)
    position = torch.from_numpy(task.split.train[-20:])
    queries = task.queries(position, position[:1].expand(20), task.pools.train, seed=0, epoch=1, num_negatives=3)
    batch = network.read(task.train_history, queries)
    assert network(batch).shape == (20, 4)
    network.losses(batch).mean().backward()
    idle = [name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not idle


def test_ranking_loss_is_softmax_cross_entropy() -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    settings = make_settings("cordgt_plus", {k: v for k, v in TINY.items() if k != "epochs"} | {"loss": "ranking"})
    task = LinkTask.prepare(stream, settings.protocol, seed=0, device=CPU)
    network = build_model_for(settings, stream).eval()
    position = torch.from_numpy(task.split.train[-5:])
    queries = task.queries(position, position[:1].expand(5), task.pools.train, seed=0, epoch=1, num_negatives=6)
    batch = network.read(task.train_history, queries)
    logits = network(batch)
    expected = logits.exp().sum(1).log() - logits[:, 0]
    torch.testing.assert_close(network.losses(batch), expected)
    with pytest.raises(SettingError, match="loss"):
        make_settings("cordgt_plus", {"loss": "hinge"})
