"""CTDNE: a vector for each node id, learned from random walks forward in time.

Nguyen et al., Continuous-Time Dynamic Network Embeddings, 2018. Before the first epoch, walks are sampled over the
training events, and skip-gram with negative sampling learns a vector for each node from them. The training loop then
fits a logistic regression on the two vectors of a pair. A node that no walk visited has no vector: its pairs get a
logit of 0, and metrics on unseen nodes are not defined.

Walks and negatives are hashes of the seed, and one thread learns the vectors walk by walk: the same seed gives the same
vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor, nn

from cordgt.errors import SettingError, check_choice
from cordgt.history import rng
from cordgt.history.index import TemporalIndex, lower_bound_scalar
from cordgt.history.queries import History, Queries
from cordgt.history.rng import fold_in_u64, mix64_u64, randint_u64
from cordgt.models.base import LinkModel
from cordgt.nn.layers import check_positive

START_DISTRIBUTIONS = ("uniform", "linear")
OPERATORS = ("hadamard", "mean", "l1", "l2")
CHUNK = 4096  # walks sampled at once
LR = (0.025, 0.0001)  # of skip-gram, decaying from the first to the second
TABLE = 1 << 20  # entries of the table that negatives are sampled from


@dataclass(frozen=True)
class CtdneSettings:
    """Settings of CTDNE. The defaults are those of the paper."""

    dim: int = 128  # D
    num_walks: int = 10  # for each node
    walk_length: int = 80  # maximum number of nodes
    window: int = 10  # of skip-gram, in nodes to either side
    start: str = "uniform"  # distribution of a walk's first event; "linear": later ones are likelier
    skip_gram_negatives: int = 5
    operator: str = "hadamard"  # combines two vectors for the regression; or "mean", "l1", "l2"

    def __post_init__(self) -> None:
        check_choice("start", self.start, START_DISTRIBUTIONS)
        check_choice("operator", self.operator, OPERATORS)
        check_positive(self, "dim", "num_walks", "window", "skip_gram_negatives")
        if self.walk_length < 2:
            raise SettingError(f"walk_length={self.walk_length}: it must be at least 2 nodes.")


class CtdneReader:
    """Reads nothing but the node ids: (B, 1+M) int64, the source, then its candidates."""

    def read(self, history: History, queries: Queries) -> Tensor:
        return queries.endpoints


class Ctdne(LinkModel):
    """Node vectors, fixed before the first epoch, and a logistic regression on a combination of two vectors."""

    is_transductive = True
    uses_features = False
    max_pairs_per_batch = 200_000
    vectors: Tensor  # (N, D)
    met: Tensor  # (N,) bool, True: a walk visited the node

    def __init__(self, settings: CtdneSettings, *, edge_dim: int, node_dim: int, n_nodes: int) -> None:
        super().__init__()
        self.settings = settings
        self.reader = CtdneReader()
        self.head = nn.Linear(settings.dim, 1)
        self.register_buffer("vectors", torch.zeros(n_nodes, settings.dim))
        self.register_buffer("met", torch.zeros(n_nodes, dtype=torch.bool))

    def prepare(self, history: History, cut: int) -> None:
        """Learn the vectors on walks over the first ``cut`` events."""
        walks = ForwardWalks(history.index, cut, self.settings, history.seed)
        vectors, met = learn_vectors(walks, self.settings)
        self.vectors.copy_(torch.from_numpy(vectors))
        self.met.copy_(torch.from_numpy(met))

    def is_unknown(self, node: Tensor) -> Tensor:
        """Return (...,) bool, True: the node has no vector."""
        known = (node >= 0) & (node < len(self.met))
        return ~(known & self.met[torch.where(known, node, 0)]) if len(self.met) else torch.ones_like(known)

    def forward(self, batch: Tensor) -> Tensor:
        """Return logits (B, M); 0 if either end has no vector."""
        x = self._vectors(batch)  # (B, 1+M, D)
        unknown = self.is_unknown(batch)
        logits = self.head(self._combine(x[:, :1], x[:, 1:])).squeeze(-1)
        return torch.where(unknown[:, :1] | unknown[:, 1:], 0.0, logits)

    def embed(self, batch: Tensor) -> Tensor:
        """Return vectors (B, D); zeros for an unknown node."""
        return self._vectors(batch).squeeze(1)

    def _vectors(self, node: Tensor) -> Tensor:
        if not len(self.vectors):
            return self.vectors.new_zeros(*node.shape, self.settings.dim)
        unknown = self.is_unknown(node)
        return torch.where(unknown.unsqueeze(-1), 0.0, self.vectors[torch.where(unknown, 0, node)])

    def _combine(self, a: Tensor, b: Tensor) -> Tensor:
        operator = self.settings.operator
        if operator == "hadamard":
            return a * b
        if operator == "mean":
            return (a + b) / 2
        return (a - b).abs() if operator == "l1" else (a - b).square()


# -------------------- walks


class ForwardWalks:
    """Walks forward in time over the first ``cut`` events of a view, sampled in chunks.

    A walk starts with an event, at either end, and continues with any later event of its current node until there is
    none. Events are walked in both directions: otherwise every walk in a bipartite graph would end after one step.

    Differs: a fixed number of walks is sampled, of any length. The paper samples until enough of them are longer than
    the window, which may never happen.
    """

    def __init__(self, index: TemporalIndex, cut: int, settings: CtdneSettings, seed: int) -> None:
        index = index.to("cpu")
        row_start, nbr, pos, elapsed = (x.numpy() for x in (index.row_start, index.nbr, index.pos, index.elapsed))
        self.cut, self.settings, self.n_nodes = cut, settings, index.n_nodes
        self.key = np.uint64(rng.mix64_int(seed) % 2**64)
        later = np.searchsorted(elapsed, elapsed, side="right")  # (E,) the first event after an event's time
        order = np.argsort(pos, kind="stable")
        entry = order[: np.searchsorted(pos[order], cut)]  # possible first entries of a walk, by time
        owner = np.repeat(np.arange(self.n_nodes), np.diff(row_start)).astype(np.int32)  # the node of each entry
        self.arrays = (row_start, nbr, pos, later, entry, owner)
        self.n_walks = settings.num_walks * self.n_nodes if len(entry) else 0

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield (W, walk_length) int32, -1 after the end of a walk."""
        for start in range(0, self.n_walks, CHUNK):
            walks = np.full((min(CHUNK, self.n_walks - start), self.settings.walk_length), -1, dtype=np.int32)
            _walk(*self.arrays, self.cut, self.key, start, self.settings.start == "linear", walks)
            yield walks


