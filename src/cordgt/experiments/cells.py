"""Cells: one training each, from which tables are made. A finished cell is a JSON file of a few kilobytes.

FOLDER/cells/KIND/DATA/MODEL/VARIANT-seedN.json    result of a finished cell, written atomically
FOLDER/runs/DATA/MODEL/VARIANT-seedN/              run folder of an unfinished cell; `--keep` keeps it afterwards
FOLDER/runs/DATA/MODEL/VARIANT-seedN.claim         locked by the process that works on the cell

Copy the ``cells`` folders of several machines together to merge them. A result is used only if its settings are the
requested ones, so a changed default makes the cell again; settings unknown to the older version count as unchanged.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cordgt.errors import DataError, SettingError, did_you_mean
from cordgt.files import write_text
from cordgt.io.datasets import registry
from cordgt.io.datasets.twins import TWIN_SUFFIX, TWINS
from cordgt.locks import is_lock_of, try_lock
from cordgt.models import MODELS
from cordgt.models.presets import published_settings
from cordgt.tasks.run_metrics import rename_old_keys
from cordgt.training.run_folder import settings_by_key
from cordgt.training.settings import RENAMED_SETTINGS, Settings, make_settings, upgrade_keys

FORMAT = 2  # 1: written by v0.1, with other setting names
OLD_NAMES = {new: old for old, new in RENAMED_SETTINGS.items()}
IGNORED_SETTINGS = ("checkpoint_minutes",)  # they do not change results
# Values that make the same cell. A GPU trains in bfloat16 by default, a CPU only with bf16-cpu.
SAME_VALUES = {"precision": {"bf16-cpu": "bf16"}}
QUICK_EVENTS = 1500  # events used with --quick
QUICK_SETTINGS = {"epochs": 1}
MAX_OPEN_ATTEMPTS = 100  # another process may remove the empty folder of a new file
CellResult = dict[str, Any]  # content of a finished cell's file; "figures" has its metrics


@dataclass(frozen=True)
class Cell:
    """One training and the measurement made on it; ``kind`` "link" is the evaluation at the end of every training."""

    data: str
    settings: Settings
    variant: str = "default"  # names the changes to the published settings, for file names
    kind: str = "link"
    quick: bool = False  # uses only the first events, as a smoke test
    v01_variant: str = ""  # ``variant`` with the setting names of v0.1, to find its files

    @property
    def model(self) -> str:
        return self.settings.model

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def label(self) -> str:
        """Return e.g. ``uci, cordgt, mask-true, seed 0``, for messages."""
        kind = [] if self.kind == "link" else [self.kind]
        variant = [] if self.variant == "default" else [self.variant]
        return ", ".join([*kind, self.data, self.model, *variant, f"seed {self.seed}"])

    @property
    def relative_path(self) -> Path:
        """Path below the folders of cells and runs, without a suffix."""
        return Path(self.data) / self.model / f"{self.variant}-seed{self.seed}"

    @property
    def v01_relative_path(self) -> Path:
        """``relative_path`` in folders written by v0.1."""
        return self.relative_path.with_name(f"{self.v01_variant or self.variant}-seed{self.seed}")

    def with_kind(self, kind: str) -> Cell:
        """Return the same training with another measurement."""
        return replace(self, kind=kind)


def make_cell(
    data: str,
    model: str,
    seed: int,
    changes: Mapping[str, Any] | None = None,
    *,
    kind: str = "link",
    quick: bool = False,
) -> Cell:
    """Build the cell of a dataset, a model and a seed: published settings if there are any, then ``changes``.

    Each seed masks other nodes. The variant lists the settings that really differ, so the same training always has
    the same name.
    """
    base: dict[str, Any] = published_settings(data, model) | {"mask_seed": seed} | (QUICK_SETTINGS if quick else {})
    defaults = flatten_settings(make_settings(model, base, seed=seed))
    settings = make_settings(model, base | dict(changes or {}), seed=seed, where="--set")
    different = {k: v for k, v in flatten_settings(settings).items() if _is_different(k, defaults[k], v)}
    v01_variant = _format_variant({OLD_NAMES.get(k, k): v for k, v in different.items()})
    return Cell(data, settings, _format_variant(different) or "default", kind, quick, v01_variant)


def flatten_settings(settings: Settings) -> dict[str, Any]:
    """Return every setting by name, with lists instead of tuples, as in JSON."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in settings_by_key(settings).items()}


def format_value(value: Any, separator: str) -> str:
    """Format a setting's value: ``true`` for True, the items of a list joined by ``separator``."""
    if isinstance(value, list):
        return separator.join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _format_variant(different: Mapping[str, Any]) -> str:
    """Return e.g. ``alpha-0.0_mask-true``."""
    return "_".join(f"{key}-{format_value(different[key], 'x')}" for key in sorted(different))


