"""What OTLP over HTTP says for each thing that can happen, and which of them are tried again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

JSON: Final = "application/json"
PROTOBUF: Final = "application/x-protobuf"
# Codes of gRPC, which the body of an answer names.
INVALID_ARGUMENT: Final = 3
UNIMPLEMENTED: Final = 12
UNAVAILABLE: Final = 14


@dataclass(frozen=True)
class Answer:
    """An HTTP answer.

    Args:
        status: its code.
        content_type: of the body.
        body: what it says.
        retry_s: after how long to try again, if it may be.
    """

    status: HTTPStatus
    content_type: str
    body: bytes
    retry_s: int | None = None


def stored(*, is_json: bool) -> Answer:
    """All of it is on disk."""
    if is_json:
        return Answer(HTTPStatus.OK, JSON, b"{}")
    return Answer(HTTPStatus.OK, PROTOBUF, ExportTraceServiceResponse().SerializeToString())


def failed(status: HTTPStatus, why: str, *, is_json: bool, retry_s: int | None = None) -> Answer:
    """None of it is; 429, 502, 503 and 504 are those that a sender tries again."""
    code = UNAVAILABLE if retry_s is not None else INVALID_ARGUMENT
    if status is HTTPStatus.NOT_FOUND:
        code = UNIMPLEMENTED
    if is_json:
        body = json.dumps({"code": code, "message": why}).encode()
        return Answer(status, JSON, body, retry_s)
    return Answer(status, PROTOBUF, Status(code=code, message=why).SerializeToString(), retry_s)
