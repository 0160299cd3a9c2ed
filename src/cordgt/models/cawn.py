"""CAWN: walks backward in time from both ends. A node is encoded by how often either end's walks visit it.

Wang, Chang, Liu, Leskovec, Li: Inductive Representation Learning in Temporal Networks via Causal Anonymous Walks,
ICLR 2021.

Axes: B queries, M candidates, R roots of a query (the source, then its candidates), W walks of a root, L steps of a
walk, C = 1 + W L positions (the root, then walk by walk), H width of a recurrent state, De event features, Dn node
features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import SettingError
from cordgt.history.cooccurrence import count_occurrences
from cordgt.history.queries import History, Queries
from cordgt.history.walks import sample_walks
from cordgt.models.base import LinkModel
from cordgt.nn.layers import (
    MergeHead,
    TimeEncoding,
    TransformerLayer,
    check_dropout,
    check_non_negative,
    check_positive,
    features_or_empty,
)


@dataclass(frozen=True)
class CawnSettings:
    """Settings of CAWN."""

    num_walks: int = 32  # W
    walk_length: int = 2  # L, steps
    time_scale: float = 1e-6  # an event's weight falls by e in 1 / time_scale units of time; 0: equal weights
    heads: int = 8  # of the attention over walks
    hidden: int = 172  # of an embedding
    time_dim: int = 100
    position_dim: int = 172  # of the encoding of a node's hitting counts
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, "num_walks", "walk_length", "heads", "hidden", "time_dim")
        check_non_negative(self, "time_scale")
        check_dropout(self)
        if self.position_dim < 2:
            raise SettingError(f"position_dim={self.position_dim}: it must be at least 2.")


@dataclass(frozen=True)
class CawnBatch:
    """The walks of every root, and how often each set of walks visits each position's node at each step."""

    node_x: Tensor  # (B, R, C, Dn)
    edge_x: Tensor  # (B, R, C, De), of the event that led there
    age: Tensor  # (B, R, C) float64, from that event to the query; 0 for the root
    valid: Tensor  # (B, R, W, L) True: the walk reached this step
    in_own: Tensor  # (B, R, C, L+1) int64, by the root's own walks
    in_other: tuple[
        Tensor, Tensor
    ]  # (B, M, C, L+1) int64: the source's nodes by the candidates' walks, and theirs by its walks


@dataclass(frozen=True)
class CawnReader:
    """Samples the walks and counts the hits."""

    num_walks: int
    length: int
    scale: float

    def read(self, history: History, queries: Queries) -> CawnBatch:
        """R = 1 + M: the source's walks are read once for all its candidates."""
        index, root = history.index, queries.endpoints
        walks = sample_walks(
            index,
            root,
            queries.cut[:, None],
            n_walks=self.num_walks,
            length=self.length,
            scale=self.scale,
            seed=history.seed,
            epoch=history.epoch,
        )
        node = torch.cat([root.unsqueeze(-1), walks.node.flatten(-2)], dim=-1)  # (B, R, C)
        pos = F.pad(walks.pos.flatten(-2), (1, 0), value=-1)
        event_t = index.elapsed[pos.clamp_min(0)] if len(index.elapsed) else torch.zeros_like(pos).double()
        steps = [root.unsqueeze(-1), *walks.node.unbind(-1)]  # (B, R, 1), then (B, R, W) for each step

        def hits(of: slice, by: slice) -> Tensor:
            counts = [count_occurrences(node[:, of], step[:, by], use_numba=index.uses_numba) for step in steps]
            return torch.stack(counts, dim=-1)

        source, candidates = slice(0, 1), slice(1, None)
        return CawnBatch(
            node_x=features_or_empty(history.node_features(node), node),
            edge_x=features_or_empty(history.edge_features(pos), pos),
            age=torch.where(pos >= 0, queries.t[:, None, None] - event_t, 0.0),
            valid=walks.pos >= 0,
            in_own=hits(slice(None), slice(None)),
            in_other=(hits(source, candidates), hits(candidates, source)),
        )


