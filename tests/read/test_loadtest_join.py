"""Load tests beside their server's traces: who is whom, whatever the clocks say."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenlag.errors import InputError
from tokenlag.read.load import load_traces
from tokenlag.read.loadtest.join import Side, join_by_time
from tokenlag.simulate.emit_results import samples_of, write_result
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import Run
from tokenlag.simulate.run import run as simulate
from tokenlag.simulate.timeline import DEFAULT_END_NS
from tokenlag.simulate.traces import write_traces
from tokenlag.store.connection import Store

Traces = Callable[[Run, str], Path]

MINUTE_NS = 60_000_000_000


@pytest.fixture(scope="module")
def peak() -> Run:
    """Poisson arrivals of varied lengths, some of them queued."""
    return simulate(load_recipe("slow"), variant="healthy")


@pytest.fixture(scope="module")
def closed() -> Run:
    """Clients in a closed loop, all lengths equal."""
    return simulate(load_recipe("S12"), variant="burst-200")


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as made:
        yield made


@pytest.fixture(scope="module")
def traces_of(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """The server's own traces of a run, written once."""

    @functools.cache
    def written(run_id: int, form: str) -> Path:
        path = tmp_path_factory.mktemp("traces") / "t.jsonl"
        drop = ["client", "network"] if form == "contract" else []
        write_traces(runs[run_id], path, form, drop)
        return path

    runs: dict[int, Run] = {}

    def of(run: Run, form: str) -> Path:
        runs[id(run)] = run
        return written(id(run), form)

    return of


def loaded(
    store: Store, folder: Path, run: Run, tool: str, traces: Path, shift_ns: int = 0
) -> None:
    """Server's traces and the load test's result beside them, its clock off by `shift_ns`."""
    data, work = folder / "data", folder / "work"
    data.mkdir()
    work.mkdir()
    (data / "t.jsonl").symlink_to(traces)
    write_result(run, data / "result.json", tool, end_ns=DEFAULT_END_NS + shift_ns)
    load_traces(store, [data], work_dir=work)


@pytest.mark.parametrize("form", ["contract", "vllm"])
@pytest.mark.parametrize(
    ("tool", "shift_ns"),
    [("vllm", 0), ("aiperf", 0), ("guidellm", 0), ("aiperf", -3 * 10**9), ("guidellm", 4 * 10**9)],
)
def test_each_request_is_one_row_with_both_sides(
    store: Store, tmp_path: Path, peak: Run, traces_of: Traces, tool: str, shift_ns: int, form: str
) -> None:
    loaded(store, tmp_path, peak, tool, traces_of(peak, form), shift_ns)
    samples = {s.number: s for s in samples_of(peak)}
    told_by = {"contract": "contract", "vllm": "vllm"}[form]
    rows = store.fetchall(
        "select dialects, request_id, (client_end_ns - sent_ns) / 1e6, "
        "(client_first_ns - sent_ns) / 1e6, n_client_chunks from requests"
    )
    n = len(samples)
    assert len(rows) == n
    n_joined = 0
    for dialects, request_id, e2e_ms, first_ms, n_chunks in rows:
        if dialects != f"{told_by},load-test":
            continue
        n_joined += 1
        sample = samples[int(request_id.removeprefix("cmpl-").split("-")[1])]
        assert e2e_ms == pytest.approx(sample.e2e_s * 1e3, abs=0.01)
        assert first_ms == pytest.approx(sample.ttft_s * 1e3, abs=0.01)
        assert n_chunks in (len(sample.chunks_s), None)
    assert n_joined == n


def test_equal_lengths_in_a_closed_loop(
    store: Store, tmp_path: Path, closed: Run, traces_of: Traces
) -> None:
    loaded(store, tmp_path, closed, "vllm", traces_of(closed, "contract"))
    found = store.fetchall("select dialects, count(*) from requests group by all")
    assert found == [("contract,load-test", 320)]


def test_ids_go_before_times(store: Store, tmp_path: Path, peak: Run, traces_of: Traces) -> None:
    """AIPerf sends its ids: clocks an hour apart do no harm."""
    loaded(store, tmp_path, peak, "aiperf", traces_of(peak, "vllm"), 59 * MINUTE_NS)
    found = dict(store.fetchall("select dialects, count(*) from requests group by all"))
    assert found == {"vllm,load-test": len(samples_of(peak))}


def test_another_tests_traces_are_not_joined(store: Store, tmp_path: Path, peak: Run) -> None:
    other = simulate(load_recipe("slow"), variant="healthy", seed=99)
    for name in ("data", "work"):
        (tmp_path / name).mkdir()
    write_traces(other, tmp_path / "data" / "t.jsonl", "contract", ["client", "network"])
    write_result(peak, tmp_path / "data" / "r.json", "vllm", end_ns=DEFAULT_END_NS)
    load_traces(store, [tmp_path / "data"], work_dir=tmp_path / "work")
    dialects = {d for (d,) in store.fetchall("select distinct dialects from requests")}
    assert dialects == {"contract", "load-test"}
    notes = [t for (t,) in store.fetchall("select text from read_notes")]
    assert any("none of the traces' by time; they stand apart" in text for text in notes)


