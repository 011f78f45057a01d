"""Spans of a window out of ClickHouse, as columns of span rows.

Selection, projection and conversion are SQL that ClickHouse runs. Requests are found by the
names and keys of the dialects' spans and come with their traces; steps are selected by time.
What comes are Parquet files of the columns of `spans.span_schema`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tokenlag_tracer import conventions as names

from tokenlag.errors import InputError
from tokenlag.read.dialects import DIALECTS
from tokenlag.read.noticed import ReadNote
from tokenlag.read.spans import span_schema
from tokenlag.read.stores.asked import Span
from tokenlag.read.stores.client import Client, Row, Value
from tokenlag.read.stores.table import (
    Table,
    identifier,
    joined,
    literal,
    lost_key,
    sql,
    value_of,
)  # fmt: skip
from tokenlag.read.vocabulary import LINK, MAX_LINKS, RESOURCE_PREFIX, Vocabulary
from tokenlag.times import NS_PER_S

NS_PER_H: Final = 3600 * NS_PER_S
REACH_NS: Final = NS_PER_H  # how far around a window requests of any length are looked for
FAR_NS: Final = 24 * NS_PER_H  # and those that take longer than that, before it
LEAD_NS: Final = 600 * NS_PER_S  # how far before it a list of a step's members is
PHASE_NAMES: Final = (
    names.SPAN_FRONTEND, names.SPAN_NETWORK, names.SPAN_QUEUE, names.SPAN_PREFILL,
    names.SPAN_PREFILL_CHUNK, names.SPAN_DECODE,
)  # fmt: skip
SEQUENCE_NAMES: Final = (names.SPAN_REQUEST, names.SPAN_ENGINE_REQUEST, "llm_request")
ALL: Final = "1 = 1"
_SPAN: Final = "SpanAttributes"
_RESOURCE: Final = "ResourceAttributes"
_LOST: Final = "lost_keys"
_MAX_NAMED: Final = 3


@dataclass
class Pulled:
    """What came.

    Args:
        span_files: Parquet of span rows; a file has only the columns that are filled.
        event_files: the same of span events.
        notes: what coverage should say.
        n_spans: rows of the span files.
    """

    span_files: list[Path] = field(default_factory=list)
    event_files: list[Path] = field(default_factory=list)
    notes: list[ReadNote] = field(default_factory=list)
    n_spans: int = 0


class Spans:
    """The spans of a table.

    Args:
        client: a connection.
        table: what the table is like.
        vocabulary: the attributes that are kept.
        engines: only these engines' requests and steps; all if None.
    """

    def __init__(
        self,
        client: Client,
        table: Table,
        vocabulary: Vocabulary,
        engines: Sequence[str] | None = None,
    ) -> None:
        self.client = client
        self.table = table
        self.vocabulary = vocabulary
        self._engines = engines
        self.is_seed = sql(
            "is_seed",
            OPERATION=table.raw(_SPAN, names.OPERATION_NAME),
            MODEL=table.raw(_SPAN, names.REQUEST_MODEL),
        )
        self.end_ns = sql("end_ns")
        self._of_engines = self._of_traces = ALL
        if engines is not None:
            self._of_engines = f"{table.engine} in {{engines:Array(String)}}"
            request_id = table.raw(_SPAN, names.REQUEST_ID)
            by_trace, by_id = (
                sql("sequences_of_engines", TABLE=table.name, ENGINE=table.engine, TOLD=told)
                for told in ("TraceId", request_id)
            )
            self._of_traces = sql(
                "of_engines", BY_TRACE=by_trace, REQUEST_ID=request_id, BY_ID=by_id
            )
        self.traces = sql("traces", SEEDS=self._seeds("TraceId"))

    def _seeds(self, told: str) -> str:
        """SQL of columns of the spans by which a window's traces are found."""
        return sql(
            "seeds",
            TABLE=self.table.name,
            TOLD=told,
            END_NS=self.end_ns,
            IS_SEED=self.is_seed,
            OF_ENGINES=self._of_traces,
        )

    def span(self) -> tuple[int, int] | None:
        """Returns when the store's first and last span of interest are, None if there is none."""
        asked = sql(
            "span_of_store", TABLE=self.table.name, END_NS=self.end_ns, IS_SEED=self.is_seed
        )
        (row,) = self.client.rows(asked, self.values())
        if not int(row["n"]):
            return None
        return int(row["first_ns"]), int(row["last_ns"])

    def nothing(self) -> InputError:
        """Returns the error for a store without a span that a dialect knows."""
        found = self.client.rows(sql("names_of_store", TABLE=self.table.name))
        place = self.client.address.name
        if not found:
            hint = "does the Collector export to this table?"
            return InputError("the table of spans is empty", place=place, hint=hint)
        told = ", ".join(f'"{row["name"]}" ({int(row["n"]):,})' for row in found[:_MAX_NAMED])
        more = " and others" if len(found) > _MAX_NAMED else ""
        return InputError(
            f"most spans are named {told}{more}; none is a request or an engine step",
            place=place,
            hint="does the server export its traces to this table?",
        )

    def values(self, **more: Value) -> dict[str, Value]:
        """Returns what statements are bound to."""
        told: dict[str, Value] = {
            "request_names": [*SEQUENCE_NAMES, *PHASE_NAMES],
            "phase_names": list(PHASE_NAMES),
            "sequence_names": list(SEQUENCE_NAMES),
            "step_name": names.SPAN_ENGINE_STEP,
            "patterns": patterns(),
            "reach_ns": REACH_NS,
            "lead_ns": LEAD_NS,
            "far_ns": FAR_NS,
            "engines": list(self._engines or []),
            "span_keys": list(self.vocabulary.span),
            "resource_keys": list(self.vocabulary.resource),
            "event_names": sorted(self.vocabulary.event_names),
            "link_names": sorted(self.vocabulary.link_names),
            "link": LINK,
            "max_links": MAX_LINKS,
            "source": self.client.address.name,
        }
        return told | more

    def arrivals(self, window: Span) -> tuple[int, int]:
        """Returns how many requests began in a window, and when all that began in it ended."""
        asked = sql(
            "window_found",
            TABLE=self.table.name,
            END_NS=self.end_ns,
            IS_SEED=self.is_seed,
            OF_ENGINES=self._of_traces,
        )
        (row,) = self.client.rows(asked, self.values(from_ns=window.start_ns, to_ns=window.end_ns))
        return int(row["n_arrivals"]), int(row["last_ns"])

    def pull(self, window: Span, out_dir: Path, prefix: str) -> Pulled:
        """Fetches the requests that were under way in a window, and its steps.

        Steps come from a little earlier, so that it is known who was in them, and until the
        window's last request ended; and the requests of all those steps with them.

        Raises:
            InputError: the store refuses.
        """
        pulled = Pulled()
        _, ended_ns = self.arrivals(window)
        last_ns = min(max(window.end_ns, ended_ns), window.end_ns + LEAD_NS)
        asked = self.values(from_ns=window.start_ns, to_ns=last_ns)
        steps = self._steps_found(asked)
        n_steps = int(steps["n"])
        if n_steps:
            asked["from_ns"] = int(steps["carried_from_ns"])
        which = self._of_requests()
        bounds = self._bounds(asked)
        found = self._requests_found(which, asked | bounds)
        if int(found["n"]):
            path = out_dir / f"{prefix}-requests.parquet"
            self._rows(pulled, which, found, asked | bounds, path)
            self._note_headless(pulled, path)
            if int(found["n_events"]):
                path = out_dir / f"{prefix}-events.parquet"
                self._events(pulled, which, asked | bounds, path)
            if int(found["n_links"]):
                path = out_dir / f"{prefix}-links.parquet"
                statement = sql("link_rows", TABLE=self.table.name, WHICH=which)
                self.client.parquet(statement, path, asked | bounds)
                pulled.event_files.append(path)
            self._note_ids(pulled, int(found["n_without_ids"]))
        if n_steps:
            which = sql("of_steps", OF_ENGINES=self._of_engines)
            path = out_dir / f"{prefix}-steps.parquet"
            self._rows(pulled, which, steps, asked, path)
        return pulled

    def _bounds(self, asked: Mapping[str, Value]) -> dict[str, Value]:
        """From when to when the spans of the window's traces are looked for."""
        if self.table.lookup is not None:
            (row,) = self.client.rows(
                sql("trace_bounds", LOOKUP=self.table.lookup, TRACES=self.traces), asked
            )
            if int(row["n"]):
                first_ns = int(row["first_s"]) * NS_PER_S
                return {"first_ns": first_ns, "last_ns": (int(row["last_s"]) + 1) * NS_PER_S}
        first_ns, last_ns = _int(asked["from_ns"]) - REACH_NS, _int(asked["to_ns"]) + REACH_NS
        told = f"toUnixTimestamp64Nano(Timestamp) as start_ns, {self.end_ns} as end_ns"
        (row,) = self.client.rows(sql("seed_bounds", SEEDS=self._seeds(told)), asked)
        if int(row["n"]):  # a trace may begin a little before the span that tells its length
            first_ns = min(first_ns, int(row["first_ns"]) - LEAD_NS)
            last_ns = max(last_ns, int(row["last_ns"]))
        return {"first_ns": first_ns, "last_ns": last_ns}

    def _of_requests(self) -> str:
        return sql(
            "of_requests",
            IS_SEED=self.is_seed,
            WHOLE_TRACES=sql("whole_traces", TABLE=self.table.name),
            TRACES=self.traces,
        )

    def _requests_found(self, which: str, asked: Mapping[str, Value]) -> Row:
        has_events = self.table.has_events and self.vocabulary.event_names
        n_events = "countIf(hasAny(`Events.Name`, {event_names:Array(String)}))"
        n_links = "countIf(SpanName in {link_names:Array(String)} and notEmpty(`Links.TraceId`))"
        (row,) = self.client.rows(
            sql(
                "requests_found",
                TABLE=self.table.name,
                SPAN_KEYS=self.table.keys(_SPAN),
                RESOURCE_KEYS=self.table.keys(_RESOURCE),
                N_EVENTS=n_events if has_events else "0",
                N_LINKS=n_links if self.table.has_links and self.vocabulary.link_names else "0",
                OF_REQUESTS=which,
            ),
            asked,
        )
        return row

    def _steps_found(self, asked: Mapping[str, Value]) -> Row:
        (row,) = self.client.rows(
            sql(
                "steps_found",
                TABLE=self.table.name,
                ENGINE=self.table.engine,
                MEMBERS=self.table.raw(_SPAN, names.STEP_DECODE_REQUESTS),
                OF_ENGINES=self._of_engines,
                SPAN_KEYS=self.table.keys(_SPAN),
                RESOURCE_KEYS=self.table.keys(_RESOURCE),
            ),
            asked,
        )
        return row

    def _rows(
        self, pulled: Pulled, which: str, found: Row, asked: Mapping[str, Value], path: Path
    ) -> None:
        columns, lost = [], []
        for held, declared, keys, prefix in (
            (_SPAN, self.vocabulary.span, found["span_keys"], ""),
            (_RESOURCE, self.vocabulary.resource, found["resource_keys"], RESOURCE_PREFIX),
        ):
            for key in keys:
                kind, column = declared[key], identifier(prefix + key)
                columns.append(f"{value_of(kind, self.table, held, key)} as {column}")
                if kind != "str":
                    lost.append(lost_key(kind, self.table, held, key, column))
        parts = ", ".join(lost) or literal("")
        columns.append(f"arrayFilter(one -> one != '', [{parts}]) as {_LOST}")
        statement = sql(
            "span_rows",
            TABLE=self.table.name,
            SCOPE=self.table.scope,
            COLUMNS=joined(columns),
            WHICH=which,
        )
        raw = path.with_suffix(".raw")
        self.client.parquet(statement, raw, asked)
        n_rows, n_lost = _settle(raw, path, self.vocabulary)
        raw.unlink()
        pulled.n_spans += n_rows
        pulled.span_files.append(path)
        if n_lost:
            place, n = self.client.address.name, sum(n_lost.values())
            named = ", ".join(sorted(n_lost)[:_MAX_NAMED])
            named += ", …" if len(n_lost) > _MAX_NAMED else ""
            text = f"{place}: {n} attribute values not of their type, taken as absent: {named}"
            pulled.notes.append(ReadNote("unconvertible_values", place, n, text))

    def _events(self, pulled: Pulled, which: str, asked: Mapping[str, Value], path: Path) -> None:
        columns = [
            f", {value_of(kind, self.table, 'event_held', key)} as {identifier(key)}"
            for key, kind in self.vocabulary.event.items()
        ]
        statement = sql("event_rows", TABLE=self.table.name, COLUMNS="".join(columns), WHICH=which)
        self.client.parquet(statement, path, asked)
        pulled.event_files.append(path)

    def _note_headless(self, pulled: Pulled, path: Path) -> None:
        """Says of how many requests only phases came."""
        import polars as pl

        n = int(
            pl.scan_parquet(path)
            .group_by("trace_id")
            .agg(
                has_phase=pl.col("name").is_in(PHASE_NAMES).any(),
                has_request=pl.col("name").is_in(SEQUENCE_NAMES).any(),
            )
            .select((pl.col("has_phase") & ~pl.col("has_request")).sum())
            .collect()
            .item()
        )
        if n:
            place = self.client.address.name
            text = (
                f"{place}: of {n} requests only phases were found: they began more than "
                f"{FAR_NS // NS_PER_H} h before the window, had not ended, or are not kept"
            )
            pulled.notes.append(ReadNote("requests_without_beginning", place, n, text))

    def _note_ids(self, pulled: Pulled, n: int) -> None:
        if n:
            place = self.client.address.name
            text = f"{place}: {n} spans without usable ids left out"
            pulled.notes.append(ReadNote("unusable_spans", place, n, text))


