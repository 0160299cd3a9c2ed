"""Sentences and table cells of Markdown pages. ``python tests/docs/prose.py PAGE ...`` prints what is too long."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median

MAX_WORDS, MAX_MEDIAN, MAX_CELL = 40, 18, 200
_NO_END = re.compile(r"\b(e\.g|i\.e|al|vs|no|fig|Fig|approx|Soc|Can|Parl|Evo)\.$")


def plain(text: str) -> str:
    """Return text without marks: links become their words, code one word, images nothing."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    return re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}|<[^>]+>|\{[^}]*\}", "", text)


def without_code(text: str) -> str:
    """Return a page without fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)


def cells(text: str) -> list[str]:
    """Return the cells of all tables."""
    rows = [line.strip() for line in without_code(text).splitlines() if line.lstrip().startswith("|")]
    return [plain(cell).strip() for row in rows for cell in re.split(r"(?<!\\)\|", row.strip("|"))]


def sentences(text: str) -> list[str]:
    """Return the sentences of paragraphs and list items, without headings, tables and code."""
    paragraphs: list[str] = [""]
    for line in without_code(text).splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "|", "===", "!!!", "???", ":::")):
            paragraphs.append("")
            continue
        if re.match(r"([-*+]|\d+\.) ", stripped):
            paragraphs.append("")
            stripped = re.sub(r"^([-*+]|\d+\.) +", "", stripped)
        paragraphs[-1] += f" {stripped}"
    found: list[str] = []
    for paragraph in paragraphs:
        parts = re.split(r"(?<=[.!?])[)\"”’]?\s+", plain(paragraph).strip())
        merged: list[str] = []
        for part in parts:
            if merged and _NO_END.search(merged[-1]):
                merged[-1] += f" {part}"
            else:
                merged.append(part)
        found += [part for part in merged if re.search(r"[A-Za-z]{2}", part)]
    return found


def n_words(sentence: str) -> int:
    """Return the number of words; a number counts as one."""
    return len(re.findall(r"[\w’'./%,+−-]*\w[\w’'%]*", sentence))


def too_long(text: str) -> list[str]:
    """Return a line for each sentence and each table cell that is too long."""
    lines = [f"{n_words(s)} words: {s}" for s in sentences(text) if n_words(s) > MAX_WORDS]
    return lines + [f"cell of {len(c)} characters: {c}" for c in cells(text) if len(c) > MAX_CELL]


def median_words(texts: Iterable[str]) -> float:
    """Return the median number of words of all sentences."""
    return median(n_words(sentence) for text in texts for sentence in sentences(text))


if __name__ == "__main__":
    pages = [Path(name) for name in sys.argv[1:]]
    for page in pages:
        for offender in too_long(page.read_text(encoding="utf-8")):
            print(f"{page}: {offender}")
    everything = [page.read_text(encoding="utf-8") for page in pages]
    counts = [n_words(s) for text in everything for s in sentences(text)]
    print(f"{len(counts)} sentences, median {median(counts):g} words, longest {max(counts)}")
    print(f"longest table cell: {max((len(c) for text in everything for c in cells(text)), default=0)} characters")
