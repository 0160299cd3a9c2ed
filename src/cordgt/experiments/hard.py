"""What else is asked of a trained run: harder negatives, and ranks.

The run is laid out once, and asked again and again: what differs is what a true event is told apart from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cordgt.api import Run
from cordgt.machine.stopping import listening
from cordgt.tasks.link import evaluate
from cordgt.training.figures import evaluate_splits
from cordgt.training.watching import Heeding, Watcher

BATCH = 200  # events, of the means over batches: as others report them
RANKED = "20"  # candidates: few, for every event of the test period is ranked by every model and seed
HARDER = ("historical", "inductive")  # negatives


def hard(run: Run, watcher: Watcher) -> dict[str, Any]:
    """Test figures with random negatives and ranks, then with harder negatives, each with its baselines.

    ``{"test": {setting: figures}, "baselines": {baseline: {setting: figures}}}`` with random ones, and the same
    below the name of each kind of harder ones.
    """
    with _heeding(watcher) as heeding:
        model, task = run.evaluation_task(negatives="random", eval_batch_size=BATCH, ranking="none")

        def figures(**changes: str) -> dict[str, Any]:
            found = evaluate_splits(model, task.under(**changes), heeding, ("test",))
            heeding.stop.check()  # the evaluation of baselines reports no progress
            return {"test": found["test"], "baselines": {name: of["test"] for name, of in found["baselines"].items()}}

        return figures(ranking=RANKED) | {kind: figures(negatives=kind) for kind in HARDER}


def ranked(run: Run, watcher: Watcher) -> dict[str, Any]:
    """Test figures with every true destination ranked among all others, beside the validation that chose the epoch.

    Of all events alone, whether their nodes are new or not: leaderboards do not part them.
    """
    with _heeding(watcher) as heeding:
        model, task = run.evaluation_task(ranking="all")
        heeding.evaluating("test, ranked among all", 2 * len(task.asked("test", "transductive")[0]))
        figures = evaluate(model, task, "test", "transductive", progress=lambda k: heeding.step(k, None))
        heeding.stop.check()
        return {"validation": run.metrics["validation"], "test": {"transductive": figures}}


@contextmanager
def _heeding(watcher: Watcher) -> Iterator[Heeding]:
    """A watcher that ends what it watches where a signal or the time limit asks for that: the run itself is kept."""
    with listening() as stop:
        yield Heeding(watcher, stop)
