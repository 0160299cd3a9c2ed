"""Settings: frozen dataclasses in, TOML out, and an error with the nearest name for anything unknown."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cordgt import models
from cordgt.errors import SettingError, check_choice, nearest
from cordgt.models.parts import check_from_zero, check_sizes
from cordgt.tasks.protocol import Protocol


@dataclass(frozen=True)
class Training:
    """The one loop's settings."""

    epochs: int = 50  # at most
    batch_size: int = 100
    lr: float = 0.001
    patience: int = 3  # epochs without a better figure on validation data before it stops
    judge: str = "ap"  # that figure: "ap", or "mrr" where ranking asks for ranks
    tolerance: float = 1e-4  # what counts as better, relative
    drawn: int = 1  # destinations that a true one is told from in training
    average: float = 0.0  # above 0: weights are judged and kept as their moving average, this much of it kept a step
    precision: str = "bf16"  # of matrix products on a GPU: "bf16" in training where a model can, "tf32", "fp32"
    pieces: int = 0  # of a batch, for the same bits, on CPUs, with one process or with several; 0: as is fastest
    checkpoint_minutes: float = 10.0  # between checkpoints within an epoch; each epoch ends with one

    def __post_init__(self) -> None:
        check_sizes(self, "epochs", "batch_size", "patience", "drawn")
        check_from_zero(self, "tolerance")
        if not 0 < self.lr < float("inf"):
            raise SettingError(f"lr={self.lr}: the learning rate is above 0.")
        if not 0 <= self.average < 1:
            raise SettingError(f"average={self.average}: it lies between 0 and 1, as 0.999 does; 0 is none.")
        if self.pieces < 0:
            raise SettingError(f"pieces={self.pieces}: it is a number of parts of a batch, or 0.")
        if not self.checkpoint_minutes >= 0:
            raise SettingError(f"checkpoint_minutes={self.checkpoint_minutes}: it is a number from 0 up.")
        check_choice("precision", self.precision, ("tf32", "bf16", "fp32"))
        check_choice("judge", self.judge, ("ap", "mrr"))


@dataclass(frozen=True)
class Settings:
    """Everything a run is made with."""

    model: str = "cordgt"
    seed: int = 0
    protocol: Protocol = field(default_factory=Protocol)
    training: Training = field(default_factory=Training)
    model_settings: Any = field(default_factory=models.find("cordgt").settings)
    unused: tuple[str, ...] = field(default=(), compare=False)  # keys given that this model has no use for

    def __post_init__(self) -> None:
        if self.training.judge == "mrr" and self.protocol.ranking == "none":
            raise SettingError("judge=mrr: ranks are needed for it, among so many candidates: add ranking=100, or all.")

    def to_toml(self) -> str:
        """The text of ``config.toml``; `from_toml` reads it back to an equal object."""
        parts = [f"model = {toml_value(self.model)}", f"seed = {self.seed}"]
        for title, table in (
            ("protocol", self.protocol),
            ("training", self.training),
            ("settings", self.model_settings),
        ):
            parts += [f"\n[{title}]", *toml_lines({f.name: getattr(table, f.name) for f in dataclasses.fields(table)})]
        return "\n".join(parts) + "\n"


class Given(NamedTuple):
    """What a TOML file asks for; None where it says nothing."""

    model: str | None
    seed: int | None
    keys: dict[str, Any]


def parse_toml(text: str, where: str) -> Given:
    """The settings in a file, be it a run's ``config.toml`` or a person's with any part of it; not yet checked."""
    try:
        given = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # what is no TOML, numbers too long, and arrays too deep
        raise SettingError(f"{where} is not valid TOML: {str(error).rstrip('.')}.") from None
    model, seed = given.pop("model", None), given.pop("seed", None)
    for own in ("format", "data", "run"):  # a run's config.toml says more than its settings
        given.pop(own, None)
    keys: dict[str, Any] = {}
    for key, value in given.items():
        if not isinstance(value, dict):
            keys[key] = value
        elif key in ("protocol", "training", "settings"):
            keys |= value
        else:
            raise SettingError(
                f"{where}: there is no table [{key}].{nearest(key, ('protocol', 'training', 'settings'))}"
            )
    return Given(None if model is None else str(model), seed, keys)


