"""Run the notebooks of ``docs/tutorials`` and store their outputs: ``python docs/tools/run_notebooks.py [NAME ...]``.

The cells of a notebook run in this process, in a temporary folder. Printed text, the value of a last expression and
figures become outputs. The tests call `run_notebook` with ``small=True``, which replaces ``# small: ...`` lines.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


def shrink(source: str) -> str:
    """Return a cell in its small form: the part after ``# small:`` replaces the value of its line."""
    return re.sub(r"^(\w+ = ).*?  # small: (.+)$", r"\1\2", source, flags=re.MULTILINE)


def run_notebook(path: Path, *, small: bool = False) -> dict[str, Any]:
    """Run a notebook in the current folder and return it with new outputs."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            source = "".join(cell["source"])
            cell["execution_count"] = number
            cell["outputs"] = _run_cell(
                shrink(source) if small else source, f"{path.name}, cell {number}", names, number
            )
    return notebook


def _run_cell(source: str, name: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    for figure in map(pyplot.figure, pyplot.get_fignums()):
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=80, metadata={"Software": None})
        alt = figure.get_label() or "figure"
        data = {"image/png": base64.b64encode(image.getvalue()).decode(), "text/plain": [alt]}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    pyplot.close("all")
    if value is not None and not outputs[1:]:
        text = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": text})
    return outputs


def main(names: list[str]) -> None:
    """Run the named notebooks, or all."""
    paths = [TUTORIALS / f"{name}.ipynb" for name in names] or sorted(TUTORIALS.glob("*.ipynb"))
    for path in paths:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["COLUMNS"] = "100"
            sys.path.insert(0, str(ROOT / "examples"))
            notebook = run_notebook(path)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
