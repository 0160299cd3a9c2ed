"""CorDGT's network against a slow version: one tree at a time, no padding, a C×C×d tensor of events."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cordgt.errors import SettingError
from cordgt.history.context import Context, TreeShape, expand_to_pairs, sample_trees
from cordgt.history.distance import tree_relations
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.models.cordgt import Cordgt, CordgtBatch, CordgtSettings, TreeAttention

EDGE_DIM, NODE_DIM = 3, 2
SMALL = CordgtSettings(
    fanout=(3, 2), hidden=8, heads=2, layers=2, td_dim=6, sd_dim=10, alpha=1.0, beta=2.0, td_unseen=1.0
)
fanouts = st.sampled_from(((1,), (4,), (3, 2), (2, 3), (1, 1), (2, 1, 3), (3, 2, 1)))


def some_history(seed: int = 0, *, n_events: int = 60, edges: bool = True, nodes: bool = True) -> History:
    """Nodes 0–7 have events, with ties, repeats and self-loops; 8 and 9 have none; early trees are half empty."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, 8, (2, n_events))
    elapsed = rng.choice([0, 0, 1, 3], n_events).cumsum()
    return History(
        TemporalIndex.build(src, dst, (elapsed - elapsed[0]).astype(np.float64), 10),
        torch.from_numpy(rng.normal(size=(n_events, EDGE_DIM)).astype(np.float32)) if edges else None,
        torch.from_numpy(rng.normal(size=(10, NODE_DIM)).astype(np.float32)) if nodes else None,
        seed=seed,
    )


def some_queries(history: History, seed: int = 0, *, n: int = 5, candidates: int = 2) -> Queries:
    """At any time, so that some trees are full, some have padding and some only a root."""
    rng = np.random.default_rng(seed)
    position = torch.from_numpy(np.sort(rng.integers(0, len(history.index.elapsed), n)))
    cut = history.index.tie_start[position].long()
    return Queries(
        src=torch.from_numpy(rng.integers(0, 10, n)),
        dst=torch.from_numpy(rng.integers(0, 10, (n, candidates))),
        t=history.index.elapsed[position],
        cut=cut,
        pair_cut=cut,
    )


@dataclasses.dataclass(frozen=True)
class Side:
    """One end's part of the batch: (B, 1, C) of the source, (B, M, C) of the candidates."""

    valid: Tensor
    moment: Tensor | None
    td: tuple[Tensor, ...]  # to the own root; to the other end, where there is one
    sd: tuple[Tensor, ...]
    node_x: Tensor | None
    edge_x: Tensor | None


def sides(batch: CordgtBatch) -> tuple[Side, Side]:
    """The source's part and the candidates', which is empty for a single node."""
    n = batch.valid.shape[1] - 1
    both = batch.td.shape[1] > n + 1

    def part(which: slice, own: slice, other: slice) -> Side:
        def of(x: Tensor | None) -> Any:
            return None if x is None else x[:, which]

        td, sd = (tuple(x[:, r] for r in ((own, other) if both else (own,))) for x in (batch.td, batch.sd))
        return Side(of(batch.valid), of(batch.moment), td, sd, of(batch.node_x), of(batch.edge_x))

    candidates = slice(n + 1, 2 * n + 1) if both else slice(1, n + 1)
    return (
        part(slice(0, 1), slice(0, 1), slice(1, n + 1)),
        part(slice(1, n + 1), candidates, slice(2 * n + 1, 3 * n + 1)),
    )


def network(settings: CordgtSettings, history: History, *, seed: int = 1) -> Cordgt:
    torch.manual_seed(seed)
    widths = [0 if x is None else x.shape[1] for x in (history.edge_x, history.node_x)]
    return Cordgt(settings, edge_dim=widths[0], node_dim=widths[1]).eval()


def with_settings(**changes: Any) -> CordgtSettings:
    return dataclasses.replace(SMALL, **changes)


# --- attention: sparse events against the dense formula ---


