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

from cordgt.tasks.metrics import is_constant
from cordgt.tasks.run_metrics import Metric, RunMetrics

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
            line += "  every pair scored alike" if is_constant(record["validation"]) else ""
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


def metrics_table(title: str, metrics: RunMetrics) -> Table:
    """Metrics in percent; "–" where one is not defined.

    Baselines stand below the last split. "!" marks a baseline that is above the model.
    """
    columns = metrics.columns()
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("split", no_wrap=True)
    for name in (*columns.values(), "events"):
        table.add_column(name, justify="right")
    for row in metrics.rows():
        cells = [_percent(row.metrics[name]) for name in columns]
        if row.baseline is None:
            table.add_row(f"{row.split}, {row.setting}", *cells, " ".join(f"{n:,}" for n in row.events))
        else:
            table.add_row(f"{'!' if row.above_run else ' '} {row.baseline}", *cells, "", style="dim")
    return table


def _percent(metric: Metric) -> str:
    if metric.mean is None:
        return "–"
    return f"{100 * metric.mean:.2f}" if metric.std is None else f"{100 * metric.mean:.2f} ± {100 * metric.std:.2f}"


def is_piped() -> bool:
    """True where standard output is not a terminal."""
    return not sys.stdout.isatty()
