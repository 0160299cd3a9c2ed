"""Checks of ``metrics.json`` and ``history.jsonl``, so that their readers get keys and values of the right types.

Every check raises ValueError with the key and what is wrong with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cordgt.tasks.metrics import LINK_METRICS
from cordgt.tasks.run_metrics import SETTINGS, SPLITS

MAX_DEPTH = 20  # nested lists and objects; metrics.json has 7 levels
MAX_EPOCH = 10**9
ROUNDING = 1e-9  # a mean of ones may be slightly above 1
Check = Callable[[Any], str]  # returns what a value must be; an empty string if it is right


def parse_json(text: str) -> Any:
    """Parse JSON. ValueError for NaN and Infinity, which are not JSON, and for deep nesting."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _depth_exceeds(value, MAX_DEPTH):
        raise ValueError("it is nested too deeply")
    return value


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _depth_exceeds(value: Any, limit: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return limit == 0 or any(_depth_exceeds(v, limit - 1) for v in inner)


# -------------------- values


def _expect_text(value: Any) -> str:
    return "" if isinstance(value, str) else "text"


def _expect_count(value: Any) -> str:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return "" if is_int and 0 <= value < 2**63 else "a whole number from 0 up"


def _expect_int64(value: Any) -> str:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return "" if is_int and -(2**63) <= value < 2**63 else "a 64-bit whole number"


def _expect_number(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if is_number and abs(value) < 1e300 and math.isfinite(value) else "a number"


def _expect_number_or_null(value: Any) -> str:
    return "" if value is None or not _expect_number(value) else "a number, or null"


def _expect_amount(value: Any) -> str:
    return "" if not _expect_number(value) and value >= 0 else "a number from 0 up"


def _expect_share(value: Any) -> str:
    is_share = value is None or (not _expect_number(value) and -ROUNDING <= value <= 1 + ROUNDING)
    return "" if is_share else "a number from 0 to 1, or null"


def _expect_probability(value: Any) -> str:
    return "a number from 0 to 1" if value is None else _expect_share(value)


def _expect_epoch(value: Any) -> str:
    return _expect_count(value) or ("" if value <= MAX_EPOCH else f"at most {MAX_EPOCH}")


def _expect_table(value: Any) -> str:
    return "" if isinstance(value, dict) else "an object"


def _expect_list(value: Any) -> str:
    return "" if isinstance(value, list) else "a list"


def _check(where: str, value: Any, check: Check) -> None:
    expected = check(value)
    if expected:
        raise ValueError(f"'{where}' must be {expected}")


def _check_keys(where: str, table: Any, required: Mapping[str, Check], optional: Mapping[str, Check]) -> None:
    """Check the values of known keys; other keys may have any value."""
    _check(where, table, _expect_table)
    prefix = f"{where}." if where else ""
    for key, check in required.items():
        if key not in table:
            raise ValueError(f"it has no key '{prefix}{key}'")
        _check(f"{prefix}{key}", table[key], check)
    for key, check in optional.items():
        if key in table:
            _check(f"{prefix}{key}", table[key], check)


# -------------------- metrics.json

_REQUIRED: dict[str, Check] = {
    "model": _expect_text,
    "data": _expect_text,
    "seed": _expect_int64,
    "epochs": _expect_epoch,
    "best_epoch": _expect_epoch,
    "seconds_per_epoch": _expect_amount,
    "protocol": _expect_table,
    "validation": _expect_table,
    "test": _expect_table,
}
_OPTIONAL: dict[str, Check] = {
    "parameters": _expect_count,
    "processes": _expect_count,
    "device": _expect_text,
    "history_device": _expect_text,
    "peak_memory_mb": _expect_amount,
    "init": _expect_table,
    "refit": _expect_table,
    "counts_weight": _expect_table,
    "baselines": _expect_table,
    "calibration": _expect_table,
    "next_event": _expect_table,
}


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Check the content of ``metrics.json`` of one run."""
    _check_keys("", metrics, _REQUIRED, _OPTIONAL)
    _check_splits("", metrics)
    for name, splits in metrics.get("baselines", {}).items():
        _check_splits(f"baselines.{name}.", splits)
    if "init" in metrics:
        _check_keys("init", metrics["init"], {"run": _expect_text, "knows": _expect_text}, {})
    if "refit" in metrics:
        _check_keys("refit", metrics["refit"], {"epochs": _expect_epoch, "events": _expect_count}, {})
    if "counts_weight" in metrics:
        weights = {"same_source": _expect_share, "across_sources": _expect_share}
        _check_keys("counts_weight", metrics["counts_weight"], weights, {})
    if "calibration" in metrics:
        _check_calibration(metrics["calibration"])
    if "next_event" in metrics:
        _check_with_baselines(
            "next_event", metrics["next_event"], ("nll", "mae"), {"share_without_next": _expect_share}
        )


def _metric_checks() -> dict[str, Check]:
    return {name: _expect_share if metric.is_share else _expect_number_or_null for name, metric in LINK_METRICS.items()}


def _check_splits(prefix: str, splits: Any) -> None:
    """Check the metrics of both splits in both settings."""
    shares = _metric_checks()
    required: dict[str, Check] = {"ap": _expect_share, "auc": _expect_share, "events": _expect_count}
    optional = shares | {"random_negatives": _expect_count, "unknown_destinations": _expect_count}
    _check(prefix.rstrip("."), splits, _expect_table)
    for split in SPLITS:
        if split not in splits:
            raise ValueError(f"it has no key '{prefix}{split}'")
        table = splits[split]
        _check(f"{prefix}{split}", table, _expect_table)
        if set(table) != set(SETTINGS):
            raise ValueError(f"'{prefix}{split}' must have the keys {' and '.join(SETTINGS)}")
        for setting in SETTINGS:
            _check_keys(f"{prefix}{split}.{setting}", table[setting], required, optional)


def _check_calibration(calibration: Any) -> None:
    """Check the metrics of probabilities, by horizon."""
    _check_keys("calibration", calibration, {"horizons": _expect_list}, {"longest_horizon": _expect_amount})
    for i, row in enumerate(calibration["horizons"]):
        where = f"calibration.horizons[{i}]"
        _check_keys(where, row, {"horizon": _expect_amount}, {"share": _expect_share})
        for kind in ("source", "pair"):
            if kind not in row:
                raise ValueError(f"it has no key '{where}.{kind}'")
            own = f"{where}.{kind}"
            _check_with_baselines(own, row[kind], ("log_loss", "brier", "ece"), {"share": _expect_share})
            _check_keys(own, row[kind], {"bins": _expect_list}, {})
            for k, one in enumerate(row[kind]["bins"]):
                checks = {"predicted": _expect_probability, "observed": _expect_probability, "n": _expect_count}
                _check_keys(f"{own}.bins[{k}]", one, checks, {})


def _check_with_baselines(where: str, table: Any, names: Sequence[str], optional: Mapping[str, Check]) -> None:
    """Check metrics that may be null, of the run and of each baseline, and the number of cases."""
    numbers: dict[str, Check] = dict.fromkeys(names, _expect_number_or_null)
    _check_keys(where, table, {"n": _expect_count, "baselines": _expect_table} | numbers, optional)
    for name, metrics in table["baselines"].items():
        _check_keys(f"{where}.baselines.{name}", metrics, numbers, {})


# -------------------- history.jsonl

_RECORD: dict[str, Check] = {
    "phase": _expect_text,
    "epoch": _expect_epoch,
    "best_epoch": _expect_epoch,
    "events": _expect_count,
    "loss": _expect_number,
    "setup_seconds": _expect_amount,
    "train_seconds": _expect_amount,
    "validation_seconds": _expect_amount,
    "validation": _expect_table,
}


def check_history_record(record: Mapping[str, Any]) -> None:
    """Check a line of ``history.jsonl``. A complete epoch has a loss and no events."""
    _check_keys("", record, {}, _RECORD)
    if "validation" in record:
        _check_keys("validation", record["validation"], {}, _metric_checks())
    if "loss" in record and "events" not in record:
        _check_keys("", record, {"phase": _expect_text, "epoch": _expect_epoch, "train_seconds": _expect_amount}, {})
