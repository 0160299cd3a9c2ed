"""Commands that train: train, search."""

from __future__ import annotations

import itertools
import shlex
import time as clock  # `time` is an option here
from pathlib import Path
from typing import Annotated, Any

import typer

from cordgt.cli import console, node
from cordgt.cli.distributed import (
    Processes,
    leads,
    share,
)
from cordgt.cli.loading import (
    facts,
    given_columns,
    load_data,
    remark_on_data,
    resumable,
    settings_for,
    show_metrics,
    suggest,
)
from cordgt.cli.options import (
    Data,
    Device,
    Dst,
    Features,
    Ids,
    Json,
    Label,
    NodeFeatures,
    Set,
    Src,
    Time,
    flag,
)


def train(
    data: Data,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", show_default="cordgt", help="See `cordgt models`.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings from a TOML file, such as a run's config.toml.")
    ] = None,
    set_: Set = [],  # noqa: B006
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="0", help="Of weights, dropout, trees and training negatives."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Train so many times, into seed-* folders.")
    ] = None,
    mask_draws: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Train with so many draws of the masked nodes, into mask-* folders."),
    ] = None,
    device: Device = "auto",
    processes: Processes = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default="runs/DATA-MODEL-seedN", help="The run folder.")
    ] = None,
    resume: Annotated[bool, flag("--resume", "Continue an interrupted run.")] = False,
    init: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Start from the weights of a trained run, with its settings.")
    ] = None,
    refit: Annotated[
        bool, flag("--refit", "Afterwards train on all events; that model answers, the figures stay.")
    ] = False,
    no_report: Annotated[bool, flag("--no-report", "Without report.html in the run folder.")] = False,
    task: Annotated[
        str, typer.Option(metavar="WORD", help="link; or node: a classifier of labelled nodes on a frozen --encoder.")
    ] = "link",
    encoder: Annotated[
        Path | None, typer.Option(metavar="RUN", help="With --task node: the run whose model gives the embeddings.")
    ] = None,
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    ids: Ids = "auto",
    node_features: NodeFeatures = None,
    json_: Json = None,
) -> None:
    """Train a model on DATA, measure it, and keep everything in a run folder."""
    others: dict[str, Any] = {
        "--model": model,
        "--config": config,
        "--init": init,
        "--refit": refit,
        "--resume": resume,
    }
    others |= {"--seeds": seeds, "--mask-draws": mask_draws, "--processes": processes, "--no-report": no_report}
    node.check_task(task, encoder, others)
    share(processes, data)
    from cordgt.cli import writers
    from cordgt.training.devices import choose_device
    from cordgt.training.output_folder import default_folder
    from cordgt.training.run_folder import RunFolder
    from cordgt.workflows.seeds import settings_by_folder, train_seeds
    from cordgt.workflows.train import train_run

    writers.check_json(json_)
    columns = given_columns(src, dst, time, label, features, ids, node_features)
    if encoder is not None:
        return node.train_classifier(data, encoder, set_, seed, device, out, columns, json_)
    settings = settings_for(data, model, config, set_, seed, init)
    choose_device(device)  # before the data is read
    stream = load_data(data, columns)
    folder = out or default_folder(stream.name, settings.model, settings.seed)
    several = seeds is not None or mask_draws is not None
    options: dict[str, Any] = {"device": device, "resume": resume, "init": init, "refit": refit, "columns": columns}
    options["report"] = not no_report
    console.note(f"{settings.model} on {facts(stream)}; figures and weights go to {folder}")
    remark_on_data(settings, stream)
    was_finished = RunFolder(folder).finished
    if stream.backing is not None:
        console.note(f"{data} is a store: the run answers from it. The index for training is made once and kept in it.")
        begun = RunFolder(folder).read_config().data.get("events") if resume and RunFolder(folder).holds_run else None
        if begun not in (None, stream.n_events):
            console.note(f"The store has grown: this run goes on with the {begun:,} events that it began with.")
    with resumable(), console.ProgressBar(_seed_title) as bar:
        options["callbacks"] = bar
        if not several:
            metrics = train_run(stream, settings, folder, **options).metrics
        else:
            metrics = train_seeds(stream, settings, folder, seeds, mask_draws=mask_draws, **options)
    if not leads():
        return
    if resume and was_finished and not bar.trained:
        console.note(f"{folder} was finished already: nothing was trained. These are its figures.")
    show_metrics(f"{settings.model} on {stream.name}", metrics, json_)
    first = folder / next(iter(settings_by_folder(settings, seeds, mask_draws)))
    if (first / "report.html").exists():
        console.note(f"See {first / 'report.html'}" + (f", or compare: cordgt report {folder}" if several else ""))
    suggest(first, stream)


