"""Sections that explain a model's scores: context by distance, and the most surprising events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cordgt.analysis.report import html
from cordgt.analysis.report.charts import heatmap
from cordgt.analysis.report.data import ReportData
from cordgt.analysis.report.html import Html, PageSection
from cordgt.analysis.report.influence import (
    InfluenceGrid,
    NodeEffect,
    ablate_context_nodes,
    influence_by_distance,
)
from cordgt.analysis.report.plots import format_times
from cordgt.analysis.report.sample import extreme_events, extreme_margins
from cordgt.events.arrays import evenly_spaced
from cordgt.history.queries import Queries
from cordgt.inference.predictor import sigmoid

N_LISTED = 5  # events of each kind of surprise
N_HEATMAP_EVENTS = 200  # true events whose context goes into the heatmaps


def distance_section(data: ReportData) -> PageSection:
    """Heatmaps of the influence of context nodes by their distance to both ends; for models with `influences`."""
    queries = data.sample.positive_queries.take(evenly_spaced(len(data.sample), N_HEATMAP_EVENTS))
    grids = influence_by_distance(data.model, data.task, queries)
    if getattr(data.settings.model_settings, "head", "") == "linear":
        method = "It is exact, because this model has a linear head."
    else:
        method = "It is a first-order estimate; `--set head=linear` makes it exact."
    return html.section(
        "By distance: which context raises the score",
        html.side_by_side(*(_influence_figure(grid) for grid in grids)),
        html.paragraph(
            "A cell shows how much the logit would grow if all context nodes were at these distances from source and "
            f"destination. {method} Blank: no such node. TD, temporal distance, is small for nodes that met often and "
            "recently; SD, spatial distance, counts hops in the sampled tree. In the paper, nodes near to both ends "
            f"(top left) raise the score most. Based on the context of {len(queries.src):,} true events.",
            css="how",
        ),
        anchor="distances",
        link="Distances",
    )


def _influence_figure(grid: InfluenceGrid) -> Html:
    name = {"TD": "temporal distance", "SD": "spatial distance"}[grid.distance]
    tooltips = [
        [
            f"{name} to source {a}, to destination {b}: {mean:+.3f}, {count:,} nodes"
            for b, mean, count in zip(grid.group_names, means, counts, strict=True)
        ]
        for a, means, counts in zip(grid.group_names, grid.mean.tolist(), grid.count.tolist(), strict=True)
    ]
    chart = heatmap(
        grid.mean.tolist(),
        tooltips,
        (f"{grid.distance} to the destination", grid.group_names),
        (f"{grid.distance} to the source", grid.group_names),
        alt=f"Mean influence of context nodes by {name} to both ends",
    )
    return html.figure(chart, f"By {name} ({grid.distance}) to both ends.")


# -------------------- the most surprising events


def surprises_section(data: ReportData) -> PageSection:
    """The events where the model is most unexpectedly right and most wrong, with the context nodes that matter."""
    parts = _lists_by_margin(data) if data.model.learns_ranking else _lists_by_score(data)
    if hasattr(data.model, "influences"):
        about = (
            "Top context nodes: the nodes without which the score changes most. + raises the logit, − lowers it. To "
            "measure this, the report removes each node from both trees and scores the pair again."
        )
        parts.append(html.paragraph(about, css="how"))
    return html.section("The most surprising events", *parts, anchor="surprises", link="Surprises")


def _lists_by_score(data: ReportData) -> list[Html]:
    """Lists for a model whose scores compare across sources: a score above 0.5 means predicted."""
    sample, rows = data.sample, extreme_events(data.sample, N_LISTED)

    def make(kind: str, title: str, about: str, queries: Queries, logits: np.ndarray, counts: np.ndarray) -> Html:
        which = rows[kind]
        scores = [
            Html(f"{_format_score(x)}&nbsp;<small>(logit&nbsp;{_format_change(x)})</small>") for x in logits[which]
        ]
        return _event_list(data, title, about, which, queries.take(which), counts[which], scores)

    true = (sample.positive_queries, sample.positive, sample.pair_count)
    false = (sample.negative_queries, sample.negative, sample.negative_pair_count)
    return [
        make("hits", "Predicted new pairs", "True events of pairs that had never met, with the highest scores.", *true),
        make("misses", "Missed events", "True events with the lowest scores, below one half.", *true),
        make("alarms", "False alarms", "Negatives with the highest scores, above one half.", *false),
    ]


def _lists_by_margin(data: ReportData) -> list[Html]:
    """Lists for a model that ranks: by the margin between the true destination and the negative."""
    sample, rows = data.sample, extreme_margins(data.sample, N_LISTED)

    def make(kind: str, title: str, about: str) -> Html:
        which = rows[kind]
        true, false = sample.positive_queries.take(which), sample.negative_queries.take(which)
        scores = []
        for margin, pair, u, v in zip(sample.margin[which], _pairs(data, false), true.src, false.src, strict=True):
            negative = html.user_id(pair[1]) if u == v else _format_pair(pair)
            scores.append(Html(f"{_format_change(margin)} <small>to {negative}</small>"))
        return _event_list(data, title, about, which, true, sample.pair_count[which], scores)

    return [
        make("hits", "Predicted new pairs", "True events of pairs that had never met, with the largest margins."),
        make("misses", "Missed events", "True events with negative margins: the negative named here scores higher."),
    ]


def _event_list(
    data: ReportData,
    title: str,
    about: str,
    rows: np.ndarray,
    queries: Queries,
    pair_count: np.ndarray,
    scores: list[Html],
) -> Html:
    """A table of ``rows`` of the sample; ``queries`` are the pairs that it shows and explains."""
    if not len(rows):
        return html.join([html.heading(title), html.paragraph("None among the sampled events.", css="how")])
    header = ["source → destination", "time", "margin" if data.model.learns_ranking else "score", "before"]
    times = format_times(data.task.stream, data.sample.positions[rows])
    cells: list[list[Any]] = []
    for pair, time, score, count in zip(_pairs(data, queries), times, scores, pair_count, strict=True):
        before = Html(f"<small>{f'met {count:,}×' if count else 'never met'}</small>")
        cells.append([_format_pair(pair), html.join([html.narrow_label("at"), time]), score, before])
    if hasattr(data.model, "influences"):
        header.append("top context nodes")
        effects = ablate_context_nodes(data.model, data.task, queries)
        for i, ends in enumerate(queries.endpoints.tolist()):
            cells[i].append(_format_effects(data, effects[i], ends))
    table = html.table(header, cells, css="stack")
    return html.join([html.heading(title), html.paragraph(about, css="how"), table])


def _pairs(data: ReportData, queries: Queries) -> list[tuple[Any, Any]]:
    """Source and destination of each query as the user's ids."""
    ids = data.task.stream.ids
    src, dst = (ids.decode(x.cpu().numpy()).to_pylist() for x in (queries.src, queries.dst[:, 0]))
    return list(zip(src, dst, strict=True))


