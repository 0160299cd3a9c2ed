"""Every shell command and every Python block of the documentation runs, on small data.

A block that cannot run stands in ``COMMANDS_NOT_RUN`` or ``PYTHON_NOT_RUN``, with the reason.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import cordgt
from cordgt.cli import app

from .workspace import DOCS, PAGES, SMALL_CORDGT, blocks

SHELL = ("", "shell", "bash", "sh")

# A command that matches is not run. Its options are checked by tests/unit/test_docs.py.
COMMANDS_NOT_RUN = {
    r"cordgt (bench|reproduce|search|demo)\b": "long; tests/e2e/test_bench.py and others run it on small data",
    r"cordgt serve\b": "does not end; tests/e2e/test_serve.py runs it",
    r"cordgt data fetch\b": "downloads; tests/e2e/test_fetch.py runs it",
    r"cordgt evaluate runs/google\b": "needs a downloaded dataset; tests/e2e/test_fetch.py runs the protocol",
    r"cordgt .*--processes": "several processes; tests/e2e/test_processes.py runs it",
    r"cordgt .*(…|\b(DATA|RUN|FILE|ID|OLD|NAME)\b|\$\(\()": "has a placeholder",
    r"cordgt .*\bfood-twin\b": "2.7 million events",
    r"cordgt compare (runs/a runs/b|runs/popularity)": "needs two runs; tests/e2e/test_audit_compare.py runs it",
    r"cordgt train .*--task node": "needs labels; tests/unit/test_node.py runs it",
    r"cordgt train .*--seeds": "several trainings; tests/e2e/test_training.py runs it",
    r"cordgt (report runs/seeds|.*runs/wiki-node)": "needs other runs; tests/e2e/test_report.py runs it",
    r"OMP_NUM_THREADS=1 cordgt bench": "long",
    r"torchrun\b": "several processes; tests/e2e/test_processes.py runs it",
    r"(make|pip|git|docker|systemctl|sudo)\b": "changes the machine; tests/unit/test_makefile.py checks the targets",
    r"(bash|python|python3)\b": "runs a file of the page; nightly.sh is run by tests/e2e/test_nightly.py",
    r"(file ─►|rate\(|[a-z-]+\.(toml|parquet|html) |\(none\)|[a-z_]+  )": "a picture or an output, not a command",
    r"cordgt\.": "Python without a language",
    r"run = ": "Python without a language",
}

# Pages whose shell blocks are not run, with the reason.
PAGES_NOT_RUN = {
    "extend.md": "tests/e2e/test_plugins.py runs these plug-ins and commands",
    "adding-a-model.md": "tests/unit/test_docs.py trains and audits the page's model",
    "nightly.md": "tests/e2e/test_nightly.py runs the page",
    "scale.md": "shell of the measurements; the first block is run by tests/e2e/test_store.py",
    "serve.md": "tests/e2e/test_serve.py runs the service",
    "results.md": "commands of measurements; other pages run the same commands on small data",
    "recommend-all.md": "tests/e2e/test_recommend_all.py runs the commands",
}

# A Python block of the page that contains the text is not run.
PYTHON_NOT_RUN = {
    ("extend.md", "A training loop"): "examples/training_loop.py, which tests/unit/test_plugins.py runs",
    ("adding-a-model.md", '"""Logistic regression'): "tests/unit/test_docs.py runs the page",
    ("adding-a-model.md", "ModelSpec("): "tests/unit/test_docs.py runs the page",
    ("adding-a-model.md", "audit_model"): "tests/unit/test_docs.py runs the page",
    ("scale.md", "10**6"): "writes millions of events",
    ("scale.md", "workloads"): "a measurement of minutes",
    ("scale.md", 'read_events("big.store"), Protocol()'): "needs the store of the measurement",
    ("scale.md", "duckdb"): "a measurement of minutes",
    ("scale.md", 'convert_to_store("events/"'): "tests/docs/test_api.py runs the same calls",
    ("recommend-all.md", "cordgt.inference.ray"): "needs Ray; tests/e2e/test_ray.py runs it",
}


def shell_lines(page: Path) -> list[str]:
    """Return the commands of a page's shell blocks."""
    text = "\n".join(blocks(page, *SHELL)).replace("\\\n", " ")
    text = re.sub(r"^for \w+ in [^;]+; do (.*?); done", r"\1", text, flags=re.MULTILINE)
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def is_run(line: str) -> bool:
    return not any(re.match(pattern, line) for pattern in COMMANDS_NOT_RUN)


def make_small(words: list[str]) -> list[str]:
    """Return a command with small settings and without a report."""
    if words[0] == "audit":
        return [*words, "--queries", "10"]
    if words[0] != "train":
        return words
    model = words[words.index("--model") + 1] if "--model" in words else "cordgt"
    small: dict[str, Any] = {"epochs": 1} | (SMALL_CORDGT if model == "cordgt" else {})
    if model in ("edgebank", "popularity"):
        small = {}
    kept = [word for word in words if word not in ("--refit",)]
    for key, value in small.items():
        value = ",".join(map(str, value)) if isinstance(value, tuple) else value
        kept += ["--set", f"{key}={value}"]
    return [*kept, "--device", "cpu", "--no-report"]


COMMAND_PAGES = [page for page in PAGES if page.name not in PAGES_NOT_RUN and any(map(is_run, shell_lines(page)))]
PYTHON_PAGES = [page for page in PAGES if blocks(page, "python")]


@pytest.fixture
def own_workspace(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the workspace, which the commands of one page may change."""
    shutil.copytree(workspace, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("CORDGT_DATA", str(tmp_path / "work" / "datasets"))
    return tmp_path / "work"


@pytest.mark.parametrize("page", COMMAND_PAGES, ids=lambda page: page.name)
def test_shell_commands_run(page: Path, own_workspace: Path) -> None:
    runner = CliRunner()
    for line in dict.fromkeys(filter(is_run, shell_lines(page))):
        words = shlex.split(line.replace("$s", "0"), comments=True)
        assert words[0] == "cordgt", f"{page.name}: neither a command of cordgt nor in COMMANDS_NOT_RUN: {line}"
        if "--out" in words:
            shutil.rmtree(own_workspace / words[words.index("--out") + 1], ignore_errors=True)
        result = runner.invoke(app, make_small(words[1:]))
        assert result.exit_code == 0, f"{page.name}: {line}\n{result.output}\n{result.exception}"


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("documentation_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look there
    names = module.__dict__ | {"cordgt": cordgt, "run": cordgt.Run.load("runs/mine")}
    names["stream"] = cordgt.read_events("messages.csv")
    names["table"] = names["stream"].to_pandas().rename(columns={"src": "from", "dst": "to", "time": "sent"})
    for block in blocks(page, "python"):
        if not any(page.name == name and text in block for name, text in PYTHON_NOT_RUN):
            exec(compile(block, f"{page.name}: {block.splitlines()[0]}", "exec"), names)


def test_lists_of_what_is_not_run_are_not_longer_than_needed() -> None:
    lines = [line for page in PAGES for line in shell_lines(page)]
    unused = [pattern for pattern in COMMANDS_NOT_RUN if not any(re.match(pattern, line) for line in lines)]
    assert unused == []
    assert [name for name in PAGES_NOT_RUN if not (DOCS / name).exists()] == []
    missing = [key for key in PYTHON_NOT_RUN if not any(key[1] in block for block in blocks(DOCS / key[0], "python"))]
    assert missing == []
