"""The other commands: models, demo, bench, version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cordgt import __version__
from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.cli.distributed import (
    bench_shared,
    is_measured,
    started_as_one_of_several,
)
from cordgt.cli.loading import as_assignments, load_data, settings_for
from cordgt.cli.options import (
    Device,
    Json,
    Set,
    flag,
)
from cordgt.errors import SettingError


def list_models(
    only: Annotated[str | None, typer.Argument(metavar="[NAME]", show_default="all", help="One of them.")] = None,
    json_: Json = None,
) -> None:
    """The models, and the settings each of them takes."""
    from cordgt.cli import writers
    from cordgt.models import MODELS, find
    from cordgt.tasks.protocol import Protocol
    from cordgt.training.settings import Training

    writers.check_json(json_)
    rows = [
        {"model": name, "about": kind.about, "settings": as_assignments(vars(kind.settings()) | kind.training)}
        for name, kind in (MODELS if only is None else {only: find(only)}).items()
    ]
    writers.show(rows, json_)
    shared = as_assignments(vars(Training()) | vars(Protocol()))
    console.note(f"Every model also takes these, with these values where its own do not say otherwise: {shared}")


def demo(
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default="a new one under runs/", help="The run folder.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the stream and of the training.")] = 0,
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Train on a generated stream, compare with an oracle that knows the truth, and ask a few questions."""
    from cordgt.cli import writers
    from cordgt.cli.demo import run_demo

    writers.check_json(json_)
    found = run_demo(out, seed, device, quiet=json_ == "-")
    if json_ is not None:
        writers.write_json(found, json_)


def bench(
    stage: Annotated[
        str,
        typer.Argument(
            metavar="STAGE",
            help="machine, index, sample, pairs, distances, encode, attention, step, evaluate, recommend; all of "
            "these; or growth: how cost grows with events and context; or processes: what sharing a step gains.",
        ),
    ],
    data: Annotated[
        str, typer.Option("--data", metavar="DATA", help="A known dataset's or a twin's name, synthetic, or a file.")
    ] = "synthetic",
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="See `cordgt models`.")] = "cordgt",
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, metavar="N", help="Samples of each time, after a warm-up.")
    ] = 7,
    quick: Annotated[bool, flag("--quick", "Small sizes: to see that it runs.")] = False,
    scale: Annotated[
        float | None,
        typer.Option(
            min=0.001, metavar="X", show_default="1", help="growth: the largest stream, as a multiple of the twin."
        ),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            show_default="1,2",
            help="processes: how many to share a step among, one after the other.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="growth: draw it, as PNG, PDF or SVG.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a step as a Chrome trace, for Perfetto.")
    ] = None,
    json_: Json = None,
) -> None:
    """Time each stage beside the machine's own limits, measured in the same run.

    Times are medians. The columns matrix and memory say which share of the machine's matrix rate and bandwidth that is.
    """
    from cordgt.cli import writers
    from cordgt.errors import check_choice
    from cordgt.experiments.bench import report, scaling, suite
    from cordgt.training.devices import choose_device

    check_choice("STAGE", stage, (*suite.ALL, "all", "growth", "processes"))
    if started_as_one_of_several() and stage != "processes":
        raise SettingError(f"`cordgt bench {stage}` runs in one process: start it without torchrun.")
    writers.check_json(json_)
    _check_meant_for(stage, {"--plot": plot, "--scale": scale}, "growth")
    _check_meant_for(stage, {"--processes": processes}, "processes")
    writers.check_output(plot, (".png", ".pdf", ".svg"))
    writers.check_output(trace, endings=())
    settings = settings_for(data, model, None, set_, None, None)
    on = choose_device(device)
    place = suite.prepare(load_data(data, {}), settings, on, repeat=repeat, quick=quick or is_measured())
    if trace is not None:
        place.check_trains()
    if stage == "processes":
        shared = bench_shared(place, processes or "1,2", _BenchNotes())
        if shared is None:
            return
        found = shared
    elif stage == "growth":
        found = scaling.grow(place, scale, _BenchNotes())
    else:
        found = suite.run(place, suite.ALL if stage == "all" else (stage,), _BenchNotes())
    if plot is not None:
        scaling.plot(found, plot)
        console.note(f"{plot}: written")
    if trace is not None:
        suite.trace(place, trace)
        console.note(f"{trace}: written")
    if json_ is not None:
        writers.write_json(found, json_)
    if json_ != "-":
        console.out.print(report.machine_line(found), markup=False)
        tables = {"growth": report.growth_table, "processes": report.shared_table}
        if stage != "machine":
            console.out.print(tables.get(stage, report.stages_table)(found))
        for text in report.sentences(found):
            console.out.print(text, markup=False)


def show_version(json_: Json = None) -> None:
    """The version of cordgt, and of what it stands on."""
    import platform

    import numba
    import pyarrow
    import torch

    from cordgt.cli import writers

    versions = {"cordgt": __version__, "python": platform.python_version(), "torch": torch.__version__}
    versions |= {"numba": numba.__version__, "pyarrow": pyarrow.__version__}
    versions["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    writers.show_facts(versions, json_)


def say_version(asked: bool) -> None:
    """The answer to ``cordgt --version``, which is all that is done then."""
    if asked:
        console.out.print(f"cordgt {__version__}", highlight=False)
        raise typer.Exit


def _check_meant_for(stage: str, given: dict[str, object], only: str) -> None:
    """SettingError for an option that says nothing to this stage: it would be ignored."""
    for option, value in given.items():
        if value is not None and stage != only:
            raise SettingError(f"{option} is for `cordgt bench {only}`: leave it out for {stage}.")


class _BenchNotes(Callback):
    """Prints a line when a measurement starts."""

    def on_stage_start(self, name: str, total: int | None) -> None:
        console.note(f"measuring {name}")