def dense_attention(attention: TreeAttention, x: Tensor, attn_mask: Tensor, edge_x: Tensor | None) -> Tensor:
    """The paper's formula: every pair of slots has an event, zero unless they are parent and child."""
    n, size, dim = x.shape
    heads = attention.heads
    q, k, v = (x @ w.T for w in attention.qkv.weight.chunk(3))
    q, k, v = (y.view(n, size, heads, dim) for y in (q, k, v))
    logits = torch.einsum("sihd,sjhd->shij", q, k)
    if edge_x is not None and attention.edge_kv is not None:
        is_child = torch.zeros(size, size, dtype=torch.bool)
        for slot, parent in enumerate(attention.shape.parent.tolist()):
            is_child[parent, slot] = slot > 0
        events = torch.where(is_child[:, :, None], edge_x[:, None], 0.0)  # (S, C, C, De)
        event_k, event_v = (events @ w.T for w in attention.edge_kv.weight.chunk(2))
        event_k, event_v = (y.view(n, size, size, heads, dim) for y in (event_k, event_v))
        logits = logits + torch.einsum("sihd,sijhd->shij", q, event_k)
    logits = logits / math.sqrt(dim)
    weight = torch.where(attn_mask.unsqueeze(1), logits, -torch.inf).softmax(dim=-1)
    y = torch.einsum("shij,sjhd->sihd", weight, v)
    if edge_x is not None and attention.edge_kv is not None:
        y = y + torch.einsum("shij,sijhd->sihd", weight, event_v)
    return y.flatten(-2) @ attention.out.weight.T + attention.out.bias


def trees_and_mask(fanout: tuple[int, ...], seed: int, *, mask: bool) -> tuple[Tensor, Tensor]:
    """Which slots of a few sampled trees are filled, (S, C), and their attention mask, (S, C or 1, C)."""
    history = some_history(seed)
    model = network(with_settings(fanout=fanout, mask=mask), history)
    batch = model.reader.read(history, some_queries(history, seed))
    return expand_to_pairs(batch.valid).flatten(0, 1), model._attn_mask(batch).flatten(0, 1)