def patterns() -> str:
    """Returns the names by which dialects know their spans, as one pattern."""
    told = [dialect.span_names for dialect in DIALECTS if dialect.span_names is not None]
    return "|".join(f"(?:{one})" for one in told) or "^$"


def _settle(raw: Path, path: Path, vocabulary: Vocabulary) -> tuple[int, dict[str, int]]:
    """Writes rows with the schema's types, and says how many there are and what was lost.

    ClickHouse has no list that is NULL, so an empty one stands for it.
    """
    import polars as pl

    schema = span_schema(vocabulary)
    frame = pl.scan_parquet(raw)
    held = frame.collect_schema()
    columns = []
    for name, dtype in schema.items():
        if name in held:
            column = pl.col(name).cast(dtype)
            if isinstance(dtype, pl.List):
                column = pl.when(pl.col(name).list.len() > 0).then(column)
            columns.append(column.alias(name))
    frame.select(columns).sink_parquet(path, compression="lz4", statistics=False)
    counted = (
        frame.filter(pl.col(_LOST).list.len() > 0)
        .select(pl.col(_LOST).explode().cast(pl.String))
        .group_by(_LOST)
        .len()
        .collect()
    )
    n_rows = int(pl.scan_parquet(path).select(pl.len()).collect().item())
    return n_rows, dict(_pairs(counted.rows()))


def _pairs(rows: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    for key, n in rows:
        yield str(key), int(n)


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value
