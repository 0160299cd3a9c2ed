"""Steps that several commands share: parse options, load data and runs, show metrics, say how to resume."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.cli.distributed import (
    started_as_one_of_several,
)
from cordgt.errors import SettingError

if TYPE_CHECKING:
    from cordgt.inference.run import Run
    from cordgt.tasks.run_metrics import RunMetrics
    from cordgt.training.settings import Settings

BEGUN = ContextVar("BEGUN", default=False)  # True once the command trains and may write files


def given_columns(*values: Any) -> dict[str, Any]:
    """The column options that are not None. ``values`` are in the order of ``names``; the last may be missing."""
    names = ("src", "dst", "time", "label", "features", "ids", "node_features")
    return {k: v for k, v in zip(names, values, strict=False) if v is not None}


def load_data(data: str, columns: dict[str, Any]) -> Any:
    """Load the stream of DATA and print the assumptions made in reading it."""
    from cordgt.io.datasets import registry

    stream = registry.load(data, **columns)
    for text in stream.notes:
        console.note(f"{stream.name}: {text}")
    return stream


def facts(stream: Any) -> str:
    """``uci: 59,835 events of 1,899 nodes``."""
    return f"{stream.name}: {stream.n_events:,} events of {stream.n_nodes:,} nodes"


def remark_on_data(settings: Settings, stream: Any) -> None:
    """Print what a user should know before training this model on these events, if anything."""
    from cordgt import models

    network = models.find(settings.model).network
    remark = network.training_hint(settings.model_settings, stream.n_events, settings.training.batch_size)
    if remark:
        console.note(remark)
    if (stream.edge_dim or stream.node_dim) and not network.uses_features:
        console.note(f"{settings.model} uses no features: those of {stream.name} are ignored.")


def settings_for(
    data: str, model: str | None, config: Path | None, assignments: list[str], seed: int | None, init: Path | None
) -> Settings:
    """Settings from five sources. Each overrides those before it.

    1. defaults, 2. the paper's settings for a known dataset, 3. the run of --init, 4. --config, 5. --set.
    """
    from cordgt.models.presets import PRESETS, paper_settings
    from cordgt.training.run_folder import RunFolder
    from cordgt.training.settings import Given, make, parse_assignments, read_config

    from_file = Given(None, None, {}) if config is None else read_config(config)
    from_init = None if init is None else RunFolder(init).read_config().settings
    model = model or from_file.model or ("cordgt" if from_init is None else from_init.model)
    seed = seed if seed is not None else from_file.seed or 0
    given = from_file.keys | parse_assignments(assignments)
    preset: dict[str, Any] = paper_settings(data, model)
    origin = f"{PRESETS[model].publisher} settings for {data}" if preset else ""
    if from_init is not None and from_init.model == model:
        preset, origin = vars(from_init.model_settings), f"settings of {init}"
    preset = {k: v for k, v in preset.items() if k not in given}
    if preset:
        console.note(f"{origin}: {as_assignments(preset)}")
    settings = make(model, preset | given, seed=seed)
    if settings.unused:
        console.note(f"not used by {model}: {', '.join(settings.unused)}")
    return settings


def open_run(path: Path, device: str, events: Path | None = None, columns: dict[str, Any] | None = None) -> Run:
    """Load a run and append later ``events``, read with the options ``columns``, to its history.

    SettingError for --node-features without --events, or for a run without node features.
    """
    from cordgt.inference.run import Run

    columns = columns or {}
    if events is None and "node_features" in columns:
        raise SettingError("--node-features describes the nodes of --events. Remove it, or add --events.")
    loaded = Run.load(path, device)
    if events is None:
        return loaded
    if "node_features" in columns and not loaded.stream.node_dim:
        raise SettingError(f"--node-features: {path} was trained without node features.")
    longer = loaded.with_events(events, **columns)
    console.note(f"{events}: {longer.stream.n_events - loaded.stream.n_events:,} events appended to the history")
    for text in longer.stream.notes[len(loaded.stream.notes) :]:
        console.note(f"{events}: {text}")
    return longer


def query_columns(run: Run, file: Any, given: dict[str, Any], *, has_events: bool) -> dict[str, Any]:
    """The column options for a file of pairs or ids, from `load_file`.

    These are the options ``given``, and those of the training whose names are in the file's header. With
    ``has_events`` the user may have given the options for --events only. They then apply here only if the file has
    these columns.
    """
    from cordgt.io.column_options import columns_in_header, has_columns

    trained = {k: v for k, v in run.columns.items() if k in ("src", "dst", "time")}
    merged = columns_in_header(file, trained) | given
    if has_events and not has_columns(file, merged, need_time=False):
        return columns_in_header(file, trained | given)
    return merged


@contextmanager
def resumable() -> Iterator[None]:
    """On an interruption, print how to resume, and exit: with 130 after Ctrl-C, 143 after SIGTERM."""
    from cordgt.runtime.signals import Stopped

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
    """Print a command that queries the new run."""
    source = str(stream.ids.take(stream.src[-1:])[0].as_py())
    console.note(f"Ask it: {shlex.join(['cordgt', 'recommend', str(folder), '--source', source])}")


def show_metrics(title: str, metrics: RunMetrics, json_: str | None) -> None:
    """Print metrics as a table or as JSON, with remarks on them."""
    from cordgt.analysis.remarks import remarks
    from cordgt.cli import writers

    if json_ is not None:
        writers.write_json(metrics, json_)
    if json_ != "-":
        console.out.print(console.metrics_table(title, metrics))
    for text in remarks(metrics):
        console.note(text)


@contextmanager
def answering(n_queries: int) -> Iterator[Callback]:
    """A progress bar over ``n_queries``."""
    with console.ProgressBar() as bar:
        bar.on_stage_start("answering", n_queries)
        yield bar


def as_assignments(values: dict[str, Any]) -> str:
    """``fanout=20,1 hidden=64``: settings in the syntax of --set."""
    from cordgt.training.settings import written

    return " ".join(f"{k}={written(v)}" for k, v in values.items())
