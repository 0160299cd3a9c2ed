"""Memory, which JODIE, DyRep and TGN share. Each node has a memory vector, which its events update.

Events are processed in blocks. An event sends a message to either end. The aggregator keeps the last message of a node
within a block. It stays pending, and the updater applies it to the memory when a query reads it or when the next
message comes. A query reads memory as it was after the last whole block before its ``pair_cut``, and neighbors up to
its own ``cut``. Blocks lie on a fixed grid of stream positions, so a query's input is a pure function of its cuts: the
same in any batch, in any order, in `evaluate` and in `predict`. The last replayed state is cached, because queries
mostly come in order; the cache never changes a result.

Training is the exception. There a block is a batch, processed with the weights of its step, so that a state goes from
batch to batch. It runs in one process, and the state is part of every checkpoint. After `use_static_shapes` every batch
does the same operations on the same shapes, so that a CUDA graph can capture the step.

Differs: the released TGN continues from the memory that training left. Here evaluation replays the stream with the
current weights. So memory includes events that were hidden from training, and earlier evaluations change nothing.

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

from cordgt.history.context import Context, TreeShape, sample_trees
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.models.two_tower import TwoTowerModel
from cordgt.nn.graph_attention import GraphAttention
from cordgt.nn.layers import MergeHead, TimeEncoding, check_dropout, check_heads, check_positive
from cordgt.nn.time_encoding import encode_time

MAX_BLOCK_MESSAGES = 32  # for each event of a batch, in a block of fixed width
SNAPSHOT_BYTES = 2**28  # of snapshots along a replay, so that rewinding need not start from the beginning


@dataclass(frozen=True)
class MemorySettings:
    """Settings of all models with memory."""

    memory_dim: int = 172  # D
    time_dim: int = 100
    block: int = 100  # events processed at once outside training; in training it is batch_size

    def __post_init__(self) -> None:
        check_positive(self, "memory_dim", "time_dim", "block")

    @property
    def shape(self) -> TreeShape:
        """Shape of the trees of recent neighbors that attention reads; without attention only a root."""
        return TreeShape(())


@dataclass(frozen=True)
class AttentionMemorySettings(MemorySettings):
    """Settings of memory models with attention to neighbors."""

    num_neighbors: int = 10  # most recent events that a node attends to
    layers: int = 1
    heads: int = 2
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_neighbors", "layers", "heads")
        check_heads(self.memory_dim + self.time_dim, self.heads, "memory_dim + time_dim")
        check_dropout(self)

    @property
    def shape(self) -> TreeShape:
        return TreeShape((self.num_neighbors,) * self.layers)


# -------------------- reading


class HistoryRef:
    """The history that memory is replayed over. No dataclass, so that `map_tensors` leaves its tensors alone."""

    def __init__(self, history: History) -> None:
        self.history = history


@dataclass(frozen=True)
class MemoryBatch:
    """The source, then its candidates, with their neighbors, and how many events their memory may include."""

    past: HistoryRef
    tree: Context  # (B, 1+M, C)
    t: Tensor  # (B,) float64
    memory_cut: Tensor  # (B,) int64: memory includes no event from this position on


@dataclass(frozen=True)
class MemoryReader:
    """Reads the most recent neighbors of each node, one hop for each layer of attention."""

    shape: TreeShape

    def read(self, history: History, queries: Queries) -> MemoryBatch:
        tree = recent_trees(history.index, self.shape, queries.endpoints, queries.cut[:, None])
        return MemoryBatch(HistoryRef(history), tree, queries.t, queries.pair_cut)


def recent_trees(index: TemporalIndex, shape: TreeShape, node: Tensor, cut: Tensor) -> Context:
    """Return the trees of the most recent events of each node before ``cut``."""
    return sample_trees(index, shape, node, cut, seed=0, sampling="recent")


# -------------------- messages and memory


class Messages:
    """The messages of an index in stream order: one to each end of every event, a single one for a self-loop.

    Differs: the last message of a node in a block is the latest in the stream. The released TGN lists the messages a
    node got as a source, then those as a destination, and takes the last of the list, which may be an older one. This
    matters only if a node can be either. A self-loop sends two equal messages there.

    Shapes: R messages.
    """

    def __init__(self, index: TemporalIndex) -> None:
        n_events = len(index.elapsed)
        count = index.row_start.diff()
        next_pos = torch.cat([index.pos[1:], index.pos.new_full((1,), n_events)])[: len(index.pos)]
        next_pos[index.row_start[1:][count > 0] - 1] = n_events  # the last event of each row
        order = torch.argsort(index.pos, stable=True)
        node = torch.repeat_interleave(torch.arange(index.n_nodes, device=index.device), count)
        self.node = node[order]  # (R,) receiver
        self.nbr = index.nbr[order].long()  # (R,) the other end
        self.pos = index.pos[order].long()  # (R,) position of the event
        self.next_pos = next_pos[order]  # (R,) position of the receiver's next event; the stream's length if none
        self.host_pos = self.pos.cpu().numpy()

    def next_event(self, position: int) -> int:
        """Return the position of the first event at or after ``position``; 2**62 if there is none."""
        at = np.searchsorted(self.host_pos, position)
        return int(self.host_pos[at]) if at < len(self.host_pos) else 2**62

    def max_width(self, stops: np.ndarray) -> int:
        """Return the largest number of messages between two of the positions ``stops``, ascending; the first is 0."""
        return int(np.diff(np.searchsorted(self.host_pos, np.concatenate([[0], stops]))).max(initial=0))

    def aggregate_static(self, start: Tensor, stop: Tensor, width: int, n_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
        """`aggregate` without the host, of at most ``width`` messages: (W,) each; ``n_nodes`` where there is none."""
        at = torch.searchsorted(self.pos, start) + torch.arange(width, device=self.pos.device)
        is_message = at < len(self.pos)
        at = at.clamp_max(len(self.pos) - 1)
        pos = self.pos[at]
        is_last = is_message & (pos < stop) & (self.next_pos[at] >= stop)
        return torch.where(is_last, self.node[at], n_nodes), torch.where(is_last, self.nbr[at], n_nodes), pos

    def aggregate(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return receiver, other end and position, (U,) each, of the last message to each node in a block."""
        block = slice(*np.searchsorted(self.host_pos, (start, stop)).tolist())
        last = self.next_pos[block] >= stop
        return self.node[block][last], self.nbr[block][last], self.pos[block][last]


