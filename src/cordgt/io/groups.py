"""Read the groups of nodes, such as the categories of a shop's items."""

from __future__ import annotations

from typing import Any

from cordgt.errors import DataError
from cordgt.events.ids import Side
from cordgt.io.column_names import DST_NAMES, NODE_NAMES, SRC_NAMES, match_columns
from cordgt.io.column_options import read_header
from cordgt.io.open_table import load_file
from cordgt.io.readers import read_ids

TWO_COLUMNS = "Groups need two columns: the ids, and a column 'group'."


def read_groups(source: Any, side: Side = "dst") -> dict[Any, Any]:
    """Read the group of each id: a file with a column of ids, and a column ``group``, or else the second column.

    The column of ids is recognized as in `read_ids`. DataError if an id has two groups.
    """
    file = load_file(source)
    header = read_header(file, {"src": "group"})
    group_column = next((name for name in header if name.lower() == "group"), None)
    if len(header) == 1:
        raise DataError(f"The groups have the column '{header[0]}' only. {TWO_COLUMNS}")
    id_column = None
    if group_column is not None and not match_columns(header, NODE_NAMES | (SRC_NAMES if side == "src" else DST_NAMES)):
        id_column = next((name for name in header if name != group_column), None)  # `read_ids` would see no header
    ids = read_ids(file, column=id_column, side=side).to_pylist()
    try:
        groups = read_ids(file, column=group_column or "1", side=side).to_pylist()
    except DataError as error:
        raise DataError(f"{error} {TWO_COLUMNS}") from None
    found: dict[Any, Any] = {}
    for row, (node, group) in enumerate(zip(ids, groups, strict=True)):
        if found.setdefault(node, group) != group:
            raise DataError(
                f"Row {row + 1} of the groups: {str(node)!r} is in the groups {str(found[node])!r} and {str(group)!r}. "
                "Give each id one group."
            )
    return found
