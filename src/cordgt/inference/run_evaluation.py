"""Which settings of a run an evaluation may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordgt.errors import SettingError
from cordgt.tasks.link import EVALUATION_SETTINGS
from cordgt.tasks.protocol import Protocol
from cordgt.training.settings import Settings, known_keys, make_settings, unknown_setting

# With any other change, training events could become test events.
EVALUATION_KEYS = (*EVALUATION_SETTINGS, "pool")  # a new pool means new negative pools


def evaluation_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that an evaluation changes; ``batch_size`` means that of the evaluation."""
    named = {"eval_batch_size" if key == "batch_size" else key: value for key, value in changes.items()}
    return {key: value for key, value in named.items() if value is not None}


def evaluation_protocol(settings: Settings, changes: Mapping[str, Any]) -> Protocol:
    """Return the run's protocol with ``changes``. SettingError if one is fixed by the training."""
    changes = evaluation_changes(changes)
    for key in changes:
        if key not in known_keys():
            raise SettingError(f"evaluate: {unknown_setting(key)}")
        if key not in EVALUATION_KEYS:
            allowed = ", ".join(("batch_size", *(k for k in EVALUATION_KEYS if k != "eval_batch_size")))
            raise SettingError(f"'{key}' is fixed by the training. An evaluation can change: {allowed}.")
    return make_settings(settings.model, vars(settings.protocol) | changes).protocol
