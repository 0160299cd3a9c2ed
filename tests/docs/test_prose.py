"""Plain language: short sentences and short table cells, in pages and in error messages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .prose import MAX_MEDIAN, MAX_WORDS, median_words, n_words, sentences, too_long
from .workspace import DOCS, PAGES, ROOT

CHECKED = [*PAGES, *sorted((DOCS / "results").glob("*.md"))]
# Pages with sentences or cells that are still too long, and how many. Shorten them, then lower the number.
STILL_TOO_LONG: dict[str, int] = {}
ERRORS = ("CordgtError", "DataError", "RunError", "SettingError", "StoreError")


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: page.name)
def test_sentences_and_cells_are_short(page: Path) -> None:
    found = too_long(page.read_text(encoding="utf-8"))
    assert len(found) == STILL_TOO_LONG.get(page.name, 0), "\n".join(found)


def test_median_sentence_is_short() -> None:
    assert median_words(page.read_text(encoding="utf-8") for page in CHECKED) <= MAX_MEDIAN


def messages() -> Iterator[str]:
    """Yield the messages of errors that the code raises; a value counts as one word."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = getattr(node.exc.func, "id", "")
                for text in node.exc.args if name in ERRORS else []:
                    if isinstance(text, ast.Constant):
                        yield str(text.value)
                    if isinstance(text, ast.JoinedStr):
                        yield "".join(str(p.value) if isinstance(p, ast.Constant) else "x" for p in text.values)


def test_error_messages_are_short() -> None:
    found = list(messages())
    assert len(found) > 300
    assert [s for text in found for s in sentences(text) if n_words(s) > MAX_WORDS] == []
    assert median_words(found) <= MAX_MEDIAN


def test_the_check_finds_what_is_too_long() -> None:
    long = "word " * 41
    assert too_long(f"{long}.\n\n| {'x' * 201} | y |\n|---|---|\n")[0].startswith("41 words")
    assert len(too_long(f"| {'x' * 201} | y |\n")) == 1
    assert too_long(f"```text\n{long}\n```\n") == []
