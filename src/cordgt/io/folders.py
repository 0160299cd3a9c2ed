"""A folder where a file of events was expected: which of its files look like events, and what to do with them."""

from __future__ import annotations

import shlex
from pathlib import Path

from cordgt.errors import DataError
from cordgt.io.column_options import as_text
from cordgt.io.column_roles import ColumnOptions, choose
from cordgt.io.file_chunks import files_in, opened

LOOKED_AT = 50  # files, and no more: a folder may hold thousands
NAMED = 3


def told_of(folder: Path, options: ColumnOptions) -> str:
    """What a person who named the folder can do instead, in a few sentences that begin with the folder.

    A file looks like events where the columns asked for, or else the usual ones, are found in its first lines.
    """
    begins = f"{folder} is a folder, and not a store."
    try:
        files = files_in(folder)
    except DataError as error:
        return f"{folder} is a folder; a file was expected. {error}"
    alike, why = _alike(files[:LOOKED_AT], options)
    rest = f" (of the first {LOOKED_AT} files)" if len(files) > LOOKED_AT else ""
    if not alike:
        named = "Name a file, and its columns with --src, --dst and --time."
        return f"{begins} None of its files looks like events{rest}: {why} {named}"
    names = ", ".join(str(p.relative_to(folder)) for p in alike[:NAMED])
    more = f" and {len(alike) - NAMED} more" if len(alike) > NAMED else ""
    if len(alike) == 1:
        return f"{begins} {names} in it looks like events{rest}: `{_command(options, 'describe', alike[0])}`."
    told = f"{begins} {names}{more} look like events{rest}. One of them: `{_command(options, 'describe', alike[0])}`."
    if len(alike) < len(files):
        return told
    together = _command(options, "convert", folder, f"{folder.resolve().name}.store")
    return f"{told} All of them as one, if they have the same columns: `{together}`."


def _alike(files: list[Path], options: ColumnOptions) -> tuple[list[Path], str]:
    """Those files that look like events, and what is wrong with the first one that does not."""
    found, why = [], ""
    for path in files:
        try:
            choose(opened(path, options), options)
            found.append(path)
        except DataError as error:
            why = why or str(error)
    return found, why


def _command(options: ColumnOptions, *words: object) -> str:
    """``cordgt data`` with these words, and the column options that were given."""
    given = [word for k, v in as_text(vars(options)).items() for word in (f"--{k}", v)]
    return shlex.join(["cordgt", "data", *map(str, words), *given])
