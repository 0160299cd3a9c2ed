"""How cost grows: with the events of the stream at one context, and with the context on one stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError, SettingError
from cordgt.events.stream import EventStream
from cordgt.experiments.bench.setup import Place
from cordgt.experiments.bench.stages import evaluate, index, sample, whole_step
from cordgt.experiments.bench.suite import about
from cordgt.files import write_atomically
from cordgt.io.datasets.twins import is_twin, twin_stream
from cordgt.training.settings import Settings

EVENTS = (1, 4, 16)  # times the events
CONTEXT = (1, 2, 4)  # times the first hop's fan-out
LEAST = 16 * EVENTS[-1]  # events of the largest stream: the smallest has 16, enough to be split


def grow(place: Place, scale: float | None = None, callbacks: Callback = NO_CALLBACK) -> dict[str, Any]:
    """Index, sampling, step and evaluation at 1, 4 and 16 times the events, and at 1, 2 and 4 times the context.

    Of a twin the largest stream is ``scale`` times its published size, generated at each size; of other data it is the
    whole stream, and the smaller ones are its first events. SettingError for a model without a fan-out, DataError for
    too few events.
    """
    if not hasattr(place.settings.model_settings, "fanout"):
        raise SettingError(f"growth needs a model with a fan-out; {place.settings.model} has none.")
    if scale is not None and not is_twin(place.stream.name):
        raise SettingError(f"--scale is for twins, which have any size; {place.stream.name} has its own.")
    if not is_twin(place.stream.name) and place.stream.n_events < LEAST:
        raise DataError(
            f"{place.stream.name}: {place.stream.n_events:,} events are too few to see cost grow: a sixteenth of them "
            f"is trained on too, so at least {LEAST} are needed. --data food-twin has many."
        )
    events, context = [], []
    for times, stream in _streams(place.stream, scale or 1.0):
        callbacks.on_stage_start(f"{times} × events: {stream.n_events:,}", None)
        at = replace(place, stream=stream)
        events.append({"times": times, "events": stream.n_events, "nodes": stream.n_nodes} | _costs(at, all_=True))
    for times in CONTEXT:
        settings = _wider(place.settings, times)
        callbacks.on_stage_start(f"{times} × context: fan-out {settings.model_settings.fanout}", None)
        at = replace(place, settings=settings)
        context.append({"times": times, "fanout": list(settings.model_settings.fanout)} | _costs(at, all_=False))
    return about(place) | {"events": events, "context": context}


def _streams(stream: EventStream, scale: float) -> Iterator[tuple[int, EventStream]]:
    for times in EVENTS:
        if is_twin(stream.name):
            yield times, twin_stream(stream.name, scale=scale * times / EVENTS[-1])
        else:
            yield times, first_events(stream, stream.n_events * times // EVENTS[-1])


def first_events(stream: EventStream, n: int) -> EventStream:
    """A stream's first n events, under a name that says so; the stream itself where that is all."""
    if n >= stream.n_events:
        return stream
    src, dst = (stream.ids.take(x[:n]) for x in (stream.src, stream.dst))
    edge_x = None if stream.edge_x is None else stream.edge_x[:n]
    label = None if stream.label is None else stream.label[:n]
    shared = stream.ids.shared
    name = f"{stream.name}, first {n} events"
    return EventStream.from_columns(
        src, dst, stream.t[:n], edge_x, label, shared_ids=shared, time=stream.time, name=name
    )


def _wider(settings: Settings, times: int) -> Settings:
    fanout = settings.model_settings.fanout
    return replace(settings, model_settings=replace(settings.model_settings, fanout=(fanout[0] * times, *fanout[1:])))


def _costs(place: Place, *, all_: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with place.memory_explained():
        for stage in (index, sample, whole_step, evaluate) if all_ else (whole_step,):
            found |= stage(place).figures
        batches = len(place.task.split.train) / place.settings.training.batch_size
    found["epoch_seconds"] = found["step_ms"] / 1e3 * batches
    return found


def plot(found: dict[str, Any], path: Path) -> None:
    """Two panels, logarithmic: cost by events, and cost by context; written whole or not at all."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    events = [k["events"] for k in found["events"]]
    for label, values in (
        ("index, s", [k["index_seconds"] for k in found["events"]]),
        ("index, GB", [k["index_mb"] / 1024 for k in found["events"]]),
        ("epoch, s", [k["epoch_seconds"] for k in found["events"]]),
        ("step, ms", [k["step_ms"] for k in found["events"]]),
        ("sampling, μs a root", [1e6 / k["sample_roots_per_second"] for k in found["events"]]),
    ):
        left.loglog(events, values, marker="o", label=label)
    left.set(xlabel="events", title=f"{found['data']['name']}: 1, 4, 16 times the events")
    times = [k["times"] for k in found["context"]]
    for label, values in (
        ("step, ms", [k["step_ms"] for k in found["context"]]),
        ("peak, MB", [k["step_peak_mb"] for k in found["context"]]),
        ("GFLOP", [k["step_gflop"] for k in found["context"]]),
    ):
        right.loglog(times, values, marker="o", label=label)
    right.set(xlabel="context, times", title=f"{found['model']}, batch of {found['batch_size']}, {found['device']}")
    left.set_xticks(events, [f"{k:,}" for k in events])
    right.set_xticks(times, [str(k) for k in times])
    for axes in (left, right):
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False)
    ending = path.suffix.removeprefix(".") or "png"
    write_atomically(path, partial(figure.savefig, dpi=120, format=ending))
    pyplot.close(figure)
