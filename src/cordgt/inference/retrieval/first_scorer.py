"""The first scorer: the network of `counts`, trained to order candidates as the run's model does.

It reads the counts and ages of a pair (`cordgt.history.pair_features`), so it scores a candidate in about a
microsecond. Training it needs no true destinations: the scores of the run's model are its targets (distillation).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.history.queries import History, Queries
from cordgt.inference.retrieval.destinations import Destinations
from cordgt.inference.retrieval.gatherers import Question, gather_candidates
from cordgt.models.base import LinkModel
from cordgt.models.counts import Counts, CountsSettings
from cordgt.tasks.scoring import score_queries

FIRST_SCORER = CountsSettings(hidden=64, loss="ranking")
MAX_QUESTIONS = 256  # events whose candidates the model scores; with N_CANDIDATES, 16,384 pairs
MIN_QUESTIONS = 32
EVENTS_PER_QUESTION = 100  # a short stream gets fewer questions
N_CANDIDATES = 64  # of each event: half gathered, half random
EPOCHS, BATCH_SIZE, LR = 100, 16, 0.003


def new_first_scorer(weights: Mapping[str, Tensor] | None = None) -> Counts:
    """Return a first scorer, with these weights if given. RuntimeError or KeyError if they are of another network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        scorer = Counts(FIRST_SCORER, edge_dim=0, node_dim=0)
    if weights is not None:
        scorer.load_state_dict(dict(weights))
    return scorer.eval()


def distill_first_scorer(
    model: LinkModel,
    history: History,
    destinations: Destinations,
    positions: np.ndarray,
    callbacks: Callback = NO_CALLBACK,
) -> Counts:
    """Train a first scorer on the model's scores at some of the events ``positions``, ascending.

    The result depends only on the model, the history and the positions. It costs at most `MAX_QUESTIONS` times
    `N_CANDIDATES` scores of the model.
    """
    queries = _sample_queries(history, destinations, positions)
    scorer = new_first_scorer()
    if not len(queries.src):
        return scorer.to(history.index.device)
    device = model.device or history.index.device
    callbacks.on_stage_start("first scorer", len(queries.src))
    logits = score_queries(model, history, queries, callbacks=callbacks)
    target = torch.from_numpy(logits).float().softmax(dim=1)  # (B, M)
    x = scorer.read(history, queries).cpu()  # (B, M, P)
    generator = torch.Generator().manual_seed(0)
    n_batches = -(-len(x) // BATCH_SIZE)
    with torch.enable_grad():
        optimizer = torch.optim.Adam(scorer.parameters(), lr=LR)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=EPOCHS * n_batches)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(x), generator=generator).split(BATCH_SIZE):
                loss = -(target[rows] * scorer(x[rows]).log_softmax(dim=1)).sum(dim=1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return scorer.to(device).eval()


def _sample_queries(history: History, destinations: Destinations, positions: np.ndarray) -> Queries:
    """Return the sources of some events with candidates; events in the last three quarters of ``positions``."""
    index, random = history.index, np.random.default_rng(0)
    late = positions[len(positions) // 4 :]
    n = int(np.clip(len(positions) // EVENTS_PER_QUESTION, MIN_QUESTIONS, MAX_QUESTIONS))
    chosen = np.sort(random.choice(late, min(n, len(late)), replace=False))
    at = torch.from_numpy(chosen).to(index.device)
    src, t, cuts = index.src[at].long(), index.elapsed[at], index.tie_start[at].long()
    keep, candidates = [], []
    for row, (source, time, cut) in enumerate(zip(src.tolist(), t.tolist(), cuts.tolist(), strict=True)):
        visible = destinations.visible(cut)
        if len(visible) < 2:
            continue
        question = Question(index, destinations, source, cut, time, history.seed)
        gathered = gather_candidates(question, 8 * N_CANDIDATES)
        pools = (gathered if len(gathered) else visible, visible)
        candidates.append(np.concatenate([random.choice(pool, N_CANDIDATES // 2) for pool in pools]))
        keep.append(row)
    rows = torch.tensor(keep, dtype=torch.int64, device=index.device)
    dst = np.stack(candidates) if candidates else np.empty((0, N_CANDIDATES), np.int64)
    return Queries(src[rows], torch.from_numpy(dst).to(index.device), t[rows], cuts[rows], cuts[rows])
