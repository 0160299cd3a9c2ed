"""Link prediction: turn a split stream into queries, score them, and compute metrics.

`LinkTask` makes the queries, `score_queries` scores them (``max_pairs_per_batch`` limits how many candidates are scored
at once), and `evaluate` returns the metrics of a split. Negatives come from `cordgt.tasks.negatives`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import RunError, SettingError, check_choice
from cordgt.events.arrays import unique_nodes
from cordgt.events.backing import IndexData, StreamBacking
from cordgt.events.stream import EventStream
from cordgt.history import rng
from cordgt.history.activity import ActivityBank
from cordgt.history.index import TemporalIndex, as_tensor
from cordgt.history.queries import History, Queries
from cordgt.models.activity_fit import fit_rate
from cordgt.models.base import LinkModel
from cordgt.runtime.distributed import SINGLE_PROCESS, ProcessGroup
from cordgt.runtime.threads import parallel_map
from cordgt.tasks.metrics import LinkMetrics, link_metrics, ranking_metrics
from cordgt.tasks.negatives import (
    check_pool,
    draw_candidates,
    draw_hard_negatives,
    draw_negative_pairs,
    draw_negatives,
    draw_random_pairs,
    negatives_key,
)
from cordgt.tasks.protocol import Protocol, visible_cuts
from cordgt.tasks.run_metrics import SPLITS
from cordgt.tasks.split import Split, split_events
from cordgt.tasks.ties import mean_ranks, merge_near_ties

HISTORY_DEVICE_VARIABLE = "CORDGT_HISTORY_DEVICE"  # environment variable; see `choose_history_device`
# Protocol settings that may change without a new split.
EVALUATION_SETTINGS = ("visibility", "negatives", "ranking", "eval_batch_size", "eval_seed", "activity")


@dataclass(frozen=True)
class Pools:
    """Nodes from which negatives are sampled, ascending: in training, at evaluation, and for events of new nodes."""

    train: Tensor
    transductive: Tensor
    inductive: dict[str, Tensor]  # by split


@dataclass(frozen=True)
class LinkTask:
    """A stream that is split and indexed for link prediction. Everything in it is read-only."""

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
        protocol: Protocol,
        *,
        seed: int,
        device: torch.device,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> LinkTask:
        """Split and index the stream, and move it to the device if it fits there."""
        split = split_stream(stream, protocol)
        full_history = build_history(stream, seed=seed, device=torch.device("cpu"))
        masked_index = _masked_index(stream, split.masked) if split.masked.any() else None
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
    ) -> Queries:
        """Return queries of events. Candidates (B, 1 + num_negatives): the true destination, then negatives."""
        index = self.full_history.index
        if index.triton_kernels is not None and num_negatives == 1:
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
        negatives = draw_negatives(pool, dst, position, seed=seed, epoch=epoch, n=num_negatives)
        cut, pair_cut = visible_cuts(self.protocol.visibility, index.tie_start[position].long(), batch_start)
        return Queries(
            src=self.src[position],
            dst=torch.cat([dst.unsqueeze(-1), negatives], dim=-1),
            t=index.elapsed[position],
            cut=cut,
            pair_cut=pair_cut,
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
        if self.protocol.negatives in ("historical", "inductive"):
            hard = torch.from_numpy(self.hard_negatives(positions, queries, pool)).to(self.device)
            negative = torch.where(hard >= 0, hard, queries.dst[:, 1])
            queries = replace(queries, dst=torch.stack([queries.dst[:, 0], negative], dim=-1))
        return positions, queries

    def evaluation_events(self, split: str, setting: str) -> tuple[np.ndarray, Tensor]:
        """Return the positions of the events to evaluate, and the pool of their negatives."""
        positions = self.split.validation if split == "validation" else self.split.test
        if setting == "inductive":
            return self.split.inductive(positions), self.pools.inductive[split]
        return positions, self.pools.transductive

    def hard_negatives(self, positions: np.ndarray, queries: Queries, pool: Tensor) -> np.ndarray:
        """Return the historical or inductive negative of each query, (B,); -1 if its source has none."""
        start, end = self.tie_ranges(positions)
        return draw_hard_negatives(
            self.host_index,
            pool.cpu().numpy(),
            queries.src.cpu().numpy(),
            queries.cut.cpu().numpy(),
            start,
            end,
            positions,
            since=0 if self.protocol.negatives == "historical" else int(self.split.validation[0]),
            seed=self.protocol.eval_seed,
        )

    def tie_ranges(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the range of events with the same time as each position: first position, and one past the last."""
        t = self.stream.elapsed
        return np.searchsorted(t, t[positions], side="left"), np.searchsorted(t, t[positions], side="right")

    @cached_property
    def host_index(self) -> TemporalIndex:
        """The index of all events on the CPU."""
        return self.full_history.index.to("cpu")

    def log_source_rates(self, queries: Queries) -> np.ndarray:
        """Return the log rate (B,) float64 at which each query's source acts, from the events before its ``cut``.

        The rate model is fitted to the events before the validation split, at the first call.
        """
        if "source_rate" not in self.cache:
            model = fit_rate(self.host_index, int(self.split.validation[0]), role="source").model
            bank = ActivityBank.build(self.host_index, model.time_constants, "source", model.rhythm)
            self.cache["source_rate"] = model, bank
        model, bank = self.cache["source_rate"]
        return np.log(model.rate(bank.lookup(*(x.cpu() for x in (queries.src, queries.cut, queries.t)))).numpy())


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


