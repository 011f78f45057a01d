"""Result files of load tests: each tool's, made from one run, and other people's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tokenlag.errors import InputError
from tokenlag.read.lines import MAX_TEXT_BYTES
from tokenlag.read.loadtest.reader import is_load_test, read_file
from tokenlag.read.loadtest.run import Run
from tokenlag.simulate.emit_results import TOOLS, Sample, samples_of, write_result
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import Run as Simulated
from tokenlag.simulate.run import run as simulate
from tokenlag.simulate.timeline import DEFAULT_END_NS

DETAILED = ("vllm", "aiperf", "guidellm", "llmperf")

# file in bench/ → (tool, answered, failed) of each run in it
CORPUS = {
    "aiperf__qwen-c1-profile_export.jsonl": [("AIPerf", 10, 0)],
    "aiperf__qwen-c2-profile_export.jsonl": [("AIPerf", 10, 0)],
    "aiperf__qwen-c1-profile_export_aiperf.json": [("AIPerf", 64, 0)],
    "ds4-harness__gb10-conv_mtp2-bench.json": [("vLLM bench serve", 80, 0)] * 4,
    "inferencex__glm5_fp8_vllm_tp8_isl1024_osl128_conc16.json": [("vLLM bench serve", 160, 0)],
    "inferencex__glm5_fp8_vllm_tp8_isl16384_osl128_conc64.json": [("vLLM bench serve", 640, 0)],
    "llmperf__individual-anyscale_7b.json": [("llmperf", 150, 0)],
    "llmperf__individual-groq_70b.json": [("llmperf", 150, 0)],
    "llmperf__individual-bedrock_70b.json": [("llmperf", 101, 49)],
    "llmperf__summary-bedrock_70b.json": [("llmperf", 101, 49)],
    "vllm-vcr__gemma4_mm_trace.jsonl": [("vLLM vcr recording", 4, 0)],
    "vllm-vcr__spec_decode_trace.jsonl": [("vLLM vcr recording", 8, 0)],
    "vllm-vcr__diffusion_block_trace.jsonl": [("vLLM vcr recording", 6, 0)],
    "vllm-vcr__guidellm_sample.json": [("GuideLLM", 3, 0), ("GuideLLM", 1, 0)],
}
NO_RESULT = {"aiperf__qwen-c1-gpu_telemetry_export.jsonl"}


@pytest.fixture(scope="module")
def made() -> Simulated:
    return simulate(load_recipe("S12"), variant="burst-200")


@pytest.fixture(scope="module")
def truth(made: Simulated) -> list[Sample]:
    return samples_of(made)


def written(made: Simulated, folder: Path, tool: str) -> Path:
    path = folder / f"{tool}.json"
    assert write_result(made, path, tool, end_ns=DEFAULT_END_NS, clients=32) == 320
    return path


def only(path: Path) -> Run:
    (run,) = read_file(str(path))
    return run


@pytest.mark.parametrize("tool", DETAILED)
def test_every_tools_requests_are_the_same_in_our_names(
    tool: str, made: Simulated, truth: list[Sample], tmp_path: Path
) -> None:
    requests = only(written(made, tmp_path, tool)).requests
    assert requests is not None
    assert requests.is_good.all()
    for column, wanted in (
        (requests.ttft_ms, [s.ttft_s * 1e3 for s in truth]),
        (requests.e2e_ms, [s.e2e_s * 1e3 for s in truth]),
        (requests.tpot_ms, [(s.tpot_s or 0) * 1e3 for s in truth]),
        (requests.n_prompt, [s.n_prompt for s in truth]),
        (requests.n_output, [len(s.chunks_s) for s in truth]),
    ):
        np.testing.assert_allclose(column, wanted, rtol=1e-6, atol=2e-3)


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_the_means_are_the_same_whoever_computed_them(
    tool: str, made: Simulated, truth: list[Sample], tmp_path: Path
) -> None:
    metrics = only(written(made, tmp_path, tool)).metrics
    wanted = {
        "ttft_ms": np.mean([s.ttft_s for s in truth]) * 1e3,
        "tpot_ms": np.mean([s.tpot_s or 0 for s in truth]) * 1e3,
        "e2e_ms": np.mean([s.e2e_s for s in truth]) * 1e3,
        "n_prompt": 3100,
        "n_output": 200,
    }
    for name, value in wanted.items():
        assert metrics[name].mean == pytest.approx(value, rel=1e-6), name
        assert metrics[name].n == 320


def test_send_times(made: Simulated, truth: list[Sample], tmp_path: Path) -> None:
    sent_s = np.array([s.sent_s for s in truth])
    for tool, has_wall_clock in (("vllm", False), ("aiperf", True), ("guidellm", True)):
        requests = only(written(made, tmp_path, tool)).requests
        assert requests is not None
        assert requests.sent_ns is not None
        assert requests.has_wall_clock == has_wall_clock
        since = (requests.sent_ns - requests.sent_ns[0]) / 1e9
        np.testing.assert_allclose(since, sent_s - sent_s[0], atol=2e-6)
        if has_wall_clock:
            assert requests.sent_ns[0] == pytest.approx(
                DEFAULT_END_NS - round((made.last_instant_s - sent_s[0]) * 1e9), abs=1000
            )
    requests = only(written(made, tmp_path, "llmperf")).requests
    assert requests is not None
    assert requests.sent_ns is None


def test_planned_sends_are_kept(tmp_path: Path) -> None:
    made = simulate(load_recipe("S12"), variant="client-queue")
    late_s = np.mean([s.sent_s - (s.intended_s or 0) for s in samples_of(made)])
    assert late_s > 1
    for tool in ("aiperf", "guidellm"):
        path = tmp_path / tool
        write_result(made, path, tool, end_ns=DEFAULT_END_NS)
        requests = only(path).requests
        assert requests is not None
        assert requests.sent_ns is not None
        assert requests.intended_ns is not None
        late_ns = requests.sent_ns - requests.intended_ns
        assert late_ns.mean() / 1e9 == pytest.approx(late_s, rel=1e-4)


def test_load_is_read(made: Simulated, tmp_path: Path) -> None:
    for tool in ("vllm", "sglang", "guidellm"):
        run = only(written(made, tmp_path, tool))
        assert (run.rate_per_s, run.max_concurrency) == (None, 32), tool


def test_guidellm_time_per_token_is_not_taken_for_ours(made: Simulated, tmp_path: Path) -> None:
    path = written(made, tmp_path, "guidellm")
    told = json.loads(path.read_text())["benchmarks"][0]["requests"]["successful"]
    theirs = np.mean([row["time_per_output_token_ms"] for row in told])
    run = only(path)
    assert run.metrics["tpot_ms"].mean is not None
    assert theirs > 1.05 * run.metrics["tpot_ms"].mean
    assert any("includes the first token" in text for text in run.translations)


def test_chunks_of_several_tokens_are_named(made: Simulated, tmp_path: Path) -> None:
    path = written(made, tmp_path, "vllm")
    told = json.loads(path.read_text())
    told["itls"] = [[a + b for a, b in zip(r[::2], r[1::2], strict=False)] for r in told["itls"]]
    told["output_lens"] = [2 * len(row) + 1 for row in told["itls"]]
    told["mean_itl_ms"] *= 2
    path.write_text(json.dumps(told))
    run = only(path)
    assert any("time between chunks of about 2." in text for text in run.translations), (
        run.translations
    )
    assert run.requests is not None
    assert (run.requests.n_chunks < 0.6 * run.requests.n_output).all()


def test_failed_requests_are_counted_and_no_times(made: Simulated, tmp_path: Path) -> None:
    path = written(made, tmp_path, "vllm")
    told = json.loads(path.read_text())
    mean_ms = only(path).metrics["ttft_ms"].mean
    told["ttfts"][:3] = [0.0] * 3
    told["itls"][:3] = [[]] * 3
    told["output_lens"][:3] = [0] * 3
    told["errors"][:3] = ["Traceback …"] * 3
    path.write_text(json.dumps(told))
    run = only(path)
    assert run.n_failed == 3
    assert run.metrics["ttft_ms"].n == 317
    assert run.metrics["ttft_ms"].mean == pytest.approx(mean_ms, rel=0.05)


def test_results_one_a_line_are_a_sweep(made: Simulated, tmp_path: Path) -> None:
    path = written(made, tmp_path, "sglang")
    path.write_text(path.read_text() * 2)
    assert [run.max_concurrency for run in read_file(str(path))] == [32, 32]


def test_a_run_that_was_stopped_loses_its_last_line_only(made: Simulated, tmp_path: Path) -> None:
    path = written(made, tmp_path, "aiperf")
    path.write_bytes(path.read_bytes()[:-100])
    run = only(path)
    assert run.metrics["ttft_ms"].n == 319
    assert any("1 of its 320 lines" in text for text in run.translations)


def test_records_of_any_size_are_read_as_they_come(made: Simulated, tmp_path: Path) -> None:
    """More than the limit of one text, compressed as it may be."""
    path = written(made, tmp_path, "aiperf")
    lines = path.read_bytes()
    n_times = MAX_TEXT_BYTES // len(lines) + 1
    packed = tmp_path / "large.jsonl.gz"
    with gzip.open(packed, "wb", compresslevel=1) as file:
        for _ in range(n_times):
            file.write(lines)
    assert only(packed).metrics["ttft_ms"].n == 320 * n_times


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"request_throughput": 1.0, "total_input_tokens": 3, "duration"', "cut off or not JSON"),
        ('{"request_throughput": 1.0, "total_input_tokens": 3}', "no result in it"),
        ('{"ttfts": "many", "itls": []}', "not the result file it seems to be"),
        ('{"benchmarks": [], "guidellm_version": "1"}', "without a finished request"),
        ('{"a": 1}', "no load test's result file"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError, match=why) as caught:
        read_file(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(CORPUS))
def test_other_peoples_files(name: str, shared: Path) -> None:
    path = shared / "corpus" / "bench" / name
    runs = read_file(str(path))
    assert [(run.tool, run.n_done, run.n_failed) for run in runs] == CORPUS[name]
    for run in runs:
        ttft, e2e = run.metrics["ttft_ms"], run.metrics["e2e_ms"]
        low, high = ttft.mean or ttft.p50, e2e.mean or e2e.p50
        assert low is not None
        assert high is not None
        assert 0 < low < high


def test_no_file_is_left_out(shared: Path) -> None:
    names = {path.name for path in (shared / "corpus" / "bench").iterdir()}
    assert names == set(CORPUS) | NO_RESULT


def test_nothing_else_is_taken_for_a_result(shared: Path) -> None:
    files = [p for p in (shared / "corpus").glob("*/*") if p.parent.name not in ("bench", "calib")]
    assert len(files) > 50
    assert [p.name for p in files if is_load_test(str(p))] == []
    telemetry = shared / "corpus" / "bench" / NO_RESULT.copy().pop()
    assert not is_load_test(str(telemetry))
