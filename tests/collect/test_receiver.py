"""`diagnose collect` as senders see it: taken, refused, put off, and what is on disk then."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from tokenlag.errors import InputError
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.demo import write_demo
from tokenlag.window import LocalZone

from tests.collect.served import ROOT, Served, request, serve, stored
from tests.read.otlp import T0, line, span

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("collect") / "traces") as running:
        yield running


def folder_of(served: Served) -> Path:
    return Path(served.process.args[5])  # type: ignore[index, call-overload]


def post(served: Served, content: bytes, headers: dict[str, str], path: str = "/v1/traces") -> Any:
    return httpx.post(served.url + path, content=content, headers=headers, timeout=30)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("identity", bytes),
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
    ],
)
def test_what_is_answered_with_200_is_on_disk(served: Served, encoding: str, pack: Any) -> None:
    first = 1000 * (1 + ["identity", "gzip", "deflate", "zstd"].index(encoding))
    body = pack(request(first, 10).SerializeToString())
    answer = post(served, body, PROTOBUF | {"Content-Encoding": encoding})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert ExportTraceServiceResponse.FromString(answer.content) == ExportTraceServiceResponse()
    assert set(range(first, first + 10)) <= set(stored(folder_of(served)))


def test_json_and_chunks_are_taken(served: Served) -> None:
    text = line(span("llm.request", traceId="f" * 32, spanId=f"{90_001:016x}")).encode()
    answer = httpx.post(
        served.url + "/v1/traces", content=iter([text[:10], text[10:]]), headers=JSON, timeout=30
    )
    assert (answer.status_code, answer.json()) == (200, {})
    assert 90_000 in stored(folder_of(served))


@pytest.mark.parametrize(
    ("content", "headers", "path", "status", "said"),
    [
        (b"\xff\xff\xff", PROTOBUF, "/v1/traces", 400, "no OTLP protobuf"),
        (b"{", JSON, "/v1/traces", 400, "no OTLP JSON"),
        (b'{"resourceMetrics": []}', JSON, "/v1/traces", 400, "no OTLP JSON"),
        (b"x", {"Content-Type": "text/plain"}, "/v1/traces", 415, "text/plain"),
        (b"", PROTOBUF, "/v1/metrics", 404, "only traces"),
        (b"", PROTOBUF, "/api/traces", 404, "/v1/traces"),
        (b"junk", PROTOBUF | {"Content-Encoding": "gzip"}, "/v1/traces", 400, "damaged gzip"),
        (b"junk", PROTOBUF | {"Content-Encoding": "br"}, "/v1/traces", 400, "br"),
        (b"junk", PROTOBUF | {"Content-Encoding": "zstd"}, "/v1/traces", 400, "zstd"),
    ],
)
def test_what_is_no_export_is_refused_for_good(
    served: Served, content: bytes, headers: dict[str, str], path: str, status: int, said: str
) -> None:
    answer = post(served, content, headers, path)
    assert answer.status_code == status
    assert "retry-after" not in answer.headers
    if answer.headers["content-type"] == "application/json":
        message = answer.json()["message"]
    else:
        message = Status.FromString(answer.content).message
    assert said in message


def test_a_bomb_is_refused_and_not_unpacked(served: Served) -> None:
    for encoding, pack in (
        ("gzip", gzip.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
    ):
        bomb = pack(b"\0" * (80 * 2**20))
        answer = post(served, bomb, PROTOBUF | {"Content-Encoding": encoding})
        assert answer.status_code == 413
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        head = (
            f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF['Content-Type']}\r\n"
        )
        raw.sendall(f"{head}Content-Length: 99999999999\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


def test_damaged_requests_do_no_harm(served: Served) -> None:
    for text in (
        b"\0\1\2\3\r\n\r\n",
        b"POST /v1/traces HTTP/1.1\r\nContent-Type: application/json\r\n\r\n",
        b"POST /v1/traces HTTP/1.1\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/traces HTTP/1.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 10\r\n\r\nab",
    ):
        with socket.create_connection(("127.0.0.1", served.port)) as raw:
            raw.sendall(text)
            raw.shutdown(socket.SHUT_WR)
            raw.settimeout(10)
            assert b" 400 " in raw.recv(1000).split(b"\r\n")[0]
    assert httpx.get(served.url).status_code == 200


def test_no_attribute_that_nobody_declared_reaches_the_disk(served: Served) -> None:
    assert post(served, request(50_000, 5).SerializeToString(), PROTOBUF).status_code == 200
    for file in folder_of(served).iterdir():
        assert b"SECRET WORDS" not in file.read_bytes(), file


def test_a_fault_that_came_over_the_network_is_named_as_from_files(tmp_path: Path) -> None:
    """The demo's fault, sent through OTLP, is named from the files."""
    made = write_demo(tmp_path / "demo", healthy=False, end_ns=T0)
    with serve(tmp_path / "traces") as running:
        with zstandard.open(made.path, "rt", encoding="utf-8") as file:
            texts = [text.encode() for text in file]
        with httpx.Client(base_url=running.url, timeout=60) as client:
            for text in texts:
                assert client.post("/v1/traces", content=text, headers=JSON).status_code == 200
        told = running.stop()
    assert f"{made.n_spans:,} spans in {len(texts):,} exports: {made.n_spans:,} stored" in told
    found = []
    for paths in ([str(made.path)], [str(tmp_path / "traces")]):
        request = Request(paths=paths, since_end="10m")
        found.append(diagnose(request, now_ns=T0, tz=LocalZone()).diagnosis)
    assert found[0].verdict.cause == "queueing-not-prefill"
    assert found[1].verdict == found[0].verdict
    assert found[1].latency == found[0].latency


