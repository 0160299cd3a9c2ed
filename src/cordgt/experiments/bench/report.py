"""Benchmark results for people: tables, and a few sentences below them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table


def hardware_line(result: dict[str, Any]) -> str:
    """Return the limits that all other numbers are compared with."""
    m = result["machine"]
    return (
        f"{m['name']}, {m['threads']} threads: {m['matrix_flops'] / 1e9:,.0f} GFLOP/s ({m['precision']}), "
        f"{m['memory_bytes'] / 1e9:,.1f} GB/s, {1e6 * m['launch_seconds']:.1f} μs per operation"
    )


def stages_table(result: dict[str, Any]) -> Table:
    """Return a table with one row for each stage or part: time, its variation, share, work, rate, hardware use, memory.

    Memory use can exceed 100 %: operations' reads and writes are counted, and caches serve many of them.
    """
    table = _table(result, "", "stage", ["time", "±", "share", "GFLOP", "rate", "matrix", "memory", "MB"])
    for row in result["stages"]:
        variation = (row["high_ms"] - row["low_ms"]) / 2 / row["ms"] if row["ms"] else 0.0
        part = row["part"]
        table.add_row(
            f"  {escape(part)}" if part.startswith("·") else escape(f"{row['stage']} {part}".strip()),
            format_duration(row["ms"] / 1e3),
            f"{variation:.0%}",
            _optional("{:.0%}", row["share"]),
            _optional("{:.3g}", row["gflop"]),
            "" if row["rate"] is None else f"{format_quantity(row['rate'])} {row['unit']}",
            _optional("{:.0%}", row["of_matrix_rate"]),
            _optional("{:.0%}", row["of_bandwidth"]),
            _optional("{:,.0f}", row["peak_mb"]),
        )
    return table


def processes_table(result: dict[str, Any]) -> Table:
    """Return a table with one row for each number of processes: time of a step and of its all-reduce, speed-up."""
    columns = ["threads each", "step", "CPU each", "… sum", "events/s", "speed-up"]
    table = _table(result, f": a batch of {result['batch_size']:,} shared", "processes", columns)
    for row in result["shared"]:
        table.add_row(
            str(row["processes"]),
            str(row["threads"]),
            *(format_duration(row[k] / 1e3) for k in ("step_ms", "cpu_ms", "sum_ms")),
            format_quantity(row["events_per_second"]),
            f"{row['speed_up']:.2f}",
        )
    return table


def growth_table(result: dict[str, Any]) -> Table:
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "index": lambda row: format_duration(row["index_seconds"]),
        "roots/s": lambda row: format_quantity(row["sample_roots_per_second"]),
        "step": lambda row: format_duration(row["step_ms"] / 1e3),
        "epoch": lambda row: format_duration(row["epoch_seconds"]),
        "eval/s": lambda row: format_quantity(row["evaluate_events_per_second"]),
        "index MB": lambda row: f"{row['index_mb']:,.0f}",
        "step MB": lambda row: f"{row['step_peak_mb']:,.0f}",
    }
    fanout = ",".join(map(str, result["settings"]["fanout"]))
    table = _table(result, ": growth of cost", f"fan-out {fanout}", list(columns))
    for row in result["events"]:
        table.add_row(f"{row['events']:,} events", *(cell(row) for cell in columns.values()))
    for row in result["context"]:  # only the step is measured
        cells = (cell(row) if name in ("step", "epoch", "step MB") else "" for name, cell in columns.items())
        table.add_row(f"fan-out {','.join(map(str, row['fanout']))}", *cells)
    return table


def summary_lines(result: dict[str, Any]) -> list[str]:
    """Return sentences to print below the table: skipped stages, ideal times, and which batches fit in memory."""
    lines = [f"Skipped: {text}" for text in result.get("left_out", [])]
    if "step_ms" in result and "stages" in result:
        lines.append(hardware_bound_line(result))
    memory = result.get("memory")
    if memory:
        peaks = ", ".join(f"{n} events {mb:,.0f} MB" for n, mb in memory["peak_mb"].items())
        lines += [f"Peak memory of a step: {peaks}.", *_batch_size_lines(memory)]
    return lines


def _batch_size_lines(memory: dict[str, Any]) -> list[str]:
    """Say which batches fit in the free memory; nothing if that is unknown."""
    if memory["free_mb"] is None:
        return []
    free = f"{memory['free_mb'] / 1024:,.1f} GB of free memory"
    if memory["at_once"] is None:
        return [f"About {memory['batch_that_fits']:,} events fit in the {free}."]
    chunks = f"A batch is processed {memory['at_once']} events at a time, with a peak of {memory['at_once_mb']:,.0f} MB"
    if memory["any_batch_fits"]:
        return [f"{chunks}. Any batch size fits in the {free}."]
    return [f"{chunks}. This exceeds the {free}: about {memory['batch_that_fits']:,} events fit."]


def hardware_bound_line(result: dict[str, Any]) -> str:
    """Say how long the work of a step would take at the hardware's limits."""
    limits = result["machine"]
    arithmetic = format_duration(result["step_gflop"] * 1e9 / limits["matrix_flops"])
    traffic = format_duration(result["step_gbytes"] * 1e9 / limits["memory_bytes"])
    launches = format_duration(result["step_ops"] * limits["launch_seconds"])
    return (
        f"A step takes {format_duration(result['step_ms'] / 1e3)}. At the hardware's limits, its "
        f"{result['step_gflop']:.3g} GFLOP would take {arithmetic}, its {result['step_gbytes']:.3g} GB of memory "
        f"traffic {traffic}, and launching its {result['step_ops']:,} operations {launches}."
    )


def format_duration(seconds: float) -> str:
    """Format with three digits and a unit: 1.23 s, 45.6 ms, 789 μs."""
    factor, unit = (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "μs")
    value = seconds * factor
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def format_quantity(value: float) -> str:
    """Format with three digits and k, M or G."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def _optional(template: str, value: float | None) -> str:
    return "" if value is None else template.format(value)


def _table(result: dict[str, Any], title: str, first_column: str, columns: list[str]) -> Table:
    data = result["data"]
    size = f"{data['events']:,} events, {data['nodes']:,} nodes"
    table = Table(
        title=escape(f"{result['model']} on {data['name']} ({size}), {result['device']}{title}"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column(first_column, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
