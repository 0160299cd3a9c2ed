"""Changes that an audit makes: another future, other pair records, other node ids, a rebuilt task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from cordgt.events.stream import EventStream
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.tasks.link import LinkTask


@dataclass(frozen=True)
class EventArrays:
    """The events of a stream as arrays (E,), to be cut and joined."""

    src: np.ndarray
    dst: np.ndarray
    elapsed: np.ndarray
    edge_x: np.ndarray | None

    @classmethod
    def from_stream(cls, stream: EventStream) -> EventArrays:
        return cls(stream.src, stream.dst, stream.elapsed, stream.edge_x)

    def take(self, rows: np.ndarray | slice) -> EventArrays:
        return EventArrays(*(None if x is None else x[rows] for x in vars(self).values()))  # type: ignore[arg-type]

    def concat(self, later: EventArrays) -> EventArrays:
        columns = zip(vars(self).values(), vars(later).values(), strict=True)
        return EventArrays(*(None if a is None else np.concatenate([a, b]) for a, b in columns))  # type: ignore[arg-type]


def perturb_future(
    task: LinkTask, queries: Queries, boundary: int, rng: np.random.Generator
) -> Iterator[tuple[str, History]]:
    """Yield the task's history with other events from position ``boundary`` on, and the name of each change."""
    events = EventArrays.from_stream(task.stream)
    past, rest = events.take(slice(boundary)), events.take(slice(boundary, None))
    yield "deleted", build_history(task, past)
    src, dst = rng.integers(task.stream.n_nodes, size=(2, len(rest.src)))
    edge_x = None if rest.edge_x is None else rest.edge_x[::-1] + 1
    yield "changed", build_history(task, past.concat(EventArrays(src, dst, rest.elapsed, edge_x)))
    # insert an event of every queried pair at the boundary, the negatives of the latest queries first
    latest = torch.argsort(queries.cut, descending=True, stable=True)
    candidates = queries.dst[latest].flip(1)
    ends = (queries.src[latest, None].expand_as(candidates), candidates)
    src, dst = (x.cpu().numpy().reshape(-1) for x in ends)
    time = rest.elapsed[:1] if len(rest.elapsed) else past.elapsed[-1:]
    edge_x = None if events.edge_x is None else np.ones((len(src), events.edge_x.shape[1]), dtype=np.float32)
    inserted = EventArrays(src, dst, np.repeat(time, len(src)), edge_x)
    yield "inserted", build_history(task, past.concat(inserted).concat(rest))


def perturb_pair_records(task: LinkTask, queries: Queries, boundary: int) -> History:
    """Return the task's history with pair records that hold only queried pairs from ``boundary`` on."""
    stream, candidates = task.stream, queries.dst.flip(1)
    n_later = stream.n_events - boundary
    ends = (queries.src[:, None].expand_as(candidates), candidates)
    later_src, later_dst = (np.resize(x.cpu().numpy(), n_later) for x in ends)
    src = np.concatenate([stream.src[:boundary], later_src])
    dst = np.concatenate([stream.dst[:boundary], later_dst])
    other = TemporalIndex.build(src, dst, stream.elapsed, stream.n_nodes).to(task.device)
    records = {k: v for k, v in vars(other).items() if k.startswith("pair_") or k in ("max_pairs", "max_meetings")}
    return replace(task.full_history, index=replace(task.full_history.index, **records))


def build_history(task: LinkTask, events: EventArrays) -> History:
    """Build a history of other events, with the task's nodes and seed."""
    index = TemporalIndex.build(events.src, events.dst, events.elapsed, task.stream.n_nodes).to(task.device)
    edge_x = None if events.edge_x is None else torch.tensor(events.edge_x, dtype=torch.float32, device=task.device)
    return replace(task.full_history, index=index, edge_x=edge_x)


def empty_history(task: LinkTask) -> History:
    """Return the task's history without any event."""
    stream = task.stream
    is_visible = np.zeros(stream.n_events, dtype=bool)
    index = TemporalIndex.build(stream.src, stream.dst, stream.elapsed, stream.n_nodes, is_visible)
    return replace(task.full_history, index=index.to(task.device))


def rebuild_task(task: LinkTask, stream: EventStream) -> LinkTask:
    """Prepare the task again, from ``stream``."""
    return type(task).prepare(stream, task.protocol, seed=task.full_history.seed, device=task.network_device)


def relabel_nodes(stream: EventStream, labels: np.ndarray) -> tuple[EventStream, np.ndarray]:
    """Read the stream again with other node ids; return it and the new number of each node (N,)."""
    relabeled = EventStream.from_columns(
        labels[stream.src], labels[stream.dst], stream.t, stream.edge_x, shared_ids=stream.ids.shared, time=stream.time
    )
    number = np.empty(stream.n_nodes, dtype=np.int64)
    number[stream.src], number[stream.dst] = relabeled.src, relabeled.dst
    if stream.node_x is not None:
        node_x = np.empty_like(stream.node_x)
        node_x[number] = stream.node_x
        relabeled = relabeled.with_node_features(node_x)
    return relabeled, number
