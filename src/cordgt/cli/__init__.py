"""The command line: one function per command. Answers go to standard output, everything else to standard error."""

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

from cordgt.cli import bench, console, data, evaluation, fetch, inference, info, report, reproduce, store, training
from cordgt.cli.distributed import distributed_command
from cordgt.cli.resume import training_started
from cordgt.errors import CordgtError


class CommandGroup(TyperGroup):
    """The commands. Handles Ctrl-C itself, because typer's message and exit code depend on its version."""

    def invoke(self, ctx: Any) -> Any:
        training_started.set(False)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if ctx.invoked_subcommand in ("train", "search") and not training_started.get():
                console.print_error("interrupted before the training began: nothing was written. Start it again.")
            else:
                console.print_error("interrupted.")
            raise typer.Exit(130) from None


DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

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
    "models": info.list_models,
    "demo": info.demo,
    "bench": bench.bench,
    "reproduce": reproduce.reproduce,
    "version": info.show_version,
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
    cls=CommandGroup,
    help="Predict who interacts with whom next, from a log of timestamped interactions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Download, describe and convert data, or keep it in a store.", no_args_is_help=True)
app.add_typer(data_app, name="data")
for group, commands in ((app, COMMANDS), (data_app, DATA_COMMANDS)):
    for name, command in commands.items():
        group.command(name)(command)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", is_eager=True, callback=info.print_version, help="Print the version."),
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Run the command line. A user's mistake gives one message and exit code 2."""
    try:
        with distributed_command(next((word for word in sys.argv[1:] if not word.startswith("-")), "")):
            try:
                app(args=_expand_json_option(sys.argv[1:]), prog_name="cordgt")
            finally:
                sys.stdout.flush()  # here, where the error of a full disk is still caught
    except CordgtError as error:
        console.print_error(str(error))
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # do not try to write the rest at exit
        with suppress(OSError):
            console.print_error(f"the answer cannot be written: {error.strerror}.")
        sys.exit(2)


def _expand_json_option(args: list[str]) -> list[str]:
    """Replace ``--json`` without a file by ``--json=-``, which means standard output."""
    # `bench STAGE` takes no other file, so any word after --json is its file, even an existing folder.
    takes_any_word = args[:1] == ["bench"] and len(args) > 1 and not args[1].startswith("-")

    def is_json_file(word: str) -> bool:
        if word.startswith("-"):
            return word == "-"
        return takes_any_word or word.lower().endswith(".json") or not Path(word).exists()

    return [
        f"{word}=-" if word == "--json" and not is_json_file(following) else word
        for word, following in zip(args, [*args[1:], "--"], strict=False)
    ]
