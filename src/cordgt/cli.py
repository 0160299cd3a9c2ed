"""The command line: one small function a command. Answers go to standard output, everything else to standard error."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from cordgt import __version__, cli_fetch, cli_node, cli_report, cli_reproduce, cli_store, console
from cordgt.cli_processes import (
    Processes,
    among_others,
    bench_shared,
    is_measured,
    leads,
    share,
    started_as_one_of_several,
)
from cordgt.errors import CordgtError, SettingError
from cordgt.options import (
    FILE_ENDINGS,
    At,
    Data,
    Device,
    Dst,
    Events,
    Features,
    Ids,
    Json,
    Label,
    NodeFeatures,
    Output,
    RunDir,
    Set,
    Src,
    Time,
    flag,
)

if TYPE_CHECKING:
    from cordgt.api import Run
    from cordgt.settings import Settings


class Commands(TyperGroup):
    """The commands. Ctrl-C is answered here, before typer does, which says nothing or another exit code by version."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            console.fail("interrupted.")
            raise typer.Exit(130) from None


app = typer.Typer(
    name="cordgt",
    cls=Commands,
    help="Who meets whom next, from a log of timestamped interactions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Fetch data, look at it, convert it, or keep it in a store.", no_args_is_help=True)
app.add_typer(data_app, name="data")
data_app.command("fetch")(cli_fetch.data_fetch)
cli_store.register(data_app)


def main() -> None:
    """Run the command line. A person's mistake gives one message and exit code 2."""
    try:
        with among_others(next((word for word in sys.argv[1:] if not word.startswith("-")), "")):
            app(args=_lone_json(sys.argv[1:]), prog_name="cordgt")
    except CordgtError as error:
        console.fail(str(error))
        sys.exit(2)


def _lone_json(args: list[str]) -> list[str]:
    """``--json`` without a file means standard output."""
    pairs = zip(args, [*args[1:], "--"], strict=False)  # each word, and the one after it
    return [f"{word}=-" if word == "--json" and not _names_json(after) else word for word, after in pairs]


def _names_json(word: str) -> bool:
    """Whether the word after ``--json`` is its file: not an option, nor a file or folder that holds something else."""
    if word.startswith("-"):
        return word == "-"
    return word.lower().endswith(".json") or not Path(word).exists()


@app.command()
def train(
    data: Data,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", show_default="cordgt", help="See `cordgt models`.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings from a TOML file, such as a run's config.toml.")
    ] = None,
    set_: Set = [],  # noqa: B006
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="0", help="Of weights, dropout, trees and training negatives."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Train so many times, into seed-* folders.")
    ] = None,
    mask_draws: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Train with so many draws of the masked nodes, into mask-* folders."),
    ] = None,
    device: Device = "auto",
    processes: Processes = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default="runs/DATA-MODEL-seedN", help="The run folder.")
    ] = None,
    resume: Annotated[bool, flag("--resume", "Continue an interrupted run.")] = False,
    init: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Start from the weights of a trained run, with its settings.")
    ] = None,
    refit: Annotated[
        bool, flag("--refit", "Afterwards train on all events; that model answers, the figures stay.")
    ] = False,
    no_report: Annotated[bool, flag("--no-report", "Without report.html in the run folder.")] = False,
    task: Annotated[
        str, typer.Option(metavar="WORD", help="link; or node: a classifier of labelled nodes on a frozen --encoder.")
    ] = "link",
    encoder: Annotated[
        Path | None, typer.Option(metavar="RUN", help="With --task node: the run whose model gives the embeddings.")
    ] = None,
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    ids: Ids = "auto",
    node_features: NodeFeatures = None,
    json_: Json = None,
) -> None:
    """Train a model on DATA, measure it, and keep everything in a run folder."""
    share(processes, data)
    from cordgt import answers, api
    from cordgt.training import choose_device

    answers.check_json(json_)
    others = {"--model": model, "--config": config, "--init": init, "--refit": refit, "--resume": resume}
    cli_node.check_task(task, encoder, others | {"--seeds": seeds, "--mask-draws": mask_draws})
    columns = _columns(src, dst, time, label, features, ids, node_features)
    if encoder is not None:
        return cli_node.train_classifier(data, encoder, set_, seed, device, out, columns, json_)
    settings = _settings(data, model, config, set_, seed, init)
    choose_device(device)  # before the data is read
    stream = _load(data, columns)
    folder = out or api.default_folder(stream.name, settings.model, settings.seed)
    several = seeds is not None or mask_draws is not None
    options: dict[str, Any] = {"device": device, "resume": resume, "init": init, "refit": refit, "columns": columns}
    options["report"] = not no_report
    console.note(f"{settings.model} on {_facts(stream)}; figures and weights go to {folder}")
    if stream.kept is not None:
        console.note(f"{data} is a store: the run answers from it. The index for training is made once and kept in it.")
    with _resumable(), console.Bar() as bar:
        if not several:
            metrics = api.train_run(stream, settings, folder, watcher=bar, **options).metrics
        else:
            metrics = api.train_seeds(
                stream,
                settings,
                folder,
                seeds,
                mask_draws=mask_draws,
                watch=lambda name: bar.titled(f"{name.replace('-seed', ', seed').replace('-', ' ')}, "),
                **options,
            )
    if not leads():
        return
    if resume and not bar.trained:
        console.note(f"{folder} was finished already: nothing was trained. These are its figures.")
    _show_figures(f"{settings.model} on {stream.name}", metrics, json_)
    first = folder / next(iter(api.spread(settings, seeds, mask_draws)))
    if (first / "report.html").exists():
        console.note(f"See {first / 'report.html'}" + (f", or compare: cordgt report {folder}" if several else ""))
    _suggest(first, stream)


