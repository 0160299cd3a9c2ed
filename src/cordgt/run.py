"""The run folder: what a training leaves behind, written so that it can be cut off at any moment and trusted afterwards.

config.toml          everything the run was made with
events.parquet       the history it answers from; with nodes.parquet, the original file is not needed again
history.jsonl        figures while it trained, a line each
model.safetensors    the best weights so far
state.safetensors    what `--resume` needs; gone once the run is finished
refit.safetensors    weights trained on everything, where `--refit` was asked for
metrics.json         the figures; its presence says that the run is finished
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cordgt.errors import RunError, SettingError
from cordgt.events import EventStream
from cordgt.settings import Settings, from_toml

FORMAT = 1  # of the folder; raised when an older program could not read a newer one


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

    def create(self, settings: Settings, stream: EventStream) -> None:
        """Make the folder with its configuration and history. The configuration comes last: without it there is no run."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            stream.save(self.path)
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror or error}.") from None
        data = {
            "name": stream.name,
            "events": stream.n_events,
            "nodes": stream.n_nodes,
            "fingerprint": fingerprint(stream),
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in data.items()]
        text = f"format = {FORMAT}\n" + settings.to_toml() + "\n[data]\n" + "\n".join(lines) + "\n"
        self.write_text("config.toml", text)

    def read_config(self) -> tuple[Settings, dict[str, Any]]:
        """The settings, and the ``[data]`` table."""
        path = self.path / "config.toml"
        if not self.path.exists():
            raise RunError(f"{self.path} does not exist.")
        if not path.exists():
            raise RunError(f"{self.path} is not a run folder: it has no config.toml.")
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
            if given.get("format") != FORMAT:
                raise RunError(f"{path} has format {given.get('format')}, and this version reads format {FORMAT}.")
            return from_toml(path.read_text(encoding="utf-8"), str(path)), dict(given["data"])
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError, SettingError) as error:
            raise RunError(f"{path} is damaged: {error}.") from None

    def read_metrics(self) -> dict[str, Any]:
        """``metrics.json`` of a finished run."""
        path = self.path / "metrics.json"
        if not path.exists():
            raise RunError(f"{self.path} is not finished: it has no metrics.json yet. Continue it with --resume.")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{path} is damaged: {error}.") from None
        if not isinstance(found, dict) or "test" not in found:
            raise RunError(f"{path} is damaged: it holds no figures.")
        return found

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        self.write_text("metrics.json", json.dumps(metrics, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a file whole or not at all."""
        try:
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path, prefix=f".{name}.", delete=False, encoding="utf-8"
            ) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, self.path / name)
        except OSError as error:
            raise RunError(f"{self.path / name} cannot be written: {error.strerror or error}.") from None

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Tensors and what is to be known about them, whole or not at all."""
        ready = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        temporary = self.path / f".{name}.{os.getpid()}"
        try:
            save_file(ready, temporary, metadata={"about": json.dumps(about)})
            os.replace(temporary, self.path / name)
        except (OSError, SafetensorError) as error:
            temporary.unlink(missing_ok=True)
            raise RunError(f"{self.path / name} cannot be written: {error}.") from None

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `write_tensors` wrote; RunError where it is missing or damaged."""
        path = self.path / name
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("about", "{}"))
                return {key: file.get_tensor(key) for key in file.keys()}, about  # noqa: SIM118
        except FileNotFoundError:
            raise RunError(f"{path} is missing: the run folder is incomplete.") from None
        except (OSError, SafetensorError, ValueError) as error:
            raise RunError(f"{path} is damaged: {error}.") from None

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def append_history(self, record: Mapping[str, Any]) -> None:
        """One more line of ``history.jsonl``."""
        with open(self.path / "history.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def keep_history(self, phase: str, epochs: int) -> None:
        """Drop the lines of what will be trained again: those of ``phase`` after so many epochs."""
        path = self.path / "history.jsonl"
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # cut off while being written
            if record.get("phase") != phase or record.get("epoch", 0) <= epochs:
                kept.append(line + "\n")
        self.write_text("history.jsonl", "".join(kept))


def fingerprint(stream: EventStream) -> str:
    """A hash of what a stream says, to tell whether a run is resumed on the same data."""
    digest = hashlib.sha256()
    arrays = (stream.src, stream.dst, stream.t, stream.edge_x, stream.node_x)
    for array in arrays:
        if array is not None:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
