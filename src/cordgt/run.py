"""The run folder: what a training leaves behind, written so that it can be cut off at any moment and still be trusted.

config.toml          everything the run was made with
events.parquet       the history it answers from; with nodes.parquet, the original file is not needed again
events.json          in their place, where it was trained on a store: which store that is
history.jsonl        figures while it trained, a line each
model.safetensors    the best weights so far
init.safetensors     the weights it started from, where `--init` was given
state.safetensors    what `--resume` needs, and state.previous.safetensors, the one before; gone once it is finished
refit.safetensors    weights trained on everything, where `--refit` was asked for
metrics.json         the figures; its presence says that the run is finished
report.html          the run for people, in one file; written last, or by `cordgt report`
tensorboard/         curves, where TensorBoard is installed

Tensors are kept with a checksum, which is verified whenever they are read. One process at a time trains in a folder: it
holds a lock on the folder itself, which the system lets go when the process ends, however it ends.
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

from cordgt.errors import DataError, RunError, SettingError, nearest
from cordgt.events.fingerprints import fingerprint_of, ids_fingerprint_of
from cordgt.events.stream import EventStream
from cordgt.files import exclusive, names_beside, write_bytes
from cordgt.models import MODELS
from cordgt.settings import FORMAT, Settings, from_toml, toml_lines, upgrade_keys
from cordgt.store.folder import is_store, open_store
from cordgt.tasks.run_metrics import RunMetrics

STORE_FILE = "events.json"
# What `create` writes before config.toml.
BEFORE_CONFIG = ("events.parquet", "nodes.parquet", STORE_FILE, "init.safetensors", "history.jsonl")
STATES = ("state.safetensors", "state.previous.safetensors")  # the latest checkpoint first
REQUIRED_METRICS = ("model", "data", "seed", "epochs", "validation", "test")  # keys that metrics.json must have


class Start(NamedTuple):
    """What a run starts from where `--init` is given."""

    weights: Mapping[str, Tensor]
    run: str
    knows: str  # what that run has seen of what this one is measured on, in words; empty: nothing

    @property
    def about(self) -> dict[str, str]:
        """For metrics.json."""
        return {"run": self.run, "knows": self.knows}


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def holds_run(self) -> bool:
        return (self.path / "config.toml").exists()

    @property
    def finished(self) -> bool:
        return (self.path / "metrics.json").exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder and keeps every other process from training in it; RunError where one does already.

        A folder that was made and stays empty is taken away again.
        """
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if self.path.is_file():
                raise RunError(f"{self.path} is a file; --out names a folder.") from None
            raise RunError(f"{self.path} cannot be written: {error.strerror or error}.") from None
        busy = f"Another process is training in {self.path}. Let it finish, or choose another folder with --out."
        with exclusive(self.path, RunError(busy)):
            try:
                yield
            finally:
                if made and self.path.is_dir() and not any(self.path.iterdir()):
                    self.path.rmdir()

    def sweep(self) -> None:
        """Remove what a process that was killed while writing left half written. Only under the lock."""
        for part in self.path.glob(".*.part"):
            with suppress(OSError):  # a folder that cannot be written says so at the next write
                part.unlink()

    def create(
        self,
        settings: Settings,
        stream: EventStream,
        *,
        columns: Mapping[str, str] | None = None,
        start: Start | None = None,
        refit: bool = False,
    ) -> None:
        """Make the folder with its configuration and history. The configuration comes last: without it there is no run.

        ``columns``: the column options the events were read with. ``start``: what to start from. ``refit``:
        whether to train on everything afterwards. All three are kept, for `--events` and `--resume`.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._keep(stream)
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror or error}.") from None
        if start is not None:
            self.write_tensors("init.safetensors", start.weights, {})
        self.write_text("history.jsonl", "")
        data = {
            "name": stream.name,
            "events": stream.n_events,
            "nodes": stream.n_nodes,
            "fingerprint": fingerprint(stream),
            "ids": ids_fingerprint(stream),
            "columns": dict(columns or {}),
        }
        begun: dict[str, Any] = {"init": start is not None, "refit": refit}
        begun |= {} if start is None else {"init_run": start.run, "init_knows": start.knows}
        tables = "\n".join(["", "[data]", *toml_lines(data), "", "[run]", *toml_lines(begun), ""])
        self.write_text("config.toml", f"format = {FORMAT}\n{settings.to_toml()}{tables}")

    def _keep(self, stream: EventStream) -> None:
        """The history, or where the store lies that has it."""
        if stream.backing is None:
            stream.save(self.path)
            return
        store = stream.backing.path.resolve()
        beside = os.path.relpath(store, self.path.resolve())
        self.write_text(STORE_FILE, json.dumps({"store": str(store), "relative": beside}) + "\n")

    def streams(self, fingerprint: str) -> tuple[EventStream, EventStream]:
        """The events it was trained on, and those it answers from: a store may have grown since.

        RunError where the history is missing, damaged or no longer the same; ``fingerprint`` says which it was.
        """
        if not self.has(STORE_FILE):
            stream = EventStream.load(self.path)
            return stream, stream
        try:
            told = json.loads((self.path / STORE_FILE).read_text(encoding="utf-8"))
            places = [Path(told["store"]), self.path / told["relative"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self.path / STORE_FILE} is damaged: {_sentence(error)}") from None
        place = next((p for p in places if is_store(p)), None)
        if place is None:
            raise RunError(f"{self.path} answers from the store {places[0]}, which is not there. Put it back.")
        try:
            store = open_store(place)
            return store.stream(fingerprint), store.stream()
        except DataError as error:
            raise RunError(f"{self.path} cannot answer: {error}") from None

    def read_config(self) -> tuple[Settings, dict[str, Any]]:
        """The settings, and the ``[data]`` table."""
        path = self.path / "config.toml"
        if not self.path.exists():
            raise RunError(f"{self.path} does not exist.{nearest(self.path.name, names_beside(self.path))}")
        if not path.exists():
            raise RunError(f"{self.path} is not a run folder: it has no config.toml.{self._hint()}")
        given = self._parsed()
        if isinstance(given.get("model"), str) and given["model"] not in MODELS:
            raise RunError(
                f"{path} names a model that is not known here: there is no model '{given['model']}'."
                f"{nearest(given['model'], MODELS)} A model of one's own is known to the Python that adds it."
            )
        try:
            return from_toml(path.read_text(encoding="utf-8"), str(path)), dict(given["data"])
        except KeyError:
            raise RunError(f"{path} is damaged: it has no table [data].") from None
        except (OSError, TypeError, ValueError, SettingError) as error:
            raise RunError(f"{path} is damaged: {_sentence(error)}") from None

    def begun(self) -> dict[str, Any]:
        """The ``[run]`` table: whether it started from given weights, and whether it refits."""
        found = self._parsed().get("run", {})
        return found if isinstance(found, dict) else {}

    def _parsed(self) -> dict[str, Any]:
        path = self.path / "config.toml"
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # bad UTF-8 and bad TOML are both ValueErrors
            raise RunError(f"{path} is damaged: {_sentence(error)}") from None
        if given.get("task") == "node":
            raise RunError(
                f"{self.path} holds a classifier of nodes; pairs are asked of its encoder, {given.get('encoder')}."
            )
        if given.get("format") not in range(1, FORMAT + 1):
            raise RunError(
                f"{path} has format {given.get('format')}, and this version reads formats 1 to {FORMAT}: use the "
                "version of cordgt that wrote it."
            )
        return given

    def _hint(self) -> str:
        """What to do where several runs lie in the folder."""
        runs = sorted(p.parent.name for p in self.path.glob("*/config.toml"))
        return f" It holds runs, such as {self.path / runs[0]}." if runs else ""

    def read_metrics(self) -> RunMetrics:
        """``metrics.json`` of a finished run."""
        path = self.path / "metrics.json"
        if not path.exists():
            raise RunError(f"{self.path} is not finished: it has no metrics.json yet. Continue it with --resume.")
        try:
            found = RunMetrics.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path} is damaged: {_sentence(error)}") from None
        missing = [key for key in REQUIRED_METRICS if key not in found]
        if missing:
            raise RunError(f"{path} is damaged: it does not say '{missing[0]}'.")
        if isinstance(found.get("protocol"), dict):
            found["protocol"] = upgrade_keys(found["protocol"])  # v0.1 wrote other names
        return found

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        self.write_text("metrics.json", RunMetrics(metrics).to_json())

    def write_text(self, name: str, text: str) -> None:
        """Write a file whole or not at all."""
        self._write(name, text.encode())

    def _write(self, name: str, content: bytes) -> None:
        """RunError where a file cannot be written, with what is left."""
        try:
            write_bytes(self.path / name, content)
        except DataError as error:
            raise RunError(f"{error}{self._left()}") from None

    def _left(self) -> str:
        """What a person can still do after a write that failed."""
        return " What was saved before is intact: once this is mended, --resume goes on from there." * self.holds_run

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Tensors and what is to be known about them, whole or not at all."""
        ready = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        told = json.dumps(about)
        metadata = {"about": told, "sha256": _checksum(ready, told)}
        content = save(ready, metadata)  # not `save_file`: killed, it leaves a temporary file of its own
        self._write(name, content)

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `write_tensors` wrote; RunError where it is missing, damaged or altered."""
        path = self.path / name
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            told = metadata.get("about", "{}")
            if metadata.get("sha256") not in (None, _checksum(tensors, told)):  # None: of before there were checksums
                raise self.damaged(name, "its contents are not those of its checksum.")
            return tensors, dict(json.loads(told))
        except FileNotFoundError:
            raise RunError(f"{path} is missing: the run folder is incomplete.") from None
        except (OSError, SafetensorError, TypeError, ValueError, RecursionError) as error:
            raise self.damaged(name, _sentence(error)) from None

    def damaged(self, name: str, why: str) -> RunError:
        """Says what is wrong with a file of tensors, and what to do about it."""
        told = f"{self.path / name} is damaged: {why}"
        if name not in STATES:
            return RunError(told)
        older = [k for k in STATES[STATES.index(name) + 1 :] if self.has(k)]
        then = f"goes on from {older[0]}, the checkpoint before it" if older else "trains from the start"
        return RunError(f"{told} Delete it: --resume then {then}, to the same end.")

    def write_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """A checkpoint, beside the one before it. Cut off while it is written, the one before it is the latest."""
        latest, previous = STATES
        if self.has(latest):
            self._rename(latest, previous)
        self.write_tensors(latest, tensors, about)

    def _rename(self, old: str, new: str) -> None:
        try:
            os.replace(self.path / old, self.path / new)
        except OSError as error:
            raise RunError(f"{self.path / new} cannot be written: {error.strerror or error}.{self._left()}") from None

    def latest_state(self) -> str | None:
        """The name of the checkpoint to go on from."""
        return next((name for name in STATES if self.has(name)), None)

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def append_history(self, record: Mapping[str, Any]) -> None:
        """One more line of ``history.jsonl``."""
        path = self.path / "history.jsonl"
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror or error}.{self._left()}") from None

    def read_history(self) -> list[dict[str, Any]]:
        """The lines of ``history.jsonl`` that can be read; none where there is no such file."""
        path = self.path / "history.jsonl"
        found = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # cut off while being written
            if isinstance(record, dict):
                found.append(record)
        return found

    def keep_history(self, phase: str, epochs: int, events: int = 0) -> None:
        """Drop the lines of what will be trained again: those of ``phase`` after so many epochs and ``events``."""

        def stays(record: dict[str, Any]) -> bool:
            epoch = record.get("epoch", 0)
            begun = epoch == epochs + 1 and record.get("events", events + 1) <= events
            return record.get("phase") != phase or epoch <= epochs or begun

        kept = [json.dumps(record) + "\n" for record in self.read_history() if stays(record)]
        self.write_text("history.jsonl", "".join(kept))


class Unwritten(RunFolder):
    """The folder of a run that another process writes: here nothing is written to it, and nothing is found in it."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def sweep(self) -> None:
        """Nothing to remove."""

    def write_text(self, name: str, text: str) -> None:
        """Nothing is written."""

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Nothing is written."""

    def write_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Nothing is written."""

    def append_history(self, record: Mapping[str, Any]) -> None:
        """Nothing is written."""

    def keep_history(self, phase: str, epochs: int, events: int = 0) -> None:
        """Nothing to drop."""

    def has(self, name: str) -> bool:
        return False

    def remove(self, name: str) -> None:
        """Nothing to remove."""


