"""`make serve` installs, trains the demo once, and serves it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def commands(folder: Path, *argv: str) -> str:
    """What make would run in a folder that has the Makefile and pyproject.toml only, or what a test added."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    given_by_make = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "ARGS")  # if `make test` runs this test
    env = {name: value for name, value in os.environ.items() if name not in given_by_make}
    result = subprocess.run(
        ["make", "--dry-run", *argv], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    return result.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_serve_does_its_own_set_up(tmp_path: Path) -> None:
    text = commands(tmp_path, "serve", "ARGS=--port 8001")
    steps = [
        "-m venv",
        "'.[serve]'",
        "rm -rf runs/served-demo",
        "cordgt demo --out runs/served-demo",
        "cordgt serve runs/served-demo --port 8001",
    ]
    places = [text.find(step) for step in steps]
    assert -1 not in places and places == sorted(places)
    for path in ("runs/served-demo/metrics.json", ".venv/.serve"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    again = commands(tmp_path, "serve", "--old-file=pyproject.toml")
    assert again.split() == [".venv/bin/cordgt", "serve", "runs/served-demo"]
