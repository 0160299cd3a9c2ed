"""Options of `Run.recommend`, and the answers to several questions at one time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import SettingError
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
        """Return the best sources of each destination. Of the filters only ``candidates`` and ``new_only``."""
        given = {name: value for name, value in filters.items() if value}
        unused = sorted(given.keys() - {"candidates", "new_only"})
        unused += ["budget"] * (budget is not None) + ["exhaustive"] * exhaustive
        if unused:
            raise SettingError(f"{', '.join(unused)}: not available for the sources of a destination.")
        answers = []
        for node in destinations:
            answers.append(RecommendResult(*self.forecasts().recommend_sources(node, horizon, at, top, **given)))
            callbacks.on_step(1)
        return answers
