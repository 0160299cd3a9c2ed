"""MkDocs hooks: the version in the footer; pages made of the changelog, the tutorials' notebooks and the errors."""

from __future__ import annotations

import ast
import base64
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
ERRORS = ("CordgtError", "DataError", "RunError", "SettingError", "StoreError")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version in the footer."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    config.copyright = f"CorDGT {version}, MIT licence"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=changelog.replace("](docs/", "](")))
    files.append(File.generated(config, "messages.md", content=messages_page()))
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")):
        page, images = notebook_page(path)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=page))
        for name, content in images.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def error_messages(source: str) -> list[str]:
    """Return the messages of the errors that a module raises, with "…" for a value."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            name, text = getattr(node.exc.func, "id", ""), node.exc.args[0]
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            message = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            if name in ERRORS and re.search(r"\w{4}", message):
                found.append(" ".join(message.split()))
    return found


def messages_page() -> str:
    """Return a page with every error message of the package, so that the site's search finds it."""
    texts = [
        "# All error messages",
        "Each message says what was wrong, where, and what to do. `…` stands for a value. [Questions and "
        "errors](troubleshooting.md) has reasons, and what to do.",
    ]
    package = ROOT / "src" / "cordgt"
    for part in sorted(path for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()):
        modules = [part] if part.suffix == ".py" else sorted(part.rglob("*.py"))
        messages = [text for path in modules for text in error_messages(path.read_text(encoding="utf-8"))]
        if messages:
            texts.append(f"## `cordgt.{part.stem}`")
            texts.append("\n".join(f"- ``{text}``" for text in dict.fromkeys(sorted(messages))))
    return "\n\n".join(texts) + "\n"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links to files of the repository, which work in plain Markdown, into links to the site's pages."""
    return re.sub(r"\]\((tutorials/[\w-]+)\.ipynb\)", r"](\1.md)", markdown).replace(
        "](../CHANGELOG.md)", "](changelog.md)"
    )


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
