"""`cordgt recommend --all`: recommendations for every source of the history, as part files."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cordgt.cli import console
from cordgt.errors import SettingError

if TYPE_CHECKING:
    from cordgt.inference.recommend_all import RecommendAllResult


# Options that exclude --all, and what to do instead.
NOT_WITH_ALL = {
    "--source": "It means every source: leave out one of the two.",
    "--sources": "It means every source: leave out one of the two.",
    "--destination": "It finds destinations of every source. For the sources of a destination, leave out --all.",
    "--within": "For probabilities, write the sources into a file and give --sources FILE --within TIME.",
}


def check_all_options(all_: bool, given: dict[str, Any]) -> None:
    """Raise SettingError for options that need --all, or exclude it. ``given``: values by option, None if absent."""
    only_all = ("--shard", "--workers", "--part-size")
    for name, value in given.items():
        is_given = value not in (None, [], False)
        if is_given and all_ and name not in only_all:
            raise SettingError(f"{name} cannot be used with --all. {NOT_WITH_ALL[name]}")
        if is_given and not all_ and name in only_all:
            raise SettingError(f"{name} needs --all.")


def recommend_all(
    run: Path,
    output: Path | None,
    *,
    shard: str | None,
    workers: int | None,
    part_size: int | None,
    escape_formulas: bool,
    json_: str | None,
    **options: Any,
) -> None:
    """Write the recommendations of every source. ``options`` are those of `RecommendAllRequest`."""
    from cordgt.cli import writers
    from cordgt.inference.id_lists import describe_unknown
    from cordgt.inference.part_files import parse_pattern
    from cordgt.inference.recommend_all import PART_SIZE, RecommendAllRequest, Shard
    from cordgt.inference.recommend_workers import recommend_all_in_processes
    from cordgt.runtime.launch import available_cores
    from cordgt.runtime.signals import SignalInterrupt, raise_on_signal

    if output is None:
        raise SettingError("--all needs --output: a folder, or a name with *, such as answers/part-*.parquet.")
    pattern, chosen = parse_pattern(output), Shard.parse(shard)
    writers.check_json(json_)
    request = RecommendAllRequest(str(run), part_size=part_size or PART_SIZE, **options)
    job = request.load()
    for text in job.run.stream.notes if request.events is not None else ():
        console.print_note(f"{request.events}: {text}")
    unknown = describe_unknown(job.run.stream.ids, request.candidates, "dst") if request.candidates else ""
    if unknown:
        console.print_note(unknown)
    if workers is None:
        workers = available_cores() if job.run.device.type == "cpu" else 1
    try:
        with raise_on_signal(), console.ProgressBar() as bar:
            result = recommend_all_in_processes(
                request,
                pattern,
                workers,
                shard=chosen,
                write=partial(writers.write_file, escape_formulas=escape_formulas),
                callbacks=bar,
                job=job,
            )
    except KeyboardInterrupt as error:
        signum = error.signum if isinstance(error, SignalInterrupt) else signal.SIGINT
        console.print_error("interrupted. Finished parts are kept; the same command continues.")
        raise typer.Exit(128 + signum) from None
    _print_result(result, json_)


def _print_result(result: RecommendAllResult, json_: str | None) -> None:
    """Print what was written, and whether the other shards are finished too."""
    from cordgt.cli import writers

    files, shard = result.files, result.shard
    per_second = result.n_sources / max(result.seconds, 1e-9)
    writers.write_json(
        {
            "shard": str(shard),
            "parts_written": result.n_written,
            "parts_skipped": result.n_skipped,
            "sources_written": result.n_sources,
            "seconds": result.seconds,
            "manifest": str(files.manifest_path),
            **{name: files.manifest[name] for name in ("n_parts", "n_sources", "cut")},
        },
        json_,
    )
    parts = "part" if result.n_written == 1 else "parts"
    text = f"{files.pattern}: {result.n_written:,} {parts} written, {result.n_sources:,} sources"
    if result.n_written:
        text += f", {per_second:,.0f} per second"
    if result.n_skipped:
        text += f"; {result.n_skipped:,} were finished already"
    console.print_note(text)
    n_missing = sum(not files.path(number).exists() for number in range(files.n_parts))
    if n_missing:
        console.print_note(f"{n_missing:,} of {files.n_parts:,} parts are missing: those of other shards.")
