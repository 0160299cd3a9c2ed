"""The run folder: the files of one training. A process may be killed at any moment without damaging them.

config.toml          all settings of the run, and which data it was trained on
events.parquet       the events, with nodes.parquet; the original file is not needed again
events.json          instead of these two, the path of the store, if the run was trained on a store
history.jsonl        metrics during training, one line each
model.safetensors    the best weights so far
init.safetensors     the initial weights, with `--init`
state.safetensors    checkpoint for `--resume`, and state.previous.safetensors, the one before; deleted at the end
refit.safetensors    weights trained on all events, with `--refit`
metrics.json         the final metrics; a run with this file is finished
report.html          the report; written last, or by `cordgt report`
tensorboard/         training curves, if TensorBoard is installed

Every tensor file has a checksum, which is verified on reading. Only one process at a time trains in a folder: it holds
a lock on the folder, which the operating system releases when the process ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cordgt.errors import DataError, RunError, SettingError, did_you_mean
from cordgt.events.fingerprints import fingerprint_arrays, fingerprint_ids
from cordgt.events.stream import EventStream
from cordgt.files import file_lock, sibling_names, write_bytes
from cordgt.io.column_options import options_to_text
from cordgt.models import MODELS
from cordgt.store.store import is_store, open_store
from cordgt.tasks.run_metrics import RunMetrics
from cordgt.training.settings import FORMAT, Settings, from_tables, toml_lines, upgrade_keys

STORE_FILE = "events.json"
# Files that `create` writes before config.toml.
FILES_BEFORE_CONFIG = ("events.parquet", "nodes.parquet", STORE_FILE, "init.safetensors", "history.jsonl")
CHECKPOINT_FILES = ("state.safetensors", "state.previous.safetensors")  # the latest checkpoint first
REQUIRED_METRICS = ("model", "data", "seed", "epochs", "validation", "test")  # keys of metrics.json


class InitWeights(NamedTuple):
    """The initial weights of a run with `--init`, and the run they come from."""

    weights: Mapping[str, Tensor]
    run: str
    overlap: str  # which evaluation data of the new run that run was trained on, in words; empty if none

    def to_json(self) -> dict[str, str]:
        """Return the entry ``init`` of metrics.json."""
        return {"run": self.run, "knows": self.overlap}


@dataclass(frozen=True)
class RunConfig:
    """The content of ``config.toml``."""

    settings: Settings
    data: Mapping[str, Any]  # table [data]: name, events, nodes, fingerprint, ids, columns
    run: Mapping[str, Any]  # table [run]: init, init_run, init_knows, refit

    @classmethod
    def from_stream(
        cls,
        settings: Settings,
        stream: EventStream,
        *,
        columns: Mapping[str, str] | None = None,
        init: InitWeights | None = None,
        refit: bool = False,
    ) -> RunConfig:
        """Return the configuration of a new run.

        ``columns`` are the column options that the events were read with. `--events` uses them again, and `--resume`
        uses ``init`` and ``refit``.
        """
        data = {
            "name": stream.name,
            "events": stream.n_events,
            "nodes": stream.n_nodes,
            "fingerprint": fingerprint(stream),
            "ids": ids_fingerprint(stream),
            "columns": dict(columns or {}),
        }
        run: dict[str, Any] = {"init": init is not None, "refit": refit}
        if init is not None:
            run |= {"init_run": init.run, "init_knows": init.overlap}
        return cls(settings, data, run)

    @property
    def data_fingerprint(self) -> str:
        """Hash of the events that the run was trained on; see `fingerprint`."""
        return str(self.data.get("fingerprint"))

    @property
    def columns(self) -> dict[str, str]:
        """The column options that the events were read with."""
        columns = self.data.get("columns")
        return options_to_text(columns) if isinstance(columns, dict) else {}

    def to_toml(self) -> str:
        """The text of ``config.toml``."""
        tables = ["", "[data]", *toml_lines(self.data), "", "[run]", *toml_lines(self.run), ""]
        return f"format = {FORMAT}\n{self.settings.to_toml()}" + "\n".join(tables)


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def has_run(self) -> bool:
        return (self.path / "config.toml").exists()

    @property
    def is_finished(self) -> bool:
        return (self.path / "metrics.json").exists()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the folder and lock it against other trainings. RunError if another process holds the lock.

        A folder that was created here and is still empty at the end is deleted.
        """
        is_new = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if self.path.is_file():
                raise RunError(f"{self.path} is a file, but --out must name a folder.") from None
            raise self._write_error(self.path, error) from None
        busy = f"Another process is training in {self.path}. Let it finish, or choose another folder with --out."
        with file_lock(self.path, RunError(busy)):
            try:
                yield
            finally:
                if is_new and self.path.is_dir() and not any(self.path.iterdir()):
                    self.path.rmdir()

    def delete_partial_files(self) -> None:
        """Delete the partial files of a process that was killed while writing. Call it under the lock only."""
        for part in self.path.glob(".*.part"):
            with suppress(OSError):  # in a read-only folder the next write raises the error
                part.unlink()

    def create(
        self,
        settings: Settings,
        stream: EventStream,
        *,
        columns: Mapping[str, str] | None = None,
        init: InitWeights | None = None,
        refit: bool = False,
    ) -> RunConfig:
        """Create the folder with its events and configuration; arguments as in `RunConfig.from_stream`.

        ``config.toml`` is written last: a folder without it holds no run.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._save_stream(stream)
        except OSError as error:
            raise self._write_error(self.path, error) from None
        if init is not None:
            self.write_tensors("init.safetensors", init.weights, {})
        self.write_text("history.jsonl", "")
        config = RunConfig.from_stream(settings, stream, columns=columns, init=init, refit=refit)
        self.write_text("config.toml", config.to_toml())
        return config

    def _save_stream(self, stream: EventStream) -> None:
        """Save the events, or the path of their store."""
        if stream.backing is None:
            stream.save(self.path)
            return
        store = stream.backing.path.resolve()
        relative = os.path.relpath(store, self.path.resolve())
        self.write_text(STORE_FILE, json.dumps({"store": str(store), "relative": relative}) + "\n")

    def streams(self, fingerprint: str) -> tuple[EventStream, EventStream]:
        """Return the events of the training, and the current events. These are more if a store has grown since.

        ``fingerprint`` is that of the training. RunError if the events are missing, damaged or changed.
        """
        if not self.has(STORE_FILE):
            stream = EventStream.load(self.path)
            return stream, stream
        try:
            paths = json.loads((self.path / STORE_FILE).read_text(encoding="utf-8"))
            candidates = [Path(paths["store"]), self.path / paths["relative"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self.path / STORE_FILE} is damaged: {_sentence(error)}") from None
        path = next((p for p in candidates if is_store(p)), None)
        if path is None:
            raise RunError(f"{self.path} needs the store {candidates[0]}, which does not exist. Put it back.")
        try:
            store = open_store(path)
            return store.stream(fingerprint), store.stream()
        except DataError as error:
            raise RunError(f"{self.path} cannot be used: {error}") from None

    def read_config(self) -> RunConfig:
        """Parse ``config.toml``. RunError if it is missing or damaged, or the folder is not that of a link model."""
        path = self.path / "config.toml"
        if not self.path.exists():
            raise RunError(f"{self.path} does not exist.{did_you_mean(self.path.name, sibling_names(self.path))}")
        if not path.exists():
            raise RunError(f"{self.path} is not a run folder: it has no config.toml.{self._subfolder_hint()}")
        tables = self._parse_config()
        model, run = tables.get("model"), tables.get("run")
        if isinstance(model, str) and model not in MODELS:
            raise RunError(
                f"{path} names an unknown model '{model}'.{did_you_mean(model, MODELS)}"
                " If it is your own model, add it in the same Python process first."
            )
        try:
            settings = from_tables(tables, str(path))
            return RunConfig(settings, dict(tables["data"]), run if isinstance(run, dict) else {})
        except KeyError:
            raise RunError(f"{path} is damaged: it has no table [data].") from None
        except (TypeError, ValueError, SettingError) as error:
            raise RunError(f"{path} is damaged: {_sentence(error)}") from None

    def _parse_config(self) -> dict[str, Any]:
        """Return the tables of ``config.toml``."""
        path = self.path / "config.toml"
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # bad UTF-8 and bad TOML are both ValueErrors
            raise RunError(f"{path} is damaged: {_sentence(error)}") from None
        if tables.get("task") == "node":
            raise RunError(
                f"{self.path} is a node classifier. To score pairs, use its encoder: {tables.get('encoder')}."
            )
        if tables.get("format") not in range(1, FORMAT + 1):
            raise RunError(
                f"{path} has format {tables.get('format')}, but this version reads formats 1 to {FORMAT}. Use the "
                "version of cordgt that wrote it."
            )
        return tables

    def _subfolder_hint(self) -> str:
        """Return a hint that names one of the runs in a folder of runs."""
        runs = sorted(p.parent.name for p in self.path.glob("*/config.toml"))
        return f" It contains runs, such as {self.path / runs[0]}." if runs else ""

    def read_metrics(self) -> RunMetrics:
        """Return ``metrics.json`` of a finished run. RunError if the run is not finished, or the file is damaged."""
        path = self.path / "metrics.json"
        if not path.exists():
            raise RunError(f"{self.path} is not finished: it has no metrics.json yet. Continue it with --resume.")
        try:
            metrics = RunMetrics.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path} is damaged: {_sentence(error)}") from None
        missing = [key for key in REQUIRED_METRICS if key not in metrics]
        if missing:
            raise RunError(f"{path} is damaged: it has no key '{missing[0]}'.")
        if isinstance(metrics.get("protocol"), dict):
            metrics["protocol"] = upgrade_keys(metrics["protocol"])  # v0.1 wrote other names
        return metrics

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        self.write_text("metrics.json", RunMetrics(metrics).to_json())

    def write_text(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        self._write(name, text.encode())

    def _write(self, name: str, content: bytes) -> None:
        """Write a file atomically. RunError if that fails."""
        try:
            write_bytes(self.path / name, content)
        except DataError as error:
            raise RunError(f"{error}{self._resume_hint()}") from None

    def _write_error(self, path: Path, error: OSError) -> RunError:
        return RunError(f"{path} cannot be written: {error.strerror or error}.{self._resume_hint()}")

    def _resume_hint(self) -> str:
        """Return how to continue after a failed write, if there is a run to continue."""
        hint = " What was saved before is intact. Fix this, then continue with --resume."
        return hint if self.has_run else ""

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Write tensors with metadata and a checksum, atomically."""
        on_cpu = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        about = json.dumps(metadata)
        header = {"about": about, "sha256": _checksum(on_cpu, about)}
        self._write(name, save(on_cpu, header))  # `save_file` would leave a temporary file if killed

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and metadata of `write_tensors`. RunError if the file is missing, damaged or altered."""
        path = self.path / name
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            about = header.get("about", "{}")
            if header.get("sha256") not in (None, _checksum(tensors, about)):  # None: an old file without a checksum
                raise self.damaged_error(name, "its checksum is wrong.")
            return tensors, dict(json.loads(about))
        except FileNotFoundError:
            raise RunError(f"{path} is missing: the run folder is incomplete.") from None
        except (OSError, SafetensorError, TypeError, ValueError, RecursionError) as error:
            raise self.damaged_error(name, _sentence(error)) from None

    def damaged_error(self, name: str, why: str) -> RunError:
        """Return the error for a damaged tensor file, with what to do about it."""
        message = f"{self.path / name} is damaged: {why}"
        if name not in CHECKPOINT_FILES:
            return RunError(message)
        previous = CHECKPOINT_FILES[1]
        has_previous = name != previous and self.has(previous)
        then = f"continues from {previous}, the checkpoint before it" if has_previous else "trains from the start"
        return RunError(f"{message} Delete it: --resume then {then}, with the same result.")

    def write_checkpoint(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Write a checkpoint and keep the previous one. If killed here, the previous one is the latest."""
        latest, previous = CHECKPOINT_FILES
        if self.has(latest):
            try:
                os.replace(self.path / latest, self.path / previous)
            except OSError as error:
                raise self._write_error(self.path / previous, error) from None
        self.write_tensors(latest, tensors, metadata)

    def latest_checkpoint(self) -> str | None:
        """Return the file name of the checkpoint to continue from; None if there is none."""
        return next((name for name in CHECKPOINT_FILES if self.has(name)), None)

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def append_history(self, record: Mapping[str, Any]) -> None:
        """Append a line to ``history.jsonl``."""
        path = self.path / "history.jsonl"
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise self._write_error(path, error) from None

    def read_history(self) -> list[dict[str, Any]]:
        """Return the valid lines of ``history.jsonl``; none if there is no such file."""
        path = self.path / "history.jsonl"
        records = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the process was killed while writing it
            if isinstance(record, dict):
                records.append(record)
        return records

    def truncate_history(self, phase: str, epochs: int, events: int = 0) -> None:
        """Delete the lines of ``phase`` after ``epochs`` epochs and ``events`` events: that part is trained again."""

        def is_before(record: dict[str, Any]) -> bool:
            epoch = record.get("epoch", 0)
            in_next_epoch = epoch == epochs + 1 and record.get("events", events + 1) <= events
            return record.get("phase") != phase or epoch <= epochs or in_next_epoch

        lines = [json.dumps(record) + "\n" for record in self.read_history() if is_before(record)]
        self.write_text("history.jsonl", "".join(lines))


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    pass


