"""A run's client side as the result file of a load test, in the shape each tool gives it.

Names, units and oddities are those of the tools: vLLM's send times come from a clock of its
own, GuideLLM's time per output token holds the first token, llmperf says no moment at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from tokenlag.simulate.run import Run
from tokenlag.simulate.timeline import Timeline

_PERF_START_S = 81_234.5  # a performance counter's reading when the test began


@dataclass(frozen=True, slots=True)
class Sample:
    """What the client measured of one request, in seconds of the run.

    Attributes:
        chunks_s: when each chunk came, one a token.
    """

    number: int
    sent_s: float
    intended_s: float | None
    n_prompt: int
    chunks_s: list[float]

    @property
    def ttft_s(self) -> float:
        """From the send to the first chunk."""
        return self.chunks_s[0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        """From the send to the last chunk."""
        return self.chunks_s[-1] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Between chunks."""
        return [b - a for a, b in zip(self.chunks_s, self.chunks_s[1:], strict=False)]

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first."""
        n = len(self.chunks_s) - 1
        return (self.e2e_s - self.ttft_s) / n if n else None


def samples_of(run: Run) -> list[Sample]:
    """What the client saw of each request that was answered, in order of the sends."""
    way_s = (run.variant.edge.delivery_ms + run.variant.edge.network_ms) / 1e3
    found = []
    for request in run.requests:
        if request.done_s is None or request.error or request.is_ghost or run.gave_up(request):
            continue
        log = next(epoch for epoch in run.epochs if request in epoch.requests)
        got = (run.received or {}).get(request.number)
        times = got or [t + way_s for t in log.token_times_s(request)]
        if times:
            found.append(
                Sample(request.number, request.sent_s, request.intended_s, request.n_prompt, times)
            )
    return sorted(found, key=lambda sample: sample.sent_s)


def write_result(run: Run, path: Path, tool: str, *, end_ns: int, **settings: Any) -> int:
    """Write a run as one tool's result file.

    Args:
        run: the run.
        path: the file.
        tool: a key of `TOOLS`.
        end_ns: unix ns of the run's last instant.
        settings: what the tool was told: `rate`, `clients`.

    Returns:
        How many requests are in it.
    """
    samples = samples_of(run)
    time = Timeline(run.last_instant_s, end_ns)
    path.write_text(TOOLS[tool](samples, time, settings), encoding="utf-8")
    return len(samples)


def _vllm(samples: list[Sample], _time: Timeline, settings: dict[str, Any]) -> str:
    told = _vllm_summary(samples, settings)
    told |= {
        "input_lens": [s.n_prompt for s in samples],
        "output_lens": [len(s.chunks_s) for s in samples],
        "ttfts": [s.ttft_s for s in samples],
        "itls": [s.gaps_s for s in samples],
        "start_times": [_PERF_START_S + s.sent_s for s in samples],
        "generated_texts": ["text that nobody may read"] * len(samples),
        "errors": [""] * len(samples),
    }
    return json.dumps(told)


def _vllm_summary(samples: list[Sample], settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": "20260302-120000",
        "backend": "vllm",
        "model_id": "sim",
        "num_prompts": len(samples),
        "request_rate": settings.get("rate", "inf"),
        "burstiness": 1.0,
        "max_concurrency": settings.get("clients"),
        **_serving_figures(samples),
        **_figures(samples, "e2el"),
    }


def _sglang(samples: list[Sample], _time: Timeline, settings: dict[str, Any]) -> str:
    told = {
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": settings.get("rate", math.inf),
        "max_concurrency": settings.get("clients"),
        **_serving_figures(samples),
        "total_output_tokens_retokenized": sum(len(s.chunks_s) for s in samples),
        **_figures(samples, "e2e_latency"),
    }
    return json.dumps(told) + "\n"  # with Infinity in it, as Python writes it


def _serving_figures(samples: list[Sample]) -> dict[str, Any]:
    duration_s = max(s.chunks_s[-1] for s in samples) - samples[0].sent_s
    n_output = sum(len(s.chunks_s) for s in samples)
    return {
        "duration": duration_s,
        "completed": len(samples),
        "total_input_tokens": sum(s.n_prompt for s in samples),
        "total_output_tokens": n_output,
        "request_throughput": len(samples) / duration_s,
        "output_throughput": n_output / duration_s,
    }


def _figures(samples: list[Sample], e2e_name: str) -> dict[str, Any]:
    columns = {
        "ttft": [s.ttft_s for s in samples],
        "tpot": [s.tpot_s for s in samples if s.tpot_s is not None],
        "itl": [gap for s in samples for gap in s.gaps_s],
        e2e_name: [s.e2e_s for s in samples],
    }
    told = {}
    for name, values in columns.items():
        ordered = sorted(values) or [0.0]
        told[f"mean_{name}_ms"] = fmean(ordered) * 1e3
        told[f"median_{name}_ms"] = median(ordered) * 1e3
        told[f"std_{name}_ms"] = pstdev(ordered) * 1e3
        told[f"p99_{name}_ms"] = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] * 1e3
    return told


def _aiperf(samples: list[Sample], time: Timeline, _settings: dict[str, Any]) -> str:
    def measure(value: Any, unit: str) -> dict[str, Any]:
        return {"value": value, "unit": unit}

    lines = []
    for s in samples:
        metadata = {
            "session_num": s.number,
            "x_request_id": f"req-{s.number}",
            "credit_issued_ns": time.ns(s.sent_s if s.intended_s is None else s.intended_s),
            "request_start_ns": time.ns(s.sent_s),
            "request_end_ns": time.ns(s.chunks_s[-1]),
            "worker_id": "worker_1",
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        }
        metrics = {
            "time_to_first_token": measure(s.ttft_s * 1e3, "ms"),
            "request_latency": measure(s.e2e_s * 1e3, "ms"),
            "input_sequence_length": measure(s.n_prompt, "tokens"),
            "output_sequence_length": measure(len(s.chunks_s), "tokens"),
            "inter_chunk_latency": measure([gap * 1e3 for gap in s.gaps_s], "ms"),
        }
        if s.tpot_s is not None:
            metrics["inter_token_latency"] = measure(s.tpot_s * 1e3, "ms")
        lines.append(json.dumps({"metadata": metadata, "metrics": metrics, "error": None}))
    return "\n".join(lines) + "\n"


def _guidellm(samples: list[Sample], time: Timeline, settings: dict[str, Any]) -> str:
    requests = [
        {
            "request_id": f"req-{s.number}",
            "info": {
                "status": "completed",
                "timings": {
                    "targeted_start": _unix_s(time, s.intended_s or s.sent_s),
                    "request_start": _unix_s(time, s.sent_s),
                    "first_token_iteration": _unix_s(time, s.chunks_s[0]),
                    "last_token_iteration": _unix_s(time, s.chunks_s[-1]),
                    "token_iterations": len(s.chunks_s),
                    "request_end": _unix_s(time, s.chunks_s[-1]),
                },
            },
            "prompt_tokens": s.n_prompt,
            "output_tokens": len(s.chunks_s),
            "time_to_first_token_ms": s.ttft_s * 1e3,
            # The whole latency over all tokens, as the tool computes it.
            "time_per_output_token_ms": s.e2e_s * 1e3 / len(s.chunks_s),
            "inter_token_latency_ms": None if s.tpot_s is None else s.tpot_s * 1e3,
            "request_latency": s.e2e_s,
        }
        for s in samples
    ]
    strategy: dict[str, Any] = {"type_": "poisson", "rate": settings.get("rate")}
    if settings.get("clients"):
        strategy = {"type_": "concurrent", "streams": settings["clients"]}
    benchmark = {
        "type_": "generative_benchmark",
        "config": {"strategy": strategy},
        "scheduler_metrics": {"start_time": 0.0},
        "metrics": {},
        "requests": {"successful": requests, "incomplete": [], "errored": []},
    }
    metadata = {"version": 1, "guidellm_version": "0.6.0"}
    told = {"metadata": metadata, "args": {"model": "sim"}, "benchmarks": [benchmark]}
    return json.dumps(told, indent=4)


def _llmperf(samples: list[Sample], _time: Timeline, _settings: dict[str, Any]) -> str:
    return json.dumps(
        [
            {
                "error_code": None,
                "error_msg": "",
                "inter_token_latency_s": s.e2e_s / len(s.chunks_s),
                "ttft_s": s.ttft_s,
                "end_to_end_latency_s": s.e2e_s,
                "number_total_tokens": s.n_prompt + len(s.chunks_s),
                "number_output_tokens": len(s.chunks_s),
                "number_input_tokens": s.n_prompt,
            }
            for s in samples
        ],
        indent=4,
    )


def _unix_s(time: Timeline, at_s: float) -> float:
    return time.ns(at_s) / 1e9


TOOLS: dict[str, Callable[[list[Sample], Timeline, dict[str, Any]], str]] = {
    "vllm": _vllm,
    "vllm-summary": lambda samples, _, settings: json.dumps(_vllm_summary(samples, settings)),
    "sglang": _sglang,
    "aiperf": _aiperf,
    "guidellm": _guidellm,
    "llmperf": _llmperf,
}
