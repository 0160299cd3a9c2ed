"""Commands of the live service: serve, retrain, data export."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cordgt.cli import console
from cordgt.cli.loading import build_settings
from cordgt.cli.options import Device, RunDir, Set, flag, option
from cordgt.cli.resume import fill_out_option
from cordgt.errors import SettingError

EXIT_NOT_BETTER = 3  # exit code of `retrain`, as that of `compare` with a limit
INSTALL_HINT = "`cordgt serve` needs more packages. Install them: pip install 'cordgt[serve]'"

DataDir = Annotated[Path, typer.Argument(metavar="DIR", help="The --data-dir of the service.")]
LogUrl = Annotated[str, option("URL", "The --log of the service, if it has one.", show_default="SQLite in DIR")]


def serve(
    run: RunDir,
    host: Annotated[str, option("HOST", "Address to listen on. Others than 127.0.0.1 need tokens.")] = "127.0.0.1",
    port: Annotated[int, option("PORT", "Port to listen on; 0: a free one.", min=0, max=65535)] = 8000,
    data_dir: Annotated[
        Path | None, option("DIR", "Folder of the event log and the models.", show_default="RUN.service")
    ] = None,
    late: Annotated[
        str, option("WORD", "Events earlier than the last one: refuse, or accept them with the last one's time.")
    ] = "refuse",
    max_ahead: Annotated[
        str,
        option("TIME", "Refuse events that are further in the future, such as 1h.", show_default="1d; docs/serve.md"),
    ] = "",
    log: Annotated[
        str, option("URL", "Event log in PostgreSQL: postgresql://HOST/NAME", show_default="SQLite in DIR")
    ] = "",
    insecure: Annotated[bool, flag("--insecure", "Allow requests from other hosts without tokens.")] = False,
    device: Device = "auto",
) -> None:
    """Answer questions over HTTP while events arrive. http://HOST:PORT/ has a page, /docs lists the requests.

    $CORDGT_READ_TOKEN and $CORDGT_WRITE_TOKEN are the tokens that clients need.
    """
    with _no_garbage_collection():
        try:
            import fastapi  # noqa: F401
            import prometheus_client  # noqa: F401
            import uvicorn  # noqa: F401
        except ImportError:
            raise SettingError(INSTALL_HINT) from None
        from cordgt.serving.security import Tokens, check_bind
        from cordgt.serving.server import run_server
        from cordgt.serving.service import Service, ServiceOptions
        from cordgt.store.store import is_store

        if is_store(run):
            raise SettingError(f"{run} is a store. Train a model on it: cordgt train {run} --out RUN. Then serve RUN.")
        tokens = Tokens.from_environment()
        check_bind(host, tokens, insecure=insecure)
        folder = data_dir or run.with_name(f"{run.absolute().name}.service")
        options = ServiceOptions(folder, late=late, max_ahead=max_ahead, device=device, log_url=log)
        console.print_note(f"Loading {run} and the event log in {folder}.")
        service = Service(run, options)
    run_server(service, host, port, tokens=tokens, insecure=insecure)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Load without garbage collections, and leave what was loaded out of later ones, which pause every answer."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def retrain(
    data_dir: DataDir,
    out: Annotated[Path, option("DIR", "The new run folder; {date} and {time} are filled in.")],
    url: Annotated[
        str, option("URL", "The running service, such as http://127.0.0.1:8000.", show_default="none: do not promote")
    ] = "",
    min_gain: Annotated[float, option("VALUE", "Promote only if AP rises by more than this: 0.01 is 1 point.")] = 0.0,
    set_: Set = [],  # noqa: B006
    refit: Annotated[bool, flag("--refit", "Then train a second model on all events. It answers.")] = False,
    log: LogUrl = "",
    device: Device = "auto",
) -> None:
    """Train the model of a live service again on all its events, and promote it if it is better on the latest ones.

    Training starts from the weights of the current model. Both models are compared on the test events of the new run,
    which neither has been trained on. Exit code 3: the new model is not better; the service keeps the current one.
    $CORDGT_WRITE_TOKEN is the token of the service.
    """
    from cordgt.analysis.compare import compare_runs
    from cordgt.serving.retraining import load_current_run, promote, read_events
    from cordgt.workflows.train import train_run

    stream = read_events(data_dir, log)
    current = load_current_run(data_dir, device)
    n_new = stream.n_events - current.original_stream.n_events
    if n_new <= 0:
        console.print_note(f"There are no events after those of {current.path}: nothing to train.")
        return
    console.print_note(f"{stream.n_events:,} events, {n_new:,} of them after those of the current model")
    settings = build_settings("", None, current.path / "config.toml", set_, None, current.path)
    folder = fill_out_option(out) or out
    with console.ProgressBar() as bar:
        options = {"device": device, "init": current.path, "refit": refit, "columns": current.columns}
        new = train_run(stream, settings, folder, callbacks=bar, **options)  # type: ignore[arg-type]
    comparison = compare_runs(current, new)
    row = comparison["metrics"]["ap"]
    console.print_note(
        f"AP on the latest {comparison['events']:,} events: {100 * row['a']:.2f} before, {100 * row['b']:.2f} now"
    )
    if row["difference"] <= min_gain:
        console.print_error(f"{folder} is not better. The service keeps its model.")
        raise typer.Exit(EXIT_NOT_BETTER)
    if not url:
        console.print_note(f"{folder} is better. Promote it: POST /model with its path, or use --url.")
        return
    console.print_note(f"{url} answers with {folder} now (model {promote(url, folder)['id']})")


def data_export(
    data_dir: DataDir,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write: .csv or .parquet.")],
    log: LogUrl = "",
) -> None:
    """Write all events of a live service to a file. The service may run meanwhile."""
    from cordgt.events.export import export_stream
    from cordgt.serving.retraining import read_events

    stream = read_events(data_dir, log)
    written = export_stream(stream, file)
    console.print_note(f"{', '.join(map(str, written))}: {stream.n_events:,} events")
