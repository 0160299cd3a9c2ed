"""What people see while they wait, and the tables they read afterwards."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from cordgt.tasks.metrics import ALIKE, JUDGED, all_alike

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class Bar:
    """A live progress bar on a terminal, a line an epoch elsewhere. A `cordgt.training.watching.Watcher`."""

    def __init__(self) -> None:
        self.title = ""
        self.live = err.is_terminal
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=err,
            transient=True,
            disable=not self.live,
        )
        self.task: TaskID | None = None
        self.trained = False  # True: an epoch has begun
        self.best = ""
        self.began = time.perf_counter()
        self.seen = 0

    def titled(self, title: str) -> Bar:
        """The same bar, with other words before each line; what it showed of an earlier training is forgotten."""
        self.title, self.best = title, ""
        return self

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def _new(self, what: str, total: int) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(f"{self.title}{what}", total=total, note=self.best)
        self.began, self.seen = time.perf_counter(), 0

    def epoch_begins(self, phase: str, epoch: int, epochs: int, events: int) -> None:
        self.trained = True
        self._new(f"{'refit on all events, ' if phase == 'refit' else ''}epoch {epoch}/{epochs}", events)

    def step(self, events: int, loss: float | None) -> None:
        if self.task is None:
            return
        self.seen += events
        rate = self.seen / max(time.perf_counter() - self.began, 1e-9)
        note = self.best if loss is None else f"loss {loss:.4f}  {rate:,.0f} events/s  {self.best}"
        self.bar.update(self.task, advance=events, note=note)

    def validating(self, events: int) -> None:
        self._new("validating", events)

    def evaluating(self, what: str, events: int) -> None:
        self._new(f"evaluating: {what}", events)

    def answering(self, questions: int) -> None:
        self._new("answering", questions)

    def working(self, cells: int) -> None:
        self._new("trainings", cells)

    def epoch_ends(self, record: dict[str, Any]) -> None:
        what = "refit, epoch" if record["phase"] == "refit" else "epoch"
        line = f"{self.title}{what} {record['epoch']:>3}  loss {record['loss']:.4f}"
        if "validation" in record:
            self.best = f"validation AP {record['validation']['ap']:.4f}"
            if record["validation"].get("mrr") is not None:
                self.best += f"  MRR {record['validation']['mrr']:.4f}"
            line += f"  {self.best}"
            line += "  best so far" if record["best_epoch"] == record["epoch"] else ""
            line += "  every pair scored alike" if all_alike(record["validation"]) else ""
        err.print(f"{line}  ({record['train_seconds']:.1f} s)", markup=False)


class Receiving:
    """A bar for downloads on a terminal, a line a file elsewhere."""

    def __init__(self) -> None:
        self.live = err.is_terminal
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=err,
            transient=True,
            disable=not self.live,
        )
        self.task: TaskID | None = None
        self.what = ""

    def __enter__(self) -> Receiving:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def tell(self, what: str, have: int, total: int | None) -> None:
        """How much of what there is: bytes, and in all where that is known."""
        if what != self.what or self.task is None:
            if self.task is not None:
                self.bar.remove_task(self.task)
            self.what, self.task = what, self.bar.add_task(escape(what), total=total)
            if not self.live:
                note(what if total is None else f"{what}: {total:,} bytes" + (f", {have:,} are here" if have else ""))
        self.bar.update(self.task, completed=have, total=total)


def note(text: str) -> None:
    """A remark beside the answer; goes to standard error so that answers can be piped."""
    err.print(text, style="dim", markup=False)


def lasting(hours: float) -> str:
    """A time in words: ``40 minutes``, ``7 hours``, ``12 days``."""
    if hours < 1.5:
        minutes = max(1, round(60 * hours))
        return "no time" if not hours else "a minute" if minutes == 1 else f"{minutes} minutes"
    return f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"


def fail(text: str) -> None:
    err.print(f"Error: {text}", style="bold red", markup=False)


def figures_table(title: str, metrics: dict[str, Any]) -> Table:
    """The figures of validation and test, in percent; "–" where one is not defined.

    Below those of the test stands what trivial predictors reach on the same queries; a model below one is marked.
    """
    batch = metrics["protocol"]["eval_batch_size"]
    shown = {"AP": "ap", "AUC": "auc", f"AP/{batch}": "ap_batch", f"AUC/{batch}": "auc_batch"}
    parts = [part for part in ("validation", "test") if part in metrics]
    shown |= {"MRR": "mrr", "hits@10": "hits@10"} if "mrr" in metrics[parts[0]]["transductive"] else {}
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("split", no_wrap=True)
    for name in (*shown, "events"):
        table.add_column(name, justify="right")
    for part in parts:
        for setting, row in metrics[part].items():
            events = " ".join(f"{n:,}" for n in _distinct(row["events"]))
            table.add_row(f"{part}, {setting}", *(_percent(row[k]) for k in shown.values()), events)
            for name, floor in metrics.get("floors", {}).items() if part == parts[-1] else ():
                of_floor = floor[part][setting]
                mark = "!" if _where_below(row, of_floor) else " "
                table.add_row(f"{mark} {name}", *(_percent(of_floor[k]) for k in shown.values()), "", style="dim")
    return table


def below_floors(metrics: dict[str, Any]) -> list[str]:
    """One sentence where trivial predictors reach more on the test period than the model; nothing otherwise."""
    above = [
        f"{name} ({setting}: {', '.join(where)})"
        for setting, row in metrics.get("test", {}).items()
        for name, floor in metrics.get("floors", {}).items()
        if (where := _where_below(row, floor["test"][setting]))
    ]
    return [f"The model is below trivial predictors on the test period: {', '.join(above)}."] if above else []


def scored_alike(metrics: dict[str, Any]) -> list[str]:
    """A sentence where every pair of the test period has the same score, in a run or in some of several."""
    row = metrics.get("test", {}).get("transductive", {})
    by_run = zip(*(_values(row.get(k)) for k in ("ap", "auc")), strict=True)
    runs = [all_alike({"ap": ap, "auc": auc}) for ap, auc in by_run]
    if not any(runs):
        return []
    which = f", in {sum(runs)} of {len(runs)} runs" if len(runs) > 1 else ""
    return [f"Every pair of the test period has the same score{which}: {ALIKE}."]


def _where_below(row: dict[str, Any], floor: dict[str, Any]) -> list[str]:
    """The figures in which a floor is above the model."""
    return [word for key, word in JUDGED.items() if _is_below(row.get(key), floor.get(key))]


def _is_below(figure: Any, floor: Any) -> bool:
    mean, other = (f["mean"] if isinstance(f, dict) else f for f in (figure, floor))
    return mean is not None and other is not None and mean < other


def stand_ins(metrics: dict[str, Any]) -> list[str]:
    """A sentence for each split some of whose negatives are random, because there were none of the kind asked for."""
    return [
        f"{part}, {setting}: {share:.0%} of the negatives are random, since there are none of the kind asked for."
        for part in ("validation", "test")
        for setting, row in metrics.get(part, {}).items()
        if isinstance(row.get("random_negatives"), int) and row["events"]
        for share in [row["random_negatives"] / row["events"]]
        if share > 0
    ]


def undefined_figures(metrics: dict[str, Any]) -> list[str]:
    """A sentence for each split without figures."""
    empty = "no event of this split touches a node that training has not seen"
    silent = "this model has no answer for nodes that training has not seen"
    return [
        f"{part}, {setting}: not defined, {empty if _distinct(row['events']) == [0] else silent}."
        for part in ("validation", "test")
        for setting, row in metrics.get(part, {}).items()
        if _distinct(row["events"]) == [0] or _is_undefined(row["ap"])
    ]


def _is_undefined(figure: Any) -> bool:
    return all(value is None for value in _values(figure))


def _distinct(figure: Any) -> list[Any]:
    """What values a figure has, each once."""
    return sorted(set(_values(figure)))


def _values(figure: Any) -> list[Any]:
    """A figure of one run, or those of several."""
    return figure["values"] if isinstance(figure, dict) else [figure]


def _percent(value: Any) -> str:
    if isinstance(value, dict):
        return "–" if value["mean"] is None else f"{100 * value['mean']:.2f} ± {100 * value['std']:.2f}"
    return "–" if value is None else f"{100 * value:.2f}"


def is_piped() -> bool:
    """True where standard output is not a terminal."""
    return not sys.stdout.isatty()
