"""The bench command: its output, and the user's mistakes."""

from __future__ import annotations

import json
from pathlib import Path

from .helpers import fails, works

SMALL = ["--quick", "--repeat", "1", "--device", "cpu"]
MODEL = [
    f"--set={k}" for k in ("fanout=2,1", "hidden=8", "heads=2", "layers=1", "td_dim=8", "sd_dim=8", "batch_size=9")
]


def test_step_as_json(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    result = works("bench", "step", *SMALL, *MODEL, "--json", file)
    assert json.loads(file.read_text())["step_ms"] > 0
    assert "GFLOP/s" in result.out and "backward" in result.out
    table = result.out.partition("A step takes")[0].splitlines()[1:]
    assert len(table) > 10 and max(map(len, table)) <= 80


def test_machine_alone() -> None:
    assert works("bench", "machine", *SMALL, "--json").json["machine"]["matrix_flops"] > 0


def test_mistakes() -> None:
    fails("bench", "stpe", containing=["step"])
    fails("bench", "step", "--data", "nowhere.csv", containing=["nowhere.csv"])
    fails("bench", "step", "--model", "edgebank", *SMALL, containing=["nothing to train"])


def test_unusable_options_are_refused_before_measuring(tmp_path: Path) -> None:
    """A measurement may take an hour."""
    fails("bench", "step", "--plot", tmp_path / "a.png", containing="--plot is for `cordgt bench growth`")
    fails("bench", "all", "--scale", "2", containing="--scale is for `cordgt bench growth`")
    fails("bench", "growth", "--processes", "2", containing="--processes is for `cordgt bench processes`")
    fails("bench", "growth", "--scale", "2", *SMALL, containing="--scale is for twins")
    missing = tmp_path / "none" / "trace.json"
    assert "measuring" not in fails("bench", "step", "--trace", missing, containing="there is no folder").err
    rule = ["bench", "index", "--model", "edgebank", "--trace", tmp_path / "trace.json", *SMALL]
    assert "measuring" not in fails(*rule, containing="nothing to train").err
    fails("bench", "step", "--json", tmp_path, containing="it is a folder, not a file")
