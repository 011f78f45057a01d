"""The other spellings of Jaeger's spans: its model, its stores' documents, Thrift's JSON.

Keys in any case, ids as integers or base64, times as RFC 3339 and durations with a unit,
values in a field for each type, tags as a map. Elasticsearch's wrapper is taken off. A
span that makes no sense is left out and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tokenlag.read.sources.jaeger_types import Log, Node, Process, Reference, Scalar, Tag
from tokenlag.read.sources.otlp_lenient import MAX_LENIENT_BYTES, MAX_LENIENT_OBJECTS
from tokenlag.read.sources.plain_values import (
    NS_PER_US,
    SPAN_ID_DIGITS,
    ns_of_duration,
    ns_of_time,
    padded_id,
)

MAX_DEPTH: Final = 16
_VALUE_KEYS: Final = (
    "value",
    "vstr",
    "vint64",
    "vlong",
    "vfloat64",
    "vdouble",
    "vbool",
    "valuestring",
    "valuelong",
    "valuedouble",
    "valuebool",
)
_WRAPPERS: Final = ("data", "spans", "hits", "source", "result", "trace", "traces", "batches")
_NAMES: Final = {"CHILD_OF": "CHILD_OF", "child-of": "CHILD_OF", "0": "CHILD_OF"}

Item = dict[str, Any]


def decode_lenient(text: bytes) -> tuple[list[Node], int, str | None]:
    """Returns the spans of a text, how many made no sense, and what is wrong with it."""
    if len(text) > MAX_LENIENT_BYTES or text.count(b"{") > MAX_LENIENT_OBJECTS:
        return [], 0, f"unusual JSON, and too much of it in one piece ({len(text) >> 20} MB)"
    nodes: list[Node] = []
    counts = [0]
    try:
        value = json.loads(text.decode("utf-8", "replace"), strict=False)
        nodes += _nodes(value, counts)
    except RecursionError:
        return nodes, counts[0], "nested too deeply"
    except json.JSONDecodeError as error:
        return nodes, counts[0], f"not JSON: {error.msg} (column {error.colno})"
    except ValueError:
        return nodes, counts[0], "a number that is too long"
    return nodes, counts[0], None


def _folded(item: Item) -> Item:
    """Keys without case and underscores: "TraceID", "traceId" and "trace_id" are one."""
    return {key.replace("_", "").lower(): value for key, value in item.items()}


def _nodes(value: Any, counts: list[int], depth: int = 0) -> Iterator[Node]:
    """Every span and trace that is in a value."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _nodes(item, counts, depth + 1)
        return
    if not isinstance(value, dict):
        return
    item = _folded(value)
    if "spanid" in item:
        node = _span(item)
        if node is None:
            counts[0] += 1
        else:
            yield node
        return
    inner = [item[key] for key in _WRAPPERS if isinstance(item.get(key), (list, dict))]
    found = [node for one in inner for node in _nodes(one, counts, depth + 1)]
    processes = item.get("processes")
    known = _processes(processes)
    shared = _process(item["process"]) if isinstance(item.get("process"), dict) else None
    for node in found:
        if node.process is None and node.process_id is not None:
            node.process = known.get(node.process_id)
        if node.process is None:
            node.process = shared
        yield node


def _processes(value: Any) -> dict[str, Process]:
    if isinstance(value, dict):
        return {key: _process(one) for key, one in value.items() if isinstance(one, dict)}
    known = {}
    for one in value if isinstance(value, list) else []:  # the model's JSON has a list of pairs
        item = _folded(one) if isinstance(one, dict) else {}
        if isinstance(item.get("process"), dict):
            known[str(item.get("processid"))] = _process(item["process"])
    return known


def _span(item: Item) -> Node | None:
    trace_id = item.get("traceid")
    if trace_id is None and isinstance(item.get("traceidlow"), int):
        high = item.get("traceidhigh")
        trace_id = padded_id(high if isinstance(high, int) else 0, SPAN_ID_DIGITS)
        trace_id += padded_id(item["traceidlow"], SPAN_ID_DIGITS)
    trace_id, span_id = _id(trace_id), _id(item.get("spanid"))
    if trace_id is None or span_id is None:
        return None
    start_ns, duration_ns = ns_of_time(item.get("starttime")), ns_of_duration(item.get("duration"))
    process = item.get("process")
    tags = _tags(item.get("tags"))
    if isinstance(item.get("tag"), dict):  # as Elasticsearch has them, dots replaced
        tags += [Tag(key.replace("@", "."), _scalar(one)) for key, one in item["tag"].items()]
    operation, process_id = item.get("operationname"), item.get("processid")
    return Node(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_id(item.get("parentspanid", item.get("parentid"))),
        operation=operation if isinstance(operation, str) else None,
        references=_references(item.get("references", item.get("refs"))),
        tags=tags,
        logs=[_log(one) for one in _dicts(item.get("logs"))],
        process_id=process_id if isinstance(process_id, str) else None,
        process=_process(process) if isinstance(process, dict) else None,
        start_ns=start_ns,
        end_ns=None if start_ns is None or duration_ns is None else start_ns + duration_ns,
    )


def _id(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return padded_id(value, SPAN_ID_DIGITS)
    return value if isinstance(value, str) else None


def _dicts(value: Any) -> list[Item]:
    found = value if isinstance(value, list) else []
    return [_folded(item) for item in found if isinstance(item, dict)]


def _references(value: Any) -> list[Reference]:
    return [
        Reference(
            _NAMES.get(str(one.get("reftype")), str(one.get("reftype"))),
            _id(one.get("traceid")),
            _id(one.get("spanid")),
        )
        for one in _dicts(value)
    ]


def _tags(value: Any) -> list[Tag]:
    tags = []
    for item in _dicts(value):
        found = next((item[key] for key in _VALUE_KEYS if item.get(key) is not None), None)
        key = item.get("key")
        tags.append(Tag(key if isinstance(key, str) else "", _scalar(found)))
    return tags


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, (str, int, float, bool)) else None


def _log(item: Item) -> Log:
    at_ns = ns_of_time(item.get("timestamp"))
    return Log(None if at_ns is None else at_ns // NS_PER_US, _tags(item.get("fields")))


def _process(value: Item) -> Process:
    item = _folded(value)
    name = item.get("servicename")
    tags = _tags(item.get("tags"))
    if isinstance(item.get("tag"), dict):
        tags += [Tag(key.replace("@", "."), _scalar(one)) for key, one in item["tag"].items()]
    return Process(name if isinstance(name, str) else None, tags)
