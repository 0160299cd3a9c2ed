"""The report of a run: what it shows is what the model says, and whatever the data hold, it stays a sound page."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.analysis.report.charts import Axis, Dot, Line, dot_plot, line_chart, nice_ticks, reach
from cordgt.analysis.report.comparison_report import comparison, differences
from cordgt.analysis.report.data import ReportData, collect_report_data
from cordgt.analysis.report.html import Html, page, table, text, user_id
from cordgt.analysis.report.influence import drivers, heats
from cordgt.analysis.report.run_report import report
from cordgt.analysis.report.sample import (
    Asked,
    ask,
    by_activity,
    by_newness,
    over_time,
    precision_recall,
    staircase,
    surprises,
    surprises_by_lead,
    wilson,
)
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.inference.run import Run
from cordgt.io.datasets import registry
from cordgt.models import MODELS
from cordgt.models.cordgt import Cordgt, CordgtSettings
from cordgt.tasks.link import split_scores
from cordgt.tasks.metrics import ap_and_auc
from cordgt.tasks.run_metrics import RunMetrics
from cordgt.workflows.train import train

TINY: dict[str, Any] = {"hidden": 8, "heads": 2, "fanout": (3, 2), "td_dim": 8, "sd_dim": 8, "epochs": 1}
EVIL = "<script>alert('x')</script>&\"\u202e\x00"


def stream_of(n: int = 150, *, seed: int = 0, name: str = "some", ids: bool = False) -> EventStream:
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, 9, (2, n))
    t = rng.choice([0, 1, 4], n).cumsum()
    if not ids:
        return EventStream.from_columns(src, dst, t, time=TimeAxis("number"), name=name)
    named = [[f"{EVIL}{k}" for k in column] for column in (src, dst)]
    return EventStream.from_columns(*named, t, time=TimeAxis("number"), name=name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "cordgt"
    return train(stream_of(), out=out, device="cpu", **(TINY | {"epochs": 2}))


@pytest.fixture(scope="module")
def asked(run: Run) -> Asked:
    return ask(*run.evaluation_task())


class Sound(HTMLParser):
    """Fails where tags are not closed in order; collects words, tags and attributes."""

    VOID = ("meta", "link", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def check(made: str) -> Sound:
    """A page that needs nothing from elsewhere and runs nothing."""
    sound = Sound(made)
    assert not sound.tags & {"script", "img", "iframe", "object", "embed", "form", "base"}
    for name, value in sound.attributes:
        assert name not in ("src", "srcset", "onload", "onclick", "style", "action", "background")
        assert name != "href" or (value or "").startswith(("#", "data:,"))
    assert "default-src 'none'" in made
    assert "url(" not in made and "@import" not in made
    assert not re.search(r"\b(nan|None|inf)\b", sound.words.partition("metrics.json")[0])
    assert all(k in sound.attributes for k in [("charset", "utf-8"), ("lang", "en")])
    return sound


# --- the page ---


def test_what_comes_from_data_is_escaped() -> None:
    assert text("<b>&\"'") == "&lt;b&gt;&amp;&quot;&#x27;"
    assert text(Html("<b>")) == "<b>"
    assert text("a\x00b\x1b\x7f") == "a�b��"
    assert text("\udc80") == "�"
    assert text(None) == "–"
    assert len(text("x" * 500, 80)) == 80
    assert user_id("<i>").startswith("<bdi") and "<i>" not in user_id("<i>")
    assert "<td>&lt;i&gt;</td>" in table(["a", "b"], [["x", "<i>"]])
    check(page(EVIL, "<p>", foot=EVIL))


def test_ticks_and_reach() -> None:
    assert nice_ticks(0, 1) == [0, 0.5, 1.0] or len(nice_ticks(0, 1)) >= 3
    assert nice_ticks(3, 3) == [3]
    for low, high in ((0.123, 0.987), (1, 1e9), (-5, 5), (93.1, 93.2)):
        ticks = nice_ticks(low, high)
        assert 2 <= len(ticks) <= 8 and low - 1e-9 <= min(ticks) and max(ticks) <= high + 1e-9
    assert reach([]) == (0.0, 1.0)
    assert reach([float("nan"), 2.0], least=1.0)[0] < 2.0 < reach([float("nan"), 2.0], least=1.0)[1]
    assert reach([0.99, 1.0], within=(0.0, 1.0))[1] == 1.0


def test_a_gap_and_a_level_out_of_sight() -> None:
    axis = Axis("y", 0.9, 1.0)
    drawn = line_chart([Line("a", [0, 1, 2], [0.9, float("nan"), 1.0])], Axis("x", 0, 2), axis, says="s", level=0.5)
    assert "nan" not in drawn and drawn.count("M") >= 2
    assert 'class="mark"' not in drawn  # guessing lies outside: no line at the edge that would claim otherwise


# --- what was asked ---


def test_the_same_scores_as_in_the_evaluation(run: Run, asked: Asked) -> None:
    model, task = run.evaluation_task()
    positive, negative, _ = split_scores(model, task, "test", "transductive")
    assert np.array_equal(asked.positive, positive) and np.array_equal(asked.negative, negative)
    assert asked.total == len(asked) == len(task.split.test) and not asked.is_sample


@pytest.mark.parametrize("negatives", ["historical", "inductive-pairs"])
def test_harder_negatives(run: Run, negatives: str) -> None:
    model, task = run.evaluation_task(negatives=negatives)
    positive, negative, _ = split_scores(model, task, "test", "transductive")
    found = ask(model, task)
    assert np.allclose(found.positive, positive) and np.allclose(found.negative, negative)


def test_no_more_events_than_asked_for(run: Run, asked: Asked) -> None:
    model, task = run.evaluation_task()
    few = ask(model, task, at_most=7)
    assert len(few) == 7 and few.is_sample and few.total == asked.total
    rows = np.searchsorted(asked.position, few.position)
    assert rows[0] == 0 and rows[-1] == len(asked) - 1 and np.diff(rows).max() - np.diff(rows).min() <= 1
    assert np.allclose(few.positive, asked.positive[rows])


def test_what_was_known_of_them(run: Run, asked: Asked) -> None:
    """Counted again, event by event."""
    s = run.stream
    new = run.evaluation_task()[1].split.new_node
    for row, p in enumerate(asked.position):
        before = np.flatnonzero(s.t < s.t[p])
        pairs = [{s.src[k], s.dst[k]} for k in before]
        assert asked.met[row] == pairs.count({s.src[p], s.dst[p]})
        assert asked.src_events[row] == sum(s.src[p] in pair for pair in pairs)
        assert asked.dst_events[row] == sum(s.dst[p] in pair for pair in pairs)
        assert (asked.new_src[row], asked.new_dst[row]) == (new[s.src[p]], new[s.dst[p]])


def test_groups_part_the_events(asked: Asked) -> None:
    for groups in (by_newness(asked), by_activity(asked, "src"), [g for _, _, g in over_time(asked, least=5)]):
        assert sum(g.events for g in groups) == len(asked)
        for g in groups:
            assert g.events == 0 or (0 <= g.low <= g.wins <= g.high <= 1 and 0 <= g.ap <= 1)  # type: ignore[operator]


def test_wilson_by_the_book() -> None:
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(1.0, 5) == pytest.approx((0.5655, 1.0), abs=1e-4)


def test_the_area_under_precision_and_recall_is_the_ap(asked: Asked) -> None:
    tied = replace(asked, positive=asked.positive.round(1), negative=asked.negative.round(1))
    for one in (asked, tied):
        recall, precision = precision_recall(one)
        area = float((np.diff(recall) * precision[1:]).sum())
        assert area == pytest.approx(float(ap_and_auc(one.positive[None], one.negative[None])[0][0]))
        assert (np.diff(recall) >= 0).all()
        assert np.trapezoid(*reversed(staircase(one))) == pytest.approx(area)


def test_surprises_are_the_extremes(asked: Asked) -> None:
    shifted = replace(asked, positive=np.linspace(-2, 3, len(asked)), negative=np.linspace(1, -1, len(asked)))
    found = surprises(shifted, 4)
    assert found["misses"].tolist() == [0, 1, 2, 3] and found["alarms"].tolist() == [0, 1, 2, 3]
    assert all(shifted.met[k] == 0 and shifted.positive[k] > 0 for k in found["hits"])
    nothing_wrong = replace(asked, positive=np.full(len(asked), 5.0), negative=np.full(len(asked), -5.0))
    assert all(len(surprises(nothing_wrong, 4)[k]) == 0 for k in ("misses", "alarms"))


def test_surprises_where_no_threshold_means_anything(asked: Asked) -> None:
    lead = np.linspace(-2, 3, len(asked))
    shifted = replace(asked, positive=lead + 7, negative=np.full(len(asked), 7.0))  # all above one half
    found = surprises_by_lead(shifted, 4)
    assert found["misses"].tolist() == [0, 1, 2, 3]
    first = np.flatnonzero(asked.met == 0)
    assert found["hits"].tolist() == first[lead[first] > 0][::-1][:4].tolist()
    behind = replace(asked, positive=np.zeros(len(asked)), negative=np.zeros(len(asked)))
    assert all(len(which) == 0 for which in surprises_by_lead(behind, 4).values())


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("cordgt_plus", TINY | {"loss": "ranking", "num_negatives": 3, "monitor": "mrr", "ranking": 5}),
        ("tcl", {"loss": "contrastive", "hidden": 8, "time_dim": 8, "num_neighbors": 4, "epochs": 1}),
    ],
)
def test_a_model_that_ranks_is_shown_by_leads(tmp_path: Path, model: str, settings: dict[str, Any]) -> None:
    run = train(stream_of(ids=True), model, out=tmp_path / "run", device="cpu", **settings)
    made = (run.path / "report.html").read_text()
    words = check(made).words
    assert "learnt to rank the partners of one source" in words
    assert ("Test MRR" in words) == ("validation MRR" in words) == (model == "cordgt_plus")
    assert ("--set ranking=100" in words) == (model == "tcl")
    lists = words.partition("The most surprising")[2].partition("What was trained")[0]
    assert "furthest behind" in lists and "lead" in lists
    assert "False alarms" not in lists and "score\n" not in lists


# --- why ---


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_influences(run: Run, asked: Asked, head: str) -> None:
    """With the linear head they are the shares; with the other, what a small change of a slot's weight does."""
    task = run.evaluation_task()[1]
    torch.manual_seed(0)
    settings = {k: v for k, v in TINY.items() if k != "epochs"}
    model = Cordgt(CordgtSettings(**settings, head=head), edge_dim=0, node_dim=0).eval()
    batch = model.reader.pairs(task.whole, asked.true.take(np.arange(6)))
    src, dst = model.influences(batch)
    assert (src[:, 0][~batch.valid[:, 0]] == 0).all() and (dst[:, 0][~batch.valid[:, 1]] == 0).all()
    if head == "linear":
        for ours, theirs in zip((src, dst), model.shares(batch), strict=True):
            assert torch.allclose(ours, theirs.detach(), atol=1e-6)
        return
    with torch.no_grad():
        states, weight = model._encode(batch), model._pooling(batch)
        pooled = (weight.unsqueeze(-2) @ states).squeeze(-2)
        more = pooled.clone()
        more[:, 0] += 1e-3 * weight[:, 0, 0, None] * states[:, 0, 0]
        slope = (model._scores(batch, more) - model._scores(batch, pooled))[:, 0] / 1e-3
    assert torch.allclose(src[:, 0, 0], slope, atol=1e-2, rtol=0.05)


