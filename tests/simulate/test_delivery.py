"""Between the tokens and the client's chunks: the closed forms of S07, and a slow reader."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenlag.errors import InputError
from tokenlag.simulate import delivery
from tokenlag.simulate.delivery import DeliveryConfig
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import Run, run
from tokenlag.simulate.traces import write_traces
from tokenlag_tracer import conventions as names

from tests.simulate import measure as m
from tests.simulate.reading import named, spans_of

BUFFER = DeliveryConfig("buffer")


def clients(done: Run) -> list[tuple[float, list[float]]]:
    """Time to the first chunk and gaps of each client, in seconds."""
    assert done.received is not None
    return [
        (got[0] - r.sent_s, [b - a for a, b in itertools.pairwise(got)])
        for r in done.requests
        for got in [done.received[r.number]]
    ]


@pytest.mark.parametrize("variant", ["fault", "long", "direct"])
def test_s07_table(variant: str) -> None:
    done = run(load_recipe("S07"), variant=variant)
    expected = done.variant.expected
    for ttft_s, gaps_s in clients(done):
        assert ttft_s == pytest.approx(expected["client_ttft_s"])
        assert np.median(gaps_s) * 1e3 == pytest.approx(expected["client_itl_p50_ms"], abs=1e-6)
        assert np.mean(gaps_s) * 1e3 == pytest.approx(expected["client_itl_mean_ms"], abs=0.1)
        assert ttft_s + sum(gaps_s) == pytest.approx(expected["e2e_s"])
    for r in done.requests:
        assert r.first_token_s - r.sent_s == pytest.approx(0.5)


def test_s07_bursts_are_67_then_66() -> None:
    done = run(load_recipe("S07"), variant="long")
    assert BUFFER.events_per_buffer == 67
    got = done.received[0]
    bursts = [len(list(group)) for _, group in itertools.groupby(got)]
    assert bursts == done.variant.expected["bursts"]
    starts = [k for k, _ in itertools.groupby(got)]
    assert [b - a for a, b in itertools.pairwise(starts)] == pytest.approx([16.5, 16.5, 0.25])


def test_s07_short_streams_are_late_and_faster_than_they_are_made() -> None:
    done = run(load_recipe("S07"), variant="short")
    expected = done.variant.expected
    ttft_ms, gaps = zip(*clients(done), strict=True)
    assert np.median(ttft_ms) * 1e3 == pytest.approx(expected["client_ttft_p50_ms"], rel=0.1)
    gap_ms = np.median(np.concatenate([np.array(g) for g in gaps])) * 1e3
    assert gap_ms == pytest.approx(expected["client_itl_p50_ms"], rel=0.01)
    assert m.ttft_ms(done)[0] == pytest.approx(expected["server_ttft_p50_ms"], rel=0.4)
    assert np.median(m.gaps_s(done)) * 1e3 == pytest.approx(expected["server_itl_p50_ms"], rel=0.05)


def test_events_of_three_tokens_have_no_gaps_and_an_unchanged_beginning() -> None:
    done = run(load_recipe("S07"), variant="speculation")
    for ttft_s, gaps_s in clients(done):
        assert ttft_s == pytest.approx(0.5)
        assert np.median(gaps_s) == 0


def test_a_reader_that_is_too_slow_falls_behind_without_bound() -> None:
    # Closed form: chunks come at 13 · 256 a second and leave at 2,500.
    done = run(load_recipe("slow-reader"))
    late = [(r.sent_s, done.received[r.number][0] - r.first_token_s) for r in done.requests]
    early = [lag for sent_s, lag in late if sent_s < 10]
    last = [lag for sent_s, lag in late if sent_s > 80]
    assert np.mean(last) > np.mean(early) + 15
    share = (13 * 256 / 2500) - 1
    assert np.mean(last) == pytest.approx(share * 85, rel=0.2)
    keeps_up = run(load_recipe("slow-reader"), variant="control")
    assert max(keeps_up.received[r.number][0] - r.first_token_s for r in keeps_up.requests) < 0.05


times = st.lists(st.floats(0, 100, allow_nan=False), min_size=1, max_size=300).map(sorted)


@given(times, st.integers(1, 5000), st.integers(1, 20_000))
def test_a_buffer_loses_nothing_and_ends_on_time(
    tokens_s: list[float], event_bytes: int, buffer_bytes: int
) -> None:
    config = DeliveryConfig("buffer", event_bytes=event_bytes, buffer_bytes=buffer_bytes)
    got = delivery._buffered(config, tokens_s)
    assert len(got) == len(tokens_s)
    assert got == sorted(got)
    assert got[-1] == tokens_s[-1]
    assert all(at >= made for at, made in zip(got, tokens_s, strict=True))
    if event_bytes >= buffer_bytes and len(set(tokens_s)) == len(tokens_s):
        assert got == tokens_s


@given(st.lists(times, min_size=1, max_size=5), st.floats(0.0001, 0.1))
def test_a_reader_takes_each_chunk_in_turn(streams: list[list[float]], per_chunk_s: float) -> None:
    got = delivery._read_in_turn(dict(enumerate(streams)), per_chunk_s)
    ends = sorted(itertools.chain.from_iterable(got.values()))
    assert len(ends) == sum(map(len, streams))
    assert all(b - a >= per_chunk_s * (1 - 1e-6) - 1e-9 for a, b in itertools.pairwise(ends))
    first_s = min(stream[0] for stream in streams)
    assert ends[-1] >= first_s + len(ends) * per_chunk_s * (1 - 1e-6)
    for number, stream in enumerate(streams):
        assert all(
            at >= made + per_chunk_s * (1 - 1e-9)
            for at, made in zip(got[number], stream, strict=True)
        )


def test_the_clients_span_tells_what_the_client_saw(tmp_path: Path) -> None:
    done = run(load_recipe("S07"), variant="long")
    path = tmp_path / "t.jsonl"
    write_traces(done, path)
    spans = spans_of(path)
    client = next(s for s in spans if s.kind == names.KIND_CLIENT)
    assert client.attributes[names.TIME_TO_FIRST_CHUNK] == pytest.approx(17.0)
    assert client.attributes[names.CLIENT_GAP_P50_NS] == 0
    assert client.attributes[names.CLIENT_GAP_MAX_NS] == pytest.approx(16.5e9)
    assert client.attributes[names.CLIENT_CHUNKS] == 200
    assert names.CLIENT_CHUNK_MS not in client.attributes
    server = named(spans, names.SPAN_REQUEST)[0]
    assert server.attributes[names.FIRST_TOKEN_NS] == pytest.approx(0.5e9)
    assert math.isclose(client.end, server.end, abs_tol=2e6)


def test_what_is_delayed_must_not_send_the_next_request(tmp_path: Path) -> None:
    text = load_recipe("S03").path.read_text() + '\n[delivery]\nkind = "buffer"\n'
    path = tmp_path / "closed.toml"
    path.write_text(text)
    with pytest.raises(InputError, match="open loops only"):
        run(load_recipe(path))
    with pytest.raises(InputError, match="delivery kind 'pigeon'"):
        DeliveryConfig("pigeon")
