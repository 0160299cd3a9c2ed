"""Audit: does a model see what it must not, and what is there to know about data before a figure on it is believed?

Every check of a model changes something that must not matter and asks the same queries again. The boundary is taken
from the stream's times, never from the queries alone, so that a task that shows too much is found like a reader that
takes too much. Whatever answers like a `LinkModel` can be audited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.errors import DataError
from cordgt.events import EventStream
from cordgt.history import History, Queries
from cordgt.index import TemporalIndex
from cordgt.models.base import LinkModel, tensors
from cordgt.models.memory import MemoryModel
from cordgt.protocol import Protocol, cuts
from cordgt.tasks.link import LinkTask, score_queries, split_of

OK, FAIL, DESIGN, NOTE, WARNING = "ok", "FAIL", "by design", "note", "warning"
BATCHES = 8  # of the sample, for what rebuilds the index
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}  # of scores in batches of other shapes, which add up in another order


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    check: str
    compared: str
    result: str
    detail: str


def failed(checks: Sequence[Check]) -> bool:
    return any(check.result == FAIL for check in checks)


# -------------------- a model


def audit_model(model: LinkModel, task: LinkTask, *, queries: int = 200) -> list[Check]:
    """Every check of a model on a sample of the task's own test queries, the trained weights in evaluation mode."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # so that what moves is not the rounding of another batch size
    try:
        return _checks(model, task, Sample.draw(task, queries))
    finally:
        torch.set_float32_matmul_precision(before)


def _checks(model: LinkModel, task: LinkTask, sample: Sample) -> list[Check]:
    checks = [
        visible_events(task, sample),
        future(model, task, sample),
        same_moment(model, task),
        batch_size(model, task, sample),
        candidate_order(model, task, sample),
        time_shift(model, task, sample),
        other_names(model, task, sample),
        same_seed(model, task, sample),
        whole_records(task, sample),
        new_like_known(model, task),
    ]
    return [*checks, memory_blocks(model, task, sample)] if isinstance(model, MemoryModel) else checks


@dataclass(frozen=True)
class Sample:
    """Some of the test's queries, evenly spread, in stream order."""

    place: np.ndarray  # (B,) which of the test's queries
    position: np.ndarray  # (B,) of their events
    queries: Queries

    @classmethod
    def draw(cls, task: LinkTask, n: int) -> Sample:
        positions, queries = task.evaluation_queries("test", "transductive")
        place = _spread(len(positions), n)
        return cls(place, positions[place], queries.take(place))

    def limits(self, task: LinkTask) -> np.ndarray:
        """(B,) how many events each query may see at most: those it says it sees, none of its own time or later."""
        return np.minimum(self.queries.cut.cpu().numpy(), task.own_time(self.position)[0])


