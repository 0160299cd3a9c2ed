"""ForecastAnswerer: answers questions about time with a run's activity: who acts, when, how likely within a time."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from cordgt.errors import CordgtError, RunError, RunWarning
from cordgt.inference.run import Run
from cordgt.serving.answerer import Answerer
from cordgt.serving.errors import RequestError, UnsupportedError
from cordgt.serving.event_batch import NodeId
from cordgt.serving.live_history import LiveHistory
from cordgt.serving.model_store import LoadedModel
from cordgt.serving.questions import Question


class ForecastAnswerer:
    """Answers forecasts from the live history."""

    def __init__(self, live: LiveHistory) -> None:
        self._live = live

    def answer(self, model: LoadedModel, answerer: Answerer, question: Question) -> dict[str, Any]:
        """Answer one question. UnsupportedError if the run has no activity. RequestError if the question is wrong."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RunWarning)
                return self._answer(self._run_at(model, answerer, question.cut), question)
        except RunError as error:
            raise UnsupportedError(str(error)) from None
        except CordgtError as error:
            raise RequestError(str(error)) from None

    def _answer(self, run: Run, question: Question) -> dict[str, Any]:
        at, n = question.at, question.n
        if question.kind == "active":
            found = run.active(question.within, at, n, role=question.role)  # type: ignore[arg-type]
            return {"within": question.within, "role": question.role, "nodes": _to_json(found)}
        if question.kind == "next":
            event = _to_json(run.next_event(question.source, at, top=n))  # type: ignore[arg-type]
            event["partners"] = [_without_empty(one) for one in event["partners"]]
            return {"source": question.source} | event
        filters: dict[str, Any] = {"new_only": question.new_only, "exclude": list(question.exclude)}
        answer: dict[str, Any] = {"source": question.source, "within": question.within}
        if question.candidates is not None:
            filters["candidates"], n_unknown = self._known(question)
            answer |= {"unknown_candidates": n_unknown} if n_unknown else {}
        horizon = run.horizon(question.within, at)
        result = run.recommendations([question.source], at, n, horizon, **filters)[0]
        partners = [_without_empty(_to_json(one)) for one in result.recommendations]
        return answer | {"note": result.note, "partners": partners}

    def _known(self, question: Question) -> tuple[list[NodeId], int]:
        """Return the candidates that the history knows at its ``cut``, and the number of the others."""
        given = list(question.candidates or ())
        nodes = self._live.encode(given, "dst", self._live.n_nodes_at(question.cut))
        known = [one for one, node in zip(given, nodes.tolist(), strict=True) if node >= 0]
        return known, len(given) - len(known)

    @staticmethod
    def _run_at(model: LoadedModel, answerer: Answerer, cut: int) -> Run:
        """Return the run with the first ``cut`` events as its history. It shares the index of the live history."""
        predictor = answerer.predictor(cut)
        run = replace(model.run, stream=predictor.stream)
        vars(run).update(predictor=predictor, forecaster=model.run.forecaster)  # two cached properties
        return run


def _without_empty(partner: dict[str, Any]) -> dict[str, Any]:
    """Return a partner without its rate, and without a probability if it has none."""
    return {k: v for k, v in partner.items() if k != "rate" and not (k == "probability" and v is None)}


def _to_json(value: Any) -> Any:
    """Return dataclasses as objects, and numbers that JSON has not as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return _to_json(asdict(value))
    if isinstance(value, dict):
        return {name: _to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
