"""Train the `Counts` network inside CorDGT+, and choose its weight on validation data.

The network is trained exactly as ``--model counts`` is, with the same seed. So CorDGT+ contains that model, and a
weight of 1 gives its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cordgt import models
from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.history.queries import Queries
from cordgt.models.base import LinkModel
from cordgt.models.cordgt_plus import CordgtPlus
from cordgt.tasks.blend_weight import (
    MIN_TIMES,
    WEIGHTS,
    average_precisions,
    blend,
    choose_by_ap,
    choose_by_gain,
    sample_validation,
)
from cordgt.tasks.link import LinkTask
from cordgt.tasks.metrics import LINK_METRICS
from cordgt.tasks.negatives import draw_candidates
from cordgt.tasks.pair_scores import TRUE, best_slope, validation_pairs
from cordgt.tasks.run_metrics import SETTINGS
from cordgt.tasks.scoring import score_queries
from cordgt.tasks.ties import mean_ranks
from cordgt.training.settings import Settings, TrainingSettings

PREFIX = "counts."  # of the network's weights in those of CorDGT+
N_CANDIDATES = 100  # ranked, if the run is trained for ranking
MAX_SAME_SOURCE_PAIRS = 12_000  # validation pairs scored to choose the weight for one source's candidates
SAME_SOURCE_NEGATIVES = ("random", "historical", "inductive")


def counts_settings(settings: Settings) -> Settings:
    """Return the settings of the `Counts` network in CorDGT+: those of ``--model counts`` for the same run."""
    own = models.find_model("counts").training
    shared = {k: v for k, v in vars(settings.training).items() if k not in ("lr", "ema_decay")}
    return replace(
        settings,
        model="counts",
        training=TrainingSettings(**(shared | own)),
        model_settings=settings.model_settings.of_counts,
    )


def counts_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Return the weights of the `Counts` network among those of CorDGT+; None if there are none."""
    found = {name.removeprefix(PREFIX): value for name, value in weights.items() if name.startswith(PREFIX)}
    return found or None


def copy_counts(source: LinkModel, target: LinkModel) -> None:
    """Copy the `Counts` network and its weight from one CorDGT+ to another; do nothing for other models."""
    if isinstance(source, CordgtPlus) and isinstance(target, CordgtPlus) and source.counts and target.counts:
        target.counts.load_state_dict(source.counts.state_dict())
        target.counts_weight.copy_(source.counts_weight)


def answers_as_counts(model: LinkModel, task: LinkTask) -> bool:
    """Return whether a CorDGT+ gives the scores of its `Counts` network, whatever its own network learns.

    This holds if the validation split has fewer than `MIN_TIMES` different times, because events of one time are one
    observation.
    """
    if not isinstance(model, CordgtPlus) or model.counts is None or not len(task.split.validation):
        return False
    return len(np.unique(task.stream.t[task.split.validation])) < MIN_TIMES


def choose_counts_weight(model: LinkModel, task: LinkTask, monitor: str, callbacks: Callback = NO_CALLBACK) -> None:
    """Set ``counts_weight`` of a trained CorDGT+ by the validation split; do nothing for other models.

    - One source's candidates: the weight with the highest mean AP over random, historical and inductive negatives,
      among those that lose little to `Counts` (`choose_by_ap`).
    - Pairs of different sources: the weight of `choose_by_gain`, once for all events and once for those of new nodes;
      the larger one is used. With activity the slope of `cordgt.tasks.pair_scores` is set too.
    - A run trained for ranking: the weight with the highest MRR.
    - Both weights are 1 if the model `answers_as_counts`.
    """
    if not isinstance(model, CordgtPlus) or model.counts is None or not len(task.split.validation):
        return
    if answers_as_counts(model, task):
        model.counts_weight.fill_(1.0)
        return
    callbacks.on_stage_start("choosing the weight of counts", None)
    if model.learns_ranking or LINK_METRICS[monitor].needs_ranks:
        same = across = _choose_by_mrr(model, task, callbacks)
    else:
        same = choose_by_ap(*_same_source_columns(model, task, callbacks))
        across = _choose_across_sources(model, task, callbacks)
    model.counts_weight.copy_(torch.tensor([same, across]))


# Scores of both networks: (2, B) for true events, and for the negatives of each kind.
Columns = tuple[np.ndarray, dict[str, np.ndarray]]