def _seed_title(name: str) -> str:
    """``mask-1-seed-2`` as "mask 1, seed 2, "."""
    return f"{name.replace('-seed', ', seed').replace('-', ' ')}, "


def search(
    data: Data,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", show_default="cordgt", help="See `cordgt models`.")
    ] = None,
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUES",
            help="Values to try, as in walks=16,32; may be repeated. Without it the paper's grid, where it has one.",
        ),
    ] = [],  # noqa: B006
    at_most: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many combinations, drawn by the seed; not all.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings from a TOML file.")] = None,
    set_: Set = [],  # noqa: B006
    seed: Annotated[int | None, typer.Option(metavar="N", show_default="0", help="As in `cordgt train`.")] = None,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default="runs/DATA-MODEL-search", help="The folder of all runs.")
    ] = None,
    resume: Annotated[bool, flag("--resume", "Continue an interrupted search.")] = False,
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    ids: Ids = "auto",
    node_features: NodeFeatures = None,
    json_: Json = None,
) -> None:
    """Try combinations of settings on DATA, judged on validation data alone; the test period stays unseen."""
    from cordgt import models
    from cordgt.cli import writers
    from cordgt.training.devices import choose_device
    from cordgt.training.settings import parse_assignments
    from cordgt.workflows.search import check_grid, combinations
    from cordgt.workflows.search import search as search_all

    writers.check_json(json_)
    settings = settings_for(data, model, config, set_, seed, None)
    given = {key: [v for v in values.split(",") if v.strip()] for key, values in parse_assignments(grid).items()}
    wanted = given or models.find(settings.model).grid
    check_grid(wanted)
    choose_device(device)  # before the data is read
    columns = given_columns(src, dst, time, label, features, ids, node_features)
    stream = load_data(data, columns)
    folder = out or Path("runs") / f"{stream.name}-{settings.model}-search"
    tried = combinations(wanted, at_most, settings.seed)
    console.note(f"{settings.model} on {facts(stream)}: {len(tried)} combinations, into {folder}")
    remark_on_data(settings, stream)
    began, numbers = clock.monotonic(), itertools.count()

    def make_title(name: str) -> str:
        """Counts the combinations, and says how long the others will take if they go as those before."""
        done = next(numbers)
        if done in (1, 3, 10, 30, 100) and not resume:  # those that were finished then took no time
            hours = (len(tried) - done) * (clock.monotonic() - began) / done / 3600
            console.note(f"{done} of {len(tried)} tried; the others take about {console.lasting(hours)}")
        return f"[{done + 1}/{len(tried)}] {name}, "

    with resumable(), console.ProgressBar(make_title) as bar:
        found = search_all(
            stream, settings, tried, folder, device=device, resume=resume, columns=columns, callbacks=bar
        )
    rows = [{**trial.settings, **{k: v for k, v in vars(trial).items() if k != "settings"}} for trial in found]
    writers.show(rows if json_ is not None else [_short(row) for row in rows], json_)
    best = [f"{key}={value}" for key, value in found[0].settings.items()]
    options = [("--model", settings.model), *([] if config is None else [("--config", config)])]
    options += [("--seed", settings.seed), *(("--set", assignment) for assignment in (*set_, *best))]
    options += [
        (f"--{key.replace('_', '-')}", value) for key, value in columns.items() if (key, value) != ("ids", "auto")
    ]
    words = [str(word) for option in (*options, ("--out", found[0].folder)) for word in option]
    command = shlex.join(["cordgt", "train", data, *words, "--resume"])
    console.note(f"Measure the best on the test period, without training it again: {command}")


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table: the figure in percent, and no folder."""
    shown = {k: v for k, v in row.items() if k not in ("folder", "monitor", "figure", "seconds_per_epoch")}
    metric = {f"validation {row['monitor'].upper()}": f"{100 * row['figure']:.2f}"}
    return shown | metric | {"s/epoch": f"{row['seconds_per_epoch']:.1f}"}
