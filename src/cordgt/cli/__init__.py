"""The command line: one function per command. Answers go to standard output, everything else to standard error."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from typer.core import TyperGroup

from cordgt.cli import (
    bench,
    console,
    data,
    evaluation,
    fetch,
    forecast,
    inference,
    info,
    report,
    reproduce,
    serve,
    similar,
    store,
    training,
    upgrade,
)
from cordgt.cli.distributed import distributed_command, exit_at_once, has_process_group
from cordgt.cli.options import add_plugin_option
from cordgt.cli.resume import training_started
from cordgt.errors import CordgtError, RunWarning, is_out_of_memory
from cordgt.imports import block_import
from cordgt.runtime.limits import address_space_limit


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


MIN_ADDRESS_SPACE = 4 * 2**30  # bytes; `cordgt recommend` compiles its loops in up to 2.5 GB, with PyTorch for CPUs
OUT_OF_MEMORY = (
    b"Error: memory ran out. Close other programs or raise the memory limit (ulimit -v), or use less data or a smaller "
    b"model.\n"
)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# In the order of the help, by its panels.
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Train and evaluate": {
        "train": training.train,
        "search": training.search,
        "evaluate": evaluation.evaluate,
        "compare": evaluation.compare,
        "report": report.report,
        "audit": evaluation.audit,
    },
    "Query a trained model": {
        "predict": inference.predict,
        "recommend": inference.recommend,
        "next": forecast.next_event,
        "active": forecast.active,
        "similar": similar.similar,
        "embed": inference.embed,
        "serve": serve.serve,
        "retrain": serve.retrain,
    },
    "More": {
        "upgrade": upgrade.upgrade,
        "models": info.list_models,
        "demo": info.demo,
        "bench": bench.bench,
        "reproduce": reproduce.reproduce,
        "version": info.show_version,
    },
}
DATA_COMMANDS: dict[str, Callable[..., None]] = {
    "fetch": fetch.data_fetch,
    "list": data.data_list,
    "describe": data.data_describe,
    "convert": store.data_convert,
    "append": store.data_append,
    "check": store.data_check,
    "export": serve.data_export,
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
app.add_typer(data_app, name="data", rich_help_panel="More")
WITHOUT_PLUGINS = ("version", "fetch", "check")  # commands that use no extension


def _add_commands(group: typer.Typer, commands: dict[str, Callable[..., None]], panel: str | None = None) -> None:
    for name, command in commands.items():
        function = command if name in WITHOUT_PLUGINS else add_plugin_option(command)
        group.command(name, rich_help_panel=panel)(function)


for panel, commands in COMMANDS.items():
    _add_commands(app, commands, panel)
_add_commands(data_app, DATA_COMMANDS)


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
        _run_command()
    except BaseException as error:
        if has_process_group():  # this process fails, or stops early; success has left the group
            exit_at_once(error)
        raise


def _run_command() -> None:
    _replace_closed_streams()
    try:
        _check_memory_limit()
        _skip_pandas()
        with warnings_as_notes(), distributed_command(_command_name()):
            try:
                app(args=_expand_json_option(sys.argv[1:]), prog_name="cordgt")
            finally:
                sys.stdout.flush()  # here, where the error of a full disk is still caught
    except CordgtError as error:
        console.print_error(str(error))
        sys.exit(2)
    except BrokenPipeError:  # the reader has all it wants
        _discard_output()
        sys.exit(1)
    except OSError as error:
        if error.errno in (*DISK_FULL, errno.EBADF):
            _discard_output()
            reason = "standard output is closed" if error.errno == errno.EBADF else error.strerror
            with suppress(OSError):
                console.print_error(f"the answer cannot be written: {reason}.")
            sys.exit(2)
        _exit_if_out_of_memory(error)
        raise
    except (MemoryError, RuntimeError, ImportError, SystemError) as error:
        _exit_if_out_of_memory(error)
        raise


def _command_name() -> str:
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _replace_closed_streams() -> None:
    """Open something in place of a closed standard stream, so that no other file gets its number.

    Writing to a closed standard output is then an error, and nothing else is.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            handle = os.open(os.devnull, flags)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _discard_output() -> None:
    """Write the rest of standard output to nowhere, so that Python does not try it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_if_out_of_memory(error: BaseException) -> None:
    """Say that memory ran out and exit with code 2, if that is what the error means.

    Under a memory limit, a library that cannot be loaded means the same.
    """
    has_limit = address_space_limit() is not None
    if is_out_of_memory(error) or (has_limit and "load shared object" in str(error)):
        os.write(2, OUT_OF_MEMORY)  # printing in color would need more memory
        if has_limit:
            os._exit(2)  # the libraries' own work at exit would fail with tracebacks
        sys.exit(2)


def _check_memory_limit() -> None:
    """Raise CordgtError if the libraries cannot be loaded under the memory limit: they would crash or hang."""
    limit = address_space_limit()
    if limit is not None and limit < MIN_ADDRESS_SPACE:
        raise CordgtError(
            f"the memory limit (ulimit -v) is {limit // 1024:,} kB. Raise it to at least "
            f"{MIN_ADDRESS_SPACE // 1024:,}: PyTorch and the other libraries need that much before any data are read."
        )


def _skip_pandas() -> None:
    """Keep Arrow from importing pandas, which takes a quarter of a second: no command passes data frames to Arrow.

    Arrow looks for pandas once, at its first conversion. ``to_pandas`` still imports it. Extensions may need it.
    """
    if "pandas" in sys.modules or any(word.startswith("--plugin") for word in sys.argv):
        return
    with block_import("pandas"):
        pa.array(["text"]).to_numpy(zero_copy_only=False)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print each RunWarning once, as a note."""
    printed: set[str] = set()

    def show(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if not issubclass(category, RunWarning):
            show_other(message, category, *args, **kwargs)
        elif str(message) not in printed:
            printed.add(str(message))
            console.print_note(str(message))

    with warnings.catch_warnings():
        show_other = warnings.showwarning
        warnings.showwarning = show
        warnings.simplefilter("always", RunWarning)
        yield


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
