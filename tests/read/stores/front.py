"""ClickHouse's engine behind its HTTP protocol, for tests: chDB answers each statement.

Run as a script by a Python that has chDB: `front.py FOLDER`. It listens on loopback, prints
the port, and ends when its standard input does. Statements and the bytes of their answers
are listed at `/_log`. It is no server: one statement at a time, one user.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import chdb.session

CREDENTIALS = (
    "Basic "
    + base64.b64encode(
        f"{os.environ.get('FRONT_USER', 'reader')}:{os.environ.get('FRONT_PASSWORD', '')}".encode()
    ).decode()
)
OPEN = "FRONT_PASSWORD" not in os.environ
NOT_SETTINGS = {"query", "database", "query_id", "session_id", "client_protocol_version"}
HTTP_ONLY = re.compile(
    "^(send_progress|http_headers|wait_end|enable_http|compress|decompress|param_)"
)

session = chdb.session.Session(sys.argv[1])
lock = threading.Lock()
log: list[dict[str, Any]] = []


def answered(sql: str, parameters: dict[str, str], settings: dict[str, str]) -> bytes:
    for name, value in settings.items():
        session.query(f"SET {name} = '{value}'")
    result = session.query(sql, "TabSeparated", params=parameters)
    return bytes(result.bytes()) if result is not None and hasattr(result, "bytes") else b""


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/_log":
            self._send(200, json.dumps(log).encode())
        elif path == "/_clear":
            log.clear()
            self._send(200, b"")
        else:
            self._send(200, b"Ok.\n")

    def do_POST(self) -> None:
        asked = {key: values[-1] for key, values in parse_qs(urlsplit(self.path).query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not OPEN and self.headers.get("Authorization") != CREDENTIALS:
            self._refuse(403, 516, "reader: Authentication failed: password is incorrect")
            return
        kind = self.headers.get("Content-Type", "")
        if kind.startswith("multipart/form-data"):
            asked |= form_fields(kind, body)
            body = b""
        sql = "\n".join(filter(None, [asked.get("query", ""), body.decode()]))
        parameters = {k[6:]: v for k, v in asked.items() if k.startswith("param_")}
        settings = {
            k: v for k, v in asked.items() if k not in NOT_SETTINGS and not HTTP_ONLY.match(k)
        }
        started = time.perf_counter()
        with lock:
            try:
                if asked.get("database"):
                    session.query(f"USE `{asked['database']}`")
                data = answered(sql, parameters, settings)
            except Exception as error:
                text = str(error)
                code = re.search(r"Code: (\d+)", text)
                self._refuse(500, int(code[1]) if code else 0, text, is_whole=True)
                return
        log.append({"sql": sql, "bytes": len(data), "s": time.perf_counter() - started})
        self._send(200, data)

    def _refuse(self, status: int, code: int, text: str, *, is_whole: bool = False) -> None:
        body = text if is_whole else f"Code: {code}. DB::Exception: {text}. (FRONT) (version 26.9)"
        self._send(status, body.encode(), {"X-ClickHouse-Exception-Code": str(code)})

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: Any) -> None:
        pass


def form_fields(kind: str, body: bytes) -> dict[str, str]:
    mark = b"--" + kind.partition("boundary=")[2].encode()
    fields = {}
    for part in body.split(mark):
        head, _, value = part.partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]+)"', head)
        if name:
            fields[name[1].decode()] = value.removesuffix(b"\r\n").decode()
    return fields


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Front)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()
    session.close()


main()
