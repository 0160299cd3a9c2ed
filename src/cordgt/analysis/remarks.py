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
        *unknown_destination_remarks(metrics),
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
        f"{split}, {setting}: {share:.0%} of the negatives are random, because the requested kind gave none."
        for (split, setting), share in shares.items()
        if share > 0
    ]


def unknown_destination_remarks(metrics: RunMetrics) -> list[str]:
    """A sentence for each split and setting in which a filtered ranking leaves events out."""
    counts = {
        (split, s): metrics.metric("unknown_destinations", split, s).mean
        for split in metrics.splits
        for s in metrics[split]
    }
    return [
        f"{split}, {setting}: {n:,.0f} events are not ranked, because their destination has no earlier event."
        for (split, setting), n in counts.items()
        if n
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
    """Answer the question that a run, or several, was trained for, on its last split, and compare with a baseline."""
    split = metrics.splits[-1] if metrics.splits else "test"
    if split not in metrics or metrics.metric("ap", split).mean is None:
        return f"There is no {split} event to evaluate."
    n_runs = len(metrics.metric("ap", split).values)
    prefix = f"On average over {n_runs} runs: " if n_runs > 1 else ""
    return prefix + (_ranking_verdict if metrics.primary_metric == "mrr" else _pair_verdict)(metrics, split)


def _ranking_verdict(metrics: RunMetrics, split: str) -> str:
    mrr = metrics.metric("mrr", split).mean
    if mrr is None:
        return (
            "This model learned to rank the destinations of one source, but no ranks were measured. Measure them with "
            "`cordgt evaluate RUN --ranking 100`. AP and AUC compare scores of different sources, so they say little "
            "about it."
        )
    result = f"{_top_ten(metrics, split)} The mean reciprocal rank (MRR) is {100 * mrr:.2f} %"
    return _compare_with_baseline(result, mrr, metrics, "mrr", split)


def _pair_verdict(metrics: RunMetrics, split: str) -> str:
    ap = metrics.metric("ap", split).mean
    assert ap is not None
    kind = metrics["protocol"].get("negatives", "random")
    other = "a random partner" if kind == "random" else f"a harder one ({kind})"
    result = (
        f"Compared with {other}, the true destination is found with {100 * ap:.2f} % average precision (AP) on the "
    )
    result = _compare_with_baseline(f"{result}{split} period", ap, metrics, "ap", split)
    return f"{result} {_top_ten(metrics, split)}".strip()


def _top_ten(metrics: RunMetrics, split: str) -> str:
    """How often the true destination has a rank of at most 10; empty if no ranks were measured."""
    hits = metrics.metric("hits@10", split).mean
    if hits is None:
        return ""
    n, chosen = metrics["protocol"]["ranking"], metrics["protocol"].get("filter", "none")
    candidates = "all candidates" if n == "all" else f"at most {n} candidates"
    if chosen != "none":
        candidates += " that it knows" if chosen == "known" else " that the source has not met"
    return (
        f"Ranked among {candidates}, the true destination is in the top 10 for {100 * hits:.2f} % of the {split} "
        "events (hits@10)."
    )


def comparison_verdict(runs: Mapping[str, RunMetrics]) -> str:
    """Which of several runs is best on the test period, compared with the best baseline: by MRR if all learned to rank.

    Otherwise by AP, without the runs that learned to rank: AP says little about them.
    """
    has_ranks = all(m.primary_metric == "mrr" and m.metric("mrr").mean is not None for m in runs.values())
    name = "mrr" if has_ranks else "ap"
    compared = {run: m for run, m in runs.items() if m.primary_metric == name}
    values = {run: value for run, metrics in compared.items() if (value := metrics.metric(name).mean) is not None}
    if not compared:
        return "These runs learned to rank, but not all have ranks. Measure them: `cordgt evaluate RUN --ranking 100`."
    if not values:
        return "None of these runs has metrics of its test period."
    winner, value = max(values.items(), key=lambda item: item[1])
    result = f"{winner} has the highest test {LINK_METRICS[name].title}: {100 * value:.2f} %, transductive"
    return _compare_with_baseline(result, value, runs[winner], name)


def _compare_with_baseline(result: str, value: float, metrics: RunMetrics, name: str, split: str = "test") -> str:
    best = metrics.best_baseline("transductive", name, split)
    if best is None:
        return f"{result}."
    baseline, other = best
    title = LINK_METRICS[name].title
    if other > value:
        return (
            f"A trivial baseline does better: “{baseline}” reaches a {split} {title} of {100 * other:.2f} %. {result}."
        )
    return f"{result}, {100 * (value - other):.2f} points above the best trivial baseline (“{baseline}”)."


def difference_remark(name: str, row: Mapping[str, float]) -> str:
    """Which of two runs is better in a metric, and by how much; ``row`` is of `compare.paired_bootstrap`."""
    metric = LINK_METRICS[name]
    title, unit = metric.title, metric.points
    difference, low, high = row["difference"], row["low"], row["high"]
    if low <= 0 <= high:
        signed = [metric.format(value, "+") for value in (difference, low, high)]
        return f"No clear difference in {title}: {signed[0]}{unit} ({signed[1]} to {signed[2]})."
    is_b_better = metric.is_better(difference, 0.0)
    if difference < 0:
        difference, low, high = -difference, -high, -low
    sign = "+" if metric.higher_is_better else "-"
    sizes = [metric.format(value) for value in (difference, low, high)]
    winner = "B" if is_b_better else "A"
    return f"{winner} is better on {title}: {sign}{sizes[0]}{unit} ({sizes[1]} to {sizes[2]})."
