"""Memory: what JODIE, DyRep and TGN share. Each node has a state, which its events change.

The past is taken up in blocks. An event tells either end of the other; of what a node is told within a block, the last
stays with it as a pending message, and goes through the updater into its memory when somebody asks, or when the next
one comes. A query reads memory as it was after the last whole block before its ``pair_cut``, and its neighbours up to
its own ``cut``. Blocks lie on a grid of the stream's positions, so what a query reads is a pure function of its cuts
here too: it is the same in any batch, in any order, in `evaluate` and in `predict`. What was replayed last is kept,
because queries mostly come in order, and is never seen from outside.

Training is the exception: there the blocks are its own batches, each with the weights of its moment, so that a state
goes from batch to batch. It trains in one process, and the state is part of every checkpoint.

Differs: the released TGN goes on from the memory that training left. Here evaluation replays the stream with the
weights at hand, so that memory knows the events that were hidden from training, and nothing depends on how often it
was measured before.

Axes: B queries, M candidates of a query, C slots of a tree, N nodes, U distinct nodes, D width of memory, De event
features, Dt width of the time encoding.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.models.base import LinkModel
from cordgt.models.cosines import cosines
from cordgt.models.graph_attention import GraphAttention
from cordgt.models.parts import MergeHead, TimeEncoding, check_dropout, check_heads, check_sizes
from cordgt.past.context import Context, TreeShape, sample_trees
from cordgt.past.history import History, Queries
from cordgt.past.index import TemporalIndex

KEPT_BYTES = 2**28  # of states kept on the way of a replay, so that going back is not going back to the start


@dataclass(frozen=True)
class MemorySettings:
    """Settings that all models with memory have."""

    memory_dim: int = 172  # D
    time_dim: int = 100
    block: int = 100  # events that are taken up at once outside training; in training it is batch_size

    def __post_init__(self) -> None:
        check_sizes(self, "memory_dim", "time_dim", "block")


@dataclass(frozen=True)
class AttentionSettings(MemorySettings):
    """Settings of those that attend to neighbours."""

    neighbours: int = 10  # the most recent events of a node that it attends to
    layers: int = 1
    heads: int = 2
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "neighbours", "layers", "heads")
        check_heads(self.memory_dim + self.time_dim, self.heads, "memory_dim + time_dim")
        check_dropout(self)

    @property
    def shape(self) -> TreeShape:
        return TreeShape((self.neighbours,) * self.layers)


# -------------------- what is read


class Past:
    """The history that memory is replayed over. Not a part of the reading itself, which is its tensors."""

    def __init__(self, history: History) -> None:
        self.history = history


@dataclass(frozen=True)
class MemoryBatch:
    """Nodes with their neighbours, and up to where the past is remembered. The source comes first, then candidates."""

    past: Past
    tree: Context  # (B, 1+M, C)
    t: Tensor  # (B,) float64
    memory_cut: Tensor  # (B,) int64: memory has taken up none of the events from here on


@dataclass(frozen=True)
class MemoryReader:
    """Reads the most recent neighbours of both ends, as deep as the attention goes."""

    shape: TreeShape

    def pairs(self, history: History, queries: Queries) -> MemoryBatch:
        return self._read(history, queries.ends, queries.t, queries.cut, queries.pair_cut)

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> MemoryBatch:
        return self._read(history, node[:, None], t, cut, cut)

    def _read(self, history: History, node: Tensor, t: Tensor, cut: Tensor, memory_cut: Tensor) -> MemoryBatch:
        return MemoryBatch(Past(history), recent_trees(history.index, self.shape, node, cut[:, None]), t, memory_cut)


def recent_trees(index: TemporalIndex, shape: TreeShape, node: Tensor, cut: Tensor) -> Context:
    """The most recent events of each node before ``cut``, and of those met in them before that; none for hop 0."""
    return sample_trees(index, shape, node, cut, seed=0, sampling="recent")


# -------------------- what is remembered


class Messages:
    """Every event of a view told to either end, in stream order. A self-loop tells its node once.

    Differs: of a node's messages in a block the latest counts. The released TGN lists those it got as a source, then
    those as a destination, and takes the last of the list: of a node that was both, one that may be the older. It
    matters only where a node can be either. A self-loop leaves two messages there, which say the same.

    Shapes: R messages.
    """

    def __init__(self, index: TemporalIndex) -> None:
        n_events = len(index.elapsed)
        count = index.row_start.diff()
        following = torch.cat([index.pos[1:], index.pos.new_full((1,), n_events)])[: len(index.pos)]
        following[index.row_start[1:][count > 0] - 1] = n_events  # the last of each row
        order = torch.argsort(index.pos, stable=True)
        node = torch.repeat_interleave(torch.arange(index.n_nodes, device=index.device), count)
        self.node = node[order]  # (R,) who is told
        self.nbr = index.nbr[order].long()  # (R,) of whom
        self.pos = index.pos[order].long()  # (R,) in which event
        self.following = following[order]  # (R,) position of the node's next event; the stream's length if none
        self.host_pos = self.pos.cpu().numpy()

    def next_event(self, position: int) -> int:
        """The position of the first event at or after ``position``; past all where there is none."""
        at = np.searchsorted(self.host_pos, position)
        return int(self.host_pos[at]) if at < len(self.host_pos) else 2**62

    def last_within(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Node, neighbour and position of the last message to each node in a block, (U,) each, by position."""
        part = slice(*np.searchsorted(self.host_pos, (start, stop)).tolist())
        last = self.following[part] >= stop
        return self.node[part][last], self.nbr[part][last], self.pos[part][last]


