"""`Run`: a trained model with its history, ready to predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import Callbacks, as_callback
from cordgt.errors import RunError, SettingError, check_choice
from cordgt.events.stream import EventStream
from cordgt.inference.predictor import Predictor, Recommendation
from cordgt.io.column_options import has_columns
from cordgt.io.open_table import COMMENTS, load_file
from cordgt.io.readers import read_events
from cordgt.models.base import LinkModel
from cordgt.runtime import distributed
from cordgt.runtime.threads import keep_threads
from cordgt.store.store import is_store
from cordgt.tasks.link import EVALUATION_SETTINGS, LinkTask, history_of, split_of
from cordgt.tasks.protocol import Protocol
from cordgt.tasks.run_metrics import SPLITS, RunMetrics
from cordgt.training.devices import choose_device, use_precision
from cordgt.training.evaluation import evaluate_splits
from cordgt.training.model_factory import load_weights, network_for
from cordgt.training.run_folder import (
    RunConfig,
    RunFolder,
    is_same_data,
)
from cordgt.training.settings import Settings, known_keys, make, unknown_setting

# Settings that an evaluation may change. With any other change, training events could become test events.
EVALUATION_KEYS = (*EVALUATION_SETTINGS, "pool")  # a new pool means new negative pools


def _check_same_protocol(folder: RunFolder, settings: Settings, metrics: Mapping[str, Any]) -> None:
    """RunError if config.toml and metrics.json have different protocols: training events could be test events."""
    protocol = metrics.get("protocol")
    if not isinstance(protocol, dict):
        raise RunError(f"{folder.path} is damaged: metrics.json has no protocol.")
    for key, value in vars(settings.protocol).items():
        if key in protocol and protocol[key] != value:
            raise RunError(
                f"{folder.path} is damaged: config.toml has {key}={value}, but it was trained with {protocol[key]}."
            )


@dataclass(frozen=True)
class Run:
    """A trained model with the history it answers from."""

    folder: RunFolder
    config: RunConfig
    stream: EventStream  # the history it answers from
    own_stream: EventStream  # the events it was trained and evaluated on, without later ones
    metrics: RunMetrics
    device: torch.device
    _weights: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)  # by file name

    def __repr__(self) -> str:
        """One line, for notebooks."""
        return f"<Run {self.path}: {self.settings.model} on {self.stream.name or 'a stream without a name'}>"

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Run:
        """Load a finished run. RunError if the folder is missing, unfinished or damaged."""
        keep_threads()
        folder = RunFolder(Path(path))
        return cls._load(folder, folder.read_config(), device)

    @classmethod
    def _load(cls, folder: RunFolder, config: RunConfig, device: str) -> Run:
        metrics = folder.read_metrics()
        own, stream = folder.streams(config.data_fingerprint)
        if not is_same_data(own, config.data):
            raise RunError(f"{folder.path} is damaged: its events are not those it was trained on.")
        _check_same_protocol(folder, config.settings, metrics)
        return cls(folder, config, stream, own, metrics, choose_device(device))

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def columns(self) -> dict[str, str]:
        """The column options that the events of the training were read with."""
        return self.config.columns

    def with_events(self, source: Any, **columns: Any) -> Run:
        """The same model with a longer history: append later events from a file, a pipe, a table or a stream.

        Options as in `read_events`. The default columns are those of the training, if the source has them.
        """
        if isinstance(source, EventStream):
            return replace(self, stream=self.stream.append_stream(source))
        source = load_file(source)
        ids = {"ids": "shared" if self.stream.ids.shared else "separate"}
        later = read_events(source, **(ids | self.columns_for(source, columns)))
        longer = self.stream.append_stream(later)
        comment_notes = tuple(note for note in later.notes if COMMENTS in note)
        return replace(self, stream=replace(longer, notes=(*longer.notes, *comment_notes)))

    def columns_for(self, source: Any, given: Mapping[str, Any], *, labels_needed: bool = False) -> dict[str, Any]:
        """Column options to read a source of events with: those ``given``, and those of the training.

        The options of the training apply only if the source has its columns for source, destination and time. Then
        reading the source raises an error for any other column that it lacks; for the label only if ``labels_needed``.
        A path is read, so pass a pipe as a `LoadedFile`.
        """
        merged = {**self.columns, **given}
        if is_store(source):  # its columns are fixed
            return dict(given)
        if not self.columns or has_columns(source, merged):
            return merged
        if not has_columns(source, {k: v for k, v in merged.items() if k in ("src", "dst", "time")}):
            return dict(given)
        return {k: v for k, v in merged.items() if k != "label" or labels_needed or k in given}

    def score(self, src: Any, dst: Any, at: Any = None) -> np.ndarray:
        """Scores (n,) between 0 and 1: how likely each source meets each destination.

        A score compares with random partners: 0.9 means "more likely than a random partner", not "in nine of ten
        cases". ``at`` is one time, or one per pair. Without it, the whole history is visible.
        """
        src, dst = (_ids(_as_list(x)) for x in (src, dst))
        n = max(len(src), len(dst))
        src, dst = (x * n if len(x) == 1 else x for x in (src, dst))
        if len(src) != len(dst):
            raise SettingError(
                f"{len(src)} sources and {len(dst)} destinations: give the same number of each, or one of either."
            )
        return self.predictor.score(src, dst, self._times(at, n))[0]

    def recommend(self, node: Any, at: Any = None, top: int = 10, *, new_only: bool = False) -> list[Recommendation]:
        """The ``top`` destinations most likely to meet ``node``, best first; with ``new_only`` those it has not met.

        ``node`` is a single id. An unknown id is a node without history.
        """
        _ids([node])
        return self.predictor.recommend(node, self._time(at), top, new_only=new_only)[0]

    def embed(self, nodes: Any = None, at: Any = None, *, sides: Sequence[str] | None = None) -> np.ndarray:
        """Embeddings (n, D) of nodes at a time. The default is all nodes of the history, in order of appearance.

        If sources and destinations have separate id spaces and an id is in both, ``sides`` says which node is meant:
        "src" or "dst" for each node.
        """
        found = np.arange(self.stream.n_nodes)
        if nodes is not None:
            found = self.predictor.nodes_of_either_side(_ids(_as_list(nodes)), sides)
        return self.predictor.embed(found, self._time(at))

    def evaluate(self, callbacks: Callbacks = None, *, split: str | None = None, **changes: Any) -> RunMetrics:
        """Metrics on the run's own splits.

        ``split`` is "validation" or "test"; the default is both. ``changes`` may set another visibility, pool, seed of
        negatives or ``batch_size``. The latter is the evaluation batch: of per-batch means, and of the visibility rules
        "paper" and "batch".
        """
        if split is not None:
            check_choice("split", split, SPLITS)
        if "part" in changes:
            raise SettingError("'part' is now called 'split'.")
        model, task = self.evaluation_task(**changes)
        metrics = evaluate_splits(model, task, as_callback(callbacks), SPLITS if split is None else (split,))
        about: dict[str, Any] = {key: self.metrics[key] for key in ("model", "data", "seed", "epochs")}
        about |= {"init": self.metrics["init"]} if "init" in self.metrics else {}
        return RunMetrics(about | {"protocol": dict(vars(task.protocol))} | metrics)

    def evaluation_task(self, **changes: Any) -> tuple[LinkModel, LinkTask]:
        """A new model with the weights that validation selected, and the task to evaluate it on.

        ``changes`` as in `evaluate`.
        """
        protocol, seed, group = self._evaluation_protocol(changes), self.settings.seed, distributed.current()
        task = LinkTask.prepare(self.own_stream, protocol, seed=seed, device=self.device, group=group)
        return self.evaluation_model(), task

    def evaluation_model(self) -> LinkModel:
        """A new model with the weights that validation selected: those of the metrics, not the refitted ones."""
        return self._network("model.safetensors")

    @cached_property
    def predictor(self) -> Predictor:
        """The model on its device, with its history. A refitted run uses the refitted weights."""
        own = self.own_stream
        trained = np.zeros(self.stream.n_nodes, dtype=bool)
        if "refit" in self.metrics:
            trained[: own.n_nodes] = True
        else:
            trained[: own.n_nodes] = ~split_of(own, self.settings.protocol).new_node
        history = history_of(self.stream, seed=self.settings.seed, device=self.device)
        return Predictor(self._network(self.weights), self.stream, history, trained)

    @property
    def weights(self) -> str:
        """The file name of the weights that `predictor` uses: the refitted ones if there are any."""
        return "refit.safetensors" if "refit" in self.metrics else "model.safetensors"

    def _read_weights(self, name: str) -> dict[str, Tensor]:
        """The weights in a file, which is read once."""
        if name not in self._weights:
            self._weights[name] = self.folder.read_tensors(name)[0]
        return self._weights[name]

    def _network(self, name: str) -> LinkModel:
        """A new model on the run's device, with the weights of a file."""
        weights = self._read_weights(name)
        with torch.random.fork_rng(devices=[]):
            model = network_for(self.settings, self.own_stream)
        try:
            load_weights(model, weights, str(self.path / name))
        except SettingError as error:
            raise RunError(f"{self.path / name} is damaged: {error}") from None
        use_precision(self.settings, self.device)
        return model.to(self.device).eval()

    def _evaluation_protocol(self, changes: dict[str, Any]) -> Protocol:
        wanted = {
            ("eval_batch_size" if key == "batch_size" else key): value
            for key, value in changes.items()
            if value is not None
        }
        fixed = [key for key in wanted if key not in EVALUATION_KEYS]
        if fixed:
            if fixed[0] not in known_keys():
                raise SettingError(f"evaluate: {unknown_setting(fixed[0])}")
            allowed = ", ".join(("batch_size", *(k for k in EVALUATION_KEYS if k != "eval_batch_size")))
            raise SettingError(f"'{fixed[0]}' is fixed by the training. An evaluation can change: {allowed}.")
        return make(self.settings.model, vars(self.settings.protocol) | wanted).protocol

    def _time(self, at: Any) -> Any:
        return None if at is None else self.stream.time.parse(at)

    def _times(self, at: Any, n: int) -> np.ndarray | None:
        if at is None:
            return None
        times = [self.stream.time.parse(x) for x in _as_list(at)]
        if len(times) not in (1, n):
            raise SettingError(f"{len(times)} times for {n} pairs: give one, or one per pair.")
        return np.array(times * n if len(times) == 1 else times)


def _as_list(values: Any) -> list[Any]:
    """Ids or times as a list; a single one becomes a list of one."""
    if isinstance(values, str) or not hasattr(values, "__len__"):
        return [values]
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def _ids(values: list[Any]) -> list[Any]:
    """The values, unchanged. SettingError if one cannot be a node id: it would count as a node without history."""
    for value in values:
        whole = isinstance(value, float | np.floating) and value == np.floor(value)
        if isinstance(value, bool | np.bool_) or not (whole or isinstance(value, str | int | np.integer)):
            several = " Give one id per call." if hasattr(value, "__len__") else ""
            raise SettingError(f"{value!r} is not a node id: an id is text or a whole number.{several}")
    return values
