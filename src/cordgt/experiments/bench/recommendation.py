"""`cordgt bench recommend --candidates N`: time and recall of the two stages next to exhaustive ranking.

Without a run, the stream is generated and the model is trained for a few steps only. Then the times count, and the
recall is that of an almost untrained model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.experiments.bench.setup import BenchSetup
from cordgt.inference.predictor import Predictor
from cordgt.inference.retrieval.gatherers import Question
from cordgt.inference.retrieval.ranking import POOL_SIZE, CandidateFilter, Ranking, rank_destinations, resolve_budget

TOP = 10
EVENTS_PER_DESTINATION = 20
MAX_EVENTS = 20_000_000
TRAINING_STEPS = 25
# Pairs that the exhaustive ranking scores in all; it decides the number of questions.
MAX_PAIRS = {"cpu": 100_000, "cuda": 20_000_000}
CHEAP_MAX_PAIRS = 20_000_000


def generate_purchases(n_destinations: int, *, seed: int = 0) -> EventStream:
    """Return a stream of purchases: each source prefers a cluster of destinations, and popularity is heavy-tailed."""
    n_events = min(EVENTS_PER_DESTINATION * n_destinations, MAX_EVENTS)
    random = np.random.default_rng(seed)
    n_sources = n_destinations // 2 + 1
    width = max(2, int(np.sqrt(n_destinations)))  # destinations of a cluster
    src = (n_sources * random.random(n_events) ** 2).astype(np.int64)
    anywhere = (n_destinations * random.random(n_events) ** 3).astype(np.int64)
    home = (src * 7919) % -(-n_destinations // width)
    nearby = np.minimum(home * width + (width * random.random(n_events) ** 2).astype(np.int64), n_destinations - 1)
    dst = np.where(random.random(n_events) < 0.6, nearby, anywhere)
    dst[:n_destinations] = random.permutation(n_destinations)  # every destination exists
    return EventStream.from_columns(
        src, dst, np.arange(n_events), shared_ids=False, time=TimeAxis("number"), name=f"purchases-{n_destinations}"
    )


def briefly_trained_predictor(bench: BenchSetup, n_steps: int | None = None) -> Predictor:
    """Return a predictor after a few training steps on random batches."""
    model, task = bench.model, bench.task
    if model.is_trainable and not model.is_stateful:
        model.train()
        step, size = bench.make_step(), bench.settings.training.batch_size
        random = np.random.default_rng(0)
        for _ in range(TRAINING_STEPS if n_steps is None else n_steps):
            position = np.sort(random.choice(task.split.train, size))
            step(torch.from_numpy(position).to(bench.device), torch.ones(size, device=bench.device))
    return Predictor(model.eval(), bench.stream, task.full_history, np.ones(bench.stream.n_nodes, dtype=bool))


def measure_recommend(
    predictor: Predictor,
    positions: np.ndarray,
    *,
    budget: int | None = None,
    n_questions: int | None = None,
    max_questions: int = 200,
    callbacks: Callback = NO_CALLBACK,
) -> dict[str, Any]:
    """Return times, recall and MRR of the two stages and of exhaustive ranking.

    Times are those of warm questions after the last event. Recall and MRR are those of questions at events of
    ``positions``, with the history before each event. ``max_questions`` limits their number if
    ``n_questions`` is not given. If exhaustive ranking would take too long, it scores a sample of the destinations and
    all that the first stage saw: ``recall_destinations`` says how many.
    """
    if not len(positions):
        raise SettingError("There is no event to ask about.")
    n = predictor.destinations.count(predictor.stream.n_events)
    device = predictor.device.type
    max_pairs = CHEAP_MAX_PAIRS if predictor.model.is_cheap else MAX_PAIRS[device]
    n_questions = n_questions or int(np.clip(max_pairs // max(n, 1), 10, max_questions))
    n_oracle = max(max_pairs // n_questions, POOL_SIZE if predictor.model.is_cheap else 4 * TOP)
    random = np.random.default_rng(0)
    chosen = np.sort(random.choice(positions, min(n_questions, len(positions)), replace=False))
    callbacks.on_stage_start("first scorer", None)
    started = time.perf_counter()
    scorer = None if predictor.model.is_cheap else lambda: predictor.first_scorer
    budget = resolve_budget(budget, TOP, n, scorer)
    if scorer is not None and n > budget:
        _ = scorer()
    first_scorer_seconds = time.perf_counter() - started
    callbacks.on_stage_start("recall", None)
    recall = _measure_recall(predictor, chosen, n_oracle, budget)
    callbacks.on_stage_start("times", None)
    return {
        "destinations": n,
        "budget": budget,
        "first_scorer_seconds": first_scorer_seconds,
        **recall,
        **_measure_times(predictor, chosen, min(n, n_oracle), n, budget),
    }


def _measure_recall(predictor: Predictor, positions: np.ndarray, n_oracle: int, budget: int) -> dict[str, Any]:
    hits = n_best = 0
    reciprocal_ranks: dict[str, list[float]] = {"two_stage": [], "exhaustive": []}
    n_scored = []
    for position in positions.tolist():
        question = _question_at(predictor, position)
        visible = np.sort(predictor.destinations.visible(question.cut))
        # A cheap model ranks all that are gathered. Asking for more would rank every destination.
        n_ranked = _rank(predictor, question, TOP).counts.ranked if predictor.model.is_cheap else budget
        fast = _rank(predictor, question, max(1, n_ranked))
        if len(visible) > n_oracle:
            sample = np.random.default_rng(position).choice(visible, n_oracle, replace=False)
            visible = np.union1d(sample, fast.node)
        exact = _rank(predictor, question, max(1, len(visible)), CandidateFilter(visible), exhaustive=True)
        best = exact.node[:TOP]
        hits, n_best = hits + int(np.isin(best, fast.node[:TOP]).sum()), n_best + len(best)
        n_scored.append(exact.counts.ranked)
        truth = int(predictor.stream.dst[position])
        for name, ranking in (("two_stage", fast), ("exhaustive", exact)):
            reciprocal_ranks[name].append(_reciprocal_rank(ranking, truth))
    return {
        "recall_at_10": hits / n_best if n_best else 1.0,
        "two_stage_mrr": float(np.mean(reciprocal_ranks["two_stage"])),
        "exhaustive_mrr": float(np.mean(reciprocal_ranks["exhaustive"])),
        "questions": len(positions),
        "recall_destinations": int(np.median(n_scored)),
    }


def _measure_times(
    predictor: Predictor, positions: np.ndarray, n_exhaustive: int, n: int, budget: int
) -> dict[str, Any]:
    """Time warm questions after the last event. Exhaustive time is scaled from ``n_exhaustive`` to ``n`` pairs."""
    sources = predictor.stream.ids.decode(predictor.stream.src[positions[-20:]]).to_pylist()
    some = np.sort(predictor.destinations.visible(predictor.stream.n_events)[:n_exhaustive])
    allowed = CandidateFilter(some)
    result: dict[str, Any] = {}
    for name, scale, work in (
        ("two_stage", 1.0, lambda source: predictor.answer(source, top=TOP, budget=budget)),
        (
            "exhaustive",
            n / len(some),
            lambda source: predictor.answer(source, top=TOP, allowed=allowed, exhaustive=True),
        ),
    ):
        wall, cpu = _time_each(work, sources if name == "two_stage" else sources[-3:], predictor.device)
        result |= {f"{name}_ms": 1e3 * scale * wall, f"{name}_cpu_ms": 1e3 * scale * cpu}
    result["exhaustive_is_estimate"] = len(some) < n
    counts = predictor.answer(sources[-1], top=TOP, budget=budget).candidates
    assert counts is not None
    return result | {"candidates": counts.to_dict(), "speed_up": result["exhaustive_ms"] / result["two_stage_ms"]}


def _time_each(work: Callable[[Any], Any], items: list[Any], device: torch.device) -> tuple[float, float]:
    """Return the median wall and CPU seconds of one call, after a warm-up."""
    work(items[0])
    wall, cpu = [], []
    for item in items:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started, started_cpu = time.perf_counter(), time.process_time()
        work(item)  # returns Python numbers, so a GPU has finished
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - started_cpu)
    return float(np.median(wall)), float(np.median(cpu))


def _question_at(predictor: Predictor, position: int) -> Question:
    """Return the question of an event's source, just before the event and its ties."""
    stream, index = predictor.stream, predictor.history.index
    cut = int(index.tie_start[position])
    return predictor.question(int(stream.src[position]), float(stream.elapsed[position]), cut)


def _rank(
    predictor: Predictor,
    question: Question,
    n: int,
    allowed: CandidateFilter = CandidateFilter(),  # noqa: B008
    *,
    exhaustive: bool = False,
) -> Ranking:
    """Return the ranking of ``n`` candidates, chosen in two stages or all."""
    return rank_destinations(
        predictor.model,
        predictor.history,
        question,
        n,
        allowed=allowed,
        first_scorer=lambda: predictor.first_scorer,
        budget=n,
        exhaustive=exhaustive,
    )


def _reciprocal_rank(ranking: Ranking, node: int) -> float:
    """Return 1 / rank of a node, with the mean rank of ties; 0 if it is no candidate.

    Candidates that the model did not rank follow in the order of the first scorer.
    """
    at = np.flatnonzero(ranking.node == node)
    if not len(at):
        later = np.flatnonzero(ranking.rest == node)
        return 1.0 / (1 + len(ranking.node) + int(later[0])) if len(later) else 0.0
    logit = ranking.logit[at[0]]
    above, tied = int((ranking.logit > logit).sum()), int((ranking.logit == logit).sum()) - 1
    return 1.0 / (1.0 + above + tied / 2)
