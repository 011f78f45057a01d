"""Jaeger's JSON: answers of its UI and API, lists of spans, and what its stores hold.

A process is what OTLP calls a resource, a tag an attribute, a log an event; kind, status
and scope are tags. Times are microseconds. The usual shape is decoded into typed structs;
the other spellings go through `jaeger_lenient` and come out the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tokenlag.read.messages import Seen
from tokenlag.read.sources.jaeger_types import Log, Node, Process
from tokenlag.read.sources.otlp_json import LARGE_BYTES, MAX_OBJECTS, TextError
from tokenlag.read.sources.otlp_series import KIND_NAMES
from tokenlag.read.sources.otlp_types import Event, KeyValue, Link, Resource, Span, Status
from tokenlag.read.sources.plain_values import (
    NS_PER_US,
    SPAN_ID_DIGITS,
    TRACE_ID_DIGITS,
    padded_id,
    plain_value,
)
from tokenlag.read.sources.sink import Sink
from tokenlag.read.vocabulary import Vocabulary

_KINDS: Final = {name.lower(): code for code, name in enumerate(KIND_NAMES)}
_SCOPE_KEYS: Final = ("otel.scope.name", "otel.library.name")
_STATUS_KEY, _ERROR_KEY, _KIND_KEY = "otel.status_code", "error", "span.kind"
_SPECIAL_KEYS: Final = frozenset((*_SCOPE_KEYS, _STATUS_KEY, _ERROR_KEY, _KIND_KEY))
_EVENT_KEYS: Final = ("event", "message")
_STATUS_ERROR: Final = 2
_CHILD_OF: Final = "CHILD_OF"

_NODE: Final = msgspec.json.Decoder(Node)
_NODES: Final = msgspec.json.Decoder(list[Node])
# A span of another spelling would be taken for an object without spans.
_USUAL: Final = b'"traceID"'
_UNUSUAL: Final = (b'"_source"', b'"tag"', b'"vType"')


def open_source(sink: Sink) -> JaegerJsonReader:
    """Returns the reader of this format."""
    return JaegerJsonReader(sink)


class JaegerJsonReader:
    """Reads texts and adds their spans to columns.

    Args:
        sink: where spans go.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._spans = SpanMaker(sink.vocabulary)

    def read(self, text: bytes | memoryview, name: str, seen: Seen) -> None:
        """Adds the spans of one JSON text to the columns and what it was to `seen`.

        Raises:
            TextError: some of the text could not be read.
        """
        text = bytes(text)
        if len(text) > LARGE_BYTES and text.count(b"{") > MAX_OBJECTS:
            raise TextError(f"more than {MAX_OBJECTS:,} JSON objects in one piece")
        nodes = _decode(text)
        error = None
        if nodes is None:
            from tokenlag.read.sources.jaeger_lenient import decode_lenient

            nodes, n_bad, error = decode_lenient(text)
            seen.n_bad_spans += n_bad
        spans = [pair for node in nodes for pair in _spans_of(node, None)]
        seen.n_spans += len(spans)
        if spans or not error:
            seen.n_exports += 1
        self._add(spans, name)
        if error:
            raise TextError(error)

    def _add(self, pairs: list[tuple[Node, Process | None]], name: str) -> None:
        """Groups by process and scope, whatever trace they are in."""
        groups: dict[tuple[Any, ...], tuple[Process | None, list[Span]]] = {}
        keys: dict[int, Any] = {}
        last: tuple[Any, ...] | None = None
        spans: list[Span] = []
        for node, process in pairs:
            scope, span = self._spans.make(node)
            if last is None or last[0] is not process or last[1] != scope:
                last = (process, scope)
                key = keys.get(id(process))
                if key is None:
                    key = keys[id(process)] = _process_key(process)
                spans = groups.setdefault((key, scope), (process, []))[1]
            spans.append(span)
        for (_, scope), (process, spans) in groups.items():
            self._sink.columns.add(name, _resource(process), scope, spans)


