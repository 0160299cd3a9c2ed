"""CTDNE: walks go forward in time, skip-gram equals word2vec's, and nodes without a vector score 0.5."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.analysis.audit.checks import BY_DESIGN, has_failures
from cordgt.analysis.audit.model import audit_model
from cordgt.analysis.compare import compare_runs
from cordgt.analysis.remarks import undefined_remarks
from cordgt.errors import DataError, SettingError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.history import rng as hashing
from cordgt.history.index import TemporalIndex
from cordgt.inference.run import Run
from cordgt.models.ctdne import Ctdne, CtdneSettings, ForwardWalks, _skip_gram, learn_vectors, negatives_table
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import evaluate
from cordgt.training import trainer
from cordgt.training.model_factory import build_model_for
from cordgt.training.settings import make_settings
from cordgt.workflows.train import train

SMALL: dict[str, Any] = {"dim": 6, "num_walks": 3, "walk_length": 5, "window": 2}
ENDS = np.random.default_rng(4).integers(0, 9, (2, 60))
TIMES = np.random.default_rng(5).choice([0, 1, 2], 60).cumsum().astype(np.float64)


def index(keep: np.ndarray | None = None) -> TemporalIndex:
    return TemporalIndex.build(ENDS[0], ENDS[1], TIMES, 10, keep)


def stream(n: int = 160) -> EventStream:
    """Two sides; three sources appear only at the end."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, 8, n)
    src[-30:] = rng.integers(6, 11, 30)
    dst = 20 + (src + rng.integers(0, 2, n)) % 8
    return EventStream.from_columns(src, dst, rng.choice([0, 1, 2], n).cumsum(), time=TimeAxis("number"), name="s")


# --- walks ---


def can_be_walked(walk: list[int], cut: int) -> bool:
    """Whether some events of the first ``cut``, each later than the one before, lead along the walk."""
    times = {-1.0}  # at which the walk can have come so far
    for u, v in pairwise(walk):
        steps = [TIMES[p] for p in range(cut) if {ENDS[0, p], ENDS[1, p]} == {u, v}]
        times = {t for t in steps if t > min(times)}
        if not times:
            return False
    return True


@pytest.mark.parametrize("start", ["uniform", "linear"])
def test_walks_go_forward_in_time(start: str) -> None:
    cut = 45
    walks = ForwardWalks(index(), cut, CtdneSettings(**SMALL, start=start), seed=1)
    found = np.concatenate(list(walks.chunks()))
    assert found.shape == (30, 5)
    lengths = (found >= 0).sum(axis=1)
    assert lengths.min() >= 2 and lengths.max() > 3
    for walk, n in zip(found.tolist(), lengths, strict=True):
        assert can_be_walked(walk[:n], cut) and set(walk[n:]) <= {-1}


def test_walk_ends_without_a_later_event() -> None:
    """Events 0-1, then 1-2 and 2-3 at one time: a walk cannot take both of the last two."""
    line = TemporalIndex.build(np.array([0, 1, 2]), np.array([1, 2, 3]), np.array([0.0, 1.0, 1.0]), 4)
    walks = ForwardWalks(line, 3, CtdneSettings(**(SMALL | {"num_walks": 200})), seed=0)
    found = {tuple(w for w in walk if w >= 0) for walk in np.concatenate(list(walks.chunks())).tolist()}
    assert found == {(0, 1, 2), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)}


def test_later_and_masked_events_are_not_walked() -> None:
    settings = CtdneSettings(**SMALL)
    changed = ENDS.copy()
    changed[:, 40:] = changed[:, 40:][:, ::-1]
    other = TemporalIndex.build(changed[0], changed[1], TIMES, 10)
    a, b = (np.concatenate(list(ForwardWalks(x, 40, settings, seed=1).chunks())) for x in (index(), other))
    assert np.array_equal(a, b)
    hidden = ~((ENDS == 3).any(axis=0))
    assert 3 not in np.concatenate(list(ForwardWalks(index(hidden), 60, settings, seed=1).chunks()))


