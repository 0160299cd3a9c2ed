"""CorDGT+ against CorDGT, DyGFormer and counts under one protocol: best published AP, hard negatives, ranking."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from cordgt.experiments import plots, published_results
from cordgt.experiments.cells import Cell, CellResult, CellStore
from cordgt.experiments.hard_negatives import EVAL_BATCH_SIZE, HARD_NEGATIVES, RANKING_CANDIDATES
from cordgt.experiments.link import display_name
from cordgt.experiments.paper import Reported
from cordgt.experiments.published_results import PublishedResult
from cordgt.experiments.tables import (
    MISSING,
    Comparison,
    ExperimentRequest,
    Panels,
    Report,
    ResultSet,
    Section,
    paired_differences,
    percentages,
)
from cordgt.models.presets import published_settings
from cordgt.tasks.baselines import BASELINES
from cordgt.tasks.run_metrics import SETTINGS

OURS = "cordgt_plus"
DEFAULT_MODELS = (OURS, "cordgt", "dygformer", "counts")
DATASETS = ("uci", "enron", "wikipedia", "mooc", "lastfm_prefix", "socialevo_month")
# Subsets of datasets: models use the published settings of the whole dataset.
PART_OF = {"lastfm_prefix": "lastfm", "socialevo_month": "social_evolution"}
BestPublished = dict[str, PublishedResult | None]  # by setting


class MetricColumn(NamedTuple):
    """A column of the tables; without a name it is only in the CSV file."""

    name: str
    negatives: str
    setting: str
    metric: str


class ModelRow(NamedTuple):
    """A model or a baseline on one dataset: its results, and the keys that lead to its metrics in them."""

    key: str
    name: str
    path: tuple[str, ...]
    results: list[CellResult]

    @property
    def is_baseline(self) -> bool:
        return self.path[0] == "baselines"

    def compare(self, metric: MetricColumn, best: PublishedResult | None = None) -> Comparison:
        """Return the metric over the seeds, next to the best published result."""
        prefix = () if metric.negatives == "random" else (metric.negatives,)
        values = percentages(self.results, *prefix, *self.path, metric.setting, metric.metric)
        return Comparison(values, None if best is None else Reported(best.value, 0.0))


WHOLE_SPLIT = tuple(MetricColumn(f"{s}: whole split", "random", s, "ap") for s in SETTINGS)
BY_BATCH = tuple(MetricColumn(f"{s}: by batches of {EVAL_BATCH_SIZE}", "random", s, "ap_batch") for s in SETTINGS)
HARD_COLUMNS = (
    *(MetricColumn(f"{kind} negatives, {s}", kind, s, "ap") for kind in HARD_NEGATIVES for s in SETTINGS),
    *(MetricColumn(f"MRR among {RANKING_CANDIDATES}, {s}", "random", s, "mrr") for s in SETTINGS),
)
CSV_COLUMNS = (
    *(MetricColumn("", kind, s, "ap_batch") for kind in HARD_NEGATIVES for s in SETTINGS),
    *(MetricColumn("", "random", s, "hits@10") for s in SETTINGS),
)


def beyond_cells(request: ExperimentRequest) -> list[Cell]:
    return request.make_cells("hard", lambda data, model: published_settings(PART_OF.get(data, data), model))


def beyond_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report AP by dataset next to the best published one, then hard negatives and ranking, with baselines."""
    cells = beyond_cells(request)
    results = ResultSet(request, store, cells)
    random_sections, hard_sections = [], []
    records: list[dict[str, Any]] = []
    panels: Panels = {}
    for data in request.datasets:
        rows = _rows(data, results)
        heading = results.heading(data)
        show_published = _has_published_size(results, data)
        published = {s: published_results.best_ap(s, data) if show_published else None for s in SETTINGS}
        random_sections.append(_random_section(heading, rows, published))
        hard_sections.append(_hard_section(f"{heading}: hard negatives and ranking", rows))
        metrics = (*WHOLE_SPLIT, *BY_BATCH, *HARD_COLUMNS, *CSV_COLUMNS)
        records += [_record(data, row, metric, published) for row in rows for metric in metrics]
        best_row = ModelRow("", "best published", ("test",), [])
        for metric in BY_BATCH:
            panel = {row.name: row.compare(metric) for row in rows[: len(request.models)]}
            panels[metric.setting, heading] = panel | {
                best_row.name: best_row.compare(metric, published[metric.setting])
            }
    draw = partial(
        plots.dot_plot,
        title=f"AP of link prediction, mean over batches of {EVAL_BATCH_SIZE}",
        panels=panels,
        unit="AP, %",
        published_label="the best published",
    )
    notes = [
        *_protocol_notes(results),
        *_random_share_notes(results),
        *results.notes(show_protocol=False),
    ]
    sections = [*_paired_sections(results), *random_sections, *hard_sections]
    return Report("CorDGT+ and other models, in percent", sections, records, notes, draw)


def _has_published_size(results: ResultSet, data: str) -> bool:
    """Return whether every cell of a dataset has as many nodes and events as published; False without cells."""
    sizes = [(k["stream"]["nodes"], k["stream"]["events"]) for k in results.select(data)]
    published = all(published_results.has_published_size(data, *size) for size in sizes)
    return bool(sizes) and published and not results.request.quick


def _rows(data: str, results: ResultSet) -> list[ModelRow]:
    """Return the models, then the baselines, which are the same for all models of a seed."""
    rows = [ModelRow(m, display_name(m), ("test",), results.select(data, m)) for m in results.request.models]
    one_per_seed = list({result["seed"]: result for result in results.select(data)}.values())
    return rows + [ModelRow(name, f"*{name}*", ("baselines", name), one_per_seed) for name in BASELINES]


