"""The example service end to end: real load, real faults, traces, `diagnose`; no text anywhere."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenlag_tracer import conventions as names

from tests.simulate.reading import Read
from tests.tracer.service import EXAMPLE, Service, diagnose, serve
from tests.tracer.support import spans_in

pytestmark = [pytest.mark.slow, pytest.mark.engine]

MARK = "XYZZYPLUGH"
WORDS = ("quokka", "axolotl", "narwhal", "wombat", "ocelot", "marmot", "puffin", "gecko")


def _problems(diagnosis: dict[str, object]) -> list[str]:
    findings = diagnosis["findings"]
    assert isinstance(findings, list)
    return [finding["rule"] for finding in findings if finding["severity"] == "problem"]


def test_healthy_service_is_quiet(tmp_path: Path) -> None:
    # A busy machine pauses a service for real, so it gets a second try; a fault of the tracer's
    # own would show in both.
    for attempt in ("first", "second"):
        with serve(tmp_path / attempt) as service:
            assert set(service.load("--rate", "4", "--seconds", "5")) == {"200"}
        diagnosis = diagnose(service.traces)
        assert diagnosis["coverage"]["requests"] >= 8
        assert diagnosis["coverage"]["steps"] >= 100
        if diagnosis["verdict"]["status"] == "healthy":
            break
    assert _problems(diagnosis) == []
    assert diagnosis["verdict"]["status"] == "healthy"


def test_one_slot_makes_requests_queue(tmp_path: Path) -> None:
    with serve(tmp_path, SERVICE_MAX_SEQS="1", SERVICE_HIDDEN="192") as service:
        # Twice what a fast machine can do with one slot.
        service.load("--rate", "12", "--seconds", "5", "--max-tokens", "96")
    diagnosis = diagnose(service.traces)
    assert diagnosis["verdict"]["cause"] == "queueing-not-prefill"
    assert diagnosis["verdict"]["symptom"] == "ttft"
    finding = diagnosis["findings"][0]
    assert finding["facts"]["limit"] == "slots"
    assert finding["facts"]["limit_basis"] == "told by the engine"
    assert finding["facts"]["max_seqs"] == 1


def test_long_prompt_stalls_streams(tmp_path: Path) -> None:
    # Slow enough that a long prompt holds a stream for longer than anybody overlooks, and long
    # enough that some stream is there when it comes, on a fast machine too.
    with serve(tmp_path, SERVICE_MAX_SEQS="16", SERVICE_HIDDEN="192") as service:
        arguments = ["--rate", "3", "--seconds", "6", "--max-tokens", "400"]
        service.load(*arguments, "--long-at", "2", "4", "--long-bytes", "7000")
    diagnosis = diagnose(service.traces)
    assert "long-prompt-stalled-streams" in _problems(diagnosis)
    finding = next(f for f in diagnosis["findings"] if f["rule"] == "long-prompt-stalled-streams")
    assert finding["facts"]["mode"] == "mixed"
    assert finding["facts"]["prompt_tokens"] == 7000
    assert finding["blame"][0]["victims"] >= 1


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A run of marked prompts that also goes wrong in every way: its traces, closed."""
    with serve(tmp_path_factory.mktemp("odd"), SERVICE_MAX_BATCH_TOKENS="512") as service:
        # A stream of 2,000 tokens beside which the long prompt comes in chunks.
        gone = _stream_and_leave(service)
        service.load("--rate", "6", "--seconds", "1.5", "--long-at", "0.5", "--mark", MARK,
                     "--long-bytes", "1800", "--edge-stamp")  # fmt: skip
        body = {"prompt": f"{MARK} what is it?", "max_tokens": 4}
        status, answer = service.post(
            json.dumps(body).encode(), authorization=f"Bearer sk-{MARK}", x_tenant=f"sk-{MARK}",
            x_request_id=f"{MARK} is not an id",
            traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01",
        )  # fmt: skip
        assert status == 200
        assert any(word in answer.decode() for word in WORDS)  # what is searched for does come
        too_long = {"prompt": MARK * 2000, "max_tokens": 4}
        assert service.post(json.dumps(too_long).encode())[0] == 400
        assert service.post(json.dumps({"prompt": 7, "say": MARK}).encode())[0] == 422
        assert service.post(f"{{{MARK}".encode())[0] == 422
        gone.close()
        time.sleep(0.5)
    return service


def _stream_and_leave(service: Service) -> socket.socket:
    body = json.dumps({"prompt": MARK, "max_tokens": 6000, "stream": True}).encode()
    host, port = service.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"x-request-id: leaver\r\ncontent-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )
    while b"data:" not in connection.recv(4096):
        pass
    return connection


def _named(spans: list[Read], name: str) -> list[Read]:
    return [span for span in spans if span.name == name]


