"""Checks of a model: does it see events that it must not see?

Each check changes something that must not matter and scores the same queries again. The limit of what a query may see
is computed from the times of the stream, not taken from the query. So the checks also find a task that shows too much,
not only a model that reads too much. Everything with the interface of a `LinkModel` can be audited.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.analysis.audit.checks import BY_DESIGN, FAIL, OK, Check
from cordgt.analysis.audit.perturbations import (
    EventArrays,
    build_history,
    empty_history,
    perturb_future,
    perturb_pair_records,
    rebuild_task,
    relabel_nodes,
)
from cordgt.events.arrays import evenly_spaced
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.models.base import GPU_SCORE_TOLERANCE, LinkModel, list_tensors
from cordgt.models.memory import MemoryModel
from cordgt.tasks.link import LinkTask
from cordgt.tasks.protocol import visible_cuts
from cordgt.tasks.scoring import score_queries

N_BATCHES = 8  # batches of the sample in checks that rebuild the index


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute products in float32 on every device, so that scores agree within the tolerance in any batch."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


@full_precision()
def audit_model(model: LinkModel, task: LinkTask, *, queries: int = 200) -> list[Check]:
    """Run every check on a sample of the task's test queries, with the trained weights in evaluation mode."""
    sample = AuditSample.draw(model, task, queries)
    checks = [
        check_visible_events(task, sample),
        check_future(model, task, sample),
        check_same_moment(model, task),
        check_batch_size(model, task, sample),
        check_candidate_order(model, task, sample),
        check_time_shift(model, task, sample),
        check_node_ids(model, task, sample),
        check_same_seed(model, task, sample),
        check_pair_records(task, sample),
        check_new_nodes(model, task),
    ]
    if isinstance(model, MemoryModel):
        checks.append(check_memory_blocks(model, task, sample))
    return checks


@dataclass(frozen=True)
class AuditSample:
    """Some test queries, evenly spread, in stream order."""

    rows: np.ndarray  # (B,) row of each among all test queries
    positions: np.ndarray  # (B,) position of its event in the stream
    queries: Queries
    scores: np.ndarray  # (B, M) logits, nothing changed

    @classmethod
    def draw(cls, model: LinkModel, task: LinkTask, n: int) -> AuditSample:
        positions, queries = task.evaluation_queries("test", "transductive")
        rows = evenly_spaced(len(positions), n)
        queries = queries.take(rows)
        return cls(rows, positions[rows], queries, score_queries(model, task.full_history, queries))

    def max_cuts(self, task: LinkTask) -> np.ndarray:
        """(B,) the most events each query may see: its own ``cut``, but none of its own time or later."""
        return np.minimum(self.queries.cut.cpu().numpy(), task.tie_ranges(self.positions)[0])


def _score_tolerance(model: LinkModel, task: LinkTask) -> float:
    return model.score_tolerance if task.network_device.type == "cpu" else GPU_SCORE_TOLERANCE


class ScoreChanges:
    """Counts scores that differ from the expected ones by more than ``tolerance * max(1, |score|)``."""

    def __init__(self, tolerance: float = 0.0, *, noun: str = "scores") -> None:
        self.tolerance, self.noun = tolerance, noun
        self.n_compared = 0
        self.n_changed: dict[str, int] = {}  # by name of the perturbation
        self.largest = 0.0

    def add(self, perturbation: str, scores: np.ndarray, expected: np.ndarray) -> None:
        error = np.abs(scores - expected)
        n_changed = int((error > self.tolerance * np.maximum(1.0, np.abs(expected))).sum())
        self.n_compared += scores.size
        self.largest = max(self.largest, float(error.max(initial=0.0)))
        if n_changed:
            self.n_changed[perturbation] = self.n_changed.get(perturbation, 0) + n_changed

    def to_check(self, name: str, compared: str, *, note: str = "", is_wrong: bool = False) -> Check:
        """Return a check that fails if a score changed or ``is_wrong``; ``note`` is added to its detail."""
        detail = f"{self}; {note}" if note else str(self)
        return Check(name, compared, FAIL if self.n_changed or is_wrong else OK, detail)

    def __str__(self) -> str:
        if not self.n_changed:
            return f"{self.n_compared:,} {self.noun} {f'within {self.tolerance:g}' if self.tolerance else 'identical'}"
        kinds = ", ".join(f"{name} {n:,}" for name, n in self.n_changed.items())
        total = f"{sum(self.n_changed.values()):,} of {self.n_compared:,} {self.noun} change"
        return f"{total} ({kinds}), by up to {self.largest:.2g}"


