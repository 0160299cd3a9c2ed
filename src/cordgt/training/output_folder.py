"""Check the folder given with --out: may a run start there, or continue the run it contains?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from cordgt.errors import RunError, SettingError
from cordgt.events.stream import EventStream
from cordgt.training.model_factory import build_model_for, load_weights
from cordgt.training.run_folder import (
    FILES_BEFORE_CONFIG,
    InitWeights,
    RunConfig,
    RunFolder,
    is_same_data,
    settings_by_key,
)
from cordgt.training.settings import Settings


class RunMismatchError(RunError):
    """The run in a folder has other settings or other data than requested."""


def check_same_run(folder: RunFolder, config: RunConfig, settings: Settings, stream: EventStream) -> None:
    """Raise RunMismatchError if the run in ``folder``, with ``config``, has other settings or other data."""
    if config.settings != settings:
        differing = _differences(config.settings, settings)
        raise RunMismatchError(
            f"{folder.path} was started with other settings: {differing}. Use the same settings, or another --out."
        )
    if not is_same_data(stream, config.data):
        raise RunMismatchError(f"{folder.path} was started with other data. Use the same data, or another --out.")


def _differences(a: Settings, b: Settings) -> str:
    if a.model != b.model:
        return f"model {a.model}, now {b.model}"
    flat = [flatten_with_seed(s) for s in (a, b)]
    return "; ".join(
        f"{k}={json.dumps(v)}, now {json.dumps(flat[1][k])}" for k, v in flat[0].items() if flat[1][k] != v
    )


def flatten_with_seed(settings: Settings) -> dict[str, Any]:
    """Return every setting by its key, and the seed."""
    return {"seed": settings.seed} | settings_by_key(settings)


def original_options(
    folder: RunFolder, config: RunConfig, init: InitWeights | None, refit: bool
) -> tuple[InitWeights | None, bool]:
    """Return the initial weights of an interrupted run, and whether it refits. RunError if ``init`` differs."""
    original = None
    if config.run.get("init"):
        origin = (str(config.run.get(key, "")) for key in ("init_run", "init_knows"))
        original = InitWeights(folder.read_tensors("init.safetensors")[0], *origin)
    if init is not None and (original is None or not _equal_weights(init.weights, original.weights)):
        how = "without" if original is None else "with another"
        raise RunError(f"{folder.path} was started {how} --init. Use the same --init, or another --out.")
    return original, refit or bool(config.run.get("refit"))


def _equal_weights(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def check_init_weights(weights: dict[str, torch.Tensor] | None, settings: Settings, stream: EventStream) -> None:
    """Raise SettingError if a model of these settings cannot start from the weights."""
    if weights is None:
        return
    with torch.random.fork_rng(devices=[]):
        model = build_model_for(settings, stream)
    load_weights(model, weights, "the run given to --init")


def default_folder(data: str, model: str, seed: int) -> Path:
    """Return ``runs/NAME-MODEL-seedN``."""
    return Path("runs") / f"{data or 'events'}-{model}-seed{seed}"


def fill_placeholders(path: str, now: datetime) -> str:
    """Return ``path`` with the date for ``{date}`` (2026-11-16) and the time for ``{time}`` (023000)."""
    values = {"date": f"{now:%Y-%m-%d}", "time": f"{now:%H%M%S}"}

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise SettingError(f"--out {path}: {match[0]} is not known. Use {{date}} or {{time}}.")
        return values[match[1]]

    return re.sub(r"\{(.*?)\}", fill, path)


def next_free_path(path: Path) -> Path:
    """Return ``path``, or the first of ``path-2``, ``path-3``, … that does not exist."""
    n, found = 1, path
    while found.exists():
        n += 1
        found = path.with_name(f"{path.name}-{n}")
    return found


def check_empty_folder(path: Path) -> None:
    """Raise RunError if a folder contains other files: a new run never mixes with them."""
    if path.is_file():
        raise RunError(f"{path} is a file, but --out must name a folder.")
    others = [p.name for p in path.iterdir() if not is_leftover(p.name)] if path.exists() else []
    if others:
        raise RunError(f"{path} is not empty (it contains {others[0]}). Choose another folder with --out.")


def is_leftover(name: str) -> bool:
    """Return whether a training that was killed before config.toml was written may have left this file."""
    return name in FILES_BEFORE_CONFIG or (name.startswith(".") and name.endswith(".part"))


def check_run_names(out: Path, names: list[str], resume: bool) -> None:
    """Raise RunError if runs of these names cannot start in a folder. Called before the first of them starts."""
    if RunFolder(out).has_run:
        raise RunError(f"{out} already holds a run of one seed. Choose another folder with --out.")
    taken = [out / name for name in names if RunFolder(out / name).has_run]
    if not resume and (taken or RunFolder(out).is_finished):
        raise run_exists_error((taken or [out])[0])


def run_exists_error(path: Path) -> RunError:
    return RunError(
        f"{path} already holds a run. Choose another folder with --out, continue it with --resume, or use --replace to "
        "keep it as an earlier version."
    )