def test_linear_starts_are_later() -> None:
    line = TemporalIndex.build(np.arange(0, 200, 2), np.arange(1, 200, 2), np.arange(100.0), 200)
    mean = {}
    for start in ("uniform", "linear"):
        walks = ForwardWalks(line, 100, CtdneSettings(**(SMALL | {"start": start})), seed=0)
        mean[start] = float(np.mean(np.concatenate(list(walks.chunks()))[:, 0] // 2))
    assert abs(mean["uniform"] - 50) < 5 and abs(mean["linear"] - 67) < 5


# --- skip-gram ---


def test_skip_gram_against_a_slow_version() -> None:
    """The same random numbers, in plain numpy and float64."""
    walks = np.array([[0, 1, 2, 1, -1], [3, 2, 0, 4, 3]], dtype=np.int32)
    rng = np.random.default_rng(0)
    vectors, contexts = (rng.normal(size=(5, 4)).astype(np.float32) for _ in range(2))
    slow_vectors, slow_contexts = vectors.astype(np.float64), contexts.astype(np.float64)
    table = negatives_table(np.array([2, 2, 2, 2, 1]), 64)
    key, window, negatives, total = 77, 2, 3, 9

    def next_step(step: int) -> int:
        return hashing.mix64_int(step + 1)

    def below(step: int, n: int) -> int:
        return (((step % 2**64) >> 32) * n) >> 32

    done = 0
    for w, walk in enumerate(walks):
        nodes = walk[walk >= 0]
        step = hashing.fold_in_int(key, w)
        for i, centre in enumerate(nodes):
            step = next_step(step)
            lr = max(0.001, 0.1 + (0.001 - 0.1) * done / total)
            done += 1
            reach = window - below(step, window)
            for j in range(max(0, i - reach), min(len(nodes), i + reach + 1)):
                if j == i:
                    continue
                vector, change = slow_vectors[nodes[j]].copy(), np.zeros(4)
                for k in range(negatives + 1):
                    target = centre
                    if k:
                        step = next_step(step)
                        target = table[below(step, len(table))]
                        if target == centre:
                            continue
                    off = lr * ((k == 0) - 1 / (1 + np.exp(-vector @ slow_contexts[target])))
                    change += off * slow_contexts[target]
                    slow_contexts[target] += off * vector
                slow_vectors[nodes[j]] += change
    assert _skip_gram(walks, vectors, contexts, table, np.uint64(key), window, negatives, 0, total, 0.1, 0.001) == done
    np.testing.assert_allclose(vectors, slow_vectors, rtol=0, atol=1e-5)
    np.testing.assert_allclose(contexts, slow_contexts, rtol=0, atol=1e-5)


def test_negatives_are_sampled_by_count() -> None:
    table = Counter(negatives_table(np.array([16, 0, 1]), 900).tolist())
    assert table == {0: 800, 2: 100}


def test_frequent_neighbors_have_near_vectors() -> None:
    """Two components: a vector is nearer to those of its own component."""
    rng = np.random.default_rng(0)
    circle = np.repeat([0, 1], 400)
    rng.shuffle(circle)
    ends = rng.integers(0, 6, (2, 800)) + 6 * circle
    made = TemporalIndex.build(ends[0], ends[1], np.arange(800.0), 12)
    settings = CtdneSettings(dim=16, num_walks=60, walk_length=20, window=5)
    vectors, met = learn_vectors(ForwardWalks(made, 800, settings, seed=0), settings)
    assert met.all() and abs(np.square(vectors).mean() - 1) < 1e-4
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    near = unit @ unit.T
    assert near[:6, :6].mean() > near[:6, 6:].mean() + 0.3


def test_seed_determines_the_vectors() -> None:
    settings = CtdneSettings(**SMALL)
    a, b, other = (learn_vectors(ForwardWalks(index(), 50, settings, seed=s), settings)[0] for s in (1, 1, 2))
    assert np.array_equal(a, b) and not np.array_equal(a, other)


def test_no_events_no_vectors() -> None:
    settings = CtdneSettings(**SMALL)
    vectors, met = learn_vectors(ForwardWalks(index(), 0, settings, seed=1), settings)
    assert not met.any() and not vectors.any()


# --- the model ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"walk_length": 1}, "walk_length=1"),
        ({"operator": "sum"}, "operator"),
        ({"start": "x"}, "start"),
        ({"dim": 0}, "dim=0"),
    ],
)
def test_invalid_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make_settings("ctdne", SMALL | changes)