def choose_history_device(device: torch.device, n_bytes: int) -> torch.device:
    """Return where to keep ``n_bytes`` of history for a network on ``device``: there, or on the CPU if it is large.

    History may take half of a GPU's free memory; the rest is for training. The environment variable
    ``CORDGT_HISTORY_DEVICE`` overrides this: "device" or "host".
    """
    if "CORDGT_PAST" in os.environ:
        raise SettingError(f"The environment variable CORDGT_PAST is now called {HISTORY_DEVICE_VARIABLE}.")
    choice = os.environ.get(HISTORY_DEVICE_VARIABLE, "auto")
    check_choice(HISTORY_DEVICE_VARIABLE, choice, ("auto", "device", "host"))
    if device.type == "cpu" or choice == "device":
        return device
    fits = choice == "auto" and n_bytes <= torch.cuda.mem_get_info(device)[0] // 2
    return device if fits else torch.device("cpu")


def build_history(stream: EventStream, *, seed: int, device: torch.device, n_nodes: int | None = None) -> History:
    """Return the history of all events of a stream."""
    backing = stream.backing
    if backing is not None and n_nodes is None:
        index = _stored_index(stream, backing, backing.index)
    else:
        n = stream.n_nodes if n_nodes is None else n_nodes
        index = TemporalIndex.build(stream.src, stream.dst, stream.elapsed, n)
    # features of a store stay on disk until they are read
    edge_x, node_x = (None if x is None else as_tensor(x) for x in (stream.edge_x, stream.node_x))
    history = History(index, edge_x, node_x, seed=seed)
    return history.to(choose_history_device(device, history.nbytes))


def _masked_index(stream: EventStream, masked: np.ndarray) -> TemporalIndex:
    """Return the index without events of masked nodes. A store builds its index once and keeps it on disk."""
    backing = stream.backing
    if backing is None:
        keep = ~(masked[stream.src] | masked[stream.dst])
        return TemporalIndex.build(stream.src, stream.dst, stream.elapsed, stream.n_nodes, keep)
    return _stored_index(stream, backing, backing.masked_index(stream.src, stream.dst, masked))