class SpanMaker:
    """Makes OTLP's spans out of Jaeger's.

    Args:
        vocabulary: the keys that are kept.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._declared = frozenset(vocabulary.span)
        self._event_names = vocabulary.event_names
        self._link_names = vocabulary.link_names

    def make(self, node: Node) -> tuple[str | None, Span]:
        """Returns the scope's name and the span."""
        kind, code, scope = 0, 0, None
        attributes: list[KeyValue] = []
        for tag in node.tags or ():
            key = tag.key
            value = tag.value
            if key in self._declared:
                attributes.append(KeyValue(key, plain_value(value)))
            if key not in _SPECIAL_KEYS:
                continue
            if key == _KIND_KEY:
                kind = _KINDS.get(str(value).lower(), 0)
            elif key == _STATUS_KEY:
                code = max(code, {"OK": 1, "ERROR": _STATUS_ERROR}.get(str(value).upper(), 0))
            elif key == _ERROR_KEY:
                code = _STATUS_ERROR if str(value).lower() == "true" else code
            else:
                scope = str(value)
        start_ns, end_ns = node.start_ns, node.end_ns
        if start_ns is None and node.start is not None:
            start_ns = node.start * NS_PER_US
            end_ns = None if node.duration is None else start_ns + node.duration * NS_PER_US
        span = Span(
            trace_id=padded_id(node.trace_id, TRACE_ID_DIGITS),
            span_id=padded_id(node.span_id, SPAN_ID_DIGITS),
            parent_span_id=padded_id(_parent_of(node), SPAN_ID_DIGITS),
            name=node.operation,
            kind=kind,
            start_time_unix_nano=start_ns,
            end_time_unix_nano=end_ns,
            attributes=attributes,
            status=Status(code),
            events=[self._event(log) for log in node.logs or ()] if self._event_names else None,
            links=_links_of(node) if node.operation in self._link_names else None,
        )
        return scope, span

    def _event(self, log: Log) -> Event:
        fields = log.fields or []
        told = {tag.key: tag.value for tag in fields}
        name = next((told[key] for key in _EVENT_KEYS if isinstance(told.get(key), str)), None)
        return Event(
            name=name if isinstance(name, str) else None,
            time_unix_nano=None if log.timestamp is None else log.timestamp * NS_PER_US,
            attributes=[KeyValue(tag.key, plain_value(tag.value)) for tag in fields],
        )


def _decode(text: bytes) -> list[Node] | None:
    if _USUAL not in text or any(mark in text for mark in _UNUSUAL):
        return None
    try:
        return _NODES.decode(text) if text[:1] == b"[" else [_NODE.decode(text)]
    except (msgspec.DecodeError, RecursionError):
        return None


def _spans_of(
    node: Node, processes: dict[str, Process] | None
) -> Iterator[tuple[Node, Process | None]]:
    """A node's spans with their processes: its own, or the trace's."""
    processes = node.processes or processes
    if node.data is not None:
        for inner in node.data if isinstance(node.data, list) else [node.data]:
            yield from _spans_of(inner, processes)
    if node.spans is not None:
        for inner in node.spans:
            if inner.process is None and node.process is not None:
                inner.process = node.process
            yield from _spans_of(inner, processes)
    elif node.span_id is not None:
        process = node.process
        if process is None and processes is not None and node.process_id is not None:
            process = processes.get(node.process_id)
        yield node, process


def _parent_of(node: Node) -> str | None:
    """The first parent in the same trace, a real one before something that it follows."""
    mine = [one for one in node.references or () if one.trace_id in (node.trace_id, None)]
    for reference in mine:
        if reference.ref_type in (_CHILD_OF, None):
            return reference.span_id
    return mine[0].span_id if mine else node.parent_id


def _links_of(node: Node) -> list[Link]:
    """What the span follows; a parent is none."""
    return [
        Link(
            padded_id(one.trace_id or node.trace_id, TRACE_ID_DIGITS),
            padded_id(one.span_id, SPAN_ID_DIGITS),
        )
        for one in node.references or ()
        if one.ref_type not in (_CHILD_OF, None)
    ]


def _process_key(process: Process | None) -> Any:
    if process is None:
        return ()
    return (process.service_name, *((tag.key, tag.value) for tag in process.tags or ()))


def _resource(process: Process | None) -> Resource:
    if process is None:
        return Resource()
    attributes = [KeyValue(tag.key, plain_value(tag.value)) for tag in process.tags or ()]
    if process.service_name is not None:
        attributes.append(KeyValue("service.name", plain_value(process.service_name)))
    return Resource(attributes)