@dataclass
class MemoryState:
    """What nodes remember after the first ``position`` events. The last row stands for whom nobody knows: zeros."""

    position: Tensor  # () int64, on the host
    memory: Tensor  # (N+1, D) what went through the updater
    last: Tensor  # (N+1,) float64, time of the last event in it; 0 where there is none
    pending: Tensor  # (N+1,) int64, position of the event that waits to go in; -1 where none does
    other: Tensor  # (N+1, D) what it says of the other end, as that was before the event's block

    @classmethod
    def empty(cls, n_nodes: int, dim: int, device: torch.device) -> MemoryState:
        n = n_nodes + 1
        return cls(
            position=torch.zeros((), dtype=torch.int64),
            memory=torch.zeros(n, dim, device=device),
            last=torch.zeros(n, dtype=torch.float64, device=device),
            pending=torch.full((n,), -1, dtype=torch.int64, device=device),
            other=torch.zeros(n, dim, device=device),
        )

    @property
    def n_nodes(self) -> int:
        return len(self.last) - 1

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(x.element_size() * x.numel() for x in vars(self).values())

    def copy(self) -> MemoryState:
        return MemoryState(**{name: x.clone() for name, x in vars(self).items()})

    def place(self, node: Tensor) -> Tensor:
        """The row of each node; the last one for padding and newcomers."""
        return torch.where((node >= 0) & (node < self.n_nodes), node, self.n_nodes)


