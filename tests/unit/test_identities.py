"""Learned identities: who gets a row, how newcomers are read, and that training moves the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.errors import SettingError
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import Queries
from cordgt.inference.run import Run
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.models.identities import MIN_EVENTS, Identities, read_identities
from cordgt.tasks.link import LinkTask
from cordgt.training.model_factory import build_model_for
from cordgt.training.settings import make_settings
from cordgt.workflows.train import train

# Users 0 and 1 meet items 2 and 3 five times each; at the end user 0 meets the new item 4 once. Nobody meets item 5.
SRC = np.array([0, 1] * 10 + [0])
DST = np.array([2, 3, 3, 2] * 5 + [4])


def make_index() -> TemporalIndex:
    return TemporalIndex.build(SRC, DST, np.arange(21.0), 6)


def make_queries(src: int, dst: list[int], cut: int = 21) -> Queries:
    cuts = torch.tensor([cut])
    return Queries(torch.tensor([src]), torch.tensor([dst]), torch.tensor([30.0], dtype=torch.float64), cuts, cuts)


def test_only_nodes_with_enough_events_get_a_row() -> None:
    identities = Identities(8)
    identities.assign_rows(make_index(), 21)
    assert identities.owner.tolist() == [0, 1, 2, 3, -1, -1, -1, -1]
    identities.assign_rows(make_index(), 8)  # of the first 8 events each item has 4
    assert (identities.owner >= 0).sum() == 0


def test_busier_node_gets_a_shared_row() -> None:
    identities = Identities(2)
    identities.assign_rows(make_index(), 21)
    assert identities.owner.tolist() == [0, 3]  # user 0 has 11 events, item 2 has 10; nodes 1 and 3 have 10 each


def test_newcomer_is_the_mean_of_what_its_visitors_met() -> None:
    identities = Identities(8)
    identities.assign_rows(make_index(), 21)
    batch = read_identities(make_index(), make_queries(1, [4, 5, 2]))
    assert batch.is_young.tolist() == [[True, True, False]]
    known = [node for node in batch.relative[0, 0].tolist() if node >= 0]
    assert set(known) == {2, 3}
    candidate, has_identity = identities._candidates(batch)
    torch.testing.assert_close(candidate[0, 0], identities.table[known].mean(0))
    assert torch.equal(candidate[0, 2], identities.table[2])
    assert has_identity.tolist() == [[True, False, True]]
    assert identities(batch)[0, 1] == 0


def test_own_row_needs_enough_visible_events() -> None:
    """A node with a row is read as a newcomer while it is young, so training sees newcomers."""
    batch = read_identities(make_index(), make_queries(0, [2], cut=2 * MIN_EVENTS - 2))
    assert batch.is_young.all()


@pytest.mark.parametrize("model", ["counts", "cordgt_plus"])
def test_every_weight_gets_a_gradient(model: str) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    tiny = {"hidden": 8, "heads": 2, "fanout": (4, 1)} if model == "cordgt_plus" else {}
    settings = make_settings(model, {"identities": True, "collaborative": True, "num_embeddings": 64} | tiny)
    task = LinkTask.prepare(stream, settings.protocol, seed=0)
    network = build_model_for(settings, stream)
    network.prepare(task.train_history, int(task.split.train[-1]) + 1)
    position = torch.from_numpy(task.split.train[-40:])
    queries = task.queries(position, position[:1].expand(40), task.pools.train, seed=0, epoch=1, num_negatives=3)
    network.losses(network.read(task.train_history, queries)).mean().backward()
    trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    assert not [name for name, weight in trained.items() if weight.grad is None or not weight.grad.any()]
    assert network.uses_node_ids
    with pytest.raises(SettingError, match="num_embeddings"):
        make_settings(model, {"num_embeddings": 0})


def test_run_is_loaded_with_its_rows(tmp_path: Path) -> None:
    """The owners of the rows are saved with the weights, so a loaded run gives the same scores."""
    stream = synthetic_stream(nodes=20, events=200, seed=1).stream
    settings: dict[str, Any] = {"collaborative": True, "identities": True, "num_embeddings": 64, "epochs": 1}
    run = train(stream, model="counts", out=tmp_path / "run", device="cpu", **settings)
    pairs = [stream.ids.decode(x[-5:]).to_pylist() for x in (stream.src, stream.dst)]
    loaded = Run.load(tmp_path / "run", device="cpu")
    assert loaded.settings.model_settings.collaborative
    np.testing.assert_array_equal(loaded.score(*pairs), run.score(*pairs))
    owner = loaded.model.get_buffer("identities.owner")
    assert (owner >= 0).sum() > 5
