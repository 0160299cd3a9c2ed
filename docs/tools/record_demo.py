"""Write ``docs/images/demo.svg``: train, report and recommend as an animated picture of a terminal.

The script runs the commands and shows what they print. It needs Chromium for the picture of the report.
Usage: ``python docs/tools/record_demo.py``.
"""

from __future__ import annotations

import base64
import contextlib
import html
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "images" / "demo.svg"
WIDTH, HEIGHT, LINE, COLUMNS = 800, 470, 18.5, 92
TRAIN = "cordgt train purchases.csv --model counts --out runs/mine"
RECOMMEND = "cordgt recommend runs/mine --source ada --top 5"
PREDICT = "cordgt predict runs/mine --source ada --destination pot --within 7d"


def output(command: str) -> list[str]:
    """Run a command of cordgt in this process and return the lines that it prints."""
    from cordgt.cli import main

    raw = io.BytesIO()
    printed = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    sys.argv = command.split()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), contextlib.suppress(SystemExit):
        main()
    return [line.rstrip() for line in raw.getvalue().decode().splitlines() if line.strip()]


def screenshot(page: Path, target: Path) -> bytes:
    """Return a picture of the first screen of a page, as JPEG."""
    from PIL import Image

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1120,640"]
    subprocess.run([browser, *options, f"--screenshot={target}", page.as_uri()], check=True, capture_output=True)
    picture = io.BytesIO()
    Image.open(target).convert("RGB").resize((784, 448)).save(picture, "JPEG", quality=80)
    return picture.getvalue()


def shorten(lines: list[str], keep: str, limit: int = 99) -> list[str]:
    """Return the lines that match, cut to the width of the terminal; CSV as columns."""
    chosen = [line for line in lines if re.search(keep, line)][:limit]
    return [line if len(line) <= COLUMNS else f"{line[: COLUMNS - 1]}…" for line in chosen]


def columns(lines: list[str], names: tuple[str, ...]) -> list[str]:
    """Return the named columns of CSV lines, aligned; numbers with three digits."""
    header, *rows = (line.split(",") for line in lines if "," in line and " " not in line)
    shown = [list(names), *([row[header.index(name)] for name in names] for row in rows)]
    shown = [[f"{float(c):.3f}" if re.fullmatch(r"0\.\d+", c) else c for c in row] for row in shown]
    return ["  ".join(f"{cell:<12}" for cell in row).rstrip() for row in shown]


def draw(scenes: list[list[str]], report: bytes) -> str:
    """Return the animated picture: each scene a list of lines; the report is shown after the first."""
    seconds = 0.0
    parts: list[str] = []
    starts: list[tuple[float, float, str]] = []
    for number, lines in enumerate(scenes):
        texts = []
        for k, line in enumerate(lines):
            seconds += 0.05 if seconds == 0 else 0.9 if line.startswith("$") else 0.25
            color = "#7ee787" if line.startswith("$") else "#e6edf3"
            place = f'x="16" y="{54 + LINE * k}" fill="{color}"'
            texts.append((seconds, f"<text {place} xml:space='preserve'>{html.escape(line)}</text>"))
        seconds += 2.5
        starts += [(at, seconds, text) for at, text in texts]
        if number == 0:
            data = base64.b64encode(report).decode()
            image = f'<image x="8" y="30" width="784" href="data:image/jpeg;base64,{data}"/>'
            starts.append((seconds, seconds + 3.5, image))
            seconds += 3.5
    styles = []
    for k, (begin, end, text) in enumerate(starts):
        a, b = 100 * begin / seconds, 100 * end / seconds
        frames = f"0%,{a:.2f}%{{opacity:0}}{a + 0.01:.2f}%,{b - 0.01:.2f}%{{opacity:1}}{b:.2f}%,100%{{opacity:0}}"
        styles.append(f"@keyframes k{k}{{{frames}}}")
        shown = int(end == seconds)  # the last scene is what a viewer without animation shows
        parts.append(f'<g style="animation:k{k} {seconds:.1f}s infinite;opacity:{shown}">{text}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 16}" font-size="13.5" '
        'font-family="ui-monospace,Menlo,Consolas,monospace" role="img" '
        'aria-label="Train, look at the report, ask for recommendations">'
        f"<style>{''.join(styles)}</style>"
        f'<rect width="{WIDTH}" height="{HEIGHT + 16}" rx="8" fill="#0d1117"/>'
        '<circle cx="18" cy="16" r="5" fill="#ff5f57"/><circle cx="36" cy="16" r="5" fill="#febc2e"/>'
        '<circle cx="54" cy="16" r="5" fill="#28c840"/>'
        f"{''.join(parts)}</svg>\n"
    )


def main() -> None:
    """Run the commands and write the picture."""
    sys.path.insert(0, str(ROOT / "examples"))
    from make_purchases import write

    os.environ["COLUMNS"] = str(COLUMNS)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write(Path("purchases.csv"))
        trained = output(TRAIN)
        report = screenshot(Path("runs/mine/report.html").resolve(), Path("report.png").resolve())
        table = shorten(trained, r"^ split|^ test|^   (seen|pop)", 5)
        progress = shorten(trained, r"^counts on .*events|^epoch")
        first = [f"$ {TRAIN}", *progress, *shorten(trained, "^Compared|points above")]
        answers = columns(output(RECOMMEND), ("rank", "node", "score", "met"))
        chance = columns(output(PREDICT), ("src", "dst", "probability"))
        TARGET.write_text(draw([[*first, *table], [f"$ {RECOMMEND}", *answers, f"$ {PREDICT}", *chance]], report))


if __name__ == "__main__":
    main()
