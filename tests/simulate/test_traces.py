"""Traces say what happened, in the contract's words, and nothing that did not."""

import itertools
from pathlib import Path

import pytest
from tokenlag.errors import InputError
from tokenlag.simulate.emit_steps import ranges
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import Run, run
from tokenlag.simulate.timeline import DEFAULT_END_NS
from tokenlag.simulate.traces import DROPS, Damage, write_traces
from tokenlag_tracer import conventions as names

from tests.simulate.reading import Read, indexes_of, named, spans_of

RUNS = {
    "S02": "mixed-512",
    "S03": "fault",
    "S04": "pinned",
    "restart": "healthy",
    "overlap-two-deep": "slots",
    "nightly-embedding": "healthy",
    "long-prompt-30k": "prefill-first",
}


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return {name: run(load_recipe(name), variant=variant) for name, variant in RUNS.items()}


@pytest.fixture(scope="module")
def traces(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Read]]:
    folder = tmp_path_factory.mktemp("traces")
    read = {}
    for name, done in runs.items():
        path = folder / f"{name}.jsonl"
        n_spans = write_traces(done, path)
        read[name] = spans_of(path)
        assert len(read[name]) == n_spans
    return read


def write(done: Run, tmp_path: Path, **how) -> list[Read]:
    path = tmp_path / "t.jsonl"
    write_traces(done, path, **how)
    return spans_of(path)


def test_range_lists() -> None:
    assert ranges([]) == ""
    assert ranges([0]) == "0"
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert indexes_of(ranges([3, 4, 9])) == {3, 4, 9}


