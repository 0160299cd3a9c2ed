"""Settings of a run: frozen dataclasses with checked values, read from and written to TOML.

`make_settings` builds them from keys and values; an unknown key is an error that names the nearest known one. The
protocol's settings are in `cordgt.tasks.protocol`, those of a model in its own module.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cordgt import models
from cordgt.errors import SettingError, check_choice, did_you_mean
from cordgt.nn.layers import check_non_negative, check_positive
from cordgt.plugins import check_extension
from cordgt.tasks.metrics import LINK_METRICS
from cordgt.tasks.negatives import NEGATIVES
from cordgt.tasks.protocol import Protocol

DEFAULT_RANKING = "100"  # candidates that a monitor such as mrr ranks, if `ranking` is not given
# Of config.toml and of the run folder. 1: written by v0.1, with the old names below. 2: weights not bound to the run.
FORMAT = 3

# Settings of v0.1 by their new names. Old files are upgraded on reading; a user who gives an old name gets an error.
RENAMED_SETTINGS = {
    "drawn": "num_negatives",
    "judge": "monitor",
    "average": "ema_decay",
    "tolerance": "min_delta",
    "pieces": "micro_batches",
    "train_part": "train_ratio",
    "validation_part": "val_ratio",
    "eval_batch": "eval_batch_size",
    "neighbours": "num_neighbors",
    "walks": "num_walks",
    "length": "max_seq_len",
    "patch": "patch_size",
    "rows": "num_embeddings",
    "slots": "slot_features",
    "pairs": "pair_features",
    "never_met": "td_unseen",
    "absent": "sd_unseen",
}


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the training loop, the same for all models."""

    epochs: int = 50  # maximum number of passes over the training events
    batch_size: int = 100  # events per training step
    lr: float = 0.001  # learning rate of Adam
    patience: int = 3  # stop after this many epochs without improvement on validation data
    monitor: str = "ap"  # validation metric that selects the epoch; one of ranks, such as "mrr", sets ranking=100
    min_delta: float = 1e-4  # smallest relative improvement that counts
    num_negatives: int = 1  # negatives per training event
    train_negatives: str = "random"  # kind of negatives in training; see `cordgt.tasks.negatives`
    past_negatives: float = 0.0  # share of random training negatives to replace by past partners of the source
    hidden_candidates: float = 0.0  # share of training candidates that the source never met, shown as new nodes
    ema_decay: float = 0.0  # decay of the moving average of the weights, e.g. 0.999; 0: no average
    precision: str = "bf16"  # on a GPU: "bf16" (training only, if supported), "tf32", "fp32"; "bf16-cpu": on CPUs too
    micro_batches: int = 0  # split each batch; the same bits with any number of processes (CPU). 0: fastest
    checkpoint_minutes: float = 10.0  # minutes between checkpoints; every epoch also ends with one

    def __post_init__(self) -> None:
        check_positive(self, "epochs", "batch_size", "patience", "num_negatives")
        check_non_negative(self, "min_delta")
        if not 0 < self.lr < float("inf"):
            raise SettingError(f"lr={self.lr}: the learning rate must be above 0.")
        if not 0 <= self.ema_decay < 1:
            raise SettingError(f"ema_decay={self.ema_decay}: use a number from 0 to below 1, such as 0.999; 0 is off.")
        if not 0 <= self.past_negatives < 1:
            raise SettingError(f"past_negatives={self.past_negatives}: use a share from 0 to below 1, such as 0.5.")
        if self.past_negatives and self.train_negatives != "random":
            raise SettingError("past_negatives replaces random negatives: remove it, or set train_negatives=random.")
        if not 0 <= self.hidden_candidates < 1:
            raise SettingError(
                f"hidden_candidates={self.hidden_candidates}: use a share from 0 to below 1, such as 0.1."
            )
        if self.micro_batches < 0:
            raise SettingError(f"micro_batches={self.micro_batches}: use a number from 1 up, or 0 for the fastest way.")
        if not self.checkpoint_minutes >= 0:
            raise SettingError(f"checkpoint_minutes={self.checkpoint_minutes}: use a number from 0 up.")
        check_choice("precision", self.precision, ("tf32", "bf16", "bf16-cpu", "fp32"))
        check_extension("monitor", self.monitor, LINK_METRICS)
        check_extension("train_negatives", self.train_negatives, NEGATIVES)
        if NEGATIVES[self.train_negatives].replaces_source:
            raise SettingError(
                f"train_negatives={self.train_negatives}: these negatives replace the source too, which is possible "
                f"only at evaluation (--set negatives={self.train_negatives})."
            )