@dataclass
class Remembered:
    """A state, with what it was made of."""

    state: MemoryState
    history: History
    messages: Messages
    made_by: tuple[int, ...]  # how often each weight had been changed; nothing in training, where they change all along
    kept: dict[int, MemoryState] = field(default_factory=dict)  # states on the way, by position

    def is_of(self, history: History, made_by: tuple[int, ...]) -> bool:
        same = all(
            getattr(self.history, name) is getattr(history, name) for name in ("index", "edge_x", "node_x")
        )  # the very same arrays: comparing them would cost as much as replaying
        return same and self.made_by == made_by

    def keep(self) -> None:
        """Keep a copy of the state, if it is about a sixteenth of the stream beyond the last one and not too large."""
        apart = max(1, len(self.history.index.elapsed) * max(self.state.size, KEPT_BYTES // 16) // KEPT_BYTES)
        if int(self.state.position) >= max(self.kept, default=0) + apart:
            self.kept[int(self.state.position)] = self.state.copy()

    def go_back(self, position: int) -> bool:
        """To the last state kept at or before ``position``; False where none is."""
        before = [at for at in self.kept if at <= position]
        if before:
            self.state = self.kept[max(before)].copy()
        return bool(before)


# -------------------- the network


class MemoryModel(LinkModel):
    """Memory with an updater. What tells the models apart: the updater, what a message says of the other end
    (`tell`), and how a memory becomes an embedding (`embedding`)."""

    remembers = True
    reader: MemoryReader

    def __init__(
        self,
        settings: MemorySettings,
        *,
        edge_dim: int,
        node_dim: int,
        updater: type[nn.GRUCell] | type[nn.RNNCell],
        reads: TreeShape,
        learns_time: bool = False,
    ) -> None:
        super().__init__()
        dim = settings.memory_dim
        self.settings: Any = settings
        self.dim, self.block = dim, settings.block
        self.reader = MemoryReader(reads)
        self.time = TimeEncoding(settings.time_dim, learnt=learns_time)
        self.updater = updater(2 * dim + edge_dim + settings.time_dim, dim)
        self.node_x = nn.Linear(node_dim, dim, bias=False) if node_dim else None
        self.head = MergeHead(dim)
        self._trained: Remembered | None = None  # of training, batch by batch
        self._replayed: Remembered | None = None  # of everything else, block by block
        self._carried: dict[str, Tensor] = {}  # of a checkpoint, until training goes on

    def embedding(self, batch: MemoryBatch, states: Tensor, last: Tensor) -> Tensor:
        """Embeddings (B, 1+M, D) from what nodes and neighbours remember; by default that of the node itself.

        states: (B, 1+M, C, D). last: (B, 1+M) float64, time of the last event that the node's memory knows.
        """
        return states[..., 0, :]

    def tell(self, now: Remembered, node: Tensor, pos: Tensor) -> Tensor | None:
        """(U, D) what the messages of the events at ``pos`` say of ``node``; None: its memory before the block."""
        return None

    def forward(self, batch: MemoryBatch) -> Tensor:
        """Logits (B, M)."""
        x = self._embed(batch)
        return self.head(x[:, :1], x[:, 1:])

    def embed(self, batch: MemoryBatch) -> Tensor:
        """Embeddings (B, D)."""
        return self._embed(batch).squeeze(1)

    def _embed(self, batch: MemoryBatch) -> Tensor:
        history, node = batch.past.history, batch.tree.node  # (B, 1+M, C)
        if self.training:
            now = self._before_batch(history, int(batch.memory_cut.min()))
            states, last = self.recall(now, node)
        else:
            states, last = self._recall_each(history, node, batch.memory_cut // self.block)
        return self.embedding(batch, states, last[..., 0])

    def heard(self, cut: Tensor) -> Tensor:
        """Those of whole blocks, unless neighbours are read too: these are seen up to the cut itself."""
        return cut if self.reader.shape.hops else cut // self.block * self.block

    @classmethod
    def remark(cls, settings: MemorySettings, n_events: int, batch_size: int) -> str:
        if n_events >= 2 * max(settings.block, batch_size):
            return ""
        fits = max(1, n_events // 20)
        return (
            f"{cls.__name__.lower()} remembers events in blocks of {settings.block}, in training in batches of "
            f"{batch_size}: until the first one is full it remembers nothing, and here are {n_events:,} events in all. "
            f"Smaller ones: --set block={fits} --set batch_size={fits}"
        )

    def in_blocks(self, block: int) -> MemoryModel:
        """The same model, weights and all, taking up so many events at once."""
        other = copy.copy(self)
        other.block, other._trained, other._replayed, other._carried = block, None, None, {}
        return other

    # --- which state is read

    def _before_batch(self, history: History, stop: int) -> Remembered:
        """The state of training, moved on to ``stop``: one block, of what the batches since then have shown."""
        now = self._trained
        if self._carried:
            now = self._remember(
                history, MemoryState(**{k: v.to(history.index.device) for k, v in self._carried.items()})
            )
            now.state.position = now.state.position.cpu()
            self._carried = {}
        if now is None or not now.is_of(history, ()):
            now = self._remember(history)
        if int(now.state.position) > stop:
            now.state = self._empty(history)  # another epoch
        self._trained = now
        if self._replayed is not None:
            self._replayed.made_by = (-1,)  # weights are about to change, and a fused Adam leaves their versions alone
        self._advance(now, stop)
        return now

    def _recall_each(self, history: History, node: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        """`recall` where query i reads the state after ``block[i]`` blocks, each state visited once, in order."""
        found = None
        for number in torch.unique(block).tolist():
            now = self._after_blocks(history, number)
            rows = torch.nonzero(block == number).squeeze(1)
            here = self.recall(now, node[rows])
            if len(rows) == len(block):
                return here
            found = found or tuple(x.new_empty(len(block), *x.shape[1:]) for x in here)
            for whole, part in zip(found, here, strict=True):
                whole[rows] = part
        if found is None:
            return self.recall(self._after_blocks(history, 0), node)
        return found[0], found[1]

    def _after_blocks(self, history: History, number: int) -> Remembered:
        """The state after so many whole blocks, from the last one replayed if it is on the way, or from the start."""
        made_by = tuple(parameter._version for parameter in self.parameters())
        now, stop = self._replayed, number * self.block
        with torch.inference_mode(False), torch.no_grad():
            if now is None or not now.is_of(history, made_by):
                messages = now.messages if now is not None and now.history.index is history.index else None
                now = self._remember(history, messages=messages, made_by=made_by)
            elif int(now.state.position) > stop and not now.go_back(stop):
                now.state = self._empty(history)
            self._replayed = now
            while (event := now.messages.next_event(int(now.state.position))) < stop:
                start = event // self.block * self.block  # blocks without events change nothing
                now.state.position.fill_(start)
                self._advance(now, start + self.block)
                now.keep()
        now.state.position.fill_(stop)
        return now

    def _remember(
        self,
        history: History,
        state: MemoryState | None = None,
        *,
        messages: Messages | None = None,
        made_by: tuple[int, ...] = (),
    ) -> Remembered:
        """A state over a history, by default that of the beginning."""
        with torch.inference_mode(False):
            return Remembered(state or self._empty(history), history, messages or Messages(history.index), made_by)

    def _empty(self, history: History) -> MemoryState:
        return MemoryState.empty(history.index.n_nodes, self.dim, history.index.device)

    # --- how it changes

    def recall(self, now: Remembered, node: Tensor) -> tuple[Tensor, Tensor]:
        """What nodes remember, pending messages and features included, and the time of the last event they know.

        Shapes: node (...,); (..., D) and (...,) float64 come back.
        """
        distinct, place = torch.unique(node, return_inverse=True)
        memory, last = self._updated(now, distinct)
        if self.node_x is not None:
            features = now.history.node_features(distinct)
            assert features is not None
            memory = memory + self.node_x(features)
        return F.embedding(place, memory), last[place]

    def _updated(self, now: Remembered, node: Tensor) -> tuple[Tensor, Tensor]:
        """Memory (U, D) and time of the last event (U,) of nodes once their pending messages have gone in."""
        state, history = now.state, now.history
        at = state.place(node)
        memory, last, pending = state.memory[at], state.last[at], state.pending[at]
        if not len(history.index.elapsed):
            return memory, last
        waits = pending >= 0
        t = history.index.elapsed[pending.clamp_min(0)]
        edge_x = history.edge_features(pending)
        # Times are seconds: a frequency that moves by 0.0001 turns a week by sixty radians. Nothing is learnt from what
        # a message says of time, as in the released code, or each step would scramble what the updater reads.
        since = cosines(t - last, self.time.frequency.detach(), self.time.phase.detach())
        message = [memory, state.other[at], *([] if edge_x is None else [edge_x]), since]
        updated = self.updater(torch.cat(message, dim=-1), memory)
        return torch.where(waits.unsqueeze(-1), updated, memory), torch.where(waits, t, last)

    @torch.no_grad()
    def _advance(self, now: Remembered, stop: int) -> None:
        """Take up the events from the state's position to ``stop``, as one block."""
        state = now.state
        node, nbr, pos = now.messages.last_within(int(state.position), stop)
        state.position.fill_(stop)
        if not len(node):
            return
        told = self.tell(now, nbr, pos)
        memory, last = self._updated(now, node)
        state.memory[node], state.last[node], state.pending[node] = memory, last, pos
        # both ends of an event are in its block, so the other's memory has just been brought up to date
        state.other[node] = state.memory[nbr] if told is None else told

    # --- checkpoints

    def carried(self) -> dict[str, Tensor]:
        if self._trained is None:
            return dict(self._carried)
        state = self._trained.state
        return {name: x.detach() for name, x in vars(state).items()}

    def carry_on(self, tensors: dict[str, Tensor]) -> None:
        wanted = {f.name for f in fields(MemoryState)}
        if tensors and tensors.keys() != wanted:
            raise KeyError(f"a state of memory holds {', '.join(sorted(wanted))}")
        self._trained, self._carried = None, dict(tensors)


class AttentionModel(MemoryModel):
    """A memory model that has layers of attention, for its embeddings or for its messages."""

    def __init__(
        self,
        settings: AttentionSettings,
        *,
        edge_dim: int,
        node_dim: int,
        updater: type[nn.GRUCell] | type[nn.RNNCell],
        reads: TreeShape,
        learns_time: bool = False,
    ) -> None:
        super().__init__(
            settings, edge_dim=edge_dim, node_dim=node_dim, updater=updater, reads=reads, learns_time=learns_time
        )
        self.layers = nn.ModuleList(
            GraphAttention(
                dim=self.dim,
                time_dim=settings.time_dim,
                edge_dim=edge_dim,
                heads=settings.heads,
                dropout=settings.dropout,
            )
            for _ in range(settings.layers)
        )

    def attend(self, history: History, shape: TreeShape, tree: Context, t: Tensor, states: Tensor) -> Tensor:
        """Embeddings of the roots of S trees at times ``t``, from what all their slots remember.

        Differs: what is beyond the first hop was drawn, and is aged, at the time of the event that led to it; the
        released TGN takes the time of the query for all hops. With one layer it is the same.

        Shapes: tree (S, C), t (S,), states (S, C, D); (S, D) comes back.
        """
        elapsed = history.index.elapsed
        if not len(elapsed):
            moment = t[:, None].expand(tree.node.shape)
        else:
            moment = torch.where(tree.pos >= 0, elapsed[tree.pos.clamp_min(0)], t[:, None])  # (S, C)
        edge_x = history.edge_features(tree.pos)
        now = self.time(torch.zeros((), dtype=torch.float64, device=t.device))
        age = self.time(moment[:, _parents(shape, t.device)] - moment[:, 1:])  # (S, C-1, Dt)
        for layer, module in enumerate(self.layers):
            hops = shape.hops - layer
            parents, children = shape.starts[hops], slice(1, shape.starts[hops + 1])
            told = [
                states[:, children],
                *([] if edge_x is None else [edge_x[:, children]]),
                age[:, : children.stop - 1],
            ]
            nbr = torch.cat(told, dim=-1).unflatten(1, (parents, -1))  # (S, P, n, D+De+Dt)
            valid = tree.valid[:, children].unflatten(1, (parents, -1))
            own = states[:, :parents]
            heard = module(own.flatten(0, 1), now, nbr.flatten(0, 1), valid.flatten(0, 1))
            states = heard.unflatten(0, (-1, parents))
        return states[:, 0]


@lru_cache(maxsize=64)
def _parents(shape: TreeShape, device: torch.device) -> Tensor:
    """(C-1,) the slot whose event drew each slot but the root; moved to the device once."""
    return shape.parent[1:].to(device)
