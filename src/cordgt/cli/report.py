"""`cordgt report`: one run, or a comparison of several, as one HTML file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from cordgt.cli import console
from cordgt.cli.options import Device, option
from cordgt.errors import RunError, SettingError

MAX_RUNS = 12  # readers cannot distinguish more


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or a folder of runs. Several are compared with the first."),
    ],
    output: Annotated[
        Path | None, option("FILE", "Where to write it.", show_default="RUN/report.html; of several: comparison.html")
    ] = None,
    events: Annotated[str, option("N|all", "Number of test events in the plots, evenly spread.")] = "2000",
    device: Device = "auto",
) -> None:
    """Write a report of RUN as one HTML file, or a comparison of several runs.

    It has metrics, training curves, right and wrong predictions, and reasons for them. It needs no network.
    --output FILE.csv, .tsv, .parquet, .json or an ending of a plug-in writes the table of metrics of one run.
    """
    from cordgt.analysis.exporters import export
    from cordgt.analysis.report.comparison_report import render_comparison
    from cordgt.analysis.report.data import collect_report_data
    from cordgt.analysis.report.run_report import REPORT_FILE, render_run_report
    from cordgt.cli import writers
    from cordgt.files import write_text
    from cordgt.inference.run import Run

    max_events = _parse_event_limit(events)
    writers.check_output(output, (".html", ".htm", *writers.ENDINGS))
    folders = _run_folders(runs)
    if output is not None and output.suffix.lower() not in (".html", ".htm"):
        if len(folders) > 1:
            raise SettingError(f"{output}: only the metrics of one run can be written in this format.")
        console.print_note(f"{export(Run.load(folders[0], device).metrics, output)}: written")
        return
    loaded = {name: Run.load(path, device) for name, path in _by_unique_name(folders).items()}
    data = {}
    with console.ProgressBar() as bar:
        for name, run in loaded.items():
            bar.on_run_start(name)
            data[name] = collect_report_data(run, bar, max_events=max_events)
        text = render_run_report(next(iter(data.values()))) if len(data) == 1 else render_comparison(data)
    target = output or (folders[0] / REPORT_FILE if len(folders) == 1 else Path("comparison.html"))
    write_text(target, text)
    console.print_note(f"{target}: written")


def _parse_event_limit(events: str) -> int | None:
    if events == "all":
        return None
    if not events.isdecimal() or int(events) < 1:
        raise SettingError(f"--events {events}: give a number from 1 up, or all.")
    return int(events)


def _run_folders(runs: list[Path]) -> list[Path]:
    """Return the run folders. A folder of runs (`--seeds`, `--mask-draws`) is replaced by its runs."""
    folders: list[Path] = []
    for path in runs:
        inner = sorted(_inner_runs(path)) if not (path / "config.toml").exists() else []
        folders += inner or [path]
    repeated = [path for path, n in Counter(p.resolve() for p in folders).items() if n > 1]
    if repeated:
        raise RunError(f"{repeated[0]} is named twice.")
    if len(folders) > MAX_RUNS:
        raise RunError(f"{len(folders)} runs are too many for one report: give at most {MAX_RUNS}.")
    return folders


def _inner_runs(folder: Path) -> list[Path]:
    """Return the runs in a folder. A link of --replace is left out: its run is there too."""
    return [p.parent for p in folder.glob("*/config.toml") if not p.parent.is_symlink()]


def _by_unique_name(folders: list[Path]) -> dict[str, Path]:
    """Return the folders by name, or by path if two folders have the same name."""
    counts = Counter(path.name for path in folders)
    return {str(path) if counts[path.name] > 1 or not path.name else path.name: path for path in folders}