class ReadOnlyRunFolder(RunFolder):
    """The run folder in a process that must not write: another process of the same training does.

    Writes do nothing, and `has` finds no file.
    """

    write_text = write_tensors = write_checkpoint = append_history = truncate_history = _do_nothing
    remove = delete_partial_files = _do_nothing

    @contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def has(self, name: str) -> bool:
        return False


def settings_by_key(settings: Settings) -> dict[str, Any]:
    """Return all settings of the protocol, the training and the model by key, without the model's name and the seed."""
    return {**vars(settings.protocol), **vars(settings.training), **vars(settings.model_settings)}


def fingerprint(stream: EventStream) -> str:
    """Return a hash of a stream's events and features: the same for the same data."""
    if stream.backing is not None:
        return stream.backing.fingerprint
    arrays = (stream.src, stream.dst, stream.t, stream.edge_x, stream.node_x)
    return fingerprint_arrays(x for x in arrays if x is not None)


def ids_fingerprint(stream: EventStream) -> str:
    """Return a hash of the ids and of the kind of times. `fingerprint` does not cover these."""
    if stream.backing is not None:
        return stream.backing.ids_fingerprint
    return fingerprint_ids(stream.ids.names, stream.time.kind)


def is_same_data(stream: EventStream, data: Mapping[str, Any]) -> bool:
    """Return whether a stream has the fingerprints of a ``[data]`` table."""
    same = fingerprint(stream) == data.get("fingerprint")
    return same and data.get("ids") in (None, ids_fingerprint(stream))


def _checksum(tensors: Mapping[str, Tensor], about: str) -> str:
    """Return a hash of the tensors' names, types, shapes and bytes, and of their metadata."""
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sentence(error: Exception) -> str:
    """Return a library's error message on one line, with one full stop."""
    return " ".join(str(error).split()).rstrip(".") + "."