def _stored_index(stream: EventStream, backing: StreamBacking, index: IndexData) -> TemporalIndex:
    """Return an index of a stream on disk; the store may hold later events too."""
    n = stream.n_events
    return TemporalIndex.from_arrays(index, backing.elapsed[:n], backing.tie_start[:n], stream.src)


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


def score_queries(
    model: LinkModel,
    history: History,
    queries: Queries,
    *,
    max_pairs_per_batch: int | None = None,
    callbacks: Callback = NO_CALLBACK,
    group: ProcessGroup = SINGLE_PROCESS,
) -> np.ndarray:
    """Return logits (B, M) of any number of queries, float64 on the host.

    ``max_pairs_per_batch`` limits how many candidates are scored at once, and so the memory; None: the model's value.
    The processes of a group share the batches, and each returns all scores. The scores do not depend on the number of
    processes, to the bit, because the batches do not. Without queries or candidates the model is not called. RunError
    if a logit is not finite, because its rank would be arbitrary.
    """
    n, width = queries.dst.shape
    if not n * width:
        callbacks.on_step(n)
        return np.empty((n, width))
    on_cpu = (model.device or history.index.device).type == "cpu"
    if not max_pairs_per_batch:
        fits_caches = 2 * (model.chunk_size or 0) if on_cpu else 0
        max_pairs_per_batch = fits_caches or model.max_pairs_per_batch
    step = max(1, max_pairs_per_batch // width)
    n_column_blocks = -(-width // max_pairs_per_batch)  # above 1: a query alone has too many candidates for one call
    own = group.shard(n, step)
    blocks = (
        replace(chunk, dst=dst)
        for chunk in (queries.take(slice(k, k + step)) for k in range(own.start, own.stop, step))
        for dst in chunk.dst.split(max_pairs_per_batch, dim=1)
    )
    inputs = (model.read(history, block) for block in blocks)
    done, row, n_done = [], [], 0
    model.eval()
    with torch.inference_mode():
        use_threads = on_cpu and model.is_thread_safe()
        call = torch.inference_mode()(model.__call__)
        for logits in parallel_map(call, inputs) if use_threads else map(model, inputs):
            row.append(logits)
            if len(row) < n_column_blocks:
                continue
            done.append(torch.cat(row, dim=1))
            row.clear()
            n_new = min(n - n_done, len(done[-1]) * group.world_size)  # assume the other processes are equally far
            callbacks.on_step(n_new)
            n_done += n_new
    scores = torch.cat(done).double().cpu().numpy() if done else np.empty((0, width))
    if group.world_size > 1:
        scores = _gather_rows(group, scores, own, n)
    if not np.isfinite(scores).all():
        raise RunError(
            "The model's scores are no longer numbers: its weights grew without bound in training. "
            "Train with a smaller learning rate (--set lr=0.0003, with another --out)."
        )
    return scores


def _gather_rows(group: ProcessGroup, rows: np.ndarray, own: slice, n: int) -> np.ndarray:
    """Return all ``n`` rows; ``rows`` are those of this process, at ``own``. Adding zeros keeps every bit."""
    table = np.zeros((n, *rows.shape[1:]))
    table[own] = rows
    return group.all_reduce_sum(torch.from_numpy(table)).numpy()


def evaluate(
    model: LinkModel,
    task: LinkTask,
    split: str,
    setting: str,
    *,
    callbacks: Callback = NO_CALLBACK,
) -> LinkMetrics:
    """Return the metrics of a split under the task's protocol.

    All are None if the split has no events, or if the model cannot score new nodes and ``setting`` is inductive.
    Where no negative of the requested kind exists, a random one replaces it; ``random_negatives`` is their number.
    """
    protocol = task.protocol
    if model.is_transductive and setting == "inductive":
        metrics = link_metrics(np.empty(0), np.empty(0), protocol.eval_batch_size)
        if protocol.ranking != "none":
            metrics |= ranking_metrics(np.empty(0))
        metrics["events"] = len(task.evaluation_events(split, setting)[0])
        return metrics
    positive, negative, n_random = split_scores(model, task, split, setting, callbacks)
    metrics = link_metrics(positive, negative, protocol.eval_batch_size)
    if protocol.negatives != "random":
        metrics["random_negatives"] = n_random
    if protocol.ranking != "none":
        metrics |= ranking_metrics(compute_ranks(model, task, split, setting, callbacks=callbacks))
    return metrics


def split_scores(
    model: LinkModel, task: LinkTask, split: str, setting: str, callbacks: Callback = NO_CALLBACK
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return logits of the true events and of their negatives, (B,) each, and how many negatives are replacements.

    Near-equal logits of the split are made equal (`merge_near_ties`), so that AP and AUC count them as ties.
    """

    def score(some: Queries) -> np.ndarray:
        return score_queries(model, task.full_history, some, callbacks=callbacks, group=task.group)

    positions, queries = task.evaluation_queries(split, setting)
    n_random = 0
    if task.protocol.negatives.endswith("-pairs"):
        pairs, n_random = negative_pair_queries(task, split, setting)
        scores = np.concatenate([score(replace(queries, dst=queries.dst[:, :1])), score(pairs)], axis=1)
        scores = add_source_rates(task, scores, queries, pairs)
    else:
        scores = score(queries)
        if task.protocol.negatives != "random":
            pool = task.evaluation_events(split, setting)[1]
            n_random = int((task.hard_negatives(positions, queries, pool) < 0).sum())
    scores = merge_near_ties(scores, model.score_tolerance)
    return scores[:, 0], scores[:, 1], n_random


def negative_pair_queries(task: LinkTask, split: str, setting: str) -> tuple[Queries, int]:
    """Return negatives as in DyGLib, which replace the source too, as queries (B, 1); and how many are random pairs.

    They are past pairs of the whole stream, or of the split's own inductive events. `inductive-pairs` were not seen
    before the split. Where a batch has too few of them, random pairs of the same sources and destinations fill up.
    """
    positions, queries = task.evaluation_queries(split, setting)
    stream, protocol = task.stream, task.protocol
    own = positions if setting == "inductive" else np.arange(stream.n_events)
    all_src, all_dst = (np.asarray(x[own], dtype=np.int64) for x in (stream.src, stream.dst))
    places = np.arange(len(positions)) if setting == "inductive" else positions
    size = protocol.eval_batch_size
    batches = [places[i : i + size] for i in range(0, len(places), size)]
    split_start = (task.split.validation if split == "validation" else task.split.test)[0]
    seen_until = None if protocol.negatives == "historical-pairs" else float(stream.t[split_start - 1])
    src, dst = (np.empty(len(positions), dtype=np.int64) for _ in range(2))
    n_random, key = 0, negatives_key(protocol.eval_seed)
    drawn = draw_negative_pairs(
        all_src, all_dst, np.asarray(stream.t[own]), batches, trained_until=seen_until, seed=protocol.eval_seed
    )
    for number, (batch, (u, v)) in enumerate(zip(batches, drawn, strict=True)):
        n_missing = len(batch) - len(u)
        true = all_src[batch], all_dst[batch]
        any_u, any_v = draw_random_pairs(all_src, all_dst, n_missing, true, key=rng.fold_in_int(key, number))
        rows = slice(number * size, number * size + len(batch))
        src[rows], dst[rows] = np.concatenate([u, any_u]), np.concatenate([v, any_v])
        n_random += n_missing
    new_src, new_dst = (torch.from_numpy(x).to(task.device) for x in (src, dst))
    return replace(queries, src=new_src, dst=new_dst[:, None]), n_random


def add_source_rates(task: LinkTask, scores: np.ndarray, *columns: Queries) -> np.ndarray:
    """Add to each column of logits (B, M) the log rate at which its sources act, unless the protocol has no activity.

    Then scores of different sources compare: log rate(u, v, t) = log rate(u, t) + log P(v | u, t).
    """
    if not task.protocol.activity:
        return scores
    return scores + np.stack([task.log_source_rates(queries) for queries in columns], axis=1)


class CandidateScores(NamedTuple):
    """Logits of true destinations and of the candidates they compete with."""

    true: np.ndarray  # (B,)
    others: np.ndarray  # (B, M)
    competes: np.ndarray  # (B, M) bool; False: ignored


def compute_ranks(
    model: LinkModel,
    task: LinkTask,
    split: str,
    setting: str,
    *,
    max_pairs_per_batch: int = 200_000,
    callbacks: Callback = NO_CALLBACK,
) -> np.ndarray:
    """Return the rank of each true destination among the protocol's candidates, (B,) float64.

    1 is best; near-equal scores tie, and ties get their mean rank (`mean_ranks`). Candidates come from the split's
    pool: as many as ``ranking`` says, or all. Other true destinations of the same source and time do not compete. The
    queries see the same history as in `evaluate`; ``max_pairs_per_batch`` limits how many candidates are in memory.
    """
    ranks = [np.empty(0)]
    for scores in candidate_scores(
        model, task, split, setting, max_pairs_per_batch=max_pairs_per_batch, callbacks=callbacks
    ):
        ranks.append(mean_ranks(*scores, model.score_tolerance))
    n = len(task.evaluation_events(split, setting)[0])
    own = task.group.shard(n, _ranking_step(task, split, setting, max_pairs_per_batch))
    return _gather_rows(task.group, np.concatenate(ranks), own, n)


def candidate_scores(
    model: LinkModel,
    task: LinkTask,
    split: str,
    setting: str,
    *,
    max_pairs_per_batch: int = 200_000,
    callbacks: Callback = NO_CALLBACK,
) -> Iterator[CandidateScores]:
    """Yield the scores of the protocol's candidates, some events at a time; a process of a group yields its share."""
    positions, queries = task.evaluation_queries(split, setting)
    pool = task.evaluation_events(split, setting)[1].cpu().numpy()
    step = _ranking_step(task, split, setting, max_pairs_per_batch)
    own = task.group.shard(len(positions), step)
    for start in range(own.start, own.stop, step):
        events = positions[start : start + step]
        true = task.stream.dst[events]
        others = draw_candidates(pool, _n_candidates(task, pool), true, events, seed=task.protocol.eval_seed)
        competes = (others >= 0) & ~_is_also_true(task, events, others)
        candidates = np.concatenate([true[:, None], np.where(others >= 0, others, true[:, None])], axis=1)
        chunk = queries.take(slice(start, start + step))
        chunk = replace(chunk, dst=torch.from_numpy(candidates).to(task.device))
        scores = score_queries(model, task.full_history, chunk, callbacks=callbacks)
        yield CandidateScores(scores[:, 0], scores[:, 1:], competes)


def _n_candidates(task: LinkTask, pool: np.ndarray | Tensor) -> int:
    return len(pool) if task.protocol.ranking == "all" else int(task.protocol.ranking)


def _ranking_step(task: LinkTask, split: str, setting: str, max_pairs_per_batch: int) -> int:
    """Return how many events are ranked at once."""
    pool = task.evaluation_events(split, setting)[1]
    return max(1, max_pairs_per_batch // min(_n_candidates(task, pool), len(pool)))


def _is_also_true(task: LinkTask, positions: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return (B, M) bool: the candidate is a true destination of the query's source at the query's own time."""
    src, dst = task.stream.src, task.stream.dst
    is_true = np.zeros(candidates.shape, dtype=bool)
    for i, (position, start, end) in enumerate(zip(positions, *task.tie_ranges(positions), strict=True)):
        if end - start > 1:
            tied = dst[start:end][src[start:end] == src[position]]
            for true in set(tied.tolist()):  # few values, so faster than np.isin
                is_true[i] |= candidates[i] == true
    return is_true
