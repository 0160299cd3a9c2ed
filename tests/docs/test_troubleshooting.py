"""The page of errors quotes messages that the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .workspace import DOCS, ROOT

PAGE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
QUOTES = [quote for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE) for quote in re.findall(r"`(.+?)`", row)]


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the strings below a node, without docstrings; a value of an f-string is a space."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else " " for part in child.values)
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        yield from texts(child)


@pytest.fixture(scope="module")
def messages() -> str:
    sources = (ROOT / "src").rglob("*.py")
    found = (text for path in sources for text in texts(ast.parse(path.read_text(encoding="utf-8"))))
    return "\n".join(re.sub(r"\s+", " ", text) for text in found if " " in text)


@pytest.mark.parametrize("quote", QUOTES)
def test_quoted_messages_exist(quote: str, messages: str) -> None:
    assert quote in messages
