"""The stages: what is measured under each name. A stage gives rows, and figures under the names that JSON has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.errors import SettingError
from cordgt.experiments.bench.rows import Row
from cordgt.experiments.bench.setup import Place
from cordgt.experiments.bench.step_parts import ForwardParts, less, queries_of, step_parts, trees_of
from cordgt.experiments.bench.timing import timed
from cordgt.history.context import TreeShape, sample_trees
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import Queries
from cordgt.runtime import kernel_loader as kernels
from cordgt.runtime.profiling import batch_that_fits, counts_of, free_memory, peak_bytes, peak_of
from cordgt.tasks.link import score_queries
from cordgt.training.oom import events_at_once, peak_at_once
from cordgt.training.step import CapturedStep, Step

NEIGHBOURS = 20  # of the sampling figure that can be compared: one hop of so many


@dataclass(frozen=True)
class Measured:
    """What a stage found."""

    rows: list[Row]
    figures: dict[str, Any]


def index(place: Place) -> Measured:
    """Building the index of all events, from columns to both sorted views; on the host, wherever it goes then."""
    stream = place.stream
    host = torch.device("cpu")

    def build() -> TemporalIndex:
        return TemporalIndex.build(stream.src, stream.dst, stream.elapsed, stream.n_nodes)

    n_bytes = build().size
    timing = timed(build, host, place.repeat)
    row = Row(stage="index", timing=timing, bytes=n_bytes, items=stream.n_events, unit="events", peak=n_bytes)
    return Measured([row], {"index_seconds": timing.median, "index_mb": n_bytes / 2**20})


def sample(place: Place) -> Measured:
    """Sampling trees: one hop of 20, which can be compared, and the model's own."""
    shapes = [TreeShape((NEIGHBOURS,))] + ([place.trees] if place.trees is not None else [])
    root, cut = _roots(place, 1_000 if place.quick else 1 << 20 if place.device.type == "cuda" else 20_000)
    rows = [_sample_row(place, shape, root, cut) for shape in shapes]
    return Measured(rows, {"sample_roots_per_second": rows[0].rate})


def _sample_row(place: Place, shape: TreeShape, root: Tensor, cut: Tensor) -> Row:
    tree_index, seed = place.task.whole.index, place.settings.seed

    def draw() -> Any:
        return sample_trees(tree_index, shape, root, cut, seed=seed)

    # Each slot is an entry read (neighbour, position, its degree: 4 bytes each) and two numbers of 8 bytes written.
    n_bytes = len(root) * shape.size * (3 * tree_index.nbr.element_size() + 16)
    return Row(
        stage="sample",
        part=",".join(map(str, shape.fanout)),
        timing=timed(draw, place.device, place.repeat),
        bytes=n_bytes,
        items=len(root),
        unit="roots",
        peak=len(root) * shape.size * 16,
    )


def _roots(place: Place, n: int) -> tuple[Tensor, Tensor]:
    """Sources of events anywhere in the stream, each with what it sees; the same ones every time."""
    at = np.sort(np.random.default_rng(0).integers(place.stream.n_events, size=n))
    root, cut = place.stream.src[at], place.stream.tie_start[at]
    return torch.from_numpy(root).to(place.device), torch.from_numpy(cut).to(place.device)


def pairs(place: Place) -> Measured:
    """Pair histories: how often and when last two nodes met, for pairs that meet and as many that may not."""
    stream, n = place.stream, 2_000 if place.quick else 1 << 20 if place.device.type == "cuda" else 100_000
    at = np.random.default_rng(1).integers(stream.n_events, size=(2, n))
    node, other = stream.src[at[0]], np.where(np.arange(n) % 2, stream.dst[at[0]], stream.dst[at[1]])
    asked = [torch.from_numpy(x).to(place.device) for x in (node, other, stream.tie_start[at[0]])]
    timing = timed(lambda: place.task.whole.index.pair_history(*asked), place.device, place.repeat)
    row = Row(stage="pairs", timing=timing, bytes=n * 40, items=n, unit="pairs", peak=n * 16)
    return Measured([row], {"pairs_per_second": row.rate})


def distances(place: Place) -> Measured:
    """What the reader reads for a batch: trees, and the rest, which is distances for a model with trees."""
    queries = queries_of(place)
    history = replace(place.task.training, epoch=1)
    read = timed(lambda: place.model.reader.pairs(history, queries), place.device, place.repeat)
    n = queries.dst.numel()
    whole = Row(
        stage="distances",
        part="read",
        timing=read,
        share=1.0,
        items=n,
        unit="pairs",
        peak=peak_bytes(lambda: place.model.reader.pairs(history, queries), place.device),
    )
    trees = trees_of(place, queries)
    if trees is None:
        return Measured([whole], {"read_ms": 1e3 * read.median})
    parts = [
        Row(stage="distances", part="· trees", timing=trees, share=trees.median / read.median),
        Row(stage="distances", part="· distances", timing=less(read, trees), share=1 - trees.median / read.median),
    ]
    return Measured([whole, *parts], {"read_ms": 1e3 * read.median, "trees_ms": 1e3 * trees.median})


def encode(place: Place) -> Measured:
    """Tokens: the encodings of the distances, projected to the model's width. Forward only."""
    return _forward_part(place, "encode", "tokens")


def attention(place: Place) -> Measured:
    """The layers, attention and feed-forward. Forward only."""
    return _forward_part(place, "attention", "layers")


def _forward_part(place: Place, stage: str, part: str) -> Measured:
    found = ForwardParts.of(place)
    if found is None:
        raise SettingError(f"{place.settings.model} has no layers to tell apart: --model cordgt has.")
    timing, whole = found.timings[part], found.whole
    row = Row(stage=stage, part=part, timing=timing, share=timing.median / whole.median, flops=found.flops[part])
    return Measured([row], {f"{stage}_ms": 1e3 * timing.median})


