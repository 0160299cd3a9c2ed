"""`cordgt reproduce`: the paper's tables and figures, filled cell by cell."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordgt.cli import console
from cordgt.cli.options import Device, Json, Set, flag
from cordgt.errors import SettingError

if TYPE_CHECKING:
    from cordgt.experiments.catalogue import Experiment
    from cordgt.experiments.cells import Cell, Store
    from cordgt.experiments.scheduler import Outcome
    from cordgt.experiments.tables import Asked


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="What to reproduce; --list shows what there is.")
    ] = None,
    datasets: Annotated[
        str | None,
        typer.Option(metavar="A,B", show_default="the paper's, as far as they are here", help="Datasets by name."),
    ] = None,
    models: Annotated[
        str | None, typer.Option(metavar="all|A,B", show_default="those of the table", help="See `cordgt models`.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|A,B",
            show_default="3, for beyond 5",
            help="So many seeds, or these; each draws its own masked nodes.",
        ),
    ] = None,
    device: Device = "auto",
    quick: Annotated[
        bool,
        flag(
            "--quick", "One epoch (or --set epochs=N), the first events, one seed, into OUT/quick: to see that it runs."
        ),
    ] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where cells are kept and tables are written.")] = Path(
        "results"
    ),
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="So many trainings side by side.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(min=0, metavar="N", help="Stop after so long; the same command goes on later.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="K/N", help="Only the K-th of N shares, for machines without a common folder.")
    ] = None,
    report: Annotated[bool, flag("--report", "Train nothing: tables of what is finished.")] = False,
    keep: Annotated[bool, flag("--keep", "Keep the run folders of finished cells.")] = False,
    set_: Set = [],  # noqa: B006
    list_: Annotated[bool, flag("--list", "What can be reproduced with the data at hand, and what it takes.")] = False,
    json_: Json = None,
) -> None:
    """Reproduce a table or a figure of the paper: train what is missing, and write Markdown, CSV and PNG.

    What is finished is skipped, what was interrupted goes on. A finished cell is a small JSON file below OUT/cells:
    folders of several machines are merged by copying these.
    """
    from cordgt.cli import writers
    from cordgt.experiments import catalogue, estimates
    from cordgt.experiments.cells import Store, choose_datasets, parse_models, parse_seeds, parse_shard
    from cordgt.experiments.tables import Asked
    from cordgt.models import MODELS
    from cordgt.training.devices import choose_device
    from cordgt.training.settings import parse_assignments

    writers.check_json(json_)
    if name is None and not list_:
        raise SettingError(f"Name what to reproduce: {', '.join(catalogue.EXPERIMENTS)}. --list says more.")
    if out.is_file():
        raise SettingError(f"{out} is a file; --out names a folder.")
    wanted = None if seeds is None else parse_seeds(seeds)
    share, shares = parse_shard(shard)
    on = choose_device(device)
    store = Store(out / "quick" if quick else out)
    experiment = None if name is None else catalogue.find(name)
    if list_ or experiment is None or name is None:
        rows = estimates.outlook(
            store,
            on.type,
            datasets=None if datasets is None else choose_datasets(datasets, (), trained=False),
            models=None if models in (None, "all") else parse_models(models, list(MODELS)),
            seeds=wanted,
            quick=quick,
        )
        return _show_list([row for row in rows if name in (None, row["name"])], on.type, json_)
    trained = not report and experiment.cells is not None
    asked = Asked(
        datasets=choose_datasets(datasets, experiment.datasets, trained=trained)
        if datasets is not None
        else estimates.usual_datasets(experiment, trained=trained),
        models=experiment.usual_models if models is None else parse_models(models, experiment.models),
        seeds=experiment.usual_seeds(quick) if wanted is None else wanted,
        changes=parse_assignments(set_),
        quick=quick,
    )
    if experiment.cells is None:
        return _write(experiment, name, asked, store, json_)
    cells = list(dict.fromkeys(experiment.cells(asked)))[share - 1 :: shares]
    if report:
        return _write(experiment, name, asked, store, json_)
    possible = _possible(cells, store)
    if cells and not possible:
        raise typer.Exit(1)
    outcome = _work(possible, store, device, workers, minutes, keep)
    _write(experiment, name, asked, store, json_)
    _tell_outcome(outcome, possible, store)
    if len(possible) < len(cells):
        raise typer.Exit(1)


def _show_list(rows: list[dict[str, Any]], device: str, json_: str | None) -> None:
    from cordgt.cli import writers

    if json_ is not None:
        writers.write_json(rows, json_)
    if json_ == "-":
        return
    for row in rows:
        console.out.print(f"{row['name']}: {row['about']}", style="bold", markup=False)
        console.out.print(f"  data here: {row['data'] or 'none'}", markup=False)
        if row["missing"]:
            console.out.print(f"  not here: {row['missing']}", markup=False)
        if row["cells"] != "0/0":
            console.out.print(
                f"  finished: {row['cells']} cells; the rest takes about {console.lasting(row['hours'])}", markup=False
            )
    console.note(
        f"Times are for this machine ({device}), one training after the other: by finished cells where there are some "
        "of the kind, rough guesses otherwise. --datasets, --models and --seeds make it less."
    )


def _possible(cells: list[Cell], store: Store) -> list[Cell]:
    """The cells whose data have the labels they need; of other data it is said once, before anything is trained."""
    from cordgt.experiments.measurements import without_labels

    refused = without_labels(cell for cell in cells if store.read(cell) is None)
    for data, why in refused.items():
        console.fail(f"{why} Nothing is trained on {data}: leave it out of --datasets.")
    return [cell for cell in cells if cell.data not in refused]


def _work(cells: list[Cell], store: Store, device: str, workers: int, minutes: float | None, keep: bool) -> Outcome:
    from cordgt.experiments.scheduler import Limits, work, work_in_processes

    todo = [cell for cell in cells if store.read(cell) is None]
    console.note(f"{len(cells) - len(todo)} of {len(cells)} cells are finished; cells and tables go to {store.folder}")
    limits = Limits.of_minutes(minutes)
    with _CellBar(len(todo)) as bar:
        common: dict[str, Any] = {"device": device, "limits": limits, "keep": keep, "callbacks": bar}
        if workers == 1 or len(todo) < 2:
            return work(todo, store, **common)
        return work_in_processes(todo, store, min(workers, len(todo)), **common)


class _CellBar(console.ProgressBar):
    """A progress bar that also counts the cells, and says how each ended."""

    def __init__(self, total: int) -> None:
        super().__init__("{}: ".format)
        self.total, self.done = total, 0

    def on_run_end(self, name: str, result: dict[str, Any]) -> None:
        self.done += 1
        figures = ", ".join(f"{k} {100 * v:.2f}" for k, v in result["figures"].items() if v is not None)
        console.note(f"[{self.done}/{self.total}] {name}: {figures or 'done'} ({result['seconds']:.0f} s)")


def _write(experiment: Experiment, name: str, asked: Asked, store: Store, json_: str | None) -> None:
    """The table, if any of its cells is finished: an empty one would only look like a result."""
    from cordgt.cli import writers
    from cordgt.experiments import tables

    if experiment.cells is not None and all(store.read(cell) is None for cell in experiment.cells(asked)):
        if json_ is not None:
            writers.write_json([], json_)
        console.note(f"{name}: no cell is finished yet, so there is no table.")
        return
    report = experiment.report(asked, store)
    paths = tables.write(report, store.folder, name)
    if json_ is not None:
        writers.write_json(report.records, json_)
    if json_ != "-":
        console.out.print(report.markdown(), markup=False)
    console.note(f"written: {', '.join(map(str, paths))}")


def _tell_outcome(outcome: Outcome, cells: list[Cell], store: Store) -> None:
    """What is left, how it goes on, and the exit code: 1 where a cell failed, as a signal has it where one came."""
    again = shlex.join(["cordgt", *sys.argv[1:]])
    left = sum(store.read(cell) is None for cell in cells)
    if outcome.unfit:
        console.note(f"{outcome.unfit} cells were not begun: by those that are finished, they would not end in time.")
    if outcome.elsewhere:
        console.note(f"{outcome.elsewhere} cells are being worked on by other processes.")
    if left:
        done = len(cells) - left
        console.note(
            f"{left} {'cell is' if left == 1 else 'cells are'} left, {done} finished. It goes on with: {again}"
        )
    if outcome.stopped is not None:
        raise typer.Exit(outcome.stopped.exit_code)
    if outcome.failed:
        for label, why in outcome.failed.items():
            console.fail(f"{label}: {why}")
        raise typer.Exit(1)
