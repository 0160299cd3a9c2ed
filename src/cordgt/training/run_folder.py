"""The run folder: the files of one training. A process may be killed at any moment without damaging them.

config.toml          all settings of the run, and which data it was trained on
events.parquet       the events, with nodes.parquet; the original file is not needed again
events.json          instead of these two, the path of the store, if the run was trained on a store
history.jsonl        metrics during training, one line each
model.safetensors    the best weights so far
init.safetensors     the initial weights, with `--init`
state.safetensors    checkpoint for `--resume`, and state.previous.safetensors, the one before; deleted at the end
refit.safetensors    weights trained on all events, with `--refit`
activity.json        how often nodes act, and the calibration of probabilities; not with activity=false
metrics.json         the final metrics; a run with this file is finished
report.html          the report; written last, or by `cordgt report`
first_scorer.safetensors  the first stage of `recommend`; if it is missing, it is made when it is needed
tensorboard/         training curves, if TensorBoard is installed

Every file is bound to its run. config.toml has the fingerprint of the data and the checksums of the event files. Every
tensor file has a checksum, which covers config.toml. metrics.json has the checksums of config.toml, the weights, the
history, the activity and itself. All are verified on reading. Runs of formats 1 and 2 have fewer checksums: opening one
warns.

A file may not be a link, pipe or device. Only one process at a time trains in a folder: it holds a lock on the folder,
which the operating system releases when the process ends.
"""

from __future__ import annotations

import json
import os
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from cordgt.errors import DataError, RunError, RunWarning, SettingError, did_you_mean
from cordgt.events.stream import EventStream
from cordgt.files import file_lock, read_regular_file, sibling_names, write_bytes
from cordgt.store.store import is_store, open_store
from cordgt.tasks.forecast import Forecaster
from cordgt.tasks.run_metrics import RunMetrics, rename_old_keys
from cordgt.training.run_checks import check_metrics, parse_json
from cordgt.training.run_checksums import FIRST_BOUND_FORMAT, file_checksum, metrics_checksum, take_checksums
from cordgt.training.run_config import (
    InitWeights,
    RunConfig,
    config_digest,
    describe_missing_extension,
    fingerprint,
    ids_fingerprint,
    is_same_data,
    settings_by_key,
)
from cordgt.training.run_history import append_record, read_records
from cordgt.training.settings import FORMAT, Settings, from_tables, upgrade_keys
from cordgt.training.tensor_files import encode_tensors, read_checksum, read_tensor_file

__all__ = [
    "CHECKPOINT_FILES",
    "FILES_BEFORE_CONFIG",
    "InitWeights",
    "ReadOnlyRunFolder",
    "RunConfig",
    "RunFolder",
    "fingerprint",
    "ids_fingerprint",
    "is_same_data",
    "settings_by_key",
]

