"""CorDGT: a transformer over the sampled trees of both ends, with encodings of each node's distances to either end.

In the paper's order: reader (trees and distances), attention, layers, tokens, pooling, scores.

Axes: B queries, M candidates of a query, T = 1 + M trees, R relations between them, S = 2 B M sequences, C context
slots, H heads, D width, De event features, Dn node features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import SettingError, check_choice
from cordgt.history.context import SAMPLINGS, Context, TreeShape, expand_to_pairs, sample_trees
from cordgt.history.distance import DistanceOptions, tree_distances
from cordgt.history.distinct_slots import find_distinct_slots
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel, to_device
from cordgt.nn import cpu_encoder, folded_encoder
from cordgt.nn.layers import MergeHead, check_dropout, check_non_negative, check_positive
from cordgt.nn.positional_encoding import DistanceEncoding, sinusoids
from cordgt.runtime import kernel_loader as kernels

MAX_SD_UNSEEN = 1000  # every distance up to it is encoded


@dataclass(frozen=True)
class CordgtSettings:
    """Settings of CorDGT. Every ablation of the paper is one of them."""

    fanout: tuple[int, ...] = (20, 1)  # events sampled at each hop
    sampling: str = "uniform"  # or "recent", or "mixed": half of each
    alpha: float = 1.0  # weight of (inverse) intensity in TD
    beta: float = 10.0  # weight of recency in TD
    td_unseen: float = 10.0  # TD of a pair without events, in units of max(alpha, beta), the largest TD otherwise
    sd_unseen: int = 2  # SD of a node outside a tree: this many hops beyond the tree's depth
    hidden: int = 64  # D
    heads: int = 6  # each D wide
    layers: int = 2
    dropout: float = 0.1
    mask: bool = False  # True: a node attends only to earlier and farther nodes, as in the paper
    stpe: str = "c"  # "c": distances to both ends; "u": to the tree's own root only
    td: bool = True  # False: without temporal distance
    sd: bool = True  # False: without spatial distance
    head: str = "mlp"  # or "linear": each context node has its share of the score
    td_dim: int = 100
    sd_dim: int = 100

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_choice("stpe", self.stpe, ("c", "u"))
        check_choice("head", self.head, ("mlp", "linear"))
        if not self.fanout or min(self.fanout) < 1:
            raise SettingError(f"fanout={','.join(map(str, self.fanout))}: every hop samples at least one event.")
        check_positive(self, "hidden", "heads", "layers", "sd_unseen")
        if self.sd_unseen > MAX_SD_UNSEEN:
            raise SettingError(f"sd_unseen={self.sd_unseen}: use a number of hops from 1 to {MAX_SD_UNSEEN:,}.")
        for name in ("td_dim", "sd_dim"):
            if getattr(self, name) < 2 or getattr(self, name) % 2:
                raise SettingError(
                    f"{name}={getattr(self, name)}: it must be even and at least 2, half sines and half cosines."
                )
        check_non_negative(self, "alpha", "beta", "td_unseen")
        check_dropout(self)


MIN_DISTINCT_CANDIDATES = 8  # of a query; with fewer, encoding distinct slots query by query saves nothing
CACHE_VALUES = 416_000  # token values that a CPU thread processes at once: 25 queries in the paper's setting on UCI


@dataclass(frozen=True)
class CordgtBatch:
    """The trees of a query: the source's, then its candidates'.

    T = 1 + M trees a query (1 for a single node), R relations in the order of `distance.tree_relations`.
    """

    valid: Tensor  # (B, T, C) bool, True: a node; False: padding
    moment: Tensor | None  # (B, T, C) int64, for the mask: a slot's time as a stream position; the root's is the last
    td: Tensor  # (B, R, C) float64
    sd: Tensor  # (B, R, C) int64
    node_x: Tensor | None  # (B, T, C, Dn)
    edge_x: Tensor | None  # (B, T, C, De), of the event that led to the slot
    node: Tensor | None = None  # (B, T, C) int64, of each slot; only if `CordgtReader.keeps_nodes`
    pos: Tensor | None = None  # (B, T, C) int64, of the event that led to the slot

    @property
    def n_candidates(self) -> int:
        """M; 0 for single nodes."""
        return self.valid.shape[1] - 1


@dataclass(frozen=True)
class CordgtReader:
    """Samples the trees and measures the distances. A source's tree is read once for all its candidates."""

    settings: CordgtSettings
    shape: TreeShape
    keeps_nodes: bool = False  # the batch has the nodes and events of the slots too

    @property
    def distance_options(self) -> DistanceOptions:
        s = self.settings
        td_unseen, sd_unseen = s.td_unseen * max(s.alpha, s.beta), self.shape.n_hops + s.sd_unseen
        return DistanceOptions(alpha=s.alpha, beta=s.beta, td_unseen=td_unseen, sd_unseen=sd_unseen)

    def read(self, history: History, queries: Queries) -> CordgtBatch:
        """Sample the trees of the sources and of their candidates, and measure the distances.

        Without candidates the distances are those to a tree's own root (STPE-U), since there is no other end.
        """
        return self._measure(history, queries, self.sample(history, queries.endpoints, queries.cut))

    def sample(self, history: History, roots: Tensor, cut: Tensor) -> Context:
        """Sample the trees of roots (B, T) over the first ``cut`` (B,) events."""
        seed, epoch, sampling = history.seed, history.epoch, self.settings.sampling
        return sample_trees(history.index, self.shape, roots, cut[:, None], seed=seed, epoch=epoch, sampling=sampling)

    def _measure(self, history: History, queries: Queries, trees: Context) -> CordgtBatch:
        """Return the network's input for the queries' trees (B, T, C)."""
        index, t, pair_cut = history.index, queries.t, queries.pair_cut
        correlated = self.settings.stpe == "c" and queries.dst.shape[1] > 0
        td, sd = tree_distances(index, self.shape, trees, t, pair_cut, self.distance_options, correlated=correlated)
        return CordgtBatch(
            valid=trees.valid,
            moment=self._moments(index, trees) if self.settings.mask else None,
            td=td,
            sd=sd,
            node_x=history.node_features(trees.node),
            edge_x=history.edge_features(trees.pos),
            node=trees.node if self.keeps_nodes else None,
            pos=trees.pos if self.keeps_nodes else None,
        )

    @staticmethod
    def _moments(index: TemporalIndex, trees: Context) -> Tensor:
        latest = torch.full_like(trees.pos, len(index.tie_start))
        if len(index.tie_start) == 0:
            return latest
        return torch.where(trees.pos >= 0, index.tie_start[trees.pos.clamp_min(0)], latest)