def _same_source_columns(model: CordgtPlus, task: LinkTask, callbacks: Callback) -> Columns:
    by_kind = {}
    for kind in SAME_SOURCE_NEGATIVES:
        _, by_kind[kind] = task.with_protocol(negatives=kind).evaluation_queries("validation", "transductive")
    negatives = [queries.dst[:, 1:] for queries in by_kind.values()]
    queries = by_kind["random"]
    chosen = sample_validation(len(queries.src), 1 + len(by_kind), MAX_SAME_SOURCE_PAIRS)
    queries = replace(queries, dst=torch.cat([queries.dst[:, :1], *negatives], dim=1)).take(chosen)
    scores = _score_both(model, task, callbacks)(queries)  # (2, B, 1 + kinds)
    return scores[:, :, 0], {kind: scores[:, :, 1 + i] for i, kind in enumerate(by_kind)}


@dataclass(frozen=True)
class _PairScores:
    """Logits of both networks (2, B) and log rates (B,) by kind of pairs; rates are empty without activity."""

    logits: dict[str, np.ndarray]
    rates: dict[str, np.ndarray]
    t: np.ndarray  # (B,) times of the true events

    def choose_weight(self) -> float:
        """Return the weight of the second network: with activity, the best one together with a slope of the logits."""
        found = []
        for slope in WEIGHTS[1:] if self.rates else WEIGHTS[-1:]:
            columns = {kind: self.rates.get(kind, 0.0) + slope * logits for kind, logits in self.logits.items()}
            positive = columns.pop(TRUE)
            w = choose_by_gain(positive, columns, self.t)
            found.append((np.mean(average_precisions(positive, columns, w)), w))
        return max(found)[1]


def _choose_across_sources(model: CordgtPlus, task: LinkTask, callbacks: Callback) -> float:
    """Return the larger of the weights for all events and for those of new nodes; with activity, set the slope."""
    all_positives, score = task.with_protocol(positives="all"), _score_both(model, task, callbacks)
    by_setting = {}
    for setting in SETTINGS:
        if len(all_positives.evaluation_events("validation", setting)[0]):
            pairs = validation_pairs(task, setting)
            logits = {kind: score(queries)[:, :, 0] for kind, queries in pairs.items()}
            rates = {}
            if task.protocol.activity:
                rates = {kind: task.log_source_rates(queries) for kind, queries in pairs.items()}
            by_setting[setting] = _PairScores(logits, rates, pairs[TRUE].t.cpu().numpy())
    weight = max(scores.choose_weight() for scores in by_setting.values())
    scores = by_setting["transductive"]
    if scores.rates:
        logits = {kind: blend(both, weight) for kind, both in scores.logits.items()}
        model.pair_slope = best_slope(logits, scores.rates)
    return weight


def _choose_by_mrr(model: CordgtPlus, task: LinkTask, callbacks: Callback) -> float:
    positions, queries = task.evaluation_queries("validation", "transductive")
    chosen = sample_validation(len(positions), 1 + N_CANDIDATES)
    positions, queries = positions[chosen], queries.take(chosen)
    pool = task.evaluation_events("validation", "transductive")[1].cpu().numpy()
    true = np.asarray(task.stream.dst[positions])
    others = draw_candidates(pool, N_CANDIDATES, true, positions, seed=task.protocol.eval_seed)
    candidates = np.concatenate([true[:, None], np.where(others >= 0, others, true[:, None])], axis=1)
    queries = replace(queries, dst=torch.from_numpy(candidates).to(task.device))
    scores = _score_both(model, task, callbacks)(queries)

    def mrr(w: float) -> float:
        both = blend(scores, w)
        return float((1 / mean_ranks(both[:, 0], both[:, 1:], others >= 0, model.score_tolerance)).mean())

    return float(max(WEIGHTS, key=mrr))


def _score_both(model: CordgtPlus, task: LinkTask, callbacks: Callback) -> Callable[[Queries], np.ndarray]:
    """Return a function that scores queries with CorDGT+'s own network and with `Counts`: (2, B, M)."""

    def score(queries: Queries) -> np.ndarray:
        both = score_queries(
            model,
            task.full_history,
            queries,
            callbacks=callbacks,
            group=task.group,
            forward=model.own_and_counts,
            further_axes=(2,),
        )
        return np.moveaxis(both, -1, 0)

    return score
