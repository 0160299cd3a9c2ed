"""Retrieve, then rank: recall and MRR of the two stages of `recommend` next to exhaustive ranking, at the test events.

Every cell trains a model with its default settings, but at most `EPOCHS` times on the latest training events. Then it
makes the first scorer and its budget as `cordgt train` does, and asks questions at test events. Nothing is chosen on
them.
"""

from __future__ import annotations

from cordgt.experiments.cells import Cell, CellResult, CellStore
from cordgt.experiments.link import display_name
from cordgt.experiments.partner_ranking import MAX_TRAIN_EVENTS
from cordgt.experiments.tables import ExperimentRequest, Report, ResultSet, Section
from cordgt.models import MODELS

DATASETS = ("uci", "wikipedia", "mooc", "journey_8weeks", "retrosheet")
SUPPORTED_MODELS = tuple(name for name, kind in MODELS.items() if not kind.network.is_stateful)
DEFAULT_MODELS = ("cordgt_plus",)
EPOCHS = 3
TARGET_RECALL, TARGET_MRR_DIFFERENCE = 0.97, 0.002
# Columns of the table: key of the measurement, heading, format.
COLUMNS = (
    ("destinations", "destinations", "{:,}"),
    ("questions", "questions", "{:,}"),
    ("budget", "budget", "{:,}"),
    ("recall_at_10", "recall of the top 10", "{:.3f}"),
    ("two_stage_mrr", "MRR: two stages", "{:.4f}"),
    ("exhaustive_mrr", "exhaustive", "{:.4f}"),
)


def retrieval_cells(request: ExperimentRequest) -> list[Cell]:
    """Build one cell per seed, dataset and model."""
    return request.make_cells("retrieval", lambda data, model: {"epochs": EPOCHS})


def retrieval_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report recall and MRR of the two stages next to exhaustive ranking."""
    results = ResultSet(request, store, retrieval_cells(request))
    rows = [make_row(result, results.heading(result["data"])) for result in results]
    records = [
        {"data": k["data"], "model": k["model"], "seed": k["seed"], "machine": k["machine"]}
        | {key: k["figures"][key] for key, _, _ in COLUMNS}
        for k in results
    ]
    notes = [
        "Questions are asked at test events, with the history before each event. *Recall of the top 10*: share of the "
        "10 best destinations of exhaustive ranking that the two stages find. *Budget*: candidates that the model "
        "ranks, measured at validation events.",
        f"A training reads the latest {MAX_TRAIN_EVENTS:,} training events, at most {EPOCHS} times.",
        f"*Meets the target*: recall at least {TARGET_RECALL}, and MRR within {TARGET_MRR_DIFFERENCE} of exhaustive.",
        "The table has no times, because several cells can run at once. `cordgt bench recommend` measures times.",
        *results.notes(show_protocol=False),
    ]
    columns = ["", "model", "seed", *(heading for _, heading, _ in COLUMNS), "meets the target"]
    return Report("Two stages of recommend next to exhaustive ranking", [Section("", columns, rows)], records, notes)


def make_row(result: CellResult, heading: str) -> list[str]:
    """Return a row of the table, for a dataset with this heading."""
    measured = result["figures"]
    texts = [text.format(measured[key]) for key, _, text in COLUMNS]
    difference = abs(measured["two_stage_mrr"] - measured["exhaustive_mrr"])
    is_met = measured["recall_at_10"] >= TARGET_RECALL and difference <= TARGET_MRR_DIFFERENCE + 1e-9
    name, seed = display_name(result["model"]), str(result["seed"])
    return [heading, name, seed, *texts, "yes" if is_met else "no"]
