"""text-generation-inference's batches: steps and members out of links."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenlag.read.load import load_traces
from tokenlag.store.connection import Store

from tests.read.otlp import T0, Json, export
from tests.read.tgi_server import Asked, Batch, load, serve, spans

RESOURCE = {"service.name": "text-generation-inference.router"}


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as made:
        yield made


@pytest.fixture(scope="module")
def served() -> tuple[list[Asked], list[Batch]]:
    requests = load(60, seed=4)
    return requests, serve(requests)


def loaded(store: Store, folder: Path, made: list[Json]) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text(json.dumps(export(made, resource=RESOURCE)))
    load_traces(store, [folder / "in"], work_dir=folder)


def members(store: Store) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for step, request in store.fetchall(
        "select s.step_index, m.request_index from steps s join memberships m "
        "on m.first_step <= s.step_index and m.last_step >= s.step_index"
    ):
        found.setdefault(step, set()).add(request)
    return found


def notes(store: Store) -> str:
    return "\n".join(text for (text,) in store.fetchall("select text from read_notes"))


@pytest.mark.parametrize("has_batches", [True, False], ids=["batch spans", "links alone"])
def test_batches_are_steps_with_members(
    has_batches: bool, served: Any, store: Store, tmp_path: Path
) -> None:
    requests, batches = served
    loaded(store, tmp_path, spans(*served, has_prompts=True, has_batches=has_batches))
    rows = store.fetchall(
        "select step_index, (start_ns - $1) / 1e6, (end_ns - $1) / 1e6, n_chunks, "
        "n_prefill_tokens, n_decode from steps order by 1",
        [T0],
    )
    assert len(rows) == len(batches)
    for (_, start, end, n_chunks, n_tokens, n_decode), batch in zip(rows, batches, strict=True):
        assert (start, end) == pytest.approx((batch.start_ms, batch.end_ms), abs=1e-5)
        assert (n_chunks, n_decode) == (len(batch.prompts), len(batch.decoding))
        assert n_tokens == sum(requests[i].n_prompt for i in batch.prompts)
    assert members(store) == {
        index: set(batch.decoding) for index, batch in enumerate(batches) if batch.decoding
    }
    chunks = store.fetchall("select step_index, request_index, n_tokens from chunks order by 1, 2")
    assert chunks == [
        (index, i, requests[i].n_prompt)
        for index, batch in enumerate(batches)
        for i in sorted(batch.prompts)
    ]
    assert "membership_mismatch" not in notes(store)
    assert store.scalar("select count(*) from memberships where seq_key is null") == 0


def test_first_tokens_are_those_of_the_prompts_batch(
    served: Any, store: Store, tmp_path: Path
) -> None:
    requests, _ = served
    loaded(store, tmp_path, spans(*served))
    found = store.fetchall("select ttft_ms, n_output from requests order by arrival_ns")
    for (ttft_ms, n_output), one in zip(found, requests, strict=True):
        assert ttft_ms == pytest.approx(one.first_ms - one.at_ms, abs=1e-5)
        assert n_output == one.n_output
    kinds = store.fetchall("select kind, count(*) from phases group by kind order by kind")
    assert {"queue", "prefill"} <= {kind for kind, _ in kinds}
    assert "do not say when their first token came" not in notes(store)


def test_prompts_of_unknown_length_are_holes_and_not_steps(
    served: Any, store: Store, tmp_path: Path
) -> None:
    """As released versions are: no span says how long a prompt was."""
    _, batches = served
    loaded(store, tmp_path, spans(*served))
    expected = {index: set(one.decoding) for index, one in enumerate(batches) if one.decoding}
    assert members(store) == expected
    found = store.fetchall(
        "select step_index from steps where n_chunks > 0 or n_prefill_tokens > 0"
    )
    assert found == []
    n_left_out = sum(bool(one.prompts) for one in batches)
    assert f"{n_left_out} batches of text-generation-inference took prompts" in notes(store)


def test_requests_that_were_not_sampled_are_counted_by_their_batches(
    served: Any, store: Store, tmp_path: Path
) -> None:
    """A batch says how many were in it, also where that is more than are here."""
    requests, batches = served
    made = [one for one in spans(*served, has_prompts=True)
            if one["name"] == "batch" or int(one["traceId"], 16) % 2]  # fmt: skip
    loaded(store, tmp_path, made)
    kept = {i for i in range(len(requests)) if (i + 1) % 2}
    handles = {number: handle for handle, number in enumerate(sorted(kept))}
    expected = {
        index: {handles[i] for i in one.decoding if i in kept}
        for index, one in enumerate(b for b in batches if {*b.prompts, *b.decoding} & kept)
        if set(one.decoding) & kept
    }
    assert members(store) == expected  # each says of itself where it was
    counts = [n for (n,) in store.fetchall("select n_decode from steps where n_decode > 0")]
    assert sum(counts) == sum(len(b.decoding) for b in batches if set(b.decoding) & kept)
    assert "had requests of which no span is here" in notes(store)


def test_several_servers_of_one_name_give_no_steps(
    served: Any, store: Store, tmp_path: Path
) -> None:
    more = load(60, seed=5)
    made = spans(*served, has_prompts=True)
    made += spans(more, serve(more), has_prompts=True, server=1)
    loaded(store, tmp_path, made)
    assert store.scalar("select count(*) from steps") == 0
    assert store.scalar("select count(*) from requests where ttft_ms is not null") == 120
    assert "several servers have this name" in notes(store)


def test_without_links_it_is_as_before(served: Any, store: Store, tmp_path: Path) -> None:
    _, batches = served
    loaded(store, tmp_path, spans(*served, has_links=False))
    assert store.scalar("select count(*) from steps") == 0
    assert store.scalar("select count(ttft_ms) from requests") == 0
    told = notes(store)
    assert f"{len(batches)} batch spans of text-generation-inference are not used" in told
    assert "60 requests of text-generation-inference do not say when their first" in told


def test_a_prompt_in_several_chunks(store: Store, tmp_path: Path) -> None:
    """More batches than tokens: those before the first token took its prompt."""
    one = Asked(0, 600, 3)
    one.turns = [("infer", 10.0 * k, 10.0 * k + 10, k) for k in range(5)]
    one.done_ms = 50
    batches = [Batch(10.0 * k, 10.0 * k + 10, [0], []) for k in range(5)]
    loaded(store, tmp_path, spans([one], batches, has_prompts=True))
    assert store.fetchall("select ttft_ms from requests") == [(30,)]
    assert store.fetchall("select step_index, n_tokens, n_context from chunks order by 1") == [
        (0, 200, 0), (1, 200, 200), (2, 200, 400)
    ]  # fmt: skip
    assert members(store) == {3: {0}, 4: {0}}


def drafted() -> Asked:
    """Nine tokens in four batches."""
    one = Asked(0, 600, 9)
    one.turns = [("infer", 10.0 * k, 10.0 * k + 10, k) for k in range(4)]
    one.sent_ms = [(10.0 * k + 9, k) for k in range(4)]
    one.done_ms = 40
    return one


def test_drafts_make_fewer_batches_than_tokens(store: Store, tmp_path: Path) -> None:
    loaded(store, tmp_path, spans([drafted()], [], has_prompts=True, has_sends=True))
    assert store.fetchall("select ttft_ms from requests") == [(9,)]
    assert members(store) == {1: {0}, 2: {0}, 3: {0}}


def test_fewer_batches_than_tokens_tell_no_first_token(store: Store, tmp_path: Path) -> None:
    """Drafts or streams that decode in a batch of prompts: without the sending none knows."""
    loaded(store, tmp_path, spans([drafted()], [], has_prompts=True))
    assert store.fetchall("select ttft_ms from requests") == [(None,)]
    assert "1 requests of text-generation-inference do not say when" in notes(store)


def test_chunked_prompts_are_told_by_what_was_sent(store: Store, tmp_path: Path) -> None:
    """Streams that decode in the batch of a prompt have no span of it, but send under one."""
    requests = load(60, seed=8)
    batches = serve(requests, is_chunked=True)
    n_mixed = sum(bool(one.prompts and one.decoding) for one in batches)
    assert n_mixed > 40
    loaded(store, tmp_path, spans(requests, batches, has_prompts=True, has_sends=True))
    found = [ttft for (ttft,) in store.fetchall("select ttft_ms from requests order by arrival_ns")]
    assert found == pytest.approx([one.first_ms - one.at_ms - 0.01 for one in requests], abs=1e-5)
    assert members(store) == {
        index: set(batch.decoding) for index, batch in enumerate(batches) if batch.decoding
    }
    chunks: dict[int, set[int]] = {}
    for step, request in store.fetchall("select step_index, request_index from chunks"):
        chunks.setdefault(step, set()).add(request)
    expected = {i: set(batch.prompts) for i, batch in enumerate(batches) if batch.prompts}
    # Of a chunk between the first and the last, in the batch of another prompt, nothing is there.
    assert all(told <= expected[step] for step, told in chunks.items())
    assert sum(told == expected[step] for step, told in chunks.items()) > 0.8 * len(expected)


def test_streams_beside_prompts_of_unknown_length_give_no_steps(
    store: Store, tmp_path: Path
) -> None:
    """Their tokens of those batches would be missing, and the time between others too long."""
    requests = load(60, seed=8)
    made = spans(requests, serve(requests, is_chunked=True), has_sends=True)
    loaded(store, tmp_path, made)
    assert store.scalar("select count(*) from steps") == 0
    assert store.scalar("select count(ttft_ms) from requests") == 60
    assert "streams decode in batches with prompts" in notes(store)
