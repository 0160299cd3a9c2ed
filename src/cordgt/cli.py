"""The command line: one small function a command. Answers go to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordgt import __version__, console
from cordgt.errors import CordgtError, SettingError

if TYPE_CHECKING:
    from cordgt.api import Run
    from cordgt.settings import Settings

app = typer.Typer(
    name="cordgt",
    help="Who meets whom next, from a log of timestamped interactions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Look at data, or convert it.", no_args_is_help=True)
app.add_typer(data_app, name="data")

_COLUMNS = "Columns (a name, or a position counted from 0)"
Data = Annotated[
    str, typer.Argument(help="A known dataset's name, or a file: CSV, TSV, edge list, Parquet, gzip of these.")
]
RunDir = Annotated[Path, typer.Argument(help="A run folder.")]
Src = Annotated[str | None, typer.Option("--src", help="Column of the sources.", rich_help_panel=_COLUMNS)]
Dst = Annotated[str | None, typer.Option("--dst", help="Column of the destinations.", rich_help_panel=_COLUMNS)]
Time = Annotated[str | None, typer.Option("--time", help="Column of the times.", rich_help_panel=_COLUMNS)]
Label = Annotated[str | None, typer.Option("--label", help="Column of labels.", rich_help_panel=_COLUMNS)]
Features = Annotated[
    str | None,
    typer.Option("--features", help="Columns of event features: a,b,c or 4-7 or rest.", rich_help_panel=_COLUMNS),
]
Ids = Annotated[
    str,
    typer.Option(
        "--ids",
        help="Do both columns name the same nodes? shared, separate, or auto: separate where they are called like users and items.",
        rich_help_panel=_COLUMNS,
    ),
]
NodeFeatures = Annotated[
    Path | None, typer.Option("--node-features", help="File of node features, joined by id.", rich_help_panel=_COLUMNS)
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")]
Json = Annotated[
    str | None, typer.Option("--json", metavar="[FILE]", help="The answer as JSON: into FILE, or to standard output.")
]
Events = Annotated[
    Path | None, typer.Option("--events", help="Events since the training: appended to the history before answering.")
]
At = Annotated[str | None, typer.Option("--at", help="The time of the question; by default after the whole history.")]


def main() -> None:
    """Run the command line. A person's mistake gives one message and exit code 2."""
    try:
        app(args=_lone_json(sys.argv[1:]))
    except CordgtError as error:
        console.fail(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        console.fail("interrupted. A training goes on from its last finished epoch with --resume.")
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
        sys.exit(0)


def _lone_json(args: list[str]) -> list[str]:
    """``--json`` without a file means standard output."""
    following = [*args[1:], "-"]
    return [f"{a}=-" if a == "--json" and b.startswith("-") else a for a, b in zip(args, following, strict=True)]


@app.command()
def train(
    data: Data,
    model: Annotated[str | None, typer.Option(help="See `cordgt models`. [default: cordgt]")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings from a TOML file, such as a run's config.toml.")] = None,
    set_: Set = [],  # noqa: B006
    seed: Annotated[
        int | None, typer.Option(help="Of weights, dropout, trees and training negatives. [default: 0]")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Train so many times, into seed-* folders.")] = None,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="The run folder. [default: runs/DATA-MODEL-seedN]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    init: Annotated[Path | None, typer.Option(help="Start from the weights of a trained run.")] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Afterwards train on all events; that model answers, the figures stay.")
    ] = False,
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
    from cordgt import api

    columns = _columns(src, dst, time, label, features, ids, node_features)
    stream = _load(data, columns)
    settings = _settings(data, model, config, set_, seed)
    folder = out or api.default_folder(stream.name, settings.model, settings.seed)
    options: dict[str, Any] = {"device": device, "resume": resume, "init": init, "refit": refit}
    console.note(f"{settings.model} on {_facts(stream)}; figures and weights go to {folder}")
    with console.Bar() as bar:
        if seeds is None:
            metrics = api.train_run(stream, settings, folder, watcher=bar, **options).metrics
        else:
            metrics = api.train_seeds(stream, settings, folder, seeds, watcher=bar, **options)
    _show_figures(f"{settings.model} on {stream.name}", metrics, json_)
    console.note(
        f"Ask it: cordgt recommend {folder if seeds is None else folder / f'seed-{settings.seed}'} --source ID"
    )


@app.command()
def evaluate(
    run: RunDir,
    visibility: Annotated[str | None, typer.Option(help="event, paper or batch. [default: the run's]")] = None,
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    json_: Json = None,
) -> None:
    """Measure a run again, under its own protocol or another visibility, batch size, pool or seed of negatives."""
    from cordgt.settings import parse_assignments

    changes: dict[str, Any] = parse_assignments(set_)
    if visibility is not None:
        changes["visibility"] = visibility
    loaded = _run(run, device)
    with console.Bar() as bar:
        figures = loaded.evaluate(watcher=bar, **changes)
    _show_figures(
        f"{figures['model']} on {figures['data']}, visibility {figures['protocol']['visibility']}", figures, json_
    )


@app.command()
def predict(
    run: RunDir,
    pairs: Annotated[Path, typer.Option(help="File of questions: src,dst[,time].")],
    output: Annotated[
        Path | None, typer.Option(help="Where to write the answers: .csv, .tsv, .parquet or .json.")
    ] = None,
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
    """Score pairs: how likely each source meets each destination, 0 to 1, relative to random partners."""
    from cordgt import answers
    from cordgt.readers import read_pairs

    answers.check_output(output)
    loaded = _run(run, device, events, _columns(src, dst, time, label, features, "auto", node_features))
    sources, destinations, times = read_pairs(pairs, src=src, dst=dst, time=time, axis=loaded.stream.time)
    with _counting("scoring", len(sources)) as progress:
        table = answers.scores(loaded, sources, destinations, times, progress)
    answers.write(table, output, json_)


@app.command()
def recommend(
    run: RunDir,
    source: Annotated[str | None, typer.Option(help="The node to find partners for.")] = None,
    sources: Annotated[Path | None, typer.Option(help="File of nodes to find partners for.")] = None,
    at: At = None,
    top: Annotated[int, typer.Option(min=1, help="How many partners.")] = 10,
    new_only: Annotated[bool, typer.Option("--new-only", help="Only partners it has not met yet.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Where to write the answers: .csv, .tsv, .parquet or .json.")
    ] = None,
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
    """The partners a node is most likely to meet next."""
    from cordgt import answers
    from cordgt.readers import read_ids

    if (source is None) == (sources is None):
        raise SettingError("Give either --source ID or --sources FILE.")
    answers.check_output(output)
    loaded = _run(run, device, events, _columns(src, dst, time, label, features, "auto", node_features))
    asked = [source] if sources is None else read_ids(sources, column=src).to_pylist()
    moment = None if at is None else loaded.stream.time.parse(at)
    with _counting("recommending", len(asked)) as progress:
        table = answers.recommendations(loaded, asked, moment, top, new_only, progress)
    answers.write(table, output, json_, shown=["rank", "node", "score", "met", "note"] if source is not None else None)


@app.command()
def embed(
    run: RunDir,
    output: Annotated[Path, typer.Option(help="Where to write the embeddings: .parquet, .csv or .json.")],
    nodes: Annotated[Path | None, typer.Option(help="File of node ids; by default every node of the history.")] = None,
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
    from cordgt.readers import read_ids

    answers.check_output(output)
    loaded = _run(run, device, events, _columns(src, dst, time, label, features, "auto", node_features))
    asked = None if nodes is None else read_ids(nodes, column=src)
    moment = None if at is None else loaded.stream.time.parse(at)
    answers.write(answers.embeddings(loaded, asked, moment), output, None)


@data_app.command("list")
def data_list(json_: Json = None) -> None:
    """Datasets known by name, and where they are."""
    from cordgt import answers, datasets

    rows = [
        {"name": k.name, "nodes": k.nodes, "events": k.links, "found": None if k.path is None else str(k.path)}
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
    from cordgt import answers
    from cordgt.describe import describe

    stream = _load(data, _columns(src, dst, time, label, features, ids, node_features))
    answers.show_facts(describe(stream), json_)


@data_app.command("convert")
def data_convert(
    data: Data,
    out: Annotated[Path, typer.Argument(help="A .csv or .parquet file.")],
    src: Src = None,
    dst: Dst = None,
    time: Time = None,
    label: Label = None,
    features: Features = None,
    ids: Ids = "auto",
    node_features: NodeFeatures = None,
) -> None:
    """Write DATA, sorted and checked, as CSV or Parquet."""
    from cordgt.readers import convert

    stream = _load(data, _columns(src, dst, time, label, features, ids, node_features))
    for path in convert(stream, out):
        console.note(f"{path}: written")


@app.command("models")
def list_models(json_: Json = None) -> None:
    """The models, and the settings each of them takes."""
    from cordgt import answers
    from cordgt.models import MODELS

    rows = [
        {
            "model": name,
            "about": kind.about,
            "settings": " ".join(f"{k}={_short(v)}" for k, v in vars(kind.settings()).items()),
        }
        for name, kind in MODELS.items()
    ]
    answers.show(rows, json_)


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="The run folder. [default: a new one under runs/]")] = None,
    seed: Annotated[int, typer.Option(help="Of the stream and of the training.")] = 0,
    device: Device = "auto",
) -> None:
    """Train on a generated stream, compare with an oracle that knows the truth, and ask a few questions."""
    from cordgt.demo import run_demo

    run_demo(out, seed, device)


@app.command("version")
def show_version() -> None:
    """The version of cordgt, and of what it stands on."""
    import numba
    import pyarrow
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    console.out.print(
        f"cordgt {__version__} (torch {torch.__version__}, numba {numba.__version__}, pyarrow {pyarrow.__version__}, {gpu})"
    )


def _columns(*values: Any) -> dict[str, Any]:
    """The column options that were given."""
    names = ("src", "dst", "time", "label", "features", "ids", "node_features")
    return {k: v for k, v in zip(names, values, strict=True) if v is not None}


def _load(data: str, columns: dict[str, Any]) -> Any:
    from cordgt import datasets

    stream = datasets.load(data, **columns)
    for text in stream.notes:
        console.note(f"{stream.name}: {text}")
    return stream


def _facts(stream: Any) -> str:
    return f"{stream.name}: {stream.n_events:,} events of {stream.n_nodes:,} nodes"


def _settings(data: str, model: str | None, config: Path | None, assignments: list[str], seed: int | None) -> Settings:
    """Defaults, then the paper's settings for a known dataset, then the file, then --set."""
    from cordgt import datasets
    from cordgt.settings import Given, make, parse_assignments, read_config

    of_file = Given(None, None, {}) if config is None else read_config(config)
    model = model or of_file.model or "cordgt"
    seed = seed if seed is not None else of_file.seed or 0
    paper = datasets.paper_settings(data) if model == "cordgt" else {}
    if paper:
        told = " ".join(f"{k}={_short(v)}" for k, v in paper.items())
        console.note(f"{data} is known: the paper's settings for it are {told}")
    settings = make(model, paper | of_file.keys | parse_assignments(assignments), seed=seed)
    for key in settings.unused:
        console.note(f"{key} is not used by {model}")
    return settings


def _run(path: Path, device: str, events: Path | None = None, columns: dict[str, Any] | None = None) -> Run:
    from cordgt.api import Run

    loaded = Run.load(path, device)
    if events is None:
        return loaded
    ids = "shared" if loaded.stream.ids.side is None else "separate"
    longer = loaded.with_events(events, **({**(columns or {}), "ids": ids}))
    console.note(f"{events}: {longer.stream.n_events - loaded.stream.n_events:,} events appended to the history")
    return longer


def _show_figures(title: str, metrics: dict[str, Any], json_: str | None) -> None:
    from cordgt import answers

    if json_ is not None:
        answers.write_json(metrics, json_)
    if json_ != "-":
        console.out.print(console.figures_table(title, metrics))
        for text in console.undefined_figures(metrics):
            console.note(text)


@contextmanager
def _counting(what: str, total: int) -> Iterator[Any]:
    with console.Bar() as bar:
        bar.evaluating(what, total)
        yield lambda n: bar.step(n, None)


def _short(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
