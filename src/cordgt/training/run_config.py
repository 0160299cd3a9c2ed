"""``config.toml`` of a run: all settings, which data it was trained on, and how it was started."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from cordgt.errors import SettingError, did_you_mean
from cordgt.events.fingerprints import fingerprint_ids
from cordgt.events.stream import EventStream
from cordgt.io.column_options import options_to_text
from cordgt.models import MODELS
from cordgt.plugins import Registry
from cordgt.tasks.metrics import LINK_METRICS
from cordgt.tasks.negatives import NEGATIVES
from cordgt.training.settings import FORMAT, Settings, toml_lines


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
    data: Mapping[str, Any]  # table [data]: name, events, nodes, fingerprint, ids, columns, events_sha256, nodes_sha256
    run: Mapping[str, Any]  # table [run]: init, init_run, init_knows, refit, plugins (names only)
    format: int = FORMAT  # of the file that was read

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
        plugins = list_plugins(settings)
        return cls(settings, data, run | ({"plugins": plugins} if plugins else {}))

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
        return f"format = {self.format}\n{self.settings.to_toml()}" + "\n".join(tables)


# Settings whose values are extensions by name: the registry of each, and what a value is.
EXTENSIONS: dict[str, tuple[Registry[Any], str]] = {
    "model": (MODELS, "model"),
    "monitor": (LINK_METRICS, "metric"),
    "negatives": (NEGATIVES, "kind of negatives"),
    "train_negatives": (NEGATIVES, "kind of negatives"),
}


def list_plugins(settings: Settings) -> list[str]:
    """Return the settings that name an extension of a plug-in, with the plug-in's name: ``model=recency: recency.py``.

    It is a reminder for people. No code is loaded by it.
    """
    values = {"model": settings.model} | settings_by_key(settings)
    named = ((key, values[key], registry.plugin_of(values[key])) for key, (registry, _) in EXTENSIONS.items())
    return [f"{key}={value}: {plugin}" for key, value, plugin in named if plugin is not None]


def describe_missing_extension(tables: Mapping[str, Any]) -> str:
    """Say which extension of a parsed ``config.toml`` is not registered, or cannot be loaded; empty if none."""
    keys: dict[str, Any] = {"model": tables.get("model")}
    for title in ("protocol", "training"):
        keys |= tables[title] if isinstance(tables.get(title), dict) else {}
    run = tables.get("run")
    noted = run.get("plugins", []) if isinstance(run, dict) else []
    for key, (registry, kind) in EXTENSIONS.items():
        name = keys.get(key)
        if not isinstance(name, str):
            continue
        if name not in registry:
            start = f"{key}={name}: "
            origins = [text.removeprefix(start) for text in noted if isinstance(text, str) and text.startswith(start)]
            origin = f" The run was trained with the plug-in {origins[0]}." if origins else ""
            return (
                f"names an unknown {kind} '{name}'.{did_you_mean(name, registry)}{origin} If it is your own, load its "
                "plug-in first: --plugin FILE.py, or cordgt.load_plugin(FILE) in Python."
            )
        try:
            registry[name]
        except SettingError as error:
            return f"needs the {kind} '{name}'. {error}"
    return ""


def settings_by_key(settings: Settings) -> dict[str, Any]:
    """Return all settings of the protocol, the training and the model by key, without the model's name and the seed."""
    return {**vars(settings.protocol), **vars(settings.training), **vars(settings.model_settings)}


def fingerprint(stream: EventStream) -> str:
    """Return a hash of a stream's events and features: the same for the same data."""
    return stream.fingerprint


def ids_fingerprint(stream: EventStream) -> str:
    """Return a hash of the ids and of the kind of times. `fingerprint` does not cover these."""
    if stream.backing is not None:
        return stream.backing.ids_fingerprint
    return fingerprint_ids(stream.ids.names, stream.time.kind)


def is_same_data(stream: EventStream, data: Mapping[str, Any]) -> bool:
    """Return whether a stream has the fingerprints of a ``[data]`` table."""
    same = fingerprint(stream) == data.get("fingerprint")
    return same and data.get("ids") in (None, ids_fingerprint(stream))


def config_digest(tables: Mapping[str, Any]) -> str:
    """Return a hash of the parsed ``config.toml``: settings, data and format. Comments and spaces do not count."""
    return hashlib.sha256(json.dumps(tables, sort_keys=True, default=str).encode()).hexdigest()