# -------------------- the folder of cells


@dataclass(frozen=True)
class CellStore:
    """Reads, writes and locks the cells below a folder."""

    folder: Path

    def path(self, cell: Cell) -> Path:
        return self._json_path(cell, cell.relative_path)

    def _json_path(self, cell: Cell, relative_path: Path) -> Path:
        return self.folder / "cells" / cell.kind / relative_path.with_name(f"{relative_path.name}.json")

    def run_folder(self, cell: Cell) -> Path:
        return self.folder / "runs" / cell.relative_path

    def read(self, cell: Cell) -> CellResult | None:
        """Return the result of a finished cell; None if it is missing, damaged, or made with other settings."""
        for relative_path in dict.fromkeys((cell.relative_path, cell.v01_relative_path)):
            result = read_cell(self._json_path(cell, relative_path))
            if result is None or result["seed"] != cell.seed or result["model"] != cell.model:
                continue
            if not _differs(result["settings"], flatten_settings(cell.settings)):
                return result
        return None

    def write(self, cell: Cell, result: CellResult) -> None:
        """Write the result of a finished cell atomically."""
        path = self.path(cell)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{path.parent} cannot be written: {error.strerror or error}.") from None
        write_text(path, json.dumps({"format": FORMAT, **result}, indent=1, allow_nan=False) + "\n")

    def elapsed_seconds(self, cell: Cell) -> float:
        """Return the seconds that earlier attempts took."""
        try:
            return float(json.loads(self._claim_path(cell).read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, TypeError, KeyError):
            return 0.0

    def write_elapsed(self, cell: Cell, seconds: float) -> None:
        """Write the seconds of all attempts so far to the claim file. In place, because the file itself is locked."""
        with suppress(OSError):
            self._claim_path(cell).write_text(json.dumps({"seconds": seconds, "by": platform.node()}) + "\n")

    def _claim_path(self, cell: Cell) -> Path:
        path = self.run_folder(cell)
        return path.with_name(f"{path.name}.claim")

    @contextmanager
    def claim(self, cell: Cell) -> Iterator[bool]:
        """Lock the cell; yield False if another process, here or on another machine, has locked it.

        The operating system releases the lock when its process ends. Several machines need a file system with locks;
        without one, use one folder per machine and copy the cells together.
        """
        path = self._claim_path(cell)
        handle = _lock(path)
        if handle is None:
            yield False
            return
        try:
            yield True
        finally:
            # no run to resume: it failed early, or it finished and the file may belong to another process now
            if not self.run_folder(cell).exists() and is_lock_of(path, handle):
                path.unlink(missing_ok=True)
            os.close(handle)

    def remove_run(self, cell: Cell, *, keep: bool) -> None:
        """Remove the claim of a finished cell and, unless ``keep``, its run folder."""
        if not keep:
            shutil.rmtree(self.run_folder(cell), ignore_errors=True)
        self._claim_path(cell).unlink(missing_ok=True)
        self.remove_empty_folders()

    def remove_empty_folders(self) -> None:
        """Remove empty run folders, up to ``folder`` itself, except claimed ones: their training is about to start."""
        root = self.folder / "runs"
        folders = [p for p in root.rglob("*") if p.is_dir() and not p.with_name(f"{p.name}.claim").exists()]
        for path in [*sorted(folders, reverse=True), root, self.folder]:
            with suppress(OSError):  # not empty, or removed by another process
                path.rmdir()

    def read_all(self, kind: str) -> list[CellResult]:
        """Return all finished cells of a kind, with any settings, except damaged ones."""
        results = [read_cell(path) for path in sorted((self.folder / "cells" / kind).rglob("*.json"))]
        return [result for result in results if result is not None]


def _lock(path: Path) -> int | None:
    """Lock a claim file and return its descriptor; None if another process has locked it."""
    while True:
        handle = _open_or_create(path)
        if not try_lock(handle):
            os.close(handle)
            return None
        if is_lock_of(path, handle):
            return handle
        os.close(handle)  # its owner removed it before we locked it: try the new file


def _open_or_create(path: Path) -> int:
    """Open a file, creating it and its folders if needed. Raise DataError if it cannot be written."""
    error: OSError
    for _ in range(MAX_OPEN_ATTEMPTS):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except (FileNotFoundError, FileExistsError) as caught:  # another process removed the folder in between
            error = caught
        except OSError as caught:
            error = caught
            break
    raise DataError(f"{path} cannot be written: {error.strerror or error}.")


REQUIRED_KEYS = ("kind", "data", "model", "seed", "variant", "settings", "stream", "figures", "seconds", "device")


def read_cell(path: Path) -> CellResult | None:
    """Read a cell's file; None if it is missing, damaged, or has another format."""
    try:
        result = rename_old_keys(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(result, dict) or result.get("format") not in (1, FORMAT):
        return None
    if not result.keys() >= set(REQUIRED_KEYS) or not isinstance(result["settings"], dict):
        return None
    if result["format"] == 1:
        result["settings"] = upgrade_keys(result["settings"], str(result["model"]))
    return result


def _differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return any(_is_different(k, old[k], new[k]) for k in old.keys() & new.keys() if k not in IGNORED_SETTINGS)


def _is_different(key: str, a: Any, b: Any) -> bool:
    same = SAME_VALUES.get(key)
    return bool(same.get(a, a) != same.get(b, b) if same else a != b)


# -------------------- options of the command line


def _split(text: str) -> list[str]:
    """Split a comma-separated list; without empty items and duplicates."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def parse_seeds(text: str) -> list[int]:
    """Return the seeds: ``3`` means 0, 1, 2; ``0,4`` means these two; ``4,`` means seed 4."""
    try:
        seeds = [int(word) for word in _split(text)] if "," in text else list(range(int(text)))
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise SettingError(f"--seeds {text}: give a number of seeds, such as 3, or a list of seeds, such as 0,1,2.")
    return list(dict.fromkeys(seeds))


def parse_models(text: str, supported: Sequence[str]) -> list[str]:
    """Return the models of a comma-separated list, or all that the experiment supports for ``all``."""
    if text == "all":
        return list(supported)
    names = _split(text)
    for name in names:
        if name not in MODELS:
            raise SettingError(f"--models: there is no model '{name}'.{did_you_mean(name, MODELS)}")
        if name not in supported:
            raise SettingError(
                f"--models: this experiment does not support {name}; choose from {', '.join(supported)}."
            )
    if not names:
        raise SettingError("--models: the list is empty.")
    return names


def parse_shard(text: str | None) -> tuple[int, int]:
    """Return (K, N) of ``K/N``, the K-th of N shares of the cells, counted from 1; (1, 1) for None."""
    if text is None:
        return 1, 1
    k, slash, n = text.partition("/")
    if not (slash and k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise SettingError(f"--shard {text}: give K/N, such as 2/3, with K from 1 to N.")
    return int(k), int(n)


def is_available(data: str) -> bool:
    """Return whether a dataset can be loaded by name on this machine."""
    return data in registry.GENERATED or registry.find_dataset(data) is not None


def _data_folders_text() -> str:
    hint = "" if os.environ.get("CORDGT_DATA") else " (or set $CORDGT_DATA to another folder)"
    return ", ".join(map(str, registry.data_folders())) + hint


def no_dataset_message(names: Sequence[str]) -> str:
    """Return the error message of an experiment without data."""
    return (
        f"None of this experiment's datasets is on this machine: {', '.join(names)}. Download one with "
        f"`cordgt data fetch NAME`, put NAME/ml_NAME.csv into one of {_data_folders_text()}, or choose others with "
        "--datasets; `cordgt data list` shows them."
    )


def twin_if_missing(data: str) -> str:
    """Return a dataset's name, or its twin's if only the twin is available."""
    twin = f"{data}{TWIN_SUFFIX}"
    return twin if twin in TWINS and not is_available(data) else data


def choose_datasets(
    text: str | None, defaults: Sequence[str], *, require_data: bool = True, twins: bool = False
) -> list[str]:
    """Return the datasets of a comma-separated list, or the available ones of ``defaults`` if ``text`` is None.

    ``twins`` replaces missing defaults by their twins. Raise DataError if a dataset of the list is missing, or if no
    default is available. With ``require_data`` False none needs to be: a report needs only finished cells.
    """
    if text is None:
        candidates = [twin_if_missing(name) for name in defaults] if twins else defaults
        available = [name for name in candidates if not require_data or is_available(name)]
        if not available:
            raise DataError(no_dataset_message(defaults))
        return available
    names = _split(text)
    if not names:
        raise SettingError("--datasets: the list is empty.")
    for name in names:
        if any(character in name for character in ("/", os.sep, ".")):
            raise SettingError(
                f"--datasets {name}: give dataset names, not paths. To use your own data, save it as NAME/ml_NAME.csv "
                f"in one of {_data_folders_text()}; `cordgt data list` shows all datasets."
            )
        if require_data and not is_available(name):
            registry.resolve_path(name)  # raises an error with the folders searched
            raise DataError(f"--datasets {name} is a file, not a dataset name; `cordgt data list` shows all names.")
    return names


def nan_to_none(value: Any) -> Any:
    """Return None for NaN and infinity, which JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
