"""Print how far a newcomer reads to an answer: ``python docs/tools/newcomers.py OLD_COMMIT``.

The questions are in docs/notes/newcomers.md.

A reader starts at README.md and reads it from the top to the link or the answer. On every other page the reader reads
the headings, then the section with the answer from its heading to the answer. 200 words take a minute; opening a page
takes 10 seconds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS_PER_MINUTE, SECONDS_PER_PAGE = 200, 10
START, CHOOSE, MODEL = "docs/start.md", "docs/choose.md", "docs/adding-a-model.md"
QUICK, TRUST, SERVE, NIGHTLY = "docs/quickstart.md", "docs/trust.md", "docs/serve.md", "docs/nightly.md"
# question: (before, after); each is the page and the text that answers, or only a text of README.md
QUESTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "CSV 1: train on my columns": (("cordgt train purchases.csv --src",), ("cordgt train purchases.csv --src",)),
    "CSV 2: is it good?": (("docs/report.md", "The first sentence answers"), (START, "Look first at the AP")),
    "CSV 3: score of 0.9": (("A score compares a partner",), (START, "compares a product with a random one")),
    "CSV 4: five new products": ((QUICK, "`--new-only` leaves out"), (START, "`--new-only` leaves out")),
    "CSV 5: day or month": ((QUICK, "| other dates |"), ("docs/troubleshooting.md", "`day or the month`")),
    "model 1: class and methods": ((MODEL, "class Recency(LinkModel)"), (MODEL, "with `forward(batch)`")),
    "model 2: without changing the package": (
        ("docs/extend.md", "--plugin recency.py"),
        (MODEL, "--plugin recency.py"),
    ),
    "model 3: no future event": ((TRUST, "cordgt audit runs/mine"), (MODEL, "`audit` ends with exit code 1")),
    "model 4: compare with an interval": ((TRUST, "cordgt compare runs/popularity"), (MODEL, "a 95 % interval")),
    "model 5: metric differs": ((TRUST, "| `visibility` |"), ("docs/troubleshooting.md", "as a published source does")),
    "service 1: start it": (("cordgt serve runs/mine",), (SERVE, "pip install '.[serve]'")),
    "service 2: send events": ((SERVE, 'curl --json \'{"events"'), (SERVE, '{"events"')),
    "service 3: every night, go back": ((NIGHTLY, "go back to the former run"),) * 2,
    "service 4: larger than memory": (
        ("cordgt data convert events/",),
        ("docs/scale.md", "cordgt data convert events/"),
    ),
    "service 5: fast enough on a CPU": (
        ("docs/models.md", "| `counts` | counts and ages"),
        (CHOOSE, "| `counts` | 0.002"),
    ),
}


def read(page: str, commit: str | None) -> str:
    """Return a page of a commit, or of the working tree; a notebook as the text of its cells."""
    if commit is None:
        text = (ROOT / page).read_text(encoding="utf-8")
    else:
        text = subprocess.run(
            ["git", "show", f"{commit}:{page}"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
    return "\n\n".join("".join(c["source"]) for c in json.loads(text)["cells"]) if page.endswith(".ipynb") else text


def n_words(text: str) -> int:
    return len(re.findall(r"[A-Za-z0-9][\w'’-]*", re.sub(r"\]\([^)]*\)", "]", text)))


def effort(where: tuple[str, ...], commit: str | None) -> tuple[int, float]:
    """Return the number of pages and the minutes."""
    readme = read("README.md", commit)
    if len(where) == 1:
        words = n_words(readme[: readme.index(where[0])]) + n_words(where[0])
        return 1, words / WORDS_PER_MINUTE + SECONDS_PER_PAGE / 60
    page, answer = where
    words = n_words(readme[: readme.index(f"({page}")])
    text = read(page, commit)
    before = text[: text.index(answer)]
    start = max((m.start() for m in re.finditer(r"^#+ ", before, re.MULTILINE)), default=0)
    headings = re.findall(r"^#+ .*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    words += n_words("\n".join(headings)) + n_words(before[start:] + answer)
    return 2, words / WORDS_PER_MINUTE + 2 * SECONDS_PER_PAGE / 60


if __name__ == "__main__":
    print("| question | before: pages, minutes | after: pages, minutes |\n|---|---|---|")
    for question, (old, new) in QUESTIONS.items():
        (a, b), (c, d) = effort(old, sys.argv[1]), effort(new, None)
        print(f"| {question} | {a}, {b:.1f} | {c}, {d:.1f} |")
