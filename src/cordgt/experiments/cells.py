"""Cells: what tables are made of. A finished cell is a JSON file of a few kilobytes; folders are merged by copying.

FOLDER/cells/KIND/DATA/MODEL/VARIANT-seedN.json    a finished cell, written whole or not at all
FOLDER/runs/DATA/MODEL/VARIANT-seedN/              the run folder of one that is under way; `--keep` leaves it there
FOLDER/runs/DATA/MODEL/VARIANT-seedN.claim         locked by the process that works on it

A cell is trusted if it was made with the settings that are asked for now: where a default has changed since, it is
made again. A setting that did not exist then is taken for unchanged.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cordgt.errors import DataError, SettingError, nearest
from cordgt.files import is_still, write_text
from cordgt.io.datasets import registry
from cordgt.io.datasets.twins import SUFFIX, TWINS
from cordgt.models import MODELS
from cordgt.models.presets import paper_settings
from cordgt.tasks.run_metrics import rename_old_keys
from cordgt.training.run_folder import every_setting
from cordgt.training.settings import RENAMED_SETTINGS, Settings, make, upgrade_keys

FORMAT = 2  # 1: written by v0.1, with other names of settings
V01_NAMES = {new: old for old, new in RENAMED_SETTINGS.items()}
NOT_COMPARED = ("checkpoint_minutes",)  # settings that change no figure
QUICK_EVENTS = 1500  # of a stream, with --quick
QUICK = {"epochs": 1}
TRIES = 100  # to make a file whose folder another process takes away as an empty one


@dataclass(frozen=True)
class Cell:
    """One training, and what is measured of it: ``kind`` "link" for the figures that every training ends with."""

    data: str
    settings: Settings
    variant: str = "default"  # what differs from the published settings, as a word for file names
    kind: str = "link"
    quick: bool = False  # True: of the first events only, to see that it runs
    v01_variant: str = ""  # ``variant`` with the names of v0.1, whose files are found by it

    @property
    def model(self) -> str:
        return self.settings.model

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def label(self) -> str:
        """For people: ``uci, cordgt, mask-true, seed 0``."""
        what = [] if self.kind == "link" else [self.kind]
        which = [] if self.variant == "default" else [self.variant]
        return ", ".join([*what, self.data, self.model, *which, f"seed {self.seed}"])

    @property
    def place(self) -> Path:
        """Below the folders of cells and runs."""
        return Path(self.data) / self.model / f"{self.variant}-seed{self.seed}"

    @property
    def v01_place(self) -> Path:
        """``place`` in folders written by v0.1."""
        return self.place.with_name(f"{self.v01_variant or self.variant}-seed{self.seed}")

    def of_kind(self, kind: str) -> Cell:
        """The same training, with something else measured."""
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
    """The cell of a dataset, a model and a seed: published settings where there are some, then ``changes``.

    Each seed has its own draw of masked nodes. The variant names what the changes make different, in the words of the
    settings, so that the same training has one name, however it was asked for.
    """
    base: dict[str, Any] = paper_settings(data, model) | {"mask_seed": seed} | (QUICK if quick else {})
    usual = make(model, base, seed=seed)
    settings = make(model, base | dict(changes or {}), seed=seed, where="--set")
    before = flat(usual)
    differing = {k: v for k, v in flat(settings).items() if before[k] != v}
    v01_variant = _variant({V01_NAMES.get(k, k): v for k, v in differing.items()})
    return Cell(data, settings, _variant(differing) or "default", kind, quick, v01_variant)


def flat(settings: Settings) -> dict[str, Any]:
    """Every setting by name, as JSON has it: tuples are lists."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in every_setting(settings).items()}


def _variant(differing: Mapping[str, Any]) -> str:
    """``alpha-0.0_mask-true``."""

    def word(value: Any) -> str:
        if isinstance(value, list):
            return "x".join(map(str, value))
        return str(value).lower() if isinstance(value, bool) else str(value)

    return "_".join(f"{key}-{word(differing[key])}" for key in sorted(differing))


# -------------------- the folder