STORE_FILE = "events.json"
# Files that `create` writes before config.toml.
FILES_BEFORE_CONFIG = ("events.parquet", "nodes.parquet", STORE_FILE, "init.safetensors", "history.jsonl")
CHECKPOINT_FILES = ("state.safetensors", "state.previous.safetensors")  # the latest checkpoint first
EVENT_CHECKSUMS = {"events.parquet": "events_sha256", "nodes.parquet": "nodes_sha256"}  # keys of [data], from format 3
ACTIVITY_FILE = "activity.json"
MAX_CONFIG_BYTES = 2**20
MAX_ACTIVITY_BYTES = 2**24
MAX_METRICS_BYTES = 2**26


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def has_run(self) -> bool:
        return os.path.lexists(self.path / "config.toml")

    @property
    def is_finished(self) -> bool:
        return os.path.lexists(self.path / "metrics.json")

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
        config = RunConfig.from_stream(settings, stream, columns=columns, init=init, refit=refit)
        checksums = {key: file_checksum(self.path / name) for name, key in EVENT_CHECKSUMS.items() if self.has(name)}
        config = replace(config, data={**config.data, **checksums})
        text = config.to_toml()
        if init is not None:
            content = encode_tensors(init.weights, {}, config_digest(tomllib.loads(text)))
            self._write("init.safetensors", content)
        self.write_text("history.jsonl", "")
        self.write_text("config.toml", text)
        return config

    def _save_stream(self, stream: EventStream) -> None:
        """Save the events, or the path of their store."""
        if stream.backing is None:
            stream.save(self.path)
            return
        store = stream.backing.path.resolve()
        relative = os.path.relpath(store, self.path.resolve())
        self.write_text(STORE_FILE, json.dumps({"store": str(store), "relative": relative}) + "\n")

    def streams(
        self, fingerprint: str, load: Callable[[Path], EventStream] = EventStream.load
    ) -> tuple[EventStream, EventStream]:
        """Return the events of the training, and the current events. These are more if a store has grown since.

        ``fingerprint`` is that of the training. ``load`` reads the folder's own events. RunError if the events are
        missing, damaged or changed.
        """
        if not self.has(STORE_FILE):
            stream = load(self.path)
            return stream, stream
        try:
            paths = parse_json(self._read_text(STORE_FILE, MAX_CONFIG_BYTES))
            if not isinstance(paths, dict) or not all(isinstance(paths.get(k), str) for k in ("store", "relative")):
                raise ValueError("it must name a store by the texts 'store' and 'relative'")
            candidates = [Path(paths["store"]), self.path / paths["relative"]]
            path = next((p for p in candidates if is_store(p)), None)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self.path / STORE_FILE} is damaged: {_sentence(error)}") from None
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
        if not os.path.lexists(path):
            raise RunError(f"{self.path} is not a run folder: it has no config.toml.{self._subfolder_hint()}")
        tables = self._parse_config()
        self._warn_of_old_format(tables["format"])
        run = tables.get("run")
        missing = describe_missing_extension(tables)
        if missing:
            raise RunError(f"{path} {missing}")
        try:
            settings = from_tables(tables, str(path))
            return RunConfig(settings, dict(tables["data"]), run if isinstance(run, dict) else {}, tables["format"])
        except KeyError:
            raise RunError(f"{path} is damaged: it has no table [data].") from None
        except (TypeError, ValueError, SettingError) as error:
            raise RunError(f"{path} is damaged: {_sentence(error)}") from None

    def _parse_config(self) -> dict[str, Any]:
        """Return the tables of ``config.toml``."""
        path = self.path / "config.toml"
        tables = self._load_tables()
        if tables.get("task") == "node":
            raise RunError(
                f"{self.path} is a node classifier. To score pairs, use its encoder: {tables.get('encoder')}."
            )
        number = tables.get("format")
        if type(number) is not int or number < 1:
            raise RunError(f"{path} is damaged: it has no valid format number.")
        if number > FORMAT:
            raise RunError(
                f"{path} has format {number}, which a newer version of cordgt wrote; this version reads formats 1 to "
                f"{FORMAT}. Install a newer version of cordgt to use this run."
            )
        return tables

    def _load_tables(self) -> dict[str, Any]:
        """Parse ``config.toml``, of any kind and format."""
        path = self.path / "config.toml"
        try:
            return tomllib.loads(self._read_text("config.toml", MAX_CONFIG_BYTES))
        except (ValueError, RecursionError) as error:  # bad UTF-8 and bad TOML are both ValueErrors
            raise RunError(f"{path} is damaged: {_sentence(error)}") from None

    def _format_and_digest(self) -> tuple[int, str]:
        """Return the format number of ``config.toml`` and its digest; the current format and "" if there is none."""
        if not self.has_run:
            return FORMAT, ""
        tables = self._load_tables()
        number = tables.get("format", FORMAT)
        try:
            return (number if type(number) is int else FORMAT), config_digest(tables)
        except (ValueError, RecursionError) as error:  # an integer of thousands of digits, deep nesting
            raise RunError(f"{self.path / 'config.toml'} is damaged: {_sentence(error)}") from None

    def _warn_of_old_format(self, number: int) -> None:
        if number < FIRST_BOUND_FORMAT:
            warnings.warn(
                f"{self.path} has format {number} of an older version of cordgt. That format cannot show whether all "
                "files belong to the same run. Use it only if you know where it comes from. "
                f"`cordgt upgrade {self.path} --out NEW` writes a copy in the current format.",
                RunWarning,
                stacklevel=3,
            )

    def check_events(self, data: Mapping[str, Any]) -> None:
        """Raise RunError if an event file does not have the checksum in the table ``[data]``."""
        for name, key in EVENT_CHECKSUMS.items():
            if key in data and file_checksum(self.path / name) != data[key]:
                raise RunError(
                    f"{self.path / name} is damaged, or of another run: its checksum is not that in config.toml. "
                    "Restore the original file."
                )

    def _read_text(self, name: str, max_bytes: int) -> str:
        """Return a text file. RunError if it cannot be read; ValueError if it is not UTF-8."""
        return read_regular_file(self.path / name, max_bytes=max_bytes, error=RunError).decode()

    def _subfolder_hint(self) -> str:
        """Return a hint that names one of the runs in a folder of runs."""
        runs = sorted(p.parent.name for p in self.path.glob("*/config.toml"))
        return f" It contains runs, such as {self.path / runs[0]}." if runs else ""

    def read_metrics(self) -> RunMetrics:
        """Return ``metrics.json`` of a finished run. RunError if the run is not finished, or the file is damaged."""
        return self.read_result()[0]

    def read_result(self) -> tuple[RunMetrics, dict[str, str]]:
        """Return ``metrics.json``, and the checksums in it by file name, which are empty in old formats.

        RunError as in `read_metrics`, and if the file does not belong to ``config.toml``.
        """
        path = self.path / "metrics.json"
        if not os.path.lexists(path):
            raise RunError(f"{self.path} is not finished: it has no metrics.json yet. Continue it with --resume.")
        try:
            content = parse_json(self._read_text("metrics.json", MAX_METRICS_BYTES))
            if not isinstance(content, dict):
                raise ValueError("it is not a JSON object")
            number, digest = self._format_and_digest()
            checksums = take_checksums(content, number)
            if checksums.get("config.toml", digest) != digest:
                raise RunError(
                    f"{self.path} is damaged: config.toml and metrics.json do not belong together. One of them was "
                    "changed after the training, or is of another run. Restore the original files."
                )
            metrics = RunMetrics(rename_old_keys(content))
            check_metrics(metrics)
        except ValueError as error:
            raise RunError(f"{path} is damaged: {_sentence(error)}") from None
        metrics["protocol"] = upgrade_keys(metrics["protocol"])  # v0.1 wrote other names
        return metrics, checksums

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write ``metrics.json``, with the checksums of the run's other files if the folder has a trained model."""
        content = dict(metrics)
        if self.has_run and self.has("model.safetensors"):
            names = ("model.safetensors", *(["refit.safetensors"] if "refit" in metrics else []))
            checksums = {"config.toml": self._format_and_digest()[1]} | {n: read_checksum(self.path / n) for n in names}
            for name in ("history.jsonl", ACTIVITY_FILE):
                if self.has(name):
                    checksums[name] = file_checksum(self.path / name)
            content["checksums"] = checksums | {"metrics.json": metrics_checksum(content, checksums)}
        self.write_text("metrics.json", RunMetrics(content).to_json())

    def write_activity(self, forecaster: Forecaster) -> None:
        """Write ``activity.json``. The next `write_metrics` binds it to the run."""
        self.write_text(ACTIVITY_FILE, json.dumps(forecaster.to_dict(), indent=1) + "\n")

    def read_activity(self, checksum: str | None) -> Forecaster:
        """Return the content of ``activity.json``; ``checksum`` is that in ``metrics.json``, None if it has none.

        RunError if the run has no activity, or the file is damaged or of another run.
        """
        path = self.path / ACTIVITY_FILE
        if checksum is None:
            raise RunError(
                f"{self.path} has no activity, so it gives scores, not probabilities of events in a time. Train it "
                f"again, without activity=false, or run `cordgt upgrade {self.path} --out NEW`."
            )
        if not self.has(ACTIVITY_FILE):
            raise RunError(f"{path} is missing: the run folder is incomplete.")
        if file_checksum(path) != checksum:
            raise RunError(f"{path} is damaged, or of another run: its checksum is not that in metrics.json.")
        try:
            content = parse_json(self._read_text(ACTIVITY_FILE, MAX_ACTIVITY_BYTES))
        except ValueError as error:
            raise RunError(f"{path} is damaged: {_sentence(error)}") from None
        return Forecaster.from_dict(content)

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
        """Write tensors with metadata and a checksum, atomically. They are bound to the folder's ``config.toml``."""
        self._write(name, encode_tensors(tensors, metadata, self._format_and_digest()[1]))

    def read_tensors(self, name: str, checksum: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and metadata of `write_tensors`.

        ``checksum`` is that in ``metrics.json``. RunError if the file is missing, damaged or of another run.
        """
        path = self.path / name
        if not os.path.lexists(path):
            raise RunError(f"{path} is missing: the run folder is incomplete.")
        try:
            content = read_tensor_file(path)
        except ValueError as error:
            raise self.damaged_error(name, _sentence(error)) from None
        number, digest = self._format_and_digest()
        is_unbound = content.config is None and number < FIRST_BOUND_FORMAT
        if not (is_unbound or content.config == digest) or checksum not in (None, content.checksum):
            raise self.damaged_error(
                name,
                "it does not belong to this run. It is of another run, or config.toml was changed after the training.",
            )
        return content.tensors, content.metadata

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
        return os.path.lexists(self.path / name)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def append_history(self, record: Mapping[str, Any]) -> None:
        """Append a line to ``history.jsonl``."""
        path = self.path / "history.jsonl"
        try:
            append_record(path, record)
        except OSError as error:
            raise self._write_error(path, error) from None

    def read_history(self, checksum: str | None = None) -> list[dict[str, Any]]:
        """Return the lines of ``history.jsonl``; none if there is no such file. See `read_records`."""
        return read_records(self.path / "history.jsonl", checksum)

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


def _sentence(error: Exception) -> str:
    """Return a library's error message on one line, with one full stop."""
    return " ".join(str(error).split()).rstrip(".") + "."
