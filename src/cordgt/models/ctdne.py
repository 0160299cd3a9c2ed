"""CTDNE: a vector a node, learnt from walks that go forward in time.

Nguyen et al., Continuous-Time Dynamic Network Embeddings, 2018. Before the first epoch, walks are drawn over the
events that training may see, and skip-gram with negative sampling learns a vector for each node on them. Then the loop
trains a logistic regression on the two vectors of a pair. Nodes are known by number, so a node that no walk has met
has no vector: such pairs get a logit of 0, and figures on new nodes are not defined.

Walks and draws are hashes, and the vectors are learnt walk by walk in one thread: the same seed gives the same vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor, nn

from cordgt.errors import SettingError, check_choice
from cordgt.models.base import LinkModel
from cordgt.models.parts import check_sizes
from cordgt.past import draws
from cordgt.past.draws import below_u64, child_u64, mix_u64
from cordgt.past.history import History, Queries
from cordgt.past.index import TemporalIndex, lower_bound_scalar

STARTS = ("uniform", "linear")
OPERATORS = ("hadamard", "mean", "l1", "l2")
AT_ONCE = 4096  # walks
LR = (0.025, 0.0001)  # of skip-gram, falling from the first to the second
TABLE = 1 << 20  # places of the table that negatives are drawn from


@dataclass(frozen=True)
class CtdneSettings:
    """Settings of CTDNE; as in its paper by default."""

    dim: int = 128  # D
    walks: int = 10  # as many times as there are nodes
    walk_length: int = 80  # nodes at most
    window: int = 10  # how far apart two nodes of a walk may stand to be learnt together
    start: str = "uniform"  # which event a walk begins with; "linear": the later, the likelier
    skip_gram_negatives: int = 5
    operator: str = "hadamard"  # of two vectors, for the regression; or "mean", "l1", "l2"

    def __post_init__(self) -> None:
        check_choice("start", self.start, STARTS)
        check_choice("operator", self.operator, OPERATORS)
        check_sizes(self, "dim", "walks", "window", "skip_gram_negatives")
        if self.walk_length < 2:
            raise SettingError(f"walk_length={self.walk_length}: a walk has at least two nodes.")


class NumberReader:
    """Reads nothing but who is asked about."""

    def pairs(self, history: History, queries: Queries) -> Tensor:
        """(B, 1+M) int64: the source, then its candidates."""
        return queries.ends

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Tensor:
        return node[:, None]


class Ctdne(LinkModel):
    """A vector a node, fixed before the first epoch, and a logistic regression on an operator of two vectors."""

    transductive = True
    uses_features = False
    pairs_at_once = 200_000
    vectors: Tensor  # (N, D)
    met: Tensor  # (N,) bool, True: a walk has met the node

    def __init__(self, settings: CtdneSettings, *, edge_dim: int, node_dim: int, n_nodes: int) -> None:
        super().__init__()
        self.settings = settings
        self.reader = NumberReader()
        self.head = nn.Linear(settings.dim, 1)
        self.register_buffer("vectors", torch.zeros(n_nodes, settings.dim))
        self.register_buffer("met", torch.zeros(n_nodes, dtype=torch.bool))

    def prepare(self, history: History, cut: int) -> None:
        """Learn the vectors on walks over the first ``cut`` events."""
        walks = Walks(history.index, cut, self.settings, history.seed)
        vectors, met = learn_vectors(walks, self.settings)
        self.vectors.copy_(torch.from_numpy(vectors))
        self.met.copy_(torch.from_numpy(met))

    def lacks(self, node: Tensor) -> Tensor:
        """(...,) True where a node has no vector."""
        known = (node >= 0) & (node < len(self.met))
        return ~(known & self.met[torch.where(known, node, 0)]) if len(self.met) else torch.ones_like(known)

    def forward(self, batch: Tensor) -> Tensor:
        """Logits (B, M); 0 where either end has no vector."""
        x = self._vectors(batch)  # (B, 1+M, D)
        lacks = self.lacks(batch)
        logits = self.head(self._operated(x[:, :1], x[:, 1:])).squeeze(-1)
        return torch.where(lacks[:, :1] | lacks[:, 1:], 0.0, logits)

    def embed(self, batch: Tensor) -> Tensor:
        """Vectors (B, D); zeros where there is none."""
        return self._vectors(batch).squeeze(1)

    def _vectors(self, node: Tensor) -> Tensor:
        if not len(self.vectors):
            return self.vectors.new_zeros(*node.shape, self.settings.dim)
        lacks = self.lacks(node)
        return torch.where(lacks.unsqueeze(-1), 0.0, self.vectors[torch.where(lacks, 0, node)])

    def _operated(self, a: Tensor, b: Tensor) -> Tensor:
        how = self.settings.operator
        if how == "hadamard":
            return a * b
        if how == "mean":
            return (a + b) / 2
        return (a - b).abs() if how == "l1" else (a - b).square()


# -------------------- walks


class Walks:
    """Walks forward in time over the first ``cut`` events of a view, in pieces.

    A walk begins with an event, at either end, and goes on with any later event of the node it has come to, until
    there is none. Events can be walked either way: a link between two sides would end every walk otherwise.

    Differs: as many walks as asked for are drawn, whatever their length; the paper draws until there are enough that
    are longer than the window, which a stream may never have.
    """

    def __init__(self, index: TemporalIndex, cut: int, settings: CtdneSettings, seed: int) -> None:
        index = index.to("cpu")
        self.index, self.cut, self.settings = index, cut, settings
        self.key = np.uint64(draws.mix_int(seed) % 2**64)
        self.n_nodes = index.n_nodes
        elapsed = index.elapsed.numpy()
        self.later = np.searchsorted(elapsed, elapsed, side="right")  # (E,) the first event after an event's time
        order = np.argsort(index.pos.numpy(), kind="stable")
        owner = np.repeat(np.arange(self.n_nodes), np.diff(index.row_start.numpy()))
        self.entry = order[: np.searchsorted(index.pos.numpy()[order], cut)]  # entries a walk may begin with, by time
        self.owner = owner.astype(np.int32)
        self.n = settings.walks * self.n_nodes if len(self.entry) else 0

    def pieces(self) -> Iterator[np.ndarray]:
        """(W, walk_length) int32 each, -1 where a walk has ended."""
        for start in range(0, self.n, AT_ONCE):
            walks = np.full((min(AT_ONCE, self.n - start), self.settings.walk_length), -1, dtype=np.int32)
            _walk(
                self.index.row_start.numpy(),
                self.index.nbr.numpy(),
                self.index.pos.numpy(),
                self.later,
                self.entry,
                self.owner,
                self.cut,
                self.key,
                start,
                self.settings.start == "linear",
                walks,
            )
            yield walks


@njit(parallel=True, cache=True)
def _walk(row_start, nbr, pos, later, entry, owner, cut, key, first, linear, walks):  # type: ignore[no-untyped-def]
    for w in prange(len(walks)):
        step = child_u64(mix_u64(key), first + w)
        if linear:  # the larger of two uniform draws: the likelihood of a rank is proportional to it
            rank = max(below_u64(step, len(entry)), below_u64(mix_u64(step), len(entry)))
        else:
            rank = below_u64(step, len(entry))
        at = entry[rank]
        walks[w, 0] = owner[at]
        for i in range(1, walks.shape[1]):
            node = nbr[at]
            walks[w, i] = node
            begin = lower_bound_scalar(pos, row_start[node], row_start[node + 1], later[pos[at]])
            end = lower_bound_scalar(pos, row_start[node], row_start[node + 1], cut)
            if end <= begin:
                break
            step = child_u64(step, i)
            at = begin + below_u64(step, end - begin)


# -------------------- skip-gram


def learn_vectors(walks: Walks, settings: CtdneSettings) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (N, D) float32 with a mean square of 1 over the nodes met, and (N,) bool which those are."""
    count = np.zeros(walks.n_nodes, dtype=np.int64)
    for piece in walks.pieces():
        count += np.bincount(piece[piece >= 0], minlength=walks.n_nodes)
    met, total = count > 0, int(count.sum())
    vectors = first_vectors(walks.n_nodes, settings.dim, walks.key)
    if not total:
        return np.zeros_like(vectors), met
    contexts = np.zeros_like(vectors)
    table = negatives_table(count)
    done = 0
    for number, piece in enumerate(walks.pieces()):
        key = np.uint64(draws.child_int(int(walks.key), number) % 2**64)
        done = _skip_gram(
            piece, vectors, contexts, table, key, settings.window, settings.skip_gram_negatives, done, total, *LR
        )
    vectors[~met] = 0.0
    return vectors / np.sqrt(np.square(vectors[met]).mean()), met


