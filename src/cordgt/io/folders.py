"""Suggest which files of a folder to read, if a folder is given where one file is expected."""

from __future__ import annotations

import shlex
from pathlib import Path

from cordgt.errors import DataError
from cordgt.io.column_options import options_to_text
from cordgt.io.column_roles import ColumnOptions, assign_roles
from cordgt.io.file_chunks import find_tables, open_head

MAX_FILES_CHECKED = 50  # a folder may have thousands
MAX_FILES_LISTED = 3


def suggest_files(folder: Path, options: ColumnOptions) -> str:
    """Return an error message with the files of ``folder`` that look like events, and the command that reads them.

    A file looks like events if its first lines have the given columns, or else the usual ones.
    """
    try:
        files = find_tables(folder)
    except DataError as error:
        return f"{folder} is a folder; a file was expected. {error}"
    problem = f"{folder} is a folder, and not a store."
    matches, reason = _match_files(files[:MAX_FILES_CHECKED], options)
    limit = f" (of the first {MAX_FILES_CHECKED} files)" if len(files) > MAX_FILES_CHECKED else ""
    if not matches:
        advice = "Name a file, and its columns with --src, --dst and --time."
        return f"{problem} None of its files looks like events{limit}: {reason} {advice}"
    names = ", ".join(str(path.relative_to(folder)) for path in matches[:MAX_FILES_LISTED])
    describe = _command(options, "describe", matches[0])
    if len(matches) == 1:
        return f"{problem} {names} in it looks like events{limit}: `{describe}`."
    more = f" and {len(matches) - MAX_FILES_LISTED} more" if len(matches) > MAX_FILES_LISTED else ""
    message = f"{problem} {names}{more} look like events{limit}. To read one of them: `{describe}`."
    if len(matches) < len(files):
        return message
    convert = _command(options, "convert", folder, f"{folder.resolve().name}.store")
    return f"{message} To read all of them, if they have the same columns: `{convert}`."


def _match_files(files: list[Path], options: ColumnOptions) -> tuple[list[Path], str]:
    """Return the files that look like events, and the error of the first one that does not."""
    matches, reason = [], ""
    for path in files:
        try:
            assign_roles(open_head(path, options), options)
            matches.append(path)
        except DataError as error:
            reason = reason or str(error)
    return matches, reason


def _command(options: ColumnOptions, *arguments: object) -> str:
    """Return a ``cordgt data`` command with these arguments and the given column options."""
    given = [word for k, v in options_to_text(vars(options)).items() for word in (f"--{k.replace('_', '-')}", v)]
    return shlex.join(["cordgt", "data", *map(str, arguments), *given])
