"""Write a file of purchases: ``python make_purchases.py [FILE] [ROWS]``. The same arguments give the same file."""

from __future__ import annotations

import csv
import sys
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

NAMES = "ada bob cara dan eve finn gus hana ian joy kim leo mia nils ola pia quin rosa sam tom".split()
GROUPS = {
    "drinks": ["tea", "coffee", "milk", "juice", "cocoa"],
    "bakery": ["bread", "rolls", "cake", "croissant", "pretzel"],
    "office": ["pen", "paper", "stapler", "folder", "ink"],
    "garden": ["soil", "seeds", "pot", "hose", "rake"],
}


def purchases(n_rows: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Return (customer, product, when) rows: 60 customers with two favourite groups each, some of whom join late."""
    draw = np.random.default_rng(seed)
    customers = [*NAMES, *(f"{name}{k}" for k in (2, 3) for name in NAMES)]
    groups = list(GROUPS.values())
    favourite = draw.integers(len(groups), size=(len(customers), 2))
    habit = draw.integers(5, size=(len(customers), 2))  # the product of the group that a customer buys again and again
    rate = draw.lognormal(0, 0.7, len(customers))
    joined = np.where(np.arange(len(customers)) < 40, 0.0, draw.uniform(0.2, 0.9, len(customers)))
    moment, step = datetime(2026, 1, 1, 8), timedelta(days=120) / n_rows
    rows = []
    for k in range(n_rows):
        who = draw.choice(len(customers), p=_share(rate * (joined <= k / n_rows)))
        which = draw.integers(2)
        group = groups[favourite[who, which]] if draw.random() < 0.85 else groups[draw.integers(len(groups))]
        product = group[habit[who, which]] if draw.random() < 0.6 else group[draw.integers(5)]
        moment += step * draw.exponential()
        rows.append((customers[who], product, moment.strftime("%Y-%m-%d %H:%M:%S")))
    return rows


def _share(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()


def write(path: Path, n_rows: int = 6000) -> Path:
    """Write the rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "product", "when"])
        writer.writerows(purchases(n_rows))
    return path


if __name__ == "__main__":
    words = sys.argv[1:]
    print(write(Path(words[0] if words else "purchases.csv"), int(words[1]) if len(words) > 1 else 6000))