def test_sent_is_stored_plus_put_off_under_more_than_it_can_take(tmp_path: Path) -> None:
    sent, n_put_off = set(), 0
    lock = threading.Lock()

    def send(sender: int, url: str) -> None:
        nonlocal n_put_off
        with httpx.Client(base_url=url, timeout=60) as client:
            for number in range(12):
                first = (sender * 12 + number) * 400
                body = request(first, 400).SerializeToString()
                answer = client.post("/v1/traces", content=body, headers=PROTOBUF)
                with lock:
                    if answer.status_code == 200:
                        sent.update(range(first, first + 400))
                    else:
                        assert answer.status_code == 429
                        assert int(answer.headers["retry-after"]) > 0
                        n_put_off += 400

    # Room for about two exports, eight senders.
    with serve(tmp_path / "traces", "--max-memory", "0.1MB") as running:
        threads = [threading.Thread(target=send, args=(n, running.url)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = httpx.get(running.url).json()
        running.stop()
    assert n_put_off > 0
    assert stored(tmp_path / "traces") == sorted(sent)
    assert counts["n_spans"] == 8 * 12 * 400 == len(sent) + n_put_off
    assert (counts["n_stored"], counts["n_busy"]) == (len(sent), n_put_off)


def test_kill_minus_nine_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    acknowledged: set[int] = set()
    for run in range(3):
        with serve(folder) as running:

            def send(sender: int, url: str = running.url, run: int = run) -> None:
                with httpx.Client(base_url=url, timeout=10) as client:
                    for number in range(1000):
                        first = ((run * 4 + sender) * 1000 + number) * 50
                        body = request(first, 50).SerializeToString()
                        try:
                            answer = client.post("/v1/traces", content=body, headers=PROTOBUF)
                        except httpx.HTTPError:
                            return
                        assert answer.status_code == 200
                        acknowledged.update(range(first, first + 50))

            threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            threading.Event().wait(1.5)
            running.kill()
            for thread in threads:
                thread.join()
    assert acknowledged
    with serve(folder) as running:
        running.stop()
    found = stored(folder)
    assert acknowledged <= set(found)
    assert len(found) == len(set(found))
    assert not list(folder.glob(".half*"))


def test_a_full_disk_is_told_and_senders_may_try_again(tmp_path: Path) -> None:
    limit = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
        "from tokenlag.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    path = os.pathsep.join([str(ROOT / "analyzer"), str(ROOT / "tracer")])
    with subprocess.Popen(
        [
            sys.executable, "-c", limit, "collect", "--dir", str(tmp_path / "traces"),
            "--listen", "127.0.0.1:0",
        ],
        stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path},
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            url = process.stderr.readline().split("listening on ")[1].split(",")[0]
            body = request(0, 2000).SerializeToString()
            for _ in range(2):
                answer = httpx.post(url + "/v1/traces", content=body, headers=PROTOBUF, timeout=30)
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) > 0
            assert httpx.get(url).json()["n_disk"] == 4000
        finally:
            process.terminate()
            told = process.communicate(timeout=30)[1]
    assert "put off because the disk took nothing" in told
    assert "Traceback" not in told
    assert not [p for p in (tmp_path / "traces").iterdir() if p.suffix == ".parquet"]


def test_grpc(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
    with serve(tmp_path / "traces", "--grpc", "127.0.0.1:0") as running:
        call = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
        with grpc.insecure_channel(f"127.0.0.1:{running.grpc_port}") as channel:
            export = channel.unary_unary(call)
            export(request(0, 20).SerializeToString(), timeout=30)
            assert stored(tmp_path / "traces") == list(range(20))
            with pytest.raises(grpc.RpcError) as failure:
                export(b"\xff\xff\xff", timeout=30)
            assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        running.stop()


def test_one_folder_has_one_receiver(tmp_path: Path) -> None:
    from tokenlag.collect.folder import Folder

    refused = pytest.raises(InputError, match="another `diagnose collect`")
    with serve(tmp_path / "traces"), refused:
        Folder(tmp_path / "traces", 10**9)
    Folder(tmp_path / "traces", 10**9).close()


def test_health_tells_counts(served: Served) -> None:
    counts = json.loads(httpx.get(served.url + "/").content)
    assert {"n_spans", "n_stored", "n_busy", "n_disk", "n_refused"} <= set(counts)