def gradients(out: Tensor, weight: Tensor, of: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad((out * weight).sum(), of, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(of, found, strict=True)]


@settings(max_examples=60)
@given(fanout=fanouts, seed=st.integers(0, 999), mask=st.booleans(), edges=st.booleans())
def test_attention_equals_the_dense_formula(fanout: tuple[int, ...], seed: int, mask: bool, edges: bool) -> None:
    """Values, and the gradient of every parameter and of both inputs, in double precision."""
    valid, attn_mask = trees_and_mask(fanout, seed, mask=mask)
    shape = TreeShape(fanout)
    torch.manual_seed(seed)
    attention = TreeAttention(dim=5, heads=3, edge_dim=EDGE_DIM if edges else 0, dropout=0.0, shape=shape).double()
    x = torch.randn(len(valid), shape.n_slots, 5, dtype=torch.float64, requires_grad=True)
    edge_x = (
        torch.randn(len(valid), shape.n_slots, EDGE_DIM, dtype=torch.float64, requires_grad=True) if edges else None
    )
    weight = torch.randn_like(x)
    got, expected = attention(x, attn_mask, edge_x), dense_attention(attention, x, attn_mask, edge_x)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
    of = [x, *([] if edge_x is None else [edge_x]), *attention.parameters()]
    for a, b in zip(gradients(got, weight, of), gradients(expected, weight, of), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
        assert b.abs().sum() > 0


@pytest.mark.parametrize("fanout", [(2,), (2, 1), (1, 2, 1)])
def test_attention_has_the_gradient_of_its_values(fanout: tuple[int, ...]) -> None:
    """Finite differences, with padding that attends but is not attended to."""
    torch.manual_seed(0)
    shape = TreeShape(fanout)
    attention = TreeAttention(dim=2, heads=2, edge_dim=2, dropout=0.0, shape=shape).double()
    attn_mask = torch.ones(2, 1, shape.n_slots, dtype=torch.bool)
    attn_mask[1, :, -1] = False
    x = torch.randn(2, shape.n_slots, 2, dtype=torch.float64, requires_grad=True)
    edge_x = torch.randn(2, shape.n_slots, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: attention(a, attn_mask, b), (x, edge_x))


def test_root_has_no_event() -> None:
    """Slot 0 has no event: its row of event features is ignored."""
    torch.manual_seed(0)
    attention = TreeAttention(dim=4, heads=2, edge_dim=EDGE_DIM, dropout=0.0, shape=TreeShape((2, 2)))
    x, edge_x = torch.randn(3, 7, 4), torch.randn(3, 7, EDGE_DIM)
    other = edge_x.clone()
    other[:, 0] = 100.0
    attn_mask = torch.ones(3, 1, 7, dtype=torch.bool)
    assert torch.equal(attention(x, attn_mask, edge_x), attention(x, attn_mask, other))


def test_event_reaches_its_parent_alone() -> None:
    """One attention layer passes an event's features to its parent only."""
    torch.manual_seed(0)
    shape = TreeShape((2, 2))
    attention = TreeAttention(dim=4, heads=2, edge_dim=EDGE_DIM, dropout=0.0, shape=shape)
    x, attn_mask = torch.randn(1, 7, 4), torch.ones(1, 1, 7, dtype=torch.bool)
    edge_x = torch.randn(1, 7, EDGE_DIM)
    before = attention(x, attn_mask, edge_x)
    for slot in range(1, 7):
        other = edge_x.clone()
        other[:, slot] += 1.0
        changed = (attention(x, attn_mask, other) != before).any(dim=-1)[0].nonzero().flatten().tolist()
        assert changed == [int(shape.parent[slot])]


def test_every_head_is_as_wide_as_the_model() -> None:
    attention = TreeAttention(dim=8, heads=3, edge_dim=EDGE_DIM, dropout=0.0, shape=TreeShape((2,)))
    assert attention.qkv.weight.shape == (3 * 3 * 8, 8) and attention.qkv.bias is None
    assert attention.edge_kv is not None and attention.edge_kv.bias is None
    assert attention.edge_kv.weight.shape == (2 * 3 * 8, EDGE_DIM)
    assert attention.out.weight.shape == (8, 3 * 8)


# --- the mask ---


@settings(max_examples=40)
@given(fanout=fanouts, seed=st.integers(0, 999), mask=st.booleans())
def test_mask_follows_its_definition(fanout: tuple[int, ...], seed: int, mask: bool) -> None:
    """Row i attends to j if j is no later and no nearer, and to itself; without the mask, to all. Never to padding."""
    history = some_history(seed)
    queries = some_queries(history, seed)
    model = network(with_settings(fanout=fanout, mask=mask), history)
    batch = model.reader.read(history, queries)
    trees = trees_of(model, history, queries.dst, queries.cut[:, None])
    hop = TreeShape(fanout).slot_hop.tolist()
    size = len(hop)
    got = model._attn_mask(batch)[:, queries.dst.shape[1] :].expand(*trees.node.shape, size)
    for b in range(len(queries.src)):
        for m in range(queries.dst.shape[1]):
            node, pos = trees.node[b, m].tolist(), trees.pos[b, m].tolist()
            time = [math.inf if p < 0 else history.index.elapsed[p].item() for p in pos]
            for i in range(size):
                if node[i] < 0:
                    continue  # nothing reads a row of padding
                for j in range(size):
                    allowed = node[j] >= 0 and (not mask or (time[j] <= time[i] and hop[j] >= hop[i]) or i == j)
                    assert got[b, m, i, j].item() == allowed, (b, m, i, j)


def trees_of(model: Cordgt, history: History, root: Tensor, cut: Tensor) -> Context:
    how = model.settings.sampling
    return sample_trees(history.index, model.shape, root, cut, seed=history.seed, epoch=history.epoch, sampling=how)


def test_parents_attend_to_their_children() -> None:
    """The mask never hides an event: a child's event is earlier than its parent's, and one hop farther."""
    history = some_history(2)
    model = network(with_settings(fanout=(3, 2, 2), mask=True), history)
    batch = model.reader.read(history, some_queries(history, n=20))
    attn_mask = model._attn_mask(batch)
    parent = model.shape.parent
    for slot in range(1, model.shape.n_slots):
        there = expand_to_pairs(batch.valid)[..., slot]
        assert attn_mask[..., int(parent[slot]), slot][there].all()


# --- padding ---


def scrambled(batch: CordgtBatch, absent: int, seed: int) -> CordgtBatch:
    """Random values in the padding."""
    draw = torch.Generator().manual_seed(seed)
    n = batch.valid.shape[1] - 1
    measured = batch.valid[:, tree_relations(n, batch.td.shape[1] > n + 1)[0]]

    def other(x: Tensor | None, valid: Tensor) -> Any:
        if x is None:
            return None
        empty = ~valid if x.ndim == 3 else ~valid.unsqueeze(-1)
        noise = 50 * torch.rand(x.shape, generator=draw, dtype=torch.float64)
        noise = noise % (absent + 1) if not x.dtype.is_floating_point else noise
        return torch.where(empty, noise.to(x.dtype), x)

    return CordgtBatch(
        valid=batch.valid,
        moment=other(batch.moment, batch.valid),
        td=other(batch.td, measured),
        sd=other(batch.sd, measured),
        node_x=other(batch.node_x, batch.valid),
        edge_x=other(batch.edge_x, batch.valid),
    )


@settings(max_examples=40)
@given(
    fanout=fanouts,
    seed=st.integers(0, 999),
    mask=st.booleans(),
    edges=st.booleans(),
    head=st.sampled_from(("mlp", "linear")),
    stpe=st.sampled_from(("c", "u")),
)
def test_padding_is_never_attended_to_nor_pooled(
    fanout: tuple[int, ...], seed: int, mask: bool, edges: bool, head: str, stpe: str
) -> None:
    history = some_history(seed, edges=edges)
    model = network(with_settings(fanout=fanout, mask=mask, head=head, stpe=stpe), history)
    queries = some_queries(history, seed)
    batch = model.reader.read(history, queries)
    assert torch.equal(model(batch), model(scrambled(batch, model.reader.distance_options.sd_unseen, seed)))
    alone = model.read_nodes(history, queries.src, queries.t, queries.cut)
    assert torch.equal(model.embed(alone), model.embed(scrambled(alone, model.reader.distance_options.sd_unseen, seed)))


def test_queries_have_padding() -> None:
    """The queries of these tests have full trees, half-empty trees and single roots."""
    history = some_history()
    model = network(SMALL, history)
    side = model.reader.read(history, some_queries(history, n=30))
    filled = side.valid.sum(dim=-1)
    assert (filled == 1).any() and (filled == model.shape.n_slots).any()
    assert ((filled > 1) & (filled < model.shape.n_slots)).any()
    assert side.valid[..., 0].all()


@pytest.mark.parametrize("mask", [False, True])
def test_padding_gets_no_gradient(mask: bool) -> None:
    history = some_history(4)
    model = network(with_settings(mask=mask), history)
    batch = model.reader.read(history, some_queries(history, n=12))
    assert batch.edge_x is not None and batch.node_x is not None
    batch.edge_x.requires_grad_()
    batch.node_x.requires_grad_()
    model(batch).sum().backward()
    for x in (batch.edge_x, batch.node_x):
        assert x.grad is not None
        assert x.grad[~batch.valid].abs().max() == 0
        assert x.grad[batch.valid].abs().max() > 0


# --- the whole network, slowly ---


def slow_states(model: Cordgt, side: Side, b: int, m: int) -> np.ndarray:
    """The states of the filled slots of one tree after the last layer, in float64, without padding."""
    at = min(m, side.valid.shape[1] - 1)
    slots = [c for c in range(model.shape.n_slots) if side.valid[b, at, c]]

    def value(x: Tensor, c: int) -> np.ndarray:
        return x[b, min(m, x.shape[1] - 1), c].double().numpy()

    parts = []
    for c in slots:
        token = [] if side.node_x is None else [value(side.node_x, c)]
        for encoding, distances in ((model.td, side.td), (model.sd, side.sd)):
            if encoding is not None:
                each = [torch.from_numpy(np.array([float(value(x, c))])) for x in distances]
                token.append(sum(encoding(x)[0].detach().double().numpy() for x in each))
        parts.append(np.concatenate(token) if token else np.zeros(1))
    p = {name: w.detach().double().numpy() for name, w in model.named_parameters()}
    x = np.stack(parts) @ p["project.weight"].T + p["project.bias"]
    moment = [0] * model.shape.n_slots if side.moment is None else side.moment[b, at].tolist()
    hop, parent = model.shape.slot_hop.tolist(), model.shape.parent.tolist()
    heads, dim = model.settings.heads, model.settings.hidden

    for k in range(model.settings.layers):
        name = f"layers.{k}"
        y = slow_norm(x, p[f"{name}.norm1.weight"], p[f"{name}.norm1.bias"])
        qkv = (y @ p[f"{name}.attention.qkv.weight"].T).reshape(len(slots), 3, heads, dim)
        attended = np.zeros((len(slots), heads, dim))
        for i, row in enumerate(slots):
            for h in range(heads):
                logits, values = [], []
                for j, column in enumerate(slots):
                    key, value_vector = qkv[j, 1, h].copy(), qkv[j, 2, h].copy()
                    if side.edge_x is not None and column > 0 and parent[column] == row:
                        event = p[f"{name}.attention.edge_kv.weight"] @ value(side.edge_x, column)
                        event = event.reshape(2, heads, dim)
                        key, value_vector = key + event[0, h], value_vector + event[1, h]
                    earlier, farther = moment[column] <= moment[row], hop[column] >= hop[row]
                    if not model.settings.mask or i == j or (earlier and farther):
                        logits.append(qkv[i, 0, h] @ key / math.sqrt(dim))
                        values.append(value_vector)
                weight = np.exp(np.array(logits) - max(logits))
                attended[i, h] = (weight / weight.sum()) @ np.array(values)
        x = x + attended.reshape(len(slots), -1) @ p[f"{name}.attention.out.weight"].T + p[f"{name}.attention.out.bias"]
        y = slow_norm(x, p[f"{name}.norm2.weight"], p[f"{name}.norm2.bias"])
        y = np.maximum(y @ p[f"{name}.fc1.weight"].T + p[f"{name}.fc1.bias"], 0)
        x = x + y @ p[f"{name}.fc2.weight"].T + p[f"{name}.fc2.bias"]
    return x


def slow_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mask": True},
        {"stpe": "u"},
        {"head": "linear", "fanout": (2, 1, 2)},
        {"td": False, "sampling": "recent"},
        {"sd": False, "fanout": (4,), "layers": 1},
        {"td": False, "sd": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("features", [False, True])
def test_network_equals_the_slow_version(changes: dict[str, Any], features: bool) -> None:
    history = some_history(7, edges=features, nodes=features)
    model = network(with_settings(**changes), history)
    queries = some_queries(history, 7, n=3)
    batch = model.reader.read(history, queries)
    got = model(batch).detach().numpy()
    head = [w.detach().double().numpy() for name, w in model.named_parameters() if name.startswith("head")]
    for b in range(3):
        for m in range(2):
            src, dst = (slow_states(model, side, b, m).mean(axis=0) for side in sides(batch))
            if model.settings.head == "linear":
                weight, bias = head
                logit = weight @ (src + dst) + bias
            else:
                w1, b1, w2, b2 = head
                logit = w2 @ np.maximum(w1 @ np.concatenate([src, dst]) + b1, 0) + b2
            assert got[b, m] == pytest.approx(logit.item(), abs=1e-4)


def test_embedding_is_the_mean_of_the_trees_own_states() -> None:
    """From STPE-U: one distance of either kind, to the tree's own root."""
    history = some_history(8)
    model = network(SMALL, history)
    node, cut = torch.tensor([1, 9]), torch.tensor([50, 50])
    batch = model.read_nodes(history, node, torch.full((2,), 80.0, dtype=torch.float64), cut)
    side, _ = sides(batch)
    assert len(side.td) == len(side.sd) == 1
    got = model.embed(batch)
    assert got.shape == (2, SMALL.hidden)
    for b in range(2):
        np.testing.assert_allclose(
            got[b].detach().numpy(), slow_states(model, side, b, 0).mean(axis=0), rtol=0, atol=1e-4
        )


# --- heads ---


@pytest.mark.parametrize("stpe", ["c", "u"])
@pytest.mark.parametrize("mask", [False, True])
def test_shares_of_the_linear_head_sum_to_the_logit(stpe: str, mask: bool) -> None:
    history = some_history(9)
    model = network(with_settings(head="linear", stpe=stpe, mask=mask), history)
    batch = model.reader.read(history, some_queries(history, 9, n=8, candidates=3))
    src, dst = model.shares(batch)
    assert src.shape == dst.shape == (8, 3, model.shape.n_slots)
    for side, share in zip(sides(batch), (src, dst), strict=True):
        assert share[~side.valid.expand_as(share)].abs().max() == 0
    _, bias = (w for name, w in model.named_parameters() if name.startswith("head"))
    torch.testing.assert_close(src.sum(-1) + dst.sum(-1) + bias, model(batch), rtol=0, atol=1e-5)


def test_shares_need_the_linear_head() -> None:
    history = some_history()
    model = network(SMALL, history)
    with pytest.raises(SettingError, match="head=linear"):
        model.shares(model.reader.read(history, some_queries(history)))


@pytest.mark.parametrize("stpe", ["c", "u"])
def test_linear_head_is_symmetric(stpe: str) -> None:
    """STPE-C of a node is symmetric in the ends, and so is a head that adds them."""
    history = some_history(10)
    model = network(with_settings(head="linear", stpe=stpe), history)
    queries = some_queries(history, 10, n=12, candidates=1)
    swapped = dataclasses.replace(queries, src=queries.dst[:, 0], dst=queries.src[:, None])
    got, expected = (model(model.reader.read(history, q)) for q in (swapped, queries))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_distances_to_both_ends_are_added() -> None:
    """The token of a slot under STPE-C is the sum of its encodings to either end, in either tree."""
    history = some_history(11)
    model = network(SMALL, history)
    batch = model.reader.read(history, some_queries(history, 11, n=10, candidates=1))
    order = [1, 0, 3, 2]  # own and other changed places, at either end
    swapped = dataclasses.replace(batch, td=batch.td[:, order], sd=batch.sd[:, order])
    assert torch.equal(model._tokens(batch), model._tokens(swapped))
    src, dst = sides(batch)
    # The source's root is at distance 0 from itself, and as far from the other end as the other tree says.
    assert (src.td[0][..., 0] == 0).all() and (src.sd[0][..., 0] == 0).all()
    assert torch.equal(src.td[1][..., 0], dst.td[1][..., 0])


# --- what is read ---


def test_source_tree_is_read_once_for_all_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    history = some_history(12)
    model = network(SMALL, history)
    roots = []

    def recording_sample_trees(index: Any, shape: Any, root: Tensor, cut: Tensor, **rest: Any) -> Context:
        roots.append(tuple(root.shape))
        return sample_trees(index, shape, root, cut, **rest)

    monkeypatch.setattr("cordgt.models.cordgt.sample_trees", recording_sample_trees)
    src, dst = sides(model.reader.read(history, some_queries(history, n=5, candidates=4)))
    assert roots == [(5, 1 + 4)]
    assert src.valid.shape == (5, 1, 10) and dst.valid.shape == (5, 4, 10)
    assert src.td[0].shape == (5, 1, 10) and src.td[1].shape == (5, 4, 10)
    assert src.edge_x is not None and src.edge_x.shape == (5, 1, 10, EDGE_DIM)


def test_features_are_in_their_slots() -> None:
    history = some_history(13)
    assert history.edge_x is not None and history.node_x is not None
    model = network(SMALL, history)
    queries = some_queries(history, 13, n=10)
    _, dst = sides(model.reader.read(history, queries))
    trees = trees_of(model, history, queries.dst, queries.cut[:, None])
    assert dst.edge_x is not None and dst.node_x is not None
    for index in np.ndindex(*trees.node.shape):
        node, pos = trees.node[index].item(), trees.pos[index].item()
        assert torch.equal(dst.edge_x[index], history.edge_x[pos] if pos >= 0 else torch.zeros(EDGE_DIM))
        assert torch.equal(dst.node_x[index], history.node_x[node] if node >= 0 else torch.zeros(NODE_DIM))


# --- ablations ---


def n_parameters(model: Cordgt) -> int:
    return sum(p.numel() for p in model.parameters())


ABLATIONS: dict[str, dict[str, Any]] = {
    "alpha=0": {"alpha": 0.0},
    "beta=0": {"beta": 0.0},
    "no TD": {"td": False},
    "no SD": {"sd": False},
    "neither": {"td": False, "sd": False},
    "STPE-U": {"stpe": "u"},
    "mask": {"mask": True},
    "recent": {"sampling": "recent"},
}


@pytest.mark.parametrize("name", ABLATIONS)
@pytest.mark.parametrize("features", [False, True])
def test_ablation_drops_its_part(name: str, features: bool) -> None:
    history = some_history(14, edges=features, nodes=features)
    whole, ablated = (network(s, history) for s in (SMALL, with_settings(**ABLATIONS[name])))
    batch = ablated.reader.read(history, some_queries(history, 14, n=20))
    logits = ablated(batch)
    assert logits.shape == (20, 2) and logits.isfinite().all()
    logits.sum().backward()
    nothing = name == "neither" and not features  # every token is alike: the projection's bias
    for parameter, p in ablated.named_parameters():
        assert p.grad is None if nothing and parameter == "project.weight" else p.grad.isfinite().all()
    assert not torch.equal(logits, whole(whole.reader.read(history, some_queries(history, 14, n=20))))
    d, lost = SMALL.hidden, 0
    for off, dim in ((not ablated.settings.td, SMALL.td_dim), (not ablated.settings.sd, SMALL.sd_dim)):
        encoder = dim * d + d + d * dim + dim
        lost += off * (encoder + d * dim)
    if name == "neither" and not features:
        lost -= d  # something has to be projected: a constant
    assert n_parameters(whole) - n_parameters(ablated) == lost


def test_alpha_weighs_intensity_and_beta_recency() -> None:
    """A pair with n events, the last at ``last``: alpha * last / (t n) + beta (t - last) / t; the two add up."""
    history = some_history(15)
    queries = some_queries(history, 15, n=30, candidates=1)
    queries = dataclasses.replace(queries, pair_cut=(queries.cut - 7).clamp_min(0))  # records may see less than trees
    read = {}
    for alpha, beta in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 4.0)):
        reader = network(with_settings(alpha=alpha, beta=beta), history).reader
        read[alpha, beta] = sides(reader.read(history, queries))[1].td[1]
    trees = trees_of(network(SMALL, history), history, queries.dst, queries.cut[:, None])
    count, last = history.index.pair_history(trees.node, queries.src[:, None, None], queries.pair_cut[:, None, None])
    t = queries.t[:, None, None].expand_as(last)
    other = (trees.node != queries.src[:, None, None]) & trees.valid
    met = (count > 0) & other
    assert met.sum() > 20
    intensity, recency = (last / (t * count))[met], ((t - last) / t)[met]
    torch.testing.assert_close(read[1.0, 0.0][met], intensity)
    torch.testing.assert_close(read[0.0, 1.0][met], recency)
    torch.testing.assert_close(read[1.0, 1.0][met], intensity + recency)
    torch.testing.assert_close(read[0.5, 4.0][met], 0.5 * intensity + 4.0 * recency)
    never = (count == 0) & other
    assert (read[0.5, 4.0][never] == 4.0).all() and (read[1.0, 0.0][never] == 1.0).all()


def test_unseen_distances_are_settings() -> None:
    history = some_history(16)
    queries = some_queries(history, 16, n=30, candidates=1)
    model = network(with_settings(td_unseen=3.0, sd_unseen=4, alpha=2.0, beta=5.0), history)
    batch = model.reader.read(history, queries)
    _, dst = sides(batch)
    assert model.reader.distance_options.sd_unseen == 2 + 4
    assert dst.td[1].max() == 15.0 and dst.sd[1].max() == 6
    assert dst.sd[1][dst.sd[1] < 6].max() <= 2
    assert model(batch).isfinite().all()


def test_stpe_u_depends_on_one_end_only() -> None:
    """The source's input is the same for every candidate."""
    history = some_history(17)
    model = network(with_settings(stpe="u"), history)
    queries = some_queries(history, 17, n=6)
    src, dst = sides(model.reader.read(history, queries))
    assert len(src.td) == len(src.sd) == len(dst.td) == len(dst.sd) == 1
    other, _ = sides(model.reader.read(history, dataclasses.replace(queries, dst=queries.dst.flip(0))))
    assert torch.equal(src.td[0], other.td[0]) and torch.equal(src.sd[0], other.sd[0])


def test_recent_sampling_takes_the_latest() -> None:
    history = some_history(18)
    model = network(with_settings(sampling="recent", fanout=(3,)), history)
    node, cut = torch.arange(8), torch.full((8,), 55)
    tree = trees_of(model, history, node, cut)
    for u in range(8):
        row = [int(p) for p in history.index.pos[history.index.row_start[u] : history.index.row_start[u + 1]]]
        latest = [p for p in reversed(row) if p < 55][:3]
        assert tree.pos[u, 1:].tolist() == latest + [-1] * (3 - len(latest))


def test_dropout_only_in_training() -> None:
    history = some_history(19)
    model = network(with_settings(dropout=0.5), history)
    batch = model.reader.read(history, some_queries(history, 19, n=10))
    assert torch.equal(model(batch), model(batch))
    model.train()
    assert not torch.equal(model(batch), model(batch))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fanout": ()}, "fanout"),
        ({"fanout": (3, 0)}, "fanout=3,0"),
        ({"sampling": "oldest"}, "uniform, recent, mixed"),
        ({"stpe": "x"}, "one of c, u"),
        ({"head": "tree"}, "one of mlp, linear"),
        ({"hidden": 0}, "hidden=0"),
        ({"heads": 0}, "heads=0"),
        ({"layers": -1}, "layers=-1"),
        ({"sd_unseen": 0}, "sd_unseen=0"),
        ({"td_dim": 7}, "td_dim=7"),
        ({"sd_dim": 0}, "sd_dim=0"),
        ({"alpha": -1.0}, "alpha=-1"),
        ({"beta": math.inf}, "beta=inf"),
        ({"td_unseen": math.nan}, "td_unseen=nan"),
        ({"dropout": 1.0}, "dropout=1"),
        ({"dropout": -0.1}, "dropout=-0.1"),
    ],
    ids=str,
)
def test_invalid_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        with_settings(**changes)