def test_drivers_are_what_the_score_loses_without_them(run: Run, asked: Asked) -> None:
    model, task = run.evaluation_task()
    queries = asked.true.take(np.arange(4))
    node = model.reader.sample(task.whole, queries.ends, queries.cut).node
    for row, found in enumerate(drivers(model, task, queries)):
        assert [abs(d.change) for d in found] == sorted((abs(d.change) for d in found), reverse=True)
        one = queries.take(np.array([row]))
        batch = model.reader.pairs(task.whole, one)
        for d in found:
            valid = batch.valid.clone()
            for end in (0, 1):
                for slot in range(1, valid.shape[-1]):
                    if node[row, end, slot] == d.node:
                        valid[0, end, slot] = False
            with torch.inference_mode():
                change = float(model(batch) - model(replace(batch, valid=valid)))
            assert d.change == pytest.approx(change, abs=1e-5)
            assert (d.hops[0] is not None) or (d.hops[1] is not None)


def test_heat_counts_every_slot(run: Run, asked: Asked) -> None:
    model, task = run.evaluation_task()
    queries = asked.true.take(np.arange(10))
    slots = int(model.reader.pairs(task.whole, queries).valid.sum())
    td, sd = heats(model, task, queries)
    assert td.count.sum() == sd.count.sum() == slots
    assert (np.isnan(td.mean) == (td.count == 0)).all() and td.names[-1] == "never met" and sd.names[-1] == "absent"
    assert sd.names[:3] == ["0", "1", "2"]