def from_toml(text: str, where: str) -> Settings:
    """The inverse of `Settings.to_toml`."""
    given = parse_toml(text, where)
    seed = 0 if given.seed is None else given.seed
    return make("cordgt" if given.model is None else given.model, given.keys, seed=seed, where=where)


def make(model: str, given: Mapping[str, Any], *, seed: int = 0, where: str = "settings") -> Settings:
    """Settings of a model from the keys given, each a value or the text of one; the rest as by default.

    A key that only other models use is kept aside in ``unused``; one that nothing uses is a SettingError.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not -(2**63) <= seed < 2**63:
        raise SettingError(f"{where}: seed={_shown(seed)}: it is a whole number of 64 bits.")
    kind = models.find(model)
    tables: dict[str, type[Any]] = {"protocol": Protocol, "training": Training, "model_settings": kind.settings}
    kinds = {name: typing.get_type_hints(table) for name, table in tables.items()}
    chosen: dict[str, dict[str, Any]] = {name: {} for name in tables}
    unused = []
    for key, value in given.items():
        home = next((name for name in tables if key in kinds[name]), None)
        if home is not None:
            chosen[home][key] = convert(key, value, kinds[home][key])
            if home == "training" and not kind.network.is_trainable:
                unused.append(key)
        elif key in known_keys():
            unused.append(key)
        elif key in ("model", "seed"):
            raise SettingError(f"{where}: '{key}' is not set like the others; give it with --{key}.")
        else:
            raise SettingError(f"{where}: there is no setting '{key}'.{nearest(key, known_keys())}")
    chosen["training"] = kind.training | chosen["training"]
    made = {name: table(**chosen[name]) for name, table in tables.items()}
    return Settings(model=model, seed=seed, unused=tuple(unused), **made)


def known_keys() -> list[str]:
    """Every key that some model or the loop takes."""
    tables = [Protocol, Training, *(kind.settings for kind in models.MODELS.values())]
    return list(dict.fromkeys(name for table in tables for name in typing.get_type_hints(table)))


def parse_assignments(assignments: list[str]) -> dict[str, str]:
    """``["fanout=32,1"]`` to ``{"fanout": "32,1"}``."""
    given = {}
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise SettingError(f"--set {text}: it is written KEY=VALUE, for example --set epochs=10.")
        given[key.strip()] = value.strip()
    return given


def read_config(path: Path) -> Given:
    """A person's ``--config`` file."""
    try:
        return parse_toml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}.") from None


def convert(key: str, value: Any, kind: Any) -> Any:
    """``value``, or the text of one, as the type of the setting."""
    try:
        if kind is bool:
            return _to_bool(value)
        if kind is int:
            return _to_int(value)
        if kind is float and not isinstance(value, bool):
            return float(value)
        if kind is str and isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)  # ranking=100 as well as ranking="all"
        if typing.get_origin(kind) is tuple:
            items = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
            if isinstance(items, list | tuple):
                return tuple(_to_int(x) for x in items)
    except (TypeError, ValueError, OverflowError):
        pass
    expected = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}.get(
        kind, "whole numbers, as in 32,1"
    )
    raise SettingError(f"{key}={_shown(value)}: expected {expected}.")


def written(value: Any) -> str:
    """A setting's value as --set takes it: ``20,1`` for several numbers."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _shown(value: Any) -> str:
    """A value as it was given, for messages, unless it is endless."""
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        return "…"
    return text if len(text) <= 500 else f"{text[:500]}…"


def _to_bool(value: Any) -> bool:
    words = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() in words:
        return words[str(value).lower()]
    raise ValueError(value)


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    whole = int(value)
    if not -(2**63) <= whole < 2**63:
        raise ValueError(whole.bit_length())
    return whole


def toml_lines(values: Mapping[str, Any]) -> list[str]:
    """Keys and values as the lines of a TOML table."""
    return [f"{key} = {toml_value(value)}" for key, value in values.items()]


def toml_value(value: Any) -> str:
    """A value as TOML has it: text, numbers, and lists and dictionaries of these."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(toml_lines(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):  # as in JSON, but for what TOML wants otherwise: no halves of a character, no bare DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