@dataclass
class MemoryState:
    """The memory of all nodes after the first ``position`` events. The last row is that of unknown nodes: zeros."""

    position: Tensor  # () int64, on the host; on the device of the rest if shapes are static
    memory: Tensor  # (N+1, D) output of the updater
    last: Tensor  # (N+1,) float64, time of the last event in memory; 0 if there is none
    pending: Tensor  # (N+1,) int64, event position of the pending message; -1 if there is none
    other: Tensor  # (N+1, D) the pending message's part about the other end, from before its block

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
        """Size in bytes."""
        return sum(x.element_size() * x.numel() for x in vars(self).values())

    def clear(self) -> None:
        """Forget everything, in place."""
        for name, x in vars(self).items():
            x.fill_(-1 if name == "pending" else 0)

    def clear_unknown(self) -> None:
        """Restore the row of unknown nodes. With static shapes, padding is written there."""
        for name in ("memory", "last", "pending", "other"):
            getattr(self, name)[-1].fill_(-1 if name == "pending" else 0)

    def copy(self) -> MemoryState:
        return MemoryState(**{name: x.clone() for name, x in vars(self).items()})

    def row(self, node: Tensor) -> Tensor:
        """Return the row of each node; the last one for padding and new nodes."""
        return torch.where((node >= 0) & (node < self.n_nodes), node, self.n_nodes)