def _format_pair(pair: tuple[Any, Any]) -> Html:
    return Html(f"{html.user_id(pair[0])} → {html.user_id(pair[1])}")


def _format_score(logit: float) -> Html:
    """A score between 0 and 1, never rounded to 0 or 1."""
    score = float(sigmoid(logit))
    return html.text(f"{score:.3f}" if 0.001 <= score <= 0.999 else "<0.001" if score < 0.5 else ">0.999")


def _format_effects(data: ReportData, effects: list[NodeEffect], ends: Sequence[int]) -> Html:
    """The nodes that change a score most, by the user's ids."""
    if not effects:
        return Html("<small>no history</small>")
    parts = [html.narrow_label("top context nodes")]
    for effect, name in zip(effects, data.task.stream.ids.decode([e.node for e in effects]).to_pylist(), strict=True):
        hops = zip(effect.n_hops, ("source", "destination"), strict=True)
        tooltip = ", ".join(f"{n} from the {end}" for n, end in hops if n)
        itself = " itself" if effect.node in ends else ""
        css = "up" if effect.change >= 0 else "down"
        parts.append(
            Html(
                f'<span class="effect" title="hops: {html.text(tooltip)}">{html.user_id(name)}{itself} '
                f'<span class="{css}">{_format_change(effect.change)}</span></span>'
            )
        )
    return html.join(parts, " ")


def _format_change(value: float) -> Html:
    return html.text(f"{value:+.2f}".replace("-", "−"))
