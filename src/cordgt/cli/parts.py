"""What several commands do: reading options into data, settings and runs; showing figures; saying how to go on."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cordgt.cli import console
from cordgt.cli.processes import (
    started_as_one_of_several,
)
from cordgt.errors import SettingError

if TYPE_CHECKING:
    from cordgt.api import Run
    from cordgt.settings import Settings
    from cordgt.tasks.run_metrics import RunMetrics

BEGUN = ContextVar("BEGUN", default=False)  # True: the command has come to where it trains, and may write


def given_columns(*values: Any) -> dict[str, Any]:
    """The column options that were given; ``values`` in this order, later ones may be left out."""
    names = ("src", "dst", "time", "label", "features", "ids", "node_features")
    return {k: v for k, v in zip(names, values, strict=False) if v is not None}


def load_data(data: str, columns: dict[str, Any]) -> Any:
    """The stream of DATA; what was assumed in reading it is said."""
    from cordgt.datasets import by_name

    stream = by_name.load(data, **columns)
    for text in stream.notes:
        console.note(f"{stream.name}: {text}")
    return stream


def facts(stream: Any) -> str:
    """``uci: 59,835 events of 1,899 nodes``."""
    return f"{stream.name}: {stream.n_events:,} events of {stream.n_nodes:,} nodes"


def remark_on_data(settings: Settings, stream: Any) -> None:
    """Says what a person should know before this model is trained on these events, if anything."""
    from cordgt import models

    network = models.find(settings.model).network
    told = network.training_hint(settings.model_settings, stream.n_events, settings.training.batch_size)
    if told:
        console.note(told)
    if (stream.edge_dim or stream.node_dim) and not network.uses_features:
        console.note(f"{settings.model} uses no features: those of {stream.name} are left aside.")


def settings_for(
    data: str, model: str | None, config: Path | None, assignments: list[str], seed: int | None, init: Path | None
) -> Settings:
    """Defaults, then the paper's settings for a known dataset, then those of --init, then the file, then --set."""
    from cordgt.models.presets import PRESETS, paper_settings
    from cordgt.run import RunFolder
    from cordgt.settings import Given, make, parse_assignments, read_config

    of_file = Given(None, None, {}) if config is None else read_config(config)
    of_init = None if init is None else RunFolder(init).read_config()[0]
    model = model or of_file.model or ("cordgt" if of_init is None else of_init.model)
    seed = seed if seed is not None else of_file.seed or 0
    chosen = of_file.keys | parse_assignments(assignments)
    before: dict[str, Any] = paper_settings(data, model)
    told = f"{data} is known; {PRESETS[model].publisher} settings for it" if before else ""
    if of_init is not None and of_init.model == model:
        before, told = vars(of_init.model_settings), f"settings of {init}, where the training starts from"
    before = {k: v for k, v in before.items() if k not in chosen}
    if before:
        console.note(f"{told}: {as_assignments(before)}")
    settings = make(model, before | chosen, seed=seed)
    if settings.unused:
        console.note(f"not used by {model}: {', '.join(settings.unused)}")
    return settings


def open_run(path: Path, device: str, events: Path | None = None, columns: dict[str, Any] | None = None) -> Run:
    """A run, with later ``events`` appended to its history; ``columns`` are for these. SettingError where none is."""
    from cordgt.api import Run

    columns = columns or {}
    if events is None and "node_features" in columns:
        raise SettingError("--node-features describes the nodes of --events; without --events leave it out.")
    loaded = Run.load(path, device)
    if events is None:
        return loaded
    if "node_features" in columns and not loaded.stream.node_dim:
        raise SettingError(f"--node-features: {path} was trained without features of nodes.")
    longer = loaded.with_events(events, **columns)
    console.note(f"{events}: {longer.stream.n_events - loaded.stream.n_events:,} events appended to the history")
    for text in longer.stream.notes[len(loaded.stream.notes) :]:
        console.note(f"{events}: {text}")
    return longer


def columns_of_questions(run: Run, path: Path, asked: dict[str, Any], *, beside_events: bool) -> dict[str, Any]:
    """The columns of a file of pairs or ids: those asked for, and the training's where it has columns of these names.

    Beside --events the options may be meant for the events alone, and count here only where they fit.
    """
    from cordgt.reading.columns import can_be_read_twice, fit, those_named_in

    if not can_be_read_twice(path):
        return asked
    known = {k: v for k, v in run.columns.items() if k in ("src", "dst", "time")}
    together = those_named_in(path, known) | asked
    if beside_events and not fit(path, together, need_time=False):
        return those_named_in(path, known | asked)
    return together


@contextmanager
def resumable() -> Iterator[None]:
    """Says how an interrupted training goes on: 130 after Ctrl-C, 143 after SIGTERM."""
    from cordgt.machine.stopping import Stopped

    BEGUN.set(True)
    try:
        yield
    except KeyboardInterrupt as stopped:
        again = shlex.join(["cordgt", *(a for a in sys.argv[1:] if a != "--resume"), "--resume"])
        if started_as_one_of_several() and "--processes" not in again:
            again = "the same torchrun command and --resume"
        saved, code = (stopped.saved, stopped.exit_code) if isinstance(stopped, Stopped) else ("", 130)
        where = f"interrupted, and saved after {saved}. It goes on from there" if saved else "interrupted. It goes on"
        console.fail(f"{where} with: {again}")
        raise typer.Exit(code) from None


def suggest(folder: Path, stream: Any) -> None:
    """A question that can be asked now."""
    source = str(stream.ids.take(stream.src[-1:])[0].as_py())
    console.note(f"Ask it: {shlex.join(['cordgt', 'recommend', str(folder), '--source', source])}")


def show_metrics(title: str, metrics: RunMetrics, json_: str | None) -> None:
    """Print metrics as a table or as JSON, with remarks on them."""
    from cordgt.cli import answers
    from cordgt.report.remarks import remarks

    if json_ is not None:
        answers.write_json(metrics, json_)
    if json_ != "-":
        console.out.print(console.metrics_table(title, metrics))
    for text in remarks(metrics):
        console.note(text)


@contextmanager
def answering(questions: int) -> Iterator[Any]:
    """A progress bar over so many questions; what comes back is called with how many more were answered."""
    with console.Bar() as bar:
        bar.answering(questions)
        yield lambda n: bar.step(n, None)


def as_assignments(values: dict[str, Any]) -> str:
    """``fanout=20,1 hidden=64``: settings as --set takes them."""
    from cordgt.settings import written

    return " ".join(f"{k}={written(v)}" for k, v in values.items())
