"""The paper's main tables under the paper's own protocol: its mask, its visibility rule, means over batches of 30.

CorDGT is trained and evaluated with `mask=true` and `visibility=paper`. The rivals read no pair counts, so their cells
are those of the table `link-ap`, with the visibility rule that the table shows.
"""

from __future__ import annotations

from functools import partial

from cordgt.experiments import paper, plots
from cordgt.experiments.cells import Cell, CellStore
from cordgt.experiments.link import METRICS, display_name
from cordgt.experiments.tables import Comparison, ExperimentRequest, Panels, Report, ResultSet, Section, percentages
from cordgt.tasks.run_metrics import SETTINGS

MODELS = (
    "cordgt",
    "tgn",
    "dyrep",
    "jodie",
    "tgat",
    "graphmixer",
    "tcl",
    "cawn",
    "tgsrec",
)  # those of the paper's table
PROTOCOL = {"cordgt": {"mask": True, "visibility": "paper"}}
BATCH_SIZE = 30  # of the means over batches


def paper_protocol_cells(request: ExperimentRequest) -> list[Cell]:
    return request.make_cells(defaults=lambda _, model: PROTOCOL.get(model, {}))


def paper_protocol_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report AP and AUC as means over batches of 30, next to the paper's."""
    results = ResultSet(request, store, paper_protocol_cells(request))
    sections, records = [], []
    panels: Panels = {}
    for data in request.datasets:
        heading, show_paper = results.heading(data), results.is_comparable_to_paper(data)
        for metric, metric_name in METRICS.items():
            rows = []
            for model in request.models:
                own = [k for k in results.select(data, model) if k["settings"]["eval_batch_size"] == BATCH_SIZE]
                rule = ", ".join(sorted({k["settings"]["visibility"] for k in own}))
                row = [display_name(model), rule]
                for setting in SETTINGS:
                    published = paper.link_result(metric, setting, model, data) if show_paper else None
                    values = percentages(own, "test", setting, f"{metric}_batch")
                    comparison = Comparison(values, published, len(own))
                    row += comparison.texts
                    record = {"data": data, "setting": setting, "metric": f"{metric}_batch", "model": model}
                    records.append(record | {"visibility": rule} | comparison.to_record())
                    if metric == "ap":
                        panels.setdefault((setting, heading), {})[display_name(model)] = comparison
                rows.append([*row, str(len(own))])
            parts = ("the paper", "here", "difference")
            columns = [f"{setting}, {metric_name}/{BATCH_SIZE}: {part}" for setting in SETTINGS for part in parts]
            sections.append(Section(f"{heading}: {metric_name}", ["", "visibility", *columns, "seeds"], rows))
    title = "Link prediction under the paper's protocol, in percent"
    notes = [
        f"AP/{BATCH_SIZE} and AUC/{BATCH_SIZE}: mean over batches of {BATCH_SIZE} test events, one random negative per "
        "event, as in the paper. Mean ± sample standard deviation over the seeds; each seed masks other nodes. The "
        "paper has three runs.",
        "CorDGT: `mask=true`, `visibility=paper` (trees see strictly earlier events, pair counts only earlier "
        "batches), in training and evaluation. The rivals have no pair counts; `event` is the paper's rule for their "
        "neighbors. The memory of TGN, DyRep and JODIE ends at the last whole block before the query.",
        *results.notes(show_protocol=False),
    ]
    draw = partial(plots.dot_plot, title=title, panels=panels, unit=f"AP/{BATCH_SIZE}, %")
    return Report(title, sections, records, notes, draw)
