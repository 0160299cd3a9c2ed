"""Stateless rival models: their shortcuts against plain versions, their losses by hand, and little data.

The contract tests check what all models share; these check what is specific.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cordgt.analysis.audit.checks import FAIL
from cordgt.analysis.audit.model import audit_model
from cordgt.callbacks import Callback
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.inference.run import Run
from cordgt.models import MODELS
from cordgt.models.cawn import WalkEncoder
from cordgt.models.two_tower import TwoTowerModel
from cordgt.nn.layers import MergeHead, TemporalAttention, TimeEncoding, TransformerLayer
from cordgt.tasks.link import LinkTask
from cordgt.tasks.protocol import Protocol
from cordgt.training.model_factory import build_model
from cordgt.training.settings import make_settings
from cordgt.workflows.train import train

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "hidden": 8,
    "heads": 2,
    "time_dim": 6,
    "num_neighbors": 3,
    "max_seq_len": 4,
    "channel_dim": 4,
    "num_walks": 4,
    "position_dim": 6,
    "num_embeddings": 40,
}
RIVALS = ("tgat", "graphmixer", "dygformer", "tcl", "cawn", "tgsrec", "counts")
every_rival = pytest.mark.parametrize("kind", RIVALS)


def small_settings(kind: str) -> dict[str, Any]:
    """Return those of `SMALL` that the model reads."""
    return {key: value for key, value in SMALL.items() if key not in make_settings(kind, SMALL).unused}


def network(kind: str, edge_dim: int = 0, node_dim: int = 0, **changes: Any) -> Any:
    return build_model(make_settings(kind, SMALL | changes, seed=3), edge_dim=edge_dim, node_dim=node_dim).eval()


def history(src: list[int], dst: list[int], t: list[float], n_nodes: int, node_x: Tensor | None = None) -> History:
    ends = (np.array(x, np.int64) for x in (src, dst))
    return History(TemporalIndex.build(*ends, np.array(t, np.float64), n_nodes), None, node_x, seed=0)


def queries(src: list[int], dst: list[list[int]], t: float, cut: int) -> Queries:
    at = torch.full((len(src),), cut)
    return Queries(torch.tensor(src), torch.tensor(dst), torch.full((len(src),), t, dtype=torch.float64), at, at)


def star(n: int = 6) -> History:
    """Node 0 interacts with each other node once: no leaf has a second hop."""
    return history([0] * n, list(range(1, n + 1)), list(range(n)), n + 2)


def habits(n: int = 160) -> EventStream:
    """Eight sources with two destinations each, repeated; some new sources; ties."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, 8, n)
    dst = 10 + (src + rng.integers(0, 2, n)) % 8
    late = rng.random(n) < 0.1
    src[late] = 30 + np.arange(n)[late] // 40
    return EventStream.from_columns(src, dst, rng.choice([0, 1, 1, 2], n).cumsum(), None, time=TimeAxis("number"))


# --- shortcuts against plain versions ---


def test_time_encoding_by_hand() -> None:
    encode = TimeEncoding(4)
    assert encode.frequency.tolist() == pytest.approx([1, 1e-3, 1e-6, 1e-9])
    assert encode(torch.tensor([0.0, 2000.0], dtype=torch.float64))[1].tolist() == pytest.approx(
        [np.cos(2000.0), np.cos(2.0), np.cos(0.002), 1.0], abs=1e-6
    )
    fixed = TimeEncoding(4, learnable=False)
    assert list(fixed.parameters()) == [] and list(fixed.state_dict()) == ["frequency", "phase"]