@dataclass(frozen=True)
class Settings:
    """All settings of a run."""

    model: str = "cordgt"  # name in `cordgt.models.MODELS`
    seed: int = 0  # of weights, dropout, sampling and training negatives
    protocol: Protocol = field(default_factory=Protocol)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    model_settings: Any = field(default_factory=models.find_model("cordgt").settings)  # the model's own dataclass
    unused: tuple[str, ...] = field(default=(), compare=False)  # given keys that this model does not read
    notes: tuple[str, ...] = field(default=(), compare=False)  # sentences about values that follow from given ones

    def __post_init__(self) -> None:
        monitor = self.training.monitor
        if LINK_METRICS[monitor].needs_ranks and self.protocol.ranking == "none":
            raise SettingError(
                f"monitor={monitor} selects the epoch by ranks, but ranking=none measures none. Set ranking to a "
                f"number of candidates (--set ranking={DEFAULT_RANKING}), or to all."
            )

    def to_toml(self) -> str:
        """Return the text of ``config.toml``. `from_toml` reads it back to an equal object."""
        tables = {"protocol": self.protocol, "training": self.training, "settings": self.model_settings}
        lines = [f"model = {toml_value(self.model)}", f"seed = {self.seed}"]
        for title, table in tables.items():
            lines += [f"\n[{title}]", *toml_lines({f.name: getattr(table, f.name) for f in dataclasses.fields(table)})]
        return "\n".join(lines) + "\n"


class ParsedSettings(NamedTuple):
    """The content of a TOML file of settings. ``model`` and ``seed`` are None if the file does not set them."""

    model: str | None
    seed: int | None
    keys: dict[str, Any]
    is_run_config: bool = False  # True: the config.toml of a run, which has a format and every key of its model


def parse_toml(text: str, where: str) -> ParsedSettings:
    """Read a run's ``config.toml``, or a user's file with any part of it. Keys and values are not checked yet.

    A file of format 1 has the names of v0.1: its keys are upgraded.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # bad TOML, numbers too long, arrays too deep
        raise SettingError(f"{where} is not valid TOML: {str(error).rstrip('.')}.") from None
    return _parse_tables(tables, where)


def _parse_tables(tables: Mapping[str, Any], where: str) -> ParsedSettings:
    """`parse_toml` for tables of parsed TOML."""
    check_config_format(tables.get("format", FORMAT), where)
    keys: dict[str, Any] = {}
    for key, value in tables.items():
        if key in ("model", "seed", "format", "data", "run"):  # the last three are of a run's config.toml; no settings
            continue
        if not isinstance(value, dict):
            keys[key] = value
        elif key in ("protocol", "training", "settings"):
            keys |= value
        else:
            hint = did_you_mean(key, ("protocol", "training", "settings"))
            raise SettingError(f"{where}: there is no table [{key}].{hint}")
    model = None if tables.get("model") is None else str(tables["model"])
    keys = upgrade_keys(keys, model) if tables.get("format") == 1 else keys
    if "format" in tables and model == "cordgt_plus":
        keys.setdefault("counts_blend", False)  # a run of an older version, which has no `Counts` network
    return ParsedSettings(model, tables.get("seed"), keys, is_run_config="format" in tables)


def check_config_format(number: Any, where: str) -> None:
    """Raise SettingError if this version cannot read a config.toml of this format."""
    if isinstance(number, bool) or number not in range(1, FORMAT + 1):
        raise SettingError(
            f"{where} has format {_shorten(number)}, but this version reads formats 1 to {FORMAT}. Use the version of "
            "cordgt that wrote it, or remove the line if you wrote the file yourself."
        )


def upgrade_keys(keys: Mapping[str, Any], model: str | None = None) -> dict[str, Any]:
    """Return settings of v0.1 under their new names. Keys that ``model`` itself declares stay as they are."""
    own = typing.get_type_hints(models.MODELS[model].settings) if model is not None and model in models.MODELS else {}
    return {key if key in own else RENAMED_SETTINGS.get(key, key): value for key, value in keys.items()}


def from_toml(text: str, where: str) -> Settings:
    """Read `Settings.to_toml` back. ``where`` names the file in errors."""
    return _from_parsed(parse_toml(text, where), where)


def from_tables(tables: Mapping[str, Any], where: str) -> Settings:
    """`from_toml` for tables of parsed TOML."""
    return _from_parsed(_parse_tables(tables, where), where)


def _from_parsed(parsed: ParsedSettings, where: str) -> Settings:
    seed = 0 if parsed.seed is None else parsed.seed
    return make_settings("cordgt" if parsed.model is None else parsed.model, parsed.keys, seed=seed, where=where)


def make_settings(model: str, given: Mapping[str, Any], *, seed: int = 0, where: str = "settings") -> Settings:
    """Build the settings of a model. ``given`` maps keys to values or their text; other keys get their defaults.

    Keys that this model does not read are listed in ``unused``; see `check_all_used`. An unknown key is a SettingError.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not -(2**63) <= seed < 2**63:
        raise SettingError(f"{where}: seed={_shorten(seed)}: use a 64-bit integer.")
    spec = models.find_model(model)
    tables: dict[str, type[Any]] = {"protocol": Protocol, "training": TrainingSettings, "model_settings": spec.settings}
    types = {name: typing.get_type_hints(table) for name, table in tables.items()}
    for key in types["model_settings"]:
        if key in ("model", "seed") or key in types["protocol"] or key in types["training"]:
            raise SettingError(f"The model '{model}' has a setting '{key}', which every model has already. Rename it.")
    values: dict[str, dict[str, Any]] = {name: {} for name in tables}
    unused = []
    for key, value in given.items():
        table = next((name for name in tables if key in types[name]), None)
        if table is not None:
            values[table][key] = convert_value(key, value, types[table][key])
            if table == "training" and not spec.network.is_trainable:
                unused.append(key)
        elif key in known_keys():
            unused.append(key)
        elif key in ("model", "seed"):
            raise SettingError(f"{where}: '{key}' has an option of its own; use --{key}.")
        else:
            raise SettingError(f"{where}: {unknown_setting(key)}")
    values["training"] = spec.training | values["training"]
    notes = []
    monitor = values["training"].get("monitor", "")
    if monitor in LINK_METRICS and LINK_METRICS[monitor].needs_ranks and "ranking" not in given:
        values["protocol"]["ranking"] = DEFAULT_RANKING
        notes.append(
            f"monitor={monitor} needs ranks, so ranking={DEFAULT_RANKING} is set; ranking=all ranks all candidates."
        )
    built = {name: cls(**values[name]) for name, cls in tables.items()}
    return Settings(model=model, seed=seed, unused=tuple(unused), notes=tuple(notes), **built)


