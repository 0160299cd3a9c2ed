"""Options that several commands share, with their help."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cordgt.errors import SettingError

COLUMNS_PANEL = "Columns: a name, or a position counted from 0"
FILE_ENDINGS = ".csv, .tsv, .parquet or .json"


def option(metavar: str, text: str, *, name: str | None = None, **kwargs: Any) -> Any:
    """Return an option with a value. Typer derives the name from the parameter, unless ``name`` is given."""
    return typer.Option(*([] if name is None else [name]), metavar=metavar, help=text, **kwargs)


def flag(name: str, text: str) -> Any:
    """Return an option without a value."""
    return typer.Option(name, metavar="", help=text)


def _column(text: str, metavar: str = "COLUMN") -> Any:
    return option(metavar, text, rich_help_panel=COLUMNS_PANEL)


# Type and default of each option of `add_column_options`, by its name in `read_events`.
COLUMN_OPTIONS: dict[str, tuple[Any, str | bool | None]] = {
    "src": (Annotated[str | None, _column("Column of the sources.")], None),
    "dst": (Annotated[str | None, _column("Column of the destinations.")], None),
    "time": (Annotated[str | None, _column("Column of the times.")], None),
    "label": (Annotated[str | None, _column("Column of the labels; none: no labels.")], None),
    "features": (Annotated[str | None, _column("Columns of event features: a,b,c or 4-7 or rest.", "COLUMNS")], None),
    "time_format": (
        Annotated[
            str | None,
            _column('Format of the dates, such as "%d/%m/%Y %H:%M"; not needed for ISO dates.', "FORMAT"),
        ],
        None,
    ),
    "ids": (
        Annotated[
            str,
            _column(
                "Whether equal ids of both columns are one node: shared, separate, or auto (separate if the columns "
                "are named like users and items, or the file is a list of them).",
                "WORD",
            ),
        ],
        "auto",
    ),
    "member": (Annotated[str | None, _column("File to read in a zip archive of several files.", "NAME")], None),
    "skip_bad_rows": (
        Annotated[
            bool,
            typer.Option(
                "--skip-bad-rows",
                metavar="",
                help="Leave out rows that cannot be read, and count them.",
                rich_help_panel=COLUMNS_PANEL,
            ),
        ],
        False,
    ),
    "node_features": (Annotated[Path | None, _column("File of node features, joined by id.", "FILE")], None),
}


def add_column_options(*, without: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `COLUMN_OPTIONS` to a command, except ``without``.

    The command gets those that the user gave, and those with a default, as the dict ``columns``.
    """
    names = [name for name in COLUMN_OPTIONS if name != without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**options: Any) -> None:
            values = {name: options.pop(name) for name in names}
            given = {name: value for name, value in values.items() if value is not None and value is not False}
            command(**options, columns=given)

        signature = inspect.signature(command, eval_str=True)
        parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "columns"]
        for name in names:
            annotation, default = COLUMN_OPTIONS[name]
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by typer
        return wrapper

    return decorate


PLUGIN_PANEL = "Extensions"
_PLUGIN = Annotated[
    list[Path],
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="Run a Python file of your own that registers models, metrics, negatives, datasets or exporters; may be "
        "repeated. Load only files that you trust.",
        rich_help_panel=PLUGIN_PANEL,
    ),
]


def add_plugin_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--plugin FILE.py`` to a command. The files are loaded before the command begins."""

    @functools.wraps(command)
    def wrapper(*, plugin: list[Path], **options: Any) -> None:
        from cordgt.plugins import load_plugin

        for path in plugin:
            load_plugin(path)
        command(**options)

    signature = inspect.signature(command, eval_str=True)
    own = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=[], annotation=_PLUGIN)
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()]
    wrapper.__signature__ = signature.replace(parameters=[*parameters, own])  # type: ignore[attr-defined]  # for typer
    return wrapper


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A known dataset's name, a file (CSV, TSV, edge list, Parquet, gzip or zip of these), or a store.",
    ),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, made by `cordgt train`.")]
Model = Annotated[str | None, option("NAME", "See `cordgt models`.", show_default="cordgt")]
Device = Annotated[str, option("WORD", "auto, cpu or cuda.")]
Set = Annotated[list[str], option("KEY=VALUE", "Change a setting; may be repeated.", name="--set")]
Json = Annotated[str | None, option("[FILE]", "Write the answer as JSON to FILE or standard output.", name="--json")]
Output = Annotated[Path | None, option("FILE", f"Where to write the answers: {FILE_ENDINGS}.")]
EscapeFormulas = Annotated[
    bool,
    flag("--escape-formulas", "Put ' before text in CSV and TSV that a spreadsheet would take for a formula."),
]
Events = Annotated[Path | None, option("FILE", "Later events, appended to the history before the query.")]
At = Annotated[str | None, option("TIME", "Time of the query.", show_default="after the whole history")]
Within = Annotated[
    str | None,
    option("TIME", "Horizon, such as 15m, 12h, 7d, or a number in the unit of the times: adds the probability."),
]


def _refuse_part(value: str | None) -> None:
    if value is not None:
        raise SettingError("This option is now called --split.")


RenamedPart = Annotated[str | None, typer.Option("--part", hidden=True, callback=_refuse_part)]
