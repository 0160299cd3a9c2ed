"""`Run`: a trained run, loaded from its folder. It predicts, evaluates, and takes later events.

The queries themselves are in `inference.predictor`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback, Callbacks, as_callback
from cordgt.errors import RunError, RunWarning, SettingError, check_choice
from cordgt.events.arrays import unique_nodes
from cordgt.events.durations import parse_horizon
from cordgt.events.stream import EventStream
from cordgt.files import follow_link
from cordgt.history.queries import History
from cordgt.inference.answers import embedding_table, recommendation_table, score_table
from cordgt.inference.first_scorer_file import FirstScorerFile
from cordgt.inference.forecasts import ActiveNode, Forecasts, NextEvent
from cordgt.inference.id_lists import IdList, as_list, check_ids, is_list
from cordgt.inference.predictor import Predictor, Recommendation, RecommendResult
from cordgt.inference.prefetched_history import PrefetchedHistory
from cordgt.inference.retrieval.first_scorer import FirstScorer
from cordgt.inference.retrieval.ranking import MIN_BUDGET
from cordgt.inference.run_arguments import check_recommend_options, check_top, choose_columns, make_pairs
from cordgt.inference.run_evaluation import evaluation_changes, evaluation_protocol
from cordgt.inference.run_loading import check_metrics_match_config, load_run_model
from cordgt.inference.run_recommendations import Recommender, RecommendOptions, RecommendResults
from cordgt.inference.similar import SimilarNode, find_similar, node_index
from cordgt.io.bad_rows import is_skip_note
from cordgt.io.convert import as_stream
from cordgt.io.open_table import load_file
from cordgt.io.readers import read_events
from cordgt.models import find_model
from cordgt.models.base import LinkModel
from cordgt.runtime import distributed
from cordgt.runtime.threads import pin_num_threads
from cordgt.tasks.benchmarks import BENCHMARKS, benchmark_changes
from cordgt.tasks.forecast import ActRole, Forecaster
from cordgt.tasks.histories import build_history
from cordgt.tasks.link import LinkTask, split_stream
from cordgt.tasks.run_metrics import SPLITS, RunMetrics
from cordgt.training.devices import choose_device
from cordgt.training.evaluation import evaluate_splits, training_objective
from cordgt.training.run_folder import ACTIVITY_FILE, RunConfig, RunFolder, is_same_data
from cordgt.training.settings import Settings


@dataclass(frozen=True)
class Run:
    """A trained model with the history that its queries see.

    Examples:
        >>> run = cordgt.Run.load("runs/mine")
        >>> 0 < run.metrics["test"]["transductive"]["ap"] <= 1
        True
        >>> run.score("ada", ["tea", "milk"]).shape
        (2,)
        >>> probabilities = run.score("ada", ["tea", "milk"], within="7d")
        >>> [len(partners) for partners in run.recommend(["ada", "bob"], top=3).values()]
        [3, 3]
    """

    folder: RunFolder
    config: RunConfig
    stream: EventStream  # the history that queries see
    original_stream: EventStream  # the events of training and evaluation, without later ones
    metrics: RunMetrics
    device: torch.device
    checksums: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)  # of files, in metrics.json
    prefetched: PrefetchedHistory | None = field(default=None, repr=False, compare=False)
    _weights: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)  # by file name

    def __repr__(self) -> str:
        return f"<Run {self.path}: {self.settings.model} on {self.stream.name or 'a stream without a name'}>"

    @classmethod
    def load(cls, path: str | Path, device: str = "auto", *, prefetched: PrefetchedHistory | None = None) -> Run:
        """Load a finished run. RunError if the folder is missing, unfinished or damaged.

        ``prefetched`` is the folder's history, if a thread reads it already.
        """
        pin_num_threads()
        folder = RunFolder(follow_link(Path(path)))
        return cls.from_folder(folder, folder.read_config(), device, prefetched)

    @classmethod
    def from_folder(
        cls, folder: RunFolder, config: RunConfig, device: str, prefetched: PrefetchedHistory | None = None
    ) -> Run:
        """`load` for a folder whose config.toml is read already."""
        metrics, checksums = folder.read_result()
        check_metrics_match_config(folder, config, metrics)
        metrics["protocol"] = dict(vars(config.settings.protocol))
        folder.check_events(config.data)
        load = EventStream.load if prefetched is None else prefetched.load
        original, stream = folder.streams(config.data_fingerprint, load)
        if not is_same_data(original, config.data):
            raise RunError(f"{folder.path} is damaged: its events are not those it was trained on.")
        return cls(folder, config, stream, original, metrics, choose_device(device), checksums, prefetched)

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def columns(self) -> dict[str, str]:
        """The column options that the training events were read with."""
        return self.config.columns

    def with_events(self, source: Any, **columns: Any) -> Run:
        """Return a run with the same model and a longer history.

        ``source`` holds the later events: a file, a pipe, a table or a stream. ``columns`` are the options of
        `read_events`; they default to those of the training if the source has these columns.
        """
        if isinstance(source, EventStream):
            return replace(self, stream=self.stream.append_stream(as_stream(source, **columns)))
        source = load_file(source, columns.get("member"))
        ids = {"ids": "shared" if self.stream.ids.shared else "separate"}
        later = read_events(source, **(ids | self.columns_for(source, columns)))
        longer = self.stream.append_stream(later)
        skip_notes = tuple(note for note in later.notes if is_skip_note(note))
        return replace(self, stream=replace(longer, notes=(*longer.notes, *skip_notes)))

    def columns_for(self, source: Any, given: Mapping[str, Any], *, labels_needed: bool = False) -> dict[str, Any]:
        """Return the column options to read a source of events with: those ``given``, and those of the training.

        The options of the training apply only if the source has its columns for source, destination and time. Then
        reading the source raises an error for any other column that it lacks; for the label only if ``labels_needed``.
        A path is read, so pass a pipe as a `LoadedFile`.
        """
        return choose_columns(source, self.columns, given, labels_needed=labels_needed)

    def score(self, src: Any, dst: Any, at: Any = None, *, within: Any = None) -> np.ndarray:
        """Return scores (n,) between 0 and 1: how likely each source interacts with each destination.

        A score compares with random partners: 0.9 means "more likely than a random partner", not "in nine of ten
        cases". With ``within``, a horizon such as "7d", the answer is a probability instead: that the pair has an event
        within that time. ``at`` is one time, or one per pair. Without it, the whole history is visible.

        Example: ``run.score("ada", ["tea", "milk"], within="7d")``.
        """
        src, dst, times = make_pairs(src, dst, at, self.stream)
        if within is None:
            return self.predictor.score(src, dst, times)[0]
        return self.forecasts.score(src, dst, self.horizon(within, times), times)[1]

    def score_table(self, src: Any, dst: Any, at: Any = None, *, within: Any = None) -> Any:
        """Return `score` as a ``pyarrow.Table``: ``src, dst, time, score, [probability,] note``, one row per pair.

        The note says what is new to the model: "src: no history", "dst: not in training"; see `Predictor.notes`.
        """
        src, dst, times = make_pairs(src, dst, at, self.stream)
        horizon = None if within is None else self.horizon(within, times)
        return score_table(self.predictor, src, dst, times, **self._with_horizon(horizon))

    def _with_horizon(self, horizon: float | None) -> dict[str, Any]:
        """Return what `score_table` needs for probabilities; nothing without a horizon."""
        return {} if horizon is None else {"horizon": horizon, "forecasts": self.forecasts}

    @overload
    def recommend(
        self, node: str | int, at: Any = None, top: int = 10, **options: Unpack[RecommendOptions]
    ) -> list[Recommendation]: ...

    @overload
    def recommend(
        self, node: IdList, at: Any = None, top: int = 10, **options: Unpack[RecommendOptions]
    ) -> dict[Any, list[Recommendation]]: ...

    @overload
    def recommend(
        self, *, destination: str | int, at: Any = None, top: int = 10, **options: Unpack[RecommendOptions]
    ) -> list[Recommendation]: ...

    @overload
    def recommend(
        self, *, destination: IdList, at: Any = None, top: int = 10, **options: Unpack[RecommendOptions]
    ) -> dict[Any, list[Recommendation]]: ...

    def recommend(
        self,
        node: Any = None,
        at: Any = None,
        top: int = 10,
        *,
        destination: Any = None,
        **options: Unpack[RecommendOptions],
    ) -> list[Recommendation] | dict[Any, list[Recommendation]]:
        """Return the ``top`` destinations most likely to interact with ``node``, best first.

        ``node`` is an id, or a list of ids: then the answer is a dictionary with a list for each id. An unknown id is a
        node without history. With ``within``, a horizon such as "7d", each answer has the probability of an event
        within that time. With ``destination`` instead of ``node``, the answer is the best sources of that destination:
        those with the highest rate or, with ``within``, the highest probability of an event with it.

        Example: ``run.recommend("ada", within="7d")[0].probability``.

        Filters: ``candidates`` limits the answer to these ids; DataError if the history has none of them. The default
        is every destination of the history, or every source with ``destination``. ``exclude`` leaves out these ids.
        ``new_only`` leaves out earlier partners. ``per_group`` allows at most so many answers of a group; ``groups``
        has the group of each id. There are fewer than ``top`` only if the filters leave fewer.

        Two stages answer: a fast first scorer chooses ``budget`` candidates, then the model ranks them. The default
        budget was measured at validation events, and is at least four times ``top``. With ``destination``, ``budget``
        sources are scored, by default 10,000: earlier partners, then those that act most often. ``exhaustive`` ranks
        every candidate with the model instead.
        """
        found = self._recommend(node, destination, at, top, **options)
        answers = {one: result.recommendations for one, result in zip(found.nodes, found.results, strict=True)}
        return answers if is_list(node if destination is None else destination) else answers[found.nodes[0]]

    def recommend_table(
        self,
        nodes: Any = None,
        at: Any = None,
        top: int = 10,
        *,
        destination: Any = None,
        **options: Unpack[RecommendOptions],
    ) -> Any:
        """Return `recommend` as a ``pyarrow.Table``: ``src, rank, node, score, met, note, src_note``.

        ``met`` is the number of earlier events of the pair. The notes say what is new to the model; ``src_note`` is
        that on the source. A source without a partner has no row. With ``within`` there is a column ``probability``.
        With ``destination`` the nodes are sources, and the table has ``dst, rate, dst_note`` instead. ``options`` are
        the filters and settings of `recommend`.
        """
        found = self._recommend(nodes, destination, at, top, **options)
        is_source = destination is None
        return recommendation_table(self.predictor, found.nodes, found.results, found.horizon, is_source=is_source)[0]

    def _recommend(
        self, node: Any, destination: Any, at: Any, top: int, within: Any = None, **options: Any
    ) -> RecommendResults:
        """Check the arguments of `recommend`, and answer."""
        if (node is None) == (destination is None):
            raise SettingError("Give either a node, or destination=ID.")
        top = check_top(top)
        nodes, time = check_ids(as_list(node if destination is None else destination)), self._time(at)
        options = check_recommend_options(options, RecommendOptions.__annotations__)
        horizon = None if within is None else self.horizon(within, time)
        results = self.recommendations(nodes, time, top, horizon, is_source=destination is None, **options)
        return RecommendResults(nodes, results, horizon)

    def recommendations(
        self,
        nodes: Sequence[Any],
        at: Any,
        top: int,
        horizon: float | None = None,
        *,
        is_source: bool = True,
        callbacks: Callback = NO_CALLBACK,
        **options: Any,
    ) -> list[RecommendResult]:
        """`recommend` for several nodes, a time of the stream's axis and an elapsed time.

        ``is_source``: False if the nodes are destinations, whose best sources are the answer. ``options``: the filters
        of `Predictor.make_filter`, ``budget`` and ``exhaustive``; for destinations, ``candidates`` and ``new_only``.
        """
        recommender = Recommender(self.predictor, lambda: self.forecasts)
        answer = recommender.best_destinations if is_source else recommender.best_sources
        return answer(nodes, at, top, horizon, callbacks, **options)

    @overload
    def next_event(self, node: str | int, at: Any = None, *, top: int = 3) -> NextEvent: ...

    @overload
    def next_event(self, node: IdList, at: Any = None, *, top: int = 3) -> dict[Any, NextEvent]: ...

    def next_event(self, node: Any, at: Any = None, *, top: int = 3) -> NextEvent | dict[Any, NextEvent]:
        """Return when a source acts next (median and 80 % interval), and its ``top`` most likely partners then.

        ``node`` is an id, or a list of ids: then the answer is a dictionary. An unknown id is a node without history.

        Example: ``run.next_event("ada").median``.
        """
        nodes = check_ids(as_list(node))
        answers = dict(zip(nodes, self.forecasts.next_events(nodes, self._time(at), top), strict=True))
        return answers if is_list(node) else answers[nodes[0]]

    def active(
        self, within: Any, at: Any = None, top: int | None = 10, *, role: ActRole = "source"
    ) -> list[ActiveNode]:
        """Return the ``top`` nodes most likely to act within a horizon such as "7d", best first; None means all nodes.

        ``role`` is "source" or "destination".

        Example: ``[(a.node, a.probability) for a in run.active("7d")]``.
        """
        time = self._time(at)
        return self.forecasts.active(self.horizon(within, time), time, top, role=role)

    def horizon(self, within: Any, at: Any = None) -> float:
        """Return a horizon as elapsed time. RunWarning if it is longer than any in the data before the time ``at``.

        ``at`` is a time of the stream's axis, or several, or None for the end of the history.
        """
        horizon = parse_horizon(within, self.stream)
        note = self.forecasts.horizon_note(horizon, at)
        if note:
            warnings.warn(note, RunWarning, stacklevel=3)
        return horizon

    def similar(
        self,
        node: Any,
        at: Any = None,
        top: int = 10,
        *,
        by: str = "cosine",
        half_life: float | None = None,
        side: str | None = None,
    ) -> list[SimilarNode]:
        """Return the ``top`` nodes most like ``node``, best first: those that interact with the same partners.

        ``by``: "cosine", "bm25" or "embedding". ``half_life``: see `inference.similar.find_similar`. ``side``, "src" or
        "dst", is needed if sources and destinations have separate id spaces and the id is in both.
        """
        index = node_index(self.predictor, check_ids([node])[0], side)
        return find_similar(self.predictor, index, self._time(at), check_top(top), by=by, half_life=half_life)

    def embed(self, nodes: Any = None, at: Any = None, *, sides: Sequence[str] | None = None) -> np.ndarray:
        """Return embeddings (n, D) of nodes at a time. The default is all nodes of the history, in order of appearance.

        ``sides``, "src" or "dst" for each node, is needed if sources and destinations have separate id spaces and an
        id is in both.
        """
        indices = np.arange(self.stream.n_nodes)
        if nodes is not None:
            indices = self.predictor.node_indices_of_either_side(check_ids(as_list(nodes)), sides)
        return self.predictor.embed(indices, self._time(at))

    def embed_table(self, nodes: Any = None, at: Any = None, *, sides: Sequence[str] | None = None) -> Any:
        """Return `embed` as a ``pyarrow.Table``: ``node, [side,] time, embedding, note``."""
        ids = None if nodes is None else check_ids(as_list(nodes))
        return embedding_table(self.predictor, ids, sides, self._time(at))

    def evaluate(
        self, callbacks: Callbacks = None, *, split: str | None = None, protocol: str | None = None, **changes: Any
    ) -> RunMetrics:
        """Return metrics on the run's own splits.

        ``split`` is "validation" or "test"; the default is both. ``protocol`` evaluates as a published benchmark does:
        "paper", "dyglib", "tgb" or "tgb-seq"; RunError if the run has another split. ``changes`` may set another
        visibility, pool, seed of negatives or ``batch_size``. The latter is the evaluation batch: per-batch means and
        the visibility rules "paper" and "batch" depend on it.

        Example, as a shop judges: ``run.evaluate(ranking="all", filter="seen", positives="new")``.
        """
        if split is not None:
            check_choice("split", split, SPLITS)
        if "part" in changes:
            raise SettingError("'part' is now called 'split'.")
        if protocol is not None:
            given = evaluation_changes(changes)
            changes = benchmark_changes(protocol, self.settings.protocol, str(self.path), self.settings.model) | given
        model, task = self.evaluation_task(**changes)
        metrics = evaluate_splits(model, task, as_callback(callbacks), SPLITS if split is None else (split,))
        about: dict[str, Any] = {key: self.metrics[key] for key in ("model", "data", "seed", "epochs")}
        about["objective"] = training_objective(self.settings, model)
        about |= {"init": self.metrics["init"]} if "init" in self.metrics else {}
        if protocol is not None:
            metric, own = BENCHMARKS[protocol].metric, BENCHMARKS[protocol].settings(self.settings.model)
            changed = sorted(key for key, value in own.items() if getattr(task.protocol, key) != value)
            about["benchmark"] = {"name": protocol, "metric": metric, "changed": changed}
        return RunMetrics(about | {"protocol": dict(vars(task.protocol))} | metrics)

    def evaluation_task(self, **changes: Any) -> tuple[LinkModel, LinkTask]:
        """Return `evaluation_model` and the task to evaluate it on. ``changes`` as in `evaluate`."""
        protocol, seed, group = (
            evaluation_protocol(self.settings, changes),
            self.settings.seed,
            distributed.current_group(),
        )
        task = LinkTask.prepare(self.original_stream, protocol, seed=seed, device=self.device, group=group)
        return self.evaluation_model(), task

    def evaluation_model(self) -> LinkModel:
        """Return a new model with the weights that validation selected: those of the metrics, not the refitted ones."""
        return self._load_model("model.safetensors")

    @cached_property
    def predictor(self) -> Predictor:
        """The model on its device, with its history. A refitted run uses the refitted weights."""
        index = None if self.prefetched is None else self.prefetched.index(self.stream)
        history = build_history(self.stream, seed=self.settings.seed, device=self.device, index_arrays=index)
        return Predictor(self.model, self.stream, history, self.has_training_events, self.load_first_scorer)

    @cached_property
    def has_training_events(self) -> np.ndarray:
        """(N,) whether the weights that answer were trained on events of a node."""
        original = self.original_stream
        found = np.zeros(self.stream.n_nodes, dtype=bool)
        is_refitted = "refit" in self.metrics
        found[: original.n_nodes] = True if is_refitted else ~split_stream(original, self.settings.protocol).new_node
        return found

    def needs_first_scorer(self) -> bool:
        """Return whether `recommend` will train a first scorer, which takes a while, because the folder has none."""
        if find_model(self.settings.model).network.is_cheap or self._first_scorer_file.read() is not None:
            return False
        return len(unique_nodes(self.stream.dst, self.stream.n_nodes)) > MIN_BUDGET

    def load_first_scorer(self, predictor: Predictor, callbacks: Callback = NO_CALLBACK) -> FirstScorer:
        """Return the first scorer of the run folder. If there is none for these weights, train it and store it.

        It learns from the training events, or from all events if the run is refitted. Its budget is measured at
        validation events.
        """
        return self._first_scorer_file.read_or_make(predictor, self._first_scorer_positions, callbacks)

    @property
    def _first_scorer_file(self) -> FirstScorerFile:
        return FirstScorerFile(self.folder, self.weights_file)

    def _first_scorer_positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the events that the first scorer learns from, and those that its budget is measured at."""
        split = split_stream(self.original_stream, self.settings.protocol)
        is_refitted = "refit" in self.metrics
        return np.arange(self.original_stream.n_events) if is_refitted else split.train, split.validation

    @cached_property
    def forecaster(self) -> Forecaster:
        """The run's probabilities of events within a time. RunError if the run was trained without activity."""
        checksums = self.checksums or self.folder.read_result()[1]  # a run that was just trained has read none yet
        return self.folder.read_activity(checksums.get(ACTIVITY_FILE))

    @cached_property
    def forecasts(self) -> Forecasts:
        """The answers about time and probability. RunError if the run has no activity."""
        return Forecasts(self.predictor, self.forecaster)

    @cached_property
    def model(self) -> LinkModel:
        """The trained network that answers queries, a `torch.nn.Module` on the run's device."""
        return self._load_model(self.weights_file)

    @property
    def history(self) -> History:
        """The events and features that queries see: what ``model.read(history, queries)`` takes."""
        return self.predictor.history

    @property
    def weights_file(self) -> str:
        """The file name of the weights that `predictor` uses: the refitted ones if there are any."""
        return "refit.safetensors" if "refit" in self.metrics else "model.safetensors"

    def read_weights(self, name: str) -> dict[str, Tensor]:
        """Return the weights in a file of the run folder. A file is read once."""
        if name not in self._weights:
            self._weights[name] = self.folder.read_tensors(name, self.checksums.get(name))[0]
        return self._weights[name]

    def _load_model(self, name: str) -> LinkModel:
        """Build a model on the run's device, with the weights of a file."""
        weights, path = self.read_weights(name), self.path / name
        return load_run_model(self.settings, self.original_stream, weights, path, self.device)

    def _time(self, at: Any) -> Any:
        return None if at is None else self.stream.parse_time(at)
