"""What else is asked of a trained run: harder negatives, and ranks.

The run is laid out once, and asked again and again: what differs is what a true event is told apart from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cordgt.callbacks import Callback, CallbackList
from cordgt.inference.run import Run
from cordgt.runtime.signals import Stop, StopCallback, listening
from cordgt.tasks.link import evaluate
from cordgt.training.evaluation import evaluate_splits

BATCH = 200  # events, of the means over batches: as others report them
RANKED = "20"  # candidates: few, for every event of the test period is ranked by every model and seed
HARDER = ("historical", "inductive")  # negatives


def hard(run: Run, callbacks: Callback) -> dict[str, Any]:
    """Test figures with random negatives and ranks, then with harder negatives, each with its baselines.

    ``{"test": {setting: figures}, "baselines": {baseline: {setting: figures}}}`` with random ones, and the same
    below the name of each kind of harder ones.
    """
    with _stoppable(callbacks) as (stoppable, stop):
        model, task = run.evaluation_task(negatives="random", eval_batch_size=BATCH, ranking="none")

        def figures(**changes: str) -> dict[str, Any]:
            found = evaluate_splits(model, task.under(**changes), stoppable, ("test",))
            stop.check()  # the evaluation of baselines reports no progress
            return {"test": found["test"], "baselines": {name: of["test"] for name, of in found["baselines"].items()}}

        return figures(ranking=RANKED) | {kind: figures(negatives=kind) for kind in HARDER}


def ranked(run: Run, callbacks: Callback) -> dict[str, Any]:
    """Test figures with every true destination ranked among all others, beside the validation that chose the epoch.

    Of all events alone, whether their nodes are new or not: leaderboards do not part them.
    """
    with _stoppable(callbacks) as (stoppable, stop):
        model, task = run.evaluation_task(ranking="all")
        stoppable.on_stage_start("evaluating: test, ranked among all", 2 * len(task.asked("test", "transductive")[0]))
        figures = evaluate(model, task, "test", "transductive", callbacks=stoppable)
        stop.check()
        return {"validation": run.metrics["validation"], "test": {"transductive": figures}}


@contextmanager
def _stoppable(callbacks: Callback) -> Iterator[tuple[Callback, Stop]]:
    """Callbacks that end an evaluation where a signal or the time limit asks for that: the run itself is kept."""
    with listening() as stop:
        yield CallbackList([callbacks, StopCallback(stop)]), stop
