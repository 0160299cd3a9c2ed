"""Benchmarks for people: tables, and what the figures come to in a sentence."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table


def title(found: dict[str, Any]) -> str:
    data = found["data"]
    return f"{found['model']} on {data['name']} ({data['events']:,} events, {data['nodes']:,} nodes), {found['device']}"


def machine_line(found: dict[str, Any]) -> str:
    """The limits that everything else is measured against."""
    m = found["machine"]
    return (
        f"{m['name']}, {m['threads']} threads: {m['matrix_flops'] / 1e9:,.0f} GFLOP/s ({m['precision']}), "
        f"{m['memory_bytes'] / 1e9:,.1f} GB/s, {1e6 * m['launch_seconds']:.1f} μs an operation"
    )


def stages_table(found: dict[str, Any]) -> Table:
    """A row a stage or part: time with spread, share of the whole, arithmetic, rate, the shares of the machine's matrix
    rate and of its bandwidth, peak memory.

    Memory above 100 % says that much stayed in caches: what operations read and write is counted, not what memory did.
    """
    table = _table(title(found), ["stage"], ["time", "±", "share", "GFLOP", "rate", "matrix", "memory", "MB"])
    for row in found["stages"]:
        spread = (row["high_ms"] - row["low_ms"]) / 2 / row["ms"] if row["ms"] else 0.0
        part = row["part"]
        table.add_row(
            f"  {escape(part)}" if part.startswith("·") else escape(f"{row['stage']} {part}".strip()),
            duration(row["ms"] / 1e3),
            f"{100 * spread:.0f}%",
            "" if row["share"] is None else f"{100 * row['share']:.0f}%",
            "" if row["gflop"] is None else f"{row['gflop']:.3g}",
            "" if row["rate"] is None else f"{quantity(row['rate'])} {row['unit']}",
            *("" if row[k] is None else f"{100 * row[k]:.0f}%" for k in ("of_matrix_rate", "of_bandwidth")),
            "" if row["peak_mb"] is None else f"{row['peak_mb']:,.0f}",
        )
    return table


def shared_table(found: dict[str, Any]) -> Table:
    """A row a number of processes: the time of a step, how much of it is the sum of gradients, and what it gains."""
    columns = ["threads each", "step", "CPU each", "… sum", "events/s", "speed-up"]
    table = _table(f"{title(found)}: a batch of {found['batch_size']:,} shared", ["processes"], columns)
    for row in found["shared"]:
        table.add_row(
            str(row["processes"]),
            str(row["threads"]),
            *(duration(row[k] / 1e3) for k in ("step_ms", "cpu_ms", "sum_ms")),
            quantity(row["events_per_second"]),
            f"{row['speed_up']:.2f}",
        )
    return table


def growth_table(found: dict[str, Any]) -> Table:
    columns = ["index", "roots/s", "step", "epoch", "eval/s", "index MB", "step MB"]
    table = _table(f"{title(found)}: how cost grows", [f"fan-out {_fanout(found['settings']['fanout'])}"], columns)
    for k in found["events"]:
        table.add_row(
            f"{k['events']:,} events",
            duration(k["index_seconds"]),
            quantity(k["sample_roots_per_second"]),
            duration(k["step_ms"] / 1e3),
            duration(k["epoch_seconds"]),
            quantity(k["evaluate_events_per_second"]),
            f"{k['index_mb']:,.0f}",
            f"{k['step_peak_mb']:,.0f}",
        )
    for k in found["context"]:
        cells = ("", "", duration(k["step_ms"] / 1e3), duration(k["epoch_seconds"]), "", "")
        table.add_row(f"fan-out {_fanout(k['fanout'])}", *cells, f"{k['step_peak_mb']:,.0f}")
    return table


def sentences(found: dict[str, Any]) -> list[str]:
    """What to know beside the table: the memory of a batch, what fits, what was left out."""
    said = [f"left out: {text}" for text in found.get("left_out", [])]
    if "step_ms" in found and "stages" in found:
        said.append(floor(found))
    held = found.get("memory")
    if held:
        peaks = ", ".join(f"{n} events {mb:,.0f} MB" for n, mb in held["peak_mb"].items())
        said.append(f"Peak of a step: {peaks}.")
        said += _what_fits(held)
    return said


def _what_fits(held: dict[str, Any]) -> list[str]:
    """Which batches fit what is free; nothing where that is not known."""
    if held["free_mb"] is None:
        return []
    free = f"{held['free_mb'] / 1024:,.1f} GB free now"
    if held["at_once"] is None:
        return [f"In the {free}, about {held['batch_that_fits']:,} fit."]
    parts = f"A batch is worked off {held['at_once']} events at a time, {held['at_once_mb']:,.0f} MB at the peak"
    if held["any_batch_fits"]:
        return [f"{parts}: in the {free} a batch of any size fits."]
    return [f"{parts}, which the {free} do not hold: about {held['batch_that_fits']:,} events fit."]


def floor(found: dict[str, Any]) -> str:
    """What a step would take at the machine's limits."""
    arithmetic = found["step_gflop"] * 1e9 / found["machine"]["matrix_flops"]
    traffic = found["step_gbytes"] * 1e9 / found["machine"]["memory_bytes"]
    starts = found["step_ops"] * found["machine"]["launch_seconds"]
    return (
        f"A step of {duration(found['step_ms'] / 1e3)}: its {found['step_gflop']:.3g} GFLOP take "
        f"{duration(arithmetic)} at the matrix rate, the {found['step_gbytes']:.3g} GB that its operations read and "
        f"write {duration(traffic)} at the bandwidth, starting its {found['step_ops']:,} operations {duration(starts)}."
    )


def duration(seconds: float) -> str:
    """Three digits and a unit: 1.23 s, 45.6 ms, 789 μs."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "μs")):
        if seconds * factor >= 1 or unit == "μs":
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 1000 else f"{seconds * factor:,.0f} {unit}"
    raise AssertionError("unreachable: the last unit takes everything")


def quantity(value: float) -> str:
    """Three digits and k, M or G."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def _fanout(values: Any) -> str:
    return ",".join(map(str, values))


def _table(name: str, left: list[str], right: list[str]) -> Table:
    table = Table(
        title=escape(name),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in left:
        table.add_column(column, no_wrap=True)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table