def test_no_text_in_any_byte_written(odd: Service) -> None:
    searched = 0
    for path in odd.folder.rglob("*"):
        if not path.is_file():
            continue
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        if path.name != "out.txt":  # the service's own words, which are empty or tell why not
            searched += len(data)
        assert MARK.encode() not in data, path
        assert MARK.lower().encode() not in data.lower(), path
        for word in WORDS:
            assert word.encode() not in data, path
    assert searched > 20_000
    assert (odd.folder / "out.txt").read_bytes() == b""


def test_one_request_has_the_whole_tree(odd: Service) -> None:
    spans = spans_in(odd.traces)
    chunked = [
        span for span in _named(spans, names.SPAN_REQUEST)
        if span.attributes.get(names.USAGE_INPUT_TOKENS) == 1800
    ]  # fmt: skip
    assert len(chunked) == 1
    own = [span for span in spans if span.trace == chunked[0].trace]
    by_id = {span.id: span for span in own}
    (client,) = [span for span in own if span.kind == names.KIND_CLIENT]
    (request,) = _named(own, names.SPAN_REQUEST)
    (engine,) = _named(own, names.SPAN_ENGINE_REQUEST)
    (prefill,) = _named(own, names.SPAN_PREFILL)
    assert request.parent == client.id
    assert engine.parent == request.id
    assert by_id[prefill.parent] is engine
    assert {s.attributes[names.DIRECTION] for s in _named(own, names.SPAN_NETWORK)} == {"in", "out"}
    stages = [span.attributes[names.STAGE] for span in _named(own, names.SPAN_FRONTEND)]
    assert stages == ["parse", "tokenize"]
    assert _named(own, names.SPAN_QUEUE)
    chunks = _named(own, names.SPAN_PREFILL_CHUNK)
    assert len(chunks) >= 4
    assert sum(int(str(span.attributes[names.CHUNK_TOKENS])) for span in chunks) == 1800
    steps = {
        span.attributes[names.STEP_INDEX]: span for span in _named(spans, names.SPAN_ENGINE_STEP)
    }
    index = engine.attributes[names.REQUEST_INDEX]
    for chunk in chunks:  # each chunk is told by the step that carried it
        step = steps[chunk.attributes[names.STEP_INDEX]]
        assert index in step.attributes[names.STEP_PREFILL_REQUESTS]
        assert (step.start, step.end) == (chunk.start, chunk.end)
    (decode,) = _named(own, names.SPAN_DECODE)
    first = steps[decode.attributes[names.DECODE_FIRST_STEP]]
    assert first.start >= chunks[-1].end
    assert decode.attributes[names.DECODE_TOKENS] == 31
    assert client.attributes[names.CLIENT_CHUNKS] == 32
    # The two ends agree: the client sees its first token after the engine has made it.
    made_ns = request.start + int(str(request.attributes[names.FIRST_TOKEN_NS]))
    seen_ns = client.start + float(str(client.attributes[names.TIME_TO_FIRST_CHUNK])) * 1e9
    assert made_ns < seen_ns < client.end
    assert client.start <= request.start
    assert request.end <= client.end


def test_a_caller_that_leaves_is_noticed_by_both_sides(odd: Service) -> None:
    spans = spans_in(odd.traces)
    mine = [s for s in spans if s.attributes.get(names.REQUEST_ID) == "leaver"]
    (request,) = _named(mine, names.SPAN_REQUEST)
    (engine,) = _named(mine, names.SPAN_ENGINE_REQUEST)
    assert request.attributes[names.ERROR_TYPE] == "cancelled"
    assert request.attributes[names.FINISH_REASONS] == ["abort"]
    assert engine.attributes[names.FINISH_REASONS] == ["abort"]


def test_refused_requests_are_told_by_their_status(odd: Service) -> None:
    requests = _named(spans_in(odd.traces), names.SPAN_REQUEST)
    errors = sorted(
        str(s.attributes[names.ERROR_TYPE]) for s in requests if names.ERROR_TYPE in s.attributes
    )
    assert errors == ["400", "422", "422", "cancelled"]


def test_a_caller_s_trace_goes_on_and_its_keys_do_not(odd: Service) -> None:
    (request,) = [
        s for s in _named(spans_in(odd.traces), names.SPAN_REQUEST) if s.trace == "ab" * 16
    ]
    assert request.parent == "cd" * 8
    assert names.TENANT not in request.attributes  # it looked like a key
    assert str(request.attributes[names.REQUEST_ID]).startswith("req-")


def test_the_tree_script_shows_it(odd: Service) -> None:
    out = subprocess.run(
        [sys.executable, str(EXAMPLE / "tree.py"), str(odd.traces)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    for name in ("llm.network", "llm.frontend", "llm.queue", "llm.prefill_chunk", "llm.decode",
                 "llm.engine_step", "text_completion tiny"):  # fmt: skip
        assert name in out.stdout
