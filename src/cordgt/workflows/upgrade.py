"""Write a copy of a finished run of an older format in the current format."""

from __future__ import annotations

import json
from pathlib import Path

from cordgt.errors import RunError
from cordgt.inference.run import Run
from cordgt.tasks.forecast import Forecaster
from cordgt.training.output_folder import check_empty_folder
from cordgt.training.run_folder import ACTIVITY_FILE, InitWeights, RunFolder
from cordgt.training.settings import FORMAT


def upgrade_run(path: str | Path, out: str | Path) -> Path:
    """Write a copy of the run ``path`` in the current format to the folder ``out``, and return that folder.

    The original is not changed. The copy has the same events, settings, weights, metrics and history, and no report.
    A run without activity gets one, fitted to its events. RunError if the run is unfinished or damaged, if it has the
    current format and an activity, or if ``out`` is not empty.
    """
    old, new = RunFolder(Path(path)), RunFolder(Path(out))
    run = Run.load(path, "cpu")
    if run.config.format == FORMAT and ACTIVITY_FILE in run.checksums:
        raise RunError(f"{path} already has format {FORMAT}, the current one, and an activity.")
    names = dict.fromkeys(("model.safetensors", run.weights_file))
    tensors = {name: old.read_tensors(name, run.checksums.get(name)) for name in names}
    model, task = run.evaluation_task()  # the weights must fit the settings
    has_activity = ACTIVITY_FILE in run.checksums
    forecaster = run.forecaster if has_activity else Forecaster.fit(task, model)
    history = old.read_history(run.checksums.get("history.jsonl"))
    about, init = run.config.run, None
    if about.get("init"):
        origin = (str(about.get(key, "")) for key in ("init_run", "init_knows"))
        init = InitWeights(old.read_tensors("init.safetensors")[0], *origin)
    with new.lock():
        check_empty_folder(new.path)
        refit = bool(about.get("refit"))
        new.create(run.settings, run.original_stream, columns=run.columns, init=init, refit=refit)
        new.write_text("history.jsonl", "".join(json.dumps(record) + "\n" for record in history))
        for name, (weights, metadata) in tensors.items():
            renamed = {"best_metric" if key == "best_figure" else key: value for key, value in metadata.items()}
            new.write_tensors(name, weights, renamed)
        new.write_activity(forecaster)
        new.write_metrics(run.metrics)
    return new.path
