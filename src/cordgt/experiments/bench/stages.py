"""The stages of `cordgt bench`. A stage returns the rows of its table, and its measurements under their JSON names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.errors import SettingError
from cordgt.experiments.bench.rows import BenchRow
from cordgt.experiments.bench.setup import BenchSetup
from cordgt.experiments.bench.step_parts import ForwardParts, measure_step_parts, time_tree_sampling
from cordgt.experiments.bench.timing import time_calls, time_in_turns
from cordgt.history.context import TreeShape, sample_trees
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import Queries
from cordgt.inference.forecasts import Forecasts
from cordgt.inference.predictor import Predictor
from cordgt.inference.run_recommendations import Recommender
from cordgt.models.activity import RateModel
from cordgt.models.activity_fit import fit_rate
from cordgt.runtime import kernel_loader as kernels
from cordgt.runtime.profiling import count_ops, free_memory, max_batch_size, predict_peak_bytes
from cordgt.tasks.forecast import ACT_ROLES, Forecaster
from cordgt.tasks.scoring import score_queries
from cordgt.training.oom import max_events_in_memory, peak_step_memory
from cordgt.training.step import CudaGraphStep, Step, prepare_capture

SAMPLE_FANOUT = 20  # one hop of the sampling benchmark, the same for all models


@dataclass(frozen=True)
class StageResult:
    """What a stage measured."""

    rows: list[BenchRow]
    metrics: dict[str, Any]


def measure_index(bench: BenchSetup) -> StageResult:
    """Measure building the index of all events, from columns to both sorted views. Always on the host."""
    stream = bench.stream

    def build() -> TemporalIndex:
        return TemporalIndex.build(stream.src, stream.dst, stream.elapsed, stream.n_nodes)

    n_bytes = build().nbytes
    timing = time_calls(build, torch.device("cpu"), bench.repeat)
    row = BenchRow(
        stage="index", timing=timing, n_bytes=n_bytes, items=stream.n_events, unit="events", peak_bytes=n_bytes
    )
    return StageResult([row], {"index_seconds": timing.median, "index_mb": n_bytes / 2**20})


def measure_sample(bench: BenchSetup) -> StageResult:
    """Measure sampling trees: one hop of 20, to compare models, and the model's own."""
    n = bench.n_items(quick=1_000, cpu=20_000, cuda=1 << 20)
    at = np.sort(np.random.default_rng(0).integers(bench.stream.n_events, size=n))
    root, cut = _to_device(bench, bench.stream.src[at], bench.stream.tie_start[at])
    shapes = [TreeShape((SAMPLE_FANOUT,))] + ([] if bench.tree_shape is None else [bench.tree_shape])
    rows = [_sample_row(bench, shape, root, cut) for shape in shapes]
    return StageResult(rows, {"sample_roots_per_second": rows[0].rate})


def _sample_row(bench: BenchSetup, shape: TreeShape, root: Tensor, cut: Tensor) -> BenchRow:
    index = bench.task.full_history.index
    n_slots = len(root) * shape.n_slots
    return BenchRow(
        stage="sample",
        part=",".join(map(str, shape.fanout)),
        timing=bench.time(lambda: sample_trees(index, shape, root, cut, seed=bench.settings.seed)),
        # a slot reads an entry (neighbor, position, degree: 4 bytes each) and writes two numbers of 8 bytes
        n_bytes=n_slots * (3 * index.nbr.element_size() + 16),
        items=len(root),
        unit="roots",
        peak_bytes=n_slots * 16,
    )


def _to_device(bench: BenchSetup, *arrays: np.ndarray) -> list[Tensor]:
    return [torch.from_numpy(x).to(bench.device) for x in arrays]


def measure_pairs(bench: BenchSetup) -> StageResult:
    """Measure looking up pair histories: half of the pairs have events, half are random."""
    stream, n = bench.stream, bench.n_items(quick=2_000, cpu=100_000, cuda=1 << 20)
    at = np.random.default_rng(1).integers(stream.n_events, size=(2, n))
    dst = np.where(np.arange(n) % 2, stream.dst[at[0]], stream.dst[at[1]])
    pairs = _to_device(bench, stream.src[at[0]], dst, stream.tie_start[at[0]])
    timing = bench.time(lambda: bench.task.full_history.index.pair_history(*pairs))
    row = BenchRow(stage="pairs", timing=timing, n_bytes=n * 40, items=n, unit="pairs", peak_bytes=n * 16)
    return StageResult([row], {"pairs_per_second": row.rate})


def measure_distances(bench: BenchSetup) -> StageResult:
    """Measure the reader on a batch: sampling trees, and the rest, which is distances for a model with trees."""
    queries = bench.next_queries()
    read = bench.time(lambda: bench.read(queries))
    row = partial(BenchRow, stage="distances")
    peak_bytes = bench.peak_bytes(lambda: bench.read(queries))
    rows = [row(part="read", timing=read, share=1.0, items=queries.dst.numel(), unit="pairs", peak_bytes=peak_bytes)]
    metrics = {"read_ms": 1e3 * read.median}
    trees = time_tree_sampling(bench, queries)
    if trees is not None:
        share = trees.median / read.median
        rows += [row(part="· trees", timing=trees, share=share)]
        rows += [row(part="· distances", timing=read - trees, share=1 - share)]
        metrics["trees_ms"] = 1e3 * trees.median
    return StageResult(rows, metrics)


