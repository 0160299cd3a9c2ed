"""Check of a run's forecasts: probabilities and times must not depend on events at or after ``cut``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from cordgt.analysis.audit.checks import NOTE, Check
from cordgt.analysis.audit.model import N_BATCHES, ScoreChanges, full_precision
from cordgt.analysis.audit.perturbations import empty_history, perturb_future
from cordgt.events.arrays import evenly_spaced
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel
from cordgt.tasks.forecast import ACT_ROLES, Forecaster
from cordgt.tasks.link import LinkTask

NAME, COMPARED = "forecasts", "events from the cut on changed, deleted, inserted"
PROBABILITIES = (0.1, 0.5, 0.9)  # of `next_time`
MAX_REFERENCES = 8  # of a ranking model: enough to see whether they change


def audit_forecasts(
    forecaster: Forecaster | None, model: LinkModel, task: LinkTask, *, queries: int = 200
) -> list[Check]:
    """Return the checks of the run's forecasts; a note if the run has none (``forecaster`` is None)."""
    if forecaster is None:
        return [Check(NAME, COMPARED, NOTE, "the run has no activity, so its forecasts are not audited")]
    return [check_forecasts(forecaster, model, task, queries)]


@full_precision()
def check_forecasts(forecaster: Forecaster, model: LinkModel, task: LinkTask, n: int) -> Check:
    """Change the events from a cut on: probabilities and times at this cut stay the same to the bit.

    The cuts are the positions of test events, so some of them lie between events of the same time.
    """
    positions, queries = task.evaluation_queries("test", "transductive")
    rows = evenly_spaced(len(positions), n)
    cut = torch.from_numpy(positions[rows]).to(task.device)
    queries = replace(queries.take(rows), cut=cut, pair_cut=cut)
    # two caches: the decayed counts of the unchanged stream are computed once
    few = replace(forecaster, references=forecaster.references[:MAX_REFERENCES])
    usual, other = (replace(few, cache={}) for _ in range(2))
    changes, rng = ScoreChanges(noun="forecasts"), np.random.default_rng(0)
    for batch in np.array_split(np.arange(len(rows)), min(N_BATCHES, len(rows))):
        for boundary in sorted({int(positions[rows[batch[len(batch) // 2]]]), int(positions[rows[batch[-1]]])}):
            some = queries.take(batch[positions[rows[batch]] <= boundary])
            expected = _answers(usual, model, task.full_history, some)
            for name, history in perturb_future(task, some, boundary, rng):
                changes.add(name, _answers(other, model, history, some), expected)
    with_past = _answers(usual, model, task.full_history, queries)
    without_past = _answers(other, model, empty_history(task), queries)
    n_sensitive = (without_past != with_past).any(axis=1).sum()
    note = f"without any past, {n_sensitive:,} of {len(with_past):,} queries change"
    return changes.to_check(NAME, COMPARED, note=note)


def _answers(forecaster: Forecaster, model: LinkModel, history: History, queries: Queries) -> np.ndarray:
    """Return every forecast (B, F) of each query: its source acts, its pairs meet, its source acts next.

    A time that is infinite is -1, and a value that is not a number is -2, so that they can be compared.
    """
    horizons = sorted({forecaster.horizons[0], forecaster.horizons[-1]}) if forecaster.horizons else [1.0]
    index = history.index
    log_partner = forecaster.log_partner(model, history, queries)
    src, dst, cut, t = (x.cpu() for x in (queries.src, queries.dst[:, 0], queries.cut, queries.t))
    columns = []
    for role, node in zip(ACT_ROLES, (src, dst), strict=True):
        columns += [forecaster.act_probability(index, node, cut, t, h, role)[:, None] for h in horizons]
        columns.append(forecaster.next_time(index, node, cut, t, PROBABILITIES, role))
    columns += [forecaster.pair_probability(index, log_partner, src, cut, t, h) for h in horizons]
    return np.nan_to_num(np.concatenate(columns, axis=1), nan=-2.0, posinf=-1.0)
