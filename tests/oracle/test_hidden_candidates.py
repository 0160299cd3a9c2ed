"""Hidden training candidates, compared with a walk over the candidates; they look exactly like new nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.history import rng
from cordgt.history.pair_columns import COLUMN_GROUPS, read_columns
from cordgt.history.queries import History, Queries
from cordgt.models import MODELS
from cordgt.tasks.hidden_candidates import hide_candidates, with_hidden_nodes
from cordgt.tasks.link import LinkTask
from cordgt.tasks.negatives import negatives_key
from cordgt.training.model_factory import build_model_for
from cordgt.training.settings import make_settings
from cordgt.training.step import Step, make_optimizer

from . import slow
from .helpers import build
from .strategies import Stream, cuts, seeds, streams

TAG = 0x686964


@given(data=st.data(), stream=streams(), seed=seeds, share=st.sampled_from((0.0, 0.3, 0.9)))
def test_hidden_candidates(device: torch.device, data: st.DataObject, stream: Stream, seed: int, share: float) -> None:
    """With Numba, with torch operations and on the device."""
    ids = st.integers(0, stream.n_nodes - 1)
    m = data.draw(st.integers(1, 3))
    rows = data.draw(st.lists(st.tuples(ids, cuts(stream), st.lists(ids, min_size=m, max_size=m)), min_size=1))
    src, cut, dst = (torch.tensor(x, dtype=torch.int64, device=device) for x in zip(*rows, strict=True))
    position = torch.arange(len(rows), device=device)
    queries = Queries(src, dst, torch.zeros(len(rows), dtype=torch.float64, device=device), cut, cut)
    base_key = rng.epoch_key(negatives_key(seed), 2)
    expected = []
    for i, (u, c, candidates) in enumerate(rows):
        met = {stream.history.partner(u, p) for p in stream.history.events_of(u, c)} | {u}
        keys = [slow.fold_in(slow.fold_in(slow.fold_in(base_key, i), TAG), k) for k in range(m)]
        uniform = [((key % 2**64 >> 11) + 1) * 2.0**-53 for key in keys]
        hidden = [x <= share and v not in met for v, x in zip(candidates, uniform, strict=True)]
        expected.append([v + stream.n_nodes * h for v, h in zip(candidates, hidden, strict=True)])
    for index in (build(stream).to(device), build(stream).without_kernels().to(device)):
        assert hide_candidates(index, queries, position, key=base_key, share=share).dst.tolist() == expected


def shop() -> EventStream:
    """Customers and products with features; every product has events."""
    draw = np.random.default_rng(3)
    src, dst = draw.integers(0, 12, 300), draw.integers(0, 15, 300)
    stream = EventStream.from_columns(src, dst, np.arange(300.0), shared_ids=False, name="shop")
    return stream.with_node_features(draw.normal(size=(stream.n_nodes, 3)).astype(np.float32))


def test_a_hidden_candidate_looks_like_a_new_node_with_its_features() -> None:
    """All columns equal those of a node that never had an event."""
    stream = shop()
    task = LinkTask.prepare(stream)
    rows = torch.arange(200, 230)
    seen = Queries(task.src[rows], task.dst[rows][:, None], task.full_history.index.elapsed[rows], rows, rows)
    hidden = Queries(seen.src, seen.dst + stream.n_nodes, seen.t, seen.cut, seen.pair_cut)
    got = read_columns(with_hidden_nodes(task.full_history), hidden, list(COLUMN_GROUPS))
    for i, v in enumerate(seen.dst[:, 0].tolist()):
        new_x = torch.cat([task.full_history.node_x, task.full_history.node_x[v : v + 1]])  # an id that never occurred
        history = History(task.full_history.index, None, new_x, seed=0)
        query = Queries(*(x[i : i + 1] for x in (seen.src, seen.dst, seen.t, seen.cut, seen.pair_cut)))
        query = Queries(query.src, torch.tensor([[stream.n_nodes]]), query.t, query.cut, query.pair_cut)
        assert torch.equal(read_columns(history, query, list(COLUMN_GROUPS))[0], got[i])


TRAINABLE = [name for name, spec in MODELS.items() if spec.network.is_trainable]


@pytest.mark.parametrize("model", TRAINABLE)
def test_every_model_trains_with_hidden_candidates(model: str) -> None:
    """A step has a finite loss, the same with any draws of the same seed, another one without hidden candidates."""
    stream = shop()
    task = LinkTask.prepare(stream)

    def loss(**changes: Any) -> float:
        settings = make_settings(model, {"batch_size": 50, **changes})
        torch.manual_seed(0)
        network = build_model_for(settings, stream)
        network.prepare(task.train_history, 150)
        network.start_epoch(0)
        step = Step.from_settings(settings, task, network, make_optimizer(settings, network, task.network_device), 1)
        with torch.no_grad():
            network.eval()
            batch = step.read(torch.arange(100, 150), torch.tensor([100]))
            return float(step.losses(*batch).mean())

    hidden = loss(hidden_candidates=0.5)
    assert np.isfinite(hidden) and hidden == loss(hidden_candidates=0.5)


def test_shares_outside_the_range_are_refused() -> None:
    with pytest.raises(SettingError, match="hidden_candidates"):
        make_settings("counts", {"hidden_candidates": 1.0})