@pytest.mark.parametrize(("in_dim", "edge_dim"), [(0, 0), (5, 0), (0, 3), (5, 3), (8, 3)])
def test_attention_that_projects_queries_is_attention_that_projects_keys(in_dim: int, edge_dim: int) -> None:
    torch.manual_seed(0)
    s, n, heads, dim, time_dim = 7, 4, 2, 8, 6
    part = TemporalAttention(dim=dim, in_dim=in_dim, edge_dim=edge_dim, time_dim=time_dim, heads=heads).eval()
    own, nbr, edge_x = torch.randn(s, in_dim), torch.randn(s, n, in_dim), torch.randn(s, n, edge_dim)
    now, age, valid = torch.randn(time_dim), torch.randn(s, n, time_dim), torch.rand(s, n) < 0.7
    valid[0] = False
    valid[1:, 0] = True
    got = part(own, now, nbr, edge_x, age, valid)
    keys = torch.cat([nbr, edge_x, age], dim=-1)
    q = part.query(torch.cat([own, now.expand(s, -1)], dim=-1)).unflatten(-1, (heads, -1))  # (s, heads, d)
    k, v = (torch.einsum("snk,hdk->shnd", keys, weight) for weight in (part.key, part.value))
    logits = torch.einsum("shd,shnd->shn", q, k) / q.shape[-1] ** 0.5
    attended = (logits.masked_fill(~valid[:, None], -torch.inf).softmax(-1).nan_to_num(0.0).unsqueeze(-1) * v).sum(2)
    state = torch.cat([own, torch.zeros(s, dim - in_dim), now.expand(s, -1)], dim=-1)
    torch.testing.assert_close(got, part.norm(part.out(attended.flatten(1)) + state), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_transformer_layer_equals_torch(pre_norm: bool) -> None:
    torch.manual_seed(1)
    ours = TransformerLayer(dim=8, heads=2, dropout=0.1, pre_norm=pre_norm).eval()
    act = "gelu" if pre_norm else "relu"
    theirs = nn.TransformerEncoderLayer(8, 2, 32, 0.1, act, batch_first=True, norm_first=pre_norm).eval()
    pairs = {"self_attn.in_proj_": "qkv.", "self_attn.out_proj.": "out.", "linear": "fc", "norm": "norm"}
    state = ours.state_dict()
    for name, value in theirs.named_parameters():
        old, new = next((a, b) for a, b in pairs.items() if name.startswith(a))
        value.data.copy_(state[name.replace(old, new)])
    x, valid = torch.randn(5, 4, 8), torch.tensor([[True, True, False, True]]).expand(5, -1)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    padded = theirs(x, src_key_padding_mask=~valid)
    torch.testing.assert_close(ours(x, valid=valid), padded, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours(x, x, valid), padded, rtol=1e-4, atol=1e-5)


def test_walk_encoder_equals_a_bidirectional_lstm_at_the_last_step() -> None:
    """Walks of every length, also empty ones."""
    torch.manual_seed(2)
    s, w, length, dim, hidden = 3, 5, 3, 7, 4
    ours = WalkEncoder(dim, 2 * hidden)
    theirs = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.input.weight)
        theirs.bias_ih_l0.copy_(ours.input.bias)
        theirs.weight_hh_l0.copy_(ours.recurrent.weight)
        for bias in (theirs.bias_hh_l0, theirs.bias_hh_l0_reverse):
            bias.zero_()
        for part, gate in enumerate((0, 2, 3)):
            rows, mine = slice(gate * hidden, (gate + 1) * hidden), slice(part * hidden, (part + 1) * hidden)
            theirs.weight_ih_l0_reverse[rows] = ours.backward_input.weight[mine]
            theirs.bias_ih_l0_reverse[rows] = ours.backward_input.bias[mine]
    x = torch.randn(s, 1 + w * length, dim)
    steps = torch.tensor([[0, 1, 2, 3, 3], [3, 3, 3, 3, 3], [0, 0, 0, 0, 0]])
    got = ours(x, torch.arange(length) < steps.unsqueeze(-1))
    walks = torch.cat([x[:, :1].expand(-1, w, -1).unsqueeze(2), x[:, 1:].unflatten(1, (w, length))], dim=2).flatten(
        0, 1
    )
    packed = pack_padded_sequence(walks, (steps + 1).flatten(), batch_first=True, enforce_sorted=False)
    encoded, _ = pad_packed_sequence(theirs(packed)[0], batch_first=True)
    expected = encoded[torch.arange(s * w), steps.flatten()].unflatten(0, (s, w))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_last_cross_attention_needs_the_first_token_only() -> None:
    """TCL computes the same first token whether it computes the others or not."""
    model = network("tcl", layers=1)
    batch = model.reader.read(star(), queries([0, 3], [[2, 5], [1, 1]], 9.0, 6))
    src, dst = (model._tokens(batch)[:, part].flatten(0, 1) for part in (slice(0, 1), slice(1, None)))
    src_valid, dst_valid = (batch.valid[:, part].flatten(0, 1) for part in (slice(0, 1), slice(1, None)))
    layer = model.layers[0]
    src, dst = layer(src, valid=src_valid).repeat_interleave(2, 0), layer(dst, valid=dst_valid)
    whole = layer(src, dst, dst_valid), layer(dst, src, src_valid.repeat_interleave(2, 0))
    expected = model.head(*(model.out(x[:, 0]).unflatten(0, (2, 2)) for x in whole))
    torch.testing.assert_close(model(batch), expected, rtol=1e-4, atol=1e-5)


