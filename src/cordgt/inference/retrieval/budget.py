"""How many candidates the model has to rank: the smallest budget that finds the model's own top 10.

The first scorer and the model answer the same questions at validation events. The budget is the smallest of `BUDGETS`
whose candidates contain at least `MIN_RECALL` of the model's top 10 of the gathered candidates. What the gatherers miss
is not counted. No test event is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.history.queries import History
from cordgt.inference.retrieval.destinations import Destinations
from cordgt.inference.retrieval.first_scorer import FirstScorer
from cordgt.inference.retrieval.gatherers import Question
from cordgt.inference.retrieval.neighborhood import NodeRows
from cordgt.inference.retrieval.ranking import MIN_BUDGET, CandidateFilter, candidate_pools, score_nodes
from cordgt.models.base import LinkModel

BUDGETS = (MIN_BUDGET, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
MIN_RECALL = 0.98  # above the 0.97 that we promise, because some tens of questions estimate it
TOP = 10  # of the model's ranking
MIN_PAIRS, MAX_PAIRS = 4096, 65_536  # scored by the model; one per event of the stream in between
MIN_QUESTIONS, MAX_QUESTIONS = 8, 64


@dataclass(frozen=True)
class BudgetChoice:
    """A budget, and the recall of the model's top 10 with each budget that was tried."""

    budget: int
    recall: dict[int, float]
    n_questions: int


def choose_budget(
    model: LinkModel,
    scorer: FirstScorer,
    history: History,
    destinations: Destinations,
    positions: np.ndarray,
    callbacks: Callback = NO_CALLBACK,
) -> BudgetChoice:
    """Return the smallest budget that finds the model's top 10 at some of the events ``positions``, ascending.

    It is the largest of `BUDGETS` if none is enough. Of more candidates than that, the model scores the best by the
    first scorer and as many of the rest, evenly spaced.
    """
    index = history.index
    n_events = int(positions[-1]) + 1 if len(positions) else 0
    n_destinations = destinations.count(n_events)
    n_pairs = int(np.clip(n_events, MIN_PAIRS, MAX_PAIRS))
    n_questions = int(np.clip(n_pairs // max(1, min(n_destinations, 2 * BUDGETS[-1])), MIN_QUESTIONS, MAX_QUESTIONS))
    chosen = np.sort(np.random.default_rng(0).choice(positions, min(n_questions, len(positions)), replace=False))
    callbacks.on_stage_start("budget", len(chosen))
    places: list[np.ndarray] = []
    rows = NodeRows.from_index(index)
    for position in chosen.tolist():
        cut = int(index.tie_start[position])
        source, t = int(index.src[position]), float(index.elapsed[position])
        question = Question(index, destinations, source, cut, t, history.seed, rows)
        places.append(_places_of_best(model, scorer, history, question))
        callbacks.on_step(1)
    place = np.concatenate([np.empty(0, np.int64), *places])
    recall = {budget: float((place < budget).mean()) if len(place) else 1.0 for budget in BUDGETS}
    enough = [budget for budget in BUDGETS if recall[budget] >= MIN_RECALL]
    return BudgetChoice(enough[0] if enough else BUDGETS[-1], recall, len(chosen))


def _places_of_best(model: LinkModel, scorer: FirstScorer, history: History, question: Question) -> np.ndarray:
    """Return the places of the model's top 10 in the order of the first scorer, from 0."""
    pools = candidate_pools(question, CandidateFilter(), BUDGETS[-1], is_cheap=False, exhaustive=False)[1]
    pool = next(pools)
    order = pool[np.argsort(-score_nodes(scorer, history, question, pool), kind="stable")]
    step = max(1, -(-(len(order) - BUDGETS[-1]) // BUDGETS[-1]))
    place = np.concatenate([np.arange(len(order))[: BUDGETS[-1]], np.arange(len(order))[BUDGETS[-1] :: step]])
    logits = score_nodes(model, history, question, order[place])
    return place[np.argsort(-logits, kind="stable")[:TOP]]