def in_chunks(path: Path, n_tokens: int, n_added: int = 0) -> None:
    """Makes the result one of a tool that counts chunks, of so many tokens each, as tokens."""
    told = json.loads(path.read_text())
    for at, gaps in enumerate(told["itls"]):
        merged = [sum(gaps[i : i + n_tokens]) for i in range(0, len(gaps), n_tokens)]
        told["itls"][at], told["output_lens"][at] = merged, len(merged) + 1
        told["input_lens"][at] -= n_added
    path.write_text(json.dumps(told))


@pytest.mark.parametrize("n_added", [0, 23])
def test_chunks_that_are_counted_as_tokens_are_told(
    store: Store, tmp_path: Path, peak: Run, traces_of: Traces, n_added: int
) -> None:
    """Outputs' lengths are of no use then; prompts' are, but for what a template adds."""
    for name in ("data", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "t.jsonl").symlink_to(traces_of(peak, "contract"))
    write_result(peak, tmp_path / "data" / "r.json", "vllm", end_ns=DEFAULT_END_NS)
    in_chunks(tmp_path / "data" / "r.json", 4, n_added)
    load_traces(store, [tmp_path / "data"], work_dir=tmp_path / "work")
    found = dict(store.fetchall("select dialects, count(*) from requests group by all"))
    n = len(samples_of(peak))
    assert found.get("contract,load-test", 0) > 0.95 * n
    (text,) = [t for (t,) in store.fetchall("select text from read_notes") if "counts chunks" in t]
    factor = float(text.split("the server made ")[1].split()[0])
    assert 3 < factor <= 4
    # Who is whom is right: each answer ends with the server's, but for the way out.
    apart = store.fetchall(
        "select (client_end_ns - end_ns) / 1e6 from requests where dialects = 'contract,load-test'"
    )
    assert np.median([abs(ms) for (ms,) in apart]) < 50


def test_a_load_test_that_counts_as_the_server_gets_no_such_note(
    store: Store, tmp_path: Path, peak: Run, traces_of: Traces
) -> None:
    loaded(store, tmp_path, peak, "aiperf", traces_of(peak, "vllm"))
    assert store.scalar("select count(*) from read_notes where kind = 'load_test_counts'") == 0


def test_alone_it_is_a_client(store: Store, tmp_path: Path, peak: Run) -> None:
    path = tmp_path / "r.json"
    write_result(peak, path, "guidellm", end_ns=DEFAULT_END_NS)
    load_traces(store, [path], work_dir=tmp_path)
    samples = samples_of(peak)
    n, mean_ms = store.fetchone("select count(*), avg(ttft_ms) from requests") or (0, 0)
    assert n == len(samples)
    assert mean_ms == pytest.approx(np.mean([s.ttft_s for s in samples]) * 1e3, abs=0.01)
    texts = [t for (t,) in store.fetchall("select text from read_notes order by text")]
    assert any("requests of GuideLLM" in text for text in texts)
    assert any("includes the first token" in text for text in texts)


@pytest.mark.parametrize("tool", ["vllm-summary", "sglang", "llmperf"])
def test_without_requests_or_moments_it_is_refused_in_one_line(
    store: Store, tmp_path: Path, peak: Run, tool: str
) -> None:
    path = tmp_path / "r.json"
    write_result(peak, path, tool, end_ns=DEFAULT_END_NS)
    with pytest.raises(InputError, match="without") as caught:
        load_traces(store, [path], work_dir=tmp_path)
    assert caught.value.hint is not None
    assert "compare" in caught.value.hint


def test_no_text_of_a_result_is_kept(store: Store, tmp_path: Path, peak: Run) -> None:
    path = tmp_path / "r.json"
    write_result(peak, path, "vllm", end_ns=DEFAULT_END_NS)
    told = json.loads(path.read_text())
    assert "text that nobody may read" in told["generated_texts"]
    load_traces(store, [path], work_dir=tmp_path)
    for file in tmp_path.rglob("*.parquet"):
        assert b"nobody may read" not in file.read_bytes()


def test_regular_sends_do_not_pretend_to_fit() -> None:
    """Sends at a fixed distance fit at every shift by it: no offset stands out."""
    at = np.arange(200, dtype=np.int64) * 10**9
    lengths = np.full(200, 128, dtype=np.int64)
    more = np.arange(1000, dtype=np.int64) * 10**9
    server = Side(more, more + 10**8, np.full(1000, 128, dtype=np.int64))
    assert join_by_time(Side(at, at + 10**8, lengths), server, has_wall_clock=False) is None
