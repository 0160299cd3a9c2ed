"""Two stages: choose candidates with the first scorer, then rank them with the run's model.

`rank_destinations` is the whole path of a recommendation, with its filters. ``exhaustive`` scores every candidate with
the model instead: the slow twin of the two stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from cordgt.errors import SettingError
from cordgt.history.queries import History, Queries
from cordgt.inference.retrieval.cuda_graph_scores import replay_scores
from cordgt.inference.retrieval.first_scorer import FirstScorer
from cordgt.inference.retrieval.gatherers import Question, gather_candidates
from cordgt.models.base import LinkModel
from cordgt.tasks.scoring import check_finite, score_queries
from cordgt.tasks.ties import merge_near_ties

MIN_BUDGET = 64  # candidates that the model ranks at least; with no more than these, there is no first stage
MIN_BUDGET_PER_ANSWER = 4  # the budget is at least so many times the number of answers
POOL_SIZE = 4096  # candidates of the first stage; with more destinations, the gatherers choose them
CHEAP_POOL_SIZE = 50_000  # the same for a model that is as fast as the first scorer


@dataclass(frozen=True)
class CandidateFilter:
    """Which destinations may be answers, or which sources of a destination. All arrays are ascending and distinct."""

    candidates: np.ndarray | None = None  # only these node indices; None: every one of the visible history
    exclude: np.ndarray | None = None  # none of these
    new_only: bool = False  # no earlier partners
    per_group: int | None = None  # at most so many of a group
    group: np.ndarray | None = None  # (N,) number of each node's group; -1: no group, never limited

    def __post_init__(self) -> None:
        if (self.per_group is None) != (self.group is None):
            raise SettingError("Groups need both: the number per group, and the group of each candidate.")
        if self.per_group is not None and self.per_group < 1:
            raise SettingError(f"per_group={self.per_group}: use a number of at least 1.")

    def apply(self, question: Question, nodes: np.ndarray) -> np.ndarray:
        """Return the nodes that may be answers to the question; ``nodes`` are destinations."""
        nodes = self.allowed_for(question.source, nodes)
        return nodes[count_events(question, nodes) == 0] if self.new_only else nodes

    def allowed_for(self, node: int, others: np.ndarray) -> np.ndarray:
        """Return ``others`` without ``node`` itself, and only what ``candidates`` and ``exclude`` allow."""
        keep = others != node
        if self.candidates is not None:
            keep &= _is_in(others, self.candidates)
        if self.exclude is not None:
            keep &= ~_is_in(others, self.exclude)
        return others[keep]

    def groups_of(self, nodes: np.ndarray) -> np.ndarray:
        """Return the number of each node's group, -1 without."""
        if self.group is None:
            return np.full(len(nodes), -1)
        is_known = nodes < len(self.group)
        return np.where(is_known, self.group[np.where(is_known, nodes, 0)], -1)


@dataclass(frozen=True)
class StageCounts:
    """How many candidates each stage saw."""

    destinations: int  # of the visible history, or given as candidates; for a destination: sources after the filters
    scored_first: int  # gathered, and scored by the first scorer; 0 without a first stage
    ranked: int  # scored by the model

    def to_dict(self) -> dict[str, int]:
        return dict(vars(self))


@dataclass(frozen=True)
class Ranking:
    """The best destinations, best first."""

    node: np.ndarray  # (n,) int64
    logit: np.ndarray  # (n,) float64; near-equal ones are equal
    n_met: np.ndarray  # (n,) earlier events with the source
    rest: np.ndarray  # candidates that the model did not rank, in the order of the first scorer
    counts: StageCounts


def rank_destinations(
    model: LinkModel,
    history: History,
    question: Question,
    top: int,
    *,
    allowed: CandidateFilter,
    first_scorer: Callable[[], FirstScorer],
    budget: int | None = None,
    exhaustive: bool = False,
) -> Ranking:
    """Return the ``top`` destinations of a question; fewer only if fewer may be answers.

    ``first_scorer`` is called only if there are more candidates than the budget and the model is slow.
    """
    uses_first_scorer = not exhaustive and not model.is_cheap
    n_candidates = question.destinations.count(question.cut) if allowed.candidates is None else len(allowed.candidates)
    budget = resolve_budget(budget, top, n_candidates, first_scorer if uses_first_scorer else None)
    n_destinations, pools = candidate_pools(question, allowed, budget, is_cheap=model.is_cheap, exhaustive=exhaustive)
    nodes, logits, merged = np.empty(0, np.int64), np.empty(0), np.empty(0)
    best, rest, n_first = np.empty(0, np.int64), np.empty(0, np.int64), 0
    for pool in pools:
        pool = pool[~_is_in(pool, np.sort(nodes))]
        if uses_first_scorer and len(pool) > budget:
            n_first += len(pool)
            pool = pool[np.argsort(-score_nodes(first_scorer(), history, question, pool), kind="stable")]
            step = budget
        else:
            step = max(len(pool), 1)
        while len(pool) and len(best) < top:
            if len(best):  # a full group takes no more
                pool = pool[~_is_full(pool, nodes[best], allowed)]
            chosen, pool = pool[:step], pool[step:]
            nodes = np.concatenate([nodes, chosen])
            logits = np.concatenate([logits, score_nodes(model, history, question, chosen)])
            merged = merge_near_ties(logits, model.score_tolerance)
            best = take_best(np.lexsort((nodes, -merged)), nodes, top, allowed)
        rest = pool
        if len(best) >= top:
            break
    counts = StageCounts(n_destinations, n_first, len(nodes))
    return Ranking(nodes[best], merged[best], count_events(question, nodes[best]), rest, counts)


