"""Commands that train: train, search."""

from __future__ import annotations

import itertools
import json
import shlex
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cordgt.cli import console, node
from cordgt.cli.distributed import Processes, is_main_process, launch_processes
from cordgt.cli.loading import build_settings, load_data
from cordgt.cli.options import Data, Device, Json, Model, Set, add_column_options, flag, option
from cordgt.cli.resume import fill_out_option, resume_hint
from cordgt.errors import SettingError
from cordgt.tasks.metrics import LINK_METRICS

LONG_SECONDS = 600.0  # a longer training names faster choices

if TYPE_CHECKING:
    from cordgt.runtime.phase_times import PhaseTimes
    from cordgt.training.run_folder import RunFolder
    from cordgt.training.settings import Settings


@add_column_options()
def train(
    data: Data,
    columns: dict[str, Any],
    model: Model = None,
    config: Annotated[Path | None, option("FILE", "Settings from a TOML file, such as a run's config.toml.")] = None,
    set_: Set = [],  # noqa: B006
    seed: Annotated[
        int | None, option("N", "Seed of weights, dropout, sampling and training negatives.", show_default="0")
    ] = None,
    seeds: Annotated[int | None, option("N", "Train with N seeds, into seed-* folders.", min=1)] = None,
    mask_draws: Annotated[
        int | None, option("N", "Train with N random sets of masked nodes, into mask-* folders.", min=1)
    ] = None,
    device: Device = "auto",
    processes: Processes = None,
    out: Annotated[
        Path | None,
        option("DIR", "The run folder; {date} and {time} are filled in.", show_default="runs/DATA-MODEL-seedN"),
    ] = None,
    replace: Annotated[
        bool, flag("--replace", "Make --out a link to the new run once it is complete. Former runs stay next to it.")
    ] = False,
    keep: Annotated[
        int | None, option("N", "With --replace: the number of former runs to keep.", min=1, show_default="7")
    ] = None,
    resume: Annotated[bool, flag("--resume", "Continue an interrupted run.")] = False,
    init: Annotated[Path | None, option("RUN", "Start from the weights of a trained run, with its settings.")] = None,
    refit: Annotated[
        bool, flag("--refit", "Then train a second model on all events. It answers queries; the metrics stay.")
    ] = False,
    no_report: Annotated[bool, flag("--no-report", "Do not write report.html.")] = False,
    profile: Annotated[
        bool, flag("--profile", "Print how long each phase of the job takes, and write it to profile.json.")
    ] = False,
    task: Annotated[str, option("WORD", "link, or node: classify labelled nodes with a frozen --encoder.")] = "link",
    encoder: Annotated[
        Path | None, option("RUN", "With --task node: the run whose model gives the embeddings.")
    ] = None,
    json_: Json = None,
) -> None:
    """Train a model on DATA, evaluate it, and write a run folder."""
    link_options = {
        "--model": model,
        "--config": config,
        "--init": init,
        "--refit": refit,
        "--replace": replace,
        "--keep": keep,
        "--resume": resume,
        "--seeds": seeds,
        "--mask-draws": mask_draws,
        "--processes": processes,
        "--no-report": no_report,
        "--profile": profile,
    }
    node.check_task(task, encoder, link_options)
    if keep is not None and not replace:
        raise SettingError("--keep works only with --replace: it is the number of former runs to keep. Add --replace.")
    out = fill_out_option(out)
    launch_processes(processes, data)
    from cordgt.callbacks import NO_CALLBACK, CallbackList
    from cordgt.cli import writers
    from cordgt.files import follow_link
    from cordgt.runtime.phase_times import PhaseTimes
    from cordgt.training.devices import choose_device
    from cordgt.training.output_folder import default_folder
    from cordgt.training.run_folder import RunFolder
    from cordgt.training.versions import DEFAULT_KEEP, RunVersions
    from cordgt.workflows.seeds import settings_by_folder, train_seeds
    from cordgt.workflows.train import train_run

    writers.check_json(json_)
    if encoder is not None:
        return node.train_node_classifier(data, encoder, set_, seed, device, out, columns, json_)
    settings = build_settings(data, model, config, set_, seed, init)
    is_cpu = choose_device(device).type == "cpu"  # an unusable device is an error before the data is read
    phases = PhaseTimes() if profile and is_main_process() else None
    (phases or NO_CALLBACK).on_phase_start("read")
    stream = load_data(data, columns)
    (phases or NO_CALLBACK).on_phase_start("prepare")
    name = out or default_folder(stream.name, settings.model, settings.seed)
    folder = _next_version(name, resume) if replace else name
    former = follow_link(name)
    is_single = seeds is None and mask_draws is None
    console.print_note(f"{settings.model} on {_summary(stream)}; metrics and weights go to {folder}")
    _print_training_hints(settings, stream)
    was_finished = RunFolder(folder).is_finished
    if stream.backing is not None:
        console.print_note(f"{data} is a store: the run reads from it, and keeps its training index there.")
        n_events = RunFolder(folder).read_config().data.get("events") if resume and RunFolder(folder).has_run else None
        if n_events not in (None, stream.n_events):
            console.print_note(
                f"The store has grown: this run continues with the {n_events:,} events that it started with."
            )
    n_runs = (seeds or 1) * (mask_draws or 1)
    describe = partial(_describe_estimate, settings, is_cpu=is_cpu)
    with resume_hint(), console.ProgressBar(_seed_title, n_runs=n_runs, describe_estimate=describe) as bar:
        options: dict[str, Any] = {
            "device": device,
            "resume": resume,
            "init": init,
            "refit": refit,
            "report": not no_report,
            "columns": columns,
            "callbacks": bar if phases is None else CallbackList([bar, phases]),
        }
        if is_single:
            metrics = train_run(stream, settings, folder, **options).metrics
        else:
            metrics = train_seeds(stream, settings, folder, seeds, mask_draws=mask_draws, **options)
    if not is_main_process():
        return
    if phases is not None:
        _write_profile(RunFolder(folder), phases)
    if replace:
        RunVersions(name).publish(folder, DEFAULT_KEEP if keep is None else keep, former)
        console.print_note(f"{name} is now a link to {folder.name}")
    if resume and was_finished and not bar.has_trained:
        console.print_note(f"{folder} was finished already: nothing was trained. These are its metrics.")
    writers.print_metrics(f"{settings.model} on {stream.name}", metrics, json_)
    first = name / next(iter(settings_by_folder(settings, seeds, mask_draws)))
    report = first / "report.html"
    if report.exists():
        console.print_note(f"See {report}" if is_single else f"See {report}, or compare: cordgt report {name}")
    source = str(stream.ids.decode(stream.src[-1:])[0].as_py())
    console.print_note(f"Query it: {shlex.join(['cordgt', 'recommend', str(first), '--source', source])}")


