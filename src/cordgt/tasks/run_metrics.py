"""What ``metrics.json`` holds, as one object. Its facts are here; `cordgt.analysis.remarks` puts them into sentences.

One run has a number (or None) for each metric. Several runs (``--seeds``, ``--mask-draws``) have its mean, standard
deviation and values. The accessors work for both. Nothing here needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cordgt.tasks.metrics import LINK_METRICS, is_constant

SPLITS = ("validation", "test")  # those that are evaluated
SETTINGS = ("transductive", "inductive")  # all events; events that touch a node without training events
RENAMED_KEYS = {"floors": "baselines"}  # of files written by version 0.1
AVERAGED = ("epochs", "best_epoch", "seconds_per_epoch", "peak_memory_mb", "validation", "test", "baselines")


class Metric(NamedTuple):
    """One metric of one or several runs; None where it is not defined."""

    mean: float | None  # None where any run lacks it
    std: float | None  # sample standard deviation; None for a single run
    values: tuple[float | None, ...]  # one per run

    @classmethod
    def parse(cls, value: Any) -> Metric:
        """From ``metrics.json``: a number or None, or ``{"mean", "std", "values"}``."""
        if isinstance(value, Mapping):
            return cls(value["mean"], value["std"], tuple(value["values"]))
        return cls(value, None, (value,))


class MetricRow(NamedTuple):
    """A row of a table of metrics: the run on a split and setting, or a baseline on the same queries."""

    split: str
    setting: str
    baseline: str | None  # None: the run itself
    metrics: dict[str, Metric]
    events: list[int]  # distinct numbers of events over the runs
    above_run: list[str]  # metrics in which this baseline is above the run


class UndefinedSplit(NamedTuple):
    """A split and setting without metrics."""

    split: str
    setting: str
    has_events: bool  # False: no event belongs to it; True: the model has no answer for its events


class RunMetrics(dict[str, Any]):
    """The contents of ``metrics.json``, of one run or of several.

    It is a dict, so ``run.metrics["test"]["transductive"]["ap"]`` and ``json.dumps(run.metrics)`` work.
    """

    @classmethod
    def from_json(cls, text: str) -> RunMetrics:
        """Parse ``metrics.json``; files of version 0.1 too. ValueError where it is not a JSON object."""
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        return cls(rename_old_keys(found))

    def to_json(self) -> str:
        return json.dumps(self, indent=2) + "\n"

    @classmethod
    def over_runs(cls, runs: Sequence[RunMetrics]) -> RunMetrics:
        """Mean, standard deviation and values of each metric over several runs of one model on one dataset.

        ``std`` is the sample standard deviation, 0 for one run. Values stand in the order of ``seeds`` and
        ``mask_seeds``. The runs share one protocol, except for ``mask_seed``, which is then a list.
        """
        first = runs[0]
        mask_seeds = [run["protocol"]["mask_seed"] for run in runs]
        protocol = dict(first["protocol"])
        if len(set(mask_seeds)) > 1:
            protocol["mask_seed"] = sorted(set(mask_seeds))
        about = {key: first[key] for key in ("model", "data", "init") if key in first}
        about |= {"seeds": [run["seed"] for run in runs], "mask_seeds": mask_seeds, "protocol": protocol}
        return cls(about | {key: _over_runs([run[key] for run in runs]) for key in AVERAGED})

    @property
    def splits(self) -> list[str]:
        """The splits that were evaluated."""
        return [split for split in SPLITS if split in self]

    @property
    def baselines(self) -> dict[str, Any]:
        """``{baseline: {split: {setting: metrics}}}``; empty where none were evaluated."""
        found: dict[str, Any] = self.get("baselines", {})
        return found

    def metric(
        self, name: str, split: str = "test", setting: str = "transductive", baseline: str | None = None
    ) -> Metric:
        """A metric of the run, or of a baseline on the same queries; undefined where there is none of that name."""
        source = self if baseline is None else self.baselines[baseline]
        return Metric.parse(source[split][setting].get(name))

    def event_counts(self, split: str, setting: str) -> list[int]:
        """Distinct numbers of events over the runs, ascending."""
        return sorted({int(n) for n in self.metric("events", split, setting).values if n is not None})

    def columns(self) -> dict[str, str]:
        """Title of each metric that a table shows, by its name."""
        there = self[self.splits[0]]["transductive"]
        return {name: self.worded(m.title) for name, m in LINK_METRICS.items() if m.in_tables and name in there}

    def worded(self, text: str) -> str:
        """A title or description of `LINK_METRICS` for this run's protocol."""
        return text.format(batch=self["protocol"]["eval_batch_size"])

    def rows(self) -> list[MetricRow]:
        """A row per split and setting; below those of the last split, a row per baseline."""
        found = []
        for split in self.splits:
            for setting in self[split]:
                for baseline in (None, *(self.baselines if split == self.splits[-1] else ())):
                    metrics = {name: self.metric(name, split, setting, baseline) for name in self.columns()}
                    above = [] if baseline is None else self._below(baseline, split, setting)
                    counts = self.event_counts(split, setting)
                    found.append(MetricRow(split, setting, baseline, metrics, counts, above))
        return found

    def below_baselines(self, split: str = "test") -> list[tuple[str, str, list[str]]]:
        """(setting, baseline, metrics) for each baseline that is above the run, in those metrics."""
        pairs = [(setting, baseline) for setting in self.get(split, ()) for baseline in self.baselines]
        found = [(setting, baseline, self._below(baseline, split, setting)) for setting, baseline in pairs]
        return [row for row in found if row[2]]

    def _below(self, baseline: str, split: str, setting: str) -> list[str]:
        """Metrics in which a baseline is above the run."""
        found = []
        for name, metric in LINK_METRICS.items():
            own, other = (self.metric(name, split, setting, who).mean for who in (None, baseline))
            if metric.checks_baselines and own is not None and other is not None and own < other:
                found.append(name)
        return found

    def best_baseline(self, setting: str, metric: str = "ap", split: str = "test") -> tuple[str, float] | None:
        """Name and value of the best baseline; None where no baseline has the metric."""
        means = {b: self.metric(metric, split, setting, b).mean for b, of in self.baselines.items() if split in of}
        defined = {baseline: mean for baseline, mean in means.items() if mean is not None}
        return max(defined.items(), key=lambda item: item[1]) if defined else None

    def constant_runs(self, split: str = "test") -> list[bool]:
        """For each run, whether every pair of the split has the same score."""
        if split not in self:
            return []
        ap, auc = (self.metric(name, split).values for name in ("ap", "auc"))
        return [is_constant({"ap": a, "auc": b}) for a, b in zip(ap, auc, strict=True)]

    def is_constant(self, split: str = "test") -> bool:
        """True where every pair of the split has the same score, in every run."""
        runs = self.constant_runs(split)
        return bool(runs) and all(runs)

    def undefined_splits(self) -> list[UndefinedSplit]:
        """The splits and settings without metrics."""
        found = []
        for split in self.splits:
            for setting in self[split]:
                has_events = self.event_counts(split, setting) != [0]
                if not has_events or all(value is None for value in self.metric("ap", split, setting).values):
                    found.append(UndefinedSplit(split, setting, has_events))
        return found

    def random_negative_share(self, split: str, setting: str) -> float:
        """Share of the negatives that are random because the source has none of the requested kind, 0-1."""
        random, events = (
            sum(n or 0 for n in self.metric(name, split, setting).values) for name in ("random_negatives", "events")
        )
        return random / events if events else 0.0

    def initial_run_overlap(self) -> tuple[str, str] | None:
        """The run of ``--init``, and what it has seen of this run's evaluation; None where it has seen nothing."""
        init = self.get("init", {})
        return (init["run"], init["knows"]) if init.get("knows") else None


def rename_old_keys(value: Any) -> Any:
    """The same JSON value with today's names for the keys of version 0.1, at any depth."""
    if isinstance(value, dict):
        return {RENAMED_KEYS.get(key, key): rename_old_keys(inner) for key, inner in value.items()}
    return [rename_old_keys(inner) for inner in value] if isinstance(value, list) else value


def _over_runs(values: list[Any]) -> dict[str, Any]:
    if isinstance(values[0], dict):
        return {key: _over_runs([value[key] for value in values]) for key in values[0]}
    if any(value is None for value in values):
        return {"mean": None, "std": None, "values": values}
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "std": std, "values": values}
