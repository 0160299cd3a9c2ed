"""The built wheel and sdist: what they contain, and that the installed package works and is typed.

`make test-wheel` builds both, installs the wheel in an environment of its own, and runs these tests there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import pytest

import cordgt

ROOT = Path(__file__).parents[2]
DIST = os.environ.get("CORDGT_DIST")  # the folder of the wheel and the sdist
pytestmark = pytest.mark.skipif(DIST is None, reason="`make test-wheel` builds the wheel and runs these tests")
PACKAGE = ROOT / "src" / "cordgt"
# Every file of the package that is not a module, by its path in the package.
PACKAGE_DATA = {
    p.relative_to(PACKAGE).as_posix()
    for p in PACKAGE.rglob("*")
    if p.is_file() and p.suffix != ".py" and "__pycache__" not in p.parts
}


def one_file(pattern: str) -> Path:
    (found,) = Path(DIST or "").glob(pattern)
    return found


def test_the_installed_package_is_tested_not_the_source() -> None:
    assert ROOT / "src" not in Path(cordgt.__file__).parents
    assert cordgt.__version__ == metadata("cordgt")["Version"]


def test_the_wheel_holds_every_module_and_its_data() -> None:
    names = {k for k in zipfile.ZipFile(one_file("*.whl")).namelist() if ".dist-info/" not in k}
    source = {f"cordgt/{p.relative_to(PACKAGE).as_posix()}" for p in PACKAGE.rglob("*.py")}
    assert {"py.typed", "experiments/paper.json"} <= PACKAGE_DATA
    assert names == source | {f"cordgt/{name}" for name in PACKAGE_DATA}


def test_the_sdist_holds_every_module_and_its_data() -> None:
    with tarfile.open(one_file("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/cordgt/{name}" for name in PACKAGE_DATA} <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert {p.relative_to(ROOT).as_posix() for p in (ROOT / "src").rglob("*.py")} <= names


def test_python_versions_of_the_metadata() -> None:
    about = metadata("cordgt")
    assert about["Requires-Python"] == ">=3.11"
    classifiers = about.get_all("Classifier") or []
    assert {f"Programming Language :: Python :: 3.{k}" for k in (11, 12, 13)} <= set(classifiers)
    assert "Typing :: Typed" in classifiers


def test_the_command_is_installed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cordgt", "data", "describe", "events.csv"]
    (tmp_path / "events.csv").write_text("src,dst,time\na,b,1\nb,c,2\n")
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "nodes" in result.stdout


def test_the_typed_example_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "typed_example.py"), str(tmp_path)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "test AP" in result.stdout


def test_the_examples_are_strictly_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    # pyarrow and calls of torch modules are untyped, so the other examples cannot pass
    names = ("typed_example.py", "plugins/win_rate.py", "plugins/popular_negatives.py")
    examples = [str(ROOT / "examples" / name) for name in names]
    options = ["--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "--python-executable", sys.executable]
    result = subprocess.run([*command, *examples], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Success" in result.stdout
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import cordgt\nrun: int = cordgt.Run.load('x')\nstream = cordgt.read_events('x', source='a')\n")
    result = subprocess.run([*command, str(wrong)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'expression has type "Run", variable has type "int"' in result.stdout
    assert "[call-arg]" in result.stdout or "[call-overload]" in result.stdout or "[misc]" in result.stdout
