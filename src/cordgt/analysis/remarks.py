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
    """Everything to know about the metrics of a run, or of several; empty where there is nothing."""
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
    """A sentence where every pair of the test period has the same score, in any run."""
    runs = metrics.constant_runs()
    if not any(runs):
        return []
    which = f", in {sum(runs)} of {len(runs)} runs" if len(runs) > 1 else ""
    return [f"Every pair of the test period has the same score{which}: {CONSTANT_CAUSES}."]


def initial_run_remarks(metrics: RunMetrics) -> list[str]:
    """A sentence where the run that this one started from (``--init``) has seen what this one is evaluated on."""
    overlap = metrics.initial_run_overlap()
    if overlap is None:
        return []
    run, seen = overlap
    return [f"The metrics may be too good: this run started from {run}; {seen}."]


def baseline_remarks(metrics: RunMetrics) -> list[str]:
    """A sentence where baselines are above the model on the test period."""
    above = [
        f"{baseline} ({setting}: {', '.join(metrics.worded(LINK_METRICS[name].title) for name in names)})"
        for setting, baseline, names in metrics.below_baselines()
    ]
    return [f"The model is below trivial baselines on the test period: {', '.join(above)}."] if above else []


def metric_legend(metrics: RunMetrics) -> str:
    """What each metric of a table is."""
    return " ".join(
        f"{title}: {metrics.worded(LINK_METRICS[name].description)}." for name, title in metrics.columns().items()
    )


def verdict(metrics: RunMetrics) -> str:
    """The test AP of a run, compared with the best baseline."""
    ap, best = metrics.metric("ap").mean, metrics.best_baseline("transductive")
    if ap is None:
        return "There is no test event to evaluate."
    if best is None:
        return f"{100 * ap:.2f} % average precision on the test period."
    name, value = best
    if value > ap:
        return (
            f"A trivial baseline does better: “{name}” reaches {100 * value:.2f} % average precision on the test "
            f"period, this model {100 * ap:.2f} %."
        )
    lead = f"{100 * (ap - value):.2f} points above the best trivial baseline (“{name}”)"
    return f"{100 * ap:.2f} % average precision on the test period, {lead}."


def verdict_of_several(runs: Mapping[str, RunMetrics]) -> str:
    """Which of several runs has the highest test AP, and whether a baseline is above it."""
    found = {name: ap for name, metrics in runs.items() if (ap := metrics.metric("ap").mean) is not None}
    if not found:
        return "None of these runs has metrics of its test period."
    winner, ap = max(found.items(), key=lambda item: item[1])
    best = runs[winner].best_baseline("transductive")
    highest = f"{winner} has the highest test AP: {100 * ap:.2f} %, transductive"
    if best is None:
        return f"{highest}."
    name, value = best
    if value > ap:
        return (
            f"A trivial baseline does better than all of these: “{name}” reaches {100 * value:.2f} % average "
            f"precision on the test period. {highest}."
        )
    return f"{highest}, {100 * (ap - value):.2f} points above the best trivial baseline (“{name}”)."


def difference_remark(name: str, row: Mapping[str, float]) -> str:
    """Which of two runs is better in a metric, and by how many points; ``row`` is of `compare.paired_bootstrap`."""
    title = LINK_METRICS[name].title
    difference, low, high = (100 * row[key] for key in ("difference", "low", "high"))
    if low > 0:
        return f"B is better on {title}: +{difference:.2f} points ({low:.2f} to {high:.2f})."
    if high < 0:
        return f"A is better on {title}: +{-difference:.2f} points ({-high:.2f} to {-low:.2f})."
    return f"No clear difference in {title}: {difference:+.2f} points ({low:+.2f} to {high:+.2f})."
