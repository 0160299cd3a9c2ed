"""Mutate bytes, lines and fields of text, and headers of binary files. All randomness comes from ``rng``."""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

EXTREMES = [
    b"", b" ", b"0", b"-0", b"-0.0", b"+5", b"1e309", b"-1e309", b"1e-400", b"5e-324", b"nan", b"NaN", b"inf", b"-inf",
    b"Infinity", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"-9223372036854775809",
    b"18446744073709551615", b"18446744073709551616", b"9007199254740993", b"9007199254740993.0", b"1" * 400, b"007",
    b"0x1F", b"1_000", b"1.", b".5", b"1e5", b"1E5", b"1d5", b"1,5", b"1;5", b"null", b"NULL", b"None", b"NA", b"N/A",
    b"#N/A", b"true", b"False", b"2024-02-29", b"2023-02-29", b"0000-01-01", b"9999-12-31", b"10000-01-01",
    b"2024-03-01T25:00:00", b"2024-03-01T12:30", b"2024-03-01T12:30:60Z", b"2024-03-01T12:30:00.123456789Z",
    b"2024-03-01 12:30:00 UTC", b"2024-03-01T12:30:00+25:00", b"20240301", b"2024-3-1", b"03/01/2024", b"12:30",
    "١٢".encode(), "²".encode(), "é".encode(), "e\u0301".encode(), "\u202e\u200b".encode(), "\u00a0".encode(),
    "\u2028".encode(), "\x85".encode(), b"\x0b", b"\x0c", b"\x1c", b'"', b'""', b'"a', b'a"', b'a"b', b'"a"b',
    b'"a""b"', b'" a "', b'"a,b"', b'"a\nb"', b'"\n#"', b"'a'", b"#", b"#x", b"%x", b"\\", b"\\N", b"\0", b"\t",
    b"src", b"time",
    "😀".encode(), "\ufeff".encode(), b"=1+1", b"../x", b"a" * 300,
]  # fmt: skip
NAMES = [
    b"src", b"dst", b"time", b"t", b"ts", b"u", b"i", b"label", b"idx", b"id", b"node", b"side", b"user_id", b"item_id",
    b"feature_0", b"features", b"msg", b"", b"Src", b"source", b"target", b"date", b"timestamp", b"0", b"1", b"2",
]  # fmt: skip
_MARKS = (b",", b"\t", b";", b"|", b" ")


