"""What people see while they wait, and the tables they read afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from cordgt.callbacks import Callback
from cordgt.tasks.metrics import is_constant
from cordgt.tasks.run_metrics import Metric, RunMetrics

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class StageBar(Callback):
    """A bar of the current stage on a terminal, none elsewhere; messages on both. Use it in a ``with`` statement."""

    def __init__(self, *columns: ProgressColumn) -> None:
        self.live = err.is_terminal
        self.bar = Progress(*columns, console=err, transient=True, disable=not self.live)
        self.task: TaskID | None = None

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self.bar.stop()

    def on_stage_start(self, name: str, total: int | None) -> None:
        self._replace_task(name, total)

    def on_step(self, n: int, loss: float | None = None) -> None:
        if self.task is not None:
            self.bar.update(self.task, advance=n)

    def on_message(self, text: str) -> None:
        note(text)

    def _replace_task(self, description: str, total: int | None, **fields: Any) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(description, total=total, **fields)


class ProgressBar(StageBar):
    """A bar with loss and speed on a terminal, and a line an epoch everywhere.

    ``make_title``: from the name of one of several runs, the words before each line about it.
    """

    def __init__(self, make_title: Callable[[str], str] = "{}, ".format) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.make_title, self.title = make_title, ""
        self.trained = False  # True: an epoch has begun
        self.best = ""
        self.began = time.perf_counter()
        self.seen = 0

    def on_run_start(self, name: str) -> None:
        self.title, self.best = self.make_title(name), ""

    def on_epoch_start(self, phase: str, epoch: int, n_epochs: int, n_events: int) -> None:
        self.trained = True
        self.on_stage_start(f"{'refit on all events, ' if phase == 'refit' else ''}epoch {epoch}/{n_epochs}", n_events)

    def on_stage_start(self, name: str, total: int | None) -> None:
        self._replace_task(f"{self.title}{name}", total, note=self.best)
        self.began, self.seen = time.perf_counter(), 0

    def on_step(self, n: int, loss: float | None = None) -> None:
        if self.task is None:
            return
        self.seen += n
        rate = self.seen / max(time.perf_counter() - self.began, 1e-9)
        note = self.best if loss is None else f"loss {loss:.4f}  {rate:,.0f} events/s  {self.best}"
        self.bar.update(self.task, advance=n, note=note)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
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


class DownloadBar(StageBar):
    """A bar in bytes on a terminal, a line a file elsewhere."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self.stage = ""
        self.line = ""  # shown with the first step, which says how much is here already

    def on_stage_start(self, name: str, total: int | None) -> None:
        if name == self.stage and self.task is not None:  # the same file, over a new connection
            self.bar.update(self.task, completed=0, total=total)
            return
        self._replace_task(escape(name), total)
        self.stage, self.line = name, "" if total is None else f"{name}: {total:,} bytes"
        if total is None and not self.live:
            note(name)

    def on_step(self, n: int, loss: float | None = None) -> None:
        super().on_step(n, loss)
        if self.line and not self.live:
            note(f"{self.line}, {n:,} are here" if n else self.line)
        self.line = ""


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
