"""Questions that only a whole `Run` can answer: who acts, when, and how likely within a time.

The run gets a stream of the first ``cut`` events with an index of its own, which is built for the question.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from cordgt.errors import CordgtError, RunError, RunWarning
from cordgt.inference.predictor import Predictor
from cordgt.inference.run import Run
from cordgt.serving.errors import RequestError, UnsupportedError
from cordgt.serving.live_history import LiveHistory
from cordgt.serving.model_store import LoadedModel
from cordgt.serving.questions import Question
from cordgt.tasks.histories import build_history


class RunAnswerer:
    """Answers with the whole run; keeps the run of the last ``cut``."""

    def __init__(self, live: LiveHistory) -> None:
        self._live = live
        self._key: tuple[str, int] | None = None
        self._run: Run | None = None

    def answer(self, model: LoadedModel, question: Question) -> dict[str, Any]:
        """Answer one question. UnsupportedError if the run cannot."""
        run = self._run_at(model, question.cut)
        options: dict[str, Any] = {"at": question.at, "top": question.n}
        if question.kind == "active":
            found = self._call(run.active, question.within, role=question.role, **options)
            return {"within": question.within, "role": question.role, "nodes": _to_json(found)}
        if question.kind == "next":
            return {"source": question.source} | _to_json(self._call(run.next_event, question.source, **options))
        options |= {"new_only": question.new_only, "within": question.within, "exhaustive": True}
        if question.exclude:
            options["exclude"] = list(question.exclude)
        if question.candidates is not None:
            options["candidates"] = list(question.candidates)
        return {
            "source": question.source,
            "partners": _to_json(self._call(run.recommend, question.source, **options)),
        }

    @staticmethod
    def _call(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method of the run. UnsupportedError: the run cannot answer. RequestError: the question is wrong."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RunWarning)
                return method(*args, **options)
        except RunError as error:
            raise UnsupportedError(str(error)) from None
        except CordgtError as error:
            raise RequestError(str(error)) from None

    def _run_at(self, model: LoadedModel, cut: int) -> Run:
        """Return the run with the first ``cut`` events as its history."""
        if self._run is None or self._key != (model.id, cut):
            stream = self._live.stream_at(cut)
            history = build_history(stream, seed=model.run.settings.seed, device=model.run.device)
            run = replace(model.run, stream=stream)
            vars(run)["predictor"] = Predictor(model.network, stream, history, model.has_training_events)
            self._run, self._key = run, (model.id, cut)
        return self._run


def _to_json(value: Any) -> Any:
    """Return dataclasses as objects, and numbers that JSON has not as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return _to_json(asdict(value))
    if isinstance(value, dict):
        return {name: _to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