# --- readers, by hand ---


def test_dygformer_counts_shared_neighbors() -> None:
    """Before event 4, node 0 has events with 1, 2 and 1, and node 3 with 1: node 1 is in both, twice and once."""
    past = history([0, 0, 0, 3], [1, 2, 1, 1], [0, 1, 2, 3], 4)
    read = network("dygformer").reader.read(past, queries([0], [[3]], 5.0, 4))
    assert read.in_own.tolist() == [[[1, 2, 1, 2], [1, 1, 0, 0]]]  # 0, 1, 2, 1 and 3, 1, padding
    assert read.in_other[0].tolist() == [[[0, 1, 0, 1]]] and read.in_other[1].tolist() == [[[0, 2, 0, 0]]]
    assert read.age.tolist() == [[[0.0, 5.0, 4.0, 3.0], [0.0, 2.0, 0.0, 0.0]]]


def test_cawn_counts_hits_by_step() -> None:
    """A walk from 3 goes to 1, then to 0. A walk from 0 goes to 1 or 2, and from 1 back to 0 or ends."""
    past = history([0, 0, 3], [1, 2, 1], [0, 1, 2], 4)
    read = network("cawn", num_walks=3, walk_length=2).reader.read(past, queries([3], [[0]], 5.0, 3))
    src = read.in_own[0, 0]  # of 3, then three times 1, 0
    assert src.tolist() == [[1, 0, 0], *[[0, 3, 0], [0, 0, 3]] * 3]
    by_other = read.in_other[0][0, 0]
    assert by_other[2].tolist() == [1, 0, 0]  # 0 is the root of the other end's walks
    assert read.valid[0, 0].all() and read.age[0, 0].tolist() == [0.0, *[3.0, 5.0] * 3]


def test_graphmixer_averages_recent_neighbors() -> None:
    node_x = torch.tensor([[1.0, 0.0], [2.0, 10.0], [4.0, 20.0], [0.0, 0.0]])
    past = history([0, 0, 0], [1, 2, 2], [0, 1, 2], 4, node_x)
    reader = network("graphmixer", node_dim=2, time_gap=2).reader
    read = reader.read(past, queries([0], [[3, 1]], 5.0, 3))
    assert read.node_x.tolist() == [[[1.0 + 4.0, 20.0], [0.0, 0.0], [2.0 + 1.0, 10.0]]]


