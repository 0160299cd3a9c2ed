"""Small files and runs under the names that the documentation uses."""

from __future__ import annotations

import csv
import functools
import random
import re
import shutil
import zipfile
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import cordgt
from cordgt.workflows.train import train

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    chain([ROOT / "README.md", ROOT / "CONTRIBUTING.md"], DOCS.glob("*.md"), DOCS.glob("notes/*.md")),
    key=lambda page: page.name,
)

PEOPLE = ["ada", "bob", "eve", "ana", *(f"c{i:02d}" for i in range(16))]
PRODUCTS = ["tea", "milk", "bread", "pen", *(f"p{i:02d}" for i in range(8))]
SMALL_CORDGT: dict[str, Any] = {"fanout": (2, 1), "hidden": 4, "heads": 1, "layers": 1, "td_dim": 4, "sd_dim": 4}
START = datetime(2026, 1, 5)


def blocks(page: Path, *languages: str) -> list[str]:
    """Return the text of every fenced block in one of these languages, without its indentation; "" for no language."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, name, body in found if name in languages]


def write_purchases(path: Path, n: int, header: tuple[str, str, str], *, first: int = 0, ids: str = "names") -> Path:
    """Write ``n`` purchases, a few an hour. Everyone has two favourite products."""
    draw = random.Random(first)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(header)
        for k in range(first, first + n):
            who = draw.randrange(len(PEOPLE)) if k >= len(PEOPLE) else k
            what = draw.choice([who, who, who + 5, draw.randrange(len(PRODUCTS))]) % len(PRODUCTS)
            if ids == "names":
                rows.writerow([PEOPLE[who], PRODUCTS[what], START + timedelta(hours=3 * k)])
            else:
                rows.writerow([who + 1, 30 + what, 10_800 * k])
    return path


@functools.wraps(train)
def train_quickly(stream: Any, model: Any = "cordgt", *args: Any, **options: Any) -> cordgt.Run:
    # one epoch, on the CPU, without a report, with the smallest CorDGT; an old run of that name is deleted
    if options.get("out") is not None:
        shutil.rmtree(options["out"], ignore_errors=True)
    small = SMALL_CORDGT if model == "cordgt" else {}
    changes = {"device": "cpu", "report": False, "refit": False, **small}
    if model not in ("edgebank", "popularity"):  # these have nothing to train
        changes["epochs"] = 1
    return train(stream, model, *args, **(options | changes))


def make_workspace(folder: Path) -> Path:
    """Fill the folder: files of purchases and messages, lists of ids, tiny datasets by name, and trained runs."""
    shop = ("customer", "product", "when")
    plain = ("src", "dst", "time")
    write_purchases(folder / "purchases.csv", 400, shop)
    write_purchases(folder / "later.csv", 40, shop, first=400)
    for name in ("messages.csv", "my_events.csv", "events.csv", "history.csv"):
        write_purchases(folder / name, 300, plain)
    for name in ("march.csv", "day.csv", "tonight.csv", "NEW.csv"):
        write_purchases(folder / name, 40, plain, first=400)
    (folder / "events").mkdir()
    write_purchases(folder / "events" / "january.csv", 200, plain)
    cordgt.read_events(folder / "tonight.csv").to_pandas().to_parquet(folder / "tonight.parquet")
    at_bats = cordgt.read_events(folder / "history.csv").to_pandas()
    at_bats.rename(columns={"src": "batter", "dst": "pitcher"}).to_parquet(folder / "retro200k.parquet")
    (folder / "questions.csv").write_text("src,dst\nada,tea\nbob,milk\n")
    (folder / "pairs.csv").write_text("customer,product\nada,tea\nbob,milk\n")
    (folder / "in-stock.csv").write_text("tea\nmilk\nbread\n")
    (folder / "customers.csv").write_text("ada\nbob\n")
    (folder / "sources.csv").write_text("ada\nbob\n")
    with zipfile.ZipFile(folder / "log.zip", "w") as archive:
        rows = "".join(f"a{k % 9},b{k % 7},{1 + k % 28:02d}/03/2026\n" for k in range(99))
        archive.writestr("march.csv", f"src,dst,time\n{rows}")
        archive.writestr("april.csv", "src,dst,time\n")
    shutil.copytree(ROOT / "examples" / "plugins", folder, dirs_exist_ok=True)
    for name in ("uci", "enron", "wikipedia", "mooc"):
        (folder / "datasets" / name).mkdir(parents=True)
        write_purchases(folder / "datasets" / name / f"ml_{name}.csv", 300, ("u", "i", "ts"), ids="numbers")
    runs = folder / "runs"
    train_quickly(folder / "purchases.csv", out=runs / "mine")
    shutil.copytree(runs / "mine", runs / "other")
    return folder
