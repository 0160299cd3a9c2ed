"""Query a trained model in memory: score pairs, recommend destinations, embed nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError
from cordgt.events.arrays import distinct
from cordgt.events.ids import Side
from cordgt.events.stream import EventStream
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel, to_device
from cordgt.tasks.link import score_queries

SIDES: tuple[Side, Side] = ("src", "dst")
# Notes on a node in an answer; see `Predictor.notes`.
KNOWN, UNTRAINED, NEWCOMER, UNKNOWN, UNHEARD = "", "not in training", "no history", "no embedding", "not yet in memory"


@dataclass(frozen=True)
class Recommendation:
    """One destination: its id as in the user's data, its score, and how often the two met before."""

    node: Any
    score: float
    met: int
    note: str = ""


@dataclass(frozen=True)
class Predictor:
    """A trained model with a history to answer from."""

    model: LinkModel
    stream: EventStream
    history: History
    trained: np.ndarray  # (N,) bool; True if the node has a training event

    @property
    def device(self) -> torch.device:
        return self.history.index.device

    def moments(self, at: np.ndarray | None, n: int) -> tuple[Tensor, Tensor]:
        """Elapsed times ``t`` and numbers of visible events ``cut``, (n,) each.

        ``at`` has n times on the stream's axis; None means after the last event of the history.
        """
        stream = self.stream
        if at is None:
            t = np.full(n, stream.elapsed[-1])
            cut = np.full(n, stream.n_events)
        else:
            early = np.flatnonzero(at < stream.t[0])
            if len(early):
                first, time = (stream.time.format_one(x) for x in (stream.t[0], at[early[0]]))
                row = f" (row {early[0] + 1} of the queries)" if (at != at[0]).any() else ""
                raise DataError(f"The time {time}{row} is before the history, which begins at {first}.")
            t, cut = stream.elapsed_at(at), stream.cut_at(at)
        return torch.from_numpy(t).to(self.device), torch.from_numpy(cut).to(self.device)

    def nodes(self, ids: Any, side: Side) -> np.ndarray:
        """Internal ids. An unknown id gets a new one from ``n_nodes`` on; equal ids get the same one."""
        return self._internal_ids([(ids, side)])[0]

    def nodes_of_either_side(self, ids: Any, sides: Sequence[str] | None = None) -> np.ndarray:
        """`nodes` for ids of either side. ``sides`` gives "src" or "dst" for each; None searches both.

        DataError if an id is in both of two separate id spaces and ``sides`` is None.
        """
        src, dst = (self.nodes(ids, side) for side in SIDES)
        if self.stream.ids.shared:
            return src
        if sides is not None:
            return np.where(_checked_sides(ids, sides) == "src", src, dst)
        n = self.stream.n_nodes
        both = np.flatnonzero((src < n) & (dst < n))
        if len(both):
            raise DataError(
                f"The id {str(ids[int(both[0])])!r} is that of a source and of a different destination. "
                "Add a column 'side' with src or dst to say which is meant."
            )
        return np.where(dst < n, dst, src)

    def _internal_ids(self, columns: Sequence[tuple[Any, Side]]) -> list[np.ndarray]:
        """Internal ids of several columns. An unknown id gets the same number in every column of its id space."""
        ids = self.stream.ids
        new: dict[tuple[str, str], int] = {}
        found = [ids.find(values, side).copy() for values, side in columns]
        for internal, (values, side) in zip(found, columns, strict=True):
            for i in np.flatnonzero(internal < 0).tolist():
                key = (str(values[i]), "" if ids.shared else side)
                internal[i] = self.stream.n_nodes + new.setdefault(key, len(new))
        return found

    def notes(self, node: np.ndarray, cut: np.ndarray) -> np.ndarray:
        """A note (n,) on each node that is new to the model; empty for the others.

        "no history": it has no event before ``cut``. "not in training": it has no training event. "no embedding": the
        model has no vector for it, and its pairs get the score 0.5. "not yet in memory": the model has not processed
        its events yet, and treats it as a node without history.
        """
        ids, until = (torch.from_numpy(x).to(self.device) for x in (node, cut))
        degree, seen = (
            self.history.index.degree(ids, at).cpu().numpy() for at in (until, self.model.visible_events(until))
        )
        trained = np.zeros(len(node), dtype=bool)
        inside = node < len(self.trained)
        trained[inside] = self.trained[node[inside]]
        found = np.where(trained, KNOWN, UNTRAINED)
        found = np.where(degree == 0, NEWCOMER, np.where(seen == 0, UNHEARD, found))
        return np.where(self.model.is_unknown(to_device(ids, self.model.device)).cpu().numpy(), UNKNOWN, found)

    def score(
        self, src: Any, dst: Any, at: np.ndarray | None = None, callbacks: Callback = NO_CALLBACK
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores (n,) between 0 and 1 of pairs of the user's ids, and (n,) notes on their nodes, see `notes`."""
        u, v = self._internal_ids([(src, "src"), (dst, "dst")])
        t, cut = self.moments(at, len(u))
        on_device = [torch.from_numpy(x).to(self.device) for x in (u, v)]
        queries = Queries(on_device[0], on_device[1][:, None], t, cut, cut)
        logits = score_queries(self.model, self.history, queries, callbacks=callbacks)[:, 0]
        cuts = cut.cpu().numpy()
        return sigmoid(logits), _pair_notes(self.notes(u, cuts), self.notes(v, cuts))

    def recommend(
        self, node: Any, at: float | None = None, top: int = 10, *, new_only: bool = False
    ) -> tuple[list[Recommendation], str]:
        """The ``top`` destinations most likely to meet ``node``, best first, and the note on ``node`` itself.

        Candidates are the destinations of the visible history without ``node`` itself; with ``new_only`` those it has
        not met. There may be fewer than ``top``.
        """
        u = self.nodes([node], "src")
        t, cut = self.moments(None if at is None else np.array([at]), 1)
        visible = int(cut[0])
        candidates = distinct(self.stream.dst[:visible], self.stream.n_nodes)
        candidates = candidates[candidates != u[0]]
        source = torch.from_numpy(u).to(self.device)
        dst = torch.from_numpy(candidates).to(self.device)
        met = self.history.index.pair_history(source, dst, cut)[0].cpu().numpy()
        if new_only:
            candidates, dst, met = candidates[met == 0], dst[torch.from_numpy(met == 0).to(self.device)], met[met == 0]
        logits = score_queries(self.model, self.history, Queries(source, dst[None], t, cut, cut))[0]
        best = np.lexsort((candidates, -logits))[:top]
        notes = self.notes(candidates[best], np.full(len(best), visible))
        ids = self.stream.ids.take(candidates[best]).to_pylist()
        found = [
            Recommendation(i, float(s), int(m), str(n))
            for i, s, m, n in zip(ids, sigmoid(logits[best]), met[best], notes, strict=True)
        ]
        return found, str(self.notes(u, np.array([visible]))[0])

    def embed(self, node: np.ndarray, at: float | None = None, at_once: int = 1000) -> np.ndarray:
        """Embeddings (n, D) of internal ids, float32."""
        if not self.model.has_embeddings:
            raise DataError(f"This model ({type(self.model).__name__.lower()}) has no node embeddings.")
        t, cut = self.moments(None if at is None else np.full(len(node), at), len(node))
        ids = torch.from_numpy(node).to(self.device)
        self.model.eval()
        with torch.inference_mode():
            parts = [
                self.model.embed(self.model.read_nodes(self.history, *(x[i : i + at_once] for x in (ids, t, cut))))
                for i in range(0, len(node), at_once)
            ]
        return torch.cat(parts).float().cpu().numpy() if parts else np.empty((0, 0), dtype=np.float32)


def _checked_sides(ids: Any, sides: Sequence[str]) -> np.ndarray:
    """The sides in lower case, one per node. DataError if one is neither src nor dst."""
    if len(sides) != len(ids):
        raise DataError(f"{len(sides)} sides for {len(ids)} nodes: give one per node.")
    low = np.array([str(side).strip().lower() for side in sides])
    wrong = np.flatnonzero(~np.isin(low, SIDES))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"The side of {str(ids[row])!r} is {str(sides[row])!r}; it must be src or dst.")
    return low


def sigmoid(logits: np.ndarray | float) -> np.ndarray:
    """Scores between 0 and 1, float64, without overflow for large logits."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(logits, dtype=np.float64)))


def _pair_notes(src: Sequence[str] | np.ndarray, dst: Sequence[str] | np.ndarray) -> np.ndarray:
    """One note per pair: "src: no history; dst: not in training", or empty."""
    src = np.where(np.asarray(src) == "", "", np.char.add("src: ", np.asarray(src)))
    dst = np.where(np.asarray(dst) == "", "", np.char.add("dst: ", np.asarray(dst)))
    between = np.where((src != "") & (dst != ""), "; ", "")
    return np.char.add(np.char.add(src, between), dst)