@app.command()
def search(
    data: Data,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", show_default="cordgt", help="See `cordgt models`.")
    ] = None,
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUES",
            help="Values to try, as in walks=16,32; may be repeated. Without it the paper's grid, where it has one.",
        ),
    ] = [],  # noqa: B006
    at_most: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many combinations, drawn by the seed; not all.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings from a TOML file.")] = None,
    set_: Set = [],  # noqa: B006
    seed: Annotated[int | None, typer.Option(metavar="N", show_default="0", help="As in `cordgt train`.")] = None,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default="runs/DATA-MODEL-search", help="The folder of all runs.")
    ] = None,
    resume: Annotated[bool, flag("--resume", "Continue an interrupted search.")] = False,
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    ids: Ids = "auto",
    node_features: NodeFeatures = None,
    json_: Json = None,
) -> None:
    """Try combinations of settings on DATA, judged on validation data alone; the test period stays unseen."""
    from cordgt import answers, models
    from cordgt.search import check_grid, combinations
    from cordgt.search import search as search_all
    from cordgt.settings import parse_assignments
    from cordgt.training import choose_device

    answers.check_json(json_)
    settings = _settings(data, model, config, set_, seed, None)
    given = {key: [v for v in values.split(",") if v.strip()] for key, values in parse_assignments(grid).items()}
    wanted = given or models.find(settings.model).grid
    check_grid(wanted)
    choose_device(device)  # before the data is read
    columns = _columns(src, dst, time, label, features, ids, node_features)
    stream = _load(data, columns)
    folder = out or Path("runs") / f"{stream.name}-{settings.model}-search"
    tried = combinations(wanted, at_most, settings.seed)
    console.note(f"{settings.model} on {_facts(stream)}: {len(tried)} combinations, into {folder}")
    with _resumable(), console.Bar() as bar:
        found = search_all(
            stream,
            settings,
            tried,
            folder,
            device=device,
            resume=resume,
            columns=columns,
            watch=lambda name: bar.titled(f"{name}, "),
        )
    rows = [{**trial.settings, **{k: v for k, v in vars(trial).items() if k != "settings"}} for trial in found]
    answers.show(rows if json_ is not None else [_short(row) for row in rows], json_)
    best = [word for k, v in found[0].settings.items() for word in ("--set", f"{k}={v}")]
    same = [word for assignment in set_ for word in ("--set", assignment)]
    command = ["cordgt", "train", data, "--model", settings.model, *same, *best]
    console.note(f"Train and measure the best: {shlex.join(command)}")


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table: AP in percent, and no folder."""
    shown = {k: v for k, v in row.items() if k not in ("folder", "validation_ap", "seconds_per_epoch")}
    return shown | {"validation AP": f"{100 * row['validation_ap']:.2f}", "s/epoch": f"{row['seconds_per_epoch']:.1f}"}


@app.command()
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
    part: Annotated[
        str | None, typer.Option(metavar="WORD", show_default="both", help="validation or test alone.")
    ] = None,
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    processes: Processes = None,
    json_: Json = None,
) -> None:
    """Measure a run again: as it was, or with another visibility, batch size, negatives, or as a ranking."""
    share(processes, run)
    from cordgt import answers
    from cordgt.settings import parse_assignments

    answers.check_json(json_)
    changes: dict[str, Any] = parse_assignments(set_)
    asked = {"visibility": visibility, "negatives": negatives, "ranking": ranking}
    changes |= {key: value for key, value in asked.items() if value is not None}
    loaded = _run(run, device)
    with console.Bar() as bar:
        figures = loaded.evaluate(watcher=bar, part=part, **changes)
    if not leads():
        return
    _show_figures(
        f"{figures['model']} on {figures['data']}, {figures['protocol']['negatives']} negatives, "
        f"visibility {figures['protocol']['visibility']}",
        figures,
        json_,
    )


@app.command()
def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run folder.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another, on the same data under the same protocol.")],
    part: Annotated[str, typer.Option(metavar="WORD", help="test or validation.")] = "test",
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
    from cordgt import answers
    from cordgt.compare import compare_runs, table_rows
    from cordgt.errors import check_choice
    from cordgt.settings import parse_assignments
    from cordgt.tasks.link import PARTS, SETTINGS

    answers.check_json(json_)
    check_choice("--part", part, PARTS)
    check_choice("--setting", setting, SETTINGS)
    runs = [_run(path, device) for path in (run_a, run_b)]
    found = compare_runs(
        *runs, part=part, setting=setting, bootstrap=bootstrap, seed=seed, changes=parse_assignments(set_)
    )
    if json_ is not None:
        answers.write_json(found, json_)
    if json_ != "-":
        console.out.print(
            f"A {run_a} ({found['a']['model']}), B {run_b} ({found['b']['model']}): {found['events']:,} events of "
            f"{part}, {setting}, of {found['data']}; in percent",
            markup=False,
        )
        answers.show(table_rows(found), None)
        for text in found["says"]:
            console.out.print(text, markup=False)


app.command()(cli_report.report)


@app.command()
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
    from cordgt import answers
    from cordgt.audit import audit_data, audit_model, failed
    from cordgt.settings import make, parse_assignments

    answers.check_json(json_)
    changes = parse_assignments(set_)
    about: dict[str, Any] = {}
    if (Path(what) / "config.toml").exists() or (Path(what).is_dir() and list(Path(what).glob("*/config.toml"))):
        loaded = _run(Path(what), device)
        model, task = loaded.measured(**changes)
        checks = audit_model(model, task, queries=queries)
        about = {"run": what, "model": loaded.settings.model, "data": task.stream.name, "seed": loaded.settings.seed}
        about["protocol"] = dict(vars(task.protocol))
    else:
        stream = _load(what, _columns(src, dst, time, label, features, ids, node_features))
        protocol = make("cordgt", changes).protocol
        checks = audit_data(stream, protocol)
        about = {"data": stream.name, "events": stream.n_events, "protocol": dict(vars(protocol))}
    passed, rows = not failed(checks), [dict(vars(check)) for check in checks]
    if json_ is not None:
        answers.write_json({**about, "passed": passed, "checks": rows}, json_)
    if json_ != "-":
        answers.show(rows, None)
    if not passed:
        wrong = ", ".join(check.check for check in checks if check.result == "FAIL")
        console.note(f"{what} does not pass: {wrong}.")
        raise typer.Exit(1)


@app.command()
def predict(
    run: RunDir,
    pairs: Annotated[Path, typer.Option(metavar="FILE", help="The questions: src,dst[,time].")],
    output: Output = None,
    events: Events = None,
    device: Device = "auto",
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    node_features: NodeFeatures = None,
    json_: Json = None,
) -> None:
    """Score pairs: how likely each source meets each destination.

    A score lies between 0 and 1 and compares with random partners; it is not how often they will meet.
    Column options are for the pairs, and for the events where both are given and have these columns.
    """
    from cordgt import answers
    from cordgt.readers import read_pairs

    answers.check_output(output)
    answers.check_json(json_)
    asked = _columns(src, dst, time, label, features, None, node_features)
    loaded = _run(run, device, events, asked)
    columns = _columns_of_questions(loaded, pairs, _columns(src, dst, time), beside_events=events is not None)
    sources, destinations, times = read_pairs(pairs, **columns, axis=loaded.stream.time)
    with _answering(len(sources)) as progress:
        table = answers.scores(loaded, sources, destinations, times, progress)
    answers.write(table, output, json_)


@app.command()
def recommend(
    run: RunDir,
    source: Annotated[str | None, typer.Option(metavar="ID", help="The node to find partners for.")] = None,
    sources: Annotated[Path | None, typer.Option(metavar="FILE", help="Many nodes to find partners for.")] = None,
    at: At = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many partners.")] = 10,
    new_only: Annotated[bool, flag("--new-only", "Only partners it has not met yet.")] = False,
    output: Output = None,
    events: Events = None,
    device: Device = "auto",
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    node_features: NodeFeatures = None,
    json_: Json = None,
) -> None:
    """The partners a node is most likely to meet next.

    Partners are destinations of the history, never the node itself.
    """
    from cordgt import answers
    from cordgt.readers import read_ids

    if (source is None) == (sources is None):
        raise SettingError("Give either --source ID or --sources FILE.")
    answers.check_output(output)
    answers.check_json(json_)
    loaded = _run(run, device, events, _columns(src, dst, time, label, features, None, node_features))
    asked: list[Any] = [source]
    if sources is not None:
        columns = _columns_of_questions(loaded, sources, _columns(src), beside_events=events is not None)
        asked = read_ids(sources, column=columns.get("src")).to_pylist()
    moment = None if at is None else loaded.stream.time.parse(at)
    with _answering(len(asked)) as progress:
        table = answers.recommendations(loaded, asked, moment, top, new_only, progress)
    answers.write(table, output, json_, shown=["rank", "node", "score", "met", "note"] if source is not None else None)


@app.command()
def embed(
    run: RunDir,
    output: Annotated[Path, typer.Option(metavar="FILE", help=f"Where to write the embeddings: {FILE_ENDINGS}.")],
    nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="every node of the history",
            help="The nodes, an id a row; with a column `side` (src or dst) where an id could be either.",
        ),
    ] = None,
    at: At = None,
    events: Events = None,
    device: Device = "auto",
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    node_features: NodeFeatures = None,
) -> None:
    """A vector for each node at a time."""
    from cordgt import answers
    from cordgt.columns import those_named_in
    from cordgt.readers import read_ids

    answers.check_output(output)
    loaded = _run(run, device, events, _columns(src, dst, time, label, features, None, node_features))
    asked = sides = None
    if nodes is not None:
        columns = _columns_of_questions(loaded, nodes, _columns(src), beside_events=events is not None)
        asked = read_ids(nodes, column=columns.get("src"))
        if nodes.is_file() and those_named_in(nodes, {"src": "side"}):
            sides = read_ids(nodes, column="side").to_pylist()
    moment = None if at is None else loaded.stream.time.parse(at)
    answers.write(answers.embeddings(loaded, asked, sides, moment), output, None)


@data_app.command("list")
def data_list(json_: Json = None) -> None:
    """Datasets known by name, and where they are."""
    from cordgt import answers, datasets

    answers.check_json(json_)
    rows = [
        {"name": k.name, "nodes": k.nodes, "events": k.links, "found": "generated" if k.generated else _path(k.path)}
        for k in datasets.list_known()
    ]
    answers.show(rows, json_)


@data_app.command("describe")
def data_describe(
    data: Data,
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    ids: Ids = "auto",
    node_features: NodeFeatures = None,
    json_: Json = None,
) -> None:
    """What is in DATA, and what was assumed in reading it."""
    from cordgt import answers, datasets
    from cordgt.describe import describe

    answers.check_json(json_)
    stream = datasets.load(data, **_columns(src, dst, time, label, features, ids, node_features))
    answers.show_facts(describe(stream), json_)  # the notes are among them


@app.command("models")
def list_models(json_: Json = None) -> None:
    """The models, and the settings each of them takes."""
    from cordgt import answers
    from cordgt.models import MODELS
    from cordgt.protocol import Protocol
    from cordgt.settings import Training

    answers.check_json(json_)
    rows = [
        {"model": name, "about": kind.about, "settings": _assignments(vars(kind.settings()))}
        for name, kind in MODELS.items()
    ]
    answers.show(rows, json_)
    console.note(f"Every model also takes: {_assignments(vars(Training()) | vars(Protocol()))}")


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default="a new one under runs/", help="The run folder.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the stream and of the training.")] = 0,
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Train on a generated stream, compare with an oracle that knows the truth, and ask a few questions."""
    from cordgt import answers
    from cordgt.demo import run_demo

    answers.check_json(json_)
    found = run_demo(out, seed, device, quiet=json_ == "-")
    if json_ is not None:
        answers.write_json(found, json_)