def _measure_forward_part(bench: BenchSetup, *, stage: str, part: str) -> StageResult:
    forward = ForwardParts.measure(bench)
    if forward is None:
        raise SettingError(f"{bench.settings.model} has no list of layers to measure. Use --model cordgt.")
    timing = forward.timings[part]
    share = timing.median / forward.total.median
    row = BenchRow(stage=stage, part=part, timing=timing, share=share, flops=forward.flops[part])
    return StageResult([row], {f"{stage}_ms": 1e3 * timing.median})


def measure_step(bench: BenchSetup) -> StageResult:
    """Measure a whole training step, its parts, and the peak memory of several batch sizes."""
    whole = measure_full_step(bench)
    parts = measure_step_parts(bench, whole.rows[-1].timing)
    return StageResult(whole.rows + parts, whole.metrics | {"memory": measure_memory(bench)})


def measure_full_step(bench: BenchSetup) -> StageResult:
    """Measure a training step. On a GPU with a CUDA graph, if one can capture it, and without."""
    bench.model.train()
    step, n = bench.make_step(), bench.settings.training.batch_size
    step(*bench.next_batch())  # brings a memory to the middle of the stream
    with kernels.plain_torch():  # the counter sees torch's operations only
        counts = count_ops(lambda: step(*bench.next_batch()))
    best = eager = bench.time(lambda: step(*bench.next_batch()))
    peak_bytes = step_peak_bytes(bench, step, n)
    row = partial(
        BenchRow,
        stage="step",
        share=1.0,
        flops=counts.flops,
        n_bytes=counts.moved_bytes,
        items=n,
        unit="events",
        peak_bytes=peak_bytes,
    )
    rows = [row(part="whole", timing=eager)]
    if bench.is_cuda and prepare_capture(bench.task, bench.model, n):
        captured = CudaGraphStep(step, n)
        best = bench.time(lambda: captured(*bench.next_batch()))
        rows = [row(part="captured", timing=best), row(part="eager", timing=eager)]
    metrics = {
        "step_ms": 1e3 * best.median,
        "eager_step_ms": 1e3 * eager.median,
        "step_gflop": counts.flops / 1e9,
        "step_gbytes": counts.moved_bytes / 1e9,
        "step_ops": counts.ops,
        "step_peak_mb": peak_bytes / 2**20,
    }
    return StageResult(rows, metrics)