def check_budget(budget: int, top: int) -> None:
    """SettingError if so few candidates cannot give ``top`` answers."""
    if budget < top:
        raise SettingError(f"The budget of {budget:,} candidates is too small for {top:,} answers. Raise it.")


def resolve_budget(
    budget: int | None, top: int, n_candidates: int, first_scorer: Callable[[], FirstScorer] | None
) -> int:
    """Return how many candidates the model ranks: ``budget``, or else the default for so many candidates.

    The default is that of the first scorer, and at least four times ``top``. ``first_scorer`` is called only if there
    are more candidates than `MIN_BUDGET`; None: the model ranks all. SettingError if ``budget`` is below ``top``.
    """
    if budget is not None:
        check_budget(budget, top)
        return budget
    smallest = max(MIN_BUDGET, MIN_BUDGET_PER_ANSWER * top)
    return smallest if first_scorer is None or n_candidates <= smallest else max(smallest, first_scorer().budget)


def count_events(question: Question, nodes: np.ndarray) -> np.ndarray:
    """Return the number of earlier events (n,) of the source with each node."""
    device = question.index.device
    source, cut = (torch.tensor([x], device=device) for x in (question.source, question.cut))
    return question.index.pair_interactions(source, torch.from_numpy(nodes).to(device), cut)[0].cpu().numpy()


def candidate_pools(
    question: Question, allowed: CandidateFilter, budget: int, *, is_cheap: bool, exhaustive: bool
) -> tuple[int, Iterator[np.ndarray]]:
    """Return the number of destinations, and pools of candidates: each is used if those before gave too few answers."""
    destinations, given = question.destinations, allowed.candidates
    n = destinations.count(question.cut) if given is None else len(given)
    size = max(CHEAP_POOL_SIZE if is_cheap else POOL_SIZE, budget)

    def pools() -> Iterator[np.ndarray]:
        if not exhaustive and n > size:
            gathered = gather_candidates(question, size)
            if given is not None:  # some of the given ones at random, because few may be gathered
                gathered = np.union1d(gathered, given[:: -(-n // (size // 4))])
            yield allowed.apply(question, gathered)
        everything = np.sort(destinations.visible(question.cut)) if given is None else given
        yield allowed.apply(question, everything)

    return n, pools()


def score_nodes(model: LinkModel, history: History, question: Question, nodes: np.ndarray) -> np.ndarray:
    """Return the logits (n,) of nodes, float64. On a GPU a question like earlier ones replays a CUDA graph."""
    device = history.index.device
    source, cut = (torch.tensor([x], device=device) for x in (question.source, question.cut))
    t = torch.tensor([question.t], dtype=torch.float64, device=device)
    dst = torch.from_numpy(nodes).to(device)[None]
    queries = Queries(source, dst, t, cut, cut)
    replayed = replay_scores(model, history, queries)
    if replayed is None:
        return score_queries(model, history, queries)[0]
    logits = replayed[0].double().cpu().numpy()
    check_finite(logits)
    return logits


def take_best(order: np.ndarray, nodes: np.ndarray, top: int, allowed: CandidateFilter) -> np.ndarray:
    """Return the first ``top`` of ``order``, rows of ``nodes``, with at most ``per_group`` of each group."""
    if allowed.per_group is None:
        return order[:top]
    taken: dict[int, int] = {}
    best: list[int] = []
    for row, group in zip(order.tolist(), allowed.groups_of(nodes[order]).tolist(), strict=True):
        taken[group] = taken.get(group, 0) + 1
        if group < 0 or taken[group] <= allowed.per_group:
            best.append(row)
            if len(best) == top:
                break
    return np.array(best, np.int64)


def _is_full(pool: np.ndarray, best: np.ndarray, allowed: CandidateFilter) -> np.ndarray:
    """Return (n,) bool: True if the node's group has as many answers already as it may have."""
    if allowed.per_group is None:
        return np.zeros(len(pool), bool)
    group, count = np.unique(allowed.groups_of(best), return_counts=True)
    full = group[(count >= allowed.per_group) & (group >= 0)]
    return np.isin(allowed.groups_of(pool), full)


def _is_in(nodes: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Return (n,) bool: True if the node is in an ascending array."""
    if not len(ascending):
        return np.zeros(len(nodes), bool)
    at = np.searchsorted(ascending, nodes)
    return ascending[np.minimum(at, len(ascending) - 1)] == nodes
