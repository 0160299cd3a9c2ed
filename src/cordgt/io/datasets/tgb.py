"""Read the published files of TGB's link prediction datasets and of TGB-Seq.

TGB: ``time,source,destination,weight`` in a zip archive. Node ids are texts, and one id is one node on both sides.
TGB-Seq: ``src,dst,time,split`` with whole numbers; ``split`` is 0 for training, 1 for validation and 2 for test.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from cordgt.errors import DataError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.files import short_message

TGB_COLUMNS = ("time", "src", "dst", "weight")  # by position: the published headers differ
SEQ_COLUMNS = ("src", "dst", "time", "split")


class PublishedSplit(NamedTuple):
    """Shares of the published split, as settings of a run: events of training and of validation."""

    train_ratio: float
    val_ratio: float

    @property
    def note(self) -> str:
        return (
            f"The published split: --set train_ratio={self.train_ratio!r} --set val_ratio={self.val_ratio!r} "
            "--set mask_nodes=0"
        )


def tgb_edge_list(published_name: str) -> str:
    """Return the name of the event file of a TGB dataset: ``tgbl-coin-v2`` has ``tgbl-coin_edgelist_v2.csv``."""
    name, _, version = published_name.rpartition("-")
    return f"{name}_edgelist_{version}.csv"


def read_tgb(path: Path, name: str) -> EventStream:
    """Read the events of a TGB dataset. Their one feature is log2 of the weight, 0 for a weight of 0, as in TGB."""
    table = _read_csv(path)
    if table.num_columns < len(TGB_COLUMNS):
        raise DataError(f"{path} is not TGB's file as published: it has {table.num_columns} columns, not 4.")
    time, src, dst, weight = (table.column(k).combine_chunks() for k in range(4))
    try:
        values = pc.cast(weight, pa.float64()).to_numpy(zero_copy_only=False)
        times = pc.cast(time, pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is not TGB's file as published: {short_message(error)}") from None
    if not (values >= 0).all():
        row = int(np.argmin(values >= 0)) + 2
        raise DataError(f"{path} is not TGB's file as published: the weight in line {row} is not at least 0.")
    feature = np.log2(np.where(values == 0, 1.0, values)).astype(np.float32)[:, None]
    src, dst = (pc.cast(x, pa.string()) for x in (src, dst))
    return EventStream.from_columns(src, dst, times, feature, time=TimeAxis("number"), name=name)


def read_tgb_seq(path: Path, name: str) -> tuple[EventStream, PublishedSplit]:
    """Read the events of a TGB-Seq dataset, and its split as settings. DataError if the split is not one by time."""
    table = _read_csv(path)
    missing = [column for column in SEQ_COLUMNS if column not in table.column_names]
    if missing:
        raise DataError(f"{path} is not TGB-Seq's file as published: it has no column {', '.join(missing)}.")
    try:
        columns = [pc.cast(table[c], pa.int64()).to_numpy() for c in SEQ_COLUMNS]
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is not TGB-Seq's file as published: {short_message(error)}") from None
    src, dst, time, split = columns
    stream = EventStream.from_columns(src, dst, time, time=TimeAxis("number"), name=name)
    return stream, _find_split(path, time, split)


def _find_split(path: Path, time: np.ndarray, split: np.ndarray) -> PublishedSplit:
    """Return the shares that split the events at the same two times."""
    order = np.argsort(time, kind="stable")
    time, split = time[order], split[order]
    n = len(time)
    ends = [int((split == 0).sum()), int((split <= 1).sum())]
    is_sorted = (np.diff(split) >= 0).all() and set(np.unique(split)) == {0, 1, 2}
    if not is_sorted or any(time[end - 1] == time[end] for end in ends):
        raise DataError(f"{path} is not TGB-Seq's file as published: its column split does not follow the time.")
    # a quantile halfway between the last event of a split and the next one
    first, second = ((end - 0.5) / (n - 1) for end in ends)
    return PublishedSplit(first, second - first)


def _read_csv(path: Path) -> pa.Table:
    try:
        return csv.read_csv(path)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} cannot be read as CSV: {short_message(error)}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
