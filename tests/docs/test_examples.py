"""The scripts of ``examples`` run. Plug-ins and the training loop are run by the tests of plug-ins."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from .workspace import ROOT

ARGUMENTS = {
    "make_purchases.py": ["generated.csv", "50"],
    "train_and_recommend.py": ["purchases.csv", "ada"],
    "compare_models.py": ["purchases.csv", "popularity", "edgebank"],
}
RUN_ELSEWHERE = {
    "training_loop.py": "tests/unit/test_plugins.py",
    "typed_example.py": "tests/wheel/test_wheel.py",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_examples_run(
    name: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *ARGUMENTS[name]])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert capsys.readouterr().out


def test_every_example_is_run() -> None:
    scripts = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert scripts <= ARGUMENTS.keys() | RUN_ELSEWHERE.keys()
