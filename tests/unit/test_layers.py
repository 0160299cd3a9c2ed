"""A module imports only from what stands left of it in the way of the data. One list says the order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

import cordgt

# From left to right. Modules in one line do not know each other unless they stand in that order.
# A package is one stretch of it, so that packages too know only those to their left.
ORDER = """
    errors callbacks files arrays
    events events.vocabulary events.ids events.times events.stream events.fingerprints events.writing events.describe
    store store.growing store.folder store.index_files store.hidden_index store.source
    conversion conversion.staging conversion.ordering conversion.build conversion.append
    reading reading.usual_names reading.tables reading.opening reading.roles reading.node_features reading.published
    reading.readers reading.columns reading.pieces reading.chunks reading.folders
    datasets datasets.synthetic datasets.twins datasets.by_name
    datasets.download datasets.archives datasets.gowalla datasets.sources datasets.fetch
    conversion.convert
    kernels kernels.draws kernels.dropout kernels.past kernels.proximity kernels.waves kernels.tokens
    kernels.attention kernels.norm kernels.encoder
    past past.draws past.index past.context past.recent past.walks past.cooccurrence past.distance past.history
    past.proximity
    models.attention models.encoding
    models.base models.cosines models.parts models.two_tower models.cordgt models.cordgt_plus models.edgebank
    models.popularity models.counts models.cawn models.dygformer models.graphmixer models.tcl models.tgat models.tgsrec
    models.graph_attention models.memory models.tgn models.dyrep models.jodie models.ctdne models
    machine machine.threads machine.processes machine.launch machine.counting machine.stopping
    tasks tasks.split tasks.negatives tasks.protocol tasks.metrics tasks.run_metrics tasks.link tasks.node tasks.floors
    settings run
    training training.devices training.network training.step training.out_of_memory training.figures
    training.checkpoint training.loop training.tensorboard training.out_folder
    predict
    report report.remarks report.page report.charts report.asked report.drivers report.look report.why report.one
    api seeds search
    audit audit.checks audit.changes audit.model audit.data
    compare report.several classify
    bench bench.timing bench.machine bench.rows bench.place bench.parts bench.stages
    bench.suite bench.growth bench.shared bench.report
    experiments experiments.paper experiments.others experiments.cells experiments.provenance experiments.heat
    experiments.grow experiments.hard
    experiments.measures experiments.work experiments.tables experiments.plots experiments.link experiments.node
    experiments.ablation experiments.beyond experiments.ranking
    experiments.sensitivity experiments.scalability experiments.heatmap experiments.complexity
    experiments.statistics experiments.catalogue experiments.outlook
    cli.console cli.answers cli.demo cli.options cli.processes cli.parts cli.node cli.training cli.figures cli.asking
    cli.data cli.store cli.fetch cli.report cli.reproduce cli.others cli
    __main__
""".split()

ROOT = Path(cordgt.__file__).parent
FRONT = "__init__"  # imports lazily what people ask for, from anywhere
APART = {
    "report.several",  # shows what `compare` finds, for which a run is asked; and a run's own report is `report.one`
    "conversion.convert",  # needs `reading` and `datasets`; the rest of `conversion` does not
}


def modules() -> dict[str, Path]:
    """Every module of the package by its name below ``cordgt``; a package by the name of its folder."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and module of every import of ours in a file, wherever it stands: at the top, in a function, for types."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            base = node.module or ""
            inner = [f"{base}.{alias.name}" for alias in node.names]
            # ``from cordgt.past import draws`` names a module, ``from cordgt.past.draws import mix`` something in one
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


def test_a_package_is_one_stretch_of_the_way() -> None:
    stretches = [package for package, _ in groupby(m.partition(".")[0] for m in ORDER if m not in APART)]
    assert len(stretches) == len(set(stretches))


@pytest.mark.parametrize("name", [m for m in ORDER if m in modules()])
def test_module_imports_only_from_its_left(name: str) -> None:
    path, known = modules()[name], set(modules())
    left = set(ORDER[: ORDER.index(name)])
    wrong = [f"line {line}: {other}" for line, other in imports(path, known) if other not in left]
    assert wrong == [], f"{path.name} imports from its right"


@pytest.mark.parametrize("name", modules())
def test_what_is_taken_from_the_front_is_there(name: str) -> None:
    """The front answers for any name until it is asked, so mypy cannot tell, nor whoever imports within a function."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    front = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "cordgt"]
    assert {alias.name for node in front for alias in node.names} <= {*modules(), *cordgt.__all__}


@pytest.mark.parametrize("name", modules())
def test_no_relative_imports(name: str) -> None:
    """They would escape the test above, and read worse."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level > 0]


@pytest.mark.parametrize(
    "name",
    [
        "errors",
        "callbacks",
        "events.stream",
        "events.describe",
        "reading.readers",
        "datasets.by_name",
        "datasets.synthetic",
        "cli.console",
        "tasks.run_metrics",
        "report.remarks",
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
    import cordgt.api  # which imports the loop

    assert callable(cordgt.train)
    assert cordgt.train is cordgt.api.train
    assert not set(cordgt.__all__) & set(modules())