def step(place: Place) -> Measured:
    """A whole training step, its parts taken one after the other, and what batches of other sizes hold."""
    whole = whole_step(place)
    parts = step_parts(place, whole.rows[-1].timing)
    return Measured(whole.rows + parts, whole.figures | {"memory": memory(place)})


def whole_step(place: Place) -> Measured:
    """A training step as it is. On a GPU captured, as training runs it unless a state goes along, and not captured."""
    place.model.train()
    run, n = place.step(), place.settings.training.batch_size
    run(*place.batch())  # brings a memory to the middle of the stream
    with kernels.plainly():  # operations are counted where they are torch's
        counted = counts_of(lambda: run(*place.batch()))
    eager = timed(lambda: run(*place.batch()), place.device, place.repeat)
    peak = peak_of_step(place, run, n)
    best, rows = eager, []
    common: dict[str, Any] = {"flops": counted.flops, "bytes": counted.moved_bytes, "peak": peak}
    common |= {"items": n, "unit": "events"}
    if place.device.type == "cuda" and not place.model.is_stateful:
        captured = CapturedStep(run, n)
        best = timed(lambda: captured(*place.batch()), place.device, place.repeat)
        rows.append(Row(stage="step", part="captured", timing=best, share=1.0, **common))
    rows.append(Row(stage="step", part="eager" if rows else "whole", timing=eager, share=1.0, **common))
    figures = {
        "step_ms": 1e3 * best.median,
        "eager_step_ms": 1e3 * eager.median,
        "step_gflop": counted.flops / 1e9,
        "step_gbytes": counted.moved_bytes / 1e9,
        "step_ops": counted.ops,
        "step_peak_mb": peak / 2**20,
    }
    return Measured(rows, figures)


def peak_of_step(place: Place, run: Step, n: int) -> int:
    """The most bytes that a step of ``n`` events holds at once: where it works off parts, those that are at work."""
    at_once = events_at_once(place.settings, place.model, place.device)
    if at_once is not None:
        piece = -(-n // max(1, place.settings.training.micro_batches))
        return peak_at_once(place.settings, place.task, place.model, min(piece, at_once))
    return peak_bytes(lambda: run(*place.batch(n)), place.device)


def memory(place: Place) -> dict[str, Any]:
    """What a step of some batch sizes takes at its peak, and which size would fill what is free now.

    The peak grows with the batch, up to what is worked off at once where a step works off parts: ``at_once_mb`` is its
    peak, and any batch fits where that does.
    """
    run, size = place.step(), place.settings.training.batch_size
    at_once = events_at_once(place.settings, place.model, place.device)
    most = size if at_once is None else min(size, at_once)
    sizes = sorted({max(1, most // 4), max(2, most // 2), most})
    if at_once is None:
        on_line = {n: peak_of_step(place, run, n) for n in sizes}
    else:
        on_line = {n: peak_at_once(place.settings, place.task, place.model, n) for n in sizes}
    tried = on_line | {size: peak_of_step(place, run, size)}
    free = free_memory(place.device)
    fits = None if free is None else batch_that_fits(on_line, free)
    any_fits = at_once is not None and fits is not None and fits >= at_once
    return {
        "peak_mb": {str(n): n_bytes / 2**20 for n, n_bytes in tried.items()},
        "free_mb": None if free is None else free / 2**20,
        "at_once": at_once,
        "at_once_mb": None if at_once is None else peak_of(on_line, at_once) / 2**20,
        "batch_that_fits": None if any_fits else fits,
        "any_batch_fits": any_fits,
    }


def evaluate(place: Place) -> Measured:
    """Scoring a split: each true destination against a random one."""
    n = 50 if place.quick else 20_000 if place.device.type == "cuda" else 1_000
    asked = place.task.evaluation_queries("validation", "transductive")[1]
    queries = asked.take(slice(n))
    row = _scored(place, "evaluate", queries, len(queries.src), "events")
    total = len(asked.src) / (row.rate or np.inf)
    return Measured([row], {"evaluate_events_per_second": row.rate, "validation_seconds": total})


def recommend(place: Place) -> Measured:
    """One source against many destinations at the end of the stream: its tree is read once a chunk."""
    most = 50 if place.quick else 5_000 if place.device.type == "cuda" else 500
    everyone = np.unique(place.stream.dst)
    dst = torch.from_numpy(everyone[:most]).to(place.device)
    source = torch.from_numpy(place.stream.src[-1:]).to(place.device)
    cut = torch.full((1,), place.stream.n_events, dtype=torch.int64, device=place.device)
    t = torch.full((1,), float(place.stream.elapsed[-1]), dtype=torch.float64, device=place.device)
    row = _scored(place, "recommend", Queries(source, dst[None], t, cut, cut), len(dst), "pairs")
    seconds = len(everyone) / (row.rate or np.inf)
    return Measured([row], {"recommend_partners_per_second": row.rate, "recommend_all_seconds": seconds})


def _scored(place: Place, stage: str, queries: Queries, items: int, unit: str) -> Row:
    def score() -> Any:
        return score_queries(place.model, place.task.whole, queries)

    counted = counts_of(score)
    peak = peak_bytes(score, place.device)
    timing = timed(score, place.device, place.repeat)
    moved = counted.moved_bytes
    return Row(stage=stage, timing=timing, flops=counted.flops, bytes=moved, items=items, unit=unit, peak=peak)


STAGES: dict[str, Callable[[Place], Measured]] = {
    "index": index,
    "sample": sample,
    "pairs": pairs,
    "distances": distances,
    "encode": encode,
    "attention": attention,
    "step": step,
    "evaluate": evaluate,
    "recommend": recommend,
}
