"""CorDGT+ against CorDGT, DyGFormer and counts in one protocol: AP beside the best published, hard negatives, ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cordgt.experiments import plots, published_results
from cordgt.experiments.cells import Cell, Store, make_cell
from cordgt.experiments.hard_negatives import BATCH, HARDER, RANKED
from cordgt.experiments.link import model_name
from cordgt.experiments.paper import Reported
from cordgt.experiments.published_results import Published
from cordgt.experiments.tables import (
    NONE,
    Asked,
    Compared,
    Report,
    Section,
    beside_paper,
    data_name,
    gains,
    gather,
    notes,
    percent,
)
from cordgt.models.presets import paper_settings
from cordgt.tasks.baselines import BASELINES
from cordgt.tasks.run_metrics import SETTINGS

OURS = "cordgt_plus"
USUAL = (OURS, "cordgt", "dygformer", "counts")
DATASETS = ("uci", "enron", "wikipedia", "mooc", "lastfm_prefix", "socialevo_month")
# Parts of datasets: a model with published settings for the whole has these here too.
PART_OF = {"lastfm_prefix": "lastfm", "socialevo_month": "social_evolution"}


class Question(NamedTuple):
    """A figure that is asked of everyone: a column."""

    name: str
    negatives: str
    setting: str
    metric: str


class Row(NamedTuple):
    """A model or a baseline on a dataset: where its figures lie in which cells."""

    key: str
    name: str
    path: tuple[str, ...]
    cells: list[dict[str, Any]]

    @property
    def is_baseline(self) -> bool:
        return self.path[0] == "baselines"

    def of(self, asked: Question) -> Compared:
        """What it has, over the seeds."""
        where = () if asked.negatives == "random" else (asked.negatives,)
        return Compared(percent(self.cells, *where, *self.path, asked.setting, asked.metric))


PLAIN = tuple(Question(f"{s}: whole split", "random", s, "ap") for s in SETTINGS)
BY_BATCH = tuple(Question(f"{s}: by batches of {BATCH}", "random", s, "ap_batch") for s in SETTINGS)
HARD = (
    *(Question(f"{kind} negatives, {s}", kind, s, "ap") for kind in HARDER for s in SETTINGS),
    *(Question(f"MRR among {RANKED}, {s}", "random", s, "mrr") for s in SETTINGS),
)
ONLY_CSV = (
    *(Question("", kind, s, "ap_batch") for kind in HARDER for s in SETTINGS),
    *(Question("", "random", s, "hits@10") for s in SETTINGS),
)


def beyond_cells(asked: Asked) -> list[Cell]:
    """Seed by seed."""
    return [
        make_cell(data, model, seed, _settings(data, model) | dict(asked.changes), kind="hard", quick=asked.quick)
        for seed in asked.seeds
        for data in asked.datasets
        for model in asked.models
    ]


def _settings(data: str, model: str) -> dict[str, Any]:
    return paper_settings(PART_OF.get(data, data), model)


def beyond_report(asked: Asked, store: Store) -> Report:
    """AP of every model by dataset beside the best published one; then harder negatives and ranks, with baselines."""
    wanted = beyond_cells(asked)
    every = gather(store, wanted)
    plain, harder = [], []
    records: list[dict[str, Any]] = []
    panels: dict[tuple[str, str], dict[str, Compared]] = {}
    for data in asked.datasets:
        rows = _rows(asked, data, every)
        name = data_name(data, every)
        beside = beside_paper(asked, data, every)
        published = {s: published_results.best_ap(s, data) if beside else None for s in SETTINGS}
        plain.append(_plain(name, rows, published))
        harder.append(_harder(f"{name}: harder questions", rows))
        records += [_record(data, row, q, published) for row in rows for q in (*PLAIN, *BY_BATCH, *HARD, *ONLY_CSV)]
        for q in BY_BATCH:
            lines = {row.name: row.of(q) for row in rows[: len(asked.models)]}
            best = published[q.setting]
            panels[q.setting, name] = lines | {"best published": _beside(Compared(()), best)}
    title = "CorDGT+ and others, in percent"
    draw = partial(_draw, f"AP of link prediction, mean over batches of {BATCH}", panels)
    said = [*_protocol_notes(every), *_stand_ins(every), *notes(store, wanted, every, of_pairs=False)]
    return Report(title, [*_seed_by_seed(asked, every), *plain, *harder], records, said, draw)


def _of(data: str, every: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [cell for cell in every if cell["data"] == data]


def _rows(asked: Asked, data: str, every: Sequence[dict[str, Any]]) -> list[Row]:
    """The models, then the baselines, which are the same for all models of a seed."""
    here = _of(data, every)
    found = [Row(m, model_name(m), ("test",), [k for k in here if k["model"] == m]) for m in asked.models]
    one_a_seed = list({cell["seed"]: cell for cell in here}.values())
    return found + [Row(name, f"*{name}*", ("baselines", name), one_a_seed) for name in BASELINES]


def _beside(ours: Compared, best: Published | None) -> Compared:
    return Compared(ours.values, None if best is None else Reported(best.value, 0.0))


def _plain(name: str, rows: Sequence[Row], published: dict[str, Published | None]) -> Section:
    """Random negatives: over the whole split, and as others report it, with the difference to the best of these."""
    columns = [
        "",
        *(w for p, b in zip(PLAIN, BY_BATCH, strict=True) for w in (p.name, b.name, "to the best published")),
    ]
    lines = []
    for row in rows:
        words = [row.name]
        for whole, batch in zip(PLAIN, BY_BATCH, strict=True):
            words += [_marked(row, whole, rows), _marked(row, batch, rows)]
            words.append(_beside(row.of(batch), published[batch.setting]).words[2])
        lines.append([*words, str(len(row.cells))])
    if any(published.values()):
        lines.append(["best published", *(w for s in SETTINGS for w in ("", _named(published[s]), "")), ""])
    return Section(name, [*columns, "seeds"], lines)


def _harder(name: str, rows: Sequence[Row]) -> Section:
    lines = [[row.name, *(_marked(row, q, rows) for q in HARD), str(len(row.cells))] for row in rows]
    return Section(name, ["", *(q.name for q in HARD), "seeds"], lines)


def _marked(row: Row, asked: Question, rows: Sequence[Row]) -> str:
    """A figure as a table has it; with ``!`` where a baseline of the same seeds is above a model."""
    ours = row.of(asked)
    if row.is_baseline or ours.mean is None:
        return ours.ours
    seeds = {cell["seed"] for cell in row.cells}
    baselines = (r._replace(cells=[k for k in r.cells if k["seed"] in seeds]) for r in rows if r.is_baseline)
    means = [baseline.of(asked).mean for baseline in baselines]
    return f"{ours.ours} !" if any(mean is not None and mean > ours.mean for mean in means) else ours.ours


def _named(best: Published | None) -> str:
    return NONE if best is None else f"{best.value:.2f} ({best.by})"


def _record(data: str, row: Row, asked: Question, published: dict[str, Published | None]) -> dict[str, Any]:
    """A line for programs: long, one figure each."""
    best = published[asked.setting] if asked in BY_BATCH else None
    columns = _beside(row.of(asked), best).columns
    kind = "baseline" if row.is_baseline else "model"
    about = {"data": data, "kind": kind, "name": row.key, "negatives": asked.negatives, "setting": asked.setting}
    beside = {"published": columns["paper"], "published_by": None if best is None else best.by}
    return about | {"metric": asked.metric} | {k: v for k, v in columns.items() if "paper" not in k} | beside


def _seed_by_seed(asked: Asked, every: Sequence[dict[str, Any]]) -> list[Section]:
    """For how many seeds CorDGT+ is above each other model with the same masked nodes, and by how much on average."""
    against = [model for model in asked.models if model != OURS]
    if OURS not in asked.models or not against:
        return []
    lines = []
    for data in asked.datasets:
        for model in against:
            words = [_gains(_of(data, every), model, q) for q in PLAIN]
            lines.append([f"{data_name(data, every)}, {model_name(model)}", *words])
    return [Section(f"{model_name(OURS)} above the others on the same seed", ["", *SETTINGS], lines)]


def _gains(cells: Sequence[dict[str, Any]], model: str, asked: Question) -> str:
    """``5 of 5 seeds, +1.20 on average``, of those seeds that both have."""
    ours, theirs = ([k for k in cells if k["model"] == name] for name in (OURS, model))
    by_seed = gains(ours, theirs, "test", asked.setting, asked.metric)
    if not by_seed:
        return NONE
    return f"{sum(g > 0 for g in by_seed)} of {len(by_seed)} seeds, {sum(by_seed) / len(by_seed):+.2f} on average"


def _protocol_notes(every: Sequence[dict[str, Any]]) -> list[str]:
    rules = " and ".join(f"`{rule}`" for rule in sorted({k["settings"]["visibility"] for k in every}))
    return [
        f"Ours: rule {rules}, the test period; mean ± sample standard deviation over the seeds, each with its own draw "
        "of masked nodes. One seed has the same masked nodes and the same negatives for all models. Seed by seed: AP "
        "over the whole split. `!`: a baseline is above it.",
        f"Best published: AP with random negatives, mean over batches of {BATCH}, one draw of masked nodes (DyGFormer, "
        "TPNet, DyG-Mamba; CorDGT's paper: over batches of 30). They stand beside ours only where nodes and events are "
        "as many as published.",
        "*In italics*: the baselines, trivial predictors on the same queries. Negatives are drawn per source: "
        "`historical`, someone it met before; `inductive`, likewise, first met after the training period. MRR: ties at "
        f"their mean rank; where there are fewer destinations than {RANKED}, among all of them.",
    ]


def _stand_ins(every: Sequence[dict[str, Any]]) -> list[str]:
    """How many harder negatives are random after all, since the source had none of the kind."""
    said = []
    for data in dict.fromkeys(cell["data"] for cell in every):
        first = _of(data, every)[0]["figures"]
        shares = []
        for kind in HARDER:
            found = first[kind]["test"]["transductive"]
            if found["events"] and "random_negatives" in found:
                shares.append(f"{100 * found['random_negatives'] / found['events']:.1f} % of the {kind} negatives")
        if shares:
            said.append(f"**{data}**, transductive: {' and '.join(shares)} are random ones, for want of others.")
    return said


def _draw(title: str, panels: dict[tuple[str, str], dict[str, Compared]], path: Path) -> None:
    plots.dots(path, title, panels, "AP, %", theirs="the best published")