@njit(parallel=True, cache=True)
def _walk(row_start, nbr, pos, later, entry, owner, cut, key, first, linear, walks):  # type: ignore[no-untyped-def]
    for w in prange(len(walks)):
        step = fold_in_u64(mix64_u64(key), first + w)
        if linear:  # the larger of two uniform draws: a rank's probability is proportional to it
            rank = max(randint_u64(step, len(entry)), randint_u64(mix64_u64(step), len(entry)))
        else:
            rank = randint_u64(step, len(entry))
        at = entry[rank]
        walks[w, 0] = owner[at]
        for i in range(1, walks.shape[1]):
            node = nbr[at]
            walks[w, i] = node
            begin = lower_bound_scalar(pos, row_start[node], row_start[node + 1], later[pos[at]])
            end = lower_bound_scalar(pos, row_start[node], row_start[node + 1], cut)
            if end <= begin:
                break
            step = fold_in_u64(step, i)
            at = begin + randint_u64(step, end - begin)


# -------------------- skip-gram


def learn_vectors(walks: ForwardWalks, settings: CtdneSettings) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors (N, D) float32 with a mean square of 1 over the visited nodes, and (N,) bool, True: visited."""
    count = np.zeros(walks.n_nodes, dtype=np.int64)
    for chunk in walks.chunks():
        count += np.bincount(chunk[chunk >= 0], minlength=walks.n_nodes)
    met, total = count > 0, int(count.sum())
    vectors = initial_vectors(walks.n_nodes, settings.dim, walks.key)
    if not total:
        return np.zeros_like(vectors), met
    contexts = np.zeros_like(vectors)
    table = negatives_table(count)
    done = 0
    for number, chunk in enumerate(walks.chunks()):
        key = np.uint64(rng.fold_in_int(int(walks.key), number) % 2**64)
        done = _skip_gram(
            chunk, vectors, contexts, table, key, settings.window, settings.skip_gram_negatives, done, total, *LR
        )
    vectors[~met] = 0.0
    return vectors / np.sqrt(np.square(vectors[met]).mean()), met


def initial_vectors(n: int, dim: int, key: np.uint64) -> np.ndarray:
    """Return (N, D) float32, uniform between -0.5 / D and 0.5 / D."""
    numbers = rng.randint(rng.fold_in(int(key.view(np.int64)), torch.arange(n * dim)), 2**24).numpy()
    return ((numbers / 2**24 - 0.5) / dim).astype(np.float32).reshape(n, dim)


def negatives_table(count: np.ndarray, size: int = TABLE) -> np.ndarray:
    """Return (size,) int32: nodes in proportion to their counts to the power 0.75."""
    share = count.astype(np.float64) ** 0.75
    edges = np.cumsum(share) / share.sum()
    return np.searchsorted(edges, (np.arange(size) + 0.5) / size).astype(np.int32)


@njit(cache=True, fastmath=True)
def _skip_gram(walks, vectors, contexts, table, key, window, negatives, done, total, lr_first, lr_last):  # type: ignore[no-untyped-def]
    """Make one pass over the walks, as in word2vec. Return ``done`` plus the number of nodes processed."""
    dim = vectors.shape[1]
    change = np.empty(dim, dtype=np.float32)
    for w in range(len(walks)):
        walk = walks[w]
        length = 0
        while length < len(walk) and walk[length] >= 0:
            length += 1
        step = fold_in_u64(key, w)
        for i in range(length):
            step = mix64_u64(step + np.uint64(1))
            lr = np.float32(max(lr_last, lr_first + (lr_last - lr_first) * done / total))
            reach = window - randint_u64(step, window)  # nearer nodes are sampled more often
            done += 1
            for j in range(max(0, i - reach), min(length, i + reach + 1)):
                if j == i:
                    continue
                vector = vectors[walk[j]]
                change[:] = 0.0
                for k in range(negatives + 1):
                    target = walk[i]
                    if k > 0:
                        step = mix64_u64(step + np.uint64(1))
                        target = table[randint_u64(step, len(table))]
                        if target == walk[i]:
                            continue
                    context = contexts[target]
                    product = np.float32(0.0)
                    for d in range(dim):
                        product += vector[d] * context[d]
                    off = (np.float32(k == 0) - np.float32(1.0) / (np.float32(1.0) + np.exp(-product))) * lr
                    for d in range(dim):
                        change[d] += off * context[d]
                        context[d] += off * vector[d]
                for d in range(dim):
                    vector[d] += change[d]
    return done