class WalkEncoder(nn.Module):
    """The bidirectional LSTM's state at the last position of each walk, and no other state.

    There the backward direction has taken one step only, so it is one cell. The forward direction starts at the root,
    which all walks of a set share, so that its first step is computed once.
    """

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.dim = out_dim // 2  # H, of either direction
        self.input = nn.Linear(in_dim, 4 * self.dim)  # gates: in, forget, new, out
        self.recurrent = nn.Linear(self.dim, 4 * self.dim, bias=False)
        self.backward_input = nn.Linear(in_dim, 3 * self.dim)  # in, new, out: no state yet to forget
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(self.dim), 1 / math.sqrt(self.dim))

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """Return states (S, W, 2H) of walks over positions x (S, C, in_dim); valid (S, W, L)."""
        n_walks, length = valid.shape[1:]
        gates = self.input(x)  # (S, C, 4H)
        state, cell = self._step(gates[:, :1], None)  # (S, 1, H), at the root
        state, cell = (part.expand(-1, n_walks, -1) for part in (state, cell))
        steps = gates[:, 1:].unflatten(1, (n_walks, length))
        for k in range(length):
            new_state, new_cell = self._step(steps[:, :, k] + self.recurrent(state), cell)
            reached = valid[:, :, k : k + 1]
            state, cell = torch.where(reached, new_state, state), torch.where(reached, new_cell, cell)
        return torch.cat([state, self._backward(self._last(x, valid))], dim=-1)

    def _step(self, gates: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
        input_gate, forget_gate, new, output_gate = gates.chunk(4, dim=-1)
        new_cell = input_gate.sigmoid() * new.tanh()
        if cell is not None:
            new_cell = new_cell + forget_gate.sigmoid() * cell
        return output_gate.sigmoid() * new_cell.tanh(), new_cell

    def _last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Return the input at the last position of each walk, (S, W, in_dim); the root's for an empty walk."""
        n_walks, length = valid.shape[1:]
        steps = valid.sum(-1)  # (S, W)
        walk = torch.arange(n_walks, device=x.device)
        at = torch.where(steps > 0, walk * length + steps, 0)
        return x.gather(1, at.unsqueeze(-1).expand(-1, -1, x.shape[-1]))

    def _backward(self, last: Tensor) -> Tensor:
        input_gate, new, output_gate = self.backward_input(last).chunk(3, dim=-1)
        return output_gate.sigmoid() * (input_gate.sigmoid() * new.tanh()).tanh()


class Cawn(LinkModel):
    """An encoder for each walk, attention over the walks of a root, their mean.

    Differs: all steps of a walk are sampled with weights exp(time_scale * t), exactly. DyGLib takes a softmax of the
    ratios that the released code samples from.
    """

    reader: CawnReader

    def __init__(self, settings: CawnSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        s = settings
        self.max_pairs_per_batch = max(1, 20_000 // (s.num_walks * s.walk_length))
        self.reader = CawnReader(s.num_walks, s.walk_length, s.time_scale)
        self.time = TimeEncoding(s.time_dim)
        self.count1 = nn.Linear(s.walk_length + 1, s.position_dim)
        self.count2 = nn.Linear(s.position_dim, s.position_dim)
        # widths as in the released code, where missing features of nodes and events are `hidden` zeros
        width = 2 * s.hidden + s.time_dim + s.position_dim
        self.encode_all = WalkEncoder(node_dim + edge_dim + s.time_dim + s.position_dim, width)
        self.encode_position = WalkEncoder(s.position_dim, s.position_dim)
        dim = math.ceil(width // 2 / s.heads) * s.heads
        self.project = nn.Linear(2 * self.encode_all.dim + 2 * self.encode_position.dim, dim)
        self.attention = TransformerLayer(dim=dim, heads=s.heads, dropout=s.dropout, pre_norm=False)
        self.out = nn.Linear(dim, s.hidden)
        self.head = MergeHead(s.hidden)

    def forward(self, batch: CawnBatch) -> Tensor:
        n = batch.valid.shape[1] - 1
        base = self._pair_independent(batch)  # (B, R, C, ...)
        src_by_dst, dst_by_src = batch.in_other
        own = self._encode_hits(batch.in_own)  # (B, R, C, P)
        src = self._embed(base[:, :1], own[:, :1], self._encode_hits(src_by_dst), batch.valid[:, :1])
        dst = self._embed(base[:, 1:], own[:, 1:], self._encode_hits(dst_by_src), batch.valid[:, 1:])
        return self.head(*(part.unflatten(0, (-1, n)) for part in (src, dst)))

    def embed(self, batch: CawnBatch) -> Tensor:
        """Return embeddings (B, hidden) of single nodes, with no hits by another end's walks."""
        own, zero = self._encode_hits(batch.in_own), self._encode_hits(torch.zeros_like(batch.in_own))
        return self._embed(self._pair_independent(batch), own, zero, batch.valid)

    def _pair_independent(self, batch: CawnBatch) -> Tensor:
        """Return the input that does not depend on the other end, (B, R, C, Dn + De + T)."""
        return torch.cat([batch.node_x, batch.edge_x, self.time(batch.age)], dim=-1)

    def _encode_hits(self, hits: Tensor) -> Tensor:
        """Encode hitting counts as shares of the walks, through the first layer of their encoding: (B, m, C, P)."""
        shares = hits.to(self.count1.weight.dtype)
        shares = torch.cat([shares[..., :1], shares[..., 1:] / self.reader.num_walks], dim=-1)
        return F.relu(self.count1(shares))

    def _embed(self, base: Tensor, own: Tensor, other: Tensor, valid: Tensor) -> Tensor:
        """Return the mean over walks (B*M, hidden). The hits' second layer is linear, so it is applied to the sum."""
        both = own + other  # (B, M, C, P)
        position = F.linear(both, self.count2.weight, 2 * self.count2.bias)
        n = position.shape[1]
        x = torch.cat([base.expand(-1, n, -1, -1), position], dim=-1).flatten(0, 1)
        valid = valid.expand(-1, n, -1, -1).flatten(0, 1)
        walks = [self.encode_all(x, valid), self.encode_position(position.flatten(0, 1), valid)]
        state = self.attention(self.project(torch.cat(walks, dim=-1)))  # (B*M, W, D)
        return self.out(state.mean(dim=1))
