"""Scores from CUDA graphs: sizes, padding, and when a graph is made. A fake graph stands in without a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cordgt.history.queries import History, Queries
from cordgt.inference.retrieval import cuda_graph_scores
from cordgt.inference.retrieval.cuda_graph_scores import CudaGraphScores, replay_scores
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.models.base import LinkModel
from cordgt.tasks.histories import build_history
from cordgt.tasks.scoring import score_queries
from cordgt.training.model_factory import build_model
from cordgt.training.settings import make_settings


class FakeCapture:
    """Scores the static queries when it is replayed, as a graph does."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.can_capture = True

    def __call__(self, model: LinkModel, history: History, queries: Queries) -> CudaGraphScores:
        if not self.can_capture:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.sizes.append(queries.dst.shape[1])
        logits = torch.empty(queries.dst.shape)

        class Graph:
            def replay(self) -> None:
                logits.copy_(torch.from_numpy(score_queries(model, history, queries)))

        return CudaGraphScores(queries, Graph(), logits)  # type: ignore[arg-type]


@pytest.fixture
def model() -> LinkModel:
    torch.manual_seed(0)
    return build_model(make_settings("counts", {"hidden": 8}), edge_dim=0, node_dim=0).eval()


@pytest.fixture(scope="module")
def history() -> History:
    stream = synthetic_stream(nodes=300, events=900, seed=1).stream
    return build_history(stream, seed=0, device=torch.device("cpu"))


def question(history: History, n: int, seed: int = 0) -> Queries:
    random = np.random.default_rng(seed)
    cut = torch.tensor([int(random.integers(100, 900))])
    dst = torch.from_numpy(random.integers(0, 300, (1, n)))
    return Queries(torch.tensor([int(random.integers(300))]), dst, history.index.elapsed[cut - 1], cut, cut)


def test_replayed_scores_equal_those_without_a_graph(model: LinkModel, history: History) -> None:
    capture = FakeCapture()
    for seed, n in enumerate((50, 64, 1, 63, 40, 65, 65, 100, 128)):
        queries = question(history, n, seed)
        found = replay_scores(model, history, queries, capture)
        assert (found is None) == (seed < cuda_graph_scores.N_EAGER or seed in (5, 6))
        if found is not None:
            np.testing.assert_allclose(found.numpy(), score_queries(model, history, queries), rtol=1e-5, atol=1e-6)
    assert capture.sizes == [64, 128]


def test_another_history_drops_the_graphs(model: LinkModel, history: History) -> None:
    capture = FakeCapture()
    longer = replace(history, seed=1)
    for one in (history, longer, history):
        answers = [replay_scores(model, one, question(one, 5), capture) for _ in range(3)]
        assert [x is None for x in answers] == [True, True, False]
    assert capture.sizes == [64] * 3


def test_what_cannot_be_captured_is_tried_once(
    model: LinkModel, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = FakeCapture()
    capture.can_capture = False
    assert [replay_scores(model, history, question(history, 5), capture) for _ in range(4)] == [None] * 4
    capture.can_capture = True
    assert replay_scores(model, history, question(history, 5), capture) is None


def test_without_a_gpu_or_with_too_many_candidates_nothing_is_captured(model: LinkModel, history: History) -> None:
    assert [replay_scores(model, history, question(history, 5)) for _ in range(4)] == [None] * 4
    capture = FakeCapture()
    for n in (0, cuda_graph_scores.SIZES[-1] + 1):
        assert [replay_scores(model, history, question(history, n), capture) for _ in range(4)] == [None] * 4
    model.compares_sources = True
    assert [replay_scores(model, history, question(history, 5), capture) for _ in range(4)] == [None] * 4
    assert not capture.sizes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["counts", "cordgt_plus"])
def test_graphs_on_a_gpu(history: History, name: str) -> None:
    on_gpu = history.to(torch.device("cuda"))
    torch.manual_seed(0)
    network = build_model(make_settings(name), edge_dim=0, node_dim=0).eval().to("cuda")
    for seed, n in enumerate((50, 64, 60, 63, 2)):
        queries = question(history, n, seed)
        queries = Queries(*(x.to("cuda") for x in vars(queries).values()))
        found = replay_scores(network, on_gpu, queries)
        assert (found is None) == (seed < cuda_graph_scores.N_EAGER)
        if found is not None:
            np.testing.assert_allclose(
                found.cpu().numpy(), score_queries(network, on_gpu, queries), rtol=1e-4, atol=1e-4
            )