@app.command()
def bench(
    stage: Annotated[
        str,
        typer.Argument(
            metavar="STAGE",
            help="machine, index, sample, pairs, distances, encode, attention, step, evaluate, recommend; all of "
            "these; or growth: how cost grows with events and context; or processes: what sharing a step gains.",
        ),
    ],
    data: Annotated[
        str, typer.Option("--data", metavar="DATA", help="A known dataset's or a twin's name, synthetic, or a file.")
    ] = "synthetic",
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="See `cordgt models`.")] = "cordgt",
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, metavar="N", help="Samples of each time, after a warm-up.")
    ] = 7,
    quick: Annotated[bool, flag("--quick", "Small sizes: to see that it runs.")] = False,
    scale: Annotated[
        float, typer.Option(min=0.001, metavar="X", help="growth: the largest stream, as a multiple of the twin.")
    ] = 1.0,
    processes: Annotated[
        str, typer.Option(metavar="N,N", help="processes: how many to share a step among, one after the other.")
    ] = "1,2",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="growth: draw it, as PNG, PDF or SVG.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a step as a Chrome trace, for Perfetto.")
    ] = None,
    json_: Json = None,
) -> None:
    """Time each stage beside the machine's own limits, measured in the same run.

    Times are medians. The columns matrix and memory say which share of the machine's matrix rate and bandwidth that is.
    """
    from cordgt import answers
    from cordgt.bench import growth, report, suite
    from cordgt.errors import check_choice
    from cordgt.training import choose_device

    check_choice("STAGE", stage, (*suite.ALL, "all", "growth", "processes"))
    if started_as_one_of_several() and stage != "processes":
        raise SettingError(f"`cordgt bench {stage}` runs in one process: start it without torchrun.")
    answers.check_json(json_)
    answers.check_output(plot, (".png", ".pdf", ".svg"))
    settings = _settings(data, model, None, set_, None, None)
    on = choose_device(device)
    place = suite.prepare(_load(data, {}), settings, on, repeat=repeat, quick=quick or is_measured())
    if stage == "processes":
        shared = bench_shared(place, processes, _measuring)
        if shared is None:
            return
        found = shared
    elif stage == "growth":
        found = growth.grow(place, scale, _measuring)
    else:
        found = suite.run(place, suite.ALL if stage == "all" else (stage,), _measuring)
    if plot is not None and stage == "growth":
        growth.plot(found, plot)
        console.note(f"{plot}: written")
    if trace is not None:
        suite.trace(place, trace)
        console.note(f"{trace}: written")
    if json_ is not None:
        answers.write_json(found, json_)
    if json_ != "-":
        console.out.print(report.machine_line(found), markup=False)
        tables = {"growth": report.growth_table, "processes": report.shared_table}
        if stage != "machine":
            console.out.print(tables.get(stage, report.stages_table)(found))
        for text in report.sentences(found):
            console.out.print(text, markup=False)