def test_tgsrec_nodes_without_history_share_a_row() -> None:
    """Unknown nodes, and a node before its first event, whatever its id."""
    reader = network("tgsrec").reader
    read = reader.read(star(), queries([0, 5], [[7, 900], [4, 0]], 3.5, 4))
    assert read.row[0, :, 0].tolist() == [0, 40, 40] and read.row[1, :, 0].tolist() == [40, 4, 0]


# --- losses ---


def test_losses_by_hand() -> None:
    link_queries = queries([0, 3], [[2, 5], [1, 1]], 9.0, 6)
    for kind, changes, expected in (
        ("tcl", {"loss": "contrastive"}, lambda z: -F.log_softmax(z, dim=1)[:, 0]),
        ("tcl", {}, lambda z: (F.softplus(-z[:, 0]) + F.softplus(z[:, 1])) / 2),
        ("counts", {"loss": "ranking"}, lambda z: -F.log_softmax(z, dim=1)[:, 0]),
        ("tgsrec", {"decay": 0.0}, lambda z: F.softplus(z[:, 1] - z[:, 0])),
    ):
        model = network(kind, **changes)
        batch = model.reader.read(star(), link_queries)
        torch.testing.assert_close(model.losses(batch), expected(model(batch)))
    decayed, plain = (network("tgsrec", decay=decay) for decay in (0.5, 0.0))
    batch = decayed.reader.read(star(), link_queries)
    torch.testing.assert_close(decayed.losses(batch) - plain.losses(batch), (0.5 * decayed.table.norm()).expand(2))


# --- little data ---


@every_rival
@pytest.mark.parametrize(("edge_dim", "node_dim"), [(0, 0), (3, 0), (0, 2), (0, 11)])
def test_features_are_optional_and_used(kind: str, edge_dim: int, node_dim: int) -> None:
    """There may be more node features than `hidden`."""
    past = star()
    past = replace(
        past,
        edge_x=torch.randn(6, edge_dim) if edge_dim else None,
        node_x=torch.randn(8, node_dim) if node_dim else None,
    )
    model, link_queries = network(kind, edge_dim, node_dim), queries([0, 3], [[2, 5], [1, 1]], 9.0, 6)
    scores = model(model.reader.read(past, link_queries))
    assert scores.shape == (2, 2) and scores.isfinite().all()
    others = replace(past, **{k: x + 1 for k, x in (("edge_x", past.edge_x), ("node_x", past.node_x)) if x is not None})
    same = torch.equal(model(model.reader.read(others, link_queries)), scores)
    assert same == (not model.uses_features or not (edge_dim or node_dim))


@every_rival
def test_single_hop_and_no_history(kind: str) -> None:
    """Losses and gradients are finite without a second hop, and for nodes without history."""
    model = network(kind).train()
    batch = model.reader.read(star(), queries([1, 0, 7, 7], [[0, 2], [7, 6], [0, 900], [7, 7]], 9.0, 6))
    losses = model.losses(batch)
    losses.sum().backward()
    assert losses.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    if not model.has_embeddings:
        return
    node, t, cut = torch.tensor([7, 900, 0]), torch.full((3,), 9.0, dtype=torch.float64), torch.tensor([6, 6, 0])
    embedded = model.eval().embed(model.read_nodes(star(), node, t, cut))
    torch.testing.assert_close(embedded[0], embedded[1])  # both are unknown, and so is node 0 before its first event
    torch.testing.assert_close(embedded[0], embedded[2])


# --- two towers ---