# -------------------- what a query may see


def check_visible_events(task: LinkTask, sample: AuditSample) -> Check:
    """Compare each query's cuts with the visibility rule, computed again from the times."""
    rule, size = task.protocol.visibility, task.protocol.eval_batch_size
    positions = task.evaluation_events("test", "transductive")[0]
    batch_start = positions[sample.rows // size * size]
    own_time = np.searchsorted(task.stream.t, task.stream.t[sample.positions], side="left")
    allowed = visible_cuts(rule, torch.from_numpy(own_time), torch.from_numpy(batch_start))
    is_wrong = np.zeros(len(batch_start), dtype=bool)
    for cut, expected in zip((sample.queries.cut, sample.queries.pair_cut), allowed, strict=True):
        is_wrong |= cut.cpu().numpy() != expected.numpy()
    detail = f"{is_wrong.sum()} of {len(is_wrong):,} queries see other events than visibility={rule} allows"
    return Check("visible events", f"visibility={rule}", FAIL if is_wrong.any() else OK, detail)


def check_future(model: LinkModel, task: LinkTask, sample: AuditSample) -> Check:
    """Change the events that a query may not see: its scores stay the same to the bit."""
    limit, changes = sample.max_cuts(task), ScoreChanges()
    rng = np.random.default_rng(0)
    for rows in np.array_split(np.argsort(limit, kind="stable"), min(N_BATCHES, len(limit))):
        queries = sample.queries.take(rows)
        expected = score_queries(model, task.full_history, queries)  # bits are compared in batches of the same shape
        for boundary in sorted({int(limit[rows[len(rows) // 2]]), int(limit[rows[-1]])}):
            is_unaffected = limit[rows] <= boundary
            for name, history in perturb_future(task, queries, boundary, rng):
                changes.add(name, score_queries(model, history, queries)[is_unaffected], expected[is_unaffected])
        pair_limit = np.minimum(limit, sample.queries.pair_cut.cpu().numpy())[rows]
        if (pair_limit < limit[rows]).any():  # visibility=paper: pair records end earlier than trees
            boundary = int(np.median(pair_limit))
            scores = score_queries(model, perturb_pair_records(task, queries, boundary), queries)
            changes.add("recorded", scores[pair_limit <= boundary], expected[pair_limit <= boundary])
    without_past = score_queries(model, empty_history(task), sample.queries)
    n_sensitive = (without_past != sample.scores).any(axis=1).sum()
    note = f"without any past, {n_sensitive:,} of {len(without_past):,} queries change"
    return changes.to_check("future", "later events changed, deleted, inserted", note=note)


def check_same_moment(model: LinkModel, task: LinkTask) -> Check:
    """Remove or double the events with the query's own time: its scores stay the same to the bit."""
    positions, queries = task.evaluation_queries("test", "transductive")
    start, end = task.tie_ranges(positions)
    tied = np.unique(start[end - start > 1])
    starts = tied if len(tied) else np.unique(start)
    events, changes, n_queries = EventArrays.from_stream(task.stream), ScoreChanges(), 0
    every = np.arange(task.stream.n_events)
    for first in starts[evenly_spaced(len(starts), N_BATCHES)]:
        rows = np.flatnonzero(start == first)[:50]
        tie = np.arange(first, end[rows[0]])
        some = queries.take(rows)
        expected = score_queries(model, task.full_history, some)
        for name, rows_left in (("removed", np.delete(every, tie)), ("doubled", np.insert(every, first, tie))):
            changes.add(name, score_queries(model, build_history(task, events.take(rows_left)), some), expected)
        n_queries += len(rows)
    note = f"{n_queries} queries at {min(len(starts), N_BATCHES)} times"
    if not len(tied):
        note += ", no two test events share a time"
    return changes.to_check("same moment", "events of the query's own time removed, doubled", note=note)


def check_pair_records(task: LinkTask, sample: AuditSample) -> Check:
    """Compare what the history says of nodes new to training with counts in the stream."""
    src, dst, t = task.stream.src, task.stream.dst, task.stream.elapsed
    is_new, last_position = task.split.new_node, sample.positions.max()
    new = np.flatnonzero(is_new[src] | is_new[dst])
    new = new[new < last_position]
    events = new if len(new) else np.arange(last_position)
    events = events[evenly_spaced(len(events), 200)]  # each gives a pair with at least one event
    cut = np.resize(sample.queries.pair_cut.cpu().numpy(), len(events))
    tensors = [torch.from_numpy(x).to(task.device) for x in (src[events], dst[events], cut)]
    count, last = (x.cpu().numpy() for x in task.full_history.index.pair_history(*tensors))
    degree = task.full_history.index.degree(tensors[0], tensors[2]).cpu().numpy()
    n_wrong_records = n_wrong_degrees = 0
    for i, (u, v, c) in enumerate(zip(src[events], dst[events], cut, strict=True)):
        u_src, u_dst, v_src, v_dst = src[:c] == u, dst[:c] == u, src[:c] == v, dst[:c] == v
        together = np.flatnonzero((u_src & v_dst) | (u_dst & v_src))
        n_wrong_records += bool(count[i] != len(together) or (len(together) and last[i] != t[together[-1]]))
        n_wrong_degrees += bool(degree[i] != (u_src | u_dst).sum())
    pairs = f"{len(events)} pairs of new nodes" if len(new) else f"{len(events)} pairs; no node is new"
    detail = f"{pairs}: {n_wrong_records} pair records and {n_wrong_degrees} degrees differ"
    result = FAIL if n_wrong_records or n_wrong_degrees else OK
    return Check("whole records", "history of new nodes and the stream", result, detail)


# -------------------- how the queries are batched


def check_batch_size(model: LinkModel, task: LinkTask, sample: AuditSample) -> Check:
    """Use other batches, in another order: queries, model inputs and scores stay the same."""
    is_different = np.zeros(len(sample.rows), dtype=bool)
    for size in (1, 7):
        other = replace(task, protocol=replace(task.protocol, eval_batch_size=size))
        queries = other.evaluation_queries("test", "transductive")[1].take(sample.rows)
        for name, value in vars(queries).items():
            differs = (value != getattr(sample.queries, name)).reshape(len(is_different), -1).any(dim=1)
            is_different |= differs.cpu().numpy()
    changes = ScoreChanges(_score_tolerance(model, task))
    inputs = _read_inputs(model, task.full_history, sample.queries)
    order = np.random.default_rng(0).permutation(len(sample.rows))
    n_misread = 0
    for size, rows in ((1, order[:50]), (7, order)):
        for i in range(0, len(rows), size):
            batch = rows[i : i + size]
            queries = sample.queries.take(batch)
            changes.add(f"batches of {size}", score_queries(model, task.full_history, queries), sample.scores[batch])
            n_misread += _is_misread(_read_inputs(model, task.full_history, queries), inputs, batch, len(order))
    name, what, rule = "batch size", "batches of 1 and 7, another order", task.protocol.visibility
    if changes.n_changed or n_misread:
        note = f"model inputs differ in {n_misread} batches" if n_misread else ""
        return changes.to_check(name, what, note=note, is_wrong=True)
    seen = f"{is_different.sum()} of {len(is_different):,} queries see other events"
    if rule != "event":
        detail = f"visibility={rule} shows the events before the batch: {seen}; given these, {changes}"
        return Check(name, what, BY_DESIGN, detail)
    return changes.to_check(name, what, note=seen if is_different.any() else "", is_wrong=bool(is_different.any()))


def _read_inputs(model: LinkModel, history: History, queries: Queries) -> list[Tensor]:
    with torch.inference_mode():
        return list_tensors(model.reader.read(history, queries))


def _is_misread(part: list[Tensor], whole: list[Tensor], rows: np.ndarray, n: int) -> bool:
    """Return whether the inputs of some rows differ from those rows of the whole inputs (n rows).

    Tensors without one row per query are ignored.
    """
    index = torch.from_numpy(rows)
    return any(
        len(a) == len(rows) and not torch.equal(a, b[index.to(b.device)])
        for a, b in zip(part, whole, strict=True)
        if b.ndim and a.ndim and len(b) == n
    )


def check_candidate_order(model: LinkModel, task: LinkTask, sample: AuditSample) -> Check:
    """Move the true destination, which is always first, and score each candidate alone: same scores."""
    changes = ScoreChanges(_score_tolerance(model, task))
    dst = sample.queries.dst
    backwards = score_queries(model, task.full_history, replace(sample.queries, dst=dst.flip(1)))
    changes.add("reversed", backwards[:, ::-1], sample.scores)
    for i in range(dst.shape[1]):
        alone = replace(sample.queries, dst=dst[:, i : i + 1])
        changes.add("alone", score_queries(model, task.full_history, alone)[:, 0], sample.scores[:, i])
    return changes.to_check("candidate order", "candidates reversed, and alone")


def check_memory_blocks(model: MemoryModel, task: LinkTask, sample: AuditSample) -> Check:
    """Show how scores depend on the number of events that memory reads at once, a setting of the model."""
    half = max(1, model.block // 2)
    changes = ScoreChanges(_score_tolerance(model, task))
    changes.add(
        f"blocks of {half}", score_queries(model.in_blocks(half), task.full_history, sample.queries), sample.scores
    )
    detail = f"{changes}; the training batch_size matters, the evaluation batch size only rounds differently"
    return Check("memory blocks", f"blocks of {half} events, not {model.block}", BY_DESIGN, detail)


# -------------------- how the task is built


def check_time_shift(model: LinkModel, task: LinkTask, sample: AuditSample) -> Check:
    """Shift all times by a constant: queries and scores stay the same to the bit.

    Floating-point times are shifted by about their own size. They are first rounded to a grid on which the shift is
    exact and that still separates them.
    """
    t: np.ndarray = task.stream.t
    shift: float = 2**20 if t[-1] < 2**62 else -(2**20)
    if t.dtype.kind == "f":
        shift = 2.0 ** min(max(np.frexp(np.abs(t).max())[1], -900), 1000)
        grid = 2.0 ** (np.frexp(np.abs(t).max() + shift)[1] - 51)
        t = np.round(t / grid) * grid
    # positions and ids stay; split, index, queries and scores are computed again
    a, b = (rebuild_task(task, replace(task.stream, t=times, backing=None)) for times in (t, t + shift))
    changes, is_different = ScoreChanges(), len(a.split.test) != len(b.split.test)
    if not is_different:
        rows = sample.rows[sample.rows < len(a.split.test)]
        queries_a, queries_b = (x.evaluation_queries("test", "transductive")[1].take(rows) for x in (a, b))
        is_different = _queries_differ(queries_a, queries_b)
        changes.add(
            "shifted", score_queries(model, b.full_history, queries_b), score_queries(model, a.full_history, queries_a)
        )
    note = "the queries themselves differ" if is_different else ""
    return changes.to_check("time shift", f"all times {shift:+,.10g}", note=note, is_wrong=is_different)


def check_node_ids(model: LinkModel, task: LinkTask, sample: AuditSample) -> Check:
    """Give the nodes other ids: the same pairs get the same scores."""
    changes = ScoreChanges()
    shuffled = np.random.default_rng(0).permutation(task.stream.n_nodes)
    for kind, labels in (("numbers", shuffled), ("words", np.char.add("node ", shuffled.astype(str)))):
        stream, number = relabel_nodes(task.stream, labels)
        new_id = torch.from_numpy(number).to(task.device)
        queries = replace(sample.queries, src=new_id[sample.queries.src], dst=new_id[sample.queries.dst])
        changes.add(kind, score_queries(model, rebuild_task(task, stream).full_history, queries), sample.scores)
    return changes.to_check("other names", "the same pairs with other node ids")


def check_same_seed(model: LinkModel, task: LinkTask, sample: AuditSample) -> Check:
    """Build the task again with the same seed: same queries, same scores."""
    again = rebuild_task(task, task.stream)
    queries = again.evaluation_queries("test", "transductive")[1].take(sample.rows)
    is_different = _queries_differ(sample.queries, queries)
    changes = ScoreChanges()
    changes.add("again", score_queries(model, again.full_history, queries), sample.scores)
    note = "negatives or cuts differ" if is_different else ""
    return changes.to_check(
        "same seed", f"task rebuilt with seed {task.full_history.seed}", note=note, is_wrong=is_different
    )


def _queries_differ(a: Queries, b: Queries) -> bool:
    return any(bool((value != getattr(b, name)).any()) for name, value in vars(a).items())


# -------------------- nodes new to training


def check_new_nodes(model: LinkModel, task: LinkTask) -> Check:
    """Give the same short history to nodes that training saw and to new ones: same scores.

    Two nodes have one event, and nothing else happens. So random draws cannot differ, and only the identity of the
    nodes can change a score. It does if pair records come from training or hide masked nodes.
    """
    name, what = "new like known", "the same history for new and for known nodes"
    if model.is_transductive or model.uses_node_ids:
        detail = "the model learns a table per node id, which holds nothing about new nodes"
        return Check(name, what, BY_DESIGN, detail)
    cut = int(task.split.test[0])
    known, new = _known_and_new_pairs(task, cut)
    if not len(new) or not len(known):
        return Check(name, what, OK, "no new node has a history that could be hidden")
    changes = ScoreChanges()
    scores = [_score_isolated_pair(model, task, u, v, cut) for u, v in np.concatenate([known, new])]
    for i, score in enumerate(scores):
        changes.add("known" if i < len(known) else "new", score, scores[0])
    return changes.to_check(name, what, note=f"{len(known)} known and {len(new)} new pairs")


def _score_isolated_pair(model: LinkModel, task: LinkTask, u: int, v: int, cut: int) -> np.ndarray:
    """Scores (2, 2) of u and v, each with the other and with a third node, if their only event is at ``cut - 1``."""
    stream = task.stream
    src, dst, elapsed = stream.src.copy(), stream.dst.copy(), np.ones(stream.n_events)
    src[cut - 1], dst[cut - 1], elapsed[cut:] = u, v, 1.1  # positions as in the stream; one event is visible
    index = TemporalIndex.build(src, dst, elapsed, stream.n_nodes, np.arange(stream.n_events) == cut - 1)
    zero_features: dict[str, Any] = {
        k: None if x is None else torch.zeros_like(x) for k, x in vars(task.full_history).items() if k.endswith("_x")
    }
    third = next(w for w in range(stream.n_nodes) if w not in (u, v)) if stream.n_nodes > 2 else u
    both_cuts = torch.tensor([cut, cut], device=task.device)
    queries = Queries(
        src=torch.tensor([u, v], device=task.device),
        dst=torch.tensor([[v, third], [u, third]], device=task.device),
        t=torch.full((2,), 1.1, dtype=torch.float64, device=task.device),
        cut=both_cuts,
        pair_cut=both_cuts,
    )
    return score_queries(model, replace(task.full_history, index=index.to(task.device), **zero_features), queries)


def _known_and_new_pairs(task: LinkTask, cut: int, max_pairs: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Pairs with an event before ``cut``: (P, 2) of nodes that training saw, (Q, 2) with a node that it did not."""
    pairs = np.unique(np.stack([task.stream.src[:cut], task.stream.dst[:cut]], axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    is_new = task.split.new_node[pairs].any(axis=1)
    known, new = pairs[~is_new], pairs[is_new]
    return known[evenly_spaced(len(known), max_pairs)], new[evenly_spaced(len(new), max_pairs)]
