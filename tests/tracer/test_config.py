"""Settings from the environment: what cannot be used is told and does no harm."""

from __future__ import annotations

import json

import pytest
from tokenlag_tracer.config import Config, is_disabled, read_config, seconds
from tokenlag_tracer.identity import parse_traceparent


def test_defaults() -> None:
    assert read_config({}) == Config()


def test_all_variables() -> None:
    config = read_config(
        {
            "TOKENLAG_TRACES_DIR": " t ", "TOKENLAG_TRACES_MAX_MB": "1.5",
            "TOKENLAG_SAMPLE": "0.25",
            "TOKENLAG_RING": "10m", "TOKENLAG_RING_MAX_MB": "2", "TOKENLAG_STALL": "1.5s",
            "TOKENLAG_QUEUE_SPANS": "7", "TOKENLAG_EXIT_WAIT": "0", "TOKENLAG_FLUSH_WAIT": "2m",
            "TOKENLAG_HANG": "5", "TOKENLAG_ENGINE_ID": "vllm-0", "TOKENLAG_LOG": "l",
            "OTEL_TRACES_SAMPLER": "TraceIdRatio", "OTEL_TRACES_SAMPLER_ARG": "0.5",
            "TOKENLAG_SOCKET": "stream:/x", "TOKENLAG_SOCKET_TYPE": "stream",
        }
    )  # fmt: skip
    assert config == Config(
        address="stream:/x", is_stream=True, traces_dir="t", traces_max_bytes=3 << 19,
        sample_frac=0.25, ring_s=600.0, ring_max_bytes=2 << 20, stall_s=1.5, queue_spans=7,
        exit_wait_s=0.0, flush_wait_s=120.0, hang_s=5.0, engine_id="vllm-0", log_path="l",
        sampler="traceidratio", sampler_arg=0.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TOKENLAG_SAMPLE", "2"), ("TOKENLAG_SAMPLE", "many"), ("TOKENLAG_RING", "-5m"),
        ("TOKENLAG_RING", "soon"), ("TOKENLAG_QUEUE_SPANS", "0"), ("TOKENLAG_TRACES_MAX_MB", "-1"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan"), ("TOKENLAG_STALL", "5 parsecs"),
    ],
)  # fmt: skip
def test_nonsense_is_the_default_and_a_problem(name: str, text: str) -> None:
    config = read_config({name: text})
    [problem] = config.problems
    assert problem.startswith(f"{name}: ")
    assert json.dumps(text)[1:-1] in problem
    assert config == Config(problems=config.problems)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("2d", 172800)],
)
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False), ({"TOKENLAG_DISABLED": "0"}, False), ({"TOKENLAG_DISABLED": "1"}, True),
        ({"TOKENLAG_DISABLED": "TRUE"}, True), ({"OTEL_SDK_DISABLED": "true"}, True),
        ({"OTEL_SDK_DISABLED": "false"}, False),
    ],
)  # fmt: skip
def test_the_kill_switch(variables: dict[str, str], expected: bool) -> None:
    assert is_disabled(variables) is expected


@pytest.mark.parametrize(
    "text",
    [
        None, "", "00", "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "0" * 16 + "-01", "ff-" + "1" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "g" * 32 + "-" + "1" * 16 + "-01", "00-" + "1" * 31 + "-" + "1" * 16 + "-01",
    ],
)  # fmt: skip
def test_what_is_no_context(text: str | None) -> None:
    assert parse_traceparent(text) is None


def test_contexts_go_on() -> None:
    text = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-00"
    context = parse_traceparent(text)
    assert context is not None
    assert not context.is_sampled
    assert context.traceparent == text
    later = parse_traceparent("01-" + "ab" * 16 + "-" + "cd" * 8 + "-01-more")
    assert later is not None, "a later version may say more"
    assert later.is_sampled
