"""GuideLLM's `benchmarks.json`: a sweep of runs with all their requests.

Its `time_per_output_token_ms` is the whole latency over all tokens: the first token and the
wait for it are in it. Its `inter_token_latency_ms` is what is called time per output token
here, and is computed anew from the times.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tokenlag.errors import InputError
from tokenlag.read.loadtest.run import (
    NS_PER_S,
    Requests,
    Run,
    Spread,
    believed,
    floats,
    metrics_of,
    scaled,
)
from tokenlag.read.loadtest.texts import decode

TOOL = "GuideLLM"
_TRANSLATIONS = (
    "its time per output token includes the first token and the wait for it; "
    "here the first is left out, which it calls inter-token latency",
)
_NAMES = {
    "time_to_first_token_ms": ("ttft_ms", 1.0),
    "inter_token_latency_ms": ("tpot_ms", 1.0),
    "request_latency": ("e2e_ms", 1e3),
    "prompt_token_count": ("n_prompt", 1.0),
    "output_token_count": ("n_output", 1.0),
}


class _Timings(msgspec.Struct):
    targeted_start: float | None = None
    request_start: float | None = None
    first_token_iteration: float | None = None
    first_iteration: float | None = None
    token_iterations: float | None = None
    iterations: float | None = None
    request_end: float | None = None


class _Info(msgspec.Struct):
    timings: _Timings | None = None
    request_timings: _Timings | None = None
    scheduler_timings: _Timings | None = None
    error: str | None = None


class _Request(msgspec.Struct):
    request_id: str | None = None
    info: _Info | None = None
    scheduler_info: _Info | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    time_to_first_token_ms: float | None = None
    request_start_time: float | None = None
    request_end_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    request_latency: float | None = None

    def timings(self) -> _Timings:
        """Its moments, wherever the release put them."""
        info = self.info or self.scheduler_info or _Info()
        return info.timings or info.request_timings or _Timings()

    def sent_s(self) -> float | None:
        """When it was sent, unix seconds."""
        found = (self.timings().request_start, self.request_start_time, self.start_time)
        return next((value for value in found if _is_moment(value)), None)

    def intended_s(self) -> float | None:
        """When the schedule wanted it sent."""
        info = self.info or self.scheduler_info or _Info()
        told = info.scheduler_timings or self.timings()
        return told.targeted_start if _is_moment(told.targeted_start) else None

    def latency_ms(self) -> float | None:
        """From the send to the end."""
        end = self.timings().request_end or self.request_end_time or self.end_time
        start = self.sent_s()
        if end is None or start is None or not _is_moment(end):
            return None if self.request_latency is None else self.request_latency * 1e3
        return (round(end * 1e6) - round(start * 1e6)) / 1e3  # as the moments are rounded


def _is_moment(value: float | None) -> bool:
    """Whether it can be unix seconds."""
    return value is not None and 0 < value < 2**32


class _Requests(msgspec.Struct):
    successful: list[_Request] | None = None
    incomplete: list[_Request] | None = None
    errored: list[_Request] | None = None


class _Strategy(msgspec.Struct):
    type_: str | None = None
    streams: float | None = None
    max_concurrency: float | None = None
    rate: float | None = None


class _Config(msgspec.Struct):
    strategy: _Strategy | None = None


class _Benchmark(msgspec.Struct):
    config: _Config | None = None
    args: _Config | None = None
    requests: _Requests | None = None
    metrics: dict[str, Any] = {}
    duration: float | None = None


class _File(msgspec.Struct):
    benchmarks: list[_Benchmark]
    args: dict[str, Any] | None = None


def read(text: bytes, source: str) -> list[Run]:
    """The runs of a file, in its order.

    Raises:
        InputError: it is no report, or has no run in it.
    """
    told = decode(text, _File, source)
    model = (told.args or {}).get("model")
    runs = [
        _run(item, model if isinstance(model, str) else None, source) for item in told.benchmarks
    ]
    runs = [run for run in runs if any(s.is_known for s in run.metrics.values())]
    if not runs:
        raise InputError("a GuideLLM report without a finished request", place=source)
    return runs  # fmt: skip


def _run(item: _Benchmark, model: str | None, source: str) -> Run:
    requests = _requests(item.requests or _Requests())
    metrics = _summary(item.metrics)
    if requests is not None:
        metrics |= {name: s for name, s in metrics_of(requests).items() if s.is_known}
    strategy = (item.config or item.args or _Config()).strategy or _Strategy()
    clients = strategy.streams or (1.0 if strategy.type_ == "synchronous" else None)
    duration_s, ended_ns = item.duration, None
    if requests is not None and requests.sent_ns is not None:
        ends = requests.sent_ns + np.nan_to_num(requests.e2e_ms) * 1e6
        duration_s, ended_ns = (
            float(ends.max() - requests.sent_ns.min()) / NS_PER_S,
            int(ends.max()),
        )
    return Run(
        tool=TOOL,
        source=source,
        level=_level(strategy, clients),
        model=model,
        ended_ns=ended_ns,
        duration_s=duration_s,
        n_failed=0 if requests is None else int((~requests.is_good).sum()),
        rate_per_s=strategy.rate,
        burstiness=1.0 if strategy.type_ == "poisson" else None,
        max_concurrency=clients or strategy.max_concurrency,
        metrics=metrics,
        requests=requests,
        translations=_TRANSLATIONS,
    )


def _level(strategy: _Strategy, clients: float | None) -> str | None:
    if strategy.rate is not None:
        return f"{strategy.rate:g} requests/s"
    return f"{clients:g} clients" if clients is not None else strategy.type_


def _requests(told: _Requests) -> Requests | None:
    rows = [(r, None) for r in told.successful or []]
    errors: list[tuple[_Request, str | None]] = list(rows)
    errors += [(r, "cancelled") for r in told.incomplete or []]
    errors += [(r, "error") for r in told.errored or []]
    errors = [(r, e) for r, e in errors if r.sent_s() is not None]
    if not errors:
        return None
    all_rows = [r for r, _ in errors]
    sent_ns = _ns([r.sent_s() for r in all_rows])
    intended = [r.intended_s() for r in all_rows]
    nan = np.full(len(all_rows), np.nan)
    return Requests(
        ttft_ms=floats([_ttft(r) for r in all_rows]),
        e2e_ms=floats([r.latency_ms() for r in all_rows]),
        n_prompt=floats([r.prompt_tokens for r in all_rows]),
        n_output=floats([r.output_tokens for r in all_rows]),
        n_chunks=floats([r.timings().token_iterations or r.timings().iterations for r in all_rows]),
        gap_p50_ms=nan,
        gap_max_ms=nan,
        sent_ns=sent_ns,
        intended_ns=_ns(intended) if all(v is not None for v in intended) else None,
        ids=[r.request_id for r in all_rows],
        errors=[e for _, e in errors],
    )


def _ttft(row: _Request) -> float | None:
    if row.time_to_first_token_ms is not None:
        return row.time_to_first_token_ms
    at = row.timings()
    first = at.first_token_iteration or at.first_iteration
    start = row.sent_s()
    return None if first is None or start is None else (first - start) * 1e3


def _ns(seconds: list[float | None]) -> np.ndarray[Any, np.dtype[np.int64]]:
    # Floats of unix seconds hold about a quarter of a microsecond.
    return np.array([round((s or 0.0) * 1e6) * 1000 for s in seconds], dtype=np.int64)


def _summary(metrics: dict[str, Any]) -> dict[str, Spread]:
    found = {}
    for key, (name, scale) in _NAMES.items():
        entry = metrics.get(key)
        entry = entry.get("successful", entry) if isinstance(entry, dict) else None
        if not isinstance(entry, dict):
            continue
        n = believed(entry.get("total_count", entry.get("count")))
        mean = scaled(entry.get("mean"), scale)
        total = scaled(entry.get("total_sum"), scale)
        if mean is None and n and total is not None:
            mean = total / n
        if mean is None:
            continue
        told = entry.get("percentiles")
        told = told if isinstance(told, dict) else {}
        found[name] = Spread(
            n=None if n is None else int(n),
            mean=mean,
            sd=scaled(entry.get("std_dev"), scale),
            p50=scaled(entry.get("median"), scale),
            p90=scaled(told.get("p90"), scale),
            p99=scaled(told.get("p99"), scale),
        )
    return found
