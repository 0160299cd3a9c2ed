"""Commands that measure what was trained: evaluate, compare, audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cordgt.cli import console
from cordgt.cli.distributed import (
    Processes,
    leads,
    share,
)
from cordgt.cli.loading import (
    given_columns,
    load_data,
    open_run,
    show_metrics,
)
from cordgt.cli.options import (
    Device,
    Dst,
    Features,
    Ids,
    Json,
    Label,
    NodeFeatures,
    RenamedPart,
    RunDir,
    Set,
    Src,
    Time,
)


def evaluate(
    run: RunDir,
    visibility: Annotated[
        str | None, typer.Option(metavar="WORD", show_default="the run's", help="event, paper or batch.")
    ] = None,
    negatives: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            show_default="the run's",
            help="random; historical: partners of the past, absent now; inductive: met only after training; "
            "historical-pairs, inductive-pairs: as in DGB and DyGLib.",
        ),
    ] = None,
    ranking: Annotated[
        str | None,
        typer.Option(metavar="N|all", help="Rank each true destination among N others, or all: MRR and hits."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="WORD", show_default="both", help="Only this split: validation or test.")
    ] = None,
    part: RenamedPart = None,
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    processes: Processes = None,
    json_: Json = None,
) -> None:
    """Measure a run again: as it was, or with another visibility, batch size, negatives, or as a ranking."""
    share(processes, run)
    from cordgt.cli import writers
    from cordgt.training.settings import parse_assignments

    writers.check_json(json_)
    changes: dict[str, Any] = parse_assignments(set_)
    asked = {"visibility": visibility, "negatives": negatives, "ranking": ranking}
    changes |= {key: value for key, value in asked.items() if value is not None}
    loaded = open_run(run, device)
    with console.ProgressBar() as bar:
        metrics = loaded.evaluate(callbacks=bar, split=split, **changes)
    if not leads():
        return
    show_metrics(
        f"{metrics['model']} on {metrics['data']}, {metrics['protocol']['negatives']} negatives, "
        f"visibility {metrics['protocol']['visibility']}",
        metrics,
        json_,
    )


def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run folder.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another, on the same data under the same protocol.")],
    split: Annotated[str, typer.Option(metavar="WORD", help="test or validation.")] = "test",
    part: RenamedPart = None,
    setting: Annotated[str, typer.Option(metavar="WORD", help="transductive or inductive.")] = "transductive",
    bootstrap: Annotated[int, typer.Option(min=1, metavar="N", help="Resamples of the events.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the resamples.")] = 0,
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Compare two runs on the same queries: the difference, with an interval from a paired bootstrap.

    Runs on other data or under another protocol are refused. What an evaluation may change can be set for both.
    """
    from cordgt.analysis.compare import compare_runs, table_rows
    from cordgt.cli import writers
    from cordgt.errors import check_choice
    from cordgt.tasks.run_metrics import SETTINGS, SPLITS
    from cordgt.training.settings import parse_assignments

    writers.check_json(json_)
    check_choice("--split", split, SPLITS)
    check_choice("--setting", setting, SETTINGS)
    runs = [open_run(path, device) for path in (run_a, run_b)]
    found = compare_runs(
        *runs, split=split, setting=setting, bootstrap=bootstrap, seed=seed, changes=parse_assignments(set_)
    )
    if json_ is not None:
        writers.write_json(found, json_)
    if json_ != "-":
        console.out.print(
            f"A {run_a} ({found['a']['model']}), B {run_b} ({found['b']['model']}): {found['events']:,} events of "
            f"{split}, {setting}, of {found['data']}; in percent",
            markup=False,
        )
        writers.show(table_rows(found), None)
        for text in found["remarks"]:
            console.out.print(text, markup=False)
        console.note(
            "In brackets: what other events might have given. Of other seeds, by which trainings differ too, it says "
            "nothing: train several (--seeds) before you believe a small lead."
        )


def audit(
    what: Annotated[
        str, typer.Argument(metavar="RUN|DATA", help="A run folder; or a known dataset's name, or a file.")
    ],
    queries: Annotated[int, typer.Option(min=1, metavar="N", help="How many test queries of a run are tried.")] = 200,
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    ids: Ids = "auto",
    node_features: NodeFeatures = None,
    json_: Json = None,
) -> None:
    """Check that a run sees nothing it must not, or what DATA is like. Exit code 1 where a check fails.

    Column options are for DATA. A run is checked as it was measured, or with what --set changes of that.
    """
    from cordgt.analysis.audit.checks import failed
    from cordgt.analysis.audit.data import audit_data
    from cordgt.analysis.audit.model import audit_model
    from cordgt.cli import writers
    from cordgt.training.settings import make, parse_assignments

    writers.check_json(json_)
    changes = parse_assignments(set_)
    about: dict[str, Any] = {}
    if (Path(what) / "config.toml").exists() or (Path(what).is_dir() and list(Path(what).glob("*/config.toml"))):
        loaded = open_run(Path(what), device)
        model, task = loaded.evaluation_task(**changes)
        checks = audit_model(model, task, queries=queries)
        about = {"run": what, "model": loaded.settings.model, "data": task.stream.name, "seed": loaded.settings.seed}
        about["protocol"] = dict(vars(task.protocol))
    else:
        stream = load_data(what, given_columns(src, dst, time, label, features, ids, node_features))
        protocol = make("cordgt", changes).protocol
        checks = audit_data(stream, protocol)
        about = {"data": stream.name, "events": stream.n_events, "protocol": dict(vars(protocol))}
    passed, rows = not failed(checks), [dict(vars(check)) for check in checks]
    if json_ is not None:
        writers.write_json({**about, "passed": passed, "checks": rows}, json_)
    if json_ != "-":
        writers.show(rows, None)
    if not passed:
        wrong = ", ".join(check.check for check in checks if check.result == "FAIL")
        console.note(f"{what} does not pass: {wrong}.")
        raise typer.Exit(1)
