"""Reports show what the model predicts, and are valid, safe HTML whatever the data hold."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.analysis.report.charts import Axis, DotRow, Series, dot_plot, line_chart, nice_ticks, padded_range
from cordgt.analysis.report.comparison_report import comparability_warnings, render_comparison
from cordgt.analysis.report.data import ReportData, collect_report_data
from cordgt.analysis.report.html import Html, page, table, text, user_id
from cordgt.analysis.report.influence import ablate_context_nodes, influence_by_distance
from cordgt.analysis.report.run_report import render_run_report
from cordgt.analysis.report.sample import (
    ScoredSample,
    extreme_events,
    extreme_margins,
    group_by_degree,
    group_by_novelty,
    group_by_time,
    precision_recall,
    precision_recall_steps,
    score_sample,
    wilson_interval,
)
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.inference.run import Run
from cordgt.io.datasets import registry
from cordgt.models import MODELS
from cordgt.models.cordgt import Cordgt, CordgtSettings
from cordgt.tasks.link_evaluation import split_scores
from cordgt.tasks.metrics import ap_and_auc
from cordgt.tasks.run_metrics import RunMetrics
from cordgt.training.run_checks import check_metrics
from cordgt.workflows.train import train

TINY: dict[str, Any] = {"hidden": 8, "heads": 2, "fanout": (3, 2), "td_dim": 8, "sd_dim": 8, "epochs": 1}
HOSTILE = "<script>alert('x')</script>&\"\u202e\x00"


def make_stream(n: int = 150, *, seed: int = 0, name: str = "some", ids: bool = False) -> EventStream:
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, 9, (2, n))
    t = rng.choice([0, 1, 4], n).cumsum()
    if not ids:
        return EventStream.from_columns(src, dst, t, time=TimeAxis("number"), name=name)
    named = [[f"{HOSTILE}{k}" for k in column] for column in (src, dst)]
    return EventStream.from_columns(*named, t, time=TimeAxis("number"), name=name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "cordgt"
    return train(make_stream(), out=out, device="cpu", **(TINY | {"epochs": 2}))


@pytest.fixture(scope="module")
def sample(run: Run) -> ScoredSample:
    return score_sample(*run.evaluation_task())


class ParsedPage(HTMLParser):
    """Parse a page and assert that tags are closed in order; collect text, tags and attributes."""

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


def check(markup: str) -> ParsedPage:
    """Assert that a page loads nothing and runs nothing; return it parsed."""
    parsed = ParsedPage(markup)
    assert not parsed.tags & {"script", "img", "iframe", "object", "embed", "form", "base"}
    for name, value in parsed.attributes:
        assert name not in ("src", "srcset", "onload", "onclick", "style", "action", "background")
        assert name != "href" or (value or "").startswith(("#", "data:,"))
    assert "default-src 'none'" in markup
    assert "url(" not in markup and "@import" not in markup
    assert not re.search(r"\b(nan|None|inf)\b", parsed.words.partition("metrics.json")[0])
    assert all(k in parsed.attributes for k in [("charset", "utf-8"), ("lang", "en")])
    return parsed


# --- the page ---


def test_values_from_data_are_escaped() -> None:
    assert text("<b>&\"'") == "&lt;b&gt;&amp;&quot;&#x27;"
    assert text(Html("<b>")) == "<b>"
    assert text("a\x00b\x1b\x7f") == "a�b��"
    assert text("\udc80") == "�"
    assert text(None) == "–"
    assert len(text("x" * 500, 80)) == 80
    assert user_id("<i>").startswith("<bdi") and "<i>" not in user_id("<i>")
    assert "<td>&lt;i&gt;</td>" in table(["a", "b"], [["x", "<i>"]])
    check(page(HOSTILE, "<p>"))


def test_nice_ticks_and_padded_range() -> None:
    assert nice_ticks(0, 1) == [0, 0.5, 1.0] or len(nice_ticks(0, 1)) >= 3
    assert nice_ticks(3, 3) == [3]
    for low, high in ((0.123, 0.987), (1, 1e9), (-5, 5), (93.1, 93.2)):
        ticks = nice_ticks(low, high)
        assert 2 <= len(ticks) <= 8 and low - 1e-9 <= min(ticks) and max(ticks) <= high + 1e-9
    assert padded_range([]) == (0.0, 1.0)
    assert (
        padded_range([float("nan"), 2.0], min_width=1.0)[0] < 2.0 < padded_range([float("nan"), 2.0], min_width=1.0)[1]
    )
    assert padded_range([0.99, 1.0], bounds=(0.0, 1.0))[1] == 1.0


def test_line_chart_leaves_gaps_and_omits_a_reference_outside_the_axis() -> None:
    axis = Axis("y", 0.9, 1.0)
    chart = line_chart(
        [Series("a", [0, 1, 2], [0.9, float("nan"), 1.0])], Axis("x", 0, 2), axis, alt="s", reference=0.5
    )
    assert "nan" not in chart and chart.count("M") >= 2
    assert 'class="mark"' not in chart  # the reference is outside the axis: no line at its edge


# --- the sample ---


def test_sample_has_the_scores_of_the_evaluation(run: Run, sample: ScoredSample) -> None:
    model, task = run.evaluation_task()
    positive, negative, _ = split_scores(model, task, "test", "transductive")
    assert np.array_equal(sample.positive, positive) and np.array_equal(sample.negative, negative)
    assert sample.n_total == len(sample) == len(task.split.test) and not sample.is_partial


@pytest.mark.parametrize("negatives", ["historical", "inductive-pairs"])
def test_sample_has_the_scores_of_harder_negatives(run: Run, negatives: str) -> None:
    model, task = run.evaluation_task(negatives=negatives)
    positive, negative, _ = split_scores(model, task, "test", "transductive")
    found = score_sample(model, task)
    assert np.allclose(found.positive, positive) and np.allclose(found.negative, negative)


def test_sample_is_limited_and_evenly_spread(run: Run, sample: ScoredSample) -> None:
    model, task = run.evaluation_task()
    few = score_sample(model, task, max_events=7)
    assert len(few) == 7 and few.is_partial and few.n_total == sample.n_total
    rows = np.searchsorted(sample.positions, few.positions)
    assert rows[0] == 0 and rows[-1] == len(sample) - 1 and np.diff(rows).max() - np.diff(rows).min() <= 1
    assert np.allclose(few.positive, sample.positive[rows])


def test_earlier_events_and_new_nodes_are_counted(run: Run, sample: ScoredSample) -> None:
    """Compare with counts event by event."""
    s = run.stream
    new = run.evaluation_task()[1].split.new_node
    for row, p in enumerate(sample.positions):
        before = np.flatnonzero(s.t < s.t[p])
        pairs = [{s.src[k], s.dst[k]} for k in before]
        assert sample.pair_count[row] == pairs.count({s.src[p], s.dst[p]})
        assert sample.src_degree[row] == sum(s.src[p] in pair for pair in pairs)
        assert sample.dst_degree[row] == sum(s.dst[p] in pair for pair in pairs)
        assert sample.has_new_node[row] == (new[s.src[p]] or new[s.dst[p]])


def test_groups_cover_all_events_once(sample: ScoredSample) -> None:
    for groups in (
        group_by_novelty(sample),
        group_by_degree(sample, sample.src_degree),
        [g for _, _, g in group_by_time(sample, min_events=5)],
    ):
        assert sum(g.n_events for g in groups) == len(sample)
        for g in groups:
            assert g.n_events == 0 or (0 <= g.low <= g.win_rate <= g.high <= 1 and 0 <= g.ap <= 1)  # type: ignore[operator]


def test_wilson_interval_matches_published_values() -> None:
    assert wilson_interval(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson_interval(1.0, 5) == pytest.approx((0.5655, 1.0), abs=1e-4)


def test_the_area_under_precision_and_recall_is_the_ap(sample: ScoredSample) -> None:
    tied = replace(sample, positive=sample.positive.round(1), negative=sample.negative.round(1))
    for one in (sample, tied):
        recall, precision = precision_recall(one)
        area = float((np.diff(recall) * precision[1:]).sum())
        assert area == pytest.approx(float(ap_and_auc(one.positive[None], one.negative[None])[0][0]))
        assert (np.diff(recall) >= 0).all()
        assert np.trapezoid(*reversed(precision_recall_steps(one))) == pytest.approx(area)


def test_extreme_events_are_the_extremes(sample: ScoredSample) -> None:
    shifted = replace(sample, positive=np.linspace(-2, 3, len(sample)), negative=np.linspace(1, -1, len(sample)))
    found = extreme_events(shifted, 4)
    assert found["misses"].tolist() == [0, 1, 2, 3] and found["alarms"].tolist() == [0, 1, 2, 3]
    assert all(shifted.pair_count[k] == 0 and shifted.positive[k] > 0 for k in found["hits"])
    nothing_wrong = replace(sample, positive=np.full(len(sample), 5.0), negative=np.full(len(sample), -5.0))
    assert all(len(extreme_events(nothing_wrong, 4)[k]) == 0 for k in ("misses", "alarms"))


def test_extreme_margins_use_no_threshold(sample: ScoredSample) -> None:
    lead = np.linspace(-2, 3, len(sample))
    shifted = replace(sample, positive=lead + 7, negative=np.full(len(sample), 7.0))  # all above one half
    found = extreme_margins(shifted, 4)
    assert found["misses"].tolist() == [0, 1, 2, 3]
    first = np.flatnonzero(sample.pair_count == 0)
    assert found["hits"].tolist() == first[lead[first] > 0][::-1][:4].tolist()
    behind = replace(sample, positive=np.zeros(len(sample)), negative=np.zeros(len(sample)))
    assert all(len(which) == 0 for which in extreme_margins(behind, 4).values())


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("cordgt_plus", TINY | {"loss": "ranking", "num_negatives": 3, "monitor": "mrr", "ranking": 5}),
        ("tcl", {"loss": "contrastive", "hidden": 8, "time_dim": 8, "num_neighbors": 4, "epochs": 1}),
    ],
)
def test_report_of_a_ranking_model_uses_margins(tmp_path: Path, model: str, settings: dict[str, Any]) -> None:
    run = train(make_stream(ids=True), model, out=tmp_path / "run", device="cpu", **settings)
    markup = (run.path / "report.html").read_text()
    words = check(markup).words
    assert "learned to rank the destinations of one source" in words
    assert ("Test MRR" in words) == ("validation MRR" in words) == (model == "cordgt_plus")
    lead = (
        "Ranked among at most 5 candidates, the true destination is in the top 10"
        if model == "cordgt_plus"
        else "no ranks"
    )
    assert lead in markup.partition('class="lead"')[2].partition("</p>")[0]
    assert run.metrics["objective"] == run.evaluate()["objective"] == "ranking"
    assert ("--set ranking=100" in words) == (model == "tcl")
    lists = words.partition("The most surprising")[2].partition("Model, data and settings")[0]
    assert "negative margins" in lists and "margin" in lists
    assert "False alarms" not in lists and "score\n" not in lists


# --- explanations ---


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_influences(run: Run, sample: ScoredSample, head: str) -> None:
    """Influences equal the shares of the linear head, and the numerical gradient of the other."""
    task = run.evaluation_task()[1]
    torch.manual_seed(0)
    settings = {k: v for k, v in TINY.items() if k != "epochs"}
    model = Cordgt(CordgtSettings(**settings, head=head), edge_dim=0, node_dim=0).eval()
    batch = model.reader.read(task.full_history, sample.positive_queries.take(np.arange(6)))
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


def test_node_effect_is_the_change_without_the_node(run: Run, sample: ScoredSample) -> None:
    model, task = run.evaluation_task()
    queries = sample.positive_queries.take(np.arange(4))
    node = model.reader.sample(task.full_history, queries.endpoints, queries.cut).node
    for row, found in enumerate(ablate_context_nodes(model, task, queries)):
        assert [abs(d.change) for d in found] == sorted((abs(d.change) for d in found), reverse=True)
        one = queries.take(np.array([row]))
        batch = model.reader.read(task.full_history, one)
        for d in found:
            valid = batch.valid.clone()
            for end in (0, 1):
                for slot in range(1, valid.shape[-1]):
                    if node[row, end, slot] == d.node:
                        valid[0, end, slot] = False
            with torch.inference_mode():
                change = float(model(batch) - model(replace(batch, valid=valid)))
            assert d.change == pytest.approx(change, abs=1e-5)
            assert (d.n_hops[0] is not None) or (d.n_hops[1] is not None)


def test_influence_grid_counts_every_slot(run: Run, sample: ScoredSample) -> None:
    model, task = run.evaluation_task()
    queries = sample.positive_queries.take(np.arange(10))
    slots = int(model.reader.read(task.full_history, queries).valid.sum())
    td, sd = influence_by_distance(model, task, queries)
    assert td.count.sum() == sd.count.sum() == slots
    assert (
        (np.isnan(td.mean) == (td.count == 0)).all()
        and td.group_names[-1] == "never met"
        and sd.group_names[-1] == "absent"
    )
    assert sd.group_names[:3] == ["0", "1", "2"]


def test_influence_grid_with_given_bin_edges(run: Run, sample: ScoredSample) -> None:
    model, task = run.evaluation_task()
    whole, _ = influence_by_distance(model, task, sample.positive_queries, edges=[0.0, 1e9])
    assert whole.group_names == ["0–1e+09", "never met"]
    found, _ = influence_by_distance(model, task, sample.positive_queries)
    assert found.count[:-1, :-1].sum() == whole.count[0, 0]
    beyond, _ = influence_by_distance(model, task, sample.positive_queries, edges=[0.0, 1e-9, 2e-9])
    assert beyond.count.sum() == whole.count.sum()  # values beyond the last edge are in the last bin


def test_other_models_have_no_explanations(run: Run, sample: ScoredSample) -> None:
    task = run.evaluation_task()[1]
    other = MODELS["edgebank"].network(MODELS["edgebank"].settings(), edge_dim=0, node_dim=0)
    assert ablate_context_nodes(other, task, sample.positive_queries.take(np.arange(2))) == [[], []]
    assert influence_by_distance(other, task, sample.positive_queries) == []


# --- whole reports ---


# One of each kind: trees, memory, an embedding per node, a rule without parameters.
SMALL_MODELS: dict[str, dict[str, Any]] = {
    "cordgt": {"hidden": 8, "heads": 2, "fanout": "3,2", "epochs": 1},
    "tgn": {"memory_dim": 8, "heads": 2, "epochs": 1},
    "ctdne": {"num_walks": 4, "dim": 8, "epochs": 1},
    "edgebank": {},
}


@pytest.mark.parametrize("model", SMALL_MODELS)
def test_every_kind_of_model_gets_a_report(tmp_path: Path, model: str) -> None:
    small = SMALL_MODELS[model]
    found = train(make_stream(ids=True, name=HOSTILE), model, out=tmp_path / "run", device="cpu", **small)
    parsed = check((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    words = parsed.words
    for title in (
        "Metrics",
        "Training curves",
        "Precision and recall",
        "Over time",
        "By node activity",
        "By novelty",
        "The most",
    ):
        assert title in words
    assert ("By distance" in words) == ("top context nodes" in words) == (model == "cordgt")
    assert ("nothing to train" in words) == (not MODELS[model].network.is_trainable)
    assert f"{100 * found.metrics['test']['transductive']['ap']:.2f}" in words
    assert "alert(" in words  # as text, not as markup


def test_settings_that_differ_from_the_defaults_are_bold(run: Run) -> None:
    page = render_run_report(collect_report_data(run))
    assert "<dt>hidden</dt><dd><strong>8</strong></dd>" in page  # of the model
    assert "<dt>epochs</dt><dd><strong>2</strong></dd>" in page  # of the training
    assert "<dt>lr</dt><dd>0.001</dd>" in page  # the default


def test_difference_from_the_published_dataset_is_a_warning(run: Run) -> None:
    data = collect_report_data(run)

    def lead(*notes: str) -> str:
        stream = replace(data.task.stream, name="uci", notes=notes)
        return render_run_report(replace(data, task=replace(data.task, stream=stream))).split('id="metrics"')[0]

    differs = registry.describe_difference("uci", data.task.stream)
    assert "published: 1899" in lead(differs)
    assert "not read" not in lead("not read: a column")
    assert "published" not in lead()  # somebody's own file of that name


def test_report_shows_dates_and_the_size_of_the_sample(tmp_path: Path) -> None:
    s = make_stream(400)
    days = EventStream.from_columns(s.src, s.dst, (s.t + 20_000) * 86_400_000_000, time=TimeAxis("date"), name="days")
    found = train(days, "edgebank", out=tmp_path / "run", device="cpu", report=False)
    assert not (tmp_path / "run" / "report.html").exists()
    words = check(render_run_report(collect_report_data(found, max_events=20))).words
    assert "20 of the 60 test events" in words and re.search(r"20\d\d-\d\d-\d\d", words)
    assert "evenly spread" not in check(render_run_report(collect_report_data(found, max_events=None))).words


def test_resume_writes_a_missing_report(tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path / "run", "device": "cpu"}
    train(make_stream(), "edgebank", report=False, **options)
    assert not (tmp_path / "run" / "report.html").exists()
    train(make_stream(), "edgebank", resume=True, **options)
    assert (tmp_path / "run" / "report.html").exists()


def test_report_is_deterministic(run: Run) -> None:
    assert render_run_report(collect_report_data(run)) == (run.path / "report.html").read_text(encoding="utf-8")


# --- probabilities ---


def reliability(*bins: tuple[float, float, int], ece: float | None = 0.0123) -> dict[str, Any]:
    """Metrics of one kind of question at one horizon, as in metrics.json."""
    values = {"log_loss": 0.31, "brier": 0.21, "ece": ece}
    return {
        "n": sum(n for _, _, n in bins),
        "share": 0.25,
        **values,
        "bins": [{"predicted": p, "observed": o, "n": n} for p, o, n in bins],
        "baselines": {"constant rate": {"log_loss": 0.4, "brier": 0.3, "ece": 0.001}, HOSTILE: values},
    }


def with_probabilities(data: ReportData, source: dict[str, Any], *, n_times: int = 40) -> ReportData:
    nothing = reliability() | dict.fromkeys(("share", "log_loss", "brier", "ece"))
    row = {"share": 0.01, "horizon": 2.5, "source": source, "pair": nothing}
    baselines = {"Poisson": {"nll": 2.5, "mae": 9.0}, "last gap": {"nll": 3.5, "mae": 7.5}}
    next_event = {"n": n_times, "share_without_next": 0.2, "nll": 3.25, "mae": 8.0, "baselines": baselines}
    metrics = {"calibration": {"horizons": [row], "longest_horizon": 2.0}, "next_event": next_event}
    return replace(data, metrics=RunMetrics(data.metrics | metrics))


def probability_part(markup: str) -> str:
    check(markup)
    return markup.partition('<section id="probabilities">')[2].partition("</section>")[0]


def cells_of_row(markup: str, name: str) -> list[str]:
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', markup)
    return re.findall(r"<td[^>]*>(.*?)</td>", next(cells for title, cells in rows if name in title))


def test_probabilities_are_shown_next_to_the_baselines(run: Run) -> None:
    data = with_probabilities(collect_report_data(run), reliability((0.1, 0.12, 400), (0.6, 0.5, 100)))
    part = probability_part(render_run_report(data))
    assert cells_of_row(part, "within 2.5") == ["0.0123", "0.2100", "0.3100", "25.00"]
    assert cells_of_row(part, "constant rate") == ["0.0010 ▲", "0.3000", "0.4000", ""]  # only its ECE is lower
    assert cells_of_row(part, "cordgt") == ["3.250", "8", "40"]
    assert cells_of_row(part, "Poisson") == ["2.500 ▲", "9", ""]
    assert cells_of_row(part, "last gap") == ["3.500", "7.5 ▲", ""]
    assert "Does a source act?" in part and "Does a pair" not in part  # there are no questions about pairs
    assert "this horizon was not calibrated" in part and "in the unit of the data" in part


def test_reliability_plot_shows_the_size_of_each_bin(run: Run) -> None:
    bins = (0.04, 0.09, 400), (0.5, 0.5, 100), (0.6, 1.0, 29), (0.001, 0.0, 400), (0.999, 1.0, 400)
    data = with_probabilities(collect_report_data(run), reliability(*bins))
    part = probability_part(render_run_report(data))
    assert "29–400 questions per dot" in part
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)" (.*?)><title>(.*?)</title>', part)
    assert ["stroke" in paint for *_, paint, _ in dots] == [False, False, True, True, True]  # few questions or outcomes
    assert float(dots[0][2]) > float(dots[1][2]) > float(dots[2][2])
    assert "forecast 4 %, came true 9 %" in dots[0][4] and "400 questions" in dots[0][4]
    (line,) = re.findall(r'<path class="series"[^>]* d="([^"]*)"', part)
    assert len(re.findall("[ML]", line)) == 2  # no line through the hollow dots
    left, right, bottom = 46, 350, 270  # square roots: 4 % is at 0.2 of the axis
    assert float(dots[0][0]) == pytest.approx(left + 0.2 * (right - left), abs=0.1)
    assert float(dots[0][1]) == pytest.approx(bottom - 0.3 * (bottom - 20), abs=0.1)
    assert f'<line class="mark" x1="{left:.1f}" x2="{right:.1f}" y1="{bottom:.1f}" y2="20.0"/>' in part  # the diagonal


def test_runs_without_probabilities_have_no_such_section(run: Run, tmp_path: Path) -> None:
    data = collect_report_data(run)
    assert "calibration" in data.metrics
    nothing = reliability() | dict.fromkeys(("share", "log_loss", "brier", "ece"))
    without = {k: v for k, v in data.metrics.items() if k not in ("calibration", "next_event")}
    for one in (with_probabilities(data, nothing, n_times=0), replace(data, metrics=RunMetrics(without))):
        markup = render_run_report(one)
        assert "How likely" not in check(markup).words and "#probabilities" not in markup
    other = train(make_stream(), "edgebank", out=tmp_path / "b", device="cpu", report=False, activity=False)
    assert "How likely" not in check(render_run_report(collect_report_data(other))).words


def test_horizons_that_are_too_long_for_the_test_period_are_named(run: Run) -> None:
    data = with_probabilities(collect_report_data(run), reliability((0.1, 0.1, 400)))
    first = data.metrics["calibration"]["horizons"][0]
    elapsed = data.task.stream.elapsed
    period = float(elapsed[-1] - elapsed[data.task.split.test[0] - 1])
    nothing = first["pair"]
    rows = [first | {"horizon": period / 2}, first | {"horizon": 2 * period, "source": nothing}]
    metrics = data.metrics | {"calibration": {"horizons": rows}}
    part = probability_part(render_run_report(replace(data, metrics=RunMetrics(metrics))))
    assert f"2.0 times as long as the horizon of {period / 2:.6g}" in part
    assert f"too short for questions about {2 * period:.6g}" in part
    assert cells_of_row(part, f"within {2 * period:.6g}") == ["–"] * 4


def test_a_trained_run_shows_its_probabilities(run: Run) -> None:
    part = probability_part((run.path / "report.html").read_text(encoding="utf-8"))
    row = run.metrics["calibration"]["horizons"][0]["source"]
    assert [f"{row[key]:.4f}" for key in ("ece", "brier", "log_loss")] == cells_of_row(part, "within")[:3]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("calibration",), []),
        (("calibration", "horizons"), {}),
        (("calibration", "horizons", 0), None),
        (("calibration", "horizons", 0, "horizon"), "7d"),
        (("calibration", "horizons", 0, "source"), 3),
        (("calibration", "horizons", 0, "pair", "ece"), "0.1"),
        (("calibration", "horizons", 0, "source", "n"), -1),
        (("calibration", "horizons", 0, "source", "share"), True),
        (("calibration", "horizons", 0, "source", "bins"), None),
        (("calibration", "horizons", 0, "source", "bins", 0), [1]),
        (("calibration", "horizons", 0, "source", "bins", 0, "predicted"), None),
        (("calibration", "horizons", 0, "source", "bins", 0, "observed"), 1.5),
        (("calibration", "horizons", 0, "source", "baselines"), []),
        (("calibration", "horizons", 0, "source", "baselines", "constant rate"), 1),
        (("calibration", "longest_horizon"), "long"),
        (("next_event", "nll"), "low"),
        (("next_event", "baselines", "Poisson", "mae"), {}),
        (("next_event", "n"), None),
    ],
)
def test_wrong_types_of_probability_metrics_are_named(run: Run, path: tuple[Any, ...], value: Any) -> None:
    metrics = RunMetrics.from_json(run.metrics.to_json())
    check_metrics(metrics)
    table: Any = metrics
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    key = str(path[-1]) if isinstance(path[-1], str) else f"[{path[-1]}]"
    with pytest.raises(ValueError, match=f"{re.escape(key)}' must be"):
        check_metrics(metrics)


# --- several runs ---


def test_comparison_shows_runs_side_by_side(run: Run, tmp_path: Path) -> None:
    other = train(make_stream(), "popularity", out=tmp_path / "b", device="cpu", report=False)
    runs = {"first": collect_report_data(run), HOSTILE: collect_report_data(other)}
    words = check(render_comparison(runs)).words
    for phrase in (
        "2 runs on some",
        "95 % interval",
        "Precision and recall",
        "By novelty",
        "popularity",
        "difference to first",
    ):
        assert phrase in words
    assert comparability_warnings(runs) == [] and "do not compare" not in words
    assert "± " not in words.partition("Curves")[0]


def test_baseline_above_every_run_is_named_first(run: Run) -> None:
    def runs(ap: float) -> dict[str, ReportData]:
        metrics = RunMetrics.from_json(run.metrics.to_json())
        metrics["baselines"]["seen before"]["test"]["transductive"]["ap"] = ap
        return dict.fromkeys(("a", "b"), replace(collect_report_data(run), metrics=metrics))

    own = f"{100 * run.metrics['test']['transductive']['ap']:.2f}"
    words = check(render_comparison(runs(0.9999))).words
    assert "A trivial baseline does better: “seen before” reaches a test AP of 99.99 %" in words
    assert f"a has the highest test AP: {own} %" in words
    assert "99.99 ▲" in words and "▲: a trivial baseline is above every run" in words
    metrics = RunMetrics(run.metrics, baselines={})
    assert (
        "trivial"
        not in check(render_comparison(dict.fromkeys("ab", replace(collect_report_data(run), metrics=metrics)))).words
    )


def test_no_line_of_a_dot_plot_crosses_its_text() -> None:
    axis = Axis("x", 0.0, 1.0, [(0.0, "0"), (0.5, "half"), (1.0, "1")])
    markup = dot_plot(
        [DotRow("popularity", 0.3, label="30 %"), DotRow("seen before", 0.9, label="90 %")], axis, alt="", reference=0.4
    )
    words = [float(y) for y in re.findall(r'<text [^>]*y="([\d.]+)"', markup)]
    lines = [(float(y), float(y) + float(h)) for y, h in re.findall(r"M[\d.]+ ([\d.]+)v([\d.]+)", markup)]
    assert len(lines) == 8 and "<line" not in markup  # three ticks and the reference, next to two rows
    assert not [1 for y in words for top, bottom in lines if top < y + 3 and bottom > y - 9]


@pytest.mark.parametrize(("y", "high"), [([0.9, 0.5, 0.1], True), ([0.1, 0.5, 0.9], False), ([], False)])
def test_marker_label_avoids_the_line(y: list[float], high: bool) -> None:
    chart = line_chart(
        [Series("loss", [1.0, 2.0, 3.0][: len(y)], y)], Axis("", 1, 3), Axis("", 0, 1), marker=(3.0, "kept"), alt=""
    )
    found = re.search(r'y="([0-9.]+)"[^>]*>kept<', chart)
    assert found is not None and (float(found[1]) < 60) == high


def test_runs_that_differ_in_seed_have_a_mean(run: Run, tmp_path: Path) -> None:
    other = train(make_stream(), seed=1, out=tmp_path / "b", device="cpu", report=False, **(TINY | {"epochs": 2}))
    words = check(render_comparison({"a": collect_report_data(run), "b": collect_report_data(other)})).words
    values = [100 * r.metrics["test"]["transductive"]["ap"] for r in (run, other)]
    assert f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" in words


def test_other_data_and_other_protocols_give_warnings(run: Run, tmp_path: Path) -> None:
    data = train(make_stream(seed=5, name="else"), "edgebank", out=tmp_path / "b", device="cpu", report=False)
    rule = train(make_stream(), "edgebank", out=tmp_path / "c", device="cpu", report=False, visibility="batch")
    words = check(
        render_comparison(
            {"a": collect_report_data(run), "b": collect_report_data(data), "c": collect_report_data(rule)}
        )
    ).words
    assert "different data: a on some (150 events), b on else (150 events)" in words
    assert "protocols that differ in visibility (event and batch)" in words
    assert "95 % interval" not in words and "Over time" not in words
