"""Node ids as a caller passes them: one, or several in a list, an array or an Arrow column."""

from __future__ import annotations

from typing import Any

import numpy as np

from cordgt.errors import SettingError

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