@pytest.mark.parametrize("name", RUNS)
def test_only_names_and_types_of_the_contract(name: str, traces: dict[str, list[Read]]) -> None:
    types = {"str": str, "int": int, "bool": bool, "float": float, "int[]": list, "str[]": list}
    for span in traces[name]:
        assert span.scope == names.SCOPE_NAME
        for key, value in span.attributes.items():
            assert type(value) is types[names.SPAN_ATTRIBUTE_TYPES[key]], key
        for key, value in span.resource.items():
            assert type(value) is types[names.RESOURCE_ATTRIBUTE_TYPES[key]], key
        assert span.start <= span.end
    assert max(span.end for span in traces[name]) == DEFAULT_END_NS
    ends = [span.end for span in traces[name]]
    assert ends == sorted(ends), "spans are exported as they end"
    ids = [(span.trace, span.id) for span in traces[name]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", RUNS)
def test_parents_exist_and_hold_their_children(name: str, traces: dict[str, list[Read]]) -> None:
    by_id = {(span.trace, span.id): span for span in traces[name]}
    for span in traces[name]:
        if span.parent is None:
            is_root = span.name == names.SPAN_ENGINE_STEP or span.kind == names.KIND_CLIENT
            assert is_root, span.name
            continue
        parent = by_id[span.trace, span.parent]
        assert parent.start <= span.start, (span.name, parent.name)
        assert span.end <= parent.end, (span.name, parent.name)


@pytest.mark.parametrize("name", RUNS)
def test_steps_rebuild_membership(
    name: str, runs: dict[str, Run], traces: dict[str, list[Read]]
) -> None:
    steps = [s for s in named(traces[name], names.SPAN_ENGINE_STEP) if s.end > s.start]
    assert len(steps) == runs[name].n_steps
    found: dict[tuple[int, int], set[int]] = {}
    key = None
    members: set[int] = set()
    for span in sorted(
        steps, key=lambda s: (s.attributes[names.ENGINE_EPOCH], s.attributes[names.STEP_INDEX])
    ):
        a = span.attributes
        index, epoch = a[names.STEP_INDEX], a[names.ENGINE_EPOCH]
        if key is None or key[0] != epoch:
            members = set()
            assert index == 0
        else:
            assert index == key[1] + 1
        key = (epoch, index)
        members -= indexes_of(a.get(names.STEP_DECODE_LEFT))
        members |= indexes_of(a.get(names.STEP_DECODE_JOINED))
        assert len(members) == a[names.STEP_DECODE_COUNT]
        full = a.get(names.STEP_DECODE_REQUESTS)
        if full is not None:
            assert indexes_of(full) == members
        elif index % 256 == 0:
            assert not members
        for member in members:
            found.setdefault((epoch, member), set()).add(index)
    engine = {
        (s.trace, s.id): (s.attributes[names.ENGINE_EPOCH], s.attributes[names.REQUEST_INDEX])
        for s in named(traces[name], names.SPAN_ENGINE_REQUEST)
    }
    told: dict[tuple[int, int], set[int]] = {}
    for span in named(traces[name], names.SPAN_DECODE):
        a = span.attributes
        first, last = a[names.DECODE_FIRST_STEP], a[names.DECODE_LAST_STEP]
        assert a[names.DECODE_TOKENS] == last - first + 1
        told.setdefault(engine[span.trace, span.parent], set()).update(range(first, last + 1))
    for handle in engine.values():
        assert told.get(handle, set()) == found.get(handle, set())


@pytest.mark.parametrize("name", RUNS)
def test_chunks_agree_between_steps_and_requests(name: str, traces: dict[str, list[Read]]) -> None:
    by_id = {(s.trace, s.id): s for s in traces[name]}
    in_requests = set()
    for span in named(traces[name], names.SPAN_PREFILL_CHUNK):
        prefill = by_id[span.trace, span.parent]
        owner = by_id[span.trace, prefill.parent].attributes
        a = span.attributes
        in_requests.add(
            (
                owner[names.ENGINE_EPOCH],
                a[names.STEP_INDEX],
                owner[names.REQUEST_INDEX],
                a[names.CHUNK_TOKENS],
                a[names.CHUNK_CONTEXT],
                span.start,
                span.end,
            )
        )
    in_steps = set()
    for span in named(traces[name], names.SPAN_ENGINE_STEP):
        a = span.attributes
        arrays = (
            names.STEP_PREFILL_REQUESTS,
            names.STEP_PREFILL_TOKENS,
            names.STEP_PREFILL_CONTEXT,
        )
        for chunk in zip(*(a.get(key, []) for key in arrays), strict=True):
            where = (a[names.ENGINE_EPOCH], a[names.STEP_INDEX])
            in_steps.add((*where, *chunk, span.start, span.end))
    assert in_requests == in_steps


@pytest.mark.parametrize("name", ["S02", "S03", "S04", "long-prompt-30k"])
def test_phases_tile_the_engine_request(name: str, traces: dict[str, list[Read]]) -> None:
    children: dict[tuple[str, str | None], list[Read]] = {}
    for span in traces[name]:
        children.setdefault((span.trace, span.parent), []).append(span)
    for owner in named(traces[name], names.SPAN_ENGINE_REQUEST):
        phases = sorted(children[owner.trace, owner.id], key=lambda s: (s.start, s.end))
        assert phases[0].start == owner.start
        assert phases[-1].end == owner.end
        for before, after in itertools.pairwise(phases):
            # After a preemption the last chunk's end may lie in the step that preempted.
            assert abs(after.start - before.end) <= 1_000 or owner.attributes[names.PREEMPTIONS]


def test_requests_tell_their_numbers(runs: dict[str, Run], traces: dict[str, list[Read]]) -> None:
    done = runs["S04"]
    spans = {s.attributes[names.REQUEST_ID]: s for s in named(traces["S04"], names.SPAN_REQUEST)}
    assert len(spans) == len(done.requests)
    for request in done.requests:
        a = spans[f"req-{request.number}"].attributes
        assert a[names.USAGE_INPUT_TOKENS] == request.n_prompt
        assert a[names.USAGE_CACHED_TOKENS] == request.n_cached
        assert a[names.USAGE_OUTPUT_TOKENS] == 150
        assert a[names.CONVERSATION_ID] == request.conversation_id
        assert a[names.PREFIX_ID] == "system-prompt"
        ttft_s = request.first_token_s - request.arrival_s
        assert a[names.FIRST_TOKEN_NS] == pytest.approx(ttft_s * 1e9, abs=2)
    clients = [s for s in traces["S04"] if s.kind == names.KIND_CLIENT]
    for span in clients:
        a = span.attributes
        gaps = [
            a[k]
            for k in (names.CLIENT_GAP_P50_NS, names.CLIENT_GAP_P99_NS, names.CLIENT_GAP_MAX_NS)
        ]
        assert gaps == sorted(gaps)
        assert a[names.CLIENT_CHUNKS] == 150


def test_embeddings_have_no_token(traces: dict[str, list[Read]]) -> None:
    spans = traces["nightly-embedding"]
    assert not named(spans, names.SPAN_DECODE)
    for span in named(spans, names.SPAN_REQUEST):
        assert names.FIRST_TOKEN_NS not in span.attributes
        assert span.attributes[names.OPERATION_NAME] == "embeddings"
    assert all(
        s.attributes[names.STEP_DECODE_COUNT] == 0 for s in named(spans, names.SPAN_ENGINE_STEP)
    )


def test_restart_is_a_new_epoch_and_its_requests_failed(traces: dict[str, list[Read]]) -> None:
    spans = traces["restart"]
    steps = named(spans, names.SPAN_ENGINE_STEP)
    epochs = sorted({s.attributes[names.ENGINE_EPOCH] for s in steps})
    assert len(epochs) == 2
    first, second = ([s for s in steps if s.attributes[names.ENGINE_EPOCH] == e] for e in epochs)
    assert max(s.end for s in first) < epochs[1] <= min(s.start for s in second)
    failed = [s for s in named(spans, names.SPAN_REQUEST) if names.ERROR_TYPE in s.attributes]
    kinds = {s.attributes[names.ERROR_TYPE] for s in failed}
    assert kinds == {"engine_restart", "engine_unavailable"}
    assert all(s.status == {"code": names.STATUS_ERROR} for s in failed)
    assert all(s.attributes[names.FINISH_REASONS] == ["abort"] for s in failed)


def test_an_idle_engine_sends_heartbeats(tmp_path: Path) -> None:
    spans = named(
        write(run(load_recipe("agent"), variant="healthy"), tmp_path), names.SPAN_ENGINE_STEP
    )
    beats = [s for s in spans if s.start == s.end]
    assert beats
    for before, after in itertools.pairwise(spans):
        assert after.start - before.end <= names.HEARTBEAT_NS
        if after.start == after.end:
            index = names.STEP_INDEX
            assert after.attributes[index] == before.attributes[index]
            assert after.attributes[names.STEP_DECODE_COUNT] == 0


def test_engine_traces_are_cut_every_ten_seconds(traces: dict[str, list[Read]]) -> None:
    windows: dict[str, set[int]] = {}
    for span in named(traces["S02"], names.SPAN_ENGINE_STEP):
        windows.setdefault(span.trace, set()).add(span.start // names.ENGINE_TRACE_NS)
    assert all(len(found) == 1 for found in windows.values())
    assert len(windows) >= 6


def test_ghosts_work_in_steps_and_have_no_span(tmp_path: Path) -> None:
    done = run(load_recipe("S01"), variant="ghosts")
    spans = write(done, tmp_path)
    told = {s.attributes[names.REQUEST_INDEX] for s in named(spans, names.SPAN_ENGINE_REQUEST)}
    ghosts = {r.index for r in done.requests if r.is_ghost}
    assert len(ghosts) == 24
    assert not told & ghosts
    in_steps: set[int] = set()
    for span in named(spans, names.SPAN_ENGINE_STEP):
        in_steps |= indexes_of(span.attributes.get(names.STEP_DECODE_JOINED))
    assert ghosts <= in_steps


def test_clients_that_gave_up_end_before_the_engine_does(tmp_path: Path) -> None:
    done = run(load_recipe("abandoned"))
    spans = write(done, tmp_path)
    engine = {s.trace: s for s in named(spans, names.SPAN_ENGINE_REQUEST)}
    gave_up = [
        s
        for s in named(spans, names.SPAN_REQUEST)
        if s.attributes.get(names.ERROR_TYPE) == "timeout"
    ]
    assert len(gave_up) == sum(done.gave_up(r) for r in done.requests) > 50
    for span in gave_up:
        assert span.attributes[names.FINISH_REASONS] == ["abort"]
        assert span.end - span.start < 2.1e9
        assert span.end < engine[span.trace].end
        told = span.attributes[names.USAGE_OUTPUT_TOKENS]
        assert told < engine[span.trace].attributes[names.USAGE_OUTPUT_TOKENS]
    seen_by_vllm = write(done, tmp_path, form="vllm")
    assert len(seen_by_vllm) == len(done.requests) - len(gave_up)


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path) -> None:
    recipe = load_recipe("overlap-two-deep")
    paths = [tmp_path / name for name in ("a.jsonl.gz", "b.jsonl.gz", "c.jsonl.gz")]
    for path, seed in zip(paths, (None, recipe.seed, 99), strict=True):
        write_traces(run(recipe, seed=seed), path)
    first, second, third = (path.read_bytes() for path in paths)
    assert first == second
    assert first != third


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_compression_by_name(suffix: str, runs: dict[str, Run], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / f"t{suffix}"
    n_spans = write_traces(runs["S03"], path)
    assert len(spans_of(path)) == n_spans


def test_the_run_ends_where_it_is_told_to(runs: dict[str, Run], tmp_path: Path) -> None:
    end_ns = 1_800_000_000_123_456_789
    spans = write(runs["S03"], tmp_path, end_ns=end_ns)
    assert max(span.end for span in spans) == end_ns


def test_compact_form_has_engine_keys_on_the_request(runs: dict[str, Run], tmp_path: Path) -> None:
    spans = write(runs["S03"], tmp_path, form="compact")
    assert not named(spans, names.SPAN_ENGINE_REQUEST)
    requests = {s.id for s in named(spans, names.SPAN_REQUEST)}
    assert all(names.REQUEST_INDEX in s.attributes for s in named(spans, names.SPAN_REQUEST))
    assert all(s.parent in requests for s in named(spans, names.SPAN_QUEUE))


def test_vllm_form(runs: dict[str, Run], tmp_path: Path) -> None:
    done = runs["overlap-two-deep"]
    spans = write(done, tmp_path, form="vllm")
    assert len(spans) == len(done.requests)
    for span in spans:
        a = span.attributes
        assert span.scope == "vllm.tracing.otel"
        assert span.name == "llm_request"
        inference = a["gen_ai.latency.time_in_model_inference"]
        prefill, decode = (a[f"gen_ai.latency.time_in_model_{k}"] for k in ("prefill", "decode"))
        assert inference == pytest.approx(prefill + decode)
        queue, ttft = a["gen_ai.latency.time_in_queue"], a["gen_ai.latency.time_to_first_token"]
        assert queue >= 0
        assert queue + prefill <= ttft + 1e-9
        assert a["gen_ai.latency.e2e"] * 1e9 == pytest.approx(span.end - span.start, abs=1e4)
    longest = max(s.attributes["gen_ai.latency.time_in_queue"] for s in spans)
    assert longest > 1, "queueing shows in vLLM's own spans"


def test_vllm_form_leaves_failed_requests_out(runs: dict[str, Run], tmp_path: Path) -> None:
    done = runs["restart"]
    n_failed = sum(r.error is not None for r in done.requests)
    assert n_failed
    assert len(write(done, tmp_path, form="vllm")) == len(done.requests) - n_failed


def test_a_wait_behind_a_long_step_hides_from_vllm(tmp_path: Path) -> None:
    done = run(load_recipe("S02"), variant="threshold-1024")
    contract = write(done, tmp_path)
    waits = [s.end - s.start for s in named(contract, names.SPAN_QUEUE)]
    spans = write(done, tmp_path, form="vllm")
    assert max(waits) > 50e6
    assert max(s.attributes["gen_ai.latency.time_in_queue"] for s in spans) < 1e-3


@pytest.mark.parametrize(
    ("drop", "gone"),
    [
        ("steps", names.SPAN_ENGINE_STEP),
        ("network", names.SPAN_NETWORK),
        ("frontend", names.SPAN_FRONTEND),
        ("queue", names.SPAN_QUEUE),
        ("prefill", names.SPAN_PREFILL),
        ("chunks", names.SPAN_PREFILL_CHUNK),
        ("decode", names.SPAN_DECODE),
        ("cached", names.USAGE_CACHED_TOKENS),
        ("preemptions", names.PREEMPTIONS),
        ("preemptions", names.STEP_PREEMPTED),
        ("replica", names.ENGINE_ID),
        ("replica", names.HOST_NAME),
        ("admit_bound", names.STEP_ADMIT_BOUND),
    ],
)
def test_drops(drop: str, gone: str, runs: dict[str, Run], tmp_path: Path) -> None:
    def seen(spans: list[Read]) -> set[str]:
        keys = {key for s in spans for key in (*s.attributes, *s.resource)}
        return keys | {s.name for s in spans}

    assert gone in seen(write(runs["S03"], tmp_path))
    assert gone not in seen(write(runs["S03"], tmp_path, drop=[drop]))


def test_dropping_clients_leaves_a_root_request(runs: dict[str, Run], tmp_path: Path) -> None:
    spans = write(runs["S03"], tmp_path, drop=["client"])
    assert all(s.kind != names.KIND_CLIENT for s in spans)
    assert all(s.parent is None for s in named(spans, names.SPAN_REQUEST))


def test_lost_steps_leave_holes_and_a_full_list_after(runs: dict[str, Run], tmp_path: Path) -> None:
    done = runs["overlap-two-deep"]
    spans = write(done, tmp_path, damage=Damage(lost_step_frac=0.1))
    steps = named(spans, names.SPAN_ENGINE_STEP)
    assert 0.85 * done.n_steps < len(steps) < 0.95 * done.n_steps
    for before, after in itertools.pairwise(steps):
        n_lost = after.attributes[names.STEP_INDEX] - before.attributes[names.STEP_INDEX] - 1
        counted = after.attributes[names.STEP_DROPPED] - before.attributes[names.STEP_DROPPED]
        assert n_lost == counted
        if n_lost and after.attributes[names.STEP_DECODE_COUNT]:
            full = indexes_of(after.attributes[names.STEP_DECODE_REQUESTS])
            assert len(full) == after.attributes[names.STEP_DECODE_COUNT]


def test_sampling_tells_its_weight_and_keeps_steps(runs: dict[str, Run], tmp_path: Path) -> None:
    done = runs["overlap-two-deep"]
    spans = write(done, tmp_path, damage=Damage(sample_frac=0.25))
    requests = named(spans, names.SPAN_REQUEST)
    assert 0 < len(requests) < len(done.requests) / 2
    assert {s.attributes[names.SAMPLE_WEIGHT] for s in requests} == {4.0}
    assert len(named(spans, names.SPAN_ENGINE_STEP)) == done.n_steps


def test_duplicates_and_skew(runs: dict[str, Run], tmp_path: Path) -> None:
    plain = write(runs["S03"], tmp_path)
    twice = write(runs["S03"], tmp_path, damage=Damage(duplicate_frac=0.2))
    assert len(twice) > len(plain)
    assert {(s.trace, s.id) for s in twice} == {(s.trace, s.id) for s in plain}
    skewed = write(runs["S03"], tmp_path, damage=Damage(client_skew_ms=500))
    ahead = [s for s in skewed if s.kind == names.KIND_CLIENT]
    before = {s.trace: s for s in plain if s.kind == names.KIND_CLIENT}
    assert all(s.start - before[s.trace].start == 500_000_000 for s in ahead)
    inward = [s for s in named(skewed, names.SPAN_NETWORK) if s.attributes[names.DIRECTION] == "in"]
    assert {s.attributes[names.CLOCK] for s in inward} == {"remote"}


def test_bad_requests_are_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot drop"):
        write(runs["S03"], tmp_path, drop=["everything"])
    with pytest.raises(InputError, match="no form"):
        write(runs["S03"], tmp_path, form="jaeger")
    with pytest.raises(InputError, match="shares"):
        Damage(sample_frac=0.0)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_traces(runs["S03"], blocked / "t.jsonl")
    assert "steps" in DROPS