def test_heat_by_given_edges(run: Run, asked: Asked) -> None:
    model, task = run.evaluation_task()
    whole, _ = heats(model, task, asked.true, edges=[0.0, 1e9])
    assert whole.names == ["0–1e+09", "never met"]
    found, _ = heats(model, task, asked.true)
    assert found.count[:-1, :-1].sum() == whole.count[0, 0]
    beyond, _ = heats(model, task, asked.true, edges=[0.0, 1e-9, 2e-9])
    assert beyond.count.sum() == whole.count.sum()  # what lies beyond the last edge is in the last group


def test_other_models_are_not_explained(run: Run, asked: Asked) -> None:
    task = run.evaluation_task()[1]
    other = MODELS["edgebank"].network(MODELS["edgebank"].settings(), edge_dim=0, node_dim=0)
    assert drivers(other, task, asked.true.take(np.arange(2))) == [[], []]
    assert heats(other, task, asked.true) == []


# --- whole reports ---


# One of each kind: trees, memory, rows of its own for each node, a rule without parameters.
@pytest.mark.parametrize("model", ["cordgt", "tgn", "ctdne", "edgebank"])
def test_every_kind_of_model_gets_a_report(tmp_path: Path, model: str) -> None:
    small = {"hidden": 8, "heads": 2, "fanout": "3,2", "epochs": 1, "num_walks": 4, "memory_dim": 8, "dim": 8}
    found = train(stream_of(ids=True, name=EVIL), model, out=tmp_path / "run", device="cpu", **small)
    sound = check((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    words = sound.words
    for title in (
        "Figures",
        "Curves",
        "Precision and recall",
        "Over time",
        "By node activity",
        "By newness",
        "The most",
    ):
        assert title in words
    assert ("By distance" in words) == ("driven by" in words) == (model == "cordgt")
    assert ("nothing to train" in words) == (not MODELS[model].network.is_trainable)
    assert f"{100 * found.metrics['test']['transductive']['ap']:.2f}" in words
    assert "alert(" in words  # as words, not as markup


def test_settings_that_are_not_as_by_default_are_bold(run: Run) -> None:
    page = report(collect_report_data(run))
    assert "<dt>hidden</dt><dd><strong>8</strong></dd>" in page  # of the model
    assert "<dt>epochs</dt><dd><strong>2</strong></dd>" in page  # of the training
    assert "<dt>lr</dt><dd>0.001</dd>" in page  # as by default


def test_what_is_not_as_published_is_a_caution(run: Run) -> None:
    look = collect_report_data(run)

    def lead(*notes: str) -> str:
        told = replace(look.task.stream, name="uci", notes=notes)
        return report(replace(look, task=replace(look.task, stream=told))).split('id="figures"')[0]

    differs = registry.describe_difference("uci", look.task.stream)
    assert "published: 1899" in lead(differs)
    assert "not read" not in lead("not read: a column")
    assert "published" not in lead()  # somebody's own file of that name


def test_dates_and_a_sample_are_said(tmp_path: Path) -> None:
    s = stream_of(400)
    days = EventStream.from_columns(s.src, s.dst, (s.t + 20_000) * 86_400_000_000, time=TimeAxis("date"), name="days")
    found = train(days, "edgebank", out=tmp_path / "run", device="cpu", report=False)
    assert not (tmp_path / "run" / "report.html").exists()
    words = check(report(collect_report_data(found, at_most=20))).words
    assert "20 of the 60 test events" in words and re.search(r"20\d\d-\d\d-\d\d", words)
    assert "evenly spread" not in check(report(collect_report_data(found, at_most=None))).words


def test_a_missing_report_comes_with_a_resume(tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path / "run", "device": "cpu"}
    train(stream_of(), "edgebank", report=False, **options)
    assert not (tmp_path / "run" / "report.html").exists()
    train(stream_of(), "edgebank", resume=True, **options)
    assert (tmp_path / "run" / "report.html").exists()


def test_the_same_report_twice(run: Run) -> None:
    assert report(collect_report_data(run)) == (run.path / "report.html").read_text(encoding="utf-8")


# --- several runs ---


def test_runs_side_by_side(run: Run, tmp_path: Path) -> None:
    other = train(stream_of(), "popularity", out=tmp_path / "b", device="cpu", report=False)
    looks = {"first": collect_report_data(run), EVIL: collect_report_data(other)}
    words = check(comparison(looks)).words
    for said in (
        "2 runs on some",
        "95 % interval",
        "Precision and recall",
        "By newness",
        "popularity",
        "difference to first",
    ):
        assert said in words
    assert differences(looks) == [] and "do not compare" not in words
    assert "± " not in words.partition("Curves")[0]


def test_a_baseline_above_every_run_is_said_first(run: Run) -> None:
    def looks(ap: float) -> dict[str, ReportData]:
        metrics = RunMetrics.from_json(run.metrics.to_json())
        metrics["baselines"]["seen before"]["test"]["transductive"]["ap"] = ap
        return dict.fromkeys(("a", "b"), replace(collect_report_data(run), metrics=metrics))

    own = f"{100 * run.metrics['test']['transductive']['ap']:.2f}"
    words = check(comparison(looks(0.9999))).words
    assert "A trivial baseline does better than all of these: “seen before” reaches 99.99 % average precision" in words
    assert f"a has the highest test AP: {own} %" in words
    assert "99.99 ▲" in words and "▲: a trivial baseline is above every run" in words
    metrics = RunMetrics(run.metrics, baselines={})
    assert (
        "trivial"
        not in check(comparison(dict.fromkeys("ab", replace(collect_report_data(run), metrics=metrics)))).words
    )


def test_no_line_of_a_dot_plot_runs_through_its_words() -> None:
    axis = Axis("x", 0.0, 1.0, [(0.0, "0"), (0.5, "half"), (1.0, "1")])
    made = dot_plot(
        [Dot("popularity", 0.3, note="30 %"), Dot("seen before", 0.9, note="90 %")], axis, says="", level=0.4
    )
    words = [float(y) for y in re.findall(r'<text [^>]*y="([\d.]+)"', made)]
    lines = [(float(y), float(y) + float(h)) for y, h in re.findall(r"M[\d.]+ ([\d.]+)v([\d.]+)", made)]
    assert len(lines) == 8 and "<line" not in made  # three ticks and the level, beside two rows
    assert not [1 for y in words for top, bottom in lines if top < y + 3 and bottom > y - 9]


@pytest.mark.parametrize(("y", "high"), [([0.9, 0.5, 0.1], True), ([0.1, 0.5, 0.9], False), ([], False)])
def test_words_at_a_mark_stand_where_the_line_does_not(y: list[float], high: bool) -> None:
    drawn = line_chart(
        [Line("loss", [1.0, 2.0, 3.0][: len(y)], y)], Axis("", 1, 3), Axis("", 0, 1), mark=(3.0, "kept"), says=""
    )
    found = re.search(r'y="([0-9.]+)"[^>]*>kept<', drawn)
    assert found is not None and (float(found[1]) < 60) == high


def test_seeds_have_a_mean(run: Run, tmp_path: Path) -> None:
    other = train(stream_of(), seed=1, out=tmp_path / "b", device="cpu", report=False, **(TINY | {"epochs": 2}))
    words = check(comparison({"a": collect_report_data(run), "b": collect_report_data(other)})).words
    values = [100 * r.metrics["test"]["transductive"]["ap"] for r in (run, other)]
    assert f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" in words


def test_other_data_and_other_protocols_are_warned_of(run: Run, tmp_path: Path) -> None:
    data = train(stream_of(seed=5, name="else"), "edgebank", out=tmp_path / "b", device="cpu", report=False)
    rule = train(stream_of(), "edgebank", out=tmp_path / "c", device="cpu", report=False, visibility="batch")
    words = check(
        comparison({"a": collect_report_data(run), "b": collect_report_data(data), "c": collect_report_data(rule)})
    ).words
    assert "other data: a on some (150 events), b on else (150 events)" in words
    assert "protocols that differ in visibility (event and batch)" in words
    assert "95 % interval" not in words and "Over time" not in words
