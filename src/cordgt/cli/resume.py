"""Interrupted trainings: whether one has started, and how to resume it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path

import typer

from cordgt.cli import console
from cordgt.cli.distributed import is_distributed_launch

training_started = ContextVar("training_started", default=False)  # True once a command trains and may write files


def fill_out_option(out: Path | None) -> Path | None:
    """Fill in {date} and {time} of --out, in local time.

    Changes `sys.argv` too: `--processes` and `resume_hint` repeat it, perhaps on the next day.
    """
    from cordgt.training.output_folder import fill_placeholders

    if out is None or "{" not in str(out):
        return out
    now = datetime.now()
    for k, word in enumerate(sys.argv):
        if word.startswith("--out=") or sys.argv[k - 1] == "--out":
            sys.argv[k] = fill_placeholders(word, now)
    return Path(fill_placeholders(str(out), now))


@contextmanager
def resume_hint() -> Iterator[None]:
    """On an interruption, print how to resume and exit: with code 130 after Ctrl-C, 143 after SIGTERM."""
    from cordgt.runtime.signals import SignalInterrupt, TrainingStopped, raise_on_signal

    training_started.set(True)
    with raise_on_signal():
        try:
            yield
        except KeyboardInterrupt as stopped:
            command = shlex.join(["cordgt", *(a for a in sys.argv[1:] if a != "--resume"), "--resume"])
            if is_distributed_launch() and "--processes" not in command:
                command = "the same torchrun command and --resume"
            saved = stopped.resume_point if isinstance(stopped, TrainingStopped) else ""
            code = 128 + stopped.signum if isinstance(stopped, TrainingStopped | SignalInterrupt) else 130
            state = f"interrupted, and saved after {saved}" if saved else "interrupted"
            console.print_error(f"{state}. Continue with: {command}")
            raise typer.Exit(code) from None
