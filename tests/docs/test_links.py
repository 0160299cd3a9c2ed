"""Links of the documentation lead to files and headings that exist; README is short."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from .workspace import DOCS, PAGES, ROOT

NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
ALL_PAGES = [*PAGES, ROOT / "CHANGELOG.md", *sorted((DOCS / "results").glob("*.md")), *NOTEBOOKS]


def text_of(page: Path) -> str:
    """Return the Markdown of a page or of a notebook, without code."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "`code`", text) if page.suffix != ".ipynb" else text


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as MkDocs makes them."""
    text = page.read_text(encoding="utf-8")
    if page.name == "api.md":
        names = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
        return frozenset(names)
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE):
        plain = re.sub(r"\]\([^)]*\)|[`\[\]*]", "", heading)
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain, flags=re.ASCII).strip().lower())
        found.append(f"{slug}_{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_links_and_anchors_exist(page: Path) -> None:
    wrong = []
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)", text_of(page)):
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [*DOCS.rglob("*.md"), *(path.with_suffix(".md") for path in NOTEBOOKS)]
    assert [page.name for page in pages if f": {page.relative_to(DOCS)}" not in navigation] == []


def test_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 80
    assert [line for line in lines if len(line) > 100] == []
