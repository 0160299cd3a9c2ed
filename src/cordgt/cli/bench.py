"""`cordgt bench`: time each stage of training and evaluation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.cli.distributed import is_bench_worker, is_distributed_launch
from cordgt.cli.loading import build_settings, load_data
from cordgt.cli.options import Device, Json, Set, flag, option
from cordgt.errors import SettingError, check_choice

if TYPE_CHECKING:
    from cordgt.experiments.bench.setup import BenchSetup


def bench(
    stage: Annotated[
        str,
        typer.Argument(
            metavar="STAGE",
            help="machine, index, sample, pairs, distances, encode, attention, step, evaluate, recommend or "
            "activity; all of these; growth (cost by events and context); or processes (speed-up by number of "
            "processes).",
        ),
    ],
    data: Annotated[
        str, option("DATA", "A known dataset or twin by name, synthetic, or a file.", name="--data")
    ] = "synthetic",
    model: Annotated[str, option("NAME", "See `cordgt models`.")] = "cordgt",
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    repeat: Annotated[int, option("N", "Repetitions of each measurement, after a warm-up.", min=1)] = 7,
    quick: Annotated[bool, flag("--quick", "Use small sizes, to check that it runs.")] = False,
    scale: Annotated[
        float | None, option("X", "growth: size of the largest stream, times the twin's.", min=0.001, show_default="1")
    ] = None,
    processes: Annotated[
        str | None, option("N,N", "processes: numbers of processes to measure.", show_default="1,2")
    ] = None,
    candidates: Annotated[
        int | None, option("N", "recommend: destinations of a generated stream; compares two stages with all.", min=20)
    ] = None,
    run: Annotated[
        Path | None, option("RUN", "recommend: measure this run on its test events, instead of a generated stream.")
    ] = None,
    questions: Annotated[int | None, option("N", "recommend: number of questions, for the recall.", min=1)] = None,
    budget: Annotated[int | None, option("N", "recommend: candidates that the model ranks.", min=10)] = None,
    plot: Annotated[Path | None, option("FILE", "growth: write a plot as PNG, PDF or SVG.")] = None,
    trace: Annotated[Path | None, option("FILE", "Also write a training step as a Chrome trace, for Perfetto.")] = None,
    json_: Json = None,
) -> None:
    """Time each stage and compare it with the limits of this machine.

    Times are medians. The columns matrix and memory are shares of the machine's matrix rate and memory bandwidth.
    """
    from cordgt.cli import writers
    from cordgt.experiments.bench import report, scaling, suite
    from cordgt.training.devices import choose_device

    check_choice("STAGE", stage, (*suite.STAGE_NAMES, "all", "growth", "processes"))
    if is_distributed_launch() and stage != "processes":
        raise SettingError(f"`cordgt bench {stage}` runs in one process: start it without torchrun.")
    writers.check_json(json_)
    for name, value, only in (
        ("--plot", plot, "growth"),
        ("--scale", scale, "growth"),
        ("--processes", processes, "processes"),
        ("--candidates", candidates, "recommend"),
        ("--run", run, "recommend"),
        ("--questions", questions, "recommend"),
        ("--budget", budget, "recommend"),
    ):
        if value is not None and stage != only:
            raise SettingError(f"{name} is for `cordgt bench {only}`: leave it out for {stage}.")
    writers.check_output(plot, (".png", ".pdf", ".svg"))
    writers.check_output(trace, endings=())
    if candidates is not None or run is not None:
        facts = _bench_recommend(candidates, run, model, set_, device, questions, budget, quick=quick)
        writers.print_facts(facts, json_)
        return
    if questions is not None or budget is not None:
        raise SettingError("--questions and --budget need --candidates N or --run RUN.")
    settings = build_settings(data, model, None, set_, None, None)
    torch_device = choose_device(device)
    context = suite.prepare(
        load_data(data, {}), settings, torch_device, repeat=repeat, quick=quick or is_bench_worker()
    )
    if trace is not None:
        context.check_trainable()
    if stage == "processes":
        results = _bench_processes(context, processes or "1,2")
        if results is None:
            return
    elif stage == "growth":
        results = scaling.measure_growth(context, scale, _BenchNotes())
    else:
        results = suite.run_stages(context, suite.STAGE_NAMES if stage == "all" else (stage,), _BenchNotes())
    if plot is not None:
        scaling.plot_growth(results, plot)
        console.print_note(f"{plot}: written")
    if trace is not None:
        suite.write_trace(context, trace)
        console.print_note(f"{trace}: written")
    writers.write_json(results, json_)
    if json_ != "-":
        console.stdout.print(report.hardware_line(results), markup=False)
        tables = {"growth": report.growth_table, "processes": report.processes_table}
        if stage != "machine":
            console.stdout.print(tables.get(stage, report.stages_table)(results))
        for text in report.summary_lines(results):
            console.stdout.print(text, markup=False)


def _bench_recommend(
    candidates: int | None,
    run: Path | None,
    model: str,
    assignments: list[str],
    device: str,
    questions: int | None,
    budget: int | None,
    *,
    quick: bool,
) -> dict[str, Any]:
    """Compare the two stages of `recommend` with exhaustive ranking, on a generated stream or on a run."""
    from cordgt.experiments.bench import recommendation, suite
    from cordgt.tasks.link import split_stream
    from cordgt.training.devices import choose_device

    if (candidates is None) == (run is None):
        raise SettingError("Give either --candidates N or --run RUN.")
    about: dict[str, Any]
    if run is not None:
        from cordgt.cli.loading import open_run

        loaded = open_run(run, device)
        predictor, stream = loaded.predictor, loaded.original_stream
        positions = split_stream(stream, loaded.settings.protocol).test
        about = {"run": str(run), "model": loaded.settings.model, "data": stream.name, "device": str(loaded.device)}
    else:
        console.print_note(f"generating a stream with {candidates:,} destinations")
        stream = recommendation.generate_purchases(candidates or 0)
        settings = build_settings("synthetic", model, None, ["mask_nodes=0", *assignments], None, None)
        setup = suite.prepare(stream, settings, choose_device(device), repeat=1, quick=True)
        predictor = recommendation.briefly_trained_predictor(setup, n_steps=2 if quick else None)
        positions = setup.task.split.test
        about = {"model": settings.model, "data": stream.name, "device": str(setup.device)}
    results = recommendation.measure_recommend(
        predictor, positions, budget=budget, n_questions=questions, callbacks=_BenchNotes()
    )
    return about | {"events": stream.n_events} | results


def _bench_processes(context: BenchSetup, counts: str) -> dict[str, Any] | None:
    """Measure each number of processes in new processes. In one of these, measure and return None."""
    from cordgt.experiments.bench import multiprocess, suite

    if is_bench_worker():
        multiprocess.measure_shared_step(context)
        return None
    n_processes = multiprocess.parse_process_counts(counts)
    note = multiprocess.oversubscription_note(n_processes)
    if context.device.type == "cpu" and note:
        console.print_note(note)
    rows = multiprocess.compare_process_counts(n_processes, sys.argv[1:], _BenchNotes())
    return suite.describe_setup(context) | {"shared": rows}


class _BenchNotes(Callback):
    """Prints a line when a measurement starts."""

    def on_stage_start(self, name: str, total: int | None) -> None:
        console.print_note(f"measuring {name}")
