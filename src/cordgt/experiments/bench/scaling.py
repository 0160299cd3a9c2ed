"""How cost grows with the number of events, and with the size of the context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError, SettingError
from cordgt.events.stream import EventStream
from cordgt.experiments.bench.setup import BenchSetup
from cordgt.experiments.bench.stages import measure_evaluate, measure_full_step, measure_index, measure_sample
from cordgt.experiments.bench.suite import describe_setup
from cordgt.files import write_atomically
from cordgt.io.datasets.twins import is_twin, twin_stream

EVENT_FACTORS = (1, 4, 16)  # the largest stream has 16 times the events of the smallest
FANOUT_FACTORS = (1, 2, 4)  # of the first hop
MIN_EVENTS = 16 * EVENT_FACTORS[-1]  # of the largest stream: the smallest has 16, enough to be split


def measure_growth(bench: BenchSetup, scale: float | None = None, callbacks: Callback = NO_CALLBACK) -> dict[str, Any]:
    """Measure all costs at 1, 4 and 16 times the events, and a step at 1, 2 and 4 times the context.

    A twin is generated at each size; the largest has ``scale`` times its published size. Other data are cut: the
    smaller streams are their first events. Raise SettingError for a model without a fan-out, DataError for too few
    events.
    """
    stream, settings = bench.stream, bench.settings
    if not hasattr(settings.model_settings, "fanout"):
        raise SettingError(f"`growth` needs a model with the setting fanout; {settings.model} has none.")
    if scale is not None and not is_twin(stream.name):
        raise SettingError(f"--scale is for twins, which can have any size. {stream.name} is not a twin.")
    if not is_twin(stream.name) and stream.n_events < MIN_EVENTS:
        raise DataError(
            f"{stream.name}: {stream.n_events:,} events are too few to measure growth. At least {MIN_EVENTS} are "
            "needed, because a sixteenth of them is trained on too. Try --data food-twin."
        )
    events, context = [], []
    for factor, part in _streams(stream, scale or 1.0):
        callbacks.on_stage_start(f"{factor} × events: {part.n_events:,}", None)
        costs = _measure_costs(
            replace(bench, stream=part), measure_index, measure_sample, measure_full_step, measure_evaluate
        )
        events.append({"times": factor, "events": part.n_events, "nodes": part.n_nodes} | costs)
    for factor in FANOUT_FACTORS:
        first, *others = settings.model_settings.fanout
        fanout = (first * factor, *others)
        callbacks.on_stage_start(f"{factor} × context: fan-out {fanout}", None)
        wider = replace(settings, model_settings=replace(settings.model_settings, fanout=fanout))
        costs = _measure_costs(replace(bench, settings=wider), measure_full_step)
        context.append({"times": factor, "fanout": list(fanout)} | costs)
    return describe_setup(bench) | {"events": events, "context": context}


def _streams(stream: EventStream, scale: float) -> Iterator[tuple[int, EventStream]]:
    for factor in EVENT_FACTORS:
        if is_twin(stream.name):
            yield factor, twin_stream(stream.name, scale=scale * factor / EVENT_FACTORS[-1])
        else:
            yield factor, first_events(stream, stream.n_events * factor // EVENT_FACTORS[-1])


def first_events(stream: EventStream, n: int) -> EventStream:
    """Return the first ``n`` events as a stream of its own, named accordingly; the stream itself if it has no more."""
    if n >= stream.n_events:
        return stream
    src, dst = (stream.ids.decode(x[:n]) for x in (stream.src, stream.dst))
    edge_x, label = (None if x is None else x[:n] for x in (stream.edge_x, stream.label))
    name = f"{stream.name}, first {n} events"
    return EventStream.from_columns(
        src, dst, stream.t[:n], edge_x, label, shared_ids=stream.ids.shared, time=stream.time, name=name
    )


def _measure_costs(bench: BenchSetup, *stages: Any) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    with bench.explain_oom():
        for stage in stages:
            metrics |= stage(bench).metrics
        n_batches = len(bench.task.split.train) / bench.settings.training.batch_size
    return metrics | {"epoch_seconds": metrics["step_ms"] / 1e3 * n_batches}


EVENT_PANELS = {
    "index, seconds": ("index_seconds", 1),
    "index, MB": ("index_mb", 1),
    "sampling, ns per root": ("root_ns", 1),
    "step, ms": ("step_ms", 1),
    "epoch, seconds": ("epoch_seconds", 1),
}  # title: key and factor
CONTEXT_PANELS = {"step, ms": ("step_ms", 1), "peak of a step, MB": ("step_peak_mb", 1), "GFLOP": ("step_gflop", 1)}


def plot_growth(result: dict[str, Any], path: Path) -> None:
    """Plot cost by events and by context: a panel for each quantity, on logarithmic axes.

    A dashed line shows what grows like the events, or like the context.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    def panel(axes: Any, title: str, x: list[int], y: list[float]) -> None:
        axes.loglog(x, [y[0] * value / x[0] for value in x], "--", color="#999999", lw=1)
        axes.loglog(x, y, "o-", color="#0072B2")
        for place, value in zip(x, y, strict=True):
            axes.annotate(f"{value:,.3g}", (place, value), (0, 6), textcoords="offset points", ha="center", fontsize=8)
        axes.set_title(title, fontsize=10)
        axes.set_xticks(x, [f"{value:,}" for value in x], fontsize=8)
        axes.minorticks_off()
        low, high = min(y), max(y[0] * x[-1] / x[0], *y)
        axes.set_ylim(low / 1.8, high * 2.2)
        axes.set_yticks([])
        axes.margins(x=0.18)
        axes.spines[["top", "right"]].set_visible(False)

    figure, grid = pyplot.subplots(2, len(EVENT_PANELS), figsize=(12.5, 5.2), layout="constrained")
    events = [row | {"root_ns": 1e9 / row["sample_roots_per_second"]} for row in result["events"]]
    for axes in grid.flat:
        axes.set_visible(False)
    for line, rows, key, panels in (
        (grid[0], events, "events", EVENT_PANELS),
        (grid[1], result["context"], "times", CONTEXT_PANELS),
    ):
        for axes, (title, (name, factor)) in zip(line, panels.items(), strict=False):
            axes.set_visible(True)
            panel(axes, title, [row[key] for row in rows], [row[name] * factor for row in rows])
            axes.set_xlabel("events" if key == "events" else "context, times")
    setup = f"{result['model']} on {result['data']['name']}, batch of {result['batch_size']}, {result['device']}"
    figure.suptitle(f"{setup}; dashed: in proportion to the events or the context", x=0.01, ha="left", fontsize=11)
    file_format = path.suffix.removeprefix(".") or "png"
    write_atomically(path, partial(figure.savefig, dpi=110, format=file_format))
    pyplot.close(figure)
