"""ModelStore: the models of a service, kept by checksum in its data folder, so that earlier answers can be replayed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cordgt.errors import CordgtError, RunError
from cordgt.events.stream import EventStream
from cordgt.files import sync_file, sync_folder, write_text
from cordgt.inference.predictor import Predictor
from cordgt.inference.run import Run
from cordgt.models import find_model
from cordgt.models.base import LinkModel
from cordgt.serving.answerer import FirstScorerMaker
from cordgt.serving.errors import ModelGoneError
from cordgt.training.run_checksums import file_checksum
from cordgt.training.run_folder import STORE_FILE, RunFolder

MODELS_FOLDER, STATE_FILE = "models", "models.json"
RUN_FILES = (
    *(
        "config.toml",
        "metrics.json",
        "model.safetensors",
        "refit.safetensors",
        "activity.json",
        "first_scorer.safetensors",
    ),
    *("events.parquet", "nodes.parquet"),
)
ID_LENGTH = 16  # characters of the id of a model
MAX_ROLLBACKS = 20
MIN_FIRST_SCORER_NODES = 32  # of the run's history; with fewer, a first scorer is trained only when it is needed


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in memory."""

    id: str
    path: str  # run folder that it was loaded from
    run: Run
    network: LinkModel
    has_training_events: np.ndarray
    make_first_scorer: FirstScorerMaker

    @property
    def description(self) -> dict[str, Any]:
        """What `GET /model` says about it."""
        settings = self.run.settings
        test = self.run.metrics.get("test", {}).get("transductive", {})
        return {
            "id": self.id,
            "run": self.path,
            "model": settings.model,
            "seed": settings.seed,
            "trained_on": self.run.original_stream.n_events,
            "test": {name: value for name, value in test.items() if isinstance(value, float)},
        }


class ModelStore:
    """Keeps the files of every model that has answered, and remembers which one is current."""

    def __init__(self, folder: Path, device: str = "auto") -> None:
        self._folder, self._device = folder, device
        self._loaded: dict[str, LoadedModel] = {}
        (folder / MODELS_FOLDER).mkdir(exist_ok=True)

    def load(self, path: str | Path, check: Callable[[Run], None] = lambda run: None) -> LoadedModel:
        """Load the model of a run folder and keep its files. RunError if it cannot be served, or if ``check`` fails."""
        run = Run.load(path, self._device)
        check(run)
        model_id = _model_id(run)
        if model_id in self._loaded:
            return self._loaded[model_id]
        if find_model(run.settings.model).network.is_stateful:
            raise RunError(
                f"{path}: the model '{run.settings.model}' keeps a memory of the events, which a live service cannot "
                "update yet. Train another model, such as cordgt or counts."
            )
        origin, run = str(run.path), replace(run, folder=RunFolder(self._keep(run, model_id)))
        make_first_scorer = _load_once(run)
        if not run.model.is_cheap and run.stream.n_nodes >= MIN_FIRST_SCORER_NODES:
            make_first_scorer(run.predictor)
            vars(run).pop("predictor")  # its index is not needed any more
        loaded = LoadedModel(model_id, origin, run, run.model, run.has_training_events, make_first_scorer)
        self._loaded[model_id] = loaded
        for old in list(self._loaded)[:-3]:
            del self._loaded[old]
        return loaded

    def get(self, model_id: str) -> LoadedModel:
        """Return a model by its id. ModelGoneError if its files are no longer kept."""
        if model_id in self._loaded:
            return self._loaded[model_id]
        folder = self._folder / MODELS_FOLDER / model_id
        if len(model_id) != ID_LENGTH or not model_id.isalnum() or not folder.is_dir():
            raise ModelGoneError(f"The model {model_id[:100]!a} of this answer is not kept here.")
        try:
            loaded = self.load(folder)
        except CordgtError as error:
            raise ModelGoneError(f"The model {model_id} of this answer cannot be loaded: {error}") from None
        if loaded.id != model_id:
            raise ModelGoneError(f"The files of model {model_id} in {folder} were changed.")
        return loaded

    def read_state(self) -> dict[str, Any]:
        """Return ``started_with``, ``current`` and ``previous`` (ids, latest last); empty at the first start."""
        return read_state(self._folder)

    def write_state(self, started_with: str, current: str, previous: list[str]) -> None:
        """Remember the current model."""
        state = {"started_with": started_with, "current": current, "previous": previous[-MAX_ROLLBACKS:]}
        write_text(self._folder / STATE_FILE, json.dumps(state))

    def _keep(self, run: Run, model_id: str) -> Path:
        """Link the files of a run into the data folder, or copy them from another file system. Return their folder.

        The events of a run that was trained on a store stay in the store.
        """
        target = self._folder / MODELS_FOLDER / model_id
        if target.exists():
            return target
        part = target.with_name(f".{model_id}.{uuid.uuid4().hex}")
        part.mkdir()
        backing = run.original_stream.backing
        if backing is not None:
            store = backing.path.resolve()
            paths = {"store": str(store), "relative": os.path.relpath(store, target.resolve())}
            write_text(part / STORE_FILE, json.dumps(paths))
        for name in RUN_FILES:
            source = run.path / name
            if source.exists():
                try:
                    os.link(source, part / name)
                except OSError:
                    shutil.copy2(source, part / name)
                    sync_file(part / name)
        sync_folder(part)
        part.rename(target)
        sync_folder(target.parent)
        return target


def read_state(data_dir: Path) -> dict[str, Any]:
    """Return which models a service has: see `ModelStore.read_state`."""
    path = data_dir / STATE_FILE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(state["previous"], list) or not isinstance(state["current"], str):
            raise TypeError
        return dict(state)
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path} is damaged. Delete it to start with the given run.") from None


def check_same_history(run: Run, stream: EventStream) -> None:
    """Raise RunError if the events that a run was trained on are not the first events of a stream."""
    trained = run.original_stream
    n, n_nodes = trained.n_events, trained.n_nodes
    is_same = (
        n <= stream.n_events
        and trained.ids.shared == stream.ids.shared
        and trained.time == stream.time
        and trained.edge_dim == stream.edge_dim
        and np.array_equal(trained.src, stream.src[:n])
        and np.array_equal(trained.dst, stream.dst[:n])
        and np.array_equal(trained.elapsed, stream.elapsed[:n])
        and trained.ids.names.cast("string").equals(stream.ids.names[:n_nodes].cast("string"))
    )
    if not is_same:
        raise RunError(
            f"{run.path} was trained on other events than those of this service. Train it on the first events of the "
            "service, or start a service with another --data-dir."
        )


def _load_once(run: Run) -> FirstScorerMaker:
    """Return a function that loads the first scorer of a run, or trains it, when it is called for the first time."""
    found: list[Any] = []

    def make_first_scorer(predictor: Predictor) -> Any:
        if not found:
            found.append(run.load_first_scorer(predictor))
        return found[0]

    return make_first_scorer


def _model_id(run: Run) -> str:
    weights = file_checksum(run.path / run.weights_file)
    return hashlib.sha256(f"{weights}\n{run.settings.to_toml()}".encode()).hexdigest()[:ID_LENGTH]
