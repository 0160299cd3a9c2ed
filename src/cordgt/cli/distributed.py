"""Commands that run in several processes: ``--processes``, torchrun, and who prints what."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from cordgt.cli import console
from cordgt.cli.options import option
from cordgt.errors import CordgtError, SettingError
from cordgt.runtime.launch import RENDEZVOUS, RESULT_FILE, launch

DISTRIBUTED_COMMANDS = ("train", "evaluate", "bench")

Processes = Annotated[
    int | None,
    option("N", "Number of processes on this machine; use torchrun for several machines.", min=1, show_default="1"),
]


def is_distributed_launch() -> bool:
    """Return whether torchrun or `launch` started this process. Loads torch only if WORLD_SIZE is set."""
    if "WORLD_SIZE" not in os.environ:
        return False
    from cordgt.runtime import distributed

    return distributed.is_distributed()


def has_process_group() -> bool:
    """Return whether this process has joined others."""
    if not is_distributed_launch():
        return False
    from cordgt.runtime import distributed

    return distributed.current_group().world_size > 1


def exit_at_once(error: BaseException) -> NoReturn:
    """End this process without Python's clean-up, which can abort while threads of its process group still run.

    The exit code, and what is printed, are those that Python would have for the exception.
    """
    code: Any = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    with suppress(OSError):  # the output is closed, or its disk is full
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


def launch_processes(n: int | None, data: str | Path) -> None:
    """Start this command in ``n`` processes and exit with their code. Return if n is 1 or they run already."""
    is_launched = is_distributed_launch()
    if is_launched and n is not None and RENDEZVOUS not in os.environ:
        raise SettingError("torchrun sets the number of processes: leave out --processes.")
    if (is_launched or (n or 1) > 1) and Path(data).is_fifo():
        raise SettingError(f"{data} can be read only once, and each process reads it. Give a file.")
    if n is not None and n > 1 and not is_launched:
        raise typer.Exit(launch(n, sys.argv[1:]))


def is_bench_worker() -> bool:
    """Return whether ``cordgt bench processes`` started this process."""
    return RESULT_FILE in os.environ


def is_main_process() -> bool:
    """Return whether this process prints the answer: always, unless it is one of several."""
    if "WORLD_SIZE" not in os.environ:
        return True
    from cordgt.runtime import distributed

    return distributed.current_group().is_main_process


@contextmanager
def distributed_command(command: str) -> Iterator[None]:
    """Join the other processes, if there are any. Only the main process prints, except for errors of another one."""
    if not is_distributed_launch():
        console.stderr.quiet = is_bench_worker()  # its parent has printed the same notes
        try:
            yield
        except CordgtError:
            console.stderr.quiet = False
            raise
        return
    from cordgt.runtime import distributed

    quiet = is_bench_worker() or os.environ.get("RANK", "0") != "0"
    console.stdout.quiet = console.stderr.quiet = quiet
    if command not in DISTRIBUTED_COMMANDS:
        if quiet:
            time.sleep(distributed.REPORT_DELAY)  # let the main process print this before torchrun ends it
        raise SettingError(f"`cordgt {command}` runs in one process: start it without torchrun.")
    try:
        distributed.init_process_group()
        distributed.ignore_sigterm_after_loss()
        yield
    except CordgtError as error:
        prefix = distributed.claim_error_report(error)
        console.stderr.quiet = prefix is None
        if isinstance(error, distributed.ProcessLostError):
            error = distributed.ProcessLostError(
                f"{error} Continue with the same command and --resume, with any number of processes."
            )
        raise type(error)(f"{prefix}{error}") from None
    except SystemExit as end:
        if not end.code:
            distributed.destroy_process_group()
        raise
