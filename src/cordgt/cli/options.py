"""The options that several commands share, with their help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cordgt.errors import SettingError

_COLUMNS = "Columns: a name, or a position counted from 0"
FILE_ENDINGS = ".csv, .tsv, .parquet or .json"


def column(name: str, text: str) -> Any:
    """An option that names a column."""
    return typer.Option(name, metavar="COLUMN", help=text, rich_help_panel=_COLUMNS)


def flag(name: str, text: str) -> Any:
    """An option without a value."""
    return typer.Option(name, metavar="", help=text)


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A known dataset's name, a file (CSV, TSV, edge list, Parquet, gzip of these), or a store.",
    ),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, made by `cordgt train`.")]
Src = Annotated[str | None, column("--src", "Of the sources.")]
Dst = Annotated[str | None, column("--dst", "Of the destinations.")]
Time = Annotated[str | None, column("--time", "Of the times.")]
Label = Annotated[str | None, column("--label", "Of the labels; none: no labels.")]
Features = Annotated[
    str | None,
    typer.Option(
        "--features", metavar="COLUMNS", help="Of event features: a,b,c or 4-7 or rest.", rich_help_panel=_COLUMNS
    ),
]
Ids = Annotated[
    str,
    typer.Option(
        "--ids",
        metavar="WORD",
        help="Does an id name the same node in both columns? shared (yes), separate (no), or auto: separate where the "
        "columns are called like users and items.",
        rich_help_panel=_COLUMNS,
    ),
]
NodeFeatures = Annotated[
    Path | None,
    typer.Option(
        "--node-features", metavar="FILE", help="Features of the nodes, joined by id.", rich_help_panel=_COLUMNS
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="WORD", help="auto, cpu or cuda.")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")]
Json = Annotated[
    str | None, typer.Option("--json", metavar="[FILE]", help="The answer as JSON: into FILE, or to standard output.")
]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help=f"Where to write the answers: {FILE_ENDINGS}.")]
Events = Annotated[
    Path | None,
    typer.Option(
        "--events", metavar="FILE", help="Events since the training: appended to the history before answering."
    ),
]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="When the question is asked; without it, after the whole history."),
]


def _renamed(new: str) -> Callable[[str | None], None]:
    """A callback that refuses an old option and names the new one."""

    def refuse(value: str | None) -> None:
        if value is not None:
            raise SettingError(f"This option is now called {new}.")

    return refuse


RenamedPart = Annotated[str | None, typer.Option("--part", hidden=True, callback=_renamed("--split"))]
