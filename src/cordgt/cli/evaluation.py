"""Commands that evaluate trained runs: evaluate, compare, audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cordgt.cli import console
from cordgt.cli.distributed import Processes, is_main_process, launch_processes
from cordgt.cli.loading import load_data, open_run
from cordgt.cli.options import Device, Json, RenamedPart, RunDir, Set, add_column_options, option
from cordgt.errors import check_choice

EXIT_DRIFT = 3  # exit code of `compare` if a limit is exceeded


def evaluate(
    run: RunDir,
    protocol: Annotated[
        str | None,
        option(
            "NAME",
            "Evaluate as a published benchmark does: paper, dyglib, tgb or tgb-seq. Other options change parts of it.",
        ),
    ] = None,
    visibility: Annotated[str | None, option("WORD", "event, paper or batch.", show_default="the run's")] = None,
    negatives: Annotated[
        str | None,
        option(
            "KIND",
            "random; random-any: also the true destination, as in DyGLib; historical: earlier partners that are not "
            "partners now; inductive: the same, first met after training; historical-pairs, inductive-pairs: as in DGB "
            "and DyGLib; or one of a plug-in.",
            show_default="the run's",
        ),
    ] = None,
    ranking: Annotated[
        str | None, option("N|all", "Also rank each true destination among N others, or all (MRR and hits).")
    ] = None,
    filter_: Annotated[
        str | None,
        option(
            "WORD",
            "Candidates of the ranking. none: all; known: destinations that occurred before; seen: known ones that "
            "the source has not met. With --ranking all also coverage, novelty and lift.",
            name="--filter",
            show_default="the run's",
        ),
    ] = None,
    positives: Annotated[
        str | None,
        option("WORD", "all events, or new: only pairs that have not met before.", show_default="the run's"),
    ] = None,
    split: Annotated[str | None, option("WORD", "validation or test.", show_default="both")] = None,
    part: RenamedPart = None,
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    processes: Processes = None,
    json_: Json = None,
) -> None:
    """Evaluate a run again, with the same or another visibility, batch size, negatives or ranking."""
    launch_processes(processes, run)
    from cordgt.cli import writers
    from cordgt.training.settings import parse_assignments

    writers.check_json(json_)
    changes: dict[str, Any] = parse_assignments(set_)
    given = {"visibility": visibility, "negatives": negatives, "ranking": ranking}
    given |= {"filter": filter_, "positives": positives}
    changes |= {key: value for key, value in given.items() if value is not None}
    loaded = open_run(run, device)
    with console.ProgressBar() as bar:
        metrics = loaded.evaluate(callbacks=bar, split=split, protocol=protocol, **changes)
    if not is_main_process():
        return
    writers.print_metrics(
        f"{metrics['model']} on {metrics['data']}, {metrics['protocol']['negatives']} negatives, "
        f"visibility {metrics['protocol']['visibility']}",
        metrics,
        json_,
    )
    if protocol is not None:
        _print_benchmark(metrics)


def _print_benchmark(metrics: Any) -> None:
    """Print the metric that a benchmark reports, and what differs from it."""
    from cordgt.tasks.benchmarks import BENCHMARKS
    from cordgt.tasks.metrics import LINK_METRICS

    name, key = metrics["benchmark"]["name"], metrics["benchmark"]["metric"]
    kind, split = LINK_METRICS[key], metrics.splits[-1]
    value = metrics.metric(key, split).mean
    shown = "not defined" if value is None else f"{kind.format(value)}{kind.unit}"
    title = metrics.format_text(kind.title)
    console.print_note(f"{name} ({BENCHMARKS[name].about}): {split}, transductive, {title} {shown}.")
    if metrics["benchmark"]["changed"]:
        console.print_note(f"Not as in {name}: {', '.join(metrics['benchmark']['changed'])}.")


def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run folder.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="A run on the same data with the same protocol.")],
    split: Annotated[str, option("WORD", "test or validation.")] = "test",
    part: RenamedPart = None,
    setting: Annotated[str, option("WORD", "transductive or inductive.")] = "transductive",
    bootstrap: Annotated[int, option("N", "Number of bootstrap samples.", min=1)] = 2000,
    seed: Annotated[int, option("N", "Seed of the bootstrap.", min=0)] = 0,
    max_drop: Annotated[
        list[str],
        option(
            "METRIC=VALUE", "Exit with code 3 if B is more than this below A: ap=0.02 is 2 points. May be repeated."
        ),
    ] = [],  # noqa: B006
    fail_below: Annotated[
        list[str], option("METRIC=VALUE", "Exit with code 3 if B is below this: ap=0.9 is 90 %. May be repeated.")
    ] = [],  # noqa: B006
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Compare two runs on the same queries: the difference with a confidence interval from a paired bootstrap.

    Both runs must have the same protocol, and the same data; or the data of one begin with those of the other. Then
    both are evaluated on the longer data. --set changes the evaluation of both, as in `cordgt evaluate`.
    """
    from cordgt.analysis.compare import compare_runs, exceeded_limits, parse_limits, table_rows
    from cordgt.cli import writers
    from cordgt.tasks.run_metrics import SETTINGS, SPLITS
    from cordgt.training.settings import parse_assignments

    writers.check_json(json_)
    check_choice("--split", split, SPLITS)
    check_choice("--setting", setting, SETTINGS)
    limits = parse_limits("--max-drop", max_drop), parse_limits("--fail-below", fail_below)
    runs = [open_run(path, device) for path in (run_a, run_b)]
    comparison = compare_runs(
        *runs, split=split, setting=setting, bootstrap=bootstrap, seed=seed, changes=parse_assignments(set_)
    )
    exceeded = exceeded_limits(comparison, *limits)
    writers.write_json(comparison | {"exceeded": exceeded}, json_)
    if json_ != "-":
        console.stdout.print(
            f"A {run_a} ({comparison['a']['model']}), B {run_b} ({comparison['b']['model']}): "
            f"{comparison['events']:,} events of {split}, {setting}, of {comparison['data']}; in percent",
            markup=False,
        )
        writers.print_rows(table_rows(comparison), None)
        for text in comparison["remarks"]:
            console.stdout.print(text, markup=False)
        console.print_note(
            "In parentheses: the 95 % confidence interval over these events. It does not cover differences between "
            "seeds: train with several (--seeds) before you trust a small difference."
        )
    for text in exceeded:
        console.print_error(text)
    if exceeded:
        raise typer.Exit(EXIT_DRIFT)


