"""Link prediction: turn a split stream into queries, score them, and compute metrics."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import RunError, check_choice
from cordgt.events.arrays import distinct
from cordgt.events.backing import IndexData, StreamBacking
from cordgt.events.stream import EventStream
from cordgt.history.index import TemporalIndex, as_tensor
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel
from cordgt.runtime.distributed import ALONE, Group
from cordgt.runtime.threads import side_by_side
from cordgt.tasks.metrics import LinkMetrics, link_metrics, mean_ranks, ranking_metrics
from cordgt.tasks.negatives import check_pool, draw_candidates, draw_negatives, draw_pairs, draw_partners, negatives_key
from cordgt.tasks.protocol import Protocol, cuts
from cordgt.tasks.run_metrics import SPLITS
from cordgt.tasks.split import Split, split_events

PAST = "CORDGT_PAST"
# Keys of the protocol that can change without a new layout of the stream.
EVALUATION_SETTINGS = ("visibility", "negatives", "ranking", "eval_batch_size", "eval_seed")


@dataclass(frozen=True)
class Pools:
    """Nodes that negatives are drawn from, ascending: in training, at evaluation, and for events of new nodes."""

    train: Tensor
    transductive: Tensor
    inductive: dict[str, Tensor]  # by split


@dataclass(frozen=True)
class LinkTask:
    """A stream prepared for link prediction on one device. Everything in it is read only."""

    stream: EventStream
    split: Split
    protocol: Protocol
    src: Tensor  # (E,)
    dst: Tensor  # (E,)
    training: History  # without the events of masked nodes
    whole: History  # all events
    pools: Pools
    network_device: torch.device  # where scores and gradients are computed
    group: Group = ALONE  # the processes that share training and evaluation

    @classmethod
    def prepare(
        cls,
        stream: EventStream,
        protocol: Protocol,
        *,
        seed: int,
        device: torch.device,
        group: Group = ALONE,
    ) -> LinkTask:
        """Split and index the stream, and move it to the device if it fits there."""
        split = split_of(stream, protocol)
        whole = history_of(stream, seed=seed, device=torch.device("cpu"))
        without = _without(stream, split.masked) if split.masked.any() else None
        network_device = device
        device = home_of(device, whole.size + (0 if without is None else without.size))
        whole = whole.to(device)
        training = whole if without is None else replace(whole, index=without.beside(whole.index))
        return cls(
            stream=stream,
            split=split,
            protocol=protocol,
            src=whole.index.src.long(),
            dst=as_tensor(stream.dst).to(device),
            training=training,
            whole=whole,
            pools=_pools(stream, split, protocol, device),
            network_device=network_device,
            group=group,
        )

    @property
    def device(self) -> torch.device:
        """Where history is stored: on the network's device, or on the host if it is too large for that."""
        return self.src.device

    @property
    def past_on_host(self) -> bool:
        """True where the network runs on a GPU and history stays on the host."""
        return self.device.type != self.network_device.type

    def on_everything(self) -> LinkTask:
        """The same task with all events as training events and no masked nodes. Shares all arrays with this task."""
        split = replace(self.split, train=np.arange(self.stream.n_events))
        return replace(
            self, split=split, training=self.whole, pools=_pools(self.stream, split, self.protocol, self.device)
        )

    def under(self, **changes: Any) -> LinkTask:
        """The same task under a protocol with other values of `EVALUATION_SETTINGS`. Shares all arrays with this task."""
        if not changes.keys() <= set(EVALUATION_SETTINGS):
            raise ValueError(f"{', '.join(changes)}: the split and the pools are fixed")
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
        """Queries of events, each with ``num_negatives`` negatives: candidates (B, 1 + num_negatives), the true one first."""
        index = self.whole.index
        if index.fused is not None and num_negatives == 1:
            return self._ask_fused(position, batch_start, pool, seed, epoch)
        dst = self.dst[position]
        negatives = draw_negatives(pool, dst, position, seed=seed, epoch=epoch, n=num_negatives)
        cut, pair_cut = cuts(self.protocol.visibility, index.tie_start[position].long(), batch_start)
        return Queries(
            src=self.src[position],
            dst=torch.cat([dst.unsqueeze(-1), negatives], dim=-1),
            t=index.elapsed[position],
            cut=cut,
            pair_cut=pair_cut,
        )

    def _ask_fused(
        self, position: Tensor, batch_start: Tensor, pool: Tensor, seed: int, epoch: Tensor | int
    ) -> Queries:
        when = epoch if isinstance(epoch, Tensor) else torch.full((), epoch, dtype=torch.int64, device=self.device)
        index, key, rule = self.whole.index, negatives_key(seed), self.protocol.visibility
        return Queries(
            *index.fused.ask(
                index,
                self.src,
                self.dst,
                pool,
                position,
                batch_start.expand_as(position),
                key=key,
                epoch=when,
                visibility=rule,
            )
        )

    def evaluation_queries(self, split: str, setting: str) -> tuple[np.ndarray, Queries]:
        """Positions and queries of a split: the true destination and the protocol's negative, candidates (B, 2).

        ``split`` is validation or test, ``setting`` transductive or inductive.
        """
        positions, pool = self.asked(split, setting)
        queries = self._with_random(positions, pool)
        if self.protocol.negatives in ("historical", "inductive"):
            drawn = self.partners(positions, queries, pool)
            there = torch.from_numpy(drawn).to(self.device)
            negative = torch.where(there >= 0, there, queries.dst[:, 1])
            queries = replace(queries, dst=torch.stack([queries.dst[:, 0], negative], dim=-1))
        return positions, queries

    def asked(self, split: str, setting: str) -> tuple[np.ndarray, Tensor]:
        """Positions of the events that are evaluated, and the pool of their negatives."""
        positions = self.split.validation if split == "validation" else self.split.test
        if setting == "inductive":
            return self.split.inductive(positions), self.pools.inductive[split]
        return positions, self.pools.transductive

    def _with_random(self, positions: np.ndarray, pool: Tensor) -> Queries:
        position = torch.from_numpy(positions).to(self.device)
        size = self.protocol.eval_batch_size
        start = position[torch.arange(len(position), device=self.device) // size * size]
        return self.queries(position, start, pool, seed=self.protocol.eval_seed, epoch=0)

    def partners(self, positions: np.ndarray, queries: Queries, pool: Tensor) -> np.ndarray:
        """The historical or inductive negative of each query, (B,); -1 where its source has none."""
        start, end = self.own_time(positions)
        return draw_partners(
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

    def own_time(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each position, the range of events with the same time: first position, and one past the last."""
        t = self.stream.elapsed
        return np.searchsorted(t, t[positions], side="left"), np.searchsorted(t, t[positions], side="right")

    @cached_property
    def host_index(self) -> TemporalIndex:
        """The index of all events on the CPU."""
        return self.whole.index.to("cpu")


def split_of(stream: EventStream, protocol: Protocol) -> Split:
    """Split a stream as the protocol says."""
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


def home_of(device: torch.device, n_bytes: int) -> torch.device:
    """Where to store ``n_bytes`` of history for a network on ``device``: there, or on the host if it is large.

    History may take half of a GPU's free memory; the rest is for training. The environment variable ``CORDGT_PAST``
    overrides this: "device" or "host".
    """
    asked = os.environ.get(PAST, "auto")
    check_choice(PAST, asked, ("auto", "device", "host"))
    if device.type == "cpu" or asked == "device":
        return device
    fits = asked == "auto" and n_bytes <= torch.cuda.mem_get_info(device)[0] // 2
    return device if fits else torch.device("cpu")


def history_of(stream: EventStream, *, seed: int, device: torch.device, n_nodes: int | None = None) -> History:
    """All of a stream as a model may read it."""
    backing = stream.backing
    if backing is not None and n_nodes is None:
        index = _stored_index(stream, backing, backing.index)
    else:
        n = stream.n_nodes if n_nodes is None else n_nodes
        index = TemporalIndex.build(stream.src, stream.dst, stream.elapsed, n)

    def features(x: np.ndarray | None) -> Tensor | None:
        return None if x is None else as_tensor(x)  # features of a store stay on disk until they are read

    history = History(index, features(stream.edge_x), features(stream.node_x), seed=seed)
    return history.to(home_of(device, history.size))


def _without(stream: EventStream, masked: np.ndarray) -> TemporalIndex:
    """The index without the events that touch a masked node: a store's is made once and lies beside it."""
    backing = stream.backing
    if backing is None:
        keep = ~(masked[stream.src] | masked[stream.dst])
        return TemporalIndex.build(stream.src, stream.dst, stream.elapsed, stream.n_nodes, keep)
    return _stored_index(stream, backing, backing.masked_index(stream.src, stream.dst, masked))


def _stored_index(stream: EventStream, backing: StreamBacking, index: IndexData) -> TemporalIndex:
    """An index of a stream on disk, which may hold later events too."""
    n = stream.n_events
    return TemporalIndex.from_arrays(index, backing.elapsed[:n], backing.tie_start[:n], stream.src)


def _pools(stream: EventStream, split: Split, protocol: Protocol, device: torch.device) -> Pools:
    def of(events: np.ndarray | slice) -> Tensor:
        every = protocol.pool == "nodes"
        ids = np.arange(stream.n_nodes) if every else distinct(stream.dst[events], stream.n_nodes)
        return torch.from_numpy(ids).to(device)

    pools = Pools(
        train=of(split.train),
        transductive=of(slice(None)),
        inductive={name: of(split.inductive(getattr(split, name))) for name in SPLITS},
    )
    check_pool(pools.train)
    check_pool(pools.transductive)
    # a pool of one destination has no negative for it: such events use the pool of all destinations
    inductive = {name: pools.transductive if len(pool) < 2 else pool for name, pool in pools.inductive.items()}
    return replace(pools, inductive=inductive)


def score_queries(
    model: LinkModel,
    history: History,
    queries: Queries,
    *,
    max_pairs_per_batch: int | None = None,
    callbacks: Callback = NO_CALLBACK,
    group: Group = ALONE,
) -> np.ndarray:
    """Logits (B, M) of any number of queries, float64 on the host; computed in chunks of about ``max_pairs_per_batch`` pairs.

    The model is not called where there are no queries or no candidates. The processes of a group share the chunks, and
    each returns all scores. The scores do not depend on the number of processes, to the bit, because the chunks do not.
    RunError where a logit is not finite, because its rank would be arbitrary.
    """
    n, width = queries.dst.shape
    if not n * width:
        callbacks.on_step(n)
        return np.empty((n, width))
    on_cpu = (model.device or history.index.device).type == "cpu"
    usual = 2 * model.micro_batch_size if on_cpu and model.micro_batch_size else model.max_pairs_per_batch
    at_once = max_pairs_per_batch or usual
    step = max(1, at_once // width)
    columns = -(
        -width // at_once
    )  # above 1: one query alone has too many pairs, so its candidates are scored in several calls
    out, row, mine, n_done = [], [], group.part(n, step), 0
    model.eval()
    chunks = (queries.take(slice(k, k + step)) for k in range(mine.start, mine.stop, step))
    pieces = (replace(chunk, dst=dst) for chunk in chunks for dst in chunk.dst.split(at_once, dim=1))
    read = (model.read(history, piece) for piece in pieces)
    with torch.inference_mode():
        apart = on_cpu and model.is_thread_safe()
        for logits in side_by_side(torch.inference_mode()(model.__call__), read) if apart else map(model, read):
            row.append(logits)
            if len(row) < columns:
                continue
            out.append(torch.cat(row, dim=1))
            row.clear()
            done = min(n - n_done, len(out[-1]) * group.size)  # assume that the other processes are equally far
            callbacks.on_step(done)
            n_done += done
    scores = torch.cat(out).double().cpu().numpy() if out else np.empty((0, width))
    if group.size > 1:
        scores = _from_all(group, scores, mine, n)
    if not np.isfinite(scores).all():
        raise RunError(
            "The model's scores are no longer numbers: its weights have grown without bound in training. "
            "A smaller learning rate often helps (--set lr=0.0003, with another --out)."
        )
    return scores


def _from_all(group: Group, own: np.ndarray, mine: slice, n: int) -> np.ndarray:
    """All ``n`` rows; ``own`` are those of this process. A sum with the other processes' zeros keeps every bit."""
    rows = np.zeros((n, *own.shape[1:]))
    rows[mine] = own
    return group.add_up(torch.from_numpy(rows)).numpy()


def evaluate(
    model: LinkModel,
    task: LinkTask,
    split: str,
    setting: str,
    *,
    callbacks: Callback = NO_CALLBACK,
) -> LinkMetrics:
    """Metrics of a split under the task's protocol; all None where it has no events, or the model has no answer.

    Random negatives replace those of the requested kind where none exist; ``random_negatives`` is their number.
    """
    if model.is_transductive and setting == "inductive":
        return _undefined(len(task.asked(split, setting)[0]), task.protocol)
    positive, negative, at_random = split_scores(model, task, split, setting, callbacks)
    found = link_metrics(positive, negative, task.protocol.eval_batch_size)
    if task.protocol.negatives != "random":
        found["random_negatives"] = at_random
    if task.protocol.ranking != "none":
        found |= ranking_metrics(rank(model, task, split, setting, callbacks=callbacks))
    return found


def _undefined(events: int, protocol: Protocol) -> LinkMetrics:
    """The metrics of a model that has no answer: all None."""
    found = link_metrics(np.empty(0), np.empty(0), protocol.eval_batch_size)
    if protocol.ranking != "none":
        found |= ranking_metrics(np.empty(0))
    found["events"] = events
    return found


def split_scores(
    model: LinkModel, task: LinkTask, split: str, setting: str, callbacks: Callback = NO_CALLBACK
) -> tuple[np.ndarray, np.ndarray, int]:
    """Logits of the true events and of their negatives, (B,) each, and how many negatives are random replacements."""
    positions, queries = task.evaluation_queries(split, setting)
    if not task.protocol.negatives.endswith("-pairs"):
        scores = score_queries(model, task.whole, queries, callbacks=callbacks, group=task.group)
        at_random = 0
        if task.protocol.negatives != "random":
            at_random = int((task.partners(positions, queries, task.asked(split, setting)[1]) < 0).sum())
        return scores[:, 0], scores[:, 1], at_random
    pairs, at_random = whole_pairs(task, positions, queries)
    true = replace(queries, dst=queries.dst[:, :1])
    positive, negative = (
        score_queries(model, task.whole, q, callbacks=callbacks, group=task.group)[:, 0] for q in (true, pairs)
    )
    return positive, negative, at_random


def whole_pairs(task: LinkTask, positions: np.ndarray, queries: Queries) -> tuple[Queries, int]:
    """Negatives as in DGB: past pairs, source included, as queries (B, 1); and how many are random replacements."""
    stream, size = task.stream, task.protocol.eval_batch_size
    batches = [positions[i : i + size] for i in range(0, len(positions), size)]
    trained_until = None if task.protocol.negatives == "historical-pairs" else stream.t[task.split.validation[0] - 1]
    seed = task.protocol.eval_seed
    found = draw_pairs(stream.src, stream.dst, stream.t, batches, trained_until=trained_until, seed=seed)
    src, dst = queries.src.cpu().numpy().copy(), queries.dst[:, 1].cpu().numpy().copy()
    for number, (u, v) in enumerate(found):
        src[number * size : number * size + len(u)], dst[number * size : number * size + len(v)] = u, v
    at_random = len(positions) - sum(len(u) for u, _ in found)
    on_device = [torch.from_numpy(x).to(task.device) for x in (src, dst)]
    return replace(queries, src=on_device[0], dst=on_device[1][:, None]), at_random


def rank(
    model: LinkModel,
    task: LinkTask,
    split: str,
    setting: str,
    *,
    max_pairs_per_batch: int = 200_000,
    callbacks: Callback = NO_CALLBACK,
) -> np.ndarray:
    """Rank of each true destination among the protocol's candidates, (B,) float64; 1 is best, ties get their mean rank.

    Candidates come from the split's pool: as many as ``ranking`` says, or all. Other true destinations of the same
    source and time do not compete. The queries see the same history as in `evaluate`; ``max_pairs_per_batch`` limits memory.
    """
    positions, queries = task.evaluation_queries(split, setting)
    pool = task.asked(split, setting)[1].cpu().numpy()
    wanted = len(pool) if task.protocol.ranking == "all" else int(task.protocol.ranking)
    step = max(1, max_pairs_per_batch // min(wanted, len(pool)))
    mine = task.group.part(len(positions), step)
    found = [np.empty(0)]
    for start in range(mine.start, mine.stop, step):
        chunk = queries.take(slice(start, start + step))
        here = positions[start : start + step]
        true = task.stream.dst[here]
        others = draw_candidates(pool, wanted, true, here, seed=task.protocol.eval_seed)
        counted = (others >= 0) & ~_also_true(task, here, others)
        candidates = np.concatenate([true[:, None], np.where(others >= 0, others, true[:, None])], axis=1)
        asked = replace(chunk, dst=torch.from_numpy(candidates).to(task.device))
        scores = score_queries(model, task.whole, asked, callbacks=callbacks)
        found.append(mean_ranks(scores[:, 0], scores[:, 1:], counted))
    return _from_all(task.group, np.concatenate(found), mine, len(positions))


def _also_true(task: LinkTask, positions: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """(B, M) bool: the candidate is a true destination of the query's source at the query's own time."""
    src, dst = task.stream.src, task.stream.dst
    also = np.zeros(candidates.shape, dtype=bool)
    for i, (position, start, end) in enumerate(zip(positions, *task.own_time(positions), strict=True)):
        if end - start > 1:
            for true in set(
                dst[start:end][src[start:end] == src[position]].tolist()
            ):  # few values, so faster than np.isin
                also[i] |= candidates[i] == true
    return also
