"""Random streams with names, ties, repeats, self-loops and features; changes of their future; and queries by name.

A world is raw columns, as a user has them: nodes have names, and the stream assigns ids. So a change of the future may
renumber nodes, and a test that queries by name detects whether this matters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from cordgt.events.stream import EventStream, TimeAxis
from cordgt.history.queries import History, Queries
from cordgt.models import MODELS
from cordgt.models.base import SCORE_TOLERANCE, LinkModel
from cordgt.tasks.histories import build_history
from cordgt.tasks.protocol import visible_cuts
from cordgt.training.model_factory import build_model
from cordgt.training.settings import Settings, known_keys, make_settings

CPU = torch.device("cpu")
EDGE_DIM, NODE_DIM = 3, 2
NAMES = tuple("abcdefghijkl")  # of nodes in the stream
LATER_NAMES = ("x", "y", "z")  # not in it, but perhaps in a changed future
UNKNOWN = "unknown"  # in no stream
SMALL = {
    "hidden": 8,
    "heads": 2,
    "layers": 2,
    "fanout": (3, 2),
    "td_dim": 8,
    "sd_dim": 10,
    "num_neighbors": 3,
    "time_dim": 6,
    "time_gap": 5,
    "max_seq_len": 6,
    "channel_dim": 4,
    "num_walks": 4,
    "walk_length": 3,
    "position_dim": 6,
    "time_scale": 0.1,
    "num_embeddings": 9,
    "memory_dim": 8,
    "block": 5,
}
# Settings that change what is read or attended to. A model is tested with those that it has.
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"mask": True, "sampling": "recent"},
    {"stpe": "u", "head": "linear", "mask": True},
    {"patch_size": 3},
    {"slot_features": False, "collaborative": True, "likeness": True, "votes": True, "identities": True},
    {"pair_features": False},
)


# --- models ---


@dataclass(frozen=True)
class Case:
    """A model in one of its settings, small."""

    model: str
    changes: dict[str, Any]

    @property
    def settings(self) -> Settings:
        known = known_keys()
        wanted = {key: value for key, value in (SMALL | self.changes).items() if key in known}
        return make_settings(self.model, wanted, seed=5)

    def network(self, world: World) -> LinkModel:
        """Make the model. No weight is zero: a bias that starts at zero could hide that it is not used."""
        network = build_model(self.settings, edge_dim=world.edge_dim, node_dim=world.node_dim).eval()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        if not network.is_transductive:  # its node ids are those of one world
            network.prepare(world.history, world.n_events)
        return network

    @property
    def samples(self) -> bool:
        """Whether the model's input depends on a seed."""
        own = vars(self.settings.model_settings)
        return own.get("sampling") in ("uniform", "mixed") or "time_scale" in own


def _cases() -> Iterator[Case]:
    """Every model with its defaults and in each variant; a model derived from another only in its own settings."""
    of_models = {kind.settings for kind in MODELS.values()}
    for model, kind in MODELS.items():
        own = {field.name for field in dataclasses.fields(kind.settings)}
        parents = of_models.intersection(kind.settings.__mro__[1:])
        inherited = {field.name for parent in parents for field in dataclasses.fields(parent)}
        for changes in VARIANTS:
            if not changes or (own - inherited) & changes.keys():
                yield Case(model, {key: value for key, value in changes.items() if key in own})


def _each(cases: Iterable[Case]) -> pytest.MarkDecorator:
    named = [pytest.param(c, id="-".join([c.model, *(f"{k}={v}" for k, v in c.changes.items())])) for c in cases]
    return pytest.mark.parametrize("case", named)


every_model = _each(_cases())
# a transductive model reads nothing once it is trained
every_reading_model = _each(case for case in _cases() if not MODELS[case.model].network.is_transductive)
every_sampling_model = _each(case for case in _cases() if case.samples)
every_embedding_model = _each(case for case in _cases() if MODELS[case.model].network.has_embeddings)


# --- streams ---


