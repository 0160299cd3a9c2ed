"""HTML of a report page: one file that loads nothing and runs nothing, readable on a phone, in the dark and on paper.

Every value from the user's data passes through `text`, which escapes it. Markup has the type `Html`, so that the two
cannot be confused: a function that gets a plain string escapes it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MAX_ID_LENGTH = 80  # characters of a user's id or name that are shown
DASH = "–"  # stands for a missing value
CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]"
)  # all but tab and newline; surrogates too


class Html(str):
    """Markup that goes into a page unchanged."""


def text(value: Any, max_length: int | None = None) -> Html:
    """Escape a value for a page or a quoted attribute; control characters become �, None a dash."""
    if isinstance(value, Html):
        return value
    plain = DASH if value is None else str(value)
    if max_length is not None and len(plain) > max_length:
        plain = f"{plain[: max_length - 1]}…"
    return Html(html.escape(CONTROL_CHARACTERS.sub("�", plain), quote=True))


def prose(value: Any) -> Html:
    """Escape a value as `text` does, and set words between backticks as code."""
    return value if isinstance(value, Html) else Html(re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value)))


def narrow_label(label: str) -> Html:
    """Label that is shown only on narrow screens, where a table is stacked and has no header."""
    return Html(f'<small class="narrow">{text(label)} </small>')


def user_id(value: Any) -> Html:
    """A user's own id, isolated so that right-to-left text in it cannot reorder the text around it."""
    return Html(f'<bdi class="id" title="{text(value, 1000)}">{text(value, MAX_ID_LENGTH)}</bdi>')


def join(parts: Iterable[Any], separator: str = "") -> Html:
    return Html(separator.join(text(part) for part in parts))


def heading(title: str) -> Html:
    return Html(f"<h3>{text(title)}</h3>")


def paragraph(*parts: Any, css: str = "") -> Html:
    """A paragraph; ``css`` is a class of the style sheet, such as "how" for how to read a plot."""
    return Html(f"<p{_class(css)}>{join(map(prose, parts))}</p>")


@dataclass(frozen=True)
class PageSection:
    """A section of a page, and the link to it at the top of the page."""

    anchor: str
    link: str
    html: Html


def section(title: str, *parts: Any, anchor: str, link: str = "") -> PageSection:
    """A section with a heading. ``link`` is a shorter title for the link to it."""
    content = f'<section id="{text(anchor)}"><h2>{text(title)}</h2>{join(parts)}</section>'
    return PageSection(anchor, link or title, Html(content))


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]], *, css: str = "", caption: str = "") -> Html:
    """A table that scrolls on narrow screens. Numbers are aligned right."""
    head = join(Html(f'<th scope="col"{_class(_alignment(cell))}>{text(cell)}</th>') for cell in header)
    body = join(Html(f"<tr>{join(_cell(i, cell) for i, cell in enumerate(row))}</tr>") for row in rows)
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    content = f"<table{_class(css)}>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return Html(f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption or "table")}">{content}</div>')


def definition_list(rows: Iterable[tuple[Any, Any]]) -> Html:
    return Html(f"<dl>{join(Html(f'<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>') for k, v in rows)}</dl>")


def details(summary: str, *parts: Any) -> Html:
    """A part that is folded until the reader opens it."""
    return Html(f"<details><summary>{text(summary)}</summary>{join(parts)}</details>")


def figure(chart: Html, caption: str) -> Html:
    return Html(f"<figure>{chart}<figcaption>{text(caption)}</figcaption></figure>")


def side_by_side(*figures: Html) -> Html:
    """Figures next to each other if the screen is wide enough."""
    return Html(f'<div class="plots">{join(figures)}</div>')


def cards(rows: Iterable[tuple[Any, Any, Any]]) -> Html:
    """The main numbers of the page: name, number and remark of each."""
    made = (
        Html(f'<div class="card"><span>{text(k)}</span><strong>{text(v)}</strong><small>{text(s)}</small></div>')
        for k, v, s in rows
    )
    return Html(f'<div class="cards">{join(made)}</div>')


def warning(*parts: Any) -> Html:
    return Html(f'<p class="warning" role="note"><strong>Note.</strong> {join(map(prose, parts))}</p>')


def page(title: str, *parts: Any, sections: Sequence[PageSection] = ()) -> str:
    """The whole file: a heading, ``parts``, links to the sections, and the sections.

    Its content security policy forbids scripts and every network request.
    """
    from cordgt import __version__

    links = join(Html(f"<a href=#{text(one.anchor)}>{text(one.link)}</a>") for one in sections)
    body = join([*parts, Html(f"<nav>{links}</nav>"), *(one.html for one in sections)], "\n")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<link rel="icon" href="data:,">\n<title>{text(title, MAX_ID_LENGTH)}</title>\n<style>{STYLE}</style>\n'
        f"</head>\n<body>\n<main>\n<h1>{text(title, MAX_ID_LENGTH)}</h1>\n{body}\n</main>\n"
        f"<footer>Written by cordgt {__version__}. This file needs no network.</footer>\n</body>\n</html>\n"
    )


