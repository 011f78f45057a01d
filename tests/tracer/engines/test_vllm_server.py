"""A real vLLM server with the tracer in it: what it writes is what its clients saw.

Runs where vLLM is installed, or where TOKENLAG_VLLM_PYTHON names a Python that has it; the
stand-in tests (`test_vllm_steps.py`) run everywhere. One server for each way of starting it.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tokenlag.read.load import load_traces
from tokenlag.store.connection import Store

from tests.tracer.engines import vllm_server
from tests.tracer.engines.vllm_server import BLOCK_SIZE, BUDGET, MARK, N_BLOCKS, N_SLOTS, Served

pytestmark = pytest.mark.slow


class Traced:
    """A server's clients' records, and its traces as tables."""

    def __init__(self, served: Served, store: Store) -> None:
        self.served = served
        self.store = store

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.store.fetchall(query)

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """Rows of a scenario's requests: id, trace, prompt, cached, computed, output, aborted."""
        return self.rows(
            "select request_id, trace_id, n_prompt, n_cached, n_computed, n_output, is_aborted, "
            f"is_open from requests where request_id like 'cmpl-{name}%'"
        )


@pytest.fixture(scope="module", params=["plugin", "run"])
def traced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp(request.param)
    with vllm_server.server(request.param, folder) as (port, served):
        vllm_server.drive(port, served)
    log = served.logs[0].read_text(errors="replace")
    assert "is no longer traced" not in log
    assert "traced in part" not in log
    with Store() as store:
        result = load_traces(store, [served.traces], work_dir=folder / "work", n_workers=1)
        assert not result.problems
        yield Traced(served, store)


def test_every_request_is_there_with_its_tokens(traced: Traced) -> None:
    told = {row[0]: row for row in traced.of("")}
    served = [record for record in traced.served.all_records if record.error is None]
    assert len(served) > 20
    for record in served:
        assert record.status == 200
        row = told[f"cmpl-{record.request_id}-0"]
        assert row[1] == record.traceparent.split("-")[1], "another trace than the client's"
        assert row[2] == record.n_prompt
        assert row[5] == record.n_output * record.n
        assert not row[6]
    assert traced.rows("select count(*) from requests where is_open") == [(0,)]


def test_chunks_and_cached_tokens_are_the_prompt(traced: Traced) -> None:
    told = traced.rows(
        "select q.n_prompt, q.n_cached, sum(c.n_tokens), min(c.n_context) from sequences q "
        "join chunks c using (seq_key) join requests r using (request_key) "
        "where q.n_preemptions = 0 and not r.is_aborted group by q.seq_key, q.n_prompt, q.n_cached"
    )
    assert len(told) > 10
    for n_prompt, n_cached, n_computed, n_first_context in told:
        assert n_prompt == n_cached + n_computed
        assert n_first_context == n_cached


def test_long_prompts_are_chunked_beside_streams(traced: Traced) -> None:
    [[n_chunks]] = traced.rows(
        "select max(n) from (select count(*) as n from chunks c join sequences q using (seq_key) "
        "join requests r using (request_key) where r.request_id like 'cmpl-chunk%' "
        "group by c.seq_key)"
    )
    assert n_chunks >= 600 // BUDGET + 1
    [[n_mixed, n_most]] = traced.rows(
        "select count(*) filter (n_chunks > 0 and n_decode > 0), "
        "max(n_prefill_tokens + n_decode) from steps"
    )
    assert n_mixed > 0
    assert n_most <= BUDGET


def test_a_shared_prefix_is_cached(traced: Traced) -> None:
    told = {row[0]: row[3] for row in traced.of("prefix")}
    names = [record.request_id for record in traced.served.records["prefix"]]
    # The same 300 tokens each time, of which 288 are in whole blocks.
    assert [told[f"cmpl-{name}-0"] for name in names] == [0, 288, 288]


def test_running_out_of_kv_is_seen_as_preemption(traced: Traced) -> None:
    [[n_steps, n_listed, n_requests, n_sequences]] = traced.rows(
        "select (select sum(n_preempted) from steps), (select count(*) from preemptions), "
        "(select sum(n_preemptions) from requests), (select sum(n_preemptions) from sequences)"
    )
    assert n_steps == n_listed == n_requests == n_sequences > 0
    again = traced.rows("select n_tokens from phases where kind = 'prefill' and is_recompute")
    waits = traced.rows(
        "select r.is_aborted and p.end_ns >= max(p.end_ns) over (partition by p.seq_key) "
        "from phases p join requests r using (request_key) "
        "where p.seq_key is not null and p.kind in ('requeue', 'prefill', 'decode') "
        "qualify p.kind = 'requeue'"
    )
    assert len(waits) == n_steps
    # Whoever was put back is prefilled again, unless its client left while it waited.
    assert len(again) == sum(not is_given_up for (is_given_up,) in waits) > 0
    assert all(n_tokens > 0 for (n_tokens,) in again)
    [[usage, bounds]] = traced.rows(
        "select max(kv_usage_frac), list(distinct admit_bound) from steps where n_waiting > 0"
    )
    assert usage > 0.9
    assert "kv" in bounds
    assert "none" not in bounds


def test_several_sequences_are_one_request(traced: Traced) -> None:
    for record in traced.served.records["several"]:
        told = traced.rows(
            "select q.sequence, q.n_output from sequences q join requests r using (request_key) "
            f"where r.request_id = 'cmpl-{record.request_id}-0' order by q.sequence"
        )
        assert told == [(0, record.n_output), (1, record.n_output)]


