"""Score one source's candidates on a GPU by replaying CUDA graphs, without gaps between kernel launches.

A graph has a fixed number of candidates, so they are padded to one of `SIZES`. It is captured at the third question of
a size, because a single question is not worth the capture. A graph holds its history. When the history changes, as in a
service, the graphs are dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)  # candidates of a graph
MAX_SLOW_SIZE = 512  # of a model that is not cheap: its graphs would hold much memory
N_EAGER = 2  # questions of a size that are answered without a graph; they compile the kernels
N_WARMUP = 2  # calls on a side stream before the capture, as torch asks for


@dataclass
class CudaGraphScores:
    """A model's scores of a fixed number of candidates, as a CUDA graph over static tensors."""

    queries: Queries  # static inputs
    graph: torch.cuda.CUDAGraph
    logits: Tensor  # (1, size), written by the graph

    def __call__(self, queries: Queries) -> Tensor:
        """Return the logits (1, M) of a query with M candidates, at most as many as the graph has."""
        n = queries.dst.shape[1]
        for name in ("src", "t", "cut", "pair_cut"):
            getattr(self.queries, name).copy_(getattr(queries, name))
        self.queries.dst[:, :n] = queries.dst
        self.queries.dst[:, n:] = queries.dst[:, :1]
        self.graph.replay()
        return self.logits[:, :n].clone()


@dataclass
class CudaGraphs:
    """The CUDA graphs of one model and one history, by number of candidates."""

    history: History
    n_questions: dict[int, int] = field(default_factory=dict)
    calls: dict[int, CudaGraphScores | None] = field(default_factory=dict)  # None: it cannot be captured


_graphs: WeakKeyDictionary[LinkModel, CudaGraphs] = WeakKeyDictionary()
_lock = threading.Lock()  # graphs share static tensors, and one capture runs at a time


def replay_scores(
    model: LinkModel,
    history: History,
    queries: Queries,
    capture: Callable[[LinkModel, History, Queries], CudaGraphScores] | None = None,
) -> Tensor | None:
    """Return the logits (1, M) of one query from a graph; None if it has none: score it without.

    ``capture``: used instead of `capture_scores` in tests without a GPU.
    """
    n = queries.dst.shape[1]
    largest = model.max_pairs_per_batch if model.is_cheap else MAX_SLOW_SIZE
    size = next((size for size in SIZES if n <= size <= largest), None)
    is_on_gpu = all(x is not None and x.type == "cuda" for x in (model.device, history.index.device))
    is_capturable = not model.is_stateful and not model.compares_sources
    if size is None or n == 0 or not is_capturable or not (is_on_gpu or capture is not None):
        return None
    with _lock:
        graphs = _graphs.get(model)
        if graphs is None or graphs.history is not history:
            graphs = _graphs[model] = CudaGraphs(history)
        count = graphs.n_questions[size] = graphs.n_questions.get(size, 0) + 1
        if count <= N_EAGER:
            return None
        if size not in graphs.calls:
            graphs.calls[size] = _try_capture(model, history, _padded(queries, size), capture or capture_scores)
        call = graphs.calls[size]
        return None if call is None else call(queries)


def capture_scores(model: LinkModel, history: History, queries: Queries) -> CudaGraphScores:
    """Capture reading and scoring of queries of this shape. RuntimeError if the model cannot be captured."""
    model.eval()
    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(N_WARMUP):
                model(model.read(history, queries))
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            logits = model(model.read(history, queries))
    return CudaGraphScores(queries, graph, logits)


def _try_capture(
    model: LinkModel, history: History, queries: Queries, capture: Callable[..., CudaGraphScores]
) -> CudaGraphScores | None:
    """Return the graph; None if there is too little memory, or if the model fetches values from the GPU."""
    try:
        return capture(model, history, queries)
    except RuntimeError:
        return None


def _padded(queries: Queries, size: int) -> Queries:
    """Return a copy of the query with ``size`` candidates."""
    n = queries.dst.shape[1]
    dst = torch.cat([queries.dst, queries.dst[:, :1].expand(-1, size - n)], dim=1)
    return Queries(*(x.clone() for x in (queries.src, dst, queries.t, queries.cut, queries.pair_cut)))
