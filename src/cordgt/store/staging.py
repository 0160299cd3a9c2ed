"""Copy the events of a source into files, in source order, so that an interrupted copy can resume.

Ids become integer codes by first appearance in the source. Types are settled over all chunks: one text id makes all ids
text, one fraction makes all times fractions.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordgt.callbacks import Callback
from cordgt.errors import DataError, EmptyInputError
from cordgt.events.id_table import Vocabulary, text_array, text_buffers
from cordgt.files import open_regular_file, read_regular_file, write_text
from cordgt.store.arrays import ScratchArray, iter_slices, memory_map
from cordgt.store.description import MAX_JSON_BYTES
from cordgt.store.source import EventChunk, EventSource, ReadPosition

_COLUMN_TYPES = {"t": ("<i8", "<f8"), "src": ("<i4",), "dst": ("<i4",), "label": ("<i8", "<f8"), "edge_x": ("<f4",)}
_ID_TYPES = ("<i8", "<i4", "|u1")
FORMAT = 3  # of the state and its files; a state of another format is discarded


class StagedEvents:
    """Column files in ``folder``; ``state.json`` in its parent says how many of their rows are valid.

    ``extra_identity``: further inputs, as JSON, that must be unchanged for the copy to resume.
    """

    def __init__(self, folder: Path, source: EventSource, extra_identity: list[Any] | None = None) -> None:
        self.folder, self.source = folder, source
        # through JSON, so that it compares equal to what is read back
        self._identity = json.loads(json.dumps([FORMAT, source.identity(), extra_identity or []]))
        folder.mkdir(parents=True, exist_ok=True)
        self.position, self.n_rows, self.is_sorted, self.is_complete = ReadPosition(), 0, True, False
        self.columns: dict[str, ScratchArray] = {}
        self._id_columns: dict[str, ScratchArray] = {}
        self.vocabularies = [Vocabulary() for _ in range(1 if source.shared else 2)]  # one per id space
        self._n_saved = [0] * len(self.vocabularies)  # ids that are in files
        self._last_time: Any = None

    @property
    def _state_file(self) -> Path:
        return self.folder.parent / "state.json"

    def names(self) -> list[Any]:
        """The ids of each id space, by code: all integers or all text."""
        names = [vocabulary.names() for vocabulary in self.vocabularies]
        if any(vocabulary.is_text for vocabulary in self.vocabularies):
            names = [k.cast(pa.string()) for k in names]
        return names

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The columns, mapped: t, src and dst (codes within their id space); label and edge_x if there are any."""
        return {name: column.array() for name, column in self.columns.items()}

    # -------------------- copy

    def collect(self, callbacks: Callback) -> None:
        """Copy the rest of the source. EmptyInputError if it has no events."""
        if self.is_complete:
            return
        for after, chunk in self.source.chunks(self.position):
            self._add(chunk)
            if after is not None:
                self.position = after
                self.save()
            callbacks.on_step(len(chunk.t))
        if self.n_rows == 0:
            raise EmptyInputError(f"{self.source.name} holds no events.")
        for name, is_valid in (("label", self.source.has_labels()), ("edge_x", self.source.has_features())):
            if name in self.columns and not is_valid:
                self.columns.pop(name).close()
        self.is_complete = True
        self.save()

    def _add(self, chunk: EventChunk) -> None:
        t, n = chunk.t, len(chunk.t)
        if self.is_sorted:
            follows = self._last_time is None or bool(t[0] >= self._last_time)
            self.is_sorted = follows and not bool((t[1:] < t[:-1]).any())
        self._last_time = t[-1]
        self._append_numbers("t", t)
        for name, vocabulary, ids in (
            ("src", self.vocabularies[0], chunk.src),
            ("dst", self.vocabularies[-1], chunk.dst),
        ):
            self._open(self.columns, name, np.int32).append(vocabulary.encode(ids))
        if chunk.label is not None or "label" in self.columns:
            if "label" not in self.columns and self.n_rows:
                raise DataError(f"{self.source.name}: the first events have no labels, but later ones have.")
            self._append_numbers("label", np.full(n, np.nan) if chunk.label is None else chunk.label)
        width = 0 if chunk.edge_x is None else chunk.edge_x.shape[1]
        earlier_width = self.columns["edge_x"].width if "edge_x" in self.columns else 0
        if self.n_rows and width != earlier_width:
            raise DataError(
                f"{self.source.name}: events from row {self.n_rows:,} on have {width} features, earlier ones "
                f"{earlier_width}. Name the feature columns with --features."
            )
        if chunk.edge_x is not None:
            self._open(self.columns, "edge_x", np.float32, width).append(chunk.edge_x)
        self.n_rows += n

    def _open(self, columns: dict[str, ScratchArray], name: str, dtype: Any, width: int = 0) -> ScratchArray:
        """Return a column, created if it does not exist."""
        if name not in columns:
            columns[name] = self._new_column(name, dtype, width)
        return columns[name]

    def _new_column(self, name: str, dtype: Any, width: int = 0) -> ScratchArray:
        path = self._path(name, dtype)
        path.unlink(missing_ok=True)  # from an interrupted copy
        return ScratchArray(path, dtype, width)

    def _append_numbers(self, name: str, values: npt.NDArray[Any]) -> None:
        """Append integers or floats; the first float converts the integers before it."""
        column = self._open(self.columns, name, values.dtype)
        if column.dtype.kind == "i" and values.dtype.kind == "f":
            floats, integers = self._new_column(name, np.float64), column.array()
            for part in iter_slices(column.rows):
                floats.append(integers[part].astype(np.float64))
            column.close()
            self.columns[name] = column = floats
            if name == "t":
                self._last_time = float(self._last_time)
        column.append(values)

    # -------------------- resume

    def save(self) -> None:
        """Make everything so far durable: a later `restore` continues from here."""
        for number, vocabulary in enumerate(self.vocabularies):
            self._save_ids(number, vocabulary)
        for column in (*self.columns.values(), *self._id_columns.values()):
            column.sync()
        state = {
            "source": self._identity,
            "is_complete": self.is_complete,
            "position": vars(self.position),
            "rows": self.n_rows,
            "is_sorted": self.is_sorted,
            "last_time": None if self._last_time is None else np.asarray(self._last_time).item(),
            "columns": {name: _describe(column) for name, column in self.columns.items()},
            "ids": {name: _describe(column) for name, column in self._id_columns.items()},
            "text": [vocabulary.is_text for vocabulary in self.vocabularies],
            "source_state": self.source.get_state(),
        }
        write_text(self._state_file, json.dumps(state))

    def _save_ids(self, number: int, vocabulary: Vocabulary) -> None:
        """Append the new ids to their files; rewrite all of them once they have become text."""
        columns, name = self._id_columns, f"ids{number}"
        if not vocabulary.is_text:
            self._open(columns, name, np.int64).append(np.asarray(vocabulary.names(self._n_saved[number])))
        else:
            if f"{name}_lengths" not in columns:
                self._n_saved[number] = 0
                if name in columns:
                    columns.pop(name).close()
            offsets, data = text_buffers(vocabulary.names(self._n_saved[number]))
            self._open(columns, f"{name}_lengths", np.int32).append(np.diff(offsets))
            self._open(columns, f"{name}_bytes", np.uint8).append(data[offsets[0] : offsets[-1]])
        self._n_saved[number] = len(vocabulary)

    def is_same_source(self) -> bool:
        """Whether ``state.json`` exists and belongs to this source."""
        return self._read_state().get("source") == self._identity

    def can_resume(self) -> bool:
        """Whether ``state.json`` belongs to this source, is valid, and all rows it counts exist."""
        state = self._read_state()
        if state.get("source") != self._identity:
            return False
        try:
            self._check_state(state)
        except (ValueError, KeyError, TypeError, DataError):
            return False
        return True

    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise an error if a value of ``state.json`` or a file cannot be used: rows are counted by files it names."""
        n_rows, texts = _count(state["rows"]), state["text"]
        position, last = ReadPosition(**state["position"]), state["last_time"]
        flags = [state["is_sorted"], state["is_complete"], *texts]
        if not all(isinstance(flag, bool) for flag in flags) or len(texts) != len(self.vocabularies):
            raise ValueError("a flag is missing")
        if any(_count(k) < 0 for k in vars(position).values()) or (n_rows and not isinstance(last, int | float)):
            raise ValueError("a position is missing")
        if not _has_same_keys(state["source_state"], self.source.get_state()):
            raise ValueError("the state of the source is incomplete")
        if not set(_COLUMN_TYPES) - {"label", "edge_x"} <= set(state["columns"]) <= set(_COLUMN_TYPES):
            raise ValueError("a column is missing, or unknown")
        if set(state["ids"]) != {name for k, is_text in enumerate(texts) for name in _id_columns(k, is_text)}:
            raise ValueError("a column of ids is missing, or unknown")
        for name, values in (state["columns"] | state["ids"]).items():
            dtype, width, rows = values["dtype"], _count(values["width"]), _count(values["rows"])
            if dtype not in _COLUMN_TYPES.get(name, _ID_TYPES) or set(values) != {"dtype", "width", "rows"}:
                raise ValueError("a column has a wrong type")
            if (width > 0) != (name == "edge_x") or (name in _COLUMN_TYPES and rows != n_rows):
                raise ValueError("a column has a wrong size")
            with open_regular_file(self._path(name, dtype)) as file:
                if os.fstat(file.fileno()).st_size < rows * max(width, 1) * np.dtype(dtype).itemsize:
                    raise ValueError("a file is too short")
        for name, ids in (("src", 0), ("dst", len(texts) - 1)):
            n_ids = state["ids"][_id_columns(ids, texts[ids])[0]]["rows"]
            codes = memory_map(self._path(name, np.int32), np.int32, n_rows)
            if any(codes[part].min() < 0 or codes[part].max() >= n_ids for part in iter_slices(n_rows)):
                raise ValueError("a code is out of range")
        for k, is_text in enumerate(texts):
            if is_text:
                lengths, data = (state["ids"][name]["rows"] for name in _id_columns(k, is_text))
                found = memory_map(self._path(_id_columns(k, is_text)[0], np.int32), np.int32, lengths)
                if found.min(initial=0) < 0 or found.sum(dtype=np.int64) != data:
                    raise ValueError("the ids have wrong lengths")

    def _path(self, name: str, dtype: Any) -> Path:
        return self.folder / f"{name}.{np.dtype(dtype).str[1:]}"

    def _read_state(self) -> dict[str, Any]:
        try:
            state = json.loads(read_regular_file(self._state_file, max_bytes=MAX_JSON_BYTES).decode())
        except (DataError, ValueError, RecursionError):
            return {}
        return state if isinstance(state, dict) else {}

    def restore(self) -> None:
        """Continue from ``state.json``; see `can_resume`."""
        state = self._read_state()
        self.columns, self._id_columns = (
            {name: ScratchArray(self._path(name, k["dtype"]), **k) for name, k in state[group].items()}
            for group in ("columns", "ids")
        )
        for number, (vocabulary, is_text) in enumerate(zip(self.vocabularies, state["text"], strict=True)):
            self._restore_ids(number, vocabulary, is_text)
        self.position, self.n_rows = ReadPosition(**state["position"]), state["rows"]
        self.is_sorted, self.is_complete = state["is_sorted"], state["is_complete"]
        self._last_time = state["last_time"]
        self.source.set_state(state["source_state"])

    def _restore_ids(self, number: int, vocabulary: Vocabulary, is_text: bool) -> None:
        if is_text:
            lengths, data = (self._id_columns[f"ids{number}_{k}"].array() for k in ("lengths", "bytes"))
            vocabulary.encode(pa.array([], pa.string()))  # makes it a text vocabulary, even without ids
            for part in iter_slices(len(lengths)):
                start = int(lengths[: part.start].sum(dtype=np.int64))
                ends = np.concatenate([[0], np.cumsum(lengths[part], dtype=np.int64)])
                vocabulary.encode(text_array(ends, data[start : start + int(ends[-1])]))
        else:
            vocabulary.encode(pa.array(self._id_columns[f"ids{number}"].array()))
        self._n_saved[number] = len(vocabulary)

    def close(self) -> None:
        for column in (*self.columns.values(), *self._id_columns.values()):
            column.close()


def _id_columns(number: int, is_text: bool) -> tuple[str, ...]:
    """Return the names of the columns that hold the ids of a vocabulary."""
    return (f"ids{number}_lengths", f"ids{number}_bytes") if is_text else (f"ids{number}",)


def _has_same_keys(values: Any, expected: Any) -> bool:
    """Return whether nested dictionaries have the same keys."""
    if not isinstance(expected, dict):
        return not isinstance(values, dict)
    return (
        isinstance(values, dict)
        and values.keys() == expected.keys()
        and all(_has_same_keys(values[k], expected[k]) for k in expected)
    )


def _count(value: Any) -> int:
    """Return a value of ``state.json`` that must be a whole number, not negative. ValueError otherwise."""
    if type(value) is not int or value < 0:
        raise ValueError("a count is wrong")
    return value


def _describe(column: ScratchArray) -> dict[str, Any]:
    return {"dtype": column.dtype.str, "width": column.width, "rows": column.rows}
