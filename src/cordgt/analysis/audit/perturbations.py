"""What an audit changes: another future, other records, other names, the same thing made anew."""

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
class Events:
    """The events of a stream as arrays, to be taken apart."""

    src: np.ndarray
    dst: np.ndarray
    elapsed: np.ndarray
    edge_x: np.ndarray | None

    @classmethod
    def of(cls, task: LinkTask) -> Events:
        stream = task.stream
        return cls(stream.src, stream.dst, stream.elapsed, stream.edge_x)

    def take(self, which: np.ndarray | slice) -> Events:
        return Events(*(None if x is None else x[which] for x in vars(self).values()))  # type: ignore[arg-type]

    def then(self, later: Events) -> Events:
        pairs = zip(vars(self).values(), vars(later).values(), strict=True)
        return Events(*(None if a is None else np.concatenate([a, b]) for a, b in pairs))  # type: ignore[arg-type]


def other_futures(
    task: LinkTask, asked: Queries, boundary: int, rng: np.random.Generator
) -> Iterator[tuple[str, History]]:
    """The task's history with something else from ``boundary`` on, each kind of change by its name."""
    events = Events.of(task)
    past, rest = events.take(slice(boundary)), events.take(slice(boundary, None))
    yield "deleted", history_from(task, past)
    ends = rng.integers(task.stream.n_nodes, size=(2, len(rest.src)))
    edge_x = None if rest.edge_x is None else rest.edge_x[::-1] + 1
    yield "changed", history_from(task, past.then(Events(ends[0], ends[1], rest.elapsed, edge_x)))
    # every pair that is asked about meets right there, the latest queries' negatives first
    latest = torch.argsort(asked.cut, descending=True, stable=True)
    candidates = asked.dst[latest].flip(1)
    ends_asked = (asked.src[latest, None].expand_as(candidates), candidates)
    src, dst = (x.cpu().numpy().reshape(-1) for x in ends_asked)
    when = rest.elapsed[:1] if len(rest.elapsed) else past.elapsed[-1:]
    features = None if events.edge_x is None else np.ones((len(src), events.edge_x.shape[1]), dtype=np.float32)
    meetings = Events(src, dst, np.repeat(when, len(src)), features)
    yield "inserted", history_from(task, past.then(meetings).then(rest))


def other_records(task: LinkTask, asked: Queries, boundary: int) -> History:
    """The task's history, but from ``boundary`` on its pair records tell of the pairs asked about alone."""
    stream, dst = task.stream, asked.dst.flip(1)
    later = stream.n_events - boundary
    src = np.concatenate([stream.src[:boundary], np.resize(asked.src[:, None].expand_as(dst).cpu().numpy(), later)])
    met = np.concatenate([stream.dst[:boundary], np.resize(dst.cpu().numpy(), later)])
    other = TemporalIndex.build(src, met, stream.elapsed, stream.n_nodes).to(task.device)
    records = {k: v for k, v in vars(other).items() if k.startswith("pair_") or k in ("max_pairs", "max_meetings")}
    return replace(task.whole, index=replace(task.whole.index, **records))


def history_from(task: LinkTask, events: Events) -> History:
    """Other events as a model may read them, nodes and seed as in the task."""
    index = TemporalIndex.build(events.src, events.dst, events.elapsed, task.stream.n_nodes).to(task.device)
    edge_x = None if events.edge_x is None else torch.tensor(events.edge_x, dtype=torch.float32, device=task.device)
    return replace(task.whole, index=index, edge_x=edge_x)


def without_events(task: LinkTask) -> History:
    """The task's history without a single event."""
    events = Events.of(task)
    none = np.zeros(len(events.src), dtype=bool)
    index = TemporalIndex.build(events.src, events.dst, events.elapsed, task.stream.n_nodes, none)
    return replace(task.whole, index=index.to(task.device))


def made_anew(task: LinkTask, stream: EventStream) -> LinkTask:
    """The task made anew, perhaps from another stream."""
    return type(task).prepare(stream, task.protocol, seed=task.whole.seed, device=task.network_device)


def renamed(stream: EventStream, names: np.ndarray) -> tuple[EventStream, np.ndarray]:
    """The stream read anew with other ids, and the new number of each node."""
    made = EventStream.from_columns(
        names[stream.src], names[stream.dst], stream.t, stream.edge_x, shared_ids=stream.ids.shared, time=stream.time
    )
    number = np.empty(stream.n_nodes, dtype=np.int64)
    number[stream.src], number[stream.dst] = made.src, made.dst
    if stream.node_x is not None:
        node_x = np.empty_like(stream.node_x)
        node_x[number] = stream.node_x
        made = made.with_node_features(node_x)
    return made, number
