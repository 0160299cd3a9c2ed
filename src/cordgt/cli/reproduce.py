"""`cordgt reproduce`: reproduce the paper's tables and figures. Each cell of a table is one training."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordgt.cli import console
from cordgt.cli.options import Device, Json, Set, flag, option
from cordgt.errors import SettingError

if TYPE_CHECKING:
    from cordgt.experiments.catalogue import Experiment
    from cordgt.experiments.cells import Cell, CellStore
    from cordgt.experiments.scheduler import WorkResult
    from cordgt.experiments.tables import ExperimentRequest


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The table or figure; --list shows all.")] = None,
    datasets: Annotated[
        str | None, option("A,B", "Datasets by name.", show_default="the paper's datasets on this machine")
    ] = None,
    models: Annotated[str | None, option("all|A,B", "See `cordgt models`.", show_default="those of the table")] = None,
    seeds: Annotated[
        str | None,
        option(
            "N|A,B",
            "A number of seeds, or the seeds; each has its own masked nodes.",
            show_default="3 or 5; see --list",
        ),
    ] = None,
    device: Device = "auto",
    quick: Annotated[
        bool,
        flag(
            "--quick", "Check that it runs: one epoch (or --set epochs=N), the first events, one seed, into OUT/quick."
        ),
    ] = False,
    out: Annotated[Path, option("DIR", "Where cells are kept and tables are written.")] = Path("results"),
    workers: Annotated[int, option("N", "Number of trainings at the same time.", min=1)] = 1,
    minutes: Annotated[float | None, option("N", "Stop after N minutes; the same command continues.", min=0)] = None,
    shard: Annotated[
        str | None, option("K/N", "Only the K-th of N shares, for machines without a common folder.")
    ] = None,
    report: Annotated[bool, flag("--report", "Train nothing; write the tables of finished cells.")] = False,
    keep: Annotated[bool, flag("--keep", "Keep the run folders of finished cells.")] = False,
    set_: Set = [],  # noqa: B006
    list_: Annotated[
        bool, flag("--list", "List what can be reproduced with the data here, and how long it takes.")
    ] = False,
    json_: Json = None,
) -> None:
    """Reproduce a table or a figure of the paper: train what is missing, and write Markdown, CSV and PNG.

    Finished cells are skipped, interrupted ones continue. A finished cell is a small JSON file below OUT/cells.
    To merge the results of several machines, copy these files into one folder.
    """
    from cordgt.cli import writers
    from cordgt.experiments import catalogue, estimates
    from cordgt.experiments.cells import CellStore, choose_datasets, parse_models, parse_seeds, parse_shard
    from cordgt.experiments.tables import ExperimentRequest
    from cordgt.models import MODELS
    from cordgt.training.devices import choose_device
    from cordgt.training.settings import parse_assignments

    writers.check_json(json_)
    if name is None and not list_:
        raise SettingError(f"Name what to reproduce: {', '.join(catalogue.EXPERIMENTS)}. --list says more.")
    if out.is_file():
        raise SettingError(f"{out} is a file; --out must be a folder.")
    given_seeds = None if seeds is None else parse_seeds(seeds)
    shard_index, n_shards = parse_shard(shard)
    device_type = choose_device(device).type
    store = CellStore(out / "quick" if quick else out)
    experiment = None if name is None else catalogue.find_experiment(name)
    if list_ or experiment is None or name is None:
        rows = estimates.list_experiments(
            store,
            device_type,
            datasets=None if datasets is None else choose_datasets(datasets, (), require_data=False),
            models=None if models in (None, "all") else parse_models(models, list(MODELS)),
            seeds=given_seeds,
            quick=quick,
        )
        return _print_list([row for row in rows if name in (None, row["name"])], device_type, json_)
    require_data = not report and experiment.cells is not None
    request = ExperimentRequest(
        datasets=choose_datasets(datasets, experiment.datasets, require_data=require_data)
        if datasets is not None
        else estimates.default_datasets(experiment, require_data=require_data),
        models=experiment.default_models if models is None else parse_models(models, experiment.models),
        seeds=experiment.default_seeds(quick) if given_seeds is None else given_seeds,
        changes=parse_assignments(set_),
        quick=quick,
    )
    if report or experiment.cells is None:
        return _write_report(experiment, name, request, store, json_)
    cells = list(dict.fromkeys(experiment.cells(request)))[shard_index - 1 :: n_shards]
    trainable = _cells_with_labels(cells, store)
    if cells and not trainable:
        raise typer.Exit(1)
    result = _train_cells(trainable, store, device, workers, minutes, keep)
    _write_report(experiment, name, request, store, json_)
    _print_result(result, trainable, store)
    if len(trainable) < len(cells):
        raise typer.Exit(1)


def _print_list(rows: list[dict[str, Any]], device: str, json_: str | None) -> None:
    from cordgt.cli import writers

    writers.write_json(rows, json_)
    if json_ == "-":
        return
    for row in rows:
        console.stdout.print(f"{row['name']}: {row['about']}", style="bold", markup=False)
        console.stdout.print(f"  data here: {row['data'] or 'none'}", markup=False)
        if row["missing"]:
            console.stdout.print(f"  not here: {row['missing']}", markup=False)
        if row["cells"] != "0/0":
            console.stdout.print(
                f"  finished: {row['cells']} cells; the rest takes about {console.format_duration(row['hours'])}",
                markup=False,
            )
    console.print_note(
        f"Times are estimates for this machine ({device}), one training at a time: from finished cells of the same "
        "kind if there are any, rough guesses otherwise. --datasets, --models and --seeds reduce the work."
    )


def _cells_with_labels(cells: list[Cell], store: CellStore) -> list[Cell]:
    """Return the cells whose data has the labels they need. Print an error for other data."""
    from cordgt.experiments.measurements import find_unlabeled_datasets

    refused = find_unlabeled_datasets(cell for cell in cells if store.read(cell) is None)
    for data, why in refused.items():
        console.print_error(f"{why} Nothing is trained on {data}: leave it out of --datasets.")
    return [cell for cell in cells if cell.data not in refused]


def _train_cells(
    cells: list[Cell], store: CellStore, device: str, workers: int, minutes: float | None, keep: bool
) -> WorkResult:
    from cordgt.experiments.scheduler import TimeBudget, run_cells, run_cells_in_processes

    todo = [cell for cell in cells if store.read(cell) is None]
    console.print_note(
        f"{len(cells) - len(todo)} of {len(cells)} cells are finished; cells and tables go to {store.folder}"
    )
    limits = TimeBudget.from_minutes(minutes)
    with _CellBar(len(todo)) as bar:
        common: dict[str, Any] = {"device": device, "limits": limits, "keep": keep, "callbacks": bar}
        if workers == 1 or len(todo) < 2:
            return run_cells(todo, store, **common)
        return run_cells_in_processes(todo, store, min(workers, len(todo)), **common)


class _CellBar(console.ProgressBar):
    """A progress bar that also counts the cells and prints their metrics."""

    def __init__(self, n_cells: int) -> None:
        super().__init__("{}: ".format)
        self.n_cells, self.n_done = n_cells, 0

    def on_run_end(self, name: str, result: dict[str, Any]) -> None:
        self.n_done += 1
        metrics = ", ".join(f"{k} {100 * v:.2f}" for k, v in result["metrics"].items() if v is not None)
        console.print_note(f"[{self.n_done}/{self.n_cells}] {name}: {metrics or 'done'} ({result['seconds']:.0f} s)")


def _write_report(
    experiment: Experiment, name: str, request: ExperimentRequest, store: CellStore, json_: str | None
) -> None:
    """Write and print the table, unless none of its cells is finished: an empty table would look like a result."""
    from cordgt.cli import writers
    from cordgt.experiments import tables

    if experiment.cells is not None and all(store.read(cell) is None for cell in experiment.cells(request)):
        writers.write_json([], json_)
        console.print_note(f"{name}: no cell is finished yet, so there is no table.")
        return
    report = experiment.report(request, store)
    paths = tables.write_report(report, store.folder, name)
    writers.write_json(report.records, json_)
    if json_ != "-":
        console.stdout.print(report.markdown(), markup=False)
    console.print_note(f"written: {', '.join(map(str, paths))}")


def _print_result(result: WorkResult, cells: list[Cell], store: CellStore) -> None:
    """Print what is left and how to continue. Exit with 1 if a cell failed, with the signal's code after a signal."""
    command = shlex.join(["cordgt", *sys.argv[1:]])
    n_left = sum(store.read(cell) is None for cell in cells)
    if result.n_too_long:
        console.print_note(f"{result.n_too_long} cells were not started: they would not finish in time.")
    if result.n_claimed_elsewhere:
        console.print_note(f"{result.n_claimed_elsewhere} cells are being trained by other processes.")
    if n_left:
        cells_are = "cell is" if n_left == 1 else "cells are"
        console.print_note(f"{n_left} {cells_are} left, {len(cells) - n_left} finished. Continue with: {command}")
    if result.stopped is not None:
        raise typer.Exit(result.stopped.exit_code)
    if result.failures:
        for label, reason in result.failures.items():
            console.print_error(f"{label}: {reason}")
        raise typer.Exit(1)