class OneHot(TwoTowerModel):
    """Embeds node k as the k-th unit vector."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.head = dim, MergeHead(dim)

    def encode(self, batch: Tensor) -> Tensor:
        return F.one_hot(batch, self.dim).float()


class EndpointReader:
    def read(self, history: History, queries: Queries) -> Tensor:
        return queries.endpoints


def test_two_towers_score_each_pair_and_embed_each_node() -> None:
    model, link_queries = OneHot(8), queries([0, 3], [[2, 5], [1, 1]], 9.0, 6)
    model.reader = EndpointReader()
    unit = torch.eye(8)
    expected = torch.stack([model.head(unit[s], unit[d]) for s, d in ((0, 2), (0, 5), (3, 1), (3, 1))]).view(2, 2)
    torch.testing.assert_close(model(model.read(star(), link_queries)), expected)
    node, t, cut = torch.tensor([4, 7]), torch.full((2,), 9.0, dtype=torch.float64), torch.tensor([6, 6])
    assert torch.equal(model.embed(model.read_nodes(star(), node, t, cut)), unit[[4, 7]])


@pytest.mark.parametrize("kind", MODELS)
def test_training_state_is_not_part_of_the_weights(kind: str) -> None:
    """torch's hook of a similar name would add a key to every file of weights."""
    model = network(kind)
    assert not any("extra_state" in key for key in model.state_dict())
    assert model.is_stateful == (kind in ("tgn", "dyrep", "jodie")) and model.get_training_state() == {}


# --- settings ---


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("tgat", {"hidden": 7}, "heads=2: hidden \\+ time_dim is 107"),
        ("tgat", {"sampling": "newest"}, "sampling=newest is not known"),
        ("tgat", {"num_neighbors": 0}, "num_neighbors=0:"),
        ("tgsrec", {"decay": -1}, "decay=-1.0:"),
        ("tgsrec", {"num_embeddings": 0}, "num_embeddings=0:"),
        ("graphmixer", {"time_gap": 0}, "time_gap=0:"),
        ("dygformer", {"max_seq_len": 30, "patch_size": 4}, "max_seq_len=30:.*patch_size"),
        ("dygformer", {"heads": 3}, "heads=3: 4 \\* channel_dim is 200"),
        ("tcl", {"loss": "contrast"}, "loss=contrast is not known.*Did you mean 'contrastive'"),
        ("tcl", {"dropout": 1}, "dropout=1.0:"),
        ("cawn", {"time_scale": -1e-6}, "time_scale=-1e-06:"),
        ("counts", {"hidden": 0}, "hidden=0:"),
        ("counts", {"loss": "rank"}, "loss=rank is not known"),
        ("cawn", {"position_dim": 1}, "position_dim=1:"),
    ],
)
def test_invalid_settings(kind: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        make_settings(kind, given)


# --- the whole way ---


@every_rival
def test_train_predict_and_audit(kind: str, tmp_path: Path) -> None:
    stream = habits()
    run = train(stream, kind, out=tmp_path / kind, device="cpu", epochs=1, batch_size=40, **small_settings(kind))
    assert 0 < run.metrics["test"]["transductive"]["ap"] <= 1
    again = Run.load(tmp_path / kind, "cpu")
    ids = stream.ids.names.to_pylist()
    assert np.array_equal(again.score(ids[0], ids[1]), run.score(ids[0], ids[1]))
    assert len(again.recommend(ids[0], top=3)) == 3
    assert not again.predictor.model.has_embeddings or np.isfinite(again.embed()).all()
    task = LinkTask.prepare(stream, Protocol(), seed=0, device=CPU)
    failed = [check.check for check in audit_model(again.predictor.model, task, queries=20) if check.result == FAIL]
    assert failed == []


class Stops(Callback):
    """Somebody presses Ctrl-C after the second batch."""

    batches = 0

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.batches += 1
        if self.batches == 3:
            raise KeyboardInterrupt


@every_rival
def test_interrupted_and_resumed_to_the_same_weights(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "epochs": 2, "batch_size": 40, "checkpoint_minutes": 0}
    options |= small_settings(kind)
    whole = train(habits(), kind, out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        train(habits(), kind, out=tmp_path / "parts", callbacks=Stops(), **options)
    again = train(habits(), kind, out=tmp_path / "parts", resume=True, **options)
    weights = [run.folder.read_tensors("model.safetensors")[0] for run in (whole, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert whole.metrics["test"] == again.metrics["test"]