@add_column_options()
def audit(
    target: Annotated[str, typer.Argument(metavar="RUN|DATA", help="A run folder, a known dataset's name, or a file.")],
    columns: dict[str, Any],
    queries: Annotated[int, option("N", "Number of test queries of a run to check.", min=1)] = 200,
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Check a run for leaks of future events, or check DATA. Exit code 1 if a check fails.

    Column options are for DATA. --set changes the evaluation of a run, as in `cordgt evaluate`.
    """
    from cordgt.analysis.audit.checks import has_failures
    from cordgt.analysis.audit.data import audit_data
    from cordgt.analysis.audit.forecasts import audit_forecasts
    from cordgt.analysis.audit.model import audit_model
    from cordgt.cli import writers
    from cordgt.training.run_folder import ACTIVITY_FILE
    from cordgt.training.settings import make_settings, parse_assignments

    writers.check_json(json_)
    changes = parse_assignments(set_)
    if (Path(target) / "config.toml").exists() or (Path(target).is_dir() and list(Path(target).glob("*/config.toml"))):
        loaded = open_run(Path(target), device)
        model, task = loaded.evaluation_task(**changes)
        checks = audit_model(model, task, queries=queries)
        forecaster = loaded.forecaster if ACTIVITY_FILE in loaded.checksums else None
        checks += audit_forecasts(forecaster, model, task, queries=queries)
        about: dict[str, Any] = {"run": target, "model": loaded.settings.model, "data": task.stream.name}
        about |= {"seed": loaded.settings.seed, "protocol": dict(vars(task.protocol))}
    else:
        stream = load_data(target, columns)
        protocol = make_settings("cordgt", changes).protocol
        checks = audit_data(stream, protocol)
        about = {"data": stream.name, "events": stream.n_events, "protocol": dict(vars(protocol))}
    passed, rows = not has_failures(checks), [dict(vars(check)) for check in checks]
    writers.write_json({**about, "passed": passed, "checks": rows}, json_)
    if json_ != "-":
        writers.print_rows(rows, None)
    if not passed:
        names = ", ".join(check.check for check in checks if check.result == "FAIL")
        console.print_note(f"{target} does not pass: {names}.")
        raise typer.Exit(1)
