"""Layers: a module imports only from modules to its left in ORDER."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

import cordgt

# Modules from left to right, in the direction of the data flow. The modules of a package are contiguous, so that
# packages too import only from packages to their left.
ORDER = """
    errors imports plugins callbacks locks files runtime runtime.limits runtime.threads runtime.launch
    runtime.distributed runtime.profiling runtime.phase_times runtime.signals runtime.worker_processes
    runtime.kernel_loader
    events events.arrays events.id_table events.ids events.date_formats events.time_precision events.times
    events.columns events.backing events.notes events.frames events.fingerprints events.stream events.durations
    events.export events.describe
    history history.kernels history.kernels.index_arrays history.kernels.rng history.kernels.trees
    history.kernels.pair_features history.kernels.collaborative history.rng history.index_builder history.index
    history.growing history.rhythm history.activity history.context history.distinct_slots history.recent
    history.walks history.cooccurrence history.distance history.queries
    history.pair_features history.collaborative_loops history.collaborative history.likeness history.votes
    history.pair_columns
    store store.arrays store.description store.check_cache store.index_writer store.consistency store.masked_index
    store.store store.source store.staging store.batches store.external_sort store.build store.append
    io io.column_names io.zip_files io.time_parser io.tables io.frames io.open_table io.time_column io.column_roles
    io.bad_rows io.node_features io.published_files io.objects io.readers io.column_options io.groups io.file_chunks
    io.event_chunks io.folders
    io.datasets io.datasets.synthetic io.datasets.twins io.datasets.registry io.datasets.download io.datasets.archives
    io.datasets.gowalla io.datasets.tgb io.datasets.sources io.datasets.fetch io.convert
    nn.kernels nn.kernels.dropout nn.kernels.sums nn.kernels.sinusoids nn.kernels.tokens nn.kernels.attention
    nn.kernels.norm nn.kernels.feed_forward nn.kernels.encoder nn.dropout nn.cpu_loops nn.cpu_encoder
    nn.folded_encoder nn.positional_encoding
    nn.time_encoding nn.layers nn.graph_attention nn
    models.activity models.activity_fit models.activity_rhythm
    models.base models.identities models.two_tower models.counts models.cordgt models.cordgt_plus models.edgebank
    models.popularity models.item_knn models.als models.cawn models.dygformer models.graphmixer models.tcl models.tgat
    models.tgsrec models.memory models.tgn models.dyrep models.jodie models.ctdne models.presets models tasks
    tasks.split tasks.negatives tasks.hidden_candidates tasks.negative_pairs tasks.protocol tasks.benchmarks
    tasks.metrics tasks.ties
    tasks.blend_weight tasks.run_metrics tasks.recommendation_metrics tasks.histories tasks.link tasks.candidate_filter
    tasks.scoring tasks.pair_scores
    tasks.link_evaluation tasks.node tasks.baselines tasks.probability tasks.calibration tasks.time_grid
    tasks.questions tasks.perfect_ece tasks.drift tasks.forecast_loops tasks.forecast tasks.forecast_metrics
    training training.settings training.run_checks
    training.run_checksums training.run_history training.run_config training.tensor_files training.run_folder
    training.devices training.model_factory training.blend training.optimizer
    training.step training.oom training.evaluation
    training.time_estimate training.checkpoint training.side_process training.trainer training.phases
    training.tensorboard
    training.output_folder training.versions
    inference inference.id_lists inference.retrieval inference.retrieval.destinations inference.retrieval.neighborhood
    inference.retrieval.gatherers inference.retrieval.neighbor_features inference.retrieval.first_scorer
    inference.retrieval.pair_table inference.retrieval.cuda_graph_scores inference.retrieval.ranking
    inference.retrieval.budget
    inference.predictor inference.forecasts inference.answers inference.similar inference.first_scorer_file
    inference.run_loading inference.run_evaluation inference.run_recommendations inference.run_arguments
    inference.prefetched_history inference.run inference.recommend_batch inference.part_files inference.recommend_all
    inference.recommend_workers inference.ray
    analysis analysis.table_files analysis.exporters analysis.recommendation_tables analysis.remarks
    analysis.audit analysis.audit.checks
    analysis.audit.perturbations analysis.audit.model analysis.audit.forecasts analysis.audit.data analysis.compare
    analysis.report analysis.report.html analysis.report.charts analysis.report.sample analysis.report.influence
    analysis.report.data analysis.report.plots analysis.report.explanations analysis.report.probabilities
    analysis.report.run_report analysis.report.comparison_report
    workflows workflows.train workflows.seed_processes workflows.seeds workflows.search workflows.node_classification
    workflows.upgrade
    serving serving.errors serving.event_batch serving.event_log serving.sqlite_log serving.postgres_log
    serving.live_history serving.questions serving.answerer serving.model_store serving.forecast_answers serving.quality
    serving.replay serving.retraining serving.time_limit
    serving.engine serving.committer serving.service serving.telemetry serving.security serving.history_view
    serving.page serving.app serving.server
    experiments experiments.bench experiments.bench.timing experiments.bench.hardware experiments.bench.rows
    experiments.bench.setup experiments.bench.step_parts experiments.bench.stages experiments.bench.suite
    experiments.bench.recommendation
    experiments.bench.scaling experiments.bench.multiprocess experiments.bench.report
    experiments.paper experiments.published_results experiments.cells experiments.provenance experiments.heatmap_data
    experiments.cost_growth experiments.tgb_evaluator experiments.hard_negatives experiments.partner_ranking
    experiments.retrieval_measurement experiments.measurements
    experiments.scheduler experiments.tables experiments.plots experiments.link experiments.paper_protocol
    experiments.node experiments.ablation experiments.anchors experiments.beyond experiments.ranking
    experiments.new_partners experiments.retrieval experiments.calibration experiments.sensitivity
    experiments.scalability experiments.time_to_accuracy experiments.heatmap experiments.complexity
    experiments.statistics experiments.catalogue experiments.estimates
    cli.console cli.answers cli.writers cli.demo cli.options cli.distributed cli.resume cli.loading cli.node
    cli.training cli.evaluation cli.recommend_all cli.inference cli.forecast cli.similar cli.data cli.store cli.fetch
    cli.report cli.reproduce cli.bench cli.info cli.upgrade cli.serve
    cli
    __main__
