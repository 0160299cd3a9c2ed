"""CorDGT: a transformer over the sampled trees of both ends, told by its encodings how near each node is to either.

In the paper's order: what is read (trees and distances), attention, layers, tokens, pooling, scores.

Axes: B queries, M candidates of a query, m = 1 for what belongs to the source alone and M otherwise, C context slots,
H heads, D width, De event features, Dn node features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.context import SAMPLINGS, Context, TreeShape, sample_trees
from cordgt.distance import spatial_distance, temporal_distance
from cordgt.encoding import DistanceEncoding
from cordgt.errors import SettingError, check_choice
from cordgt.history import History, Queries
from cordgt.models.base import LinkModel
from cordgt.models.parts import MergeHead


@dataclass(frozen=True)
class CordgtSettings:
    """Settings of CorDGT. Every ablation of the paper is one of them."""

    fanout: tuple[int, ...] = (20, 1)  # events drawn at each hop
    sampling: str = "uniform"  # or "recent"
    alpha: float = 1.0  # weight of (inverse) intensity in TD
    beta: float = 10.0  # weight of recency in TD
    never_met: float = 10.0  # TD of a pair that never met, in units of max(alpha, beta), the most that one that did has
    absent: int = 2  # SD of a node outside a tree: so many hops beyond the tree's depth
    hidden: int = 64  # D
    heads: int = 6  # each D wide
    layers: int = 2
    dropout: float = 0.1
    mask: bool = False  # True: a node hears only earlier and farther nodes, as in the paper
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
            raise SettingError(f"fanout={','.join(map(str, self.fanout))}: every hop draws at least one event.")
        for name in ("hidden", "heads", "layers", "absent"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name}={getattr(self, name)}: it is at least 1.")
        for name in ("td_dim", "sd_dim"):
            if getattr(self, name) < 2 or getattr(self, name) % 2:
                raise SettingError(
                    f"{name}={getattr(self, name)}: it is even and at least 2, half sines and half cosines."
                )
        for name in ("alpha", "beta", "never_met"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(f"{name}={getattr(self, name)}: it is a number from 0 up.")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"dropout={self.dropout}: it lies between 0 and 1.")


@dataclass(frozen=True)
class Side:
    """The trees of one end of the queries, and what the network needs to know of them."""

    valid: Tensor  # (B, m, C) bool, True: a node stands there
    moment: Tensor  # (B, m, C) int64, the time of the slot's event as a position; latest for the root
    td: tuple[Tensor, ...]  # (B, m, C) to the tree's own root; (B, M, C) to the other end, where there is one
    sd: tuple[Tensor, ...]  # likewise
    node_x: Tensor | None  # (B, m, C, Dn)
    edge_x: Tensor | None  # (B, m, C, De), of the event that drew the slot


@dataclass(frozen=True)
class TreeReader:
    """Samples the trees and measures the distances. The source's tree is read once for all its candidates."""

    settings: CordgtSettings
    shape: TreeShape

    @property
    def absent(self) -> int:
        """The spatial distance of a node that a tree does not hold."""
        return self.shape.hops + self.settings.absent

    def pairs(self, history: History, queries: Queries) -> tuple[Side, Side]:
        """The sides of the sources (m = 1) and of the candidates (m = M)."""
        trees = self._trees(history, torch.cat([queries.src[:, None], queries.dst], dim=1), queries.cut[:, None])
        src, dst = (Context(trees.node[:, part], trees.pos[:, part]) for part in (slice(0, 1), slice(1, None)))
        if self.settings.stpe == "u":
            (td_src, td_dst), (sd_src, sd_dst) = self._distances(history, queries, [(src, src), (dst, dst)])
            return self._side(history, src, (td_src,), (sd_src,)), self._side(history, dst, (td_dst,), (sd_dst,))
        td, sd = self._distances(history, queries, [(src, src), (src, dst), (dst, dst), (dst, src)])
        return self._side(history, src, td[:2], sd[:2]), self._side(history, dst, td[2:], sd[2:])

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Side:
        """One side alone: distances to its own root (STPE-U), since there is no other end."""
        tree = self._trees(history, node[:, None], cut[:, None])
        td, sd = self._distances(history, Queries(node, node[:, None], t, cut, cut), [(tree, tree)])
        return self._side(history, tree, td, sd)

    def _trees(self, history: History, root: Tensor, cut: Tensor) -> Context:
        how = self.settings.sampling
        return sample_trees(history.index, self.shape, root, cut, seed=history.seed, epoch=history.epoch, sampling=how)

    def _distances(
        self, history: History, queries: Queries, relations: list[tuple[Context, Context]]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """TD and SD of the nodes of each first tree to the root of each second, (B, m, C) each. One search for all."""
        s = self.settings
        sd = tuple(spatial_distance(of.node, to, self.shape, self.absent) for of, to in relations)
        td = temporal_distance(
            history.index,
            torch.cat([of.node.expand(x.shape) for (of, _), x in zip(relations, sd, strict=True)], dim=1),
            torch.cat([to.node[..., 0].expand(x.shape[:2]) for (_, to), x in zip(relations, sd, strict=True)], dim=1),
            queries.t[:, None],
            queries.pair_cut[:, None],
            alpha=s.alpha,
            beta=s.beta,
            never_met=s.never_met * max(s.alpha, s.beta),
        )
        return td.split([x.shape[1] for x in sd], dim=1), sd

    def _side(self, history: History, tree: Context, td: tuple[Tensor, ...], sd: tuple[Tensor, ...]) -> Side:
        tie_start = history.index.tie_start
        moment = torch.full_like(tree.pos, len(tie_start))
        if len(tie_start):
            moment = torch.where(tree.pos >= 0, tie_start[tree.pos.clamp_min(0)], moment)
        return Side(
            valid=tree.valid,
            moment=moment,
            td=td,
            sd=sd,
            node_x=history.node_features(tree.node),
            edge_x=history.edge_features(tree.pos),
        )


class Attention(nn.Module):
    """Self-attention of a tree's slots, with an event's features in keys and values where its parent hears its child.

    In a sampled tree only (parent, child) pairs have an event, so C rows of features are projected and added to C
    places of the C x C logits: never a C x C x De tensor.
    """

    def __init__(self, *, dim: int, heads: int, edge_dim: int, dropout: float, shape: TreeShape) -> None:
        super().__init__()
        self.heads, self.dim, self.dropout, self.shape = heads, dim, dropout, shape
        self.qkv = nn.Linear(dim, 3 * heads * dim, bias=False)  # every head is as wide as the model
        self.out = nn.Linear(heads * dim, dim)
        self.edge_kv = nn.Linear(edge_dim, 2 * heads * dim, bias=False) if edge_dim else None
        nn.init.normal_(self.qkv.weight, std=math.sqrt(1.0 / dim))
        nn.init.xavier_normal_(self.out.weight)

    def forward(self, x: Tensor, hears: Tensor, edge_x: Tensor | None) -> Tensor:
        """S sequences: x (S, C, D); hears (S, C or 1, C), True where row i hears j; edge_x (S, C, De) or None."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.dim)).permute(2, 0, 3, 1, 4)  # (3, S, H, C, D)
        if self.edge_kv is None or edge_x is None:
            drop = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=hears.unsqueeze(1), dropout_p=drop)  # (S, H, C, D)
        else:
            edge_k, edge_v = self.edge_kv(edge_x).unflatten(-1, (2, self.heads, self.dim)).permute(2, 0, 3, 1, 4)
            y = self._with_events(q, k, v, edge_k, edge_v, hears)
        return self.out(y.transpose(1, 2).flatten(-2))

    def _with_events(self, q: Tensor, k: Tensor, v: Tensor, edge_k: Tensor, edge_v: Tensor, hears: Tensor) -> Tensor:
        parent = self._parents(torch.arange(self.shape.size, device=q.device).expand(*q.shape[:2], -1))  # (S, H, C-1)
        event = (self._parents(q) * edge_k[:, :, 1:]).sum(-1)  # (S, H, C-1)
        place = F.pad(parent, (1, 0)).unsqueeze(2)  # (S, H, 1, C): the row in which each column's event stands
        logits = q @ k.transpose(-1, -2)  # (S, H, C, C)
        logits = logits + torch.zeros_like(logits).scatter(2, place, F.pad(event, (1, 0)).unsqueeze(2))
        logits = (logits / math.sqrt(self.dim)).masked_fill(~hears.unsqueeze(1), -torch.inf)
        weight = F.dropout(logits.softmax(dim=-1), self.dropout, self.training)
        told = weight.gather(2, place).squeeze(2)[..., 1:, None] * edge_v[:, :, 1:]  # (S, H, C-1, D)
        return weight @ v + self._to_parents(told)

    def _parents(self, x: Tensor) -> Tensor:
        """Each child's parent's row, for all slots but the root: (S, H, C, ...) to (S, H, C-1, ...).

        Blocks of rows, not indices: a hop's children stand in the order of their parents. So sums backwards keep one
        order too.
        """
        blocks = zip(self.shape.starts, self.shape.starts[1:], self.shape.fanout, strict=False)
        return torch.cat([x[:, :, a:b].repeat_interleave(n, dim=2) for a, b, n in blocks], dim=2)

    def _to_parents(self, x: Tensor) -> Tensor:
        """The sum of each slot's children's rows: (S, H, C-1, D) to (S, H, C, D); 0 for slots without children."""
        sums, at = [], 0
        for n, width in zip(self.shape.fanout, torch.tensor(self.shape.starts).diff().tolist()[1:], strict=True):
            sums.append(x[:, :, at : at + width].unflatten(2, (-1, n)).sum(dim=3))
            at += width
        leaves = x.new_zeros(*x.shape[:2], width, x.shape[-1])
        return torch.cat([*sums, leaves], dim=2)


class Layer(nn.Module):
    """Pre-norm attention and feed-forward, each with its residual."""

    def __init__(self, *, dim: int, heads: int, edge_dim: int, dropout: float, shape: TreeShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim=dim, heads=heads, edge_dim=edge_dim, dropout=dropout, shape=shape)
        self.dropout = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor, hears: Tensor, edge_x: Tensor | None) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x), hears, edge_x))
        return x + self.fc2(F.relu(self.fc1(self.norm2(x))))


class Cordgt(LinkModel):
    """The network: tokens from encodings, layers of attention, mean pooling, a score from both ends."""

    reader: TreeReader

    def __init__(self, settings: CordgtSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.settings = settings
        self.shape = TreeShape(settings.fanout)
        self.reader = TreeReader(settings, self.shape)
        dim = settings.hidden
        self.td = DistanceEncoding(dim=settings.td_dim, hidden=dim) if settings.td else None
        self.sd = DistanceEncoding(dim=settings.sd_dim, hidden=dim) if settings.sd else None
        in_dim = node_dim + settings.td_dim * settings.td + settings.sd_dim * settings.sd
        self.project = nn.Linear(max(in_dim, 1), dim)
        self.layers = nn.ModuleList(
            Layer(dim=dim, heads=settings.heads, edge_dim=edge_dim, dropout=settings.dropout, shape=self.shape)
            for _ in range(settings.layers)
        )
        self.head_mlp = MergeHead(dim) if settings.head == "mlp" else None
        self.head_linear = nn.Linear(dim, 1) if settings.head == "linear" else None

    def forward(self, batch: tuple[Side, Side]) -> Tensor:
        """Logits (B, M)."""
        n = batch[1].valid.shape[1]
        src, dst = (self._pool(side, self._encode(side, n)) for side in batch)
        if self.head_linear is not None:
            return self.head_linear(src + dst).squeeze(-1)
        assert self.head_mlp is not None
        return self.head_mlp(src, dst)

    def embed(self, batch: Side) -> Tensor:
        """Embeddings (B, D) from STPE-U."""
        return self._pool(batch, self._encode(batch, 1)).squeeze(1)

    def shares(self, batch: tuple[Side, Side]) -> tuple[Tensor, Tensor]:
        """Each context node's share of the logit, (B, M, C) for either end; with the head's bias they sum to it."""
        if self.head_linear is None:
            raise SettingError("Shares of the score need a model trained with the linear head (--set head=linear).")
        n = batch[1].valid.shape[1]
        weight = self.head_linear.weight[0]
        src, dst = ((self._encode(s, n) @ weight) * s.valid / s.valid.sum(-1, keepdim=True) for s in batch)
        return src, dst

    def _encode(self, side: Side, n: int) -> Tensor:
        """Every slot's state after the last layer, (B, n, C, D)."""
        x = self._tokens(side)  # (B, m or n, C, D)
        x = x.expand(-1, n, -1, -1)
        hears = self._hears(side)
        hears = hears.expand(-1, n, -1, -1).flatten(0, 1)
        edge_x = None if side.edge_x is None else side.edge_x.expand(-1, n, -1, -1).flatten(0, 1)
        states = x.flatten(0, 1)  # (B*n, C, D)
        for layer in self.layers:
            states = layer(states, hears, edge_x)
        return states.unflatten(0, (-1, n))

    def _tokens(self, side: Side) -> Tensor:
        """``[node features | STPE]`` of each slot, projected to the model's width: (B, n, C, D)."""
        parts = [] if side.node_x is None else [side.node_x]
        if self.td is not None:
            parts.append(self.td(*side.td))
        if self.sd is not None:
            parts.append(self.sd.of_integers(*side.sd, largest=self.reader.absent))
        if not parts:  # neither features nor distances: every token is alike
            parts.append(torch.zeros(*side.valid.shape, 1, device=side.valid.device))
        size = torch.broadcast_shapes(*(p.shape[:-1] for p in parts))
        return self.project(torch.cat([p.expand(*size, -1) for p in parts], dim=-1))

    def _hears(self, side: Side) -> Tensor:
        """True where row i hears j, (B, m, C or 1, C): never padding; with the mask, only slots no later and no nearer.

        With it a row always hears itself, so that padding, which nobody reads, has something to average.
        """
        if not self.settings.mask:
            return side.valid.unsqueeze(-2)  # slot 0 is always valid
        hop = self.shape.hop_on(side.valid.device)
        earlier = side.moment.unsqueeze(-2) <= side.moment.unsqueeze(-1)
        farther = hop.unsqueeze(-2) >= hop.unsqueeze(-1)
        itself = torch.eye(len(hop), dtype=torch.bool, device=hop.device)
        return (side.valid.unsqueeze(-2) & earlier & farther) | itself

    def _pool(self, side: Side, states: Tensor) -> Tensor:
        """The mean of a tree's tokens, padding left out: (B, n, D)."""
        weight = side.valid.to(states.dtype) / side.valid.sum(-1, keepdim=True)
        return (weight.unsqueeze(-2) @ states).squeeze(-2)
