"""Result files of load tests: the client's side, in the tools' own words.

Each tool has a module that turns its files into `run.Run`; names are translated there
(docs/load-tests.md has the table). What is here decides by a file's first bytes which tool
wrote it, and imports none.
"""

from __future__ import annotations

import re
from typing import Final

SERVING: Final = "serving"  # vLLM bench serve, SGLang bench_serving and what copies them
AIPERF: Final = "aiperf"
GUIDELLM: Final = "guidellm"
LLMPERF: Final = "llmperf"
RECORDED: Final = "recorded"  # per-request recordings in the form of vLLM's vcr

# Which keys a file of the format has in its first part; all of one set must be there.
_MARKS: Final[tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]] = (
    (
        AIPERF,
        (
            ("metadata", "request_start_ns", "metrics"),
            ("metadata", "benchmark_phase"),
            ("request_throughput", "time_to_first_token", "unit", "avg"),
            ("request_latency", "unit", "avg"),
        ),
    ),
    (
        GUIDELLM,
        (("guidellm_version",), ("benchmarks", "scheduler_metrics"), ("benchmarks", "run_stats")),
    ),
    (
        LLMPERF,
        (
            ("inter_token_latency_s", "ttft_s", "end_to_end_latency_s"),
            ("results_ttft_s_mean",),
            ("results_ttft_s_quantiles_p25",),
            ("num_concurrent_requests", "mean_input_tokens", "mean_output_tokens"),
        ),
    ),
    (
        SERVING,
        (
            ("request_throughput", "total_input_tokens"),
            ("completed", "total_input_tokens", "duration"),
            ("completed", "total_output_tokens", "duration"),
            ("benchmark_duration_s", "total_generated_tokens"),
            ("request_rate", "max_concurrency", "num_prompts"),
            ("request_rate", "max_concurrency", "random_input_len"),
            ("backend", "request_rate", "dataset_name"),
            ("ttfts", "itls"),
        ),
    ),
    (
        RECORDED,
        (("meta", "block_size", "source"), ("prompt_tokens", "output_tokens", "ttft_ms", "itl_ms")),
    ),
)
_TELEMETRY: Final = (b'"dcgm_url"', b'"telemetry_data"', b'"gpu_index"')


def find_format(head: bytes) -> str | None:
    """Returns the format of a load test's result file that begins so, or None.

    Args:
        head: the first bytes, decompressed.
    """
    stripped = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if stripped[:1] not in (b"{", b"[") or all(mark in head for mark in _TELEMETRY):
        return None
    keys = set(re.findall(rb'"(\w+)"\s*:', head))
    for name, sets in _MARKS:
        if any(all(key.encode() in keys for key in wanted) for wanted in sets):
            return name
    return None
