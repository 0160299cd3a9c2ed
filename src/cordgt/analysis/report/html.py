"""A page of a report as HTML: one file that fetches nothing, runs nothing, and can be read on a phone, in the dark and
on paper.

Whatever comes from the user's data passes through `text`. What is markup already is of type `Html`, so that the two
cannot be confused: a function that gets a plain string escapes it.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

LONGEST = 80  # characters of a user's id or name that are shown
DASH = "–"  # where there is no value


class Html(str):
    """Markup, to be put into a page as it is."""


def text(value: Any, longest: int | None = None) -> Html:
    """Any value as it may stand in a page, also within quotes; control characters are shown as �, None as a dash."""
    if isinstance(value, Html):
        return value
    written = DASH if value is None else str(value)
    if longest is not None and len(written) > longest:
        written = f"{written[: longest - 1]}…"
    sound = "".join("�" if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c for c in written)
    return Html(html.escape(sound, quote=True))


def prose(value: Any) -> Html:
    """`text`, in which what stands between backticks is set as code."""
    return value if isinstance(value, Html) else Html(re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value)))


def narrow(words: str) -> Html:
    """Words that are needed only where a table is stacked: on narrow screens."""
    return Html(f'<small class="narrow">{text(words)} </small>')


def user_id(value: Any) -> Html:
    """A user's own id: isolated, so that right-to-left text or a stray mark cannot reorder what stands around it."""
    return Html(f'<bdi class="id" title="{text(value, 1000)}">{text(value, LONGEST)}</bdi>')


def join(parts: Iterable[Any], between: str = "") -> Html:
    """Several values as one piece of markup."""
    return Html(between.join(text(part) for part in parts))


def paragraph(*parts: Any, kind: str = "") -> Html:
    """A paragraph; ``kind`` is a class of the style sheet, such as "how" for how to read a plot."""
    return Html(f"<p{_class(kind)}>{join(map(prose, parts))}</p>")


def section(title: str, *parts: Any, name: str = "") -> Html:
    """A part of the page under a heading; ``name`` can be linked to."""
    own = f' id="{text(name)}"' if name else ""
    return Html(f"<section{own}><h2>{text(title)}</h2>{join(parts)}</section>")


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]], *, kind: str = "", caption: str = "") -> Html:
    """A table that scrolls by itself where the screen is narrower. Cells of numbers stand right."""
    head = join(Html(f'<th scope="col"{_class(_side(cell))}>{text(cell)}</th>') for cell in header)
    body = join(Html(f"<tr>{join(_cell(i, cell) for i, cell in enumerate(row))}</tr>") for row in rows)
    said = f"<caption>{text(caption)}</caption>" if caption else ""
    made = f"<table{_class(kind)}>{said}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return Html(f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption or "table")}">{made}</div>')


def facts(rows: Iterable[tuple[Any, Any]]) -> Html:
    """Names and values, one below the other."""
    return Html(f"<dl>{join(Html(f'<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>') for k, v in rows)}</dl>")


def details(summary: str, *parts: Any) -> Html:
    """What is there for those who look for it."""
    return Html(f"<details><summary>{text(summary)}</summary>{join(parts)}</details>")


def figure(drawing: Html, caption: str, *parts: Any) -> Html:
    """A plot with a sentence on how to read it."""
    return Html(f"<figure>{drawing}<figcaption>{text(caption)}</figcaption>{join(parts)}</figure>")


def side_by_side(*parts: Any) -> Html:
    """Plots beside each other where there is room."""
    return Html(f'<div class="plots">{join(parts)}</div>')


def cards(rows: Iterable[tuple[Any, Any, Any]]) -> Html:
    """The few numbers to see first: what it is, the number, and a remark."""
    made = (
        Html(f'<div class="card"><span>{text(k)}</span><strong>{text(v)}</strong><small>{text(s)}</small></div>')
        for k, v, s in rows
    )
    return Html(f'<div class="cards">{join(made)}</div>')


def contents(links: Iterable[tuple[str, str]]) -> Html:
    """Links to sections by their names."""
    return Html(f"<nav>{join(Html(f'<a href=#{text(k)}>{text(v)}</a>') for k, v in links)}</nav>")


def warning(*parts: Any) -> Html:
    """What must not be overlooked."""
    return Html(f'<p class="warning" role="note"><strong>Note.</strong> {join(map(prose, parts))}</p>')


def page(title: str, *parts: Any, foot: Any = "") -> str:
    """The whole file. Its policy forbids every request, so that nothing in it can fetch or run anything."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<link rel="icon" href="data:,">\n<title>{text(title, LONGEST)}</title>\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<main>\n<h1>{text(title, LONGEST)}</h1>\n{join(parts, chr(10))}\n</main>\n"
        f"<footer>{text(foot)}</footer>\n</body>\n</html>\n"
    )


def _cell(column: int, cell: Any) -> Html:
    if column == 0:
        return Html(f'<th scope="row">{text(cell)}</th>')
    return Html(f"<td{_class(_side(cell))}>{text(cell)}</td>")


def _side(cell: Any) -> str:
    """Markup and words stand left, what looks like a number right."""
    written = "" if isinstance(cell, Html) else str(cell)
    return "number" if written and (written[0].isdigit() or written[0] in "+−-–") else ""


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


# Colours are named once a scheme; series are told apart by dash and mark as well, for print and for the colour-blind.
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
.driver { display: inline-block; margin: 0 .75rem .1rem 0; }
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
