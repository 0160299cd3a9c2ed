"""Options of `Run.recommend`, and the answers to several questions at one time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.inference.forecasts import Forecasts
from cordgt.inference.predictor import Predictor, RecommendResult


class RecommendOptions(TypedDict, total=False):
    """Options of `Run.recommend`; its docstring explains them."""

    within: Any  # a horizon, such as "7d"
    candidates: Any  # ids
    exclude: Any  # ids
    new_only: bool
    groups: Mapping[Any, Any]  # the group of each id
    per_group: int
    budget: int
    exhaustive: bool


class RecommendResults(NamedTuple):
    """The answers of `Run.recommend`, with the nodes and the horizon of the question."""

    nodes: list[Any]
    results: list[RecommendResult]
    horizon: float | None


@dataclass(frozen=True)
class Recommender:
    """Answers for several nodes at one time, with or without a horizon."""

    predictor: Predictor
    forecasts: Callable[[], Forecasts]  # called only for a horizon, or for the sources of a destination

    def best_destinations(
        self,
        sources: Sequence[Any],
        at: Any,
        top: int,
        horizon: float | None,
        callbacks: Callback = NO_CALLBACK,
        *,
        budget: int | None = None,
        exhaustive: bool = False,
        **filters: Any,
    ) -> list[RecommendResult]:
        """Return the best destinations of each source. ``filters`` are those of `Predictor.make_filter`."""
        allowed = self.predictor.make_filter(**filters)
        results = []
        for source in sources:
            answer = self.predictor.answer(source, at, top, allowed=allowed, budget=budget, exhaustive=exhaustive)
            results.append(answer)
            callbacks.on_step(1)
        if horizon is None:
            return results
        return self.forecasts().with_probabilities(results, horizon)

    def best_sources(
        self,
        destinations: Sequence[Any],
        at: Any,
        top: int,
        horizon: float | None,
        callbacks: Callback = NO_CALLBACK,
        *,
        budget: int | None = None,
        exhaustive: bool = False,
        **filters: Any,
    ) -> list[RecommendResult]:
        """Return the best sources of each destination. ``filters`` are those of `Predictor.make_filter`."""
        allowed = self.predictor.make_filter("src", **filters)
        answers = []
        for node in destinations:
            answers.append(
                self.forecasts().recommend_sources(
                    node, horizon, at, top, allowed=allowed, budget=budget, exhaustive=exhaustive
                )
            )
            callbacks.on_step(1)
        return answers
