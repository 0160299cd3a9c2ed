"""Triton kernels against their torch twins: on a GPU if there is one, otherwise in Triton's interpreter."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed: its kernels are tested where it is")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from cordgt.history import collaborative, pair_features, rng
from cordgt.history.collaborative import CollaborativeOptions
from cordgt.history.context import TreeShape, recent_stride, sample_trees
from cordgt.history.distance import DistanceOptions, tree_distances
from cordgt.history.index import TemporalIndex
from cordgt.history.kernels import collaborative as collaborative_kernels
from cordgt.history.kernels import trees as tree_kernels
from cordgt.history.queries import History, Queries
from cordgt.models.cordgt import Cordgt, CordgtSettings
from cordgt.nn.kernels import attention, feed_forward, norm
from cordgt.nn.kernels import sinusoids as sinusoid_kernels
from cordgt.nn.kernels.sums import sum_rows
from cordgt.nn.positional_encoding import DISTANCE_SCALE, frequencies, sinusoids
from cordgt.runtime import kernel_loader as kernels
from cordgt.tasks.negatives import draw_negatives, negatives_key
from cordgt.tasks.protocol import visible_cuts

from . import slow_collaborative
from . import strategies as some
from .helpers import TEN, build
from .strategies import Stream, streams

few = settings(max_examples=12 if DEVICE.type == "cpu" else 200, deadline=None)


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


@few
@given(data=st.data(), stream=streams(), fanout=some.fanouts, seed=some.seeds, epoch=some.epochs, how=some.samplings)
def test_trees(data: st.DataObject, stream: Stream, fanout: tuple[int, ...], seed: int, epoch: int, how: str) -> None:
    index, shape = build(stream).to(DEVICE).without_kernels(), TreeShape(fanout)
    queries = data.draw(st.lists(st.tuples(some.nodes(stream), some.cuts(stream)), min_size=1, max_size=9))
    root, cut = ints([u for u, _ in queries]), ints([c for _, c in queries])
    got = tree_kernels.sample_trees(
        index,
        fanout,
        shape.hop_starts,
        root,
        cut,
        seed_key=rng.mix64_int(seed),
        epoch=torch.tensor(epoch, device=DEVICE),
        recent_stride=recent_stride(how),
    )
    expected = sample_trees(index, shape, root, cut, seed=seed, epoch=epoch, sampling=how)
    assert torch.equal(got[0], expected.node) and torch.equal(got[1], expected.pos)


@few
@given(data=st.data(), stream=streams())
def test_pair_interactions_and_degrees(data: st.DataObject, stream: Stream) -> None:
    index = build(stream).to(DEVICE).without_kernels()
    queries = st.tuples(some.nodes(stream), some.nodes(stream), some.cuts(stream))
    node, other, cut = (ints(list(x)) for x in zip(*data.draw(st.lists(queries, min_size=1, max_size=9)), strict=True))
    for got, expected in zip(
        tree_kernels.pair_interactions(index, node, other, cut), index.pair_interactions(node, other, cut), strict=True
    ):
        assert torch.equal(got, expected)
    assert torch.equal(tree_kernels.degree(index, node, cut), index.degree(node, cut))


@few
@given(data=st.data(), stream=streams(), fanout=some.fanouts, n_candidates=st.integers(0, 4), correlated=st.booleans())
def test_distances(
    data: st.DataObject, stream: Stream, fanout: tuple[int, ...], n_candidates: int, correlated: bool
) -> None:
    index, shape = build(stream).to(DEVICE).without_kernels(), TreeShape(fanout)
    roots = ints(
        [
            data.draw(st.lists(some.nodes(stream, padding=False), min_size=n_candidates + 1, max_size=n_candidates + 1))
            for _ in range(2)
        ]  # type: ignore[misc]
    )
    cut = ints([data.draw(some.cuts(stream)) for _ in range(2)])
    t = torch.tensor([data.draw(st.sampled_from((0.0, 5.0, 1e9))) for _ in range(2)], device=DEVICE).double()
    t = t + stream.elapsed[-1]
    trees = sample_trees(index, shape, roots, cut[:, None], seed=1)
    options = DistanceOptions(alpha=0.1, beta=3.0, td_unseen=30.0, sd_unseen=7)
    td, sd = tree_kernels.distances(
        index, trees.node, shape.slot_hop_on(DEVICE), shape.n_hops, t, cut, correlated=correlated, **vars(options)
    )
    expected_td, expected_sd = tree_distances(index, shape, trees, t, cut, options, correlated=correlated)
    assert torch.equal(sd, expected_sd)
    torch.testing.assert_close(td, expected_td, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("n_candidates", [0, 1, 3])
def test_pair_features(n_candidates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(5)
    src, dst = torch.randint(0, 12, (2, 600), generator=generator)
    times = torch.randint(0, 300, (600,), generator=generator).sort().values.double()
    index = TemporalIndex.build(src.numpy(), dst.numpy(), times.numpy(), 12).to(DEVICE)
    cut, t = ints([0, 1, 64, 599, 600]), torch.tensor([0.0, 0.0, 40.0, 299.0, 1e6], device=DEVICE).double()
    pair_cut = (cut - 30).clamp_min(0)
    roots = torch.randint(0, 14, (5, 1 + n_candidates), generator=generator).to(DEVICE)
    trees = sample_trees(index, TreeShape((5, 2)), roots, cut[:, None], seed=1, sampling="mixed")
    queries = Queries(roots[:, 0], roots[:, 1:], t, cut, pair_cut)

    def compute() -> tuple[Tensor, Tensor]:
        return pair_features.slot_features(index, trees, t, cut, pair_cut), pair_features.pair_features(index, queries)

    monkeypatch.setattr(kernels, "kernels_available", lambda device: False)
    plain = compute()
    monkeypatch.setattr(kernels, "kernels_available", lambda device: True)
    for mine, theirs in zip(compute(), plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def fused_columns(index: TemporalIndex, queries: Queries, options: CollaborativeOptions) -> Tensor:
    """The collaborative columns as the kernels write them."""
    return collaborative._columns_fused(collaborative_kernels, index, queries, options)


def with_dtype(index: TemporalIndex, dtype: torch.dtype) -> TemporalIndex:
    """The same index with ids and positions of another type."""
    ids = ("nbr", "pos", "nbr_degree", "src", "row_start")
    return replace(index, **{name: getattr(index, name).to(dtype) for name in ids})


@few
@given(
    data=st.data(),
    stream=streams(),
    later=st.sampled_from((0.0, 2.5, 1e308)),
    bounds=st.tuples(*(st.integers(1, 5) for _ in range(4))),
    dtype=st.sampled_from((torch.int32, torch.int64)),
)
def test_collaborative_columns(
    data: st.DataObject, stream: Stream, later: float, bounds: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Ties, repeats, isolated and new nodes, padding, self-loops and masked events, against the definition."""
    roots = data.draw(st.lists(some.nodes(stream), min_size=6, max_size=6))
    cuts, t = [data.draw(some.cuts(stream)) for _ in range(2)], stream.elapsed[-1] + later
    options, src, dst = CollaborativeOptions(*bounds), roots[:2], [roots[2:4], roots[4:]]
    time = torch.tensor([t, t], dtype=torch.float64, device=DEVICE)
    queries = Queries(ints(src), ints(dst), time, ints(cuts), ints(cuts))  # type: ignore[arg-type]
    got = fused_columns(with_dtype(build(stream), dtype).to(DEVICE), queries, options)
    known = [
        [slow_collaborative.collaborative_features(stream.history, u, v, t, cut, **vars(options)) for v in row]
        for u, row, cut in zip(src, dst, cuts, strict=True)
    ]
    torch.testing.assert_close(got.cpu(), torch.tensor(known), rtol=1e-5, atol=1e-5, check_dtype=True)


