"""Progress bars, notes and errors on the terminal, and the table of metrics."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from rich import box, progress
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cordgt.callbacks import Callback
from cordgt.tasks.metrics import LINK_METRICS, LinkMetric, is_constant
from cordgt.tasks.run_metrics import Metric, RunMetrics

SECONDS_BETWEEN_PROGRESS_LINES = 60.0  # of progress, where there is no terminal
# Characters that could change the terminal or hide text: control characters, line and paragraph separators, marks of
# the text direction, byte order marks, tags, and surrogates, which UTF-8 cannot encode.
_UNSAFE_RANGES = (
    (0x00, 0x1F),
    (0x7F, 0x9F),
    (0x061C, 0x061C),
    (0x200E, 0x200F),
    (0x2028, 0x202E),
    (0x2066, 0x2069),
    (0xD800, 0xDFFF),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0xE0000, 0xE007F),
)
_ESCAPES = {code: ascii(chr(code))[1:-1] for first, last in _UNSAFE_RANGES for code in range(first, last + 1)}
_ESCAPES_EXCEPT_LINES = {code: text for code, text in _ESCAPES.items() if chr(code) not in "\n\t"}

_JSON_ESCAPES = {
    code: f"\\u{code:04x}" if code < 0x10000 else json.dumps(chr(code))[1:-1]
    for code in _ESCAPES_EXCEPT_LINES  # JSON text has line breaks of its own
}


def escape_control(text: str, *, keep_lines: bool = False) -> str:
    """Replace characters that could change the terminal by visible escapes, such as ``\\x1b``.

    ``keep_lines`` keeps line breaks and tabs.
    """
    return text.translate(_ESCAPES_EXCEPT_LINES if keep_lines else _ESCAPES)


def escape_json(text: str) -> str:
    """Escape the same characters in JSON text, as JSON does it: the values stay the same."""
    return text.translate(_JSON_ESCAPES)


class SafeConsole(Console):
    """A console that prints control characters of ids, column names and paths as visible escapes."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(escape_control(segment.text, keep_lines=True), segment.style)


stdout = SafeConsole(highlight=False, soft_wrap=True, emoji=False)
stderr = SafeConsole(stderr=True, highlight=False, soft_wrap=True, emoji=False)


class StageBar(Callback):
    """Shows a bar of the current stage on a terminal, and messages anywhere. Use it in a ``with`` statement.

    ``columns`` are shown right of the stage's name and the bar.
    """

    def __init__(self, *columns: progress.ProgressColumn) -> None:
        self.is_live = stderr.is_terminal
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            *columns,
            console=stderr,
            transient=True,
            disable=not self.is_live,
        )
        self.task: progress.TaskID | None = None

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
        print_note(text)

    def _replace_task(self, description: str, total: int | None, **fields: Any) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(escape_control(description), total=total, **fields)


class TimeLeftColumn(progress.TimeRemainingColumn):
    """Shows the time left of the whole training, once it is estimated; before that, of the current stage."""

    end_time: float | None = None  # of the whole training, at most; on the clock of `time.perf_counter`

    def render(self, task: progress.Task) -> Text:
        if self.end_time is None:
            return super().render(task)
        return Text(f"at most {format_time_left(self.end_time)} left", style="progress.remaining")


class ProgressBar(StageBar):
    """Shows a bar with loss and speed on a terminal, and one line per epoch anywhere.

    Without a terminal it also prints a line a minute. ``make_title`` makes the prefix of each line from the name of the
    run, if there are several (``n_runs``). ``describe_estimate`` makes the lines to print with the first estimate, from
    the seconds of all runs.
    """

    def __init__(
        self,
        make_title: Callable[[str], str] = "{}, ".format,
        *,
        n_runs: int = 1,
        describe_estimate: Callable[[float], list[str]] | None = None,
    ) -> None:
        self.time_left = TimeLeftColumn()
        super().__init__(
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}"),
            progress.TimeElapsedColumn(),
            self.time_left,
        )
        self.make_title, self.title = make_title, ""
        self.n_runs, self.n_started, self.describe_estimate = n_runs, 0, describe_estimate
        self.run_seconds: float | None = None  # the first estimate of a run
        self.has_trained = False  # True once an epoch has started
        self.validation = ""  # metrics of the last epoch
        self.stage = ""
        self.total: int | None = None  # of the stage, in the unit of `on_step`
        self.start_time = self.last_line = time.perf_counter()
        self.n_events = 0

    def on_run_start(self, name: str) -> None:
        self.title, self.validation = escape_control(self.make_title(name)), ""
        self.n_started += 1

    def on_epoch_start(self, phase: str, epoch: int, n_epochs: int, n_events: int) -> None:
        self.has_trained = True
        self.on_stage_start(f"{'refit on all events, ' if phase == 'refit' else ''}epoch {epoch}/{n_epochs}", n_events)

    def on_stage_start(self, name: str, total: int | None) -> None:
        self._replace_task(escape(f"{self.title}{name}"), total, note=self.validation)
        self.stage, self.total = f"{self.title}{name}", total
        self.start_time, self.n_events = time.perf_counter(), 0

    def on_step(self, n: int, loss: float | None = None) -> None:
        if self.task is None:
            return
        self.n_events += n
        now = time.perf_counter()
        rate = self.n_events / max(now - self.start_time, 1e-9)
        note = self.validation if loss is None else f"loss {loss:.4f}  {rate:,.0f} events/s  {self.validation}"
        self.bar.update(self.task, advance=n, note=note)
        if not self.is_live and now - self.last_line >= SECONDS_BETWEEN_PROGRESS_LINES:
            self._print_progress(rate, loss)

    def on_time_estimate(self, seconds: float) -> None:
        is_first = self.run_seconds is None
        if self.run_seconds is None:
            self.run_seconds = seconds
        seconds += max(0, self.n_runs - max(1, self.n_started)) * self.run_seconds
        self.time_left.end_time = time.perf_counter() + seconds
        for text in self.describe_estimate(seconds) if is_first and self.describe_estimate is not None else []:
            print_note(text)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        phase = "refit, epoch" if record["phase"] == "refit" else "epoch"
        line = f"{self.title}{phase} {record['epoch']:>3}  loss {record['loss']:.4f}"
        if "validation" in record:
            shown = {k: v for k, v in record["validation"].items() if k != "auc" and v is not None}
            titles = {name: metric.title for name, metric in LINK_METRICS.items()}
            self.validation = "validation " + "  ".join(f"{titles.get(k, k)} {v:.4f}" for k, v in shown.items())
            line += f"  {self.validation}"
            line += "  best so far" if record["best_epoch"] == record["epoch"] else ""
            line += "  all scores are equal" if is_constant(record["validation"]) else ""
        stderr.print(f"{line}  ({record['train_seconds']:.1f} s)", markup=False)
        self.last_line = time.perf_counter()

    def _print_progress(self, rate: float, loss: float | None) -> None:
        """Print how far the current stage is, for a log."""
        total = "" if self.total is None else f" of {self.total:,}"
        facts = [f"{self.stage}: {self.n_events:,}{total}", *([] if loss is None else [f"loss {loss:.4f}"])]
        facts.append(f"{rate:,.0f} per second" if rate >= 10 else f"{rate:.1f} per second")
        if self.time_left.end_time is not None:
            facts.append(f"at most {format_time_left(self.time_left.end_time)} left")
        print_note(", ".join(facts))
        self.last_line = time.perf_counter()


