"""A sample of the edits of ``run_edits.py``, each with one command."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from .run_edits import RunEdits, file_edits, key_edits


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> RunEdits:
    return RunEdits(tmp_path_factory.mktemp("edits"))


@pytest.mark.parametrize("kind", ["files", "keys"])
def test_edited_runs_are_refused_or_answer_the_same(runs: RunEdits, kind: str) -> None:
    edits = list(file_edits())[::5] if kind == "files" else list(key_edits(runs.folder / "finished"))[::53]
    counts: Counter[str] = Counter()
    for number, edit in enumerate(edits):
        commands = list(runs.commands(edit.base, Path()))
        for command, outcome in runs.try_edit(edit, (commands[number % len(commands)],)).items():
            assert not outcome.is_bug, (edit.name, command, outcome)
            counts[outcome.kind] += 1
    assert counts["refused"] > 20 and counts["same answer"] > 0, "neither alone is a test"
