"""MkDocs hooks: the version in the footer, the changelog as a page, and the tutorials' notebooks as pages."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version in the footer."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    config.copyright = f"CorDGT {version}, MIT licence"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=changelog.replace("](docs/", "](")))
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")):
        page, images = notebook_page(path)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=page))
        for name, content in images.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links to files of the repository, which work in plain Markdown, into links to the site's pages."""
    return re.sub(r"\]\((tutorials/[\w-]+)\.ipynb\)", r"](\1.md)", markdown).replace("](../CHANGELOG.md)", "](changelog.md)")


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its images by file name."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts.append(_output(output, path.stem, images))
    first, *others = parts
    title, _, text = first.partition("\n")
    link = f"*Download the [notebook]({path.name}).*"
    return "\n\n".join([title, text.strip(), link, *others]) + "\n", images


def _output(output: dict[str, Any], stem: str, images: dict[str, bytes]) -> str:
    """Return one output of a cell as Markdown; an image is added to ``images``."""
    if output["output_type"] == "stream":
        return _text(output["text"])
    data = output["data"]
    if "image/png" in data:
        name = f"{stem}-{len(images) + 1}.png"
        images[name] = base64.b64decode("".join(data["image/png"]))
        alt = "".join(data.get("text/plain", "figure"))
        return f"![{alt}]({name})"
    return _text(data["text/plain"])


def _text(lines: list[str] | str) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", "".join(lines)).rstrip()
    return f'<div class="notebook-output" markdown>\n\n```text\n{text}\n```\n\n</div>'