@dataclass(frozen=True, eq=False)
class World:
    """Raw columns in order of time. ``node_x`` gives every name a row, whether or not it occurs."""

    src: tuple[str, ...]
    dst: tuple[str, ...]
    t: tuple[Any, ...]
    edge_x: np.ndarray | None = None  # (E, EDGE_DIM)
    node_x: dict[str, np.ndarray] | None = None

    @property
    def n_events(self) -> int:
        return len(self.src)

    @property
    def edge_dim(self) -> int:
        return 0 if self.edge_x is None else EDGE_DIM

    @property
    def node_dim(self) -> int:
        return 0 if self.node_x is None else NODE_DIM

    @property
    def times(self) -> np.ndarray:
        return np.array(self.t, dtype=np.float64 if any(isinstance(t, float) for t in self.t) else np.int64)

    @cached_property
    def stream(self) -> EventStream:
        made = EventStream.from_columns(self.src, self.dst, self.times, self.edge_x, time=TimeAxis("number"))
        if self.node_x is not None:
            made = made.with_node_features(np.stack([self.node_x[name] for name in made.ids.names.to_pylist()]))
        return made

    @cached_property
    def history(self) -> History:
        """All of it, on the CPU, with seed 5."""
        return build_history(self.stream, seed=5, device=CPU)

    def first(self, cut: int) -> World:
        """The first ``cut`` events alone."""
        edge_x = None if self.edge_x is None else self.edge_x[:cut]
        return replace(self, src=self.src[:cut], dst=self.dst[:cut], t=self.t[:cut], edge_x=edge_x)

    def then(self, later: World) -> World:
        edge_x = None if self.edge_x is None or later.edge_x is None else np.concatenate([self.edge_x, later.edge_x])
        src, dst, t = self.src + later.src, self.dst + later.dst, self.t + later.t
        return replace(self, src=src, dst=dst, t=t, edge_x=edge_x)

    def shifted(self, by: Any) -> World:
        return replace(self, t=tuple(t + by for t in self.t))