def check_all_used(settings: Settings, given: Collection[str], where: str = "") -> None:
    """Raise SettingError if the model does not read a setting that a user gave; presets may have more keys."""
    unused = [key for key in settings.unused if key in given]
    if not unused:
        return
    readers = ", ".join(f"{key} (read by {_list_readers(key)})" for key in unused)
    own = ", ".join(typing.get_type_hints(type(settings.model_settings))) or "none"
    prefix = f"{where}: " if where else ""
    raise SettingError(
        f"{prefix}{settings.model} does not read {readers}. Remove {'it' if len(unused) == 1 else 'them'}, or choose "
        f"another model. Settings of {settings.model}: {own}."
    )


def _list_readers(key: str) -> str:
    """Return the models that read a setting of a model or of the training loop."""
    if key in typing.get_type_hints(TrainingSettings):
        return "every model that is trained"
    names = [name for name, spec in models.MODELS.items() if key in typing.get_type_hints(spec.settings)]
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} models, such as {names[0]}"


def unknown_setting(key: str) -> str:
    """Return the error text for a key that is no setting: its new name, or the nearest known one."""
    if key in ("watcher", "progress"):
        return f"the argument '{key}' is now called 'callbacks'."
    if key in RENAMED_SETTINGS:
        return f"the setting '{key}' is now called '{RENAMED_SETTINGS[key]}'."
    return f"there is no setting '{key}'.{did_you_mean(key, known_keys())}"


def known_keys() -> list[str]:
    """Return every key of the protocol, the training loop and all models."""
    tables = [Protocol, TrainingSettings, *(spec.settings for spec in models.MODELS.values())]
    return list(dict.fromkeys(name for table in tables for name in typing.get_type_hints(table)))


def parse_assignments(assignments: list[str]) -> dict[str, str]:
    """Split the values of ``--set``: ``["fanout=32,1"]`` becomes ``{"fanout": "32,1"}``."""
    given = {}
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise SettingError(f"--set {text}: write KEY=VALUE, for example --set epochs=10.")
        given[key.strip()] = value.strip()
    return given


def read_config(path: Path) -> ParsedSettings:
    """Read the file given with ``--config``."""
    try:
        return parse_toml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}.") from None


def convert_value(key: str, value: Any, expected_type: Any) -> Any:
    """Convert ``value``, or its text, to the type of the setting. SettingError if that fails."""
    try:
        if expected_type is bool:
            return _to_bool(value)
        if expected_type is int:
            return _to_int(value)
        if expected_type is float and not isinstance(value, bool):
            return float(value)
        if expected_type is str and isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)  # ranking=100 as well as ranking="all"
        if typing.get_origin(expected_type) is tuple:
            items = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
            if isinstance(items, list | tuple):
                return tuple(_to_int(x) for x in items)
    except (TypeError, ValueError, OverflowError):
        pass
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
    expected = names.get(expected_type, "whole numbers, as in 32,1")
    raise SettingError(f"{key}={_shorten(value)}: expected {expected}.")


def format_value(value: Any) -> str:
    """Format a value as ``--set`` takes it, e.g. ``20,1`` for a tuple."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _shorten(value: Any) -> str:
    """Format a value for an error message, at most 500 characters."""
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        return "…"
    return text if len(text) <= 500 else f"{text[:500]}…"


def _to_bool(value: Any) -> bool:
    text = str(value).lower()
    if text in ("true", "on", "yes", "1"):
        return True
    if text in ("false", "off", "no", "0"):
        return False
    raise ValueError(value)


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(number.bit_length())
    return number


def toml_lines(values: Mapping[str, Any]) -> list[str]:
    """Return the lines of a TOML table."""
    return [f"{key} = {toml_value(value)}" for key, value in values.items()]


def toml_value(value: Any) -> str:
    """Format text, a number, or a list or dictionary of these as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(toml_lines(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):  # JSON strings are TOML strings, except for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
