"""A training step split into its parts: queries, reading, forward pass (tokens, layers, head), backward, Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from cordgt.experiments.bench.rows import BenchRow
from cordgt.experiments.bench.setup import BenchSetup
from cordgt.experiments.bench.timing import Stopwatch, Timing
from cordgt.history.context import sample_trees
from cordgt.history.queries import Queries
from cordgt.models.cordgt import Cordgt
from cordgt.nn import cpu_encoder
from cordgt.runtime import kernel_loader as kernels
from cordgt.runtime.profiling import count_ops


def time_tree_sampling(bench: BenchSetup, queries: Queries) -> Timing | None:
    """Time the sampling of a batch's trees, of both ends; None if the model samples none."""
    shape, index = bench.tree_shape, bench.task.train_history.index
    if shape is None:
        return None
    root, cut = queries.endpoints, queries.cut[:, None]
    return bench.time(lambda: sample_trees(index, shape, root, cut, seed=0, epoch=1))


@dataclass(frozen=True)
class ForwardParts:
    """A forward pass split at the model's layers: tokens (before and between), layers, head (after the last)."""

    timings: dict[str, Timing]
    flops: dict[str, int]
    total: Timing

    @classmethod
    def measure(cls, bench: BenchSetup) -> ForwardParts | None:
        """Return None for a model without a list of layers."""
        layers = getattr(bench.model, "layers", None)
        if not isinstance(layers, nn.ModuleList):
            return None
        bench.model.train()
        batch = bench.read(bench.next_queries())
        is_fused = kernels.kernels_available(bench.device) or cpu_encoder.is_supported(next(bench.model.parameters()))
        if is_fused and isinstance(bench.model, Cordgt):
            return cls._measure_fused(bench, bench.model, batch)
        samples = [_time_forward_parts(bench, layers, batch) for _ in range(bench.repeat + 1)][1:]  # warm-up first
        timings = {part: Timing.from_samples([s[part] for s in samples]) for part in samples[0]}
        total = Timing.from_samples([sum(s.values()) for s in samples])
        return cls(timings, _count_forward_flops(bench, layers, batch), total)

    @classmethod
    def _measure_fused(cls, bench: BenchSetup, model: Cordgt, batch: Any) -> ForwardParts:
        """One function runs all layers, without hooks: time the tokens, and subtract them.

        The time of the head counts as part of the layers.
        """
        step = bench.make_step()
        tokens = bench.time(lambda: model.sequences(batch))
        total = bench.time(lambda: step.losses(batch))
        with kernels.plain_torch():  # the counter sees torch's operations only
            flops = _count_forward_flops(bench, model.layers, batch)
        return cls({"tokens": tokens, "layers": total - tokens}, flops, total)


def _time_forward_parts(bench: BenchSetup, layers: nn.ModuleList, batch: Any) -> dict[str, float]:
    """Return the seconds of each part of one forward pass."""
    watch, names = Stopwatch(bench.device), []

    def end_part(name: str) -> None:
        names.append(name)
        watch.mark()

    hooks = [layer.register_forward_pre_hook(lambda *_: end_part("tokens")) for layer in layers]
    hooks += [layer.register_forward_hook(lambda *_: end_part("layers")) for layer in layers]
    step = bench.make_step()
    watch.mark()
    step.losses(batch)
    end_part("head")
    for hook in hooks:
        hook.remove()
    seconds = dict.fromkeys(("tokens", "layers", "head"), 0.0)
    for name, interval in zip(names, watch.intervals(), strict=True):
        seconds[name] += interval
    return seconds


def _count_forward_flops(bench: BenchSetup, layers: nn.ModuleList, batch: Any) -> dict[str, int]:
    """Count the floating-point operations of the layers, called alone with their inputs, and of the rest.

    The head's share is small and is counted with the tokens.
    """
    calls: list[tuple[nn.Module, Any, Any]] = []
    hooks = [layer.register_forward_pre_hook(lambda *call: calls.append(call), with_kwargs=True) for layer in layers]
    total = count_ops(lambda: bench.model.losses(batch)).flops
    for hook in hooks:
        hook.remove()
    inside = sum(count_ops(lambda m=m, a=a, kw=kw: m(*a, **kw)).flops for m, a, kw in calls)  # type: ignore[misc]
    return {"tokens": total - inside, "layers": inside, "head": 0}


def measure_step_parts(bench: BenchSetup, total: Timing) -> list[BenchRow]:
    """Measure the parts in order, each with its share of the step. On a GPU without CUDA graph."""
    names = ("queries", "read", "forward", "backward", "adam")
    samples = [_time_step_parts(bench) for _ in range(bench.repeat + 1)][1:]  # the first one warms up
    trees, forward = time_tree_sampling(bench, bench.next_queries()), ForwardParts.measure(bench)
    rows = []

    def add(part: str, timing: Timing, flops: int | None = None) -> None:
        share = timing.median / total.median
        rows.append(BenchRow(stage="step", part=part, timing=timing, share=share, flops=flops))

    for name, seconds in zip(names, zip(*samples, strict=True), strict=True):
        timing = Timing.from_samples(list(seconds))
        add(name, timing)
        if name == "read" and trees is not None:
            add("· trees", trees)
            add("· distances", timing - trees)
        if name == "forward" and forward is not None:
            for part, part_timing in forward.timings.items():
                add(f"· {part}", part_timing, forward.flops[part] or None)
    return rows


def _time_step_parts(bench: BenchSetup) -> list[float]:
    """Return the seconds of queries, read, forward, backward and Adam."""
    watch, optimizer, step = Stopwatch(bench.device), bench.optimizer, bench.make_step()
    watch.mark()
    queries = bench.next_queries()
    watch.mark()
    batch = bench.read(queries)
    watch.mark()
    loss = step.losses(batch).mean()
    watch.mark()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    watch.mark()
    optimizer.step()
    watch.mark()
    return watch.intervals()