def busy_stream(n: int, n_nodes: int) -> tuple[TemporalIndex, Queries]:
    """Events of few nodes, some of them busy, so that rows are longer than every bound; queries from first to last."""
    generator = torch.Generator().manual_seed(4)
    src, dst = (torch.rand(2, n, generator=generator).square() * n_nodes).long()
    times = torch.randint(0, n // 2, (n,), generator=generator).sort().values.double()
    index = TemporalIndex.build(src.numpy(), dst.numpy(), times.numpy(), n_nodes)
    roots = torch.randint(-1, n_nodes + 2, (4, 3), generator=generator)
    cut = torch.tensor([0, n // 8, n - 1, n])
    t = torch.tensor([0.0, n / 16, n / 2, 1e6], dtype=torch.float64)
    return index, Queries(roots[:, 0], roots[:, 1:], t, cut, cut)


def on_device(queries: Queries) -> Queries:
    return Queries(**{name: x.to(DEVICE) for name, x in vars(queries).items()})


@pytest.mark.parametrize("options", [CollaborativeOptions(), CollaborativeOptions(7, 21, 5, 3)], ids=["default", "odd"])
def test_collaborative_columns_of_a_busy_stream(options: CollaborativeOptions) -> None:
    """To rounding those of the compiled loops, and the same bits each time."""
    index, queries = busy_stream(2000, 150)
    got, again = (fused_columns(index.to(DEVICE), on_device(queries), options) for _ in range(2))
    expected = collaborative.collaborative_features(index, queries, options)
    assert float(expected[:, :, 6:9].max()) > 0 and float(expected[:, :, 0].max()) > 0
    assert torch.equal(got, again)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-6, atol=1e-6)


def test_collaborative_columns_in_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many queries take several launches, which changes nothing; no queries and no candidates are fine too."""
    options, index = CollaborativeOptions(4, 5, 2, 2), build(TEN).to(DEVICE)
    cuts, t = torch.arange(5, 11), torch.arange(5.0, 11.0, dtype=torch.float64) * 2
    queries = on_device(Queries(torch.arange(6), torch.arange(12).remainder(5).view(6, 2), t, cuts, cuts))
    whole = fused_columns(index, queries, options)
    monkeypatch.setattr(collaborative_kernels, "MAX_QUERIES", 4)
    assert torch.equal(fused_columns(index, queries, options), whole)
    dim = collaborative.COLLABORATIVE_DIM
    assert fused_columns(index, queries.take(slice(0, 0)), options).shape == (0, 2, dim)
    assert fused_columns(index, replace(queries, dst=queries.dst[:, :0]), options).shape == (6, 0, dim)


def test_collaborative_columns_of_a_stream_without_events() -> None:
    """An index whose events are all masked has empty rows."""
    index = build(replace(TEN, keep=[False] * TEN.n_events))
    cuts = torch.tensor([10, 0])
    t = torch.tensor([20.0, 0.0], dtype=torch.float64)
    queries = Queries(torch.tensor([0, -1]), torch.tensor([[1, -1], [2, 9]]), t, cuts, cuts)
    got = fused_columns(index.to(DEVICE), on_device(queries), CollaborativeOptions(4, 5, 2, 2))
    expected = collaborative.collaborative_features(index, queries, CollaborativeOptions(4, 5, 2, 2))
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_collaborative_columns_in_a_cuda_graph() -> None:
    """Nothing waits for the device, and a replayed graph reads other queries than it was captured with."""
    index, queries = busy_stream(2000, 150)
    index, queries = index.to(DEVICE), on_device(queries)
    expected = collaborative.collaborative_features(index, queries)  # also compiles
    inputs = Queries(**{name: torch.zeros_like(x) for name, x in vars(queries).items()})
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            got = collaborative.collaborative_features(index, inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for name, x in vars(queries).items():
        getattr(inputs, name).copy_(x)
    graph.replay()
    assert torch.equal(got, expected)


@pytest.mark.parametrize("n", [0, 1, 37])
@pytest.mark.parametrize("dim", [2, 6, 100])
def test_sinusoids(n: int, dim: int) -> None:
    x = torch.rand(n, dtype=torch.float64, device=DEVICE) * 30
    frequency = frequencies(dim).to(DEVICE)
    torch.testing.assert_close(
        sinusoid_kernels.sinusoids(x, frequency, DISTANCE_SCALE).cpu(), sinusoids(x.cpu(), frequency.cpu())
    )


def plain_attention(qkv: Tensor, edge: Tensor | None, attn_mask: Tensor, parent: Tensor) -> Tensor:
    """The definition: an event's keys and values are used where the row is the parent of the column."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    is_parent = torch.arange(qkv.shape[1], device=DEVICE)[:, None] == parent[None, :]
    logits = q @ k.transpose(-1, -2)
    if edge is not None:
        logits = logits + (q @ edge[:, :, 0].transpose(1, 2).transpose(-1, -2)) * is_parent
    weight = (logits / math.sqrt(qkv.shape[-1])).masked_fill(~attn_mask[:, None], -torch.inf).softmax(-1)
    y = weight @ v
    if edge is not None:
        y = y + (weight * is_parent) @ edge[:, :, 1].transpose(1, 2)
    return y.transpose(1, 2)


@pytest.mark.parametrize("fanout", [(1,), (15,), (3, 1), (20,), (3, 5), (32, 1)])
@pytest.mark.parametrize("has_edges", [False, True])
@pytest.mark.parametrize("row_mask", [False, True])
def test_attention(fanout: tuple[int, ...], has_edges: bool, row_mask: bool) -> None:
    """Forward and backward, for sequences in one tile and in two; ``row_mask``: each row has its own mask."""
    torch.backends.cuda.matmul.allow_tf32 = False
    shape, generator = TreeShape(fanout), torch.Generator().manual_seed(3)
    n, heads, dim, size = 2, 2, 16, shape.n_slots
    qkv, edge, d_out = (
        torch.randn(n, size, *rest, generator=generator).to(DEVICE).requires_grad_()
        for rest in ((3, heads, dim), (2, heads, dim), (heads, dim))
    )
    attn_mask = (torch.rand(n, size if row_mask else 1, size, generator=generator) < 0.6).to(DEVICE)
    attn_mask = attn_mask | torch.eye(size, dtype=torch.bool, device=DEVICE) if row_mask else attn_mask
    attn_mask[:, :, 0] = True
    parent = F.pad(shape.parent[1:], (1, 0), value=-1).int().to(DEVICE)
    given_edge = edge if has_edges else None
    args = (qkv.detach(), edge.detach() if has_edges else None, attn_mask, parent, ints([0]), 0.0)
    expected = plain_attention(qkv, given_edge, attn_mask, parent)
    torch.testing.assert_close(attention.forward(*args), expected, rtol=1e-4, atol=1e-5)
    inputs = [qkv, edge] if has_edges else [qkv]
    gradients = torch.autograd.grad(expected, inputs, d_out)
    for mine, theirs in zip(attention.backward(d_out.detach(), *args)[: len(inputs)], gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_attention_dropout_has_its_probability_and_the_same_mask_backward() -> None:
    """With equal weights and values of one, an output is the kept fraction, and so is the gradient of the values."""
    n, size, heads, dim, drop = 6, 41, 2, 16, 0.3
    qkv = torch.zeros(n, size, 3, heads, dim, device=DEVICE)
    qkv[:, :, 2] = 1.0
    attn_mask = torch.ones(n, 1, size, dtype=torch.bool, device=DEVICE)
    parent = torch.full((size,), -1, dtype=torch.int32, device=DEVICE)
    y, again, other = (attention.forward(qkv, None, attn_mask, parent, ints([seed]), drop) for seed in (5, 5, 6))
    assert float(y.mean()) == pytest.approx(1.0, abs=0.03)
    assert torch.equal(y, again) and not torch.equal(y, other)
    gradient, _ = attention.backward(torch.ones_like(y), qkv, None, attn_mask, parent, ints([5]), drop)
    assert float(gradient[:, :, 2].sum()) == pytest.approx(float(y.sum()), rel=1e-5)


@pytest.mark.parametrize(("n", "dim"), [(1, 16), (150, 16), (131, 64)])
def test_feed_forward(n: int, dim: int) -> None:
    torch.manual_seed(n)
    x, d_out = (torch.randn(n, dim, device=DEVICE) for _ in range(2))
    w1, b1, w2 = (torch.randn(shape, device=DEVICE) / 8 for shape in ((4 * dim, dim), (4 * dim,), (dim, 4 * dim)))
    leaves = [q.clone().requires_grad_() for q in (x, w1, b1, w2)]
    expected = F.linear(F.relu(F.linear(*leaves[:3])), leaves[3])
    expected.backward(d_out)
    torch.testing.assert_close(feed_forward.forward(x, w1, b1, w2), expected.detach(), rtol=1e-4, atol=1e-5)
    for got, leaf in zip(feed_forward.backward(d_out, x, w1, b1, w2), leaves, strict=True):
        assert leaf.grad is not None and got.dtype == torch.float32
        torch.testing.assert_close(got, leaf.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n", "width"), [(1, 1), (3, 17), (66, 100), (264, 5000)])
def test_sum_of_rows(n: int, width: int) -> None:
    x = torch.randn(n, width, device=DEVICE)
    torch.testing.assert_close(sum_rows(x), x.sum(dim=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("stpe", ["c", "u"])
@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("n_candidates", [1, 2])
def test_whole_network(
    mask: bool, stpe: str, features: bool, n_candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits, embeddings and the gradient of every parameter, kernels against torch operations."""
    torch.backends.cuda.matmul.allow_tf32 = False
    settings = CordgtSettings(fanout=(3, 2), hidden=16, heads=2, td_dim=6, sd_dim=10, mask=mask, stpe=stpe, dropout=0)
    generator = torch.Generator().manual_seed(7)
    src_dst = torch.randint(0, 9, (2, 40), generator=generator).numpy()
    index = TemporalIndex.build(src_dst[0], src_dst[1], torch.arange(40).double().numpy(), 9).to(DEVICE)
    edge_x, node_x = (
        torch.randn(n, dim, generator=generator).to(DEVICE) if features else None for n, dim in ((40, 3), (9, 5))
    )
    history = History(index, edge_x, node_x, seed=1)
    torch.manual_seed(0)
    model = Cordgt(settings, edge_dim=3 * features, node_dim=5 * features).to(DEVICE)
    dst = torch.randint(0, 11, (3, n_candidates), generator=generator).to(DEVICE)
    cut = ints([39, 20, 3])
    queries = Queries(ints([1, 2, 8]), dst, cut.double(), cut, cut)
    alone = model.read_nodes(history, queries.src, queries.t, cut)

    def compute() -> tuple[Tensor, ...]:
        logits = model(model.reader.read(history, queries))
        with torch.no_grad():
            embedded = model.embed(alone)
        return logits, embedded, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))

    monkeypatch.setattr(kernels, "kernels_available", lambda device: False)
    plain = compute()
    monkeypatch.setattr(kernels, "kernels_available", lambda device: True)
    for mine, theirs in zip(compute(), plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5)


def test_norm_dropout_has_the_same_mask_backward() -> None:
    """A branch of ones added to zeros: the gradient is nonzero where the output is."""
    x, branch = torch.zeros(50, 16, device=DEVICE), torch.ones(50, 16, device=DEVICE)
    ones, seed = torch.ones(16, device=DEVICE), ints([9])
    out, _, mean, rstd = norm.forward(x, branch, None, seed, ones, ones, dropout_p=0.25, eps=1e-5, dtype=torch.float32)
    partial = norm.empty_partial_sums(50, 48, DEVICE)
    d_out, nothing = torch.ones_like(out), torch.zeros_like(out)
    _, gradient = norm.backward(
        d_out, nothing, out, seed, ones, mean, rstd, partial, dropout_p=0.25, dtype=torch.float32
    )
    assert gradient is not None and torch.equal(gradient, out)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("visibility", ["event", "paper", "batch"])
def test_queries(visibility: str) -> None:
    """The negatives and cuts of a batch, whether a destination is in the pool or not."""
    generator = torch.Generator().manual_seed(2)
    src, dst = torch.randint(0, 9, (2, 300), generator=generator)
    times = torch.randint(0, 90, (300,), generator=generator).sort().values.double()
    index = TemporalIndex.build(src.numpy(), dst.numpy(), times.numpy(), 9).to(DEVICE).without_kernels()
    pool, epoch = ints([0, 2, 3, 5, 8]), torch.tensor(4, device=DEVICE)
    src, dst, position = src.to(DEVICE), dst.to(DEVICE), torch.arange(100, 240, device=DEVICE)
    start = position // 30 * 30
    rules = {"key": negatives_key(3), "epoch": epoch, "visibility": visibility}
    got = tree_kernels.build_queries(index, src, dst, pool, position, start, **rules)
    negative = draw_negatives(pool, dst[position], position, seed=3, epoch=epoch)[:, 0]
    cut, pair_cut = visible_cuts(visibility, index.tie_start[position].long(), start)
    expected = (src[position], torch.stack([dst[position], negative], 1), index.elapsed[position], cut, pair_cut)
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(mine, theirs)
