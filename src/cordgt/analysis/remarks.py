"""Sentences about metrics, for the console and the reports. The facts come from `RunMetrics`. Does not need torch."""

from __future__ import annotations

from collections.abc import Mapping

from cordgt.tasks.metrics import LINK_METRICS
from cordgt.tasks.run_metrics import RunMetrics

CONSTANT_CAUSES = (
    "training collapsed (a smaller learning rate often helps: --set lr=0.0003), or this model finds nothing in these "
    "data that distinguishes pairs"
)
NO_EVENTS = "no event of this split touches a node that training has not seen"
NO_ANSWER = "this model has no answer for nodes that training has not seen"


def remarks(metrics: RunMetrics) -> list[str]:
    """Return every remark on the metrics of a run, or of several runs together."""
    return [
        *undefined_remarks(metrics),
        *random_negative_remarks(metrics),
        *constant_remarks(metrics),
        *initial_run_remarks(metrics),
        *baseline_remarks(metrics),
    ]


def undefined_remarks(metrics: RunMetrics) -> list[str]:
    """A sentence for each split and setting without metrics."""
    return [
        f"{split}, {setting}: not defined, {NO_ANSWER if has_events else NO_EVENTS}."
        for split, setting, has_events in metrics.undefined_splits()
    ]


def random_negative_remarks(metrics: RunMetrics) -> list[str]:
    """A sentence for each split and setting in which random negatives replace missing ones."""
    shares = {(split, s): metrics.random_negative_share(split, s) for split in metrics.splits for s in metrics[split]}
    return [
        f"{split}, {setting}: {share:.0%} of the negatives are random, because none of the requested kind exist."
        for (split, setting), share in shares.items()
        if share > 0
    ]


def constant_remarks(metrics: RunMetrics) -> list[str]:
    """A sentence if all test pairs of a run have the same score."""
    runs = metrics.constant_runs()
    if not any(runs):
        return []
    which = f", in {sum(runs)} of {len(runs)} runs" if len(runs) > 1 else ""
    return [f"Every pair of the test period has the same score{which}: {CONSTANT_CAUSES}."]


def initial_run_remarks(metrics: RunMetrics) -> list[str]:
    """A sentence if the run that this one started from (``--init``) was trained on events this one is evaluated on."""
    overlap = metrics.initial_run_overlap()
    if overlap is None:
        return []
    run, seen = overlap
    return [f"The metrics may be too good: this run started from {run}; {seen}."]


def baseline_remarks(metrics: RunMetrics) -> list[str]:
    """A sentence if baselines are above the model on the test period."""
    above = [
        f"{baseline} ({setting}: {', '.join(metrics.format_text(LINK_METRICS[name].title) for name in names)})"
        for setting, baseline, names in metrics.below_baselines()
    ]
    return [f"The model is below trivial baselines on the test period: {', '.join(above)}."] if above else []


def metric_legend(metrics: RunMetrics) -> str:
    """The definitions of a table's metrics."""
    return " ".join(
        f"{title}: {metrics.format_text(LINK_METRICS[name].description)}." for name, title in metrics.columns().items()
    )


def verdict(metrics: RunMetrics) -> str:
    """The test AP of a run, compared with the best baseline."""
    ap = metrics.metric("ap").mean
    if ap is None:
        return "There is no test event to evaluate."
    result = f"This model reaches {100 * ap:.2f} % average precision (AP) on the test period"
    return _compare_with_baseline(result, ap, metrics)


def comparison_verdict(runs: Mapping[str, RunMetrics]) -> str:
    """Which of several runs has the highest test AP, compared with the best baseline."""
    aps = {name: ap for name, metrics in runs.items() if (ap := metrics.metric("ap").mean) is not None}
    if not aps:
        return "None of these runs has metrics of its test period."
    winner, ap = max(aps.items(), key=lambda item: item[1])
    result = f"{winner} has the highest test AP: {100 * ap:.2f} %, transductive"
    return _compare_with_baseline(result, ap, runs[winner])


def _compare_with_baseline(result: str, ap: float, metrics: RunMetrics) -> str:
    best = metrics.best_baseline("transductive")
    if best is None:
        return f"{result}."
    name, value = best
    if value > ap:
        return f"A trivial baseline does better: “{name}” reaches a test AP of {100 * value:.2f} %. {result}."
    return f"{result}, {100 * (ap - value):.2f} points above the best trivial baseline (“{name}”)."


def difference_remark(name: str, row: Mapping[str, float]) -> str:
    """Which of two runs is better in a metric, and by how many points; ``row`` is of `compare.paired_bootstrap`."""
    title = LINK_METRICS[name].title
    difference, low, high = (100 * row[key] for key in ("difference", "low", "high"))
    if low > 0:
        return f"B is better on {title}: +{difference:.2f} points ({low:.2f} to {high:.2f})."
    if high < 0:
        return f"A is better on {title}: +{-difference:.2f} points ({-high:.2f} to {-low:.2f})."
    return f"No clear difference in {title}: {difference:+.2f} points ({low:+.2f} to {high:+.2f})."