def _write_profile(folder: RunFolder, phases: PhaseTimes) -> None:
    """Print the phases of the job and write them to ``profile.json``."""
    from cordgt.cli import writers

    profile = phases.finish()
    folder.write_text("profile.json", json.dumps(profile, indent=2) + "\n")
    writers.print_profile(profile)


def _next_version(name: Path, resume: bool) -> Path:
    """Return the folder in which --replace trains. Only the main process touches the folders."""
    from cordgt.training.versions import RunVersions

    if not is_main_process():
        return name
    folder, deleted = RunVersions(name).start(resume=resume)
    for other in deleted:
        console.print_note(f"{other} was unfinished: deleted (--resume continues such a run)")
    return folder


def _seed_title(name: str) -> str:
    """Return "mask 1, seed 2, " for the folder ``mask-1-seed-2``."""
    return f"{name.replace('-seed', ', seed').replace('-', ' ')}, "


@add_column_options()
def search(
    data: Data,
    columns: dict[str, Any],
    model: Model = None,
    grid: Annotated[
        list[str],
        option(
            "KEY=VALUES",
            "Values to try, for example num_walks=16,32; may be repeated.",
            show_default="the paper's grid, if it has one",
        ),
    ] = [],  # noqa: B006
    at_most: Annotated[int | None, option("N", "Try a random sample of N combinations.", min=1)] = None,
    config: Annotated[Path | None, option("FILE", "Settings from a TOML file.")] = None,
    set_: Set = [],  # noqa: B006
    seed: Annotated[int | None, option("N", "As in `cordgt train`.", show_default="0")] = None,
    device: Device = "auto",
    out: Annotated[Path | None, option("DIR", "The folder of all runs.", show_default="runs/DATA-MODEL-search")] = None,
    resume: Annotated[bool, flag("--resume", "Continue an interrupted search.")] = False,
    json_: Json = None,
) -> None:
    """Try combinations of settings on DATA and compare them on validation data. Test events are not used."""
    from cordgt import models
    from cordgt.cli import writers
    from cordgt.training.devices import choose_device
    from cordgt.training.settings import parse_assignments
    from cordgt.workflows.search import check_grid, grid_combinations
    from cordgt.workflows.search import search as run_search

    writers.check_json(json_)
    out = fill_out_option(out)
    settings = build_settings(data, model, config, set_, seed, None)
    given = {key: [v for v in values.split(",") if v.strip()] for key, values in parse_assignments(grid).items()}
    full_grid = given or models.find_model(settings.model).grid
    check_grid(full_grid)
    choose_device(device)  # before the data is read
    stream = load_data(data, columns)
    folder = out or Path("runs") / f"{stream.name}-{settings.model}-search"
    combinations = grid_combinations(full_grid, at_most, settings.seed)
    n = len(combinations)
    console.print_note(f"{settings.model} on {_summary(stream)}: {n} combinations, into {folder}")
    _print_training_hints(settings, stream)
    start, counter = time.monotonic(), itertools.count()

    def make_title(name: str) -> str:
        """Return the title of the next combination. Print the remaining time now and then."""
        n_done = next(counter)
        if n_done in (1, 3, 10, 30, 100) and not resume:  # after a resume, finished combinations take no time
            hours = (n - n_done) * (time.monotonic() - start) / n_done / 3600
            console.print_note(f"{n_done} of {n} tried; the others take about {console.format_duration(hours)}")
        return f"[{n_done + 1}/{n}] {name}, "

    describe = partial(_describe_estimate, settings)
    with resume_hint(), console.ProgressBar(make_title, n_runs=n, describe_estimate=describe) as bar:
        trials = run_search(
            stream, settings, combinations, folder, device=device, resume=resume, columns=columns, callbacks=bar
        )
    rows = [{**trial.settings, **{k: v for k, v in vars(trial).items() if k != "settings"}} for trial in trials]
    writers.print_rows(rows if json_ is not None else [_table_row(row) for row in rows], json_)
    best = trials[0]
    assignments = [*set_, *(f"{key}={value}" for key, value in best.settings.items())]
    options = [("--model", settings.model), *([] if config is None else [("--config", config)])]
    options += [("--seed", settings.seed), *(("--set", assignment) for assignment in assignments)]
    options += [
        (f"--{key.replace('_', '-')}", value) for key, value in columns.items() if (key, value) != ("ids", "auto")
    ]
    words = [str(word) for option in (*options, ("--out", best.folder)) for word in option]
    command = shlex.join(["cordgt", "train", data, *words, "--resume"])
    console.print_note(f"Evaluate the best on the test period, without training it again: {command}")


