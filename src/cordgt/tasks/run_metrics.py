"""The content of ``metrics.json`` as one object. `cordgt.analysis.remarks` turns it into sentences.

One run has a number (or None) for each metric. Several runs (``--seeds``, ``--mask-draws``) have its mean, standard
deviation and values. The accessors work for both. Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cordgt.events.frames import FrameExport
from cordgt.tasks.metrics import LINK_METRICS, is_constant

SPLITS = ("validation", "test")  # the splits that are evaluated
SETTINGS = ("transductive", "inductive")  # all events; events that touch a node without training events
# Keys of files written by version 0.1.
RENAMED_KEYS = {"floors": "baselines", "seen lately": "seen recently", "past_on": "history_device"}
AGGREGATED_KEYS = ("epochs", "best_epoch", "seconds_per_epoch", "peak_memory_mb", "validation", "test", "baselines")


class Metric(NamedTuple):
    """One metric of one or several runs; None if it is not defined."""

    mean: float | None  # None if any run lacks it
    std: float | None  # sample standard deviation; None for a single run
    values: tuple[float | None, ...]  # one per run

    @classmethod
    def parse(cls, value: Any) -> Metric:
        """Parse an entry of ``metrics.json``: a number or None, or ``{"mean", "std", "values"}``."""
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


class RunMetrics(dict[str, Any], FrameExport):
    """The contents of ``metrics.json``, of one run or of several.

    It is a dict, so ``run.metrics["test"]["transductive"]["ap"]`` and ``json.dumps(run.metrics)`` work.
    """

    @classmethod
    def from_json(cls, text: str) -> RunMetrics:
        """Parse ``metrics.json``; files of version 0.1 too. ValueError if it is not a JSON object."""
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        return cls(rename_old_keys(content))

    def to_json(self) -> str:
        return json.dumps(self, indent=2) + "\n"

    @classmethod
    def from_runs(cls, runs: Sequence[RunMetrics]) -> RunMetrics:
        """Return mean, standard deviation and values of each metric over several runs of one model on one dataset.

        ``std`` is the sample standard deviation, 0 for one run. Values are in the order of ``seeds`` and
        ``mask_seeds``. The runs share one protocol, except for ``mask_seed``, which is then a list.
        """
        first = runs[0]
        mask_seeds = [run["protocol"]["mask_seed"] for run in runs]
        protocol = dict(first["protocol"])
        if len(set(mask_seeds)) > 1:
            protocol["mask_seed"] = sorted(set(mask_seeds))
        summary = {key: first[key] for key in ("model", "data", "objective", "init") if key in first}
        summary |= {"seeds": [run["seed"] for run in runs], "mask_seeds": mask_seeds, "protocol": protocol}
        return cls(summary | {key: _aggregate([run[key] for run in runs]) for key in AGGREGATED_KEYS})

    @property
    def splits(self) -> list[str]:
        """The splits that were evaluated."""
        return [split for split in SPLITS if split in self]

    @property
    def primary_metric(self) -> str:
        """The metric of what the run was trained for: "mrr" if that is ranking, else "ap"."""
        return "mrr" if self.get("objective") == "ranking" else "ap"

    @property
    def baselines(self) -> dict[str, Any]:
        """``{baseline: {split: {setting: metrics}}}``; empty if none were evaluated."""
        baselines: dict[str, Any] = self.get("baselines", {})
        return baselines

    def metric(
        self, name: str, split: str = "test", setting: str = "transductive", baseline: str | None = None
    ) -> Metric:
        """Return a metric of the run, or of a baseline on the same queries; undefined if there is none of that name."""
        source = self if baseline is None else self.baselines[baseline]
        return Metric.parse(source[split][setting].get(name))

    def event_counts(self, split: str, setting: str) -> list[int]:
        """Return the distinct numbers of events over the runs, ascending."""
        return sorted({int(n) for n in self.metric("events", split, setting).values if n is not None})

    def columns(self) -> dict[str, str]:
        """Return the title of each metric that a table shows, by its name."""
        present = self[self.splits[0]]["transductive"]
        return {name: self.format_text(m.title) for name, m in LINK_METRICS.items() if m.in_tables and name in present}

    def format_text(self, text: str) -> str:
        """Fill this run's protocol into a title or description of `LINK_METRICS`."""
        return text.replace("{batch}", str(self["protocol"]["eval_batch_size"]))

    def rows(self) -> list[MetricRow]:
        """Return a row per split and setting; for the last split, each is followed by a row per baseline."""
        rows = []
        for split in self.splits:
            for setting in self[split]:
                for baseline in (None, *(self.baselines if split == self.splits[-1] else ())):
                    metrics = {name: self.metric(name, split, setting, baseline) for name in self.columns()}
                    above = [] if baseline is None else self._metrics_below(baseline, split, setting)
                    counts = self.event_counts(split, setting)
                    rows.append(MetricRow(split, setting, baseline, metrics, counts, above))
        return rows

    def to_arrow(self) -> Any:
        """Return `rows` as a ``pyarrow.Table``: ``split, setting, predictor, events`` and a column per metric.

        ``predictor`` is the model or a baseline. Several runs have the mean of each metric, and a column ``…_std``;
        ``events`` is null if it differs between the runs.
        """
        has_std = "seeds" in self
        names = ["split", "setting", "predictor", "events"]
        names += [f"{name}{suffix}" for name in self.columns() for suffix in (("", "_std") if has_std else ("",))]
        table: dict[str, list[Any]] = {name: [] for name in names}
        for row in self.rows():
            values = [row.split, row.setting, row.baseline or self["model"]]
            values.append(row.events[0] if len(row.events) == 1 else None)
            for metric in row.metrics.values():
                values += [metric.mean, metric.std] if has_std else [metric.mean]
            for name, value in zip(names, values, strict=True):
                table[name].append(value)
        types = [pa.string()] * 3 + [pa.int64()] + [pa.float64()] * (len(names) - 4)
        return pa.table([pa.array(table[name], dtype) for name, dtype in zip(names, types, strict=True)], names=names)

    def below_baselines(self, split: str = "test") -> list[tuple[str, str, list[str]]]:
        """Return (setting, baseline, metrics) for each baseline that is above the run, in those metrics."""
        pairs = [(setting, baseline) for setting in self.get(split, ()) for baseline in self.baselines]
        rows = [(setting, baseline, self._metrics_below(baseline, split, setting)) for setting, baseline in pairs]
        return [row for row in rows if row[2]]

    def _metrics_below(self, baseline: str, split: str, setting: str) -> list[str]:
        """Return the metrics in which the run is below a baseline. A run trained for ranking is compared by ranks."""
        names = []
        for name, metric in LINK_METRICS.items():
            own, other = (self.metric(name, split, setting, key).mean for key in (None, baseline))
            is_checked = metric.checks_baselines and (metric.needs_ranks or self.primary_metric == "ap")
            if is_checked and own is not None and other is not None and metric.is_better(other, own):
                names.append(name)
        return names

    def best_baseline(self, setting: str, metric: str = "ap", split: str = "test") -> tuple[str, float] | None:
        """Return name and value of the best baseline; None if no baseline has the metric."""
        means = {
            b: self.metric(metric, split, setting, b).mean for b, splits in self.baselines.items() if split in splits
        }
        defined = {baseline: mean for baseline, mean in means.items() if mean is not None}
        choose = max if LINK_METRICS[metric].higher_is_better else min
        return choose(defined.items(), key=lambda item: item[1]) if defined else None

    def constant_runs(self, split: str = "test") -> list[bool]:
        """Return for each run whether every pair of the split has the same score."""
        if split not in self:
            return []
        ap, auc = (self.metric(name, split).values for name in ("ap", "auc"))
        return [is_constant({"ap": a, "auc": b}) for a, b in zip(ap, auc, strict=True)]

    def is_constant(self, split: str = "test") -> bool:
        """Return True if every pair of the split has the same score, in every run."""
        runs = self.constant_runs(split)
        return bool(runs) and all(runs)

    def undefined_splits(self) -> list[UndefinedSplit]:
        """Return the splits and settings without metrics."""
        undefined = []
        for split in self.splits:
            for setting in self[split]:
                has_events = self.event_counts(split, setting) != [0]
                if not has_events or all(value is None for value in self.metric("ap", split, setting).values):
                    undefined.append(UndefinedSplit(split, setting, has_events))
        return undefined

    def random_negative_share(self, split: str, setting: str) -> float:
        """Return the share of negatives that are random because the source has none of the requested kind, 0-1."""
        random, events = (
            sum(n or 0 for n in self.metric(name, split, setting).values) for name in ("random_negatives", "events")
        )
        return random / events if events else 0.0

    def initial_run_overlap(self) -> tuple[str, str] | None:
        """Return the run of ``--init``, and which evaluation data of this run it was trained on; None if none."""
        init = self.get("init", {})
        return (init["run"], init["knows"]) if init.get("knows") else None


def rename_old_keys(value: Any) -> Any:
    """Return a JSON value with the current names of keys from version 0.1, at any depth."""
    if isinstance(value, dict):
        return {RENAMED_KEYS.get(key, key): rename_old_keys(inner) for key, inner in value.items()}
    return [rename_old_keys(inner) for inner in value] if isinstance(value, list) else value


def _aggregate(values: list[Any]) -> dict[str, Any]:
    if isinstance(values[0], dict):
        shared = [key for key in values[0] if all(key in value for value in values)]  # a plug-in may lack in some runs
        return {key: _aggregate([value[key] for value in values]) for key in shared}
    if any(value is None for value in values):
        return {"mean": None, "std": None, "values": values}
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "std": std, "values": values}