@dataclass(frozen=True)
class Store:
    """The folder of cells."""

    folder: Path

    def path(self, cell: Cell) -> Path:
        return self._file(cell, cell.place)

    def _file(self, cell: Cell, place: Path) -> Path:
        return self.folder / "cells" / cell.kind / place.with_name(f"{place.name}.json")

    def run_folder(self, cell: Cell) -> Path:
        return self.folder / "runs" / cell.place

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """What a finished cell says; None where there is none, it is damaged, or it was made with other settings."""
        for path in dict.fromkeys(self._file(cell, place) for place in (cell.place, cell.v01_place)):
            found = read_cell(path)
            if found is None or found["seed"] != cell.seed or found["model"] != cell.model:
                continue
            if not _differs(found["settings"], flat(cell.settings)):
                return found
        return None

    def write(self, cell: Cell, found: Mapping[str, Any]) -> None:
        """Keep a finished cell, whole or not at all."""
        path = self.path(cell)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{path.parent} cannot be written: {error.strerror or error}.") from None
        text = json.dumps({"format": FORMAT, **found}, indent=1, allow_nan=False) + "\n"
        write_text(path, text)

    def spent(self, cell: Cell) -> float:
        """Seconds that earlier attempts took."""
        try:
            return float(json.loads(self._claim_path(cell).read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, TypeError, KeyError):
            return 0.0

    def note_spent(self, cell: Cell, seconds: float) -> None:
        """Remember in the claim how long attempts took so far. Written in place: a lock is on the file itself."""
        with suppress(OSError):
            self._claim_path(cell).write_text(json.dumps({"seconds": seconds, "by": os.uname().nodename}) + "\n")

    def _claim_path(self, cell: Cell) -> Path:
        path = self.run_folder(cell)
        return path.with_name(f"{path.name}.claim")

    @contextmanager
    def claimed(self, cell: Cell) -> Iterator[bool]:
        """True while the cell's training is ours alone; False where another process works on it, here or elsewhere.

        The system lets go of a claim when its process ends, however it ends. Across machines this needs a file system
        with locks; without, give each machine its own folder and copy the cells together.
        """
        path = self._claim_path(cell)
        handle = _lock(path)
        if handle is None:
            yield False
            return
        try:
            yield True
        finally:
            # nothing to go on from: failed before it began, or finished, and then the file may be another's by now
            if not self.run_folder(cell).exists() and is_still(path, handle):
                path.unlink(missing_ok=True)
            os.close(handle)

    def clear(self, cell: Cell, *, keep: bool) -> None:
        """After a cell is finished: its run folder goes, unless it is to be kept, and so does the claim."""
        if not keep:
            shutil.rmtree(self.run_folder(cell), ignore_errors=True)
        self._claim_path(cell).unlink(missing_ok=True)
        self.sweep()

    def sweep(self) -> None:
        """Empty folders of runs go, up to the folder itself; not those where a training is just about to begin."""
        root = self.folder / "runs"
        below = [p for p in root.rglob("*") if p.is_dir()] if root.is_dir() else []
        below = [p for p in below if not p.with_name(f"{p.name}.claim").exists()]
        for path in [*sorted(below, reverse=True), root, self.folder]:
            with suppress(OSError):  # not empty, or somebody else was faster
                path.rmdir()

    def every(self, kind: str) -> list[dict[str, Any]]:
        """All finished cells of a kind, whatever their settings; damaged ones are left out."""
        found = [read_cell(path) for path in sorted((self.folder / "cells" / kind).rglob("*.json"))]
        return [cell for cell in found if cell is not None]


def _lock(path: Path) -> int | None:
    """A handle on the file of a claim, locked; None where another process has it."""
    while True:
        handle = _open(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            return handle  # a file system without locks: nobody can be kept out there
        if is_still(path, handle):
            return handle
        os.close(handle)  # removed by its owner before the lock was ours: it keeps nobody out any more


def _open(path: Path) -> int:
    """A handle on a file that is made, with its folders, where there is none. DataError where that cannot be."""
    tries = 0
    while True:
        tries += 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            swept = isinstance(error, FileNotFoundError | FileExistsError)  # by another process, in between
            if not swept or tries == TRIES:
                raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None


NEEDED = ("kind", "data", "model", "seed", "variant", "settings", "stream", "figures", "seconds", "device")


def read_cell(path: Path) -> dict[str, Any] | None:
    """A cell's file; None where it is missing, damaged, or of another format."""
    try:
        found = rename_old_keys(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("format") not in (1, FORMAT) or any(key not in found for key in NEEDED):
        return None
    if not isinstance(found["settings"], dict):
        return None
    if found["format"] == 1:
        found["settings"] = upgrade_keys(found["settings"], str(found["model"]))
    return found


def _differs(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return any(then[k] != now[k] for k in then.keys() & now.keys() if k not in NOT_COMPARED)


# -------------------- what is asked for


def parse_seeds(text: str) -> list[int]:
    """``3`` is the seeds 0, 1, 2; ``0,4`` those two, and ``4,`` that one."""
    words = [word.strip() for word in text.split(",")]
    try:
        seeds = list(range(int(words[0]))) if len(words) == 1 else [int(word) for word in words if word]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise SettingError(f"--seeds {text}: it is a number of seeds, as in 3, or the seeds themselves, as in 0,1,2.")
    return list(dict.fromkeys(seeds))


def parse_models(text: str, usual: Sequence[str]) -> list[str]:
    """``all``, or names with commas between; ``usual`` are those that can be asked for here."""
    if text == "all":
        return list(usual)
    asked = [word.strip() for word in text.split(",") if word.strip()]
    for word in asked:
        if word not in MODELS:
            raise SettingError(f"--models: there is no model '{word}'.{nearest(word, MODELS)}")
        if word not in usual:
            raise SettingError(f"--models: {word} has no place in this table; possible are {', '.join(usual)}.")
    if not asked:
        raise SettingError("--models: no model is named.")
    return list(dict.fromkeys(asked))


def parse_shard(text: str | None) -> tuple[int, int]:
    """``2/3``: the second of three shares of the cells. Counted from 1; without it, the one and only."""
    if text is None:
        return 1, 1
    k, sign, n = text.partition("/")
    if not (sign and k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise SettingError(f"--shard {text}: it is written K/N, as in 2/3, with K from 1 to N.")
    return int(k), int(n)


def at_hand(data: str) -> bool:
    """Whether a dataset's name can be loaded on this machine."""
    return data in registry.GENERATED or registry.find(data) is not None


def _folders() -> str:
    """Where datasets are looked for by name."""
    others = "" if os.environ.get("CORDGT_DATA") else " ($CORDGT_DATA names another)"
    return ", ".join(map(str, registry.data_folders())) + others


def none_at_hand(names: Sequence[str]) -> str:
    """What to say where a table has no data to be made of."""
    return (
        f"None of the datasets of this table is at hand: {', '.join(names)}. Fetch one (`cordgt data fetch NAME`), put "
        f"NAME/ml_NAME.csv into one of {_folders()}, or name others with --datasets: "
        "`cordgt data list`."
    )


def twin_where_missing(data: str) -> str:
    """A dataset's name; its twin's where it is not at hand and has one."""
    twin = f"{data}{SUFFIX}"
    return twin if twin in TWINS and not at_hand(data) else data


def choose_datasets(asked: str | None, usual: Sequence[str], *, trained: bool = True, twins: bool = False) -> list[str]:
    """The datasets of a table: those asked for, or of the usual ones those at hand (their twins where ``twins``).

    DataError where one that is asked for is not at hand, or none is; with ``trained`` False they need not be, for
    finished cells can be tabled anywhere.
    """
    if asked is None:
        names = [twin_where_missing(name) for name in usual] if twins else usual
        found = [name for name in names if not trained or at_hand(name)]
        if not found:
            raise DataError(none_at_hand(usual))
        return found
    chosen = list(dict.fromkeys(word.strip() for word in asked.split(",") if word.strip()))
    if not chosen:
        raise SettingError("--datasets: no dataset is named.")
    for name in chosen:
        if any(sign in name for sign in ("/", os.sep, ".")):
            raise SettingError(
                f"--datasets {name}: datasets are named here, not paths. To name your own, put it as NAME/ml_NAME.csv "
                f"into one of {_folders()}; `cordgt data list` shows what there is."
            )
        if trained and not at_hand(name):
            registry.resolve(name)  # says what is missing, and where it was looked for
            raise DataError(f"--datasets {name}: that is a file here, not a dataset by name (see `cordgt data list`).")
    return chosen


def finite(value: Any) -> Any:
    """A figure as JSON may hold it: None for what is not a number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
