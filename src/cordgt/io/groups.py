"""Read the groups of destinations, such as the categories of a shop's items."""

from __future__ import annotations

from typing import Any

from cordgt.errors import DataError
from cordgt.io.column_options import columns_in_header
from cordgt.io.open_table import load_file
from cordgt.io.readers import read_ids


def read_groups(source: Any) -> dict[Any, Any]:
    """Read the group of each id: a file with a column of ids, and a column ``group``, or else the second column.

    The ids are those of destinations, recognized as in `read_ids`. DataError if an id has two groups.
    """
    file = load_file(source)
    is_named = bool(columns_in_header(file, {"src": "group"}))
    ids = read_ids(file, side="dst").to_pylist()
    try:
        groups = read_ids(file, column="group" if is_named else "1", side="dst").to_pylist()
    except DataError as error:
        raise DataError(f"{error} Groups need two columns: the ids, and a column 'group'.") from None
    found: dict[Any, Any] = {}
    for row, (node, group) in enumerate(zip(ids, groups, strict=True)):
        if found.setdefault(node, group) != group:
            raise DataError(
                f"Row {row + 1} of the groups: {str(node)!r} is in the groups {str(found[node])!r} and {str(group)!r}. "
                "Give each destination one group."
            )
    return found
