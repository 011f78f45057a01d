"""SGLang's engine steps, rebuilt from its requests, beside what the engine did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenlag.read.load import load_traces
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import Run, run
from tokenlag.simulate.traces import write_traces
from tokenlag.store.connection import Store

# One prompt in pieces beside streams, prompts before streams, two steps in flight, preemptions.
RUNS = [
    ("S02", "mixed-2048"), ("S02", "prefill-first-3456"), ("overlap-two-deep", None),
    ("long-prompt-30k", None),
]  # fmt: skip
STEPS = """
select (start_ns - (select min(start_ns) from steps)) / 1e6 as start_ms, (end_ns - start_ns) / 1e6,
    n_chunks, n_decode, n_context_tokens, n_prefill_tokens
from steps order by start_ns, step_index
"""


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as made:
        yield made


def traces(done: Run, folder: Path) -> Path:
    path = folder / "in" / "traces.jsonl"
    write_traces(done, path, form="sglang")
    return path


def load(store: Store, path: Path) -> None:
    load_traces(store, [path], work_dir=path.parent.parent)


def notes(store: Store, kind: str) -> list[str]:
    return [text for (text,) in store.fetchall("select text from quality where kind = ?", [kind])]


@pytest.mark.parametrize(("recipe", "variant"), RUNS)
def test_steps_and_members_are_those_of_the_engine(
    recipe: str, variant: str | None, store: Store, tmp_path: Path
) -> None:
    done = run(load_recipe(recipe), variant=variant)
    load(store, traces(done, tmp_path))
    true = [step for step in done.epochs[0].steps if step.chunks or step.n_decode]
    found = store.fetchall(STEPS)
    assert len(found) == len(true)
    for step, row in zip(true, found, strict=True):
        times = ((step.start_s - true[0].start_s) * 1e3, (step.end_s - step.start_s) * 1e3)
        assert row[:2] == pytest.approx(times, abs=1e-3)
        assert row[2:4] == (len(step.chunks), step.n_decode)
        assert (row[4] or 0) == step.n_context
    assert sum(row[5] for row in found) == sum(step.n_prefill for step in true)
    assert len(notes(store, "reconstructed_steps")) == 1
    assert not notes(store, "hidden_steps")
    runs = {
        (f"{request.number:08x}", last - first + 1)
        for request in done.requests
        for first, last in done.epochs[0].decode_runs(request)
    }
    members = store.fetchall(
        "select left(r.request_id, 8), m.last_step - m.first_step + 1 from memberships m "
        "join sequences s using (seq_key) join requests r using (request_key)"
    )
    assert set(members) == runs


def test_a_prompt_fills_the_budget(store: Store, tmp_path: Path) -> None:
    done = run(load_recipe("S02"), variant="prefill-first-8192")
    load(store, traces(done, tmp_path))
    (long,) = (request for request in done.requests if request.n_prompt > 60_000)
    found = store.fetchall(
        "select c.n_tokens, c.n_context from chunks c join sequences using (seq_key) "
        "where n_prompt > 60000 order by step_index"
    )
    assert found == [(c.n_tokens, c.n_context) for c in long.prefills[0]]


def test_preemptions_are_steps_too(store: Store, tmp_path: Path) -> None:
    done = run(load_recipe("S03"), variant="fault")
    load(store, traces(done, tmp_path))
    n_true = sum(request.n_preemptions for request in done.requests)
    assert n_true > 10
    assert store.fetchall("select count(*) from preemptions") == [(n_true,)]


def changed(path: Path, change: Any) -> Path:
    """The file with every span changed, or left out where the change returns None."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for block in line["resourceSpans"]:
            for scope in block["scopeSpans"]:
                scope["spans"] = [s for s in map(change, scope["spans"]) if s is not None]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_of_requests_that_were_not_sampled_batches_still_have_their_size(
    store: Store, tmp_path: Path
) -> None:
    done = run(load_recipe("S02"), variant="prefill-first-3456")
    true = [step for step in done.epochs[0].steps if step.n_decode and not step.chunks]
    path = traces(done, tmp_path)
    lost = {
        span["traceId"]
        for line in path.read_text().splitlines()
        for block in json.loads(line)["resourceSpans"]
        for scope in block["scopeSpans"]
        for span in scope["spans"]
        if span["name"] in (" Req 00000002", " Req 00000009")  # a stream and a short prompt
    }
    load(store, changed(path, lambda span: None if span["traceId"] in lost else span))
    counts = store.fetchall("select n_decode from steps where n_chunks = 0 order by start_ns")
    assert [n for (n,) in counts] == [step.n_decode for step in true]
    # Who was in them is said of none that had others, and of no other step wrongly.
    streams = store.scalar(
        "select count(*) from memberships m join sequences s using (seq_key) where n_output > 1000"
    )
    assert streams == 0
    assert notes(store, "hidden_steps")


def test_an_id_that_comes_back_is_another_batch(store: Store, tmp_path: Path) -> None:
    done = run(load_recipe("S02"), variant="mixed-2048")
    n_true = sum(bool(step.chunks or step.n_decode) for step in done.epochs[0].steps)

    def reused(span: dict[str, Any]) -> dict[str, Any]:
        for event in span.get("events", []):
            for item in event["attributes"]:
                if item["key"] == "bid":  # every 400th step again has the first's
                    seen = order.setdefault(item["value"]["stringValue"], len(order))
                    if seen % 400 == 0:
                        item["value"]["stringValue"] = "0badcafe"
        return span

    order: dict[str, int] = {}
    load(store, changed(traces(done, tmp_path), reused))
    assert store.fetchall("select count(*) from steps") == [(n_true,)]


def test_a_token_that_was_thrown_away_makes_nobody_a_member(store: Store, tmp_path: Path) -> None:
    done = run(load_recipe("S02"), variant="mixed-2048")
    log = done.epochs[0]
    ended = next(r for r in done.requests if r.n_prompt == 400 and r.done_s is not None)
    last = log.decode_runs(ended)[-1][1]
    after = log.steps[last + 1]
    begin = run_begin(done, tmp_path)

    def overrun(span: dict[str, Any]) -> dict[str, Any]:
        if span["name"].startswith("Scheduler") and f"{ended.number:08x}" in json.dumps(span):
            told = {"bid": "0000beef", "batch_size": 9, "forward_mode": "decode"}
            attributes = [
                {
                    "key": key,
                    "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v},
                }
                for key, v in told.items()
            ]
            at_ns = begin + round((after.start_s + 1e-4) * 1e9)
            event = {"timeUnixNano": str(at_ns), "name": "schedule", "attributes": attributes}
            span.setdefault("events", []).append(event)
        return span

    load(store, changed(tmp_path / "in" / "traces.jsonl", overrun))
    found = store.fetchall(
        "select max(m.last_step - m.first_step + 1) from memberships m "
        "join sequences s using (seq_key) join requests r using (request_key) "
        "where starts_with(r.request_id, ?)",
        [f"{ended.number:08x}"],
    )
    runs = log.decode_runs(ended)
    assert found == [(max(b - a + 1 for a, b in runs),)]


def run_begin(done: Run, folder: Path) -> int:
    """Writes the traces; the unix time of the run's second 0."""
    path = traces(done, folder)
    first = min(
        int(span["startTimeUnixNano"])
        for line in path.read_text().splitlines()
        for block in json.loads(line)["resourceSpans"]
        for scope in block["scopeSpans"]
        for span in scope["spans"]
        if " Req " in span["name"]
    )
    return first - round(min(r.arrival_s for r in done.requests) * 1e9)