def first_vectors(n: int, dim: int, key: np.uint64) -> np.ndarray:
    """(N, D) float32, uniform between -0.5 / D and 0.5 / D."""
    numbers = draws.below(draws.child(int(key.view(np.int64)), torch.arange(n * dim)), 2**24).numpy()
    return ((numbers / 2**24 - 0.5) / dim).astype(np.float32).reshape(n, dim)


def negatives_table(count: np.ndarray, size: int = TABLE) -> np.ndarray:
    """(size,) int32: nodes in shares of their counts to the power 0.75."""
    share = count.astype(np.float64) ** 0.75
    edges = np.cumsum(share) / share.sum()
    return np.searchsorted(edges, (np.arange(size) + 0.5) / size).astype(np.int32)


@njit(cache=True, fastmath=True)
def _skip_gram(walks, vectors, contexts, table, key, window, negatives, done, total, lr_first, lr_last):  # type: ignore[no-untyped-def]
    """One pass over the walks, as word2vec has it; how many nodes of walks are done comes back."""
    dim = vectors.shape[1]
    change = np.empty(dim, dtype=np.float32)
    for w in range(len(walks)):
        walk = walks[w]
        length = 0
        while length < len(walk) and walk[length] >= 0:
            length += 1
        step = child_u64(key, w)
        for i in range(length):
            step = mix_u64(step + np.uint64(1))
            lr = np.float32(max(lr_last, lr_first + (lr_last - lr_first) * done / total))
            reach = window - below_u64(step, window)  # nearer nodes are learnt more often
            done += 1
            for j in range(max(0, i - reach), min(length, i + reach + 1)):
                if j == i:
                    continue
                vector = vectors[walk[j]]
                change[:] = 0.0
                for k in range(negatives + 1):
                    target = walk[i]
                    if k > 0:
                        step = mix_u64(step + np.uint64(1))
                        target = table[below_u64(step, len(table))]
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