@pytest.mark.parametrize("operator", ["hadamard", "mean", "l1", "l2"])
def test_operators(operator: str) -> None:
    model = Ctdne(CtdneSettings(**SMALL, operator=operator), edge_dim=0, node_dim=0, n_nodes=3)
    model.vectors.copy_(torch.arange(18.0).view(3, 6))
    model.met.copy_(torch.tensor([True, True, False]))
    expected = {
        "hadamard": model.vectors[0] * model.vectors[1],
        "mean": (model.vectors[0] + model.vectors[1]) / 2,
        "l1": torch.full((6,), 6.0),
        "l2": torch.full((6,), 36.0),
    }[operator]
    logits = model(torch.tensor([[0, 1, 2, 7], [2, 0, 1, -1]]))
    torch.testing.assert_close(logits[0, 0], model.head(expected)[0])
    assert logits[0, 1:].tolist() == [0.0, 0.0] and logits[1].tolist() == [0.0] * 3
    assert model.embed(torch.tensor([[2], [9]])).abs().sum() == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "run"
    return train(stream(), "ctdne", out=out, device="cpu", epochs=2, batch_size=20, ranking="5", **SMALL)


def test_nodes_without_a_vector_score_one_half(run: Run) -> None:
    split = run.evaluation_task()[1].split
    names = run.stream.ids.names.to_pylist()
    unseen = [names[i] for i in np.flatnonzero(split.new_node)]
    assert len(unseen) >= 3
    source, known = names[run.stream.src[0]], names[run.stream.dst[0]]
    scores, notes = run.predictor.score([unseen[0], source, "nobody"], [known, known, known])
    assert scores[0] == scores[2] == 0.5 and scores[1] != 0.5
    assert notes.tolist() == ["src: no embedding", "", "src: no embedding"]
    longer = run.with_events(EventStream.from_columns([77], [known], [10**4], time=TimeAxis("number")))
    assert longer.score([77], [known])[0] == 0.5 and longer.score([source], [known])[0] == scores[1]


def test_inductive_metrics_are_not_defined(run: Run) -> None:
    row = run.metrics["test"]["inductive"]
    assert row["events"] > 0 and row["ap"] is None and row["mrr"] is None and row["hits@10"] is None
    assert run.metrics["test"]["transductive"]["mrr"] is not None
    remarks = undefined_remarks(run.metrics)
    assert len(remarks) == 2 and all("not defined, this model has no answer" in text for text in remarks)
    with pytest.raises(DataError, match="has no answer for nodes"):
        compare_runs(run, run, setting="inductive", bootstrap=10)


def test_audit(run: Run) -> None:
    checks = audit_model(*run.evaluation_task(), queries=30)
    assert not has_failures(checks)
    assert {check.check: check.result for check in checks}["new like known"] == BY_DESIGN


def test_resumed_training_gives_the_same_weights(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"device": "cpu", "batch_size": 20, "ranking": "5", "checkpoint_minutes": 0, "epochs": 2} | SMALL

    class Interrupted(Exception):
        pass

    def dies(*_: Any) -> None:
        raise Interrupted

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(trainer.Trainer, "_validate", dies)
        train(stream(), "ctdne", out=tmp_path / "run", **options)
    with monkeypatch.context() as patched:
        patched.setattr(Ctdne, "prepare", dies)  # its vectors are in the checkpoint
        again = train(stream(), "ctdne", out=tmp_path / "run", resume=True, **options)
    a, b = (r.folder.read_tensors("model.safetensors")[0] for r in (run, again))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_masked_nodes_have_no_vector() -> None:
    settings = make_settings("ctdne", SMALL)
    task = LinkTask.prepare(stream(), settings.protocol, seed=0, device=torch.device("cpu"))
    model = build_model_for(settings, task.stream)
    model.prepare(task.train_history, int(task.split.train[-1]) + 1)
    masked = torch.from_numpy(np.flatnonzero(task.split.masked))
    assert len(masked) and model.is_unknown(masked).all()
    assert evaluate(model, task, "test", "transductive")["ap"] is not None
