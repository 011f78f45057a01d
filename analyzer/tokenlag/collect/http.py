"""OTLP over HTTP: `POST /v1/traces`, and `GET /` for whoever asks whether it is there."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import zlib
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, Final

import zstandard

from tokenlag import __version__
from tokenlag.collect import answers
from tokenlag.collect.answers import Answer
from tokenlag.collect.intake import BusyError, DiskError, Intake
from tokenlag.collect.rows import RefusedError, looked_at
from tokenlag.errors import UsageError

PATH: Final = "/v1/traces"
OTHERS: Final = frozenset({"/v1/metrics", "/v1/logs", "/v1development/profiles"})
MAX_BODY_BYTES: Final = 64 * 2**20  # decompressed, too
MAX_CONNECTIONS: Final = 256
IDLE_S: Final = 60.0  # an open connection without a request
COMMIT_S: Final = 20.0
_PIECE_BYTES: Final = 2**20
_LINE_BYTES: Final = 1024


class _TooLargeError(Exception):
    """A body over the limit."""


class _BadBodyError(Exception):
    """A body that its headers do not describe."""


class Receiver(ThreadingHTTPServer):
    """The server.

    Args:
        host: to listen on.
        port: 0 takes a free one.
        intake: where exports go.

    Raises:
        UsageError: the address cannot be had.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, intake: Intake) -> None:
        self.intake = intake
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"cannot listen there: {why}", place=f"{host}:{port}", hint="--listen HOST:PORT"
            ) from None

    def server_bind(self) -> None:
        """Binds, without asking a name server who we are."""
        if ":" in str(self.server_address[0]):
            self.address_family = socket.AF_INET6
            self.socket.close()
            self.socket = socket.socket(self.address_family, self.socket_type)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection, unless there are too many."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that goes away is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"
    server_version = f"tokenlag/{__version__}"
    sys_version = ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        """Tells that it is there, with its counts."""
        counts = json.dumps(asdict(self.server.intake.counts)).encode()
        self._answer(Answer(HTTPStatus.OK, answers.JSON, counts))

    def do_POST(self) -> None:
        """Takes an export."""
        kind = self.headers.get_content_type()
        is_json = kind == answers.JSON
        path = self.path.partition("?")[0].rstrip("/")
        if path != PATH:
            self.close_connection = True  # its body is not read
            what = "only traces are taken" if path in OTHERS else f"traces go to {PATH}"
            self._answer(answers.failed(HTTPStatus.NOT_FOUND, what, is_json=is_json))
            return
        if kind not in (answers.JSON, answers.PROTOBUF):
            self.close_connection = True
            why = f"content type {kind}: {answers.PROTOBUF} and {answers.JSON} are taken"
            self.server.intake.refuse(why)
            status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            self._answer(answers.failed(status, why, is_json=False))
            return
        self._answer(self._taken(is_json=is_json))

    def _taken(self, *, is_json: bool) -> Answer:
        intake = self.server.intake
        try:
            body = _expanded(self._body(), self.headers.get("Content-Encoding", "identity"))
            export = looked_at(body, is_json=is_json)
        except _TooLargeError:
            self.close_connection = True
            why = f"larger than {MAX_BODY_BYTES >> 20} MB; send smaller batches"
            intake.refuse(why)
            return answers.failed(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why, is_json=is_json)
        except (_BadBodyError, RefusedError) as error:
            self.close_connection = isinstance(error, _BadBodyError)
            intake.refuse(str(error))
            return answers.failed(HTTPStatus.BAD_REQUEST, str(error), is_json=is_json)
        try:
            intake.offer(export).result(COMMIT_S)
        except BusyError as error:
            is_disk = isinstance(error, DiskError)
            status = HTTPStatus.SERVICE_UNAVAILABLE if is_disk else HTTPStatus.TOO_MANY_REQUESTS
            return answers.failed(status, str(error), is_json=is_json, retry_s=error.retry_s)
        except FutureTimeoutError:
            status = HTTPStatus.GATEWAY_TIMEOUT
            return answers.failed(status, "the disk is slow", is_json=is_json, retry_s=5)
        return answers.stored(is_json=is_json)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return _chunked(self.rfile)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _BadBodyError("no Content-Length")
        if int(length) > MAX_BODY_BYTES:
            raise _TooLargeError
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise _BadBodyError("the body ends early")
        return body

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if answer.retry_s is not None:
            self.send_header("Retry-After", str(answer.retry_s))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are counted, not listed."""


def _chunked(stream: BufferedIOBase) -> bytes:
    body = bytearray()
    while True:
        size = stream.readline(_LINE_BYTES).partition(b";")[0].strip()
        try:
            n_bytes = int(size, 16)
        except ValueError:
            raise _BadBodyError("damaged chunks") from None
        if n_bytes < 0:
            raise _BadBodyError("damaged chunks")
        if len(body) + n_bytes > MAX_BODY_BYTES:
            raise _TooLargeError
        piece = stream.read(n_bytes)
        if len(piece) < n_bytes:
            raise _BadBodyError("the body ends early")
        body += piece
        end = stream.readline(_LINE_BYTES)
        if n_bytes == 0:
            while end.strip():  # trailers
                end = stream.readline(_LINE_BYTES)
            return bytes(body)


def _expanded(body: bytes, encoding: str) -> bytes:
    """The body without its compression, never more than the limit of it."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding in ("gzip", "deflate"):
        expander = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            whole = expander.decompress(body, MAX_BODY_BYTES + 1)
        except zlib.error:
            raise _BadBodyError(f"damaged {encoding}") from None
        if len(whole) > MAX_BODY_BYTES:
            raise _TooLargeError
        if not expander.eof:
            raise _BadBodyError(f"{encoding} that ends early")
        return whole
    if encoding == "zstd":
        return _expanded_zstd(body)
    raise _BadBodyError(f"content encoding {encoding}: gzip, deflate, zstd or none are taken")


def _expanded_zstd(body: bytes) -> bytes:
    whole = bytearray()
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            while piece := reader.read(_PIECE_BYTES):
                whole += piece
                if len(whole) > MAX_BODY_BYTES:
                    raise _TooLargeError
    except zstandard.ZstdError:
        raise _BadBodyError("damaged zstd") from None
    return bytes(whole)
