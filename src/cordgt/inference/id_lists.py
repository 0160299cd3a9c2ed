"""Node ids as a caller passes them: one, or several in a list, an array or an Arrow column."""

from __future__ import annotations

from typing import Any

import numpy as np

from cordgt.errors import DataError, SettingError
from cordgt.events.ids import NodeIds, Side

IdList = list[Any] | tuple[Any, ...] | np.ndarray  # several node ids; an Arrow array works too


def is_list(values: Any) -> bool:
    """Return whether ids or times are several, not a single one."""
    return hasattr(values, "__len__") and not isinstance(values, str)


def as_list(values: Any) -> list[Any]:
    """Return ids or times as a list; a single one becomes a list of one."""
    if not is_list(values):
        return [values]
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def check_ids(values: list[Any]) -> list[Any]:
    """Return the values. SettingError if one cannot be a node id: it would count as a node without history."""
    for value in values:
        is_whole = isinstance(value, float | np.floating) and value == np.floor(value)
        if isinstance(value, bool | np.bool_) or not (is_whole or isinstance(value, str | int | np.integer)):
            raise SettingError(f"{value!r} is not a node id: an id is text or a whole number.")
    return values


def known_nodes(ids: NodeIds, candidates: Any, side: Side) -> np.ndarray:
    """Return the node indices of candidates, without ids that the history does not have. DataError if none is left."""
    index: np.ndarray = ids.encode(candidates, side)
    known = index[index >= 0]
    if len(index) and not len(known):
        first = str(candidates[0])
        more = f" or the other {len(index) - 1:,}" if len(index) > 1 else ""
        kind = "node" if ids.shared else "source" if side == "src" else "destination"
        raise DataError(f"The history has no {kind} {first!r}{more}, so there is no candidate.")
    return known


def describe_unknown(ids: NodeIds, candidates: Any, side: Side) -> str:
    """Return a sentence about candidates that `known_nodes` leaves out; empty if there are none."""
    unknown = np.flatnonzero(ids.encode(candidates, side) < 0)
    if not len(unknown):
        return ""
    first = str(candidates[int(unknown[0])])
    return f"{len(unknown):,} of {len(candidates):,} candidates are left out, because they have no event: {first!r}" + (
        ", …" if len(unknown) > 1 else ""
    )