def test_aborted_requests_have_an_end(traced: Traced) -> None:
    records = traced.served.records["abort"]
    told = {row[0]: row for row in traced.of("abort")}
    assert len(told) == len(records) == 3
    for record in records:
        assert record.error == "aborted"
        row = told[f"cmpl-{record.request_id}-0"]
        # On a busy machine the server may notice only when the engine has made all of it.
        assert row[5] < record.n_output if row[6] else row[5] == record.n_output
    assert any(told[f"cmpl-{record.request_id}-0"][6] for record in records)
    ends = traced.rows(
        "select q.end_ns, r.arrival_ns from sequences q join requests r using (request_key) "
        "where r.request_id like 'cmpl-abort%'"
    )
    assert all(end_ns is not None and end_ns > start_ns for end_ns, start_ns in ends)


def test_members_are_counted_right_in_every_step(traced: Traced) -> None:
    wrong = traced.rows(
        "select s.step_index, s.n_decode, count(m.request_index) from steps s "
        "left join memberships m on m.epoch_key = s.epoch_key "
        "and s.step_index between m.first_step and m.last_step "
        "group by s.epoch_key, s.step_index, s.n_decode having count(m.request_index) <> s.n_decode"
    )
    assert not wrong
    [[n_steps, n_first, n_last, n_holes]] = traced.rows(
        "select count(*), min(step_index), max(step_index), count(*) filter (is_after_hole) "
        "from steps"
    )
    assert (n_first, n_holes) == (0, 0)
    assert n_steps == n_last + 1


def test_tokens_of_steps_are_tokens_of_requests(traced: Traced) -> None:
    [[n_decoded, n_prefills, n_output]] = traced.rows(
        "select (select sum(n_new_tokens) from steps), "
        "(select count(*) from phases where kind = 'prefill' and request_key in "
        "(select request_key from requests where not is_aborted)), "
        "(select sum(n_output) from requests where not is_aborted)"
    )
    [[n_aborted]] = traced.rows("select coalesce(sum(n_output), 0) from requests where is_aborted")
    # A prefill yields one token, a decoding sequence one for each of its steps; of an aborted
    # request some may have been computed and thrown away.
    assert (
        0
        <= n_decoded + n_prefills + len(traced.served.records["abort"]) - (n_output + n_aborted)
        <= 3 * len(traced.served.records["abort"])
    )


def test_depth_is_what_was_configured(traced: Traced) -> None:
    [[n_overlapping, n_steps]] = traced.rows(
        "select count(*) filter (start_ns < before_ns), count(*) from (select start_ns, "
        "lag(end_ns) over (order by step_index) as before_ns from steps)"
    )
    if traced.served.way == "run":
        assert n_overlapping > 0.5 * n_steps
    else:
        assert n_overlapping == 0


def test_front_end_and_engine_tile_each_request(traced: Traced) -> None:
    wrong = traced.rows(
        "select r.request_id from requests r join phases p using (request_key) "
        "where p.kind <> 'network_in' group by r.request_id, r.end_ns, r.arrival_ns "
        "having abs(sum(p.end_ns - p.start_ns) - (r.end_ns - r.arrival_ns)) > 2"
    )
    assert not wrong
    stages = traced.rows(
        "select detail, count(distinct request_key) from phases join requests using (request_key) "
        "where kind = 'frontend' and n_prompt is not null group by all"
    )
    n_requests = traced.rows("select count(*) from requests where n_prompt is not null")[0][0]
    told = dict(stages)
    assert told["tokenize"] == told["parse"] == n_requests
    assert told["template"] == len(traced.served.marked_outputs)


def test_first_token_is_between_the_clients_send_and_its_first_chunk(traced: Traced) -> None:
    told = dict(traced.rows("select request_id, first_token_ns from requests"))
    for record in traced.served.all_records:
        if not record.chunks:
            continue
        first_s = told[f"cmpl-{record.request_id}-0"] / 1e9
        # The client's stamps are floats of the same clock: a microsecond's rounding.
        assert record.sent - 1e-5 <= first_s <= record.sent + record.chunks[0] + 1e-5


def test_a_refused_request_has_no_engine(traced: Traced) -> None:
    assert traced.served.rejected_status == 400
    [row] = traced.rows(
        "select error_type, engine_ns, n_output from requests where request_id = 'rejected'"
    )
    assert row == ("400", None, None)


def test_engine_says_what_it_is(traced: Traced) -> None:
    [row] = traced.rows(
        "select engine_name, max_seqs, max_batch_tokens, kv_tokens, is_chunked_prefill, "
        "is_prefix_caching, model_name, kv_bytes_per_token from epochs"
    )
    # Two layers of one KV head of 64: keys and values in 4 bytes.
    assert row == (
        "vllm", N_SLOTS, BUDGET, N_BLOCKS * BLOCK_SIZE, True, True, "tiny", 2 * 2 * 64 * 4,
    )  # fmt: skip


def test_the_configured_scheduler_still_schedules(traced: Traced) -> None:
    if traced.served.way != "plugin":
        pytest.skip("a scheduler of vLLM's own is configured")
    n_calls = len(traced.served.own_steps.read_text())
    assert n_calls >= traced.rows("select count(*) from steps")[0][0]


def test_no_text_of_prompts_or_outputs_is_written(traced: Traced) -> None:
    files = [path for path in traced.served.traces.rglob("*") if path.is_file()]
    files += [path for path in traced.served.logs[1:] if path.exists()]
    assert files
    data = b"".join(
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in files
    )
    assert b"llm.engine_step" in data
    for text in (MARK, "pathlib"):
        assert text.encode() not in data
    assert len(traced.served.marked_outputs) == 2
    for output in traced.served.marked_outputs:
        for part in re.findall(r"[A-Za-z0-9_ ]{10,}", output):
            assert part.encode() not in data, "an output's text was written"
    assert traced.rows(
        "select count(*) from requests where request_id like 'chatcmpl-marked%'"
    ) == [(2,)]
