"""The API reference: every public name is on its page, with an example that runs."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import cordgt

from .workspace import DOCS

NAMES = sorted(set(cordgt.__all__) - {"__version__"})


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: cordgt\.(\w+)$", page, re.MULTILINE)) == NAMES
    assert "cordgt.__version__" in page


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_public_names_run(name: str, workspace: Path) -> None:
    text = getattr(cordgt, name).__doc__
    assert "Examples:" in text
    test = doctest.DocTestParser().get_doctest(text, {"cordgt": cordgt}, name, None, None)
    assert test.examples
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=failures.append)
    assert runner.failures == 0, "".join(failures)
