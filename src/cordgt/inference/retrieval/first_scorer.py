"""The first scorer: a small network that orders candidates as the run's model does, and chooses those to rank.

It reads counts and ages of a pair (`cordgt.history.pair_features`) and of the candidate's latest partners
(`neighbor_features`), so it scores a candidate in a few microseconds. Training it needs no true destinations: the
scores of the run's model are its targets (distillation). `cordgt.inference.retrieval.budget` measures how many of its
best candidates the model has to rank.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.history.pair_features import PAIR_DIM, pair_features
from cordgt.history.queries import History, Queries
from cordgt.inference.retrieval.destinations import Destinations
from cordgt.inference.retrieval.gatherers import Question, gather_candidates
from cordgt.inference.retrieval.neighbor_features import NEIGHBOR_DIM, neighbor_features
from cordgt.inference.retrieval.neighborhood import NodeRows
from cordgt.models.base import LinkModel
from cordgt.nn.layers import make_mlp
from cordgt.tasks.scoring import score_queries
from cordgt.training.optimizer import FusedAdamW

HIDDEN = 64
MAX_QUESTIONS = 256  # events whose candidates the model scores; with N_CANDIDATES, 16,384 pairs
MIN_QUESTIONS = 32
EVENTS_PER_QUESTION = 100  # a short stream gets fewer questions
N_CANDIDATES = 64  # of each event: half gathered, half random
EPOCHS, BATCH_SIZE, LR, WEIGHT_DECAY = 60, 16, 0.003, 0.001
MIN_STD = 0.05  # a feature that hardly varies is not enlarged more than this


class FirstScorerReader:
    """Reads the features of every pair and of its candidate's latest partners."""

    def read(self, history: History, queries: Queries) -> Tensor:
        """Return (B, M, P + F) float32."""
        return torch.cat([pair_features(history.index, queries), neighbor_features(history.index, queries)], dim=-1)


class FirstScorer(LinkModel):
    """An MLP on standardized features. Its buffers are saved with its weights."""

    has_embeddings = False
    uses_features = False
    is_cheap = True
    max_pairs_per_batch = 8192
    mean: Tensor
    std: Tensor
    default_budget: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.reader = FirstScorerReader()
        self.score = make_mlp(PAIR_DIM + NEIGHBOR_DIM, HIDDEN, 1)
        self.register_buffer("mean", torch.zeros(PAIR_DIM + NEIGHBOR_DIM))
        self.register_buffer("std", torch.ones(PAIR_DIM + NEIGHBOR_DIM))
        self.register_buffer("default_budget", torch.tensor(0))

    @property
    def budget(self) -> int:
        """How many of its best candidates the model ranks by default."""
        return int(self.default_budget)

    def with_budget(self, budget: int) -> FirstScorer:
        """Set the budget, and return the scorer itself."""
        self.default_budget.fill_(budget)
        return self

    def forward(self, batch: Tensor) -> Tensor:
        return self.score((batch - self.mean) / self.std).squeeze(-1)


def new_first_scorer(weights: Mapping[str, Tensor] | None = None) -> FirstScorer:
    """Return a first scorer, with these weights if given. RuntimeError or KeyError if they are of another network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        scorer = FirstScorer()
    if weights is not None:
        scorer.load_state_dict(dict(weights))
    return scorer.eval()


def distill_first_scorer(
    model: LinkModel,
    history: History,
    destinations: Destinations,
    positions: np.ndarray,
    callbacks: Callback = NO_CALLBACK,
) -> FirstScorer:
    """Train a first scorer on the model's scores at some of the events ``positions``, ascending.

    The result depends only on the model, the history and the positions. It costs at most `MAX_QUESTIONS` times
    `N_CANDIDATES` scores of the model.
    """
    queries = _sample_queries(history, destinations, positions)
    scorer = new_first_scorer()
    device = model.device or history.index.device
    if not len(queries.src):
        return scorer.to(device)
    callbacks.on_stage_start("first scorer", len(queries.src))
    logits = score_queries(model, history, queries, callbacks=callbacks)
    x = scorer.read(history, queries).cpu()  # (B, M, P + F)
    target = _centered(torch.from_numpy(logits).float())  # (B, M)
    scorer.mean.copy_(x.mean(dim=(0, 1)))
    scorer.std.copy_(x.std(dim=(0, 1)).clamp_min(MIN_STD))
    generator = torch.Generator().manual_seed(0)
    n_batches = -(-len(x) // BATCH_SIZE)
    with torch.enable_grad():
        optimizer = FusedAdamW(scorer.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=EPOCHS * n_batches)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(x), generator=generator).split(BATCH_SIZE):
                loss = (_centered(scorer(x[rows])) - target[rows]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return scorer.to(device).eval()


def _centered(logits: Tensor) -> Tensor:
    """Return logits (B, M) minus the mean of their query: only the order within a query counts."""
    return logits - logits.mean(dim=1, keepdim=True)


def _sample_queries(history: History, destinations: Destinations, positions: np.ndarray) -> Queries:
    """Return the sources of some events with candidates; events in the last three quarters of ``positions``."""
    index, random = history.index, np.random.default_rng(0)
    late = positions[len(positions) // 4 :]
    n = int(np.clip(len(positions) // EVENTS_PER_QUESTION, MIN_QUESTIONS, MAX_QUESTIONS))
    chosen = np.sort(random.choice(late, min(n, len(late)), replace=False))
    at = torch.from_numpy(chosen).to(index.device)
    src, t, cuts = index.src[at].long(), index.elapsed[at], index.tie_start[at].long()
    keep, candidates, node_rows = [], [], NodeRows.from_index(index)
    for row, (source, time, cut) in enumerate(zip(src.tolist(), t.tolist(), cuts.tolist(), strict=True)):
        visible = destinations.visible(cut)
        if len(visible) < 2:
            continue
        question = Question(index, destinations, source, cut, time, history.seed, node_rows)
        gathered = gather_candidates(question, 8 * N_CANDIDATES)
        pools = (gathered if len(gathered) else visible, visible)
        candidates.append(np.concatenate([random.choice(pool, N_CANDIDATES // 2) for pool in pools]))
        keep.append(row)
    rows = torch.tensor(keep, dtype=torch.int64, device=index.device)
    dst = np.stack(candidates) if candidates else np.empty((0, N_CANDIDATES), np.int64)
    return Queries(src[rows], torch.from_numpy(dst).to(index.device), t[rows], cuts[rows], cuts[rows])