def step_peak_bytes(bench: BenchSetup, step: Step, n: int) -> int:
    """Return the peak memory of a step of ``n`` events; of the chunks processed at once if it is split."""
    at_once = max_events_in_memory(bench.settings, bench.model, bench.device)
    if at_once is None:
        return bench.peak_bytes(lambda: step(*bench.next_batch(n)))
    micro_batch = -(-n // max(1, bench.settings.training.micro_batches))
    return peak_step_memory(bench.settings, bench.task, bench.model, min(micro_batch, at_once))


def measure_memory(bench: BenchSetup) -> dict[str, Any]:
    """Measure the peak memory of several batch sizes, and estimate the size that fills the free memory.

    The peak grows linearly with the batch, up to ``at_once`` events if a step is split into chunks: then
    ``at_once_mb`` is the largest peak, and if that fits, any batch does.
    """
    step, size = bench.make_step(), bench.settings.training.batch_size
    at_once = max_events_in_memory(bench.settings, bench.model, bench.device)
    largest = size if at_once is None else min(size, at_once)
    peaks = {}
    for n in sorted({max(1, largest // 4), max(2, largest // 2), largest}):
        if at_once is None:
            peaks[n] = step_peak_bytes(bench, step, n)
        else:
            peaks[n] = peak_step_memory(bench.settings, bench.task, bench.model, n)
    free = free_memory(bench.device)
    fits = None if free is None else max_batch_size(peaks, free)
    any_fits = at_once is not None and fits is not None and fits >= at_once
    all_peaks = peaks | {size: step_peak_bytes(bench, step, size)}
    return {
        "peak_mb": {str(n): n_bytes / 2**20 for n, n_bytes in all_peaks.items()},
        "free_mb": None if free is None else free / 2**20,
        "at_once": at_once,
        "at_once_mb": None if at_once is None else predict_peak_bytes(peaks, at_once) / 2**20,
        "batch_that_fits": None if any_fits else fits,
        "any_batch_fits": any_fits,
    }


def measure_evaluate(bench: BenchSetup) -> StageResult:
    """Measure scoring a split: each true destination against a random one."""
    queries = bench.task.evaluation_queries("validation", "transductive")[1]
    some = queries.take(slice(bench.n_items(quick=50, cpu=1_000, cuda=20_000)))
    row = _scoring_row(bench, "evaluate", some, len(some.src), "events")
    seconds = len(queries.src) / (row.rate or np.inf)
    return StageResult([row], {"evaluate_events_per_second": row.rate, "validation_seconds": seconds})


def measure_recommend(bench: BenchSetup) -> StageResult:
    """Measure scoring one source against many destinations at the end of the stream.

    The source is read once per chunk of destinations.
    """
    queries, n_all = _last_source_queries(bench)
    row = _scoring_row(bench, "recommend", queries, queries.dst.numel(), "pairs")
    seconds = n_all / (row.rate or np.inf)
    return StageResult([row], {"recommend_partners_per_second": row.rate, "recommend_all_seconds": seconds})


def _last_source_queries(bench: BenchSetup) -> tuple[Queries, int]:
    """Return the last source with many destinations, at the end of the stream; and the number of all destinations."""
    stream, everyone = bench.stream, np.unique(bench.stream.dst)
    src, dst = _to_device(bench, stream.src[-1:], everyone[: bench.n_items(quick=50, cpu=500, cuda=5_000)])
    t, cut = _to_device(bench, np.array([float(stream.elapsed[-1])]), np.array([stream.n_events]))
    return Queries(src, dst[None], t, cut, cut), len(everyone)


def measure_activity(bench: BenchSetup) -> StageResult:
    """Measure fitting the rates of both roles on the host, and answers with probabilities against those with scores.

    Training does not use the activity, so a training step costs the same with and without it. An answer is what a run
    gives: the ten best destinations of a source, or the score of one pair.
    """
    index, stop = bench.task.host_index, int(bench.task.split.validation[0])

    def fit() -> list[RateModel]:
        return [fit_rate(index, stop, role=role, unit="occasions").model for role in ACT_ROLES]

    timing = time_calls(fit, torch.device("cpu"), bench.repeat)
    rows = [BenchRow(stage="activity", part="fit", timing=timing, items=stop, unit="events")]
    forecaster = Forecaster.fit(bench.task, bench.model)
    queries, _ = _last_source_queries(bench)
    horizon = max(forecaster.longest_horizon / 10, 1e-9)

    def score() -> np.ndarray:
        return score_queries(bench.model, bench.task.full_history, queries)

    def answer() -> np.ndarray:
        log_partner = forecaster.log_partner(bench.model, bench.task.full_history, queries, logits=score())
        return forecaster.pair_probability(index, log_partner, queries.src, queries.cut, queries.t, horizon)

    answer()  # builds the decayed counts of this index
    scores, probabilities = bench.time(score), bench.time(answer)
    ratio = probabilities.median / scores.median
    row = partial(BenchRow, stage="activity", items=queries.dst.numel(), unit="pairs")
    rows += [row(part="scores", timing=scores), row(part="probabilities", timing=probabilities)]
    metrics = {"activity_fit_seconds": timing.median, "probability_time_ratio": ratio}
    for name, (plain, within) in _answers(bench, forecaster, horizon).items():
        without, with_probability = time_in_turns([plain, within], bench.device, bench.repeat)
        rows += [
            BenchRow(stage="activity", part=part, timing=measured, items=1, unit="answers")
            for part, measured in ((name, without), (f"{name}, probability", with_probability))
        ]
        metrics[f"{name.replace(' ', '_')}_time_ratio"] = with_probability.median / without.median
    return StageResult(rows, metrics)


def _answers(
    bench: BenchSetup, forecaster: Forecaster, horizon: float
) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return two functions by kind of answer at the end of the stream: without and with a horizon."""
    stream, known = bench.stream, np.ones(bench.stream.n_nodes, dtype=bool)
    predictor = Predictor(bench.model, stream, bench.task.full_history, known)
    forecasts = Forecasts(predictor, forecaster)
    recommender = Recommender(predictor, lambda: forecasts)
    source, destination = stream.ids.decode(np.array([stream.src[-1], stream.dst[-1]])).to_pylist()
    pair = [source], [destination]
    return {
        "top 10": (
            lambda: recommender.best_destinations([source], None, 10, None),
            lambda: recommender.best_destinations([source], None, 10, horizon),
        ),
        "one pair": (lambda: predictor.score(*pair), lambda: forecasts.score(*pair, horizon)),
    }


def _scoring_row(bench: BenchSetup, stage: str, queries: Queries, items: int, unit: str) -> BenchRow:
    def score() -> Any:
        return score_queries(bench.model, bench.task.full_history, queries)

    counts = count_ops(score)
    return BenchRow(
        stage=stage,
        timing=bench.time(score),
        flops=counts.flops,
        n_bytes=counts.moved_bytes,
        items=items,
        unit=unit,
        peak_bytes=bench.peak_bytes(score),
    )


STAGES: dict[str, Callable[[BenchSetup], StageResult]] = {
    "index": measure_index,
    "sample": measure_sample,
    "pairs": measure_pairs,
    "distances": measure_distances,
    "encode": partial(_measure_forward_part, stage="encode", part="tokens"),  # forward only
    "attention": partial(_measure_forward_part, stage="attention", part="layers"),  # forward only
    "step": measure_step,
    "evaluate": measure_evaluate,
    "recommend": measure_recommend,
    "activity": measure_activity,
}
