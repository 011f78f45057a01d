"""Traces of real engines: counts against the notes that came with them, and identities."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenlag.read.load import load_traces
from tokenlag.store.connection import Store

from tests.read.span_rows import load_rows, read_otlp, shared

LABS = ["healthy", "queue-slots", "long-prompt", "long-prompt-chunked", "prompts-grew"]
SLOTS = {"queue-slots": 2}


@pytest.fixture(scope="module", params=LABS)
def lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Store]]:
    folder = shared() / "captured" / "vllm-lab" / request.param
    rows, events = read_otlp(folder / "traces.jsonl.gz")
    with Store() as store:
        load_rows(store, tmp_path_factory.mktemp("lab"), rows, events)
        yield request.param, store


def n_requests(name: str) -> int:
    text = (shared() / "captured" / "vllm-lab" / name / "how.txt").read_text()
    found = re.search(r"(\d+) requests", text)
    assert found
    return int(found.group(1))


def test_counts_are_those_of_the_notes(lab: tuple[str, Store]) -> None:
    name, store = lab
    assert store.fetchall(
        "select count(*), count(ttft_ms), count(distinct request_id) from requests"
    ) == [(n_requests(name),) * 3]
    assert store.fetchall("select count(*), count(request_key) from sequences") == [
        (n_requests(name),) * 2
    ]
    assert store.fetchall("select engine_id, engine_name, max_seqs from epochs") == [
        ("vllm-0", "vllm", SLOTS.get(name, 32))
    ]


def test_steps_are_those_of_the_schedulers_log(lab: tuple[str, Store]) -> None:
    name, store = lab
    path = shared() / "captured" / "vllm-lab" / name / "steps.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        logged = [json.loads(line) for line in lines]
    assert logged
    (n_steps,) = store.fetchall("select count(*) from steps")[0]
    assert 0 < n_steps <= len(logged)
    assert store.fetchall("select count(*) from steps where is_after_hole") == [(0,)]


def test_phases_sum_to_end_to_end(lab: tuple[str, Store]) -> None:
    _, store = lab
    assert store.fetchall(
        "select max(abs(total - (r.end_ns - least(r.arrival_ns, r.sent_ns)))) from requests r "
        "join (select request_key, sum(end_ns - start_ns) as total from phases group by 1) "
        "using (request_key)"
    ) == [(0,)]
    assert store.fetchall("select count(*) from phases where kind = 'uncovered'") == [(0,)]


def test_cadences_sum_to_busy_time(lab: tuple[str, Store]) -> None:
    _, store = lab
    spans = store.fetchall("select start_ns, end_ns from steps order by start_ns")
    busy, reached = 0, 0
    for start, end in spans:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    assert store.scalar("select sum(cadence_ms) from steps") == pytest.approx(busy / 1e6, rel=1e-9)


def test_memberships_count_what_each_step_counts(lab: tuple[str, Store]) -> None:
    _, store = lab
    assert (
        store.fetchall(
            "select t.step_index, any_value(t.n_decode) as told, count(m.request_index) as carried "
            "from steps t left join memberships m on m.epoch_key = t.epoch_key "
            "and t.step_index between m.first_step and m.last_step "
            "group by t.step_index having told <> carried"
        )
        == []
    )
    assert store.fetchall("select count(*) from memberships where seq_key is null") == [(0,)]


def test_chunks_are_the_prompts(lab: tuple[str, Store]) -> None:
    _, store = lab
    assert store.fetchall(
        "select count(*) from (select s.seq_key, sum(c.n_tokens) as done, "
        "any_value(s.n_prompt - coalesce(s.n_cached, 0)) as new "
        "from sequences s join chunks c using (seq_key) group by 1 having new <> done)"
    ) == [(0,)]
    assert store.fetchall(
        "select count(distinct seq_key) = (select count(*) from sequences) from chunks"
    ) == [(True,)]


def test_nothing_is_wrong_with_them(lab: tuple[str, Store]) -> None:
    _, store = lab
    assert store.fetchall("select * from quality") == []
    assert store.fetchall("select * from read_notes") == []


def test_with_vllms_own_spans_each_request_is_still_one(tmp_path: Path) -> None:
    folder = shared() / "captured" / "vllm-lab" / "long-prompt"
    rows = read_otlp(folder / "traces.jsonl.gz")[0] + read_otlp(folder / "vllm-otlp.jsonl.gz")[0]
    with Store() as store:
        load_rows(store, tmp_path, rows)
        # 15 more are the warm-up before the clients started; the engine is the same.
        assert store.fetchall("select dialects, count(*) from requests group by 1 order by 1") == [
            ("contract,vllm", 82),
            ("vllm", 15),
        ]
        assert store.fetchall("select engine_id from epochs") == [("vllm-0",)]
        assert store.fetchall("select kind, n from read_notes") == [("startup_spans", 11)]
        assert (
            store.scalar("select max(abs(ttft_ms - e2e_ms)) from requests where ttft_ms > e2e_ms")
            is None
        )


@pytest.mark.parametrize(
    ("name", "n_spans", "n_expected"),
    [
        ("vllm-0.32.0-cpu-traces", 50, 50),
        ("vllm-0.32.0-cpu-preempt-traces", 60, 60),
        ("vllm-0.32.0-cpu-stepped-traces", 60, 60),
        # 100 sent: 10 aborts and 4 rejects leave no span, 6 with n = 2 leave two.
        ("vllm-0.32.0-cpu-rich-traces", 92, 86),
        # Function calls only: no request in them, and none is made up.
        ("transformers-5.8.1-cb-traces", 0, 0),
    ],
)
def test_engines_own_spans(name: str, n_spans: int, n_expected: int, tmp_path: Path) -> None:
    rows, _ = read_otlp(shared() / "captured" / "engines" / f"{name}.jsonl.gz")
    assert sum(row["name"] == "llm_request" for row in rows) == n_spans
    with Store() as store:
        load_rows(store, tmp_path, rows)
        assert store.scalar("select count(*) from requests") == n_expected
        assert store.scalar("select count(*) from sequences") == n_spans
        assert (
            store.fetchall(
                "select r.request_key from requests r join phases p using (request_key) "
                "group by r.request_key, r.arrival_ns, r.end_ns "
                "having sum(p.end_ns - p.start_ns) <> r.end_ns - r.arrival_ns"
            )
            == []
        )
        # Queue and prefill are vLLM's own figures to the microsecond.
        told = {
            row["span_id"]: row["gen_ai.latency.time_in_queue"]
            for row in rows
            if row["name"] == "llm_request"
        }
        queued = store.scalar(
            "select sum(end_ns - start_ns) / 1e9 from phases where kind = 'queue'"
        )
        if n_spans == n_expected and n_spans:
            assert queued == pytest.approx(sum(told.values()), abs=1e-6 * n_spans)


def test_a_folder_as_it_lies_there(tmp_path: Path) -> None:
    """Through the reader: other files in the folder are skipped, and said."""
    with Store() as store:
        folder = shared() / "captured" / "vllm-lab" / "queue-slots"
        result = load_traces(store, [folder], work_dir=tmp_path)
        assert result.n_files == 2
        assert store.fetchall(
            "select dialects, count(*) from requests group by 1 order by 1"
        ) == [("contract,vllm", 204), ("vllm", 15)]  # fmt: skip
        kinds = dict(store.fetchall("select kind, sum(n) from read_notes group by 1"))
        assert kinds == {"skipped_file": 3, "startup_spans": 11}
        # The same folder once more as baseline: nothing is joined across.
        load_traces(store, [folder], dataset=1, work_dir=tmp_path)
        assert store.fetchall(
            "select dataset, count(*), sum(ttft_ms) > 0 from requests group by 1 order by 1"
        ) == [(0, 219, True), (1, 219, True)]
        assert store.fetchall(
            "select e.dataset, count(*) from memberships m join epochs e using (epoch_key) "
            "join sequences s on s.seq_key = m.seq_key and s.epoch_key = m.epoch_key "
            "group by 1 order by 1"
        ) == [(0, 204), (1, 204)]