def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for people: the metric in percent, and no folder."""
    shown = {k: v for k, v in row.items() if k not in ("folder", "monitor", "value", "seconds_per_epoch")}
    monitor = LINK_METRICS[row["monitor"]]
    metric = {f"validation {monitor.title}": monitor.format(row["value"])}
    return shown | metric | {"s/epoch": f"{row['seconds_per_epoch']:.1f}"}


def _summary(stream: Any) -> str:
    """Return "uci: 59,835 events of 1,899 nodes"."""
    return f"{stream.name}: {stream.n_events:,} events of {stream.n_nodes:,} nodes"


def _describe_estimate(settings: Settings, seconds: float, *, is_cpu: bool = False) -> list[str]:
    """Return sentences about the time a command takes, with faster choices if it is long; none below a minute."""
    if seconds < 60:
        return []
    training = settings.training
    text = f"This takes at most about {console.format_duration(seconds / 3600)}."
    if training.patience < training.epochs:
        text += (
            f" A training has at most {training.epochs} epochs. It stops after {training.patience} without improvement."
        )
    faster = []
    if seconds > LONG_SECONDS and is_cpu and _is_larger_than_small(settings):
        faster.append("--model cordgt_small is a small CorDGT+, more than 10 times as fast")
        faster.append("--model counts --set collaborative=true is more than 100 times as fast")
    elif seconds > LONG_SECONDS and settings.model != "counts":
        faster.append("--model counts trains in seconds")
    if seconds > LONG_SECONDS and is_cpu and _could_train_in_bf16(settings):
        faster.append("--set precision=bf16-cpu takes about 0.4 of the time on this CPU")
    fanout = getattr(settings.model_settings, "fanout", ())
    if seconds > LONG_SECONDS and fanout and fanout[0] > 1:
        smaller = ",".join(map(str, (fanout[0] // 2, *fanout[1:])))
        faster.append(f"--set fanout={smaller} (now {','.join(map(str, fanout))}) halves the context")
    return [text, *([f"Faster choices: {'; '.join(faster)}."] if faster else [])]


def _is_larger_than_small(settings: Settings) -> bool:
    """Return whether the model is a CorDGT or a CorDGT+ with larger trees and states than the small CorDGT+."""
    from cordgt import models

    if settings.model not in ("cordgt", "cordgt_plus"):
        return False
    own, small = settings.model_settings, models.find_model("cordgt_small").settings()
    return bool(own.fanout[0] > small.fanout[0] and own.hidden > small.hidden)


def _could_train_in_bf16(settings: Settings) -> bool:
    """Return whether this CPU would train the model faster in bfloat16 than with these settings."""
    from cordgt import models
    from cordgt.training.devices import has_fast_bf16

    supports_bf16 = models.find_model(settings.model).network.supports_bf16
    return supports_bf16 and settings.training.precision != "bf16-cpu" and has_fast_bf16()


def _print_training_hints(settings: Settings, stream: Any) -> None:
    """Print what a user should know before training this model on these events, if anything."""
    from cordgt import models

    network = models.find_model(settings.model).network
    hint = network.training_hint(settings.model_settings, stream.n_events, settings.training.batch_size)
    if hint:
        console.print_note(hint)
    uses_features = network.uses_features or getattr(settings.model_settings, "likeness", False)
    if (stream.edge_dim or stream.node_dim) and not uses_features:
        console.print_note(f"{settings.model} uses no features: those of {stream.name} are ignored.")
