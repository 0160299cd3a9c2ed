"""`make serve` installs, trains the demo once, and serves it. CI tests other CPU kernels and installs a browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
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


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_test_kernels_sets_every_kind(tmp_path: Path) -> None:
    text = commands(tmp_path, "test-kernels", "KERNELS=A=1 B=2+C=3")
    assert "for kernels in A=1 B=2+C=3;" in text and "-m pytest" in text and "tests/contract tests/oracle" in text


def run_ci(folder: Path, programs: Sequence[str]) -> list[str]:
    """The commands of `.ci/run` where only the given programs exist; each writes its name and arguments to a log."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci")
    bin_folder, log = folder / "bin", folder / "log"
    bin_folder.mkdir()
    for name in ("bash", "dirname", "env", "cp"):
        (bin_folder / name).symlink_to(shutil.which(name) or name)
    for name in programs:
        (bin_folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "{log}"\n')
    (bin_folder / "id").write_text("#!/bin/sh\necho 0\n")
    with (bin_folder / "apt-get").open("a") as file:  # installs what it is told last
        file.write(f'for word; do :; done\n[ "$word" = -qq ] || cp "{bin_folder}/make" "{bin_folder}/chromium"\n')
    for path in bin_folder.iterdir():
        path.chmod(0o755)
    env = {"PATH": str(bin_folder)}
    subprocess.run(["bash", folder / ".ci" / "run"], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return log.read_text().splitlines()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("has_browser", [False, True])
def test_ci_tests_other_kernels_and_installs_a_browser(tmp_path: Path, has_browser: bool) -> None:
    lines = run_ci(tmp_path, ["make", "apt-get", *(["chromium"] if has_browser else [])])
    assert any(line.startswith("apt-get") and line.endswith(" chromium") for line in lines) is not has_browser
    tests = [line for line in lines if line.startswith("make")]
    assert len(tests) == 2 and tests[0] == "make test" and tests[1].startswith("make test-kernels ")
    assert {"MKL_CBWR=COMPATIBLE", "ATEN_CPU_CAPABILITY=default"} <= set(re.split("[ +]|KERNELS=", tests[1]))
