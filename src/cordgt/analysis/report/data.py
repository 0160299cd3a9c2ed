"""The data of a report: a run, and scores of its test events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cordgt.analysis.report.sample import MAX_EVENTS, ScoredSample, score_sample
from cordgt.callbacks import Callbacks, as_callback
from cordgt.inference.run import Run
from cordgt.models.base import LinkModel
from cordgt.tasks.link import LinkTask
from cordgt.tasks.run_metrics import RunMetrics
from cordgt.training.evaluation import training_objective
from cordgt.training.settings import Settings


@dataclass(frozen=True)
class ReportData:
    """What a report shows of one run."""

    settings: Settings
    metrics: RunMetrics
    history: Sequence[Mapping[str, Any]]  # the lines of history.jsonl
    task: LinkTask
    model: LinkModel
    sample: ScoredSample

    def epochs(self) -> list[Mapping[str, Any]]:
        """The records of complete epochs of the fit phase, by epoch."""
        records = {r["epoch"]: r for r in self.history if r.get("phase") == "fit" and "events" not in r and "loss" in r}
        return [records[k] for k in sorted(records)]


def collect_report_data(
    run: Run, callbacks: Callbacks = None, *, max_events: int | None = MAX_EVENTS, task: LinkTask | None = None
) -> ReportData:
    """Score at most ``max_events`` test events of a run (all if None), evenly spread, and collect what a report shows.

    Pass ``task`` if the data are prepared already, as after training.
    """
    model, prepared = run.evaluation_task() if task is None else (run.evaluation_model(), task)
    n = len(prepared.split.test)
    callback = as_callback(callbacks)
    callback.on_stage_start("evaluating: the report", n if max_events is None else min(n, max_events))
    history = run.folder.read_history(run.checksums.get("history.jsonl"))
    sample = score_sample(model, prepared, max_events=max_events, callbacks=callback)
    metrics = RunMetrics({"objective": training_objective(run.settings, model)} | run.metrics)
    return ReportData(run.settings, metrics, history, prepared, model, sample)
