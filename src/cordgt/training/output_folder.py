"""The folder that a training is given with --out: may it begin there, or go on with what the folder holds?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cordgt.errors import RunError
from cordgt.events.stream import EventStream
from cordgt.training.model_factory import load_weights, network_for
from cordgt.training.run_folder import BEFORE_CONFIG, InitWeights, RunConfig, RunFolder, every_setting, is_same_data
from cordgt.training.settings import Settings


class OtherRun(RunError):
    """A run folder that was read, and belongs to other settings or other data than those at hand."""


def check_same(folder: RunFolder, config: RunConfig, settings: Settings, stream: EventStream) -> None:
    """OtherRun if the run in ``folder``, with ``config``, has other settings or other data."""
    if config.settings != settings:
        differing = _differences(config.settings, settings)
        raise OtherRun(f"{folder.path} was begun with other settings: {differing}. Use the same, or another --out.")
    if not is_same_data(stream, config.data):
        raise OtherRun(f"{folder.path} was begun on other data. Use the same file, or another --out.")


def _differences(a: Settings, b: Settings) -> str:
    if a.model != b.model:
        return f"model {a.model}, now {b.model}"
    flat = [with_seed(s) for s in (a, b)]
    return "; ".join(
        f"{k}={json.dumps(v)}, now {json.dumps(flat[1][k])}" for k, v in flat[0].items() if flat[1][k] != v
    )


def with_seed(settings: Settings) -> dict[str, Any]:
    """Every setting by its key, and the seed."""
    return {"seed": settings.seed} | every_setting(settings)


def original_options(
    folder: RunFolder, config: RunConfig, init: InitWeights | None, refit: bool
) -> tuple[InitWeights | None, bool]:
    """The initial weights of an interrupted run, and whether it refits. RunError if ``init`` has other weights."""
    original = None
    if config.run.get("init"):
        origin = (str(config.run.get(key, "")) for key in ("init_run", "init_knows"))
        original = InitWeights(folder.read_tensors("init.safetensors")[0], *origin)
    if init is not None and (original is None or not _equal_weights(init.weights, original.weights)):
        how = "without" if original is None else "with another"
        raise RunError(f"{folder.path} was begun {how} --init. Use the same.")
    return original, refit or bool(config.run.get("refit"))


def _equal_weights(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def check_weights(start: dict[str, torch.Tensor] | None, settings: Settings, stream: EventStream) -> None:
    """SettingError where a model of these settings cannot start from the weights."""
    if start is None:
        return
    with torch.random.fork_rng(devices=[]):
        model = network_for(settings, stream)
    load_weights(model, start, "the run given to --init")


def default_folder(data: str, model: str, seed: int) -> Path:
    """``runs/NAME-MODEL-seedN``."""
    return Path("runs") / f"{data or 'events'}-{model}-seed{seed}"


def first_free(path: Path) -> Path:
    """``path``, or the first of ``path-2``, ``path-3``, … that does not exist."""
    n, found = 1, path
    while found.exists():
        n += 1
        found = path.with_name(f"{path.name}-{n}")
    return found


def check_free(path: Path) -> None:
    """A new run never mixes with what lies in a folder already."""
    if path.is_file():
        raise RunError(f"{path} is a file; --out names a folder.")
    left = [p.name for p in path.iterdir() if not _may_be_left(p.name)] if path.exists() else []
    if left:
        raise RunError(f"{path} is not empty (it holds {left[0]}). Choose another folder with --out.")


def _may_be_left(name: str) -> bool:
    """Whether a training that was cut off before it began may have left this file."""
    return name in BEFORE_CONFIG or (name.startswith(".") and name.endswith(".part"))


def check_free_for(out: Path, names: list[str], resume: bool) -> None:
    """RunError where runs of these names cannot begin in a folder: now, rather than when their turn comes."""
    if RunFolder(out).holds_run:
        raise RunError(f"{out} holds a run of one seed. Choose another folder with --out.")
    taken = [out / name for name in names if RunFolder(out / name).holds_run]
    if not resume and (taken or RunFolder(out).finished):
        raise taken_error((taken or [out])[0])


def taken_error(path: Path) -> RunError:
    return RunError(f"{path} already holds a run. Choose another folder with --out, or continue it with --resume.")
