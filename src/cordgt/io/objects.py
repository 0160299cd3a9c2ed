"""Streams from datasets of other libraries: PyG's ``TemporalData`` and the datasets of ``py-tgb``.

Objects are recognized by what they offer, so that no library is imported for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cordgt.errors import DataError
from cordgt.events.frames import METADATA_KEY, StreamInfo
from cordgt.events.stream import EventStream
from cordgt.io.node_features import join_array

_TGB_KEYS = ("sources", "destinations", "timestamps")


def is_dataset_object(source: Any) -> bool:
    """Return whether `read_dataset_object` reads an object."""
    return _is_temporal_data(source) or _tgb_dataset(source) is not None


def read_dataset_object(source: Any, *, separate: bool | None, name: str | None) -> EventStream:
    """Return the stream of a ``TemporalData`` or a ``py-tgb`` dataset.

    ``separate``: whether sources and destinations have separate id spaces; None for what the object says, else shared.
    """
    dataset = _tgb_dataset(source)
    if dataset is not None:
        return _from_tgb(dataset, bool(separate), name)
    info = getattr(source, METADATA_KEY, None)
    if isinstance(info, StreamInfo):
        return _from_exported(source, info, separate, name)
    return _from_temporal_data(source, bool(separate), name or "")


# -------------------- PyG


def _is_temporal_data(source: Any) -> bool:
    return not hasattr(source, "columns") and all(hasattr(source, k) for k in ("src", "dst", "t"))


def _from_temporal_data(data: Any, separate: bool, name: str) -> EventStream:
    """Convert a ``TemporalData``: ``msg`` becomes features, ``y`` becomes labels if there is one per event."""
    note = f"{'two id spaces' if separate else 'one id space'} for sources and destinations (--ids shared|separate)"
    src, dst, t, label, message = _temporal_arrays(data)
    try:
        return EventStream.from_columns(src, dst, t, message, label, shared_ids=not separate, name=name, notes=(note,))
    except DataError as error:
        raise DataError(f"In the TemporalData: {error}") from None


def _from_exported(data: Any, info: StreamInfo, separate: bool | None, name: str | None) -> EventStream:
    """Convert a ``TemporalData`` that `EventStream.to_temporal_data` made, or a part of it."""
    if separate is not None and separate == info.ids.shared:
        found = "one id space" if info.ids.shared else "two id spaces"
        raise DataError(f"This TemporalData was made from a stream with {found}; leave out ids.")
    src, dst, t, label, message = _temporal_arrays(data)
    try:
        stream = EventStream.from_columns(
            info.ids.decode(src),
            info.ids.decode(dst),
            t,
            message,
            label,
            shared_ids=info.ids.shared,
            time=info.time,
            name=info.name if name is None else name,
        )
    except DataError as error:
        raise DataError(f"In the TemporalData: {error}") from None
    if info.node_x is not None:
        stream = stream.with_node_features(info.node_x[info.ids.match(stream.ids)])
    return replace(stream, columns=info.columns, column_names=info.column_names)


def _temporal_arrays(data: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return ``src``, ``dst``, ``t``, the labels (None if there is not one per event) and the features, as arrays."""
    src, dst, t, label, message = (_to_numpy(getattr(data, k, None)) for k in ("src", "dst", "t", "y", "msg"))
    if message is not None and message.ndim == 1:
        message = message[:, None]
    return src, dst, t, label.reshape(-1) if label is not None and label.size == len(src) else None, message


def _to_numpy(values: Any) -> Any:
    if values is None:
        return None
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


# -------------------- py-tgb


def _tgb_dataset(source: Any) -> Any:
    """Return the ``py-tgb`` dataset that an object is, or that its PyG variant holds as ``dataset``; else None."""
    module = type(source).__module__.partition(".")[0]
    if module == "tgb" and hasattr(source, "dataset"):
        source = source.dataset
    data = getattr(source, "full_data", None)
    return source if isinstance(data, Mapping) and all(key in data for key in _TGB_KEYS) else None


def _from_tgb(dataset: Any, separate: bool, name: str | None) -> EventStream:
    """Convert a dataset of ``py-tgb``. Its edge labels are all 1, so they are left out."""
    data, name = dataset.full_data, str(getattr(dataset, "name", "")) if name is None else name
    notes = [f"{len(data['sources']):,} events of py-tgb's dataset {name}, with its node numbers as ids"]
    if data.get("edge_type") is not None:
        notes.append("edge types are not read")
    src, dst, t = (np.asarray(data[key]) for key in _TGB_KEYS)
    try:
        stream = EventStream.from_columns(
            src, dst, t, _as_rows(data.get("edge_feat")), shared_ids=not separate, name=name, notes=notes
        )
    except DataError as error:
        raise DataError(f"In the dataset {name} of py-tgb: {error}") from None
    node_x = _as_rows(getattr(dataset, "node_feat", None))
    return stream if node_x is None else join_array(stream, node_x)


def _as_rows(values: Any) -> Any:
    """Return features as a matrix; None without."""
    rows = _to_numpy(values)
    return rows[:, None] if rows is not None and rows.ndim == 1 else rows
