"""A step taken apart: what is asked, what is read, and a forward pass cut at the model's layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from cordgt.experiments.bench.rows import Row
from cordgt.experiments.bench.setup import Place
from cordgt.experiments.bench.timing import Stopwatch, Timing, summary, timed
from cordgt.history.context import sample_trees
from cordgt.history.queries import Queries
from cordgt.models.cordgt import Cordgt
from cordgt.runtime import kernel_loader as kernels
from cordgt.runtime.profiling import counts_of


def queries_of(place: Place) -> Queries:
    """What a training step asks of the batch to try."""
    position, _ = place.batch()
    start, settings = position[:1].expand_as(position), place.settings
    return place.task.queries(
        position,
        start,
        place.task.pools.train,
        seed=settings.seed,
        epoch=1,
        num_negatives=settings.training.num_negatives,
    )


def trees_of(place: Place, queries: Queries) -> Timing | None:
    """The trees of a batch alone, both ends; None where the model reads none."""
    shape = place.trees
    if shape is None:
        return None
    root = queries.ends
    tree_index, cut = place.task.training.index, queries.cut[:, None]
    return timed(lambda: sample_trees(tree_index, shape, root, cut, seed=0, epoch=1), place.device, place.repeat)


def less(whole: Timing, part: Timing) -> Timing:
    """What is left of a whole; never below nothing."""
    left = max(whole.median - part.median, 0.0)
    return Timing(left, max(whole.low - part.high, 0.0), max(whole.high - part.low, 0.0), whole.samples)


@dataclass(frozen=True)
class ForwardParts:
    """A forward pass cut at the model's layers: tokens (before and between), layers, head (after the last)."""

    timings: dict[str, Timing]
    flops: dict[str, int]
    whole: Timing

    @classmethod
    def of(cls, place: Place) -> ForwardParts | None:
        """None for a model without a list of layers."""
        layers = getattr(place.model, "layers", None)
        if not isinstance(layers, nn.ModuleList):
            return None
        place.model.train()
        batch = place.model.reader.pairs(replace(place.task.training, epoch=1), queries_of(place))
        if kernels.serve(place.device) and isinstance(place.model, Cordgt):
            return cls._of_fused(place, place.model, batch)
        samples: list[dict[str, float]] = []
        for _ in range(place.repeat + 1):  # the first one warms up
            samples.append(_cut_at_layers(place, layers, batch))
        timings = {part: summary([s[part] for s in samples[1:]]) for part in samples[0]}
        whole = summary([sum(s.values()) for s in samples[1:]])
        return cls(timings, _flops_at_layers(place, layers, batch), whole)

    @classmethod
    def _of_fused(cls, place: Place, model: Cordgt, batch: Any) -> ForwardParts:
        """Where the layers run as one, there is nothing between them to hook into: tokens alone, and what is left."""
        run = place.step()
        tokens = timed(lambda: model.sequences(batch), place.device, place.repeat)
        whole = timed(lambda: run.losses(batch), place.device, place.repeat)
        timings = {"tokens": tokens, "layers": less(whole, tokens)}
        with kernels.plainly():  # operations are counted where they are torch's
            return cls(timings, _flops_at_layers(place, model.layers, batch), whole)


def _cut_at_layers(place: Place, layers: nn.ModuleList, batch: Any) -> dict[str, float]:
    """Seconds of one forward pass by part."""
    watch, names = Stopwatch(place.device), []

    def entering(*_: Any) -> None:
        names.append("tokens")
        watch.mark()

    def leaving(*_: Any) -> None:
        names.append("layers")
        watch.mark()

    hooks = [h for k in layers for h in (k.register_forward_pre_hook(entering), k.register_forward_hook(leaving))]
    run = place.step()
    watch.mark()
    run.losses(batch)
    watch.mark()
    names.append("head")
    for hook in hooks:
        hook.remove()
    gaps = watch.gaps()
    return {
        part: sum(g for g, n in zip(gaps, names, strict=True) if n == part) for part in ("tokens", "layers", "head")
    }


def _flops_at_layers(place: Place, layers: nn.ModuleList, batch: Any) -> dict[str, int]:
    """Floating-point operations by part: the layers called alone with what they were given, and the rest.

    What comes after the last layer is small, and is counted with the tokens.
    """
    given: list[tuple[nn.Module, Any]] = []
    hooks = [k.register_forward_pre_hook(lambda m, a, kw: given.append((m, (a, kw))), with_kwargs=True) for k in layers]
    whole = counts_of(lambda: place.model.losses(batch)).flops
    for hook in hooks:
        hook.remove()
    inside = sum(counts_of(lambda m=m, a=a: m(*a[0], **a[1])).flops for m, a in given)  # type: ignore[misc]
    return {"tokens": whole - inside, "layers": inside, "head": 0}


def step_parts(place: Place, whole: Timing) -> list[Row]:
    """The step taken apart, in order, each part with its share of the whole. On a GPU without capture."""
    names = ("queries", "read", "forward", "backward", "adam")
    samples = [_one_step_apart(place) for _ in range(place.repeat + 1)][1:]
    timings = {name: summary([s[k] for s in samples]) for k, name in enumerate(names)}
    rows = [_part(name, timing, whole) for name, timing in timings.items()]
    trees, found = trees_of(place, queries_of(place)), ForwardParts.of(place)
    inner: dict[str, list[Row]] = {}
    if trees is not None:
        left = less(timings["read"], trees)
        inner["read"] = [_part("· trees", trees, whole), _part("· distances", left, whole)]
    if found is not None:
        inner["forward"] = [_part(f"· {k}", t, whole, found.flops[k] or None) for k, t in found.timings.items()]
    return [row for outer in rows for row in (outer, *inner.get(outer.part, []))]


def _part(name: str, timing: Timing, whole: Timing, flops: int | None = None) -> Row:
    return Row(stage="step", part=name, timing=timing, share=timing.median / whole.median, flops=flops)


def _one_step_apart(place: Place) -> list[float]:
    """Seconds of queries, read, forward, backward and Adam."""
    watch, optimizer, run = Stopwatch(place.device), place.optimizer, place.step()
    watch.mark()
    queries = queries_of(place)
    watch.mark()
    batch = place.model.reader.pairs(replace(place.task.training, epoch=1), queries)
    watch.mark()
    loss = run.losses(batch).mean()
    watch.mark()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    watch.mark()
    optimizer.step()
    watch.mark()
    return watch.gaps()
