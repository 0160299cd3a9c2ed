"""Link prediction: turn a split stream into queries.

`LinkTask` makes the queries. `cordgt.tasks.scoring` scores them, and `cordgt.tasks.link_evaluation` computes metrics.
Negatives come from `cordgt.tasks.negatives`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.errors import check_choice
from cordgt.events.arrays import unique_nodes
from cordgt.events.stream import EventStream
from cordgt.history.activity import ActivityBank
from cordgt.history.index import TemporalIndex, as_tensor
from cordgt.history.queries import History, Queries
from cordgt.models.activity_fit import fit_rate
from cordgt.runtime.distributed import SINGLE_PROCESS, ProcessGroup
from cordgt.tasks.histories import build_history, build_masked_index, choose_history_device
from cordgt.tasks.negatives import (
    NEGATIVES,
    NegativeRequest,
    check_pool,
    draw_negatives,
    event_keys,
    negatives_key,
)
from cordgt.tasks.protocol import Protocol, visible_cuts
from cordgt.tasks.run_metrics import SPLITS
from cordgt.tasks.split import Split, split_events

# Protocol settings that may change without a new split.
EVALUATION_SETTINGS = (
    "visibility", "negatives", "ranking", "filter", "positives", "eval_batch_size", "eval_seed", "activity",
)  # fmt: skip


@dataclass(frozen=True)
class Pools:
    """Nodes from which negatives are sampled, ascending: in training, at evaluation, and for events of new nodes."""

    train: Tensor
    transductive: Tensor
    inductive: dict[str, Tensor]  # by split


@dataclass(frozen=True)
class LinkTask:
    """A stream that is split and indexed for link prediction. Everything in it is read-only.

    Examples:
        >>> task = cordgt.LinkTask.prepare(cordgt.read_events("purchases.csv"))
        >>> history, queries = next(task.batches("train", batch_size=100))
        >>> queries.src.shape, queries.dst.shape  # each source with its destination and a negative
        (torch.Size([100]), torch.Size([100, 2]))
    """

    stream: EventStream
    split: Split
    protocol: Protocol
    src: Tensor  # (E,)
    dst: Tensor  # (E,)
    train_history: History  # without the events of masked nodes
    full_history: History  # all events
    pools: Pools
    network_device: torch.device  # where scores and gradients are computed
    group: ProcessGroup = SINGLE_PROCESS  # the processes that share training and evaluation
    cache: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # shared by `with_protocol`

    @classmethod
    def prepare(
        cls,
        stream: EventStream,
        protocol: Protocol = Protocol(),  # noqa: B008 frozen
        *,
        seed: int = 0,
        device: torch.device = torch.device("cpu"),  # noqa: B008 immutable
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> LinkTask:
        """Split and index the stream, and move it to the device if it fits there."""
        split = split_stream(stream, protocol)
        full_history = build_history(stream, seed=seed, device=torch.device("cpu"))
        masked_index = build_masked_index(stream, split.masked) if split.masked.any() else None
        n_bytes = full_history.nbytes + (0 if masked_index is None else masked_index.nbytes)
        history_device = choose_history_device(device, n_bytes)
        full_history = full_history.to(history_device)
        train_history = full_history
        if masked_index is not None:
            train_history = replace(full_history, index=masked_index.share_event_arrays(full_history.index))
        return cls(
            stream=stream,
            split=split,
            protocol=protocol,
            src=full_history.index.src.long(),
            dst=as_tensor(stream.dst).to(history_device),
            train_history=train_history,
            full_history=full_history,
            pools=_make_pools(stream, split, protocol, history_device),
            network_device=device,
            group=group,
        )

    @property
    def device(self) -> torch.device:
        """The device of the history: that of the network, or the CPU if the history is too large for it."""
        return self.src.device

    @property
    def is_history_on_host(self) -> bool:
        """True if the network runs on a GPU and the history is on the host."""
        return self.device.type != self.network_device.type

    def with_all_events(self) -> LinkTask:
        """Return this task with all events as training events and no masked nodes. The arrays are shared."""
        split = replace(self.split, train=np.arange(self.stream.n_events))
        return replace(
            self,
            split=split,
            train_history=self.full_history,
            pools=_make_pools(self.stream, split, self.protocol, self.device),
        )

    def with_protocol(self, **changes: Any) -> LinkTask:
        """Return this task with other values of `EVALUATION_SETTINGS`. The arrays are shared."""
        fixed = sorted(changes.keys() - set(EVALUATION_SETTINGS))
        if fixed:
            raise ValueError(f"{', '.join(fixed)}: cannot change after the split; prepare a new task")
        return replace(self, protocol=replace(self.protocol, **changes))

    def queries(
        self,
        position: Tensor,
        batch_start: Tensor,
        pool: Tensor,
        *,
        seed: int,
        epoch: Tensor | int,
        num_negatives: int = 1,
        negatives: str = "random",
    ) -> Queries:
        """Return queries of events. Candidates (B, 1 + num_negatives): the true destination, then negatives.

        ``negatives`` is a kind of `NEGATIVES` for training; a sampler of a plug-in sees the training history.
        """
        index = self.full_history.index
        if index.triton_kernels is not None and num_negatives == 1 and negatives == "random":
            if not isinstance(epoch, Tensor):
                epoch = torch.full((), epoch, dtype=torch.int64, device=self.device)
            return Queries(
                *index.triton_kernels.build_queries(
                    index,
                    self.src,
                    self.dst,
                    pool,
                    position,
                    batch_start.expand_as(position),
                    key=negatives_key(seed),
                    epoch=epoch,
                    visibility=self.protocol.visibility,
                )
            )
        dst = self.dst[position]
        drawn = draw_negatives(pool, dst, position, seed=seed, epoch=epoch, n=num_negatives)
        cut, pair_cut = visible_cuts(self.protocol.visibility, index.tie_start[position].long(), batch_start)
        queries = Queries(self.src[position], dst.unsqueeze(-1), index.elapsed[position], cut, pair_cut)
        if negatives != "random":
            key = event_keys(position, seed=seed, epoch=epoch)
            sampled = self.sample_negatives(negatives, queries, pool, key, num_negatives, training=True)
            drawn = torch.where(sampled >= 0, sampled, drawn)
        return replace(queries, dst=torch.cat([queries.dst, drawn], dim=-1))

    def sample_negatives(
        self, kind: str, queries: Queries, pool: Tensor, key: Tensor, n: int, *, training: bool = False
    ) -> Tensor:
        """Return negatives (B, n) of a kind; -1 if there is none. ``training``: from the history of training events."""
        sampler = NEGATIVES[kind]
        on_host = sampler.on_host and self.device.type != "cpu"
        index = self.train_history.index if training else self.full_history.index
        if on_host:
            index = self._host_train_index if training else self.host_index
        request = NegativeRequest(index, queries, pool, n, key, train_end=int(self.split.validation[0]))
        return sampler.sample(kind, request.to("cpu") if on_host else request).to(self.device)

    def batches(
        self,
        split: str = "train",
        *,
        batch_size: int | None = None,
        seed: int = 0,
        epoch: int = 1,
        num_negatives: int = 1,
        negatives: str = "random",
    ) -> Iterator[tuple[History, Queries]]:
        """Yield history and queries of a split in stream order: what ``model.read(history, queries)`` reads.

        The first candidate of each query is the true destination. "train": those of the trainer with the same
        settings, in batches of 100; an epoch has its own draws. "validation" and "test": each event with the
        protocol's negative, in batches of ``eval_batch_size``; only ``batch_size`` applies.
        """
        check_choice("split", split, ("train", *SPLITS))
        if split != "train":
            _, queries = self.evaluation_queries(split, "transductive")
            size = batch_size or self.protocol.eval_batch_size
            for start in range(0, len(queries.src), size):
                yield self.full_history, queries.take(slice(start, start + size))
            return
        history = replace(self.train_history, epoch=epoch)
        for position in torch.from_numpy(self.split.train).to(self.device).split(batch_size or 100):
            yield (
                history,
                self.queries(
                    position,
                    position[:1].expand_as(position),
                    self.pools.train,
                    seed=seed,
                    epoch=epoch,
                    num_negatives=num_negatives,
                    negatives=negatives,
                ),
            )

    def evaluation_queries(self, split: str, setting: str) -> tuple[np.ndarray, Queries]:
        """Return positions and queries of a split, candidates (B, 2): the true destination, the protocol's negative.

        ``split`` is validation or test, ``setting`` transductive or inductive.
        """
        positions, pool = self.evaluation_events(split, setting)
        position = torch.from_numpy(positions).to(self.device)
        size = self.protocol.eval_batch_size
        batch_start = position[torch.arange(len(position), device=self.device) // size * size]
        queries = self.queries(position, batch_start, pool, seed=self.protocol.eval_seed, epoch=0)
        if NEGATIVES[self.protocol.negatives].draw is not None:
            hard = torch.from_numpy(self.hard_negatives(positions, queries, pool)).to(self.device)
            negative = torch.where(hard >= 0, hard, queries.dst[:, 1])
            queries = replace(queries, dst=torch.stack([queries.dst[:, 0], negative], dim=-1))
        return positions, queries

    def evaluation_events(self, split: str, setting: str) -> tuple[np.ndarray, Tensor]:
        """Return the positions of the events to evaluate, and the pool of their negatives."""
        positions = self.split.validation if split == "validation" else self.split.test
        if self.protocol.positives == "new":
            positions = positions[self._is_first_meeting(positions)]
        if setting == "inductive":
            return self.split.inductive(positions), self.pools.inductive[split]
        return positions, self.pools.transductive

    def _is_first_meeting(self, positions: np.ndarray) -> np.ndarray:
        """Return (n,) bool: True if the two nodes of the event have no event at an earlier time."""
        index, position = self.full_history.index, torch.from_numpy(positions).to(self.device)
        count, _ = index.pair_interactions(self.src[position], self.dst[position], index.tie_start[position].long())
        return (count == 0).cpu().numpy()

    def hard_negatives(self, positions: np.ndarray, queries: Queries, pool: Tensor) -> np.ndarray:
        """Return the negative of the protocol's kind of each query, (B,); -1 if there is none."""
        key = event_keys(torch.from_numpy(positions).to(self.device), seed=self.protocol.eval_seed)
        queries = replace(queries, dst=queries.dst[:, :1].contiguous())
        return self.sample_negatives(self.protocol.negatives, queries, pool, key, 1)[:, 0].cpu().numpy()

    def tie_ranges(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the range of events with the same time as each position: first position, and one past the last."""
        t = self.stream.elapsed
        return np.searchsorted(t, t[positions], side="left"), np.searchsorted(t, t[positions], side="right")

    @cached_property
    def host_index(self) -> TemporalIndex:
        """The index of all events on the CPU."""
        return self.full_history.index.to("cpu")

    @cached_property
    def _host_train_index(self) -> TemporalIndex:
        """The index of the training history on the CPU."""
        return self.train_history.index.to("cpu")

    def log_source_rates(self, queries: Queries) -> np.ndarray:
        """Return the log rate (B,) float64 at which each query's source acts, from the events before its ``cut``.

        A source that was never seen has the rate at which newcomers arrive. The rate model is fitted to the events
        before the validation split, at the first call.
        """
        if "source_rate" not in self.cache:
            model = fit_rate(self.host_index, int(self.split.validation[0]), role="source").model
            bank = ActivityBank.build(self.host_index, model.time_constants, "source", model.rhythm)
            self.cache["source_rate"] = model, bank
        model, bank = self.cache["source_rate"]
        counts = bank.lookup(*(x.cpu() for x in (queries.src, queries.cut, queries.t)))
        return np.log(model.rate_with_newcomers(counts).numpy())


def split_stream(stream: EventStream, protocol: Protocol) -> Split:
    """Split a stream according to the protocol."""
    return split_events(
        stream.src,
        stream.dst,
        stream.t,
        stream.n_nodes,
        how=protocol.split,
        mask_nodes=protocol.mask_nodes,
        mask_seed=protocol.mask_seed,
        train_ratio=protocol.train_ratio,
        val_ratio=protocol.val_ratio,
    )


def _make_pools(stream: EventStream, split: Split, protocol: Protocol, device: torch.device) -> Pools:
    def make_pool(events: np.ndarray | slice) -> Tensor:
        all_nodes = protocol.pool == "nodes"
        ids = np.arange(stream.n_nodes) if all_nodes else unique_nodes(stream.dst[events], stream.n_nodes)
        return torch.from_numpy(ids).to(device)

    train, transductive = make_pool(split.train), make_pool(slice(None))
    check_pool(train)
    check_pool(transductive)
    inductive = {name: make_pool(split.inductive(getattr(split, name))) for name in SPLITS}
    # a pool of one destination has no negative for it: such events use the pool of all destinations
    return Pools(train, transductive, {k: transductive if len(pool) < 2 else pool for k, pool in inductive.items()})