class Slots(NamedTuple):
    """Some slots of the sequences of a query."""

    row: int  # of the batch
    sequence: Tensor  # (N,) from 0 to 2 M - 1
    slot: Tensor  # (N,) of the tree


class TokenWeights(NamedTuple):
    """The weights of a token, with the linear layers that follow each other multiplied."""

    for_x: Tensor  # (D, Dn), of node features
    to_td: Tensor | None  # (D, D), of the hidden units of TD
    sd_table: Tensor | None  # (values, D), the part of each SD
    bias: Tensor  # (D,)


class TreeAttention(nn.Module):
    """Self-attention of a tree's slots, with an event's features where a parent attends to its child.

    In a sampled tree only (parent, child) pairs have an event, so C rows of features are projected and added to C
    entries of the C x C logits: never a C x C x De tensor.
    """

    parent: Tensor

    def __init__(self, *, dim: int, heads: int, edge_dim: int, dropout: float, shape: TreeShape) -> None:
        super().__init__()
        self.heads, self.dim, self.dropout, self.shape = heads, dim, dropout, shape
        self.register_buffer("parent", F.pad(shape.parent[1:], (1, 0), value=-1).int(), persistent=False)
        self.qkv = nn.Linear(dim, 3 * heads * dim, bias=False)  # every head is as wide as the model
        self.out = nn.Linear(heads * dim, dim)
        self.edge_kv = nn.Linear(edge_dim, 2 * heads * dim, bias=False) if edge_dim else None
        nn.init.normal_(self.qkv.weight, std=math.sqrt(1.0 / dim))
        nn.init.xavier_normal_(self.out.weight)

    def forward(self, x: Tensor, attn_mask: Tensor, edge_x: Tensor | None) -> Tensor:
        """Map x (S, C, D) to (S, C, D). attn_mask: (S, C or 1, C), True: row i may attend to j. edge_x: (S, C, De)."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, self.dim))  # (S, C, 3, H, D)
        drop = self.dropout if self.training else 0.0
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (S, H, C, D) each
        if self.edge_kv is None or edge_x is None:
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=attn_mask.unsqueeze(1), dropout_p=drop
            )  # (S, H, C, D)
        else:
            edge_k, edge_v = self.edge_kv(edge_x).unflatten(-1, (2, self.heads, self.dim)).permute(2, 0, 3, 1, 4)
            y = self._with_events(q, k, v, edge_k, edge_v, attn_mask)
        return self.out(y.transpose(1, 2).flatten(-2))

    def _with_events(
        self, q: Tensor, k: Tensor, v: Tensor, edge_k: Tensor, edge_v: Tensor, attn_mask: Tensor
    ) -> Tensor:
        parent = self._parents(
            torch.arange(self.shape.n_slots, device=q.device).expand(*q.shape[:2], -1)
        )  # (S, H, C-1)
        event = (self._parents(q) * edge_k[:, :, 1:]).sum(-1)  # (S, H, C-1)
        place = F.pad(parent, (1, 0)).unsqueeze(2)  # (S, H, 1, C): the row of each column's event
        logits = q @ k.transpose(-1, -2)  # (S, H, C, C)
        logits = logits + torch.zeros_like(logits).scatter(2, place, F.pad(event, (1, 0)).unsqueeze(2))
        logits = (logits / math.sqrt(self.dim)).masked_fill(~attn_mask.unsqueeze(1), -torch.inf)
        weight = F.dropout(logits.softmax(dim=-1), self.dropout if self.training else 0.0)
        edge_part = weight.gather(2, place).squeeze(2)[..., 1:, None] * edge_v[:, :, 1:]  # (S, H, C-1, D)
        return weight @ v + self._to_parents(edge_part)

    def _parents(self, x: Tensor) -> Tensor:
        """Return each child's parent's row, for all slots but the root: (S, H, C, ...) to (S, H, C-1, ...).

        Blocks of rows, not indices: a hop's children are in the order of their parents. This fixes the order of sums in
        the backward pass too.
        """
        blocks = zip(self.shape.hop_starts, self.shape.hop_starts[1:], self.shape.fanout, strict=False)
        return torch.cat([x[:, :, a:b].repeat_interleave(n, dim=2) for a, b, n in blocks], dim=2)

    def _to_parents(self, x: Tensor) -> Tensor:
        """Sum each slot's children's rows: (S, H, C-1, D) to (S, H, C, D); 0 for slots without children."""
        sums, at = [], 0
        for n, width in zip(self.shape.fanout, torch.tensor(self.shape.hop_starts).diff().tolist()[1:], strict=True):
            sums.append(x[:, :, at : at + width].unflatten(2, (-1, n)).sum(dim=3))
            at += width
        leaves = x.new_zeros(*x.shape[:2], width, x.shape[-1])
        return torch.cat([*sums, leaves], dim=2)


class CordgtLayer(nn.Module):
    """Pre-norm attention and feed-forward, each with its residual."""

    def __init__(self, *, dim: int, heads: int, edge_dim: int, dropout: float, shape: TreeShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = TreeAttention(dim=dim, heads=heads, edge_dim=edge_dim, dropout=dropout, shape=shape)
        self.dropout = dropout
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor, attn_mask: Tensor, edge_x: Tensor | None) -> Tensor:
        """(S, C, D) to (S, C, D)."""
        x = x + F.dropout(self.attention(self.norm1(x), attn_mask, edge_x), self.dropout if self.training else 0.0)
        return x + self.fc2(F.relu(self.fc1(self.norm2(x))))


class Cordgt(LinkModel):
    """The network: tokens from encodings, layers of attention, mean pooling, a score from both ends.

    A pair is two sequences, the source's tree and the candidate's, so B queries with M candidates are B x 2M sequences:
    first the source's tree for each candidate, then each candidate's.
    """

    reader: CordgtReader
    supports_bf16 = True

    def __init__(self, settings: CordgtSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.settings = settings
        self.shape = TreeShape(settings.fanout)
        self.reader = CordgtReader(settings, self.shape)
        dim = settings.hidden
        self.td = DistanceEncoding(dim=settings.td_dim, hidden=dim) if settings.td else None
        self.sd = DistanceEncoding(dim=settings.sd_dim, hidden=dim) if settings.sd else None
        self.widths = (node_dim, settings.td_dim * settings.td, settings.sd_dim * settings.sd)
        self.project = nn.Linear(max(sum(self.widths), 1), dim)
        self.layers = nn.ModuleList(
            CordgtLayer(dim=dim, heads=settings.heads, edge_dim=edge_dim, dropout=settings.dropout, shape=self.shape)
            for _ in range(settings.layers)
        )
        self.head_mlp = MergeHead(dim) if settings.head == "mlp" else None
        self.head_linear = nn.Linear(dim, 1) if settings.head == "linear" else None

    @property
    def chunk_size(self) -> int | None:
        """As many queries, of four sequences each, as fit in `CACHE_VALUES`."""
        return -(-CACHE_VALUES // (4 * self.shape.n_slots * self.settings.hidden))

    def is_thread_safe(self) -> bool:
        """False with plain dropout, which draws from torch's shared generator."""
        return not kernels.is_plain_forced()

    def read(self, history: History, queries: Queries) -> CordgtBatch:
        """Return the input of `forward`; on the CPU with the nodes of the slots, for `_pooled_distinct`."""
        is_on_cpu = history.index.device.type == self.project.weight.device.type == "cpu"
        reader = self.reader
        if is_on_cpu and isinstance(reader, CordgtReader):  # not one that wraps it, as the audit's tests do
            reader = replace(reader, keeps_nodes=True)
        batch: CordgtBatch = to_device(reader.read(history, queries), self.device)
        return batch

    def forward(self, batch: CordgtBatch) -> Tensor:
        """Return logits (B, M)."""
        return self._scores(batch, self._pooled(batch))

    def _scores(self, batch: CordgtBatch, pooled: Tensor) -> Tensor:
        """Return logits (B, M) from the sequences' embeddings (B, 2M, D)."""
        n = pooled.shape[1] // 2
        src, dst = pooled[:, :n], pooled[:, n:]
        with full_precision(pooled):
            if self.head_linear is not None:
                return self.head_linear(src + dst).squeeze(-1)
            assert self.head_mlp is not None
            return self.head_mlp(src, dst)

    def embed(self, batch: CordgtBatch) -> Tensor:
        """Return embeddings (B, D) from STPE-U."""
        return self._pooled(batch).squeeze(1)

    def shares(self, batch: CordgtBatch) -> tuple[Tensor, Tensor]:
        """Return each context node's share of the logit, (B, M, C) for either end.

        The shares, the head's bias and CorDGT+'s term of the pair sum to the logit.
        """
        if self.head_linear is None:
            raise SettingError("Shares of the score need a model trained with the linear head (--set head=linear).")
        share = (self._encode(batch) @ self.head_linear.weight[0]) * self._pooling(batch)  # (B, 2M, C)
        return share[:, : batch.n_candidates], share[:, batch.n_candidates :]

    def influences(self, batch: CordgtBatch) -> tuple[Tensor, Tensor]:
        """Return the first-order influence of each context node on the logit, (B, M, C) for either end; 0 for padding.

        The head's gradient at the embeddings times a slot's part of them. With the linear head: the `shares`.
        """
        weight = self._pooling(batch)  # (B, 2M, C)
        with torch.no_grad():
            states = self._encode(batch).float()  # (B, 2M, C, D)
            pooled = (weight.unsqueeze(-2) @ states).squeeze(-2)
        with torch.enable_grad():
            pooled.requires_grad_()
            (slope,) = torch.autograd.grad(self._scores(batch, pooled).sum(), pooled)  # (B, 2M, D)
        influence = (states @ slope.unsqueeze(-1)).squeeze(-1) * weight
        return influence[:, : batch.n_candidates], influence[:, batch.n_candidates :]

    def _pooled(self, batch: CordgtBatch) -> Tensor:
        """Return the mean of each sequence's states: (B, 2M, D); (B, 1, D) for single nodes."""
        if self._can_pool_distinct(batch):
            return self._pooled_distinct(batch)
        weight = self._pooling(batch)
        drop = self.settings.dropout if self.training else 0.0
        if cpu_encoder.is_supported(self.project.weight, batch.edge_x):
            pooled = cpu_encoder.encode(self.layers, *self.sequences(batch), weight.flatten(0, 1), drop)
            return pooled.unflatten(0, weight.shape[:2])
        fused = kernels.load_kernels("nn.kernels.encoder", weight.device)
        has_events = batch.edge_x is not None
        if fused is None or not fused.supports_shape(self.shape.n_slots, self.settings.hidden, has_events):
            states = self._encode(batch)
            return (weight.unsqueeze(-2).to(states.dtype) @ states).squeeze(-2).float()
        pooled = fused.encode(self.layers, *self.sequences(batch), weight.flatten(0, 1), drop)
        return pooled.unflatten(0, weight.shape[:2])

    def _can_pool_distinct(self, batch: CordgtBatch) -> bool:
        """Return whether equal slots may be encoded once: without gradients on the CPU, with no mask and no events."""
        if self.settings.mask or batch.edge_x is not None or batch.node is None:
            return False
        is_inference = not self.training and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        return (
            is_inference
            and batch.n_candidates >= MIN_DISTINCT_CANDIDATES
            and cpu_encoder.is_supported(self.project.weight)
        )

    def _pooled_distinct(self, batch: CordgtBatch) -> Tensor:
        """Return `_pooled`, encoding each distinct slot of a sequence once.

        Query by query: the bits of a score must not depend on what the other queries of the batch see.
        """
        assert batch.node is not None and batch.pos is not None
        distinct = find_distinct_slots(Context(torch.where(batch.valid, batch.node, -1), batch.pos))
        counts, slots = expand_to_pairs(distinct.count), expand_to_pairs(distinct.slot)  # (B, 2M, L)
        pooled = []
        for row, (count, slot) in enumerate(zip(counts, slots, strict=True)):
            present = count > 0  # (2M, L)
            at = Slots(row, present.nonzero()[:, 0], slot[present])
            tokens = self._slot_tokens(batch, at)
            pooled.append(folded_encoder.encode_sequences(list(self.layers), tokens, count[present], present.sum(-1)))
        return torch.stack(pooled)

    def _encode(self, batch: CordgtBatch) -> Tensor:
        """Return every slot's state after the last layer, (B, 2M, C, D); (B, 1, C, D) for single nodes."""
        states, attn_mask, edge_x = self.sequences(batch)
        for layer in self.layers:
            states = layer(states, attn_mask, edge_x)
        return states.unflatten(0, (len(batch.valid), max(1, 2 * batch.n_candidates)))

    def sequences(self, batch: CordgtBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return tokens (S, C, D), attention mask (S, C or 1, C), and event features (S, C, De) or None."""
        edge_x = None if batch.edge_x is None else expand_to_pairs(batch.edge_x).flatten(0, 1)
        with full_precision(batch.valid):
            return self._tokens(batch).flatten(0, 1), self._attn_mask(batch).flatten(0, 1), edge_x

    def _tokens(self, batch: CordgtBatch) -> Tensor:
        """Return ``[node features | STPE]`` of each slot, projected to the model's width: (B, 2M, C, D).

        An encoding's last layer and the projection are both linear, so they are applied as one.
        """
        fold = self._fold_projections(2 if batch.td.shape[1] > batch.valid.shape[1] else 1)
        tokens = self._from_distances(batch, fold.to_td, fold.sd_table, fold.bias)
        return tokens if batch.node_x is None else tokens + F.linear(expand_to_pairs(batch.node_x), fold.for_x)

    def _fold_projections(self, n_summed: int) -> TokenWeights:
        """Return the weights of a token that sums ``n_summed`` distances of each kind."""
        for_x, for_td, for_sd = self.project.weight[:, : sum(self.widths)].split(self.widths, dim=1)
        bias: Tensor = self.project.bias
        to_td = sd_table = None
        if self.td is not None:
            to_td, extra = self.td.fold_projection(for_td, n_summed)
            bias = bias + extra
        if self.sd is not None:
            to_sd, extra = self.sd.fold_projection(for_sd, n_summed)
            largest = self.reader.distance_options.sd_unseen
            sd_table = F.linear(self.sd.integer_table(largest), to_sd)  # each value is encoded once
            bias = bias + extra
        return TokenWeights(for_x, to_td, sd_table, bias)

    def _slot_tokens(self, batch: CordgtBatch, at: Slots) -> Tensor:
        """Return the tokens (N, D) of some slots. Each value of a distance is encoded once."""
        n, n_summed = batch.n_candidates, 2 if batch.td.shape[1] > batch.valid.shape[1] else 1
        fold = self._fold_projections(n_summed)
        relations = distance_relations(at.sequence, n, n_summed)
        tables, rows, n_rows = [], [], 0
        if fold.to_td is not None and self.td is not None:
            td = torch.stack([batch.td[at.row, relation, at.slot] for relation in relations])
            value, at_value = torch.unique(td, return_inverse=True)
            tables.append(F.linear(self.td.hidden(value), fold.to_td))
            rows, n_rows = [*at_value], len(value)
        if fold.sd_table is not None:
            tables.append(fold.sd_table)
            rows += [batch.sd[at.row, relation, at.slot] + n_rows for relation in relations]
        tokens = fold.bias.expand(len(at.slot), -1)
        if rows:
            tokens = tokens + F.embedding_bag(torch.stack(rows, dim=1), torch.cat(tables), mode="sum")
        if batch.node_x is not None:
            tokens = tokens + F.linear(batch.node_x[at.row, root_of_sequence(at.sequence, n), at.slot], fold.for_x)
        return tokens

    def _from_distances(self, batch: CordgtBatch, to_td: Tensor | None, table: Tensor | None, bias: Tensor) -> Tensor:
        """Return the distances' part of a token: TD's hidden units through ``to_td`` (D, D), SD's rows of ``table``."""
        fused = kernels.load_kernels("nn.kernels.tokens", bias.device)
        if fused is not None and self.td is not None and to_td is not None and table is not None:
            fc1, frequency = self.td.fc1, self.td.frequency
            if fused.supports_shape(len(bias), 2 * len(frequency), len(table)):
                waves = sinusoids(batch.td, frequency)
                return fused.tokens(waves, batch.sd, fc1.weight, fc1.bias, to_td, table, bias, batch.n_candidates)
        is_distinct = self.training and cpu_encoder.is_supported(bias)  # else other queries would change a score's bits
        if is_distinct and (to_td is not None or table is not None):
            return self._from_distinct_distances(batch, to_td, table) + bias
        total = bias.expand(*expand_to_pairs(batch.valid).shape, -1)
        if self.td is not None and to_td is not None:
            total = total + F.linear(self._summed(batch, self.td.hidden(batch.td)), to_td)
        if table is not None:  # lookup as a product with counts: exact, and fast in the backward pass
            values = torch.arange(len(table), device=table.device)
            total = total + self._summed(batch, (batch.sd.unsqueeze(-1) == values).to(table.dtype)) @ table
        return total

    def _from_distinct_distances(self, batch: CordgtBatch, to_td: Tensor | None, table: Tensor | None) -> Tensor:
        """Return `_from_distances` without the bias, on the CPU. Each value of a distance is encoded once."""
        n, device = batch.n_candidates, batch.valid.device
        n_summed = 2 if batch.td.shape[1] > n + 1 else 1
        relations = distance_relations(torch.arange(2 * n or 1, device=device), n, n_summed)
        tables, rows = [], []
        if self.td is not None and to_td is not None:
            value, at_value = torch.unique(batch.td, return_inverse=True)
            tables.append(F.linear(self.td.hidden(value), to_td))
            rows += [at_value[:, relation] for relation in relations]
        if table is not None:
            n_values = len(tables[0]) if tables else 0
            rows += [batch.sd[:, relation] + n_values for relation in relations]
            tables.append(table)
        total = cpu_encoder.embedding_sum(torch.cat(tables), torch.stack(rows).flatten(1))
        return total.unflatten(0, rows[0].shape)

    def _summed(self, batch: CordgtBatch, x: Tensor) -> Tensor:
        """Sum the values of a slot's distance to its own root and, if read, of its distance to the other end.

        Shapes: (B, R, C, ...) to (B, 2M, C, ...).
        """
        n = batch.n_candidates
        if x.shape[1] == n + 1:  # own distances only
            return expand_to_pairs(x)
        own = torch.cat([x[:, :1].expand(-1, n, -1, -1), x[:, n + 1 : 2 * n + 1]], dim=1)
        other = torch.cat([x[:, 1 : n + 1], x[:, 2 * n + 1 :]], dim=1)
        return own + other

    def _attn_mask(self, batch: CordgtBatch) -> Tensor:
        """Return (B, 2M, C or 1, C) bool, True: row i may attend to j. Never to padding.

        With ``mask``, only to slots that are no later and no nearer, and to itself, so that a row of padding, which
        nothing reads, has something to average.
        """
        valid = expand_to_pairs(batch.valid)
        if not self.settings.mask:
            return valid.unsqueeze(-2)  # slot 0 is always valid
        assert batch.moment is not None
        moment = expand_to_pairs(batch.moment)
        hop = self.shape.slot_hop_on(valid.device)
        earlier = moment.unsqueeze(-2) <= moment.unsqueeze(-1)
        farther = hop.unsqueeze(-2) >= hop.unsqueeze(-1)
        itself = torch.eye(len(hop), dtype=torch.bool, device=hop.device)
        return (valid.unsqueeze(-2) & earlier & farther) | itself

    def _pooling(self, batch: CordgtBatch) -> Tensor:
        """Return each slot's weight in the mean, (B, 2M, C); padding is left out."""
        return expand_to_pairs(batch.valid / batch.valid.sum(-1, keepdim=True))


def root_of_sequence(sequence: Tensor, n: int) -> Tensor:
    """Return the tree of each sequence of a query with n candidates: n times the source's, then the candidates'."""
    return (sequence - n + (n > 0)).clamp_min(0)


def distance_relations(sequence: Tensor, n: int, n_summed: int) -> list[Tensor]:
    """Return the relations whose distances each sequence sums, in the order of `distance.tree_relations`."""
    if n_summed == 1:
        return [root_of_sequence(sequence, n)]
    is_source = sequence < n
    return [torch.where(is_source, 0, sequence + 1), sequence + torch.where(is_source, 1, n + 1)]


def full_precision(x: Tensor) -> torch.autocast:
    """Disable autocast where bfloat16 is too coarse or saves nothing: distance encodings and the head."""
    return torch.autocast(x.device.type, enabled=False)
