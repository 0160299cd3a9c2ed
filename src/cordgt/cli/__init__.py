"""The command line: one small function a command. Answers go to standard output, everything else to standard error."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cordgt.cli import bench, console, data, evaluation, fetch, inference, report, reproduce, store, training
from cordgt.cli.distributed import among_others
from cordgt.cli.loading import BEGUN
from cordgt.errors import CordgtError


class Commands(TyperGroup):
    """The commands. Ctrl-C is answered here, before typer does, which says nothing or another exit code by version."""

    def invoke(self, ctx: Any) -> Any:
        BEGUN.set(False)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            early = ctx.invoked_subcommand in TRAIN and not BEGUN.get()
            console.fail(f"interrupted{' before the training began: nothing was written. Start it again' * early}.")
            raise typer.Exit(130) from None


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a disk says that takes no more
TRAIN = ("train", "search")  # commands that keep what they have done so far, once they have begun

# In the order of the help.
COMMANDS: dict[str, Callable[..., None]] = {
    "train": training.train,
    "search": training.search,
    "evaluate": evaluation.evaluate,
    "compare": evaluation.compare,
    "report": report.report,
    "audit": evaluation.audit,
    "predict": inference.predict,
    "recommend": inference.recommend,
    "embed": inference.embed,
    "models": bench.list_models,
    "demo": bench.demo,
    "bench": bench.bench,
    "reproduce": reproduce.reproduce,
    "version": bench.show_version,
}
DATA_COMMANDS: dict[str, Callable[..., None]] = {
    "fetch": fetch.data_fetch,
    "list": data.data_list,
    "describe": data.data_describe,
    "convert": store.data_convert,
    "append": store.data_append,
    "check": store.data_check,
}

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
for to, commands in ((app, COMMANDS), (data_app, DATA_COMMANDS)):
    for name, command in commands.items():
        to.command(name)(command)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", metavar="", is_eager=True, callback=bench.say_version, help="The version.")
    ] = False,
) -> None:
    """What can be asked of the program itself."""


def main() -> None:
    """Run the command line. A person's mistake gives one message and exit code 2."""
    try:
        with among_others(next((word for word in sys.argv[1:] if not word.startswith("-")), "")):
            try:
                app(args=_lone_json(sys.argv[1:]), prog_name="cordgt")
            finally:
                sys.stdout.flush()  # here, where a full disk can still be told
    except CordgtError as error:
        console.fail(str(error))
        sys.exit(2)
    except OSError as error:
        if error.errno not in FULL:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left over is not tried again
        with suppress(OSError):
            console.fail(f"the answer cannot be written to where it goes: {error.strerror}.")
        sys.exit(2)


def _lone_json(args: list[str]) -> list[str]:
    """``--json`` without a file means standard output."""
    pairs = zip(args, [*args[1:], "--"], strict=False)  # each word, and the one after it
    # `bench STAGE` takes no other file: what follows is meant for the answer, be it a folder by mistake.
    alone = args[:1] == ["bench"] and len(args) > 1 and not args[1].startswith("-")

    def names(after: str) -> bool:
        return _names_json(after) or (alone and not after.startswith("-"))

    return [f"{word}=-" if word == "--json" and not names(after) else word for word, after in pairs]


def _names_json(word: str) -> bool:
    """Whether the word after ``--json`` is its file: not an option, nor a file or folder that holds something else."""
    if word.startswith("-"):
        return word == "-"
    return word.lower().endswith(".json") or not Path(word).exists()
