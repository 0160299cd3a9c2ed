"""Why a model says what it says: which context speaks for a pair, and the events where it is most surprising."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cordgt.analysis.report.charts import heatmap
from cordgt.analysis.report.data import ReportData, times_of
from cordgt.analysis.report.html import (
    Html,
    figure,
    join,
    narrow,
    paragraph,
    section,
    side_by_side,
    table,
    text,
    user_id,
)
from cordgt.analysis.report.influence import Driver, Heat, drivers, heats
from cordgt.analysis.report.sample import surprises, surprises_by_lead
from cordgt.events.arrays import evenly
from cordgt.history.queries import Queries
from cordgt.inference.predictor import sigmoid

ROWS = 5  # of each kind of surprise
HEATED = 200  # true events whose context is looked at for the heatmaps


def by_distance(look: ReportData) -> Html:
    """Heat maps of what context adds to the score, by its distance to both ends; nothing for models without trees."""
    if not hasattr(look.model, "influences"):
        return Html("")
    asked = look.asked
    found = heats(look.model, look.task, asked.true.take(evenly(len(asked), HEATED)))
    exact = getattr(look.settings.model_settings, "head", "") == "linear"
    how = (
        "exactly, since this model's head is linear"
        if exact
        else "to first order: by the slope of the head, which is not linear (`--set head=linear` makes it exact)"
    )
    return section(
        "By distance: which context speaks for a pair",
        side_by_side(*(_heat_plot(heat) for heat in found)),
        paragraph(
            f"The context nodes of {min(HEATED, len(asked)):,} true events, by how far each is from either end: "
            "temporal distance (TD: small where two met often and lately) and spatial distance (SD: hops in the "
            f"sampled tree). A cell is what the logit would gain if all context were like that, {how}. Blank: no such "
            "node. In the paper, nearness to both ends (top left) speaks most for a pair.",
            kind="how",
        ),
        name="distances",
    )


def _heat_plot(heat: Heat) -> Html:
    names = {"TD": "temporal distance", "SD": "spatial distance"}[heat.what]
    notes = [
        [
            f"{names} to source {a}, to destination {b}: {m:+.3f}, {c:,} nodes"
            for b, m, c in zip(heat.names, means, counts, strict=True)
        ]
        for a, means, counts in zip(heat.names, heat.mean.tolist(), heat.count.tolist(), strict=True)
    ]
    drawn = heatmap(
        heat.mean.tolist(),
        notes,
        (f"{heat.what} to the destination", heat.names),
        (f"{heat.what} to the source", heat.names),
        says=f"Mean influence of context nodes by {names} to both ends",
    )
    return figure(drawn, f"By {names} ({heat.what}) to both ends.")


@dataclass(frozen=True)
class _List:
    """Events that are listed: ``which`` rows of what was asked, and the pair of each that is shown and explained."""

    title: str
    said: str
    which: np.ndarray
    queries: Queries
    met: np.ndarray
    how: list[Html]  # how it scored, one of each row


def most_surprising(look: ReportData) -> Html:
    """The events where the model was most right against the odds, and most wrong; each with what drove its score."""
    explained = hasattr(look.model, "influences")
    parts = []
    for listed in _by_lead(look) if look.model.learns_ranking else _by_score(look):
        parts.append(Html(f"<h3>{text(listed.title)}</h3>"))
        if not len(listed.which):
            parts.append(paragraph("None among the events looked at.", kind="how"))
            continue
        parts.append(paragraph(listed.said, kind="how"))
        parts.append(_table_of(look, listed, explained))
    if explained:
        parts.append(
            paragraph(
                "Driven by: each of the context nodes of largest influence is taken out of both trees, the pair is "
                "scored again, and those that changed it most are named: + raised the logit, − lowered it, by so much.",
                kind="how",
            )
        )
    return section("The most surprising", *parts, name="surprises")


def _by_score(look: ReportData) -> list[_List]:
    """The surest and the most mistaken, where a score of one half parts what is foreseen from what is not."""
    asked, rows = look.asked, surprises(look.asked, ROWS)

    def listed(kind: str, title: str, said: str, *, true: bool = True) -> _List:
        which = rows[kind]
        queries, logits, met = (
            (asked.true, asked.positive, asked.met) if true else (asked.drawn, asked.negative, asked.met_drawn)
        )
        how = [Html(f"{_score(x)}&nbsp;<small>(logit&nbsp;{text(_change(x))})</small>") for x in logits[which]]
        return _List(title, said, which, queries.take(which), met[which], how)

    return [
        listed("hits", "Foreseen, though they had never met", "True first meetings with the highest scores."),
        listed("misses", "Missed", "True events with the lowest scores, below one half."),
        listed(
            "alarms", "False alarms", "Destinations that were not the event's, with the highest scores.", true=False
        ),
    ]


def _by_lead(look: ReportData) -> list[_List]:
    """The same of a model that ranks: by how far the true one is ahead of, or behind, what it is told from."""
    asked, rows = look.asked, surprises_by_lead(look.asked, ROWS)

    def listed(kind: str, title: str, said: str) -> _List:
        which = rows[kind]
        true, drawn = asked.true.take(which), asked.drawn.take(which)
        same = (true.src == drawn.src).tolist()
        ends = [look.task.stream.ids.take(x.cpu().numpy()).to_pylist() for x in (drawn.src, drawn.dst[:, 0])]
        how = []
        for lead, u, v, is_same in zip(asked.lead[which], *ends, same, strict=True):
            rival = user_id(v) if is_same else Html(f"{user_id(u)} → {user_id(v)}")
            how.append(Html(f"{text(_change(lead))} <small>to {rival}</small>"))
        return _List(title, said, which, true, asked.met[which], how)

    return [
        listed(
            "hits",
            "Foreseen, though they had never met",
            "True first meetings that are furthest ahead, in logits, of the destination each is told from.",
        ),
        listed(
            "misses",
            "Missed",
            "True events that are furthest behind the destination each is told from, which is named: the false alarm.",
        ),
    ]


def _table_of(look: ReportData, listed: _List, explained: bool) -> Html:
    stream, queries, met = look.task.stream, listed.queries, listed.met
    found = drivers(look.model, look.task, queries) if explained else [[] for _ in met]
    times = times_of(stream, look.asked.position[listed.which])
    ends = [stream.ids.take(x.cpu().numpy()).to_pylist() for x in (queries.src, queries.dst[:, 0])]
    rows = []
    for i, (a, b) in enumerate(zip(*ends, strict=True)):
        pair = Html(f"{user_id(a)} → {user_id(b)}")
        before = Html("<small>never met</small>") if not met[i] else Html(f"<small>met {met[i]:,}×</small>")
        row: list[Any] = [pair, join([narrow("at"), times[i]]), listed.how[i], before]
        rows.append([*row, _named(look, queries, i, found[i])] if explained else row)
    header = ["source → destination", "time", "lead" if look.model.learns_ranking else "score", "before"]
    return table([*header, "driven by"] if explained else header, rows, kind="stack")


def _score(logit: float) -> str:
    """A score that is not rounded to a certainty it does not have."""
    score = float(sigmoid(logit))
    return f"{score:.3f}" if 0.001 <= score <= 0.999 else "<0.001" if score < 0.5 else ">0.999"


def _named(look: ReportData, queries: Any, row: int, found: list[Driver]) -> Html:
    """The nodes that drove a score, by the user's ids."""
    if not found:
        return Html("<small>no history</small>")
    ids = look.task.stream.ids.take([d.node for d in found]).to_pylist()
    ends = (int(queries.src[row]), int(queries.dst[row, 0]))
    parts = []
    for driver, name in zip(found, ids, strict=True):
        whose = " itself" if driver.node in ends else ""
        hops = ", ".join(
            f"{h} from the {who}" for h, who in zip(driver.hops, ("source", "destination"), strict=True) if h
        )
        kind = "up" if driver.change >= 0 else "down"
        parts.append(
            Html(
                f'<span class="driver" title="hops: {text(hops)}">{user_id(name)}{whose} '
                f'<span class="{kind}">{text(_change(driver.change))}</span></span>'
            )
        )
    return join([narrow("driven by"), *parts], " ")


def _change(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