def every_setting(settings: Settings) -> dict[str, Any]:
    """Every setting of the protocol, the training and the model by its key; not the model's name, nor the seed."""
    return {**vars(settings.protocol), **vars(settings.training), **vars(settings.model_settings)}


def fingerprint(stream: EventStream) -> str:
    """A hash of what a stream says, to tell whether a run is resumed on the same data."""
    if stream.backing is not None:
        return stream.backing.fingerprint
    arrays = (stream.src, stream.dst, stream.t, stream.edge_x, stream.node_x)
    return fingerprint_of(x for x in arrays if x is not None)


def ids_fingerprint(stream: EventStream) -> str:
    """A hash of the ids and of what the times are: two files can agree in all else."""
    if stream.backing is not None:
        return stream.backing.ids_fingerprint
    return ids_fingerprint_of(stream.ids.names, stream.time.kind)


def is_same_data(stream: EventStream, data: Mapping[str, Any]) -> bool:
    """Whether a stream is the one that a ``[data]`` table tells of."""
    same = fingerprint(stream) == data.get("fingerprint")
    return same and data.get("ids") in (None, ids_fingerprint(stream))


def _checksum(tensors: Mapping[str, Tensor], about: str) -> str:
    """A hash of names, types, shapes and bytes, and of what is told about them."""
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sentence(error: Exception) -> str:
    """What a library said, on one line, with one full stop."""
    return " ".join(str(error).split()).rstrip(".") + "."
