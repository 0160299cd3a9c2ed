"""What the documentation names is there: commands, options, files; and its example of a model works.

Links and code blocks are tested in tests/docs.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import typer.main

from cordgt.cli import app
from cordgt.models import MODELS

ROOT = Path(__file__).parents[2]
PAGES = sorted(chain(ROOT.glob("*.md"), (ROOT / "docs").glob("*.md")))
COMMANDS = typer.main.get_command(app)
PLACES = (ROOT, ROOT / "src" / "cordgt", ROOT / "docs")


def blocks(page: Path, language: str) -> list[str]:
    """What stands between fences of that language, "" for none, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every ``cordgt …`` of a page: a line of a block, or between back ticks."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"(?:^|[;`] ?|do |-m |OMP_NUM_THREADS=\d )(cordgt [a-z][^`\n;]*)", text, re.MULTILINE)
    for line in lines:
        yield shlex.split(line.replace("'", ""), comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands(page):
        command = COMMANDS
        while words[1:] and words[1] in getattr(command, "commands", {}):
            command, words = command.commands[words[1]], words[1:]
        assert not getattr(command, "commands", {}) or not words[1:], f"cordgt has no {words[1]}"
        known = {name for option in command.params for name in option.opts} | {"--help"}
        options = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
        assert options <= known, f"cordgt {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:src|tests|models|history|nn|store|io|tasks|training|inference|cli|experiments)/[\w/]+\.\w+)`", text
    )
    assert [name for name in named if not any((place / name).exists() for place in PLACES)] == []


def test_example_model_trains_and_passes_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, line, use, audit = blocks(ROOT / "docs" / "adding-a-model.md", "python")
    (tmp_path / "recency.py").write_text(model)
    rows = [f"n{i * i % 23},n{i % 7 + i // 9 % 5},{i // 2}\n" for i in range(400)]
    (tmp_path / "messages.csv").write_text("src,dst,time\n" + "".join(rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "recency", raising=False)
    checks: list[tuple[str, str, str]] = []
    names = {"print": lambda *words: checks.append(words)}
    try:
        exec(use.replace('"recency", out', '"recency", epochs=1, device="cpu", report=False, out'), names)
        exec(audit, names)
        assert line.partition(":")[2].strip(" \n,") in use  # the table's line makes the same model
    finally:
        MODELS.pop("recency", None)
        sys.modules.pop("recency", None)
    assert len(checks) > 8
    assert {result for _, result, _ in checks} == {"ok"}
