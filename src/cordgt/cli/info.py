"""Commands about cordgt itself: models, demo, version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cordgt import __version__
from cordgt.cli import console
from cordgt.cli.loading import format_assignments
from cordgt.cli.options import Device, Json, option


def list_models(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", show_default="all", help="A model.")] = None,
    json_: Json = None,
) -> None:
    """List the models and their settings."""
    from cordgt.cli import writers
    from cordgt.models import MODELS, find_model
    from cordgt.tasks.protocol import Protocol
    from cordgt.training.settings import TrainingSettings

    writers.check_json(json_)
    rows = [
        {"model": key, "about": entry.about, "settings": format_assignments(vars(entry.settings()) | entry.training)}
        for key, entry in (MODELS if name is None else {name: find_model(name)}).items()
    ]
    writers.print_rows(rows, json_)
    shared = format_assignments(vars(TrainingSettings()) | vars(Protocol()))
    console.print_note(f"Every model also takes these settings, with these defaults unless listed above: {shared}")


def demo(
    out: Annotated[Path | None, option("DIR", "The run folder.", show_default="a new one under runs/")] = None,
    seed: Annotated[int, option("N", "Seed of the stream and of the training.")] = 0,
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Train on a generated stream, compare with the true probabilities, and recommend a few partners."""
    from cordgt.cli import writers
    from cordgt.cli.demo import run_demo

    writers.check_json(json_)
    results = run_demo(out, seed, device, quiet=json_ == "-")
    writers.write_json(results, json_)


def show_version(json_: Json = None) -> None:
    """Print the versions of cordgt and of its main dependencies."""
    import platform

    import numba
    import pyarrow
    import torch

    from cordgt.cli import writers

    versions = {"cordgt": __version__, "python": platform.python_version(), "torch": torch.__version__}
    versions |= {"numba": numba.__version__, "pyarrow": pyarrow.__version__}
    versions["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    writers.print_facts(versions, json_)


def print_version(is_given: bool) -> None:
    """Print the version and exit: the callback of ``cordgt --version``."""
    if is_given:
        console.stdout.print(f"cordgt {__version__}", highlight=False)
        raise typer.Exit
