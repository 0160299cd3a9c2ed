"""The dataset table: sizes and statistics of the data here, next to the paper's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from cordgt.errors import DataError
from cordgt.events.describe import describe
from cordgt.experiments import paper, plots
from cordgt.experiments.cells import CellStore, is_available, no_dataset_message
from cordgt.experiments.measurements import load_stream
from cordgt.experiments.tables import MISSING, ExperimentRequest, Report, Section
from cordgt.io.datasets import registry

PAPER_KEYS = {"nodes": "nodes", "events": "links", "edge_features": "link_attributes", "intensity": "intensity"}
OTHER_KEYS = ("labels_positive", "repeated_pair_share", "tied_time_share", "self_loops")  # not in the paper


def list_all_datasets() -> tuple[str, ...]:
    """Return the paper's datasets, also missing ones, then the others found on this machine."""
    others = [k.name for k in registry.list_datasets() if k.path is not None]
    return tuple(dict.fromkeys([*paper.load_paper()["datasets"], *others]))


def statistics_report(request: ExperimentRequest, _: CellStore) -> Report:
    """Report counts, intensity and type of each dataset. Raise DataError if none of them is here."""
    if not any(map(is_available, request.datasets)):
        raise DataError(no_dataset_message(request.datasets))
    rows, records = [], []
    for data in request.datasets:
        theirs = paper.load_paper()["datasets"].get(data, {})
        ours = describe(load_stream(data, False)) if is_available(data) else {}
        row = [data]
        for key, paper_key in PAPER_KEYS.items():
            a, b = theirs.get(paper_key), ours.get(key)
            row += [_number(a), _number(b), _difference(a, b)]
            difference = None if a is None or b is None else b - a
            records.append({"data": data, "what": key, "paper": a, "ours": b, "difference": difference})
        bipartite = [_yes_no(theirs.get("bipartite")), _yes_no(ours.get("bipartite"))]
        rows.append([*row, *bipartite, _number(ours.get("labels_positive"))])
        if ours:
            records += [{"data": data, "what": key, "paper": None, "ours": ours[key]} for key in OTHER_KEYS]
    names = ("nodes", "events", "event features", "intensity")
    columns = [f"{name}: {what}" for name in names for what in ("the paper", "here", "difference")]
    columns = ["", *columns, "bipartite: the paper", "here", "positive labels here"]
    notes = [
        "Intensity is 2 events / (nodes × time span in seconds), as in the paper.",
        f"{MISSING}: the dataset is not here, or not in the paper. A prefix or subset has its own name.",
        "The node features published with these datasets are all zeros and are read as none.",
        "LastFM's intensity in the paper implies a time span of 30 days, but its first 8 % alone span a year.",
    ]
    return Report("Datasets", [Section("", columns, rows)], records, notes, partial(_draw, records=records))


def _number(value: Any) -> str:
    if value is None:
        return MISSING
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _difference(a: Any, b: Any) -> str:
    if a is None or b is None:
        return MISSING
    if isinstance(a, int):
        return f"{b - a:+,}" if b != a else "0"
    return f"{100 * (b / a - 1):+.1f} %"


def _yes_no(value: bool | None) -> str:
    return MISSING if value is None else "yes" if value else "no"


def _draw(path: Path, records: list[dict[str, Any]]) -> None:
    """Draw nodes, events and intensity on logarithmic axes."""
    names = list(dict.fromkeys(k["data"] for k in records))
    with plots.figure(path, 1, 3, (12, 1.3 + 0.32 * len(names))) as (canvas, axes):
        for axis, what in zip(axes[0], ("nodes", "events", "intensity"), strict=True):
            for k in (k for k in records if k["what"] == what):
                y = names.index(k["data"])
                if k["paper"]:
                    axis.plot(k["paper"], y, "D", color=plots.PAPER, mfc="white", ms=8)
                if k["ours"]:
                    axis.plot(k["ours"], y, "o", color=plots.OURS, ms=4)
            axis.set(xscale="log", title=what, ylim=(len(names) - 0.5, -0.5))
            axis.set_yticks(range(len(names)), names if what == "nodes" else [""] * len(names))
            axis.grid(axis="x", color=plots.GRID, lw=0.7)
        canvas.suptitle("Datasets: here (dot) and in the paper (diamond)", x=0.01, ha="left", fontsize=11)
