"""Events collected from a source in files, in the order of the source, so that collecting can go on after a kill.

Ids become numbers on the way, by first appearance in the source. What only the whole can tell is settled here: one text
id makes all of them text, one fraction makes all times fractions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordgt.errors import DataError
from cordgt.events.vocabulary import Vocabulary, text_array, text_buffers
from cordgt.files import write_text
from cordgt.reading.chunks import Mark, Rows, Source
from cordgt.store.growing import Column, pieces

FORMAT = 2  # of the state and its files: those of another one are begun anew


class Stage:
    """The files of a folder, and ``state.json`` beside it that says how much of them counts."""

    def __init__(self, folder: Path, source: Source, also: list[Any] | None = None) -> None:
        self.folder, self.source = folder, source
        self._identity = json.loads(json.dumps([FORMAT, source.identity(), also or []]))  # as it is read again
        folder.mkdir(parents=True, exist_ok=True)
        self.mark, self.rows, self.sorted, self.phase = Mark(), 0, True, "read"
        self.columns: dict[str, Column] = {}
        self._id_columns: dict[str, Column] = {}
        self.spaces = [Vocabulary()] if source.shared else [Vocabulary(), Vocabulary()]
        self._saved = [0] * len(self.spaces)  # ids that are in files
        self._last: Any = None  # the time of the last event

    @property
    def _state(self) -> Path:
        return self.folder.parent / "state.json"

    def names(self) -> list[Any]:
        """The ids of each space, all of them integers or all text."""
        found = [space.names() for space in self.spaces]
        if any(space.text for space in self.spaces):
            found = [names.cast(pa.string()) for names in found]
        return found

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The columns: t, src and dst as numbers within their space, label and edge_x where there are some."""
        return {name: column.array() for name, column in self.columns.items()}

    # -------------------- collecting

    def collect(self, told: Callable[[int], None]) -> None:
        """Everything the source has from where it was left. DataError where it has no events."""
        if self.phase == "read":
            for after, rows in self.source.chunks(self.mark):
                self._add(rows)
                if after is not None:
                    self.mark = after
                    self.save()
                told(len(rows.t))
            if self.rows == 0:
                raise DataError(f"{self.source.name} holds no events.")
            self._drop_what_is_none()
            self.phase = "order"
            self.save()

    def _add(self, rows: Rows) -> None:
        n = len(rows.t)
        src, dst = (self.spaces[k].code(ids) for k, ids in ((0, rows.src), (-1, rows.dst)))
        if self.sorted:
            before = rows.t[:1] if self._last is None else np.concatenate([[self._last], rows.t[:1]])
            self.sorted = not bool((before[1:] < before[:-1]).any() or (rows.t[1:] < rows.t[:-1]).any())
        self._last = rows.t[-1]
        self._numbers("t", rows.t)
        for name, codes in (("src", src), ("dst", dst)):
            self._column(name, np.int32).append(codes)
        if rows.label is not None or "label" in self.columns:
            if "label" not in self.columns and self.rows:
                raise DataError(f"{self.source.name}: some of the events have labels, the first ones have none.")
            self._numbers("label", np.full(n, np.nan) if rows.label is None else rows.label)
        width = 0 if rows.edge_x is None else rows.edge_x.shape[1]
        known = self.columns["edge_x"].width if "edge_x" in self.columns else 0
        if self.rows and width != known:
            raise DataError(
                f"{self.source.name}: events from {self.rows:,} on have {width} features each, those before {known}."
                " Name the feature columns (--features) so that all agree."
            )
        if rows.edge_x is not None:
            self._column("edge_x", np.float32, width).append(rows.edge_x)
        self.rows += n

    def _column(self, name: str, dtype: Any, width: int = 0) -> Column:
        if name not in self.columns:
            self.columns[name] = self._new(name, dtype, width)
        return self.columns[name]

    def _new(self, name: str, dtype: Any, width: int = 0) -> Column:
        path = self._path(name, dtype)
        path.unlink(missing_ok=True)  # of before a kill
        return Column(path, dtype, width)

    def _numbers(self, name: str, values: npt.NDArray[Any]) -> None:
        """Append whole numbers or fractions; the first fraction makes fractions of those before."""
        column = self._column(name, values.dtype)
        if column.dtype.kind == "i" and values.dtype.kind == "f":
            fractions, whole = self._new(name, np.float64), column.array()
            for part in pieces(column.rows):
                fractions.append(whole[part].astype(np.float64))
            column.close()
            self.columns[name] = column = fractions
            if name == "t":
                self._last = float(self._last)
        column.append(values)

    def _drop_what_is_none(self) -> None:
        """Labels that turned out to be no numbers, features that are all zero."""
        for name, stays in (("label", self.source.has_labels()), ("edge_x", self.source.has_features())):
            if name in self.columns and not stays:
                self.columns.pop(name).close()

    # -------------------- going on after a kill

    def save(self) -> None:
        """What was collected so far counts from now on, whatever happens."""
        for number, space in enumerate(self.spaces):
            self._save_ids(number, space)
        for column in (*self.columns.values(), *self._id_columns.values()):
            column.sync()
        told = {
            "source": self._identity,
            "phase": self.phase,
            "mark": vars(self.mark),
            "rows": self.rows,
            "sorted": self.sorted,
            "last": None if self._last is None else np.asarray(self._last).item(),
            "columns": {name: _described(column) for name, column in self.columns.items()},
            "ids": {name: _described(column) for name, column in self._id_columns.items()},
            "text": [space.text for space in self.spaces],
            "seen": self.source.seen(),
        }
        write_text(self._state, json.dumps(told))

    def _save_ids(self, number: int, space: Vocabulary) -> None:
        """Write the ids that are not in files yet; all of them where they have become text."""
        kept = self._id_columns
        if not space.text:
            self._id_column(f"ids{number}", np.int64).append(np.asarray(space.names(self._saved[number])))
        else:
            if f"ids{number}_lengths" not in kept:
                self._saved[number] = 0
                if f"ids{number}" in kept:
                    kept.pop(f"ids{number}").close()
            offsets, data = text_buffers(space.names(self._saved[number]))
            lengths, letters = (
                self._id_column(f"ids{number}_{k}", kind) for k, kind in (("lengths", np.int32), ("bytes", np.uint8))
            )
            lengths.append(np.diff(offsets))
            letters.append(data[offsets[0] : offsets[-1]])
        self._saved[number] = len(space)

    def _id_column(self, name: str, dtype: Any) -> Column:
        if name not in self._id_columns:
            self._id_columns[name] = self._new(name, dtype)
        return self._id_columns[name]

    def is_same(self) -> bool:
        """Whether ``state.json`` is there and tells of this source."""
        told = self._read()
        return told.get("source") == self._identity

    def can_go_on(self) -> bool:
        """Whether, besides, everything that was collected is still there."""
        told = self._read()
        if told.get("source") != self._identity:
            return False
        columns = {**told["columns"], **told["ids"]}
        return all(self._is_there(name, k) for name, k in columns.items())

    def _is_there(self, name: str, told: dict[str, Any]) -> bool:
        path, row = self._path(name, told["dtype"]), max(told["width"], 1) * np.dtype(told["dtype"]).itemsize
        return path.exists() and path.stat().st_size >= told["rows"] * row

    def _path(self, name: str, dtype: Any) -> Path:
        return self.folder / f"{name}.{np.dtype(dtype).str[1:]}"

    def _read(self) -> dict[str, Any]:
        try:
            told = json.loads(self._state.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    def restore(self) -> None:
        """Go on from ``state.json``."""
        told = self._read()
        self.columns = {name: self._reopened(name, k) for name, k in told["columns"].items()}
        self._id_columns.update({name: self._reopened(name, k) for name, k in told["ids"].items()})
        for number, (space, text) in enumerate(zip(self.spaces, told["text"], strict=True)):
            self._saved[number] = self._restore_ids(number, space, text)
        self.mark, self.rows, self.sorted = Mark(**told["mark"]), told["rows"], told["sorted"]
        self._last, self.phase = told["last"], told["phase"]
        self.source.recall(told["seen"])

    def _reopened(self, name: str, told: dict[str, Any]) -> Column:
        return Column(self._path(name, told["dtype"]), told["dtype"], told["width"], told["rows"])

    def _restore_ids(self, number: int, space: Vocabulary, text: bool) -> int:
        if text:
            lengths, letters = (self._id_columns[f"ids{number}_{k}"].array() for k in ("lengths", "bytes"))
            space.code(pa.array([], pa.string()))  # of text, also where there are none yet
            for part in pieces(len(lengths)):
                start = int(lengths[: part.start].sum(dtype=np.int64))
                ends = np.concatenate([[0], np.cumsum(lengths[part], dtype=np.int64)])
                space.code(text_array(ends, letters[start : start + int(ends[-1])]))
        else:
            space.code(pa.array(self._id_columns[f"ids{number}"].array()))
        return len(space)

    def close(self) -> None:
        for column in (*self.columns.values(), *self._id_columns.values()):
            column.close()


def _described(column: Column) -> dict[str, Any]:
    return {"dtype": column.dtype.str, "width": column.width, "rows": column.rows}
