"""Commands that several processes share: what each of them does besides the command itself, and ``--processes``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.errors import CordgtError, SettingError
from cordgt.runtime.launch import FIGURES, MEETING, launch

if TYPE_CHECKING:
    from cordgt.experiments.bench.setup import Place

SHARED = ("train", "evaluate", "bench")

Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        metavar="N",
        show_default="1",
        help="Share the work among so many processes of this machine; torchrun does so over several.",
    ),
]


def started_as_one_of_several() -> bool:
    """By torchrun or by `launch`; told without loading torch where it is clear."""
    if "WORLD_SIZE" not in os.environ:
        return False
    from cordgt.runtime import distributed

    return distributed.asked()


def share(n: int | None, data: str | Path) -> None:
    """Where ``--processes`` asks for several, start them with this command and end with them; else go on here."""
    several = started_as_one_of_several()
    if several and n is not None and MEETING not in os.environ:
        raise SettingError("torchrun says how many processes there are: leave out --processes.")
    if (several or (n or 1) > 1) and Path(data).is_fifo():
        raise SettingError(f"{data} can be read only once, and each process reads it. Give a file.")
    if n is not None and n > 1 and not several:
        raise typer.Exit(launch(n, sys.argv[1:]))


def is_measured() -> bool:
    """Whether this process was started by ``cordgt bench processes``."""
    return FIGURES in os.environ


def bench_shared(place: Place, counts: str, callbacks: Callback) -> dict[str, Any] | None:
    """``cordgt bench processes``: start the measured ones and collect what they find; None in one of these."""
    from cordgt.experiments.bench import multiprocess, suite

    if is_measured():
        multiprocess.measure(place)
        return None
    asked = multiprocess.counts_of(counts)
    if place.device.type == "cpu" and multiprocess.crowded(asked):
        console.note(multiprocess.crowded(asked))
    return suite.about(place) | {"shared": multiprocess.compare(asked, sys.argv[1:], callbacks)}


def leads() -> bool:
    """False in all processes but the first, which alone answers."""
    if "WORLD_SIZE" not in os.environ:
        return True
    from cordgt.runtime import distributed

    return distributed.current().leads


@contextmanager
def among_others(command: str) -> Iterator[None]:
    """Meets the other processes, where there are any. The first one speaks for all, but for what happens elsewhere."""
    quiet = is_measured() or os.environ.get("RANK", "0") != "0"
    if not started_as_one_of_several():
        console.err.quiet = is_measured()  # the one that measures has said it all already
        try:
            yield
        except CordgtError:
            console.err.quiet = False
            raise
        return
    from cordgt.runtime import distributed

    console.out.quiet = console.err.quiet = quiet
    if command not in SHARED:
        time.sleep(distributed.POLITELY * quiet)  # let the first one say so, before torchrun ends it
        raise SettingError(f"`cordgt {command}` runs in one process: start it without torchrun.")
    try:
        distributed.join()
        distributed.outlive()
        yield
    except CordgtError as error:
        before = distributed.speaks_for_all(error)
        console.err.quiet = before is None
        if isinstance(error, distributed.Lost):
            error = distributed.Lost(f"{error} The same command with --resume goes on, with any number of processes.")
        raise type(error)(f"{before}{error}") from None
    except SystemExit as end:
        if not end.code:
            distributed.leave()
        raise
