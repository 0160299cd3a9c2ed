"""`cordgt report`: a run, or several side by side, as one HTML file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from cordgt.cli import console
from cordgt.cli.options import Device
from cordgt.errors import RunError, SettingError

MOST_RUNS = 12  # side by side; more cannot be told apart


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders, or a folder of several; the first is what others are compared with."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default="RUN/report.html; of several: comparison.html", help="Where to write it."
        ),
    ] = None,
    events: Annotated[
        str, typer.Option(metavar="N|all", help="How many test events the plots look at, evenly spread.")
    ] = "2000",
    device: Device = "auto",
) -> None:
    """A report of RUN as one HTML file, or a comparison of several runs.

    It needs no network and can be passed on: figures, curves, where the model is right and wrong, and why.
    """
    from cordgt.api import Run
    from cordgt.cli import answers
    from cordgt.files import write_text
    from cordgt.report.one import FILE
    from cordgt.report.one import report as of_one
    from cordgt.report.several import comparison

    at_most = _at_most(events)
    answers.check_output(output, (".html", ".htm"))
    folders = _expanded(runs)
    loaded = {name: Run.load(path, device) for name, path in _named(folders).items()}
    with console.Bar() as bar:
        looks = {name: run.look(bar.titled(f"{name}, "), at_most=at_most) for name, run in loaded.items()}
        text = of_one(next(iter(looks.values()))) if len(looks) == 1 else comparison(looks)
    target = output or (folders[0] / FILE if len(folders) == 1 else Path("comparison.html"))
    write_text(target, text)
    console.note(f"{target}: written")


def _at_most(events: str) -> int | None:
    if events == "all":
        return None
    if not events.isdecimal() or int(events) < 1:
        raise SettingError(f"--events {events}: it is a number from 1 up, or all.")
    return int(events)


def _expanded(runs: list[Path]) -> list[Path]:
    """The run folders; one that holds runs (`--seeds`, `--mask-draws`) stands for those."""
    found = []
    for path in runs:
        inner = sorted(p.parent for p in path.glob("*/config.toml")) if not (path / "config.toml").exists() else []
        found += inner or [path]
    twice = [path for path, n in Counter(p.resolve() for p in found).items() if n > 1]
    if twice:
        raise RunError(f"{twice[0]} is named twice.")
    if len(found) > MOST_RUNS:
        raise RunError(f"{len(found)} runs are too many for one report: up to {MOST_RUNS} can be told apart.")
    return found


def _named(folders: list[Path]) -> dict[str, Path]:
    """Each folder by its name; by its whole path where two have the same."""
    often = Counter(path.name for path in folders)
    return {str(path) if often[path.name] > 1 or not path.name else path.name: path for path in folders}