class DownloadBar(StageBar):
    """Shows a bar in bytes on a terminal, and one line per file elsewhere."""

    def __init__(self) -> None:
        columns = (progress.DownloadColumn(), progress.TransferSpeedColumn(), progress.TimeRemainingColumn())
        super().__init__(*columns)
        self.stage = ""
        self.line = ""  # printed with the first step, which counts the bytes that are here already

    def on_stage_start(self, name: str, total: int | None) -> None:
        if name == self.stage and self.task is not None:  # the same file, over a new connection
            self.bar.update(self.task, completed=0, total=total)
            return
        self._replace_task(escape(name), total)
        self.stage, self.line = name, "" if total is None else f"{name}: {total:,} bytes"
        if total is None and not self.is_live:
            print_note(name)

    def on_step(self, n: int, loss: float | None = None) -> None:
        super().on_step(n, loss)
        if self.line and not self.is_live:
            print_note(f"{self.line}, {n:,} already downloaded" if n else self.line)
        self.line = ""


def print_note(text: str) -> None:
    """Print a note to standard error, so that the answer on standard output can be piped."""
    stderr.print(escape_control(text), style="dim", markup=False)


def format_duration(hours: float) -> str:
    """Return a duration in words: ``40 minutes``, ``7 hours``, ``12 days``."""
    if hours < 1.5:
        minutes = max(1, round(60 * hours))
        return "no time" if not hours else "a minute" if minutes == 1 else f"{minutes} minutes"
    return f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"


def format_time_left(end_time: float) -> str:
    """Return the time until ``end_time``, on the clock of `time.perf_counter`, in words."""
    return format_duration(max(1.0, end_time - time.perf_counter()) / 3600)


def print_error(text: str) -> None:
    stderr.print(f"Error: {escape_control(text)}", style="bold red", markup=False)


def metrics_table(title: str, metrics: RunMetrics) -> RenderableType:
    """Return a table of metrics, shares in percent; "–" means not defined.

    Baselines are below the last split. "!" marks a baseline that is above the model. Metrics of plug-ins have a table
    of their own, so that each table fits a terminal.
    """
    columns = metrics.columns()
    own = {name: text for name, text in columns.items() if not LINK_METRICS.is_built_in(name)}
    first = _metrics_table(title, metrics, {name: text for name, text in columns.items() if name not in own})
    return Group(first, _metrics_table("Metrics of plug-ins", metrics, own)) if own else first


def _metrics_table(title: str, metrics: RunMetrics, columns: Mapping[str, str]) -> Table:
    table = Table(title=escape(escape_control(title)), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("split", no_wrap=True)
    for name in (*columns.values(), "events"):
        table.add_column(escape(escape_control(name)), justify="right")
    for row in metrics.rows():
        cells = [_format(LINK_METRICS[name], row.metrics[name]) for name in columns]
        if row.baseline is None:
            table.add_row(f"{row.split}, {row.setting}", *cells, " ".join(f"{n:,}" for n in row.events))
        else:
            table.add_row(f"{'!' if row.above_run else ' '} {row.baseline}", *cells, "", style="dim")
    return table


def _format(kind: LinkMetric, metric: Metric) -> str:
    if metric.mean is None:
        return "–"
    mean = kind.format(metric.mean)
    return mean if metric.std is None else f"{mean} ± {kind.format(metric.std)}"


def is_piped() -> bool:
    """Return whether standard output is not a terminal."""
    return not sys.stdout.isatty()