""".split()

ROOT = Path(cordgt.__file__).parent
FRONT = "__init__"  # imports lazily what people ask for, from anywhere


def modules() -> dict[str, Path]:
    """Path of every module by its dotted name below ``cordgt``. A package has the name of its folder."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and module of every import of ``cordgt`` in a file: at the top, inside functions, under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            base = node.module or ""
            inner = [f"{base}.{alias.name}" for alias in node.names]
            # ``from cordgt.history import rng`` names a module, ``from cordgt.history.rng import fold_in`` a name in it
            names = [name if name.removeprefix("cordgt.") in known else base for name in inner]
        else:
            continue
        for name in names:
            if name.startswith("cordgt."):
                yield node.lineno, name.removeprefix("cordgt.")


def test_every_module_has_its_place() -> None:
    found = set(modules()) - {FRONT}
    assert found - set(ORDER) == set(), "give it a place in ORDER"
    assert set(ORDER) - found == set(), "it is gone: take it out of ORDER"
    assert len(ORDER) == len(set(ORDER))


def test_modules_of_a_package_are_contiguous() -> None:
    stretches = [package for package, _ in groupby(m.partition(".")[0] for m in ORDER)]
    assert len(stretches) == len(set(stretches))


@pytest.mark.parametrize("name", [m for m in ORDER if m in modules()])
def test_module_imports_only_from_its_left(name: str) -> None:
    path, known = modules()[name], set(modules())
    left = set(ORDER[: ORDER.index(name)])
    wrong = [f"line {line}: {other}" for line, other in imports(path, known) if other not in left]
    assert wrong == [], f"{path.name} imports from its right"


@pytest.mark.parametrize("name", modules())
def test_names_imported_from_cordgt_exist(name: str) -> None:
    """``cordgt.__getattr__`` imports lazily, so mypy does not find a wrong name."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    front = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "cordgt"]
    assert {alias.name for node in front for alias in node.names} <= {*modules(), *cordgt.__all__}


@pytest.mark.parametrize("name", modules())
def test_slow_libraries_are_imported_where_they_are_used(name: str) -> None:
    """Importing them takes a second, and a command that asks one question needs none of them."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    slow = {"sklearn", "scipy", "pandas", "matplotlib", "ray", "uvicorn", "starlette"}
    names = [a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names]
    names += [str(n.module) for n in tree.body if isinstance(n, ast.ImportFrom)]
    assert not {full.partition(".")[0] for full in names} & slow or name.startswith("serving.")


@pytest.mark.parametrize("name", modules())
def test_no_relative_imports(name: str) -> None:
    """The layer test does not see relative imports."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level > 0]


@pytest.mark.parametrize(
    "name",
    [
        "errors",
        "callbacks",
        "events.stream",
        "events.describe",
        "io.readers",
        "io.datasets.registry",
        "io.datasets.synthetic",
        "cli.console",
        "tasks.run_metrics",
        "inference.prefetched_history",
        "analysis.remarks",
    ],
)
def test_data_needs_no_torch(name: str) -> None:
    """What only reads, describes or prints does not wait for torch."""
    assert "torch" not in set(_outside(name))


def _outside(name: str) -> Iterator[str]:
    """Top-level packages that a module and what it imports of ours load."""
    todo, seen = [name], set()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        path = modules()[module]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:  # at the top: what stands in a function is loaded when it is needed
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield (node.module or "").partition(".")[0]
        todo += [other for _, other in imports(path, set(modules()))]


def test_there_is_no_drawer_for_odds_and_ends() -> None:
    assert not {"utils", "util", "helpers", "common", "misc"} & {m.rpartition(".")[2] for m in modules()}


def test_train_stays_a_function_after_the_package_was_used() -> None:
    """A module of the same name would take its place on the package once it is imported."""
    import cordgt.workflows.train  # imports the trainer

    assert callable(cordgt.train)
    assert cordgt.train is cordgt.workflows.train.train
    assert not set(cordgt.__all__) & set(modules())