def _random_section(heading: str, rows: Sequence[ModelRow], published: BestPublished) -> Section:
    """Show AP with random negatives: over the whole split, by batch, and by batch minus the best published."""
    columns, lines = [""], [[row.name] for row in rows]
    best_line = ["best published"]
    for whole, batch in zip(WHOLE_SPLIT, BY_BATCH, strict=True):
        best = published[batch.setting]
        columns += [whole.name, batch.name, "to the best published"]
        best_line += ["", MISSING if best is None else f"{best.value:.2f} ({best.source})", ""]
        for row, line in zip(rows, lines, strict=True):
            line += [_marked(row, whole, rows), _marked(row, batch, rows), row.compare(batch, best).texts[2]]
    lines = [[*line, str(len(row.results))] for row, line in zip(rows, lines, strict=True)]
    if any(published.values()):
        lines.append([*best_line, ""])
    return Section(heading, [*columns, "seeds"], lines)


def _hard_section(heading: str, rows: Sequence[ModelRow]) -> Section:
    lines = [[row.name, *(_marked(row, m, rows) for m in HARD_COLUMNS), str(len(row.results))] for row in rows]
    return Section(heading, ["", *(m.name for m in HARD_COLUMNS), "seeds"], lines)


def _marked(row: ModelRow, metric: MetricColumn, rows: Sequence[ModelRow]) -> str:
    """Return a metric as text, with ``!`` if a baseline has a higher mean than the model on the same seeds."""
    ours = row.compare(metric)
    if row.is_baseline or ours.mean is None:
        return ours.text
    seeds = {result["seed"] for result in row.results}
    for baseline in (r for r in rows if r.is_baseline):
        same_seeds = [k for k in baseline.results if k["seed"] in seeds]
        mean = baseline._replace(results=same_seeds).compare(metric).mean
        if mean is not None and mean > ours.mean:
            return f"{ours.text} !"
    return ours.text


def _record(data: str, row: ModelRow, metric: MetricColumn, published: BestPublished) -> dict[str, Any]:
    """Return a CSV line: one metric of one row."""
    best = published[metric.setting] if metric in BY_BATCH else None
    return (
        {"data": data, "kind": "baseline" if row.is_baseline else "model", "name": row.key}
        | {"negatives": metric.negatives, "setting": metric.setting, "metric": metric.metric}
        | row.compare(metric, best).to_record(with_paper=False)
        | {"published": best and best.value, "published_by": best and best.source}
    )


def _paired_sections(results: ResultSet) -> list[Section]:
    """Compare CorDGT+ with each other model seed by seed: a seed has the same masked nodes for both."""
    request = results.request
    others = [model for model in request.models if model != OURS]
    if OURS not in request.models or not others:
        return []
    rows = []
    for data in request.datasets:
        for model in others:
            texts = [_count_wins(results, data, model, metric) for metric in WHOLE_SPLIT]
            rows.append([f"{results.heading(data)}, {display_name(model)}", *texts])
    return [Section(f"Seeds for which {display_name(OURS)} is better", ["compared with", *SETTINGS], rows)]


def _count_wins(results: ResultSet, data: str, model: str, metric: MetricColumn) -> str:
    """Return e.g. ``5 of 5 seeds, +1.20 on average``, over the seeds that both models have."""
    ours, others = results.select(data, OURS), results.select(data, model)
    differences = paired_differences(ours, others, "test", metric.setting, metric.metric)
    if not differences:
        return MISSING
    mean = sum(differences) / len(differences)
    return f"{sum(d > 0 for d in differences)} of {len(differences)} seeds, {mean:+.2f} on average"


def _protocol_notes(results: ResultSet) -> list[str]:
    rules = " and ".join(f"`{rule}`" for rule in sorted({k["settings"]["visibility"] for k in results}))
    return [
        f"Our results: visibility {rules}, test split; mean ± sample standard deviation over the seeds. Each seed "
        "masks other nodes; all models of a seed have the same masked nodes and negatives. The first table compares "
        "AP over the whole split. `!`: a baseline is better than the model.",
        f"Best published: AP with random negatives, mean over batches of {EVAL_BATCH_SIZE}, one draw of masked nodes "
        "(DyGFormer, TPNet, DyG-Mamba; CorDGT's paper: batches of 30). It is shown only if the data have as many nodes "
        "and events as published.",
        "*In italics*: baselines, which are trivial predictors on the same queries. Negatives are drawn per source: "
        "`historical`, a destination it met before; `inductive`, one it first met after the training split. MRR: ties "
        f"get their mean rank; with fewer than {RANKING_CANDIDATES} destinations, all of them are candidates.",
    ]


def _random_share_notes(results: ResultSet) -> list[str]:
    """Say how many hard negatives are random ones, because the source had no hard one."""
    notes = []
    for data in dict.fromkeys(result["data"] for result in results):
        first = results.select(data)[0]["figures"]
        shares = []
        for kind in HARD_NEGATIVES:
            metrics = first[kind]["test"]["transductive"]
            if metrics["events"] and "random_negatives" in metrics:
                shares.append(f"{100 * metrics['random_negatives'] / metrics['events']:.1f} % of the {kind} negatives")
        if shares:
            notes.append(
                f"**{data}**, transductive: {' and '.join(shares)} are random, because the source has no such pair."
            )
    return notes
