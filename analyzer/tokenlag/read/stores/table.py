"""What a table of spans is like: which variant of the exporter's, and where a value stands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Final

from tokenlag.errors import InputError
from tokenlag.read.stores.address import Address
from tokenlag.read.stores.client import Client

_PACKAGE: Final = "tokenlag.read.stores.sql"
_PLACEHOLDER: Final = re.compile(r"\$\{([A-Z_]+)\}")
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_NEEDED: Final = (
    "Timestamp", "TraceId", "SpanId", "ParentSpanId", "SpanName", "SpanKind",
    "ResourceAttributes", "SpanAttributes", "Duration", "StatusCode",
)  # fmt: skip
_MATERIALISED: Final = re.compile(r"(SpanAttributes|ResourceAttributes)\['((?:[^'\\]|\\.)+)'\]")
_TEXTS: Final = frozenset({"String", "LowCardinality(String)"})
_OLD_SCOPE_KEY: Final = "otel.scope.name"


@dataclass(frozen=True)
class Table:
    """A table in the exporter's form.

    Args:
        name: quoted, with its database.
        lookup: that tells when a trace was, quoted; None where there is none.
        is_json: attributes are of type JSON and not maps of text.
        has_scope: a column has the scope's name; before 2024 it was an attribute.
        has_events: span events are kept.
        has_links: links are kept.
        materialised: (attributes, key) → quoted column that has the value as text.
    """

    name: str
    lookup: str | None
    is_json: bool
    has_scope: bool
    has_events: bool
    has_links: bool
    materialised: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def keys(self, held: str) -> str:
        """Returns the keys of attributes, as SQL."""
        return sql("json_keys" if self.is_json else "map_keys", HELD=held)

    def raw(self, held: str, key: str) -> str:
        """Returns a value as text, '' where there is none, as SQL."""
        column = self.materialised.get((held, key))
        return column if column is not None else self._value("raw", held, key)

    def text(self, held: str, key: str) -> str:
        """Returns a value as text, NULL where there is none, as SQL."""
        return self._value("text", held, key)

    def _value(self, form: str, held: str, key: str) -> str:
        if self.is_json:
            return sql(f"json_{form}", PATH=f"{held}.{identifier(key)}")
        return sql(f"map_{form}", HELD=held, KEY=literal(key))

    @property
    def scope(self) -> str:
        """The scope's name, as SQL."""
        return "ScopeName" if self.has_scope else self.raw("SpanAttributes", _OLD_SCOPE_KEY)

    @property
    def engine(self) -> str:
        """The engine that a span is of, as the contract's dialect finds it, as SQL."""
        told = [self.raw("SpanAttributes", "tokenlag.engine.id")]
        told += [
            self.raw("ResourceAttributes", key)
            for key in ("service.instance.id", "host.name", "service.name")
        ]
        named = [f"nullIf({one}, '')" for one in told]
        return f"coalesce({', '.join(named)}, 'engine')"


def describe(client: Client, address: Address) -> Table:
    """Returns what the address's table is like.

    Raises:
        InputError: there is none, or it is no table of spans.
    """
    name = _qualified(address, address.table)
    columns = client.rows(sql("describe", TABLE=name))
    types = {str(row["name"]): str(row["type"]) for row in columns}
    missing = [one for one in _NEEDED if one not in types]
    if missing:
        raise InputError(
            f"{address.table!r} is no table of spans: it has no {', '.join(missing[:3])}"
            + (f" and {len(missing) - 3} more" if len(missing) > 3 else ""),
            place=address.name,
            hint="it is that of OpenTelemetry's exporter for ClickHouse; ?table=NAME names it",
        )
    held = {types["SpanAttributes"], types["ResourceAttributes"]}
    is_json = all(one.startswith("JSON") for one in held)
    if not is_json and not all(one.startswith("Map(") for one in held):
        raise InputError(
            f"{address.table!r} holds attributes as {' and '.join(sorted(held))}",
            place=address.name,
            hint="maps of text and JSON are read, as OpenTelemetry's exporter writes them",
        )
    materialised = {}
    for row in columns:
        found = _MATERIALISED.fullmatch(str(row.get("default_expression", "")))
        if found and row.get("default_type") == "MATERIALIZED" and row["type"] in _TEXTS:
            materialised[found[1], found[2]] = f"t.{identifier(str(row['name']))}"
    return Table(
        name=name,
        lookup=_lookup(client, address),
        is_json=is_json,
        has_scope="ScopeName" in types,
        has_events={"Events.Name", "Events.Timestamp", "Events.Attributes"} <= types.keys(),
        has_links={"Links.TraceId", "Links.SpanId"} <= types.keys(),
        materialised=materialised,
    )


def _lookup(client: Client, address: Address) -> str | None:
    """The table that tells when a trace was, if there is one that may be read."""
    name = _qualified(address, address.lookup)
    try:
        types = {str(row["name"]) for row in client.rows(sql("describe", TABLE=name))}
    except InputError:
        return None
    return name if {"TraceId", "Start", "End"} <= types else None


def sql(name: str, /, **expressions: str) -> str:
    """Returns a `.sql` file's text with expressions put in for its `${NAME}`."""
    return _PLACEHOLDER.sub(lambda match: expressions[match[1]], _text(name))


def literal(text: str) -> str:
    """Returns a text as ClickHouse's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def identifier(name: str) -> str:
    """Returns a name as ClickHouse's SQL."""
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def value_of(kind: str, table: Table, held: str, key: str) -> str:
    """Returns an attribute's value in its type, NULL (or an empty list) where there is none."""
    if kind == "str":
        return table.text(held, key)
    forms = {"int[]": "value_ints", "str[]": "value_strs"}
    return sql(forms.get(kind, f"value_{kind}"), RAW=table.raw(held, key))


def lost_key(kind: str, table: Table, held: str, key: str, column: str) -> str:
    """Returns SQL of the key where the value is none of its type, of '' elsewhere."""
    raw = table.raw(held, key)
    if kind in ("int[]", "str[]"):
        lost = f"empty({column}) and trimBoth({raw}) not in ('', '[]')"
    else:
        lost = f"isNull({column}) and {raw} != ''"
    return f"if({lost}, {literal(key)}, '')"


def joined(parts: Sequence[str]) -> str:
    """Returns columns as a list."""
    return ",\n    ".join(parts)


def _qualified(address: Address, table: str) -> str:
    parts = [address.database] if address.database else []
    return ".".join(identifier(part) for part in [*parts, table])


@cache
def _text(name: str) -> str:
    text = resources.files(_PACKAGE).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    return _COMMENT.sub("", text).strip()
