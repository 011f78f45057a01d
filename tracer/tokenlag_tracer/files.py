"""Traces as files, without a collector: OTLP JSON lines in gzip, rotated, with a size cap.

A file is whole after a crash at any point: what is new is never appended to the file that
readers see, but written beside it, whole, and then put in its place by a rename. Files are
small, so that this costs little. A full disk loses spans, never a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenlag_tracer import conventions as names
from tokenlag_tracer.spans import Attributes, Row, Value

SEGMENT_BYTES: Final = 512 << 10
SEGMENT_S: Final = 600.0
PREFIX: Final = "tokenlag-"
SUFFIX: Final = ".jsonl.gz"
SPANS_PER_LINE: Final = 512
_GZIP_WBITS: Final = 31
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"arrayValue": {"values": [_value(item) for item in value]}}


def _attributes(attributes: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _span(row: Row) -> dict[str, Any]:
    span: dict[str, Any] = {"traceId": f"{row.trace_id:032x}", "spanId": f"{row.span_id:016x}"}
    if row.parent_id:
        span["parentSpanId"] = f"{row.parent_id:016x}"
    span.update(
        name=row.name,
        kind=row.kind,
        startTimeUnixNano=str(row.start_ns),
        endTimeUnixNano=str(row.end_ns),
        attributes=_attributes(row.attributes),
        status={"code": names.STATUS_ERROR} if row.is_error else {},
    )
    return span


def otlp_lines(rows: Sequence[Row], resources: Mapping[int, Attributes]) -> bytes:
    """Returns spans as OTLP JSON, at most 512 in one export, one export a line."""
    scope = {"name": names.SCOPE_NAME, "version": names.CONTRACT_VERSION}
    lines: list[str] = []
    for at in range(0, len(rows), SPANS_PER_LINE):
        by_resource: dict[int, list[dict[str, Any]]] = {}
        for row in rows[at : at + SPANS_PER_LINE]:
            by_resource.setdefault(row.resource, []).append(_span(row))
        exported = [
            {
                "resource": {"attributes": _attributes(resources.get(number, {}))},
                "scopeSpans": [{"scope": scope, "spans": spans}],
            }
            for number, spans in by_resource.items()
        ]
        lines.append(_encode({"resourceSpans": exported}) + "\n")
    return "".join(lines).encode()


def gzip_member(data: bytes) -> bytes:
    """Returns bytes as one gzip member, which can stand behind others in a file."""
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WBITS)
    return packer.compress(data) + packer.flush()


class TraceFiles:
    """A folder of trace files.

    Args:
        folder: where; it is made.
        max_bytes: the oldest files of this tracer are removed when all take more.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment_bytes = min(SEGMENT_BYTES, max(max_bytes // 4, 4096))
        self._members: list[bytes] = []
        self._n_bytes = 0
        self._path: Path | None = None
        self._began_s = 0.0
        self._number = 0

    def write(self, rows: Sequence[Row], resources: Mapping[int, Attributes]) -> bool:
        """Adds spans; returns whether they are on the disk (not: safe from a power cut)."""
        member = gzip_member(otlp_lines(rows, resources))
        is_full = self._n_bytes + len(member) > self._segment_bytes
        if self._path is None or is_full or time.monotonic() - self._began_s > SEGMENT_S:
            self._begin()
        self._make_room(len(member))
        if not self._put(member):
            # The disk is full: what is oldest makes room for what is new.
            self._make_room(self._max_bytes // 2)
            return self._put(member)
        return True

    def _begin(self) -> None:
        self._members, self._n_bytes = [], 0
        self._began_s = time.monotonic()
        self._number += 1
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{PREFIX}{stamp}Z-{os.getpid()}-{self._number:04d}{SUFFIX}"
        self._path = self._folder / name

    def _put(self, member: bytes) -> bool:
        path = self._path
        if path is None:
            return False
        beside = path.with_name(f".{path.name}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with beside.open("wb") as file:
                file.writelines([*self._members, member])
            beside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            return False
        self._members.append(member)
        self._n_bytes += len(member)
        return True

    def _make_room(self, n_new: int) -> None:
        """Removes the oldest files until the new bytes fit under the cap."""
        try:
            found = sorted(
                (entry.stat().st_mtime_ns, entry.stat().st_size, entry.path)
                for entry in os.scandir(self._folder)
                if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX)
            )
        except OSError:
            return
        n_bytes = sum(size for _, size, _ in found) + n_new
        for _, size, path in found:
            if n_bytes <= self._max_bytes:
                return
            if self._path is not None and path == str(self._path):
                continue
            with contextlib.suppress(OSError):
                Path(path).unlink()
                n_bytes -= size


def remove_parts(folder: Path) -> None:
    """Removes what writers that were killed left unfinished; no reader has seen it."""
    for part in folder.glob(f".{PREFIX}*.part"):
        pid = part.name.rsplit("-", 2)[1]
        if pid.isdigit() and Path(f"/proc/{pid}").exists() and int(pid) != os.getpid():
            continue
        with contextlib.suppress(OSError):
            part.unlink()