def mutate_text(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """Return text after a few mutations; splices come from ``pool``."""
    for _ in range(_how_many(rng)):
        change = rng.choice(_TEXT) if rng.random() < 0.7 else rng.choice(_BYTES)
        data = change(rng, data, pool)
    if rng.random() < 0.04:
        data = gzip.compress(data, 1, mtime=0)
        if rng.random() < 0.6:
            data = mutate_bytes(rng, data, pool)
    return data


def mutate_bytes(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """Return bytes after a few mutations that ignore their meaning."""
    for _ in range(_how_many(rng)):
        data = rng.choice(_BYTES)(rng, data, pool)
    return data


def mutate_binary(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """Mutate as ``mutate_bytes``, and sometimes make a number huge, as a declared size may be."""
    if rng.random() < 0.3 and len(data) > 8:
        at = rng.randrange(len(data) - 7)
        size = rng.choice([0, 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1])
        data = data[:at] + struct.pack("<Q", size) + data[at + 8 :]
    digits = list(re.finditer(rb"\d+", data))
    if digits and rng.random() < 0.3:
        found = rng.choice(digits)
        number = rng.choice([b"0", b"-1", b"99999999999", b"1e9", b"9" * 25, b"18446744073709551615", b"2147483648"])
        data = data[: found.start()] + number + data[found.end() :]
    return mutate_bytes(rng, data, pool) if rng.random() < 0.6 else data


def _how_many(rng: Random) -> int:
    return 1 + (rng.random() < 0.4) + (rng.random() < 0.2) + (rng.random() < 0.1)


# -------------------- bytes


def _flip(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _insert(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice([rng.randbytes(rng.randint(1, 6)), rng.choice(EXTREMES)]) + data[at:]


def _delete(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice([1, 1, 2, 5, 20, 100]) :]


def _repeat(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    part = data[at : at + rng.choice([1, 3, 10, 50])]
    return data[:at] + part * rng.choice([2, 3, 20]) + data[at:]


def _truncate(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _splice(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    other = rng.choice(pool)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _damage_encoding(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    text = data.decode("utf-8", errors="replace")
    change = rng.randrange(6)
    if change == 0:
        return text.encode(rng.choice(["latin-1", "utf-16", "utf-16-le", "utf-32", "utf-7", "cp1252"]), "replace")
    if change == 1:
        return b"\xef\xbb\xbf" * rng.randint(1, 2) + data
    if change == 2:
        return data.replace(b"\n", rng.choice([b"\r\n", b"\r", b"\n\r", b"\n\n", b"\r\r\n", b"\x0b", b"\xc2\x85"]))
    bad = rng.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\0", b"\x1a"])
    at = rng.randrange(len(data) + 1)
    return data[:at] + bad + data[at:]


_Change = Callable[[Random, bytes, Sequence[bytes]], bytes]
_BYTES: list[_Change] = [_flip, _flip, _insert, _delete, _repeat, _truncate, _splice, _damage_encoding]

# -------------------- lines and fields


def _lines(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    change = rng.randrange(6)
    if change == 0:
        del lines[at]
    elif change == 1:
        lines.insert(to, lines[at])
    elif change == 2:
        lines[at], lines[to] = lines[to], lines[at]
    elif change == 3:
        lines.insert(at, rng.choice([b"", b" ", b"\t", b" \t ", b"# x", b"%", b'# "', b" # x", b",,", b"\x0c", b'""']))
    elif change == 4:
        lines = lines * rng.choice([2, 20])
    else:
        rng.shuffle(lines)
    return b"\n".join(lines)


def _mark_of(data: bytes) -> bytes:
    return max(_MARKS, key=data.count)


def _field(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """Replace, remove, repeat, swap or quote one field of one line."""
    mark, lines = _mark_of(data), data.split(b"\n")
    at = rng.randrange(len(lines))
    fields = lines[at].split(mark)
    k = rng.randrange(len(fields))
    change = rng.randrange(8)
    if change < 4:
        fields[k] = rng.choice(NAMES if at == 0 and rng.random() < 0.5 else EXTREMES)
    elif change == 4:
        del fields[k]
    elif change == 5:
        fields.insert(k, fields[k])
    elif change == 6:
        rng.shuffle(fields)
    else:
        fields[k] = rng.choice([b'"%s"', b" %s", b"%s ", b'"%s', b'%s"', b"'%s'", b'" %s"', b"#%s"]) % fields[k]
    lines[at] = mark.join(fields)
    return b"\n".join(lines)


def _column(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """Swap, remove, repeat or quote a column, or fill it with one extreme value."""
    mark, lines = _mark_of(data), data.split(b"\n")
    rows = [line.split(mark) for line in lines]
    width = max(map(len, rows))
    a, b, change = rng.randrange(width), rng.randrange(width), rng.randrange(5)
    value = rng.choice(EXTREMES)
    for place, row in enumerate(rows):
        if max(a, b) >= len(row):
            continue
        if change == 0:
            row[a], row[b] = row[b], row[a]
        elif change == 1:
            del row[a]
        elif change == 2:
            row.insert(b, row[a])
        elif change == 3:
            row[a] = b'"%s"' % row[a]
        elif place:
            row[a] = value
    return b"\n".join(mark.join(row) for row in rows)


def _delimiter(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """Change the delimiter, from some line on or everywhere."""
    mark, other = _mark_of(data), rng.choice([*_MARKS, b", ", b"  ", b":", b"::", b"\x1f"])
    at = rng.choice([0, rng.randrange(len(data) + 1)])
    return data[:at] + data[at:].replace(mark, other)


def _numbers(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """Replace a number by an extreme one."""
    found = list(re.finditer(rb"\d+(\.\d+)?", data))
    if not found:
        return data
    one = rng.choice(found)
    return data[: one.start()] + rng.choice(EXTREMES) + data[one.end() :]


_TEXT: list[_Change] = [_lines, _lines, _field, _field, _field, _column, _delimiter, _numbers]

# -------------------- typed tables


def typed_table(rng: Random) -> Any:
    """Return a table with the column names of events and random types and values."""
    n = rng.choice([0, 1, 3, 5])
    names = rng.choice([["src", "dst", "time"], ["user_id", "item_id", "ts"], ["id", "side", "x"], ["u", "v", "t"]])
    names = names + rng.sample(["label", "features", "feature_0", "msg", "src", "x.y", "side", ""], rng.randint(0, 3))
    columns = [_typed_column(rng, n) for _ in names]
    for place in range(3):  # mostly readable, so that later steps are reached
        if rng.random() < 0.6:
            columns[place] = _plain_column(rng, n)
    table = pa.table(columns, names=names)
    return table


def _plain_column(rng: Random, n: int) -> Any:
    kind = rng.choice([pa.int64(), pa.string(), pa.float64(), pa.int32(), pa.large_string(), pa.timestamp("us")])
    values = [rng.randint(0, 9) for _ in range(n)]
    return pa.array([str(v) for v in values] if kind in (pa.string(), pa.large_string()) else values, kind)


def _typed_column(rng: Random, n: int) -> Any:
    whole = [0, 1, 2, 7, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, None]
    kinds = [
        pa.int8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
        pa.large_string(), pa.string_view(), pa.binary(), pa.date32(), pa.date64(), pa.timestamp("s"),
        pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "Mars/Olympus"), pa.time32("s"),
        pa.duration("s"), pa.decimal128(38, 0), pa.decimal128(20, 3), pa.decimal256(50, 2), pa.null(),
        pa.list_(pa.int64()), pa.list_(pa.float32(), 2), pa.large_list(pa.string()), pa.list_(pa.list_(pa.float64())),
        pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64()),
        pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.int64()),
    ]  # fmt: skip
    for _ in range(20):
        kind = rng.choice(kinds)
        values: list[Any] = [_value(rng, kind, whole) for _ in range(n)]
        if rng.random() < 0.7:
            values = [v for v in values if v is not None] + [_value(rng, kind, [0, 1, 3]) for v in values if v is None]
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue
    return pa.array([1] * n, pa.int64())


def _value(rng: Random, kind: Any, whole: list[Any]) -> Any:
    number = rng.choice(whole)
    if pa.types.is_dictionary(kind):
        return _value(rng, kind.value_type, whole)
    if number is None:
        return None
    if pa.types.is_floating(kind):
        value = rng.choice([0.5, float("nan"), float("inf"), -0.0, 1e300, float(number)])
        return np.float16(value) if kind == pa.float16() and abs(value) < 6e4 else value
    if pa.types.is_boolean(kind):
        return bool(number % 2)
    if pa.types.is_binary(kind):
        return rng.randbytes(3)
    if "string" in str(kind) and not pa.types.is_nested(kind):
        text = rng.choice(EXTREMES).decode("utf-8", errors="replace")
        return rng.choice([text, str(number), "src", "dst", "2024-03-01"])
    if pa.types.is_struct(kind):
        return {"a": 1}
    if pa.types.is_map(kind):
        return [("a", 1)]
    if pa.types.is_fixed_size_list(kind):
        return [_value(rng, kind.value_type, whole) for _ in range(kind.list_size)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(rng, kind.value_type, whole) for _ in range(rng.choice([0, 2, 2, 2, 3]))]
    return number
