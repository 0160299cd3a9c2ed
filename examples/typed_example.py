"""Read a data frame, train, ask, and go back to data frames. ``mypy --strict`` accepts this file.

Run it with ``python examples/typed_example.py FOLDER``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import cordgt


class EpochLog(cordgt.Callback):
    """Collects the loss of each epoch."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        self.losses.append(float(record["loss"]))


def make_stream(n_events: int = 400) -> cordgt.EventStream:
    """Return a stream in which each user prefers a few items."""
    rng = np.random.default_rng(0)
    users = rng.integers(0, 20, n_events)
    items = (users * 3 + rng.integers(0, 4, n_events)) % 30
    return cordgt.EventStream.from_columns(users, items, np.arange(n_events), shared_ids=False, name="shop")


def main(folder: Path) -> float:
    """Train on the earlier events, read the later ones, and return the test AP."""
    stream = make_stream()
    past, later = stream[:300], stream[300:]
    log = EpochLog()
    run: cordgt.Run = cordgt.train(past, "counts", epochs=2, out=folder / "run", callbacks=log, report=False)
    scores: np.ndarray[Any, Any] = run.score([1, 2], [3, 4])
    best = run.with_events(later).recommend(1, top=3)
    first: float = best[0].score
    by_source = run.recommend([1, 2], top=3)
    n_answers: int = sum(len(answers) for answers in by_source.values())
    try:
        cordgt.train(past, "counts", no_such_setting=1)
    except cordgt.SettingError as error:
        print(error)
    print(f"{len(log.losses)} epochs, {scores.shape[0]} scores, best {first:.3f}, {n_answers} recommendations")
    print(stream.before(100), run.metrics.to_arrow().column_names)
    ap = run.metrics.metric("ap").mean
    return float("nan") if ap is None else ap


if __name__ == "__main__":
    print(f"test AP {main(Path(sys.argv[1])):.3f}")