def visible_events(task: LinkTask, sample: Sample) -> Check:
    """What each query says it sees is what the rule allows, worked out anew from the times."""
    rule, size = task.protocol.visibility, task.protocol.eval_batch
    positions = task.asked("test", "transductive")[0]
    start = positions[sample.place // size * size]
    own = np.searchsorted(task.stream.t, task.stream.t[sample.position], side="left")
    allowed = cuts(rule, torch.from_numpy(own), torch.from_numpy(start))
    told = (sample.queries.cut, sample.queries.pair_cut)
    wrong = np.zeros(len(start), dtype=bool)
    for got, wanted in zip(told, allowed, strict=True):
        wrong |= got.cpu().numpy() != wanted.numpy()
    found = f"{wrong.sum()} of {len(wrong):,} queries see other events than rule {rule} allows"
    return Check("visible events", f"the rule: {rule}", FAIL if wrong.any() else OK, found)


def future(model: LinkModel, task: LinkTask, sample: Sample) -> Check:
    """Scores keep every bit whatever happens at and after what a query may see."""
    limit, moved = sample.limits(task), _Moved()
    rng = np.random.default_rng(0)
    for rows in np.array_split(np.argsort(limit, kind="stable"), min(BATCHES, len(limit))):
        asked = sample.queries.take(rows)
        expected = score_queries(model, task.whole, asked)
        for boundary in sorted({int(limit[rows[len(rows) // 2]]), int(limit[rows[-1]])}):
            held = limit[rows] <= boundary  # those that see no further; bits are compared in batches of one shape
            for change, history in _other_futures(task, asked, boundary, rng):
                moved.add(change, score_queries(model, history, asked)[held], expected[held])
        records = np.minimum(limit, sample.queries.pair_cut.cpu().numpy())[rows]
        if (records < limit[rows]).any():  # rule paper: records stop earlier than trees
            boundary = int(np.median(records))
            got = score_queries(model, _other_records(task, asked, boundary), asked)
            moved.add("recorded", got[records <= boundary], expected[records <= boundary])
    without = score_queries(model, _empty(task), sample.queries)
    seen = (without != score_queries(model, task.whole, sample.queries)).any(axis=1).sum()
    told = f"{moved}; with the past deleted instead, {seen:,} of {len(without):,} queries move"
    return Check("future", "later events changed, deleted, inserted", FAIL if moved.any else OK, told)


def same_moment(model: LinkModel, task: LinkTask) -> Check:
    """Events with the query's own time might as well not be there, or be there twice."""
    positions, queries = task.evaluation_queries("test", "transductive")
    start, end = task.own_time(positions)
    shared = np.unique(start[end - start > 1])
    moments = shared if len(shared) else np.unique(start)
    events, moved, asked_in_all = _Events.of(task), _Moved(), 0
    for first in moments[_spread(len(moments), BATCHES)]:
        rows = np.flatnonzero(start == first)[:50]
        tie = np.arange(first, end[rows[0]])
        everything = np.arange(task.stream.n_events)
        asked = queries.take(rows)
        expected = score_queries(model, task.whole, asked)
        removed, doubled = np.delete(everything, tie), np.insert(everything, first, tie)
        moved.add("removed", score_queries(model, _history(task, events.take(removed)), asked), expected)
        moved.add("doubled", score_queries(model, _history(task, events.take(doubled)), asked), expected)
        asked_in_all += len(rows)
    tied = f"{asked_in_all} queries at {min(len(moments), BATCHES)} times"
    told = f"{moved}; {tied}{'' if len(shared) else ', no two events of the test share one'}"
    return Check("same moment", "events of the query's own time removed, doubled", FAIL if moved.any else OK, told)


def batch_size(model: LinkModel, task: LinkTask, sample: Sample) -> Check:
    """Other batches, in another order: the same queries, readings and scores."""
    what = "batches of 1 and 7, another order"
    differing = np.zeros(len(sample.place), dtype=bool)
    for size in (1, 7):
        other = replace(task, protocol=replace(task.protocol, eval_batch=size))
        again = other.evaluation_queries("test", "transductive")[1].take(sample.place)
        for name, value in vars(again).items():
            differing |= (value != getattr(sample.queries, name)).reshape(len(differing), -1).any(dim=1).cpu().numpy()
    moved = _Moved(TOLERANCE.get(task.network_device.type, 1e-4))
    expected = score_queries(model, task.whole, sample.queries)
    whole = tensors(_read(model, task.whole, sample.queries))
    order = np.random.default_rng(0).permutation(len(expected))
    misread = 0
    for name, rows, size in (("1", order[:50], 1), ("7", order, 7)):
        for i in range(0, len(rows), size):
            part = rows[i : i + size]
            asked = sample.queries.take(part)
            moved.add(f"batches of {name}", score_queries(model, task.whole, asked), expected[part])
            misread += _misread(tensors(_read(model, task.whole, asked)), whole, part, len(expected))
    told = f"{moved}; readings differ in {misread} batches" if misread else str(moved)
    if moved.any or misread:
        return Check("batch size", what, FAIL, told)
    seen = f"{differing.sum()} of {len(differing):,} queries see other events"
    if task.protocol.visibility != "event":
        rule = f"rule {task.protocol.visibility} shows what lay before the batch: {seen}; given these, {told}"
        return Check("batch size", what, DESIGN, rule)
    return Check("batch size", what, FAIL if differing.any() else OK, f"{seen}; {told}" if differing.any() else told)


def candidate_order(model: LinkModel, task: LinkTask, sample: Sample) -> Check:
    """The true destination always stands first: in another place, and alone, each candidate gets the same score."""
    moved = _Moved(TOLERANCE.get(task.network_device.type, 1e-4))
    expected = score_queries(model, task.whole, sample.queries)
    turned = score_queries(model, task.whole, replace(sample.queries, dst=sample.queries.dst.flip(1)))
    moved.add("turned round", turned[:, ::-1], expected)
    for place in range(expected.shape[1]):
        alone = replace(sample.queries, dst=sample.queries.dst[:, place : place + 1])
        moved.add("alone", score_queries(model, task.whole, alone)[:, 0], expected[:, place])
    what = "candidates in another place, and alone"
    return Check("candidate order", what, FAIL if moved.any else OK, str(moved))


def memory_blocks(model: MemoryModel, task: LinkTask, sample: Sample) -> Check:
    """What a memory holds depends on how many events it takes up at once: that is its setting, not the evaluation's."""
    half = max(1, model.block // 2)
    moved = _Moved(TOLERANCE.get(task.network_device.type, 1e-4))
    expected = score_queries(model, task.whole, sample.queries)
    moved.add(f"blocks of {half}", score_queries(model.in_blocks(half), task.whole, sample.queries), expected)
    told = f"{moved}; batches of evaluation do not matter, those of training (batch_size) do"
    return Check("memory blocks", f"blocks of {half} events, not {model.block}", DESIGN, told)


def time_shift(model: LinkModel, task: LinkTask, sample: Sample) -> Check:
    """All times later or earlier by the same: nothing moves, not by a bit.

    Times that are not whole are first put on a grid on which the shift rounds nothing.
    """
    t: np.ndarray = task.stream.t
    by = 2**20 if t[-1] < 2**62 else -(2**20)
    if t.dtype.kind == "f":
        grid = 2.0 ** (np.frexp(np.abs(t).max() + abs(by))[1] - 51)
        t = np.round(t / grid) * grid
    # positions and ids stay as they are; the split, the index, the queries and the scores are made anew
    here, there = (_again(task, replace(task.stream, t=times, kept=None)) for times in (t, t + by))
    moved, asked = _Moved(), 0
    if len(here.split.test) == len(there.split.test):
        (_, a), (_, b) = (x.evaluation_queries("test", "transductive") for x in (here, there))
        place = sample.place[sample.place < len(a.src)]
        a, b = a.take(place), b.take(place)
        asked = sum(int((getattr(a, name) != getattr(b, name)).sum()) for name in vars(a))
        moved.add("shifted", score_queries(model, there.whole, b), score_queries(model, here.whole, a))
    else:
        asked = 1
    told = f"{moved}; the queries themselves differ" if asked else str(moved)
    return Check("time shift", f"all times {by:+,.0f}", FAIL if moved.any or asked else OK, told)


def other_names(model: LinkModel, task: LinkTask, sample: Sample) -> Check:
    """Other ids for the same nodes: the same pairs get the same scores."""
    moved = _Moved()
    expected = score_queries(model, task.whole, sample.queries)
    shuffled = np.random.default_rng(0).permutation(task.stream.n_nodes)
    for kind, names in (("numbers", shuffled), ("words", np.char.add("node ", shuffled.astype(str)))):
        stream, number = _renamed(task.stream, names)
        ends = {
            name: torch.from_numpy(number).to(task.device)[getattr(sample.queries, name)] for name in ("src", "dst")
        }
        again = _again(task, stream)
        moved.add(kind, score_queries(model, again.whole, replace(sample.queries, **ends)), expected)
    return Check("other names", "the same pairs under other ids", FAIL if moved.any else OK, str(moved))


def same_seed(model: LinkModel, task: LinkTask, sample: Sample) -> Check:
    """Everything made anew with the same seed: the same queries, the same scores."""
    again = _again(task, task.stream)
    queries = again.evaluation_queries("test", "transductive")[1].take(sample.place)
    drawn = sum(int((getattr(queries, name) != value).sum()) for name, value in vars(sample.queries).items())
    moved = _Moved()
    moved.add("again", score_queries(model, again.whole, queries), score_queries(model, task.whole, sample.queries))
    told = f"{moved}; negatives or cuts differ" if drawn else str(moved)
    return Check("same seed", f"made anew with seed {task.whole.seed}", FAIL if moved.any or drawn else OK, told)


def whole_records(task: LinkTask, sample: Sample) -> Check:
    """What the history says of the nodes that training did not see is what counting in the stream says."""
    new = task.split.new_node
    src, dst, t = task.stream.src, task.stream.dst, task.stream.elapsed
    hidden = np.flatnonzero(new[src] | new[dst])
    hidden = hidden[hidden < sample.position.max()] if len(hidden) else hidden
    events = hidden if len(hidden) else np.arange(sample.position.max())
    events = events[_spread(len(events), 200)]  # each gives a pair that has met
    cut = np.resize(sample.queries.pair_cut.cpu().numpy(), len(events))
    node, other = src[events], dst[events]
    on_device = [torch.from_numpy(x).to(task.device) for x in (node, other, cut)]
    count, last = (x.cpu().numpy() for x in task.whole.index.pair_history(*on_device))
    degree = task.whole.index.degree(on_device[0], on_device[2]).cpu().numpy()
    wrong = {"records": 0, "trees": 0}
    for i, (u, v, c) in enumerate(zip(node, other, cut, strict=True)):
        is_u, is_v = (src[:c] == u, dst[:c] == u), (src[:c] == v, dst[:c] == v)
        met = np.flatnonzero((is_u[0] & is_v[1]) | (is_u[1] & is_v[0]))
        wrong["records"] += bool(count[i] != len(met) or (len(met) and last[i] != t[met[-1]]))
        wrong["trees"] += bool(degree[i] != (is_u[0] | is_u[1]).sum())
    about = f"{len(events)} pairs of new nodes" if len(hidden) else f"{len(events)} pairs; no node is new"
    told = f"{about}: {wrong['records']} records and {wrong['trees']} rows differ"
    return Check(
        "whole records", "what is shown of new nodes, and the stream", FAIL if any(wrong.values()) else OK, told
    )


def new_like_known(model: LinkModel, task: LinkTask) -> Check:
    """One and the same little past, told of nodes that training saw and of those it did not: the same scores.

    Two nodes meet once, and nothing else ever happens: whatever is drawn from so little is the same, so that only who
    they are could tell one such world from another. Records kept from training, or that hide masked nodes, do.
    """
    what = "the same past told of new and of known nodes"
    if model.transductive or model.by_number:
        told = "the model knows nodes by number: what it learnt of one says nothing of a new one, whatever their past"
        return Check("new like known", what, DESIGN, told)
    cut = int(task.split.test[0])
    known, new = _pairs_met(task, cut)
    if not len(new) or not len(known):
        return Check("new like known", what, OK, "no new node has a past that could be hidden")
    moved = _Moved()
    scores = [_score_alone(model, task, u, v, cut) for u, v in np.concatenate([known, new])]
    for i, score in enumerate(scores):
        moved.add("known" if i < len(known) else "new", score, scores[0])
    return Check("new like known", what, FAIL if moved.any else OK, f"{len(known)} and {len(new)} pairs: {moved}")


def _score_alone(model: LinkModel, task: LinkTask, u: int, v: int, cut: int) -> np.ndarray:
    """Scores (2, 2) in a world where ``u`` met ``v`` just before ``cut``: of each with the other, and with a third."""
    stream = task.stream
    src, dst, elapsed = stream.src.copy(), stream.dst.copy(), np.ones(stream.n_events)
    src[cut - 1], dst[cut - 1], elapsed[cut:] = u, v, 1.1  # positions as in the stream, and one event kept
    index = TemporalIndex.build(src, dst, elapsed, stream.n_nodes, np.arange(stream.n_events) == cut - 1)
    plain: dict[str, Any] = {
        k: None if x is None else torch.zeros_like(x) for k, x in vars(task.whole).items() if k.endswith("_x")
    }
    third = next(w for w in range(stream.n_nodes) if w not in (u, v)) if stream.n_nodes > 2 else u
    cuts_ = torch.tensor([cut, cut], device=task.device)
    queries = Queries(
        src=torch.tensor([u, v], device=task.device),
        dst=torch.tensor([[v, third], [u, third]], device=task.device),
        t=torch.full((2,), 1.1, dtype=torch.float64, device=task.device),
        cut=cuts_,
        pair_cut=cuts_,
    )
    return score_queries(model, replace(task.whole, index=index.to(task.device), **plain), queries)


def _pairs_met(task: LinkTask, cut: int, most: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Pairs that met before ``cut``: (P, 2) of nodes that training saw, (Q, 2) with one that it did not."""
    pairs = np.unique(np.stack([task.stream.src[:cut], task.stream.dst[:cut]], axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    is_new = task.split.new_node[pairs].any(axis=1)
    known, new = pairs[~is_new], pairs[is_new]
    return known[_spread(len(known), most)], new[_spread(len(new), most)]


# -------------------- what is changed


@dataclass(frozen=True)
class _Events:
    """The events of a stream as arrays, to be taken apart."""

    src: np.ndarray
    dst: np.ndarray
    elapsed: np.ndarray
    edge_x: np.ndarray | None

    @classmethod
    def of(cls, task: LinkTask) -> _Events:
        stream = task.stream
        return cls(stream.src, stream.dst, stream.elapsed, stream.edge_x)

    def take(self, which: np.ndarray | slice) -> _Events:
        return _Events(*(None if x is None else x[which] for x in vars(self).values()))  # type: ignore[arg-type]

    def then(self, later: _Events) -> _Events:
        pairs = zip(vars(self).values(), vars(later).values(), strict=True)
        return _Events(*(None if a is None else np.concatenate([a, b]) for a, b in pairs))  # type: ignore[arg-type]


def _other_futures(
    task: LinkTask, asked: Queries, boundary: int, rng: np.random.Generator
) -> Iterator[tuple[str, History]]:
    """The task's history with something else from ``boundary`` on, each kind of change by its name."""
    events = _Events.of(task)
    past, rest = events.take(slice(boundary)), events.take(slice(boundary, None))
    yield "deleted", _history(task, past)
    ends = rng.integers(task.stream.n_nodes, size=(2, len(rest.src)))
    edge_x = None if rest.edge_x is None else rest.edge_x[::-1] + 1
    yield "changed", _history(task, past.then(_Events(ends[0], ends[1], rest.elapsed, edge_x)))
    # every pair that is asked about meets right there, the latest queries' negatives first
    latest = torch.argsort(asked.cut, descending=True, stable=True)
    candidates = asked.dst[latest].flip(1)
    ends_asked = (asked.src[latest, None].expand_as(candidates), candidates)
    src, dst = (x.cpu().numpy().reshape(-1) for x in ends_asked)
    when = rest.elapsed[:1] if len(rest.elapsed) else past.elapsed[-1:]
    features = None if events.edge_x is None else np.ones((len(src), events.edge_x.shape[1]), dtype=np.float32)
    meetings = _Events(src, dst, np.repeat(when, len(src)), features)
    yield "inserted", _history(task, past.then(meetings).then(rest))


def _other_records(task: LinkTask, asked: Queries, boundary: int) -> History:
    """The task's history, but from ``boundary`` on its pair records tell of the pairs asked about alone."""
    stream, dst = task.stream, asked.dst.flip(1)
    later = stream.n_events - boundary
    src = np.concatenate([stream.src[:boundary], np.resize(asked.src[:, None].expand_as(dst).cpu().numpy(), later)])
    met = np.concatenate([stream.dst[:boundary], np.resize(dst.cpu().numpy(), later)])
    other = TemporalIndex.build(src, met, stream.elapsed, stream.n_nodes).to(task.device)
    records = {k: v for k, v in vars(other).items() if k.startswith("pair_") or k in ("max_pairs", "max_meetings")}
    return replace(task.whole, index=replace(task.whole.index, **records))


def _history(task: LinkTask, events: _Events) -> History:
    """Other events as a model may read them, nodes and seed as in the task."""
    index = TemporalIndex.build(events.src, events.dst, events.elapsed, task.stream.n_nodes).to(task.device)
    edge_x = None if events.edge_x is None else torch.tensor(events.edge_x, dtype=torch.float32, device=task.device)
    return replace(task.whole, index=index, edge_x=edge_x)


def _empty(task: LinkTask) -> History:
    """The task's history without a single event."""
    events = _Events.of(task)
    none = np.zeros(len(events.src), dtype=bool)
    index = TemporalIndex.build(events.src, events.dst, events.elapsed, task.stream.n_nodes, none)
    return replace(task.whole, index=index.to(task.device))


def _again(task: LinkTask, stream: EventStream) -> LinkTask:
    """The task made anew, perhaps from another stream."""
    return type(task).prepare(stream, task.protocol, seed=task.whole.seed, device=task.network_device)


def _renamed(stream: EventStream, names: np.ndarray) -> tuple[EventStream, np.ndarray]:
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


# -------------------- what is compared


class _Moved:
    """Counts scores that are not what they were."""

    def __init__(self, tolerance: float = 0.0) -> None:
        self.tolerance = tolerance
        self.compared = 0
        self.moved: dict[str, int] = {}
        self.largest = 0.0

    def add(self, change: str, got: np.ndarray, expected: np.ndarray) -> None:
        off = np.abs(got - expected)
        moved = int((off > self.tolerance * np.maximum(1.0, np.abs(expected))).sum())
        self.compared += got.size
        self.largest = max(self.largest, float(off.max(initial=0.0)))
        if moved:
            self.moved[change] = self.moved.get(change, 0) + moved

    @property
    def any(self) -> bool:
        return bool(self.moved)

    def __str__(self) -> str:
        if self.moved:
            kinds = ", ".join(f"{name} {n:,}" for name, n in self.moved.items())
            return (
                f"{sum(self.moved.values()):,} of {self.compared:,} scores move ({kinds}), by up to {self.largest:.2g}"
            )
        within = f"within {self.tolerance:g}" if self.tolerance else "identical"
        return f"{self.compared:,} scores {within}"


def _spread(n: int, most: int) -> np.ndarray:
    """At most so many of n places, evenly spread, ascending, the last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64)) if n else np.empty(0, np.int64)


def _read(model: LinkModel, history: History, queries: Queries) -> Any:
    with torch.inference_mode():
        return model.reader.pairs(history, queries)


def _misread(got: list[Tensor], whole: list[Tensor], rows: np.ndarray, n: int) -> bool:
    """Whether a reading of some rows is not those rows of the whole reading. A reading without rows tells nothing."""
    at = torch.from_numpy(rows)
    return any(
        len(a) == len(rows) and not torch.equal(a, b[at.to(b.device)])
        for a, b in zip(got, whole, strict=True)
        if b.ndim and a.ndim and len(b) == n
    )


# -------------------- data


def audit_data(stream: EventStream, protocol: Protocol) -> list[Check]:
    """What there is to know about a stream before a figure on it is believed. FAIL where none can be had."""
    checks = [_ties(stream), _duplicates(stream), _gaps(stream)]
    try:
        split = split_of(stream, replace(protocol, mask_nodes=0.0))
    except DataError as error:
        return [*checks, Check("split", "training, validation, test", FAIL, str(error)), _destinations(stream, None)]
    test = split.test
    sizes = f"{len(split.train):,}, {len(split.validation):,} and {len(test):,} events"
    few = len(test) < 100
    checks.append(
        Check("split", "training, validation, test", WARNING if few else OK, sizes + (": few" if few else ""))
    )
    checks += [_repetition(stream, split.validation[0], test), _newness(stream, split.new_node, test)]
    return [*checks, _destinations(stream, test)]


def _ties(stream: EventStream) -> Check:
    sizes = np.bincount(stream.tie_start)
    share, largest = sizes[sizes > 1].sum() / stream.n_events, int(sizes.max())
    told = f"{share:.1%} of the events share their time with another; at most {largest:,} share one"
    many = largest > 0.05 * stream.n_events and largest > 10
    if many:
        told += ": they do not see each other, so much of the past is missing from their queries"
    return Check("ties", "events at one time", WARNING if many else NOTE, told)


def _duplicates(stream: EventStream) -> Check:
    order = np.lexsort((stream.tie_start, stream.dst, stream.src))
    columns = [x[order] for x in (stream.src, stream.dst, stream.tie_start)]
    same = np.logical_and.reduce([x[1:] == x[:-1] for x in columns])
    if stream.edge_x is not None:
        at = np.flatnonzero(same)
        same[at] = (stream.edge_x[order[at]] == stream.edge_x[order[at + 1]]).all(axis=1)
    n, loops = int(same.sum()), int((stream.src == stream.dst).sum())
    many = n > 0.01 * stream.n_events
    told = f"{n:,} events repeat another in pair, time and features ({n / stream.n_events:.1%}); {loops:,} self-loops"
    return Check("duplicates", "events that are there twice", WARNING if many else NOTE, told)


def _gaps(stream: EventStream) -> Check:
    span = stream.elapsed[-1]
    if span == 0:
        return Check("gaps", "time between events", WARNING, "all events share one time")
    step = np.diff(stream.elapsed)
    at = int(step.argmax())
    share = step[at] / span
    when = stream.time.format_one(stream.t[at])
    told = f"the longest is {share:.1%} of the span, after {when} (event {at + 1:,} of {stream.n_events:,})"
    return Check("gaps", "time between events", WARNING if share > 0.1 else NOTE, told)


def _repetition(stream: EventStream, trained: int, test: np.ndarray) -> Check:
    low, high = np.minimum(stream.src, stream.dst), np.maximum(stream.src, stream.dst)
    order = np.lexsort((np.arange(stream.n_events), high, low))
    fresh = np.ones(stream.n_events, dtype=bool)
    fresh[1:] = (low[order][1:] != low[order][:-1]) | (high[order][1:] != high[order][:-1])
    first = np.empty(stream.n_events, dtype=np.int64)
    first[order] = order[np.maximum.accumulate(np.where(fresh, np.arange(stream.n_events), 0))]
    again, long_known = (first[test] < stream.tie_start[test]).mean(), (first[test] < trained).mean()
    told = f"{again:.1%} of the test events repeat an earlier pair, {long_known:.1%} one of the training period"
    if again > 0.8:
        told += ": remembering pairs is nearly enough, see the floors and --negatives historical"
    return Check("repetition", "test events and earlier pairs", WARNING if again > 0.8 else NOTE, told)


def _newness(stream: EventStream, new: np.ndarray, test: np.ndarray) -> Check:
    src, dst = new[stream.src[test]], new[stream.dst[test]]
    told = (
        f"{(src | dst).mean():.1%} of the test events touch a node that is not in the training period, "
        f"{(src & dst).mean():.1%} two; {new.sum():,} of {stream.n_nodes:,} nodes"
    )
    return Check("new nodes", "test events and nodes of the training", NOTE, told)


def _destinations(stream: EventStream, test: np.ndarray | None) -> Check:
    counts = np.bincount(stream.dst if test is None else stream.dst[test])
    n, most = len(np.unique(stream.dst)), counts.max() / counts.sum()
    told = f"{n:,} destinations; the most frequent has {most:.1%} of the test events"
    if n < 2:
        return Check("destinations", "what negatives are drawn from", FAIL, "one destination: nothing to tell it from")
    few = n < 20 or most > 0.5
    return Check(
        "destinations", "what negatives are drawn from", WARNING if few else NOTE, told + (": few" if few else "")
    )