@dataclass
class MemoryCache:
    """A state, and what it was computed from."""

    state: MemoryState
    history: History
    messages: Messages
    weight_versions: tuple[int, ...]  # of each parameter; empty in training, where the weights change all the time
    snapshots: dict[int, MemoryState] = field(default_factory=dict)  # earlier states, by position

    def matches(self, history: History, weight_versions: tuple[int, ...]) -> bool:
        """Return whether the state was computed from this history and these weights."""
        # identity: a comparison of values would cost as much as a replay
        same = all(getattr(self.history, name) is getattr(history, name) for name in ("index", "edge_x", "node_x"))
        return same and self.weight_versions == weight_versions

    def save_snapshot(self) -> None:
        """Copy the state if it is about a sixteenth of the stream past the last snapshot, within `SNAPSHOT_BYTES`."""
        n_events = len(self.history.index.elapsed)
        spacing = max(1, n_events * max(self.state.size, SNAPSHOT_BYTES // 16) // SNAPSHOT_BYTES)
        if int(self.state.position) >= max(self.snapshots, default=0) + spacing:
            self.snapshots[int(self.state.position)] = self.state.copy()

    def rewind(self, position: int) -> bool:
        """Return to the last snapshot at or before ``position``; False if there is none."""
        earlier = [at for at in self.snapshots if at <= position]
        if earlier:
            self.state = self.snapshots[max(earlier)].copy()
        return bool(earlier)


# -------------------- the network


class MemoryModel(TwoTowerModel):
    """Memory with an updater. Models differ in the updater, in `message` and in `embedding`."""

    is_stateful = True
    reader: MemoryReader
    updater_class: type[nn.GRUCell] | type[nn.RNNCell] = nn.RNNCell
    embeds_neighbors = False  # True: embeddings depend on the neighbors' memory too

    def __init__(self, settings: MemorySettings, *, edge_dim: int, node_dim: int, learn_time: bool = False) -> None:
        super().__init__()
        dim = settings.memory_dim
        self.settings: Any = settings
        self.dim, self.block = dim, settings.block
        self.reader = MemoryReader(settings.shape if self.embeds_neighbors else TreeShape(()))
        self.time = TimeEncoding(settings.time_dim, learnable=learn_time)
        self.updater = self.updater_class(2 * dim + edge_dim + settings.time_dim, dim)
        self.node_x = nn.Linear(node_dim, dim, bias=False) if node_dim else None
        self.head = MergeHead(dim)
        self.block_width: int | None = None  # messages of a training block, at most; None: shapes vary
        self._training_cache: MemoryCache | None = None  # advances batch by batch
        self._replay_cache: MemoryCache | None = None  # outside training; advances block by block
        self._restored: dict[str, Tensor] = {}  # from a checkpoint, until training continues

    def embedding(self, batch: MemoryBatch, memory: Tensor, last: Tensor) -> Tensor:
        """Return embeddings (B, 1+M, D) from the memory of nodes and neighbors; by default the node's own memory.

        memory: (B, 1+M, C, D). last: (B, 1+M) float64, time of the last event in the node's memory.
        """
        return memory[..., 0, :]

    def message(self, cache: MemoryCache, node: Tensor, pos: Tensor) -> Tensor | None:
        """Return (U, D), the part about ``node`` of messages at ``pos``; None: its memory before the block."""
        return None

    def encode(self, batch: MemoryBatch) -> Tensor:
        history, node = batch.past.history, batch.tree.node  # (B, 1+M, C)
        if self.training:
            cache = self._before_batch(history, batch.memory_cut.min())
            memory, last = self.read_memory(cache, node)
        else:
            memory, last = self._read_memory_after(history, node, batch.memory_cut // self.block)
        return self.embedding(batch, memory, last[..., 0])

    def visible_events(self, cut: Tensor) -> Tensor:
        """Return the events of whole blocks; all of them if neighbors are read too, which are visible up to the cut."""
        return cut if self.reader.shape.n_hops else cut // self.block * self.block

    @classmethod
    def training_hint(cls, settings: MemorySettings, n_events: int, batch_size: int) -> str:
        if n_events >= 2 * max(settings.block, batch_size):
            return ""
        fits = max(1, n_events // 20)
        return (
            f"{cls.__name__.lower()} updates its memory in blocks of {settings.block} events, in training in batches "
            f"of {batch_size}. Memory is empty until the first one is full, and there are only {n_events:,} events. "
            f"Use smaller ones: --set block={fits} --set batch_size={fits}"
        )

    def use_static_shapes(self, history: History, stops: np.ndarray, batch_size: int) -> bool:
        messages = Messages(history.index)
        width = messages.max_width(stops)
        if width > MAX_BLOCK_MESSAGES * batch_size:
            return False  # many events of one time form one large block; all others would be padded to it
        self.block_width = width
        self._training_cache = self._new_cache(history, messages=messages)
        self._training_cache.state.position = self._training_cache.state.position.to(history.index.device)
        if self._restored:
            tensors, self._restored = self._restored, {}
            self.set_training_state(tensors)
        return True

    def start_epoch(self, n_events: int) -> None:
        if self.block_width is None or self._training_cache is None:
            return
        if self._replay_cache is not None:
            self._replay_cache.weight_versions = (-1,)  # a replayed CUDA graph changes weights, but not their versions
        if n_events == 0:
            self._training_cache.state.clear()

    def in_blocks(self, block: int) -> MemoryModel:
        """Return a model with the same weights and another block size."""
        other = copy.copy(self)
        other.block, other._training_cache, other._replay_cache, other._restored = block, None, None, {}
        other.block_width = None
        return other

    # --- choose the state

    def _before_batch(self, history: History, stop: Tensor) -> MemoryCache:
        """Return the training state, advanced to ``stop``: the events of the batches since then are one block."""
        cache = self._training_cache
        if self.block_width is not None:
            assert cache is not None and cache.matches(history, ())
            self._advance(cache, stop)
            return cache
        return self._before_batch_on_host(history, int(stop))

    def _before_batch_on_host(self, history: History, stop: int) -> MemoryCache:
        cache = self._training_cache
        if self._restored:
            tensors = {name: x.to(history.index.device) for name, x in self._restored.items()}
            cache = self._new_cache(history, MemoryState(**tensors))
            cache.state.position = cache.state.position.cpu()
            self._restored = {}
        if cache is None or not cache.matches(history, ()):
            cache = self._new_cache(history)
        if int(cache.state.position) > stop:
            cache.state = self._empty(history)  # a new epoch
        self._training_cache = cache
        if self._replay_cache is not None:
            self._replay_cache.weight_versions = (-1,)  # the step changes weights; a fused Adam keeps their versions
        self._advance(cache, stop)
        return cache

    def _read_memory_after(self, history: History, node: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        """Return `read_memory` of query i after ``block[i]`` blocks. Each state is visited once, in order."""
        result = None
        for number in torch.unique(block).tolist():
            cache = self._after_blocks(history, number)
            rows = torch.nonzero(block == number).squeeze(1)
            memory, last = self.read_memory(cache, node[rows])
            if len(rows) == len(block):
                return memory, last
            if result is None:
                result = tuple(x.new_empty(len(block), *x.shape[1:]) for x in (memory, last))
            result[0][rows], result[1][rows] = memory, last
        if result is None:
            return self.read_memory(self._after_blocks(history, 0), node)
        return result[0], result[1]

    def _after_blocks(self, history: History, number: int) -> MemoryCache:
        """Return the state after ``number`` whole blocks, from the cached state, a snapshot or the beginning."""
        versions = tuple(parameter._version for parameter in self.parameters())
        cache, stop = self._replay_cache, number * self.block
        with torch.inference_mode(False), torch.no_grad():
            if cache is None or not cache.matches(history, versions):
                messages = cache.messages if cache is not None and cache.history.index is history.index else None
                cache = self._new_cache(history, messages=messages, weight_versions=versions)
            elif int(cache.state.position) > stop and not cache.rewind(stop):
                cache.state = self._empty(history)
            self._replay_cache = cache
            while (event := cache.messages.next_event(int(cache.state.position))) < stop:
                start = event // self.block * self.block  # blocks without events change nothing
                cache.state.position.fill_(start)
                self._advance(cache, start + self.block)
                cache.save_snapshot()
        cache.state.position.fill_(stop)
        return cache

    def _new_cache(
        self,
        history: History,
        state: MemoryState | None = None,
        *,
        messages: Messages | None = None,
        weight_versions: tuple[int, ...] = (),
    ) -> MemoryCache:
        """Make a cache over a history, with empty memory by default."""
        with torch.inference_mode(False):
            messages = messages or Messages(history.index)
            return MemoryCache(state or self._empty(history), history, messages, weight_versions)

    def _empty(self, history: History) -> MemoryState:
        return MemoryState.empty(history.index.n_nodes, self.dim, history.index.device)

    # --- read and update memory

    def read_memory(self, cache: MemoryCache, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return nodes' memory, including pending messages and node features, and the time of the last event in it.

        Shapes: node (...,); returns (..., D) and (...,) float64.
        """
        if cache is self._training_cache and self.block_width is not None:  # the number of distinct nodes varies
            distinct, place = node.flatten(), None
        else:
            distinct, place = torch.unique(node, return_inverse=True)
        memory, last = self._apply_messages(cache, distinct)
        if self.node_x is not None:
            features = cache.history.node_features(distinct)
            assert features is not None
            memory = memory + self.node_x(features)
        if place is None:
            return memory.view(*node.shape, -1), last.view(node.shape)
        return F.embedding(place, memory), last[place]

    def _apply_messages(self, cache: MemoryCache, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return memory (U, D) and time of the last event (U,) after the updater has applied the pending messages."""
        state, history = cache.state, cache.history
        at = state.row(node)
        memory, last, pending = state.memory[at], state.last[at], state.pending[at]
        if not len(history.index.elapsed):
            return memory, last
        has_message = pending >= 0
        t = history.index.elapsed[pending.clamp_min(0)]
        edge_x = history.edge_features(pending)
        # Times are in seconds: a frequency that moves by 0.0001 turns a week by sixty radians. So messages do not train
        # the time encoding, as in the released code; otherwise each step would scramble the updater's input.
        since = encode_time(t - last, self.time.frequency.detach(), self.time.phase.detach())
        message = [memory, state.other[at], *([] if edge_x is None else [edge_x]), since]
        updated = self.updater(torch.cat(message, dim=-1), memory)
        return torch.where(has_message.unsqueeze(-1), updated, memory), torch.where(has_message, t, last)

    @torch.no_grad()
    def _advance(self, cache: MemoryCache, stop: int | Tensor) -> None:
        """Process the events from the state's position to ``stop`` as one block.

        ``stop`` is a tensor if shapes are static.
        """
        state = cache.state
        if isinstance(stop, Tensor):
            assert self.block_width is not None
            node, nbr, pos = cache.messages.aggregate_static(state.position, stop, self.block_width, state.n_nodes)
            state.position.copy_(stop)
        else:
            node, nbr, pos = cache.messages.aggregate(int(state.position), stop)
            state.position.fill_(stop)
        if not len(node):
            return
        message = self.message(cache, nbr, pos)
        memory, last = self._apply_messages(cache, node)
        state.memory[node], state.last[node], state.pending[node] = memory, last, pos
        if isinstance(stop, Tensor):
            state.clear_unknown()
        # Both ends of an event are in its block, so the other end's memory is up to date here.
        state.other[node] = state.memory[nbr] if message is None else message
        if isinstance(stop, Tensor):
            state.clear_unknown()

    # --- checkpoints

    def get_training_state(self) -> dict[str, Tensor]:
        if self._training_cache is None:
            return dict(self._restored)
        return {name: x.detach() for name, x in vars(self._training_cache.state).items()}

    def set_training_state(self, tensors: dict[str, Tensor]) -> None:
        wanted = {f.name for f in fields(MemoryState)}
        if tensors and tensors.keys() != wanted:
            raise KeyError(f"a memory state holds {', '.join(sorted(wanted))}")
        if self.block_width is not None and self._training_cache is not None:  # in place: a CUDA graph reads it there
            self._training_cache.state.clear()
            for name, x in tensors.items():
                getattr(self._training_cache.state, name).copy_(x)
            return
        self._training_cache, self._restored = None, dict(tensors)


class AttentionMemoryModel(MemoryModel):
    """A memory model with layers of attention, for its embeddings or for its messages."""

    def __init__(
        self, settings: AttentionMemorySettings, *, edge_dim: int, node_dim: int, learn_time: bool = False
    ) -> None:
        super().__init__(settings, edge_dim=edge_dim, node_dim=node_dim, learn_time=learn_time)
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

    def attend(self, history: History, shape: TreeShape, tree: Context, t: Tensor, memory: Tensor) -> Tensor:
        """Return embeddings (S, D) of the roots of S trees at times ``t`` (S,), from the memory of all their slots.

        Differs: slots beyond the first hop are sampled, and their ages counted, at the time of the event that led to
        them. The released TGN takes the time of the query for all hops. With one layer it is the same.

        Shapes: tree (S, C), memory (S, C, D).
        """
        elapsed = history.index.elapsed
        if not len(elapsed):
            moment = t[:, None].expand(tree.node.shape)
        else:
            moment = torch.where(tree.pos >= 0, elapsed[tree.pos.clamp_min(0)], t[:, None])  # (S, C)
        edge_x = history.edge_features(tree.pos)
        now = self.time(torch.zeros((), dtype=torch.float64, device=t.device))
        age = self.time(moment[:, _parents(shape, t.device)] - moment[:, 1:])  # (S, C-1, Dt)
        states = memory
        for layer, module in enumerate(self.layers):
            hops = shape.n_hops - layer
            parents, children = shape.hop_starts[hops], slice(1, shape.hop_starts[hops + 1])
            events = [] if edge_x is None else [edge_x[:, children]]
            context = [states[:, children], *events, age[:, : children.stop - 1]]
            nbr = torch.cat(context, dim=-1).unflatten(1, (parents, -1))  # (S, P, n, D+De+Dt)
            valid = tree.valid[:, children].unflatten(1, (parents, -1))
            own = states[:, :parents]
            attended = module(own.flatten(0, 1), now, nbr.flatten(0, 1), valid.flatten(0, 1))
            states = attended.unflatten(0, (-1, parents))
        return states[:, 0]


@lru_cache(maxsize=64)
def _parents(shape: TreeShape, device: torch.device) -> Tensor:
    """Return (C-1,) the parent of each slot but the root; copied to the device once."""
    return shape.parent[1:].to(device)