def _cell(column: int, cell: Any) -> Html:
    if column == 0:
        return Html(f'<th scope="row">{text(cell)}</th>')
    return Html(f"<td{_class(_alignment(cell))}>{text(cell)}</td>")


def _alignment(cell: Any) -> str:
    """The class "number" (aligned right) for text that looks like a number, otherwise none."""
    plain = "" if isinstance(cell, Html) else str(cell)
    return "number" if plain and (plain[0].isdigit() or plain[0] in "+−-–") else ""


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


# Each color scheme defines its colors once. Series also differ by dashes, for print and for color-blind readers.
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2024; --soft: #5d6670; --line: #d9dee3; --panel: #f5f7f9;
  --warn: #fff4d6; --warn-line: #c98a00; --s0: #0067b8; --s1: #c2410c; --s2: #00795f; --s3: #9333a8; --s4: #8a6d00;
  --s5: #be185d; --s6: #3f6212; --s7: #475569; --plus: #0067b8; --minus: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e7eaed; --soft: #a3adb7; --line: #343c44;
  --panel: #1c2228; --warn: #3a2f10; --warn-line: #e0a526; --s0: #5cb3ff; --s1: #ff9a62; --s2: #4fd1ae; --s3: #d69bff;
  --s4: #e3c64b; --s5: #ff8fbe; --s6: #a3d65c; --s7: #b4c0cd; --plus: #5cb3ff; --minus: #ff9a62; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; -webkit-text-size-adjust: 100%; }
main, footer { max-width: 66rem; margin: 0 auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.25rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
p { margin: .5rem 0; max-width: 46rem; overflow-wrap: anywhere; }
.how, figcaption, caption, small, footer { color: var(--soft); font-size: .875rem; }
.lead { font-size: 1.1rem; }
a { color: var(--s0); }
nav { font-size: .875rem; color: var(--soft); }
nav a { display: inline-block; padding: .25rem .75rem .25rem 0; }
footer { margin-top: 3rem; padding-bottom: 2rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.card span, .card small { display: block; color: var(--soft); font-size: .8rem; }
.card strong { display: block; font-size: 1.5rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.warning { background: var(--warn); border-left: 4px solid var(--warn-line); padding: .6rem .8rem; max-width: none; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .1rem 1.5rem; margin: .5rem 0; }
dl div { display: flex; justify-content: space-between; gap: 1rem; border-bottom: 1px solid var(--line);
  padding: .2rem 0; }
dt { color: var(--soft); } dd { margin: 0; text-align: right; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 1rem 2rem; }
figure { margin: .75rem 0; min-width: 0; }
svg { display: block; width: 100%; height: auto; max-width: 33rem; overflow: visible; }
.wide { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .25rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: 500; white-space: nowrap; }
tbody th { font-weight: 500; white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
tr:has(.baseline) th, tr:has(.baseline) td { color: var(--soft); font-weight: 400; }
.narrow { display: none; } td small { white-space: nowrap; }
code { font-size: .9em; background: var(--panel); border-radius: .25rem; padding: .05rem .25rem; }
.id { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .9em;
  white-space: normal; overflow-wrap: anywhere; }
.effect { display: inline-block; margin: 0 .75rem .1rem 0; }
.up { color: var(--plus); } .down { color: var(--minus); }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--soft); font-size: .875rem; padding: .25rem 0; }
pre { overflow-x: auto; background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem;
  font-size: .8rem; }
svg text { fill: var(--soft); font-size: 11px; font-family: inherit; paint-order: stroke; stroke: var(--paper);
  stroke-width: 3px; stroke-linejoin: round; }
svg .inside { stroke: none; }
svg .value { fill: var(--ink); } svg .grid { stroke: var(--line); stroke-width: 1; }
svg .axis { stroke: var(--soft); stroke-width: 1; } svg .mark { stroke: var(--soft); stroke-dasharray: 3 3; }
svg .series { fill: none; stroke-width: 2; stroke-linejoin: round; }
@media (max-width: 40rem) {
  h1 { font-size: 1.35rem; }
  table { font-size: .8rem; } th, td { padding-right: .55rem; } tbody th { white-space: normal; }
  .narrow { display: inline; }
  table.stack thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table.stack, table.stack tbody, table.stack tr, table.stack th, table.stack td { display: block; width: 100%;
    border: 0; padding: 0; text-align: left; white-space: normal; }
  table.stack tr { border-bottom: 1px solid var(--line); padding: .6rem 0; }
}
@media print {
  :root { --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --panel: #fff; --warn: #fff; --s0: #0067b8;
    --s1: #c2410c; --s2: #00795f; --s3: #9333a8; --s4: #8a6d00; --s5: #be185d; --s6: #3f6212; --s7: #475569;
    --plus: #0067b8; --minus: #c2410c; color-scheme: light; }
  body { font-size: 10pt; } main, footer { max-width: none; padding: 0; } nav { display: none; }
  figure, tr, .card, dl div { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .wide { overflow: visible; } table { font-size: 8pt; } th, td { padding-right: .5rem; }
  thead th, tbody th, .number, td small { white-space: normal; } tbody th, thead th { overflow-wrap: anywhere; }
  .plots { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""
