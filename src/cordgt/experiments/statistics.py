"""The table of datasets: what is at hand beside what the paper says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cordgt.errors import DataError
from cordgt.events.describe import describe
from cordgt.experiments import paper, plots
from cordgt.experiments.cells import Store, at_hand, none_at_hand
from cordgt.experiments.measurements import load_stream
from cordgt.experiments.tables import NONE, Asked, Report, Section
from cordgt.io.datasets import registry

COMPARED = {"nodes": "nodes", "events": "links", "edge_features": "link_attributes", "intensity": "intensity"}


def all_datasets() -> tuple[str, ...]:
    """The paper's, whether at hand or not, then the others that are found by name."""
    others = [k.name for k in registry.list_datasets() if k.path is not None]
    return tuple(dict.fromkeys([*paper.figures()["datasets"], *others]))


def statistics_report(asked: Asked, _: Store) -> Report:
    """Counts, intensity and kind of each dataset here, and the paper's. DataError where none of them is here."""
    if not any(map(at_hand, asked.datasets)):
        raise DataError(none_at_hand(asked.datasets))
    rows, records = [], []
    for data in asked.datasets:
        theirs = paper.figures()["datasets"].get(data)
        ours = describe(load_stream(data, False)) if at_hand(data) else None
        words = [data]
        for here, there in COMPARED.items():
            a, b = None if theirs is None else theirs[there], None if ours is None else ours[here]
            words += [_number(a), _number(b), _difference(a, b)]
            figures = {"paper": a, "ours": b, "difference": None if a is None or b is None else b - a}
            records.append({"data": data, "what": here} | figures)
        sides = [
            _sides(None if theirs is None else theirs["bipartite"]),
            _sides(None if ours is None else ours["bipartite"]),
        ]
        labels = NONE if ours is None or ours["labels_positive"] is None else f"{ours['labels_positive']:,}"
        rows.append([*words, *sides, labels])
        if ours is not None:
            extra = ("labels_positive", "repeated_pair_share", "tied_time_share", "self_loops")
            records += [{"data": data, "what": key, "paper": None, "ours": ours[key]} for key in extra]
    whose = ("the paper", "here", "difference")
    heads = [f"{name}: {who}" for name in ("nodes", "events", "event features", "intensity") for who in whose]
    columns = ["", *heads, "two sides: the paper", "here", "positive labels here"]
    said = [
        "Intensity is 2 events / (nodes × span in seconds), as in the paper.",
        f"{NONE}: a dataset is not at hand, or not one of the paper's. A prefix or a subset has a name of its own.",
        "Node features that are published with these datasets are zeros, and are read as none.",
        "LastFM's intensity in the paper implies a span of 30 days, though its first 8 % alone spans a year.",
    ]

    def draw(path: Path) -> None:
        _draw(path, records)

    return Report("Datasets", [Section("", columns, rows)], records, said, draw)


def _number(value: Any) -> str:
    if value is None:
        return NONE
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _difference(a: Any, b: Any) -> str:
    if a is None or b is None:
        return NONE
    if isinstance(a, int):
        return f"{b - a:+,}" if b != a else "0"
    return f"{100 * (b / a - 1):+.1f} %"


def _sides(value: bool | None) -> str:
    return NONE if value is None else "yes" if value else "no"


def _draw(path: Path, records: list[dict[str, Any]]) -> None:
    """Events and intensity, logarithmic: ours beside the paper's."""
    names = list(dict.fromkeys(k["data"] for k in records))
    with plots.figure(path, 1, 3, (12, 1.3 + 0.32 * len(names))) as (made, axes):
        for place, what in zip(axes[0], ("nodes", "events", "intensity"), strict=True):
            for k in (k for k in records if k["what"] == what):
                y = names.index(k["data"])
                if k["paper"]:
                    place.plot(k["paper"], y, "D", color=plots.PAPER, mfc="white", ms=8)
                if k["ours"]:
                    place.plot(k["ours"], y, "o", color=plots.OURS, ms=4)
            place.set(xscale="log", title=what, ylim=(len(names) - 0.5, -0.5))
            place.set_yticks(range(len(names)), names if what == "nodes" else [""] * len(names))
            place.grid(axis="x", color=plots.GRID, lw=0.7)
        made.suptitle("Datasets: here (dot) and in the paper (diamond)", x=0.01, ha="left", fontsize=11)
