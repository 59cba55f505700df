"""Columns as Arrow, by the types of the table that they go to: what the store sends.

The engine reads Arrow several times faster than what a client packs value by value in Python, and
Arrow refuses what does not fit: a float for a decimal, a number with more places than its column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from quintal_metering.columns import Columns

_PLAIN: Final = {
    "String": pa.string(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.uint8(),
    "UInt64": pa.uint64(),
    "Float64": pa.float64(),
}
_INNER: Final = re.compile(r"(?:LowCardinality|Nullable)\((.*)\)")
_DECIMAL: Final = re.compile(r"Decimal\((\d+), (\d+)\)")
_MAP: Final = re.compile(r"Map\((\w+), (\w+)\)")


def arrow_type(name: str) -> Any:
    """The engine's type as Arrow's. Raises KeyError for one that no table of ours has."""
    if inner := _INNER.fullmatch(name):
        return arrow_type(inner[1])
    if decimal := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if pair := _MAP.fullmatch(name):
        return pa.map_(arrow_type(pair[1]), arrow_type(pair[2]))
    return _PLAIN[name]


def packed(columns: Columns, types: Mapping[str, Any]) -> Any:
    """The columns as one Arrow table."""
    arrays = [_array(values, types[name]) for name, values in columns.items()]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _array(values: Any, kind: Any) -> Any:
    if isinstance(values, pa.Array):
        return values
    if pa.types.is_map(kind):
        values = [list(value.items()) for value in values]
    return pa.array(values, type=kind)


def spelled_out(table: str, rows: Any, token: str) -> tuple[str, str]:
    """A few packed rows as a statement with its data."""
    known = f", insert_deduplication_token = {_quoted(token)}" if token else ""
    statement = (
        f"INSERT INTO `{table}` ({', '.join(rows.schema.names)}) "
        f"SETTINGS async_insert = 0, input_format_null_as_default = 0{known} FORMAT JSONEachRow"
    )
    maps = [one.name for one in rows.schema if pa.types.is_map(one.type)]
    told = rows.to_pylist()
    for row in told:
        row.update({name: dict(row[name]) for name in maps})
    return statement, "\n".join(json.dumps(row, default=str) for row in told)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