def random_world(
    seed: int, n_events: int, *, features: bool, floats: bool = False, start: Any = 0, names: tuple[str, ...] = NAMES
) -> World:
    """Few nodes, so that pairs repeat and nodes meet themselves; every other event is tied with the one before."""
    rng = np.random.default_rng(seed)
    src = rng.choice(names, n_events)
    dst = np.where(rng.random(n_events) < 0.1, src, rng.choice(names[: max(len(names) // 2, 2)], n_events))
    steps = rng.choice([0, 0, 0, 1, 2, 7], n_events).cumsum()
    t = [start + (0.1 * float(s) if floats else int(s)) for s in steps]
    edge_x = rng.normal(size=(n_events, EDGE_DIM)).astype(np.float32) if features else None
    node_x = {n: rng.normal(size=NODE_DIM).astype(np.float32) for n in (*NAMES, *LATER_NAMES)} if features else None
    return World(tuple(src.tolist()), tuple(dst.tolist()), tuple(t), edge_x, node_x)


@st.composite
def worlds(draw: st.DrawFn, *, min_events: int = 20, max_events: int = 60) -> World:
    """Any random world."""
    return random_world(
        draw(st.integers(0, 10**6)),
        draw(st.integers(min_events, max_events)),
        features=draw(st.booleans()),
        floats=draw(st.booleans()),
        start=draw(st.sampled_from((0, -40, 10**6))),
        names=NAMES[: draw(st.integers(2, len(NAMES)))],
    )


def other_futures(world: World, cut: int, seed: int) -> Iterator[tuple[str, World]]:
    """The same world with something else at and after ``cut``, each kind of change by its name.

    What comes instead may stand at the time of the last event that is kept, as early as the order allows.
    """
    past = world.first(cut)
    start = world.t[cut - 1] if cut else world.t[0]
    features = world.edge_x is not None

    def random(n: int, names: tuple[str, ...], kind: int) -> World:
        return random_world(seed + kind, n, features=features, start=start, names=names)

    future = world.n_events - cut
    if cut:
        yield "deleted", past
    yield "changed", past.then(random(max(future, 1), NAMES, 1))
    yield "strangers", past.then(random(max(future, 1), (*LATER_NAMES, *NAMES[::-1]), 2))
    yield "added", world.then(replace(random(9, (*LATER_NAMES, *NAMES), 3), t=(world.t[-1],) * 9))
    if future:
        now = replace(random(2, (*LATER_NAMES, *NAMES), 4), t=(world.t[cut],) * 2)
        columns = [x[cut:] for x in (world.src, world.dst, world.t)]
        after = World(*columns, None if world.edge_x is None else world.edge_x[cut:])
        yield "inserted", past.then(now).then(after)
    if features and future:
        other = world.edge_x.copy()
        other[cut:] += 1
        yield "features", replace(world, edge_x=other)


# --- questions ---


@dataclass(frozen=True)
class NamedQueries:
    """Queries by name: B sources with M candidates each, at elapsed times ``t``; what they see is fixed."""

    src: list[str]
    dst: list[list[str]]
    t: np.ndarray  # (B,) float64, since the first event
    cut: np.ndarray
    pair_cut: np.ndarray

    def __len__(self) -> int:
        return len(self.src)

    def one(self, i: int) -> NamedQueries:
        return NamedQueries(*(x[i : i + 1] for x in (self.src, self.dst, self.t, self.cut, self.pair_cut)))

    def to_queries(self, stream: EventStream) -> Queries:
        """With the stream's own numbers; a name it does not have gets the next one after its last."""
        numbers = {name: i for i, name in enumerate(stream.ids.names.to_pylist())}
        for name in sorted({*self.src, *(n for row in self.dst for n in row)} - numbers.keys()):
            numbers[name] = len(numbers)
        return Queries(
            src=torch.tensor([numbers[n] for n in self.src]),
            dst=torch.tensor([[numbers[n] for n in row] for row in self.dst]),
            t=torch.from_numpy(np.asarray(self.t, np.float64)),
            cut=torch.from_numpy(np.asarray(self.cut, np.int64)),
            pair_cut=torch.from_numpy(np.asarray(self.pair_cut, np.int64)),
        )


def query_events(
    world: World, positions: list[int], rule: str, *, candidates: int = 3, batch_start: int | None = None
) -> NamedQueries:
    """A batch of the events at ``positions`` with their true destinations and others beside it, under a rule.

    Where the world has node features, the names named about occur before the smallest ``cut``, or never: what a node is
    like is told together with the node, and one that an altered stream does not hold would have lost it.
    """
    stream = world.stream
    own = torch.from_numpy(stream.tie_start[positions])
    begins = torch.full_like(own, min(positions) if batch_start is None else batch_start)
    cut, pair_cut = (x.numpy() for x in visible_cuts(rule, own, begins))
    pool = [*NAMES, *LATER_NAMES, UNKNOWN]
    if world.node_x is not None:
        pool = list(dict.fromkeys([UNKNOWN, *world.src[: int(cut.min())], *world.dst[: int(cut.min())]]))
    src, true = ([names[p] if names[p] in pool else UNKNOWN for p in positions] for names in (world.src, world.dst))
    others = [[pool[(5 * p + 3 * j) % len(pool)] for j in range(1, candidates)] for p in positions]
    dst = [[d, *rest] for d, rest in zip(true, others, strict=True)]
    return NamedQueries(src, dst, stream.elapsed[positions], cut, pair_cut)


def logits(network: LinkModel, history: History, queries: Queries) -> Tensor:
    with torch.inference_mode():
        return network(network.read(history, queries))


def predict_logits(network: LinkModel, world: World, named: NamedQueries) -> Tensor:
    """Logits (B, M) of the questions in a world."""
    return logits(network, world.history, named.to_queries(world.stream))


def assert_scores_near(got: Any, expected: Any) -> None:
    """Assert that scores of the same input agree as far as rounding lets them: see `SCORE_TOLERANCE`."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    error = np.abs(got - expected) / np.maximum(1.0, np.abs(expected))
    assert got.shape == expected.shape and error.max(initial=0.0) <= SCORE_TOLERANCE, f"by up to {error.max():.2g}"
