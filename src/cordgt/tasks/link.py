"""Link prediction: queries from a split stream, and figures from their scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cordgt.events import EventStream
from cordgt.history import History, Queries
from cordgt.index import TemporalIndex
from cordgt.metrics import LinkMetrics, link_metrics
from cordgt.models.base import LinkModel
from cordgt.negatives import check_pool, draw_negatives
from cordgt.protocol import Protocol, cuts
from cordgt.split import Split, split_events

PARTS = ("validation", "test")
SETTINGS = ("transductive", "inductive")


@dataclass(frozen=True)
class Pools:
    """What negatives are drawn from, ascending ids: in training, at evaluation, and for new nodes' events."""

    train: Tensor
    transductive: Tensor
    inductive: dict[str, Tensor]  # by part


@dataclass(frozen=True)
class LinkTask:
    """A stream laid out for link prediction on one device. Everything in it is read only."""

    stream: EventStream
    split: Split
    protocol: Protocol
    src: Tensor  # (E,)
    dst: Tensor  # (E,)
    training: History  # without the events of masked nodes
    whole: History  # all events
    pools: Pools

    @classmethod
    def prepare(
        cls, stream: EventStream, protocol: Protocol, *, seed: int, device: torch.device, everything: bool = False
    ) -> LinkTask:
        """Split, index and move to the device. ``everything``: train on all events, masking none."""
        split = split_events(
            stream.src,
            stream.dst,
            stream.t,
            stream.n_nodes,
            how=protocol.split,
            mask_nodes=protocol.mask_nodes,
            mask_seed=protocol.mask_seed,
            train_part=protocol.train_part,
            validation_part=protocol.validation_part,
        )
        whole = history_of(stream, seed=seed, device=device)
        training = whole
        if everything:
            split = replace(split, train=np.arange(stream.n_events))
        elif split.masked.any():
            keep = ~(split.masked[stream.src] | split.masked[stream.dst])
            index = TemporalIndex.build(stream.src, stream.dst, stream.elapsed, stream.n_nodes, keep)
            training = replace(whole, index=index.to(device))
        return cls(
            stream=stream,
            split=split,
            protocol=protocol,
            src=torch.tensor(stream.src, device=device),
            dst=torch.tensor(stream.dst, device=device),
            training=training,
            whole=whole,
            pools=_pools(stream, split, protocol, device),
        )

    @property
    def device(self) -> torch.device:
        return self.src.device

    def queries(
        self, position: Tensor, batch_start: Tensor, pool: Tensor, *, seed: int, epoch: Tensor | int
    ) -> Queries:
        """Each event at ``position`` against one drawn destination: candidates (B, 2), the true one first."""
        dst = self.dst[position]
        negative = draw_negatives(pool, dst, position, seed=seed, epoch=epoch)
        index = self.whole.index
        cut, pair_cut = cuts(self.protocol.visibility, index.tie_start[position].long(), batch_start)
        return Queries(
            src=self.src[position],
            dst=torch.stack([dst, negative], dim=-1),
            t=index.elapsed[position],
            cut=cut,
            pair_cut=pair_cut,
        )

    def evaluation_queries(self, part: str, setting: str) -> tuple[np.ndarray, Queries]:
        """Positions and queries of a split: ``part`` validation or test, ``setting`` transductive or inductive."""
        positions = self.split.validation if part == "validation" else self.split.test
        pool = self.pools.transductive
        if setting == "inductive":
            positions, pool = self.split.inductive(positions), self.pools.inductive[part]
        position = torch.from_numpy(positions).to(self.device)
        size = self.protocol.eval_batch
        start = position[torch.arange(len(position), device=self.device) // size * size]
        return positions, self.queries(position, start, pool, seed=self.protocol.eval_seed, epoch=0)


def history_of(stream: EventStream, *, seed: int, device: torch.device, n_nodes: int | None = None) -> History:
    """All of a stream as a model may read it."""
    index = TemporalIndex.build(stream.src, stream.dst, stream.elapsed, stream.n_nodes if n_nodes is None else n_nodes)

    def features(x: np.ndarray | None) -> Tensor | None:
        return None if x is None else torch.tensor(x, dtype=torch.float32, device=device)

    return History(index.to(device), features(stream.edge_x), features(stream.node_x), seed=seed)


def _pools(stream: EventStream, split: Split, protocol: Protocol, device: torch.device) -> Pools:
    def of(events: np.ndarray | slice) -> Tensor:
        ids = np.arange(stream.n_nodes) if protocol.pool == "nodes" else np.unique(stream.dst[events])
        return torch.from_numpy(ids).to(device)

    pools = Pools(
        train=of(split.train),
        transductive=of(slice(None)),
        inductive={part: of(split.inductive(getattr(split, part))) for part in PARTS},
    )
    check_pool(pools.train)
    check_pool(pools.transductive)
    # a lone destination among the new nodes' events cannot be told from itself: those are asked against all
    alone = {part: pools.transductive if len(pool) < 2 else pool for part, pool in pools.inductive.items()}
    return replace(pools, inductive=alone)


def score_queries(
    model: LinkModel,
    history: History,
    queries: Queries,
    *,
    pairs_at_once: int = 2000,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Logits (B, M) of any number of queries, in chunks of about ``pairs_at_once`` pairs; float64 on the host."""
    n, width = queries.dst.shape
    step = max(1, pairs_at_once // max(width, 1))
    out = []
    model.eval()
    with torch.inference_mode():
        for start in range(0, n, step):
            part = slice(start, start + step)
            chunk = Queries(**{name: value[part] for name, value in vars(queries).items()})
            out.append(model(model.reader.pairs(history, chunk)))
            if progress is not None:
                progress(len(chunk.src))
    return torch.cat(out).double().cpu().numpy() if out else np.empty((0, width))


def evaluate(
    model: LinkModel,
    task: LinkTask,
    part: str,
    setting: str,
    *,
    progress: Callable[[int], None] | None = None,
) -> LinkMetrics:
    """Figures of a split under the task's protocol; all None where it has no event."""
    _, queries = task.evaluation_queries(part, setting)
    scores = score_queries(model, task.whole, queries, progress=progress)
    return link_metrics(scores[:, 0], scores[:, 1], task.protocol.eval_batch)