app.command()(cli_reproduce.reproduce)


@app.command("version")
def show_version(json_: Json = None) -> None:
    """The version of cordgt, and of what it stands on."""
    import platform

    import numba
    import pyarrow
    import torch

    from cordgt import answers

    versions = {"cordgt": __version__, "python": platform.python_version(), "torch": torch.__version__}
    versions |= {"numba": numba.__version__, "pyarrow": pyarrow.__version__}
    versions["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    answers.show_facts(versions, json_)


def _measuring(what: str) -> None:
    console.note(f"measuring {what}")


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _columns(*values: Any) -> dict[str, Any]:
    """The column options that were given; ``values`` in this order, later ones may be left out."""
    names = ("src", "dst", "time", "label", "features", "ids", "node_features")
    return {k: v for k, v in zip(names, values, strict=False) if v is not None}


def _load(data: str, columns: dict[str, Any]) -> Any:
    from cordgt import datasets

    stream = datasets.load(data, **columns)
    for text in stream.notes:
        console.note(f"{stream.name}: {text}")
    return stream


def _facts(stream: Any) -> str:
    return f"{stream.name}: {stream.n_events:,} events of {stream.n_nodes:,} nodes"


def _settings(
    data: str, model: str | None, config: Path | None, assignments: list[str], seed: int | None, init: Path | None
) -> Settings:
    """Defaults, then the paper's settings for a known dataset, then those of --init, then the file, then --set."""
    from cordgt import datasets
    from cordgt.run import RunFolder
    from cordgt.settings import Given, make, parse_assignments, read_config

    of_file = Given(None, None, {}) if config is None else read_config(config)
    of_init = None if init is None else RunFolder(init).read_config()[0]
    model = model or of_file.model or ("cordgt" if of_init is None else of_init.model)
    seed = seed if seed is not None else of_file.seed or 0
    chosen = of_file.keys | parse_assignments(assignments)
    before: dict[str, Any] = datasets.paper_settings(data, model)
    whose = "its authors'" if model in datasets.NOT_IN_PAPER else "the paper's"
    told = f"{data} is known; {whose} settings for it"
    if of_init is not None and of_init.model == model:
        before, told = vars(of_init.model_settings), f"settings of {init}, where the training starts from"
    before = {k: v for k, v in before.items() if k not in chosen}
    if before:
        console.note(f"{told}: {_assignments(before)}")
    settings = make(model, before | chosen, seed=seed)
    if settings.unused:
        console.note(f"not used by {model}: {', '.join(settings.unused)}")
    return settings


def _run(path: Path, device: str, events: Path | None = None, columns: dict[str, Any] | None = None) -> Run:
    from cordgt.api import Run

    columns = columns or {}
    if events is None and "node_features" in columns:
        raise SettingError("--node-features describes the nodes of --events; without --events leave it out.")
    loaded = Run.load(path, device)
    if events is None:
        return loaded
    if "node_features" in columns and not loaded.stream.node_dim:
        raise SettingError(f"--node-features: {path} was trained without features of nodes.")
    longer = loaded.with_events(events, **columns)
    console.note(f"{events}: {longer.stream.n_events - loaded.stream.n_events:,} events appended to the history")
    return longer


def _columns_of_questions(run: Run, path: Path, asked: dict[str, Any], *, beside_events: bool) -> dict[str, Any]:
    """The columns of a file of pairs or ids: those asked for, and the training's where it has columns of these names.

    Beside --events the options may be meant for the events alone, and count here only where they fit.
    """
    from cordgt.columns import can_be_read_twice, fit, those_named_in

    if not can_be_read_twice(path):
        return asked
    known = {k: v for k, v in run.columns.items() if k in ("src", "dst", "time")}
    together = those_named_in(path, known) | asked
    if beside_events and not fit(path, together, need_time=False):
        return those_named_in(path, known | asked)
    return together


@contextmanager
def _resumable() -> Iterator[None]:
    """Says how an interrupted training goes on: 130 after Ctrl-C, 143 after SIGTERM."""
    from cordgt.stopping import Stopped

    try:
        yield
    except KeyboardInterrupt as stopped:
        again = shlex.join(["cordgt", *(a for a in sys.argv[1:] if a != "--resume"), "--resume"])
        if started_as_one_of_several() and "--processes" not in again:
            again = "the same torchrun command and --resume"
        saved, code = (stopped.saved, stopped.exit_code) if isinstance(stopped, Stopped) else ("", 130)
        where = f"interrupted, and saved after {saved}. It goes on from there" if saved else "interrupted. It goes on"
        console.fail(f"{where} with: {again}")
        raise typer.Exit(code) from None


def _suggest(folder: Path, stream: Any) -> None:
    """A question that can be asked now."""
    source = str(stream.ids.take(stream.src[-1:])[0].as_py())
    console.note(f"Ask it: {shlex.join(['cordgt', 'recommend', str(folder), '--source', source])}")


def _show_figures(title: str, metrics: dict[str, Any], json_: str | None) -> None:
    from cordgt import answers

    if json_ is not None:
        answers.write_json(metrics, json_)
    if json_ != "-":
        console.out.print(console.figures_table(title, metrics))
    said = (*console.undefined_figures(metrics), *console.stand_ins(metrics), *console.below_floors(metrics))
    for text in said:
        console.note(text)


@contextmanager
def _answering(questions: int) -> Iterator[Any]:
    with console.Bar() as bar:
        bar.answering(questions)
        yield lambda n: bar.step(n, None)


def _assignments(values: dict[str, Any]) -> str:
    """``fanout=20,1 hidden=64``: settings as --set takes them."""
    return " ".join(f"{k}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in values.items())
