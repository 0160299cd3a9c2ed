"""Retrain the model of a live service: read its events, train from its current model, compare, promote.

The service may run meanwhile: its data folder is only read.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cordgt.errors import RunError, SettingError
from cordgt.events.stream import EventStream
from cordgt.inference.run import Run
from cordgt.serving.event_log import EventLog
from cordgt.serving.model_store import MODELS_FOLDER, read_state
from cordgt.serving.replay import BASE_FOLDER, replay_log
from cordgt.serving.sqlite_log import LOG_FILE, SqliteLog

REQUEST_SECONDS = 600


def read_events(data_dir: Path, log_url: str = "") -> EventStream:
    """Return all events of a service: those that it was started with, and those of its log."""
    _check_data_dir(data_dir, log_url)
    log = _open_log(data_dir, log_url)
    try:
        return replay_log(log, EventStream.load(data_dir / BASE_FOLDER), data_dir)[0]
    finally:
        log.close()


def load_current_run(data_dir: Path, device: str = "auto") -> Run:
    """Return the run that answers in a service now."""
    current = read_state(data_dir).get("current")
    if current is None:
        raise RunError(f"{data_dir} has no model yet. Start the service once: cordgt serve RUN --data-dir {data_dir}")
    return Run.load(data_dir / MODELS_FOLDER / current, device)


def promote(url: str, run: Path) -> dict[str, Any]:
    """Let a running service answer with a run, and return its description. SettingError if the service refuses."""
    body = json.dumps({"run": str(run.resolve())}).encode()
    headers = {"Content-Type": "application/json"}
    token = os.environ.get("CORDGT_WRITE_TOKEN")
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if not url.startswith(("http://", "https://")):
        raise SettingError(f"--url {url}: an address such as http://127.0.0.1:8000 is expected.")
    request = urllib.request.Request(f"{url.rstrip('/')}/model", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        raise SettingError(f"{url} did not take the run (status {error.code}): {_error_text(error)}") from None
    except (OSError, ValueError) as error:
        raise SettingError(f"{url} does not answer: {getattr(error, 'reason', error)}.") from None


def _error_text(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)


def _check_data_dir(data_dir: Path, log_url: str) -> None:
    if not (data_dir / BASE_FOLDER).is_dir() or not (log_url or (data_dir / LOG_FILE).exists()):
        raise SettingError(
            f"{data_dir} is not the data folder of a service. Give what `cordgt serve` has as --data-dir."
        )


def _open_log(data_dir: Path, log_url: str) -> EventLog:
    if not log_url:
        return SqliteLog(data_dir)
    from cordgt.serving.postgres_log import PostgresLog

    return PostgresLog(log_url, is_reader=True)
