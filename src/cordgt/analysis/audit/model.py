"""Does a model see what it must not?

Every check of a model changes something that must not matter and asks the same queries again. The boundary is taken
from the stream's times, never from the queries alone, so that a task that shows too much is found like a reader that
takes too much. Whatever answers like a `LinkModel` can be audited.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.analysis.audit.checks import DESIGN, FAIL, OK, Check
from cordgt.analysis.audit.perturbations import (
    Events,
    history_from,
    made_anew,
    other_futures,
    other_records,
    renamed,
    without_events,
)
from cordgt.events.arrays import evenly
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel, list_tensors
from cordgt.models.memory import MemoryModel
from cordgt.tasks.link import LinkTask, score_queries
from cordgt.tasks.protocol import cuts

BATCHES = 8  # of the sample, for what rebuilds the index
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}  # of scores in batches of other shapes, which add up in another order


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
        place = evenly(len(positions), n)
        return cls(place, positions[place], queries.take(place))

    def limits(self, task: LinkTask) -> np.ndarray:
        """(B,) how many events each query may see at most: those it says it sees, none of its own time or later."""
        return np.minimum(self.queries.cut.cpu().numpy(), task.own_time(self.position)[0])


def visible_events(task: LinkTask, sample: Sample) -> Check:
    """What each query says it sees is what the rule allows, worked out anew from the times."""
    rule, size = task.protocol.visibility, task.protocol.eval_batch_size
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
            for change, history in other_futures(task, asked, boundary, rng):
                moved.add(change, score_queries(model, history, asked)[held], expected[held])
        records = np.minimum(limit, sample.queries.pair_cut.cpu().numpy())[rows]
        if (records < limit[rows]).any():  # rule paper: records stop earlier than trees
            boundary = int(np.median(records))
            got = score_queries(model, other_records(task, asked, boundary), asked)
            moved.add("recorded", got[records <= boundary], expected[records <= boundary])
    without = score_queries(model, without_events(task), sample.queries)
    seen = (without != score_queries(model, task.whole, sample.queries)).any(axis=1).sum()
    told = f"{moved}; with the past deleted instead, {seen:,} of {len(without):,} queries move"
    return Check("future", "later events changed, deleted, inserted", FAIL if moved.any else OK, told)


def same_moment(model: LinkModel, task: LinkTask) -> Check:
    """Events with the query's own time might as well not be there, or be there twice."""
    positions, queries = task.evaluation_queries("test", "transductive")
    start, end = task.own_time(positions)
    shared = np.unique(start[end - start > 1])
    moments = shared if len(shared) else np.unique(start)
    events, moved, asked_in_all = Events.of(task), _Moved(), 0
    for first in moments[evenly(len(moments), BATCHES)]:
        rows = np.flatnonzero(start == first)[:50]
        tie = np.arange(first, end[rows[0]])
        everything = np.arange(task.stream.n_events)
        asked = queries.take(rows)
        expected = score_queries(model, task.whole, asked)
        removed, doubled = np.delete(everything, tie), np.insert(everything, first, tie)
        moved.add("removed", score_queries(model, history_from(task, events.take(removed)), asked), expected)
        moved.add("doubled", score_queries(model, history_from(task, events.take(doubled)), asked), expected)
        asked_in_all += len(rows)
    tied = f"{asked_in_all} queries at {min(len(moments), BATCHES)} times"
    told = f"{moved}; {tied}{'' if len(shared) else ', no two events of the test share one'}"
    return Check("same moment", "events of the query's own time removed, doubled", FAIL if moved.any else OK, told)


def batch_size(model: LinkModel, task: LinkTask, sample: Sample) -> Check:
    """Other batches, in another order: the same queries, readings and scores."""
    what = "batches of 1 and 7, another order"
    differing = np.zeros(len(sample.place), dtype=bool)
    for size in (1, 7):
        other = replace(task, protocol=replace(task.protocol, eval_batch_size=size))
        again = other.evaluation_queries("test", "transductive")[1].take(sample.place)
        for name, value in vars(again).items():
            differing |= (value != getattr(sample.queries, name)).reshape(len(differing), -1).any(dim=1).cpu().numpy()
    moved = _Moved(TOLERANCE[task.network_device.type])
    expected = score_queries(model, task.whole, sample.queries)
    whole = list_tensors(_read(model, task.whole, sample.queries))
    order = np.random.default_rng(0).permutation(len(expected))
    misread = 0
    for name, rows, size in (("1", order[:50], 1), ("7", order, 7)):
        for i in range(0, len(rows), size):
            part = rows[i : i + size]
            asked = sample.queries.take(part)
            moved.add(f"batches of {name}", score_queries(model, task.whole, asked), expected[part])
            misread += _misread(list_tensors(_read(model, task.whole, asked)), whole, part, len(expected))
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
    moved = _Moved(TOLERANCE[task.network_device.type])
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
    moved = _Moved(TOLERANCE[task.network_device.type])
    expected = score_queries(model, task.whole, sample.queries)
    moved.add(f"blocks of {half}", score_queries(model.in_blocks(half), task.whole, sample.queries), expected)
    told = f"{moved}; batches of evaluation do not matter, those of training (batch_size) do"
    return Check("memory blocks", f"blocks of {half} events, not {model.block}", DESIGN, told)


def time_shift(model: LinkModel, task: LinkTask, sample: Sample) -> Check:
    """All times later or earlier by the same: nothing moves, not by a bit.

    Times that are not whole move by about as much as they are large, and are first put on a grid on which that rounds
    nothing: one that keeps them apart.
    """
    t: np.ndarray = task.stream.t
    by: float = 2**20 if t[-1] < 2**62 else -(2**20)
    if t.dtype.kind == "f":
        by = 2.0 ** min(max(np.frexp(np.abs(t).max())[1], -900), 1000)
        grid = 2.0 ** (np.frexp(np.abs(t).max() + by)[1] - 51)
        t = np.round(t / grid) * grid
    # positions and ids stay as they are; the split, the index, the queries and the scores are made anew
    here, there = (made_anew(task, replace(task.stream, t=times, backing=None)) for times in (t, t + by))
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
    return Check("time shift", f"all times {by:+,.10g}", FAIL if moved.any or asked else OK, told)


def other_names(model: LinkModel, task: LinkTask, sample: Sample) -> Check:
    """Other ids for the same nodes: the same pairs get the same scores."""
    moved = _Moved()
    expected = score_queries(model, task.whole, sample.queries)
    shuffled = np.random.default_rng(0).permutation(task.stream.n_nodes)
    for kind, names in (("numbers", shuffled), ("words", np.char.add("node ", shuffled.astype(str)))):
        stream, number = renamed(task.stream, names)
        ends = {
            name: torch.from_numpy(number).to(task.device)[getattr(sample.queries, name)] for name in ("src", "dst")
        }
        again = made_anew(task, stream)
        moved.add(kind, score_queries(model, again.whole, replace(sample.queries, **ends)), expected)
    return Check("other names", "the same pairs under other ids", FAIL if moved.any else OK, str(moved))


def same_seed(model: LinkModel, task: LinkTask, sample: Sample) -> Check:
    """Everything made anew with the same seed: the same queries, the same scores."""
    again = made_anew(task, task.stream)
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
    events = events[evenly(len(events), 200)]  # each gives a pair that has met
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
    if model.is_transductive or model.uses_node_ids:
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
    return known[evenly(len(known), most)], new[evenly(len(new), most)]


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
