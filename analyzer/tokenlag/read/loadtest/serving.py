"""vLLM's `bench serve`, SGLang's `bench_serving`, and files that copy their keys.

Both compute time per output token without the first, as is done here. Their "ITL" is the
time between two chunks; with speculation or a slow reader a chunk carries several tokens.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from tokenlag.errors import InputError
from tokenlag.read.loadtest.run import NS_PER_S, Requests, Run, Spread, floats, metrics_of
from tokenlag.read.loadtest.texts import converted, decode, lines_of

MAX_SPAN_S = 1e9  # between two sends; more is no clock
# Their name → ours.
_NAMES = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "itl": "itl_ms",
    "e2el": "e2e_ms",
    "e2e_latency": "e2e_ms",
}
_FIGURES = {"mean": "mean", "std": "sd", "median": "p50", "p50": "p50", "p90": "p90", "p99": "p99"}


class _Result(msgspec.Struct):
    # Any: numbers, and "inf" or Infinity for no limit.
    request_rate: Any = None
    max_concurrency: Any = None
    burstiness: float | None = None
    date: str | None = None
    backend: str | None = None
    model_id: str | None = None
    model: str | None = None
    tag: Any = None
    duration: float | None = None
    completed: int | None = None
    failed: int | None = None
    concurrency: float | None = None
    total_input_tokens: float | None = None
    total_output_tokens: float | None = None
    total_output_tokens_retokenized: float | None = None
    input_lens: list[float | None] | None = None
    output_lens: list[float | None] | None = None
    ttfts: list[float | None] | None = None
    itls: list[list[float] | float | None] | None = None
    start_times: list[float | None] | None = None
    errors: list[str | None] | None = None


class _Level(msgspec.Struct):
    """One line of a harness that reads vLLM's printed table back into keys."""

    metrics: dict[str, Any]
    concurrency: float | None = None
    ok: bool = True


def read(text: bytes, source: str) -> list[Run]:
    """The runs of a file: one object, one a line (SGLang appends), or a list of them.

    Raises:
        InputError: nothing in it is a result.
    """
    stripped = text.lstrip(b"\xef\xbb\xbf \t\r\n")
    if stripped[:1] == b"[":
        raw = decode(text, list[dict[str, Any]], source)
        runs = [
            _level(converted(item, _Level, source), source)
            if isinstance(item.get("metrics"), dict)
            else _run(converted(item, _Result, source), item, source)
            for item in raw
        ]
    else:
        try:
            runs = [_one(text, source)]
        except InputError:
            lines = lines_of(text)
            if len(lines) < 2:
                raise
            runs = [_one(line, source) for line in lines]
    runs = [run for run in runs if any(s.is_known for s in run.metrics.values())]
    if not runs:
        raise InputError("no result in it: neither requests nor figures", place=source)
    return runs


def _one(text: bytes, source: str) -> Run:
    result = decode(text, _Result, source)
    figures = decode(text, dict[str, msgspec.Raw], source) if _is_strict(text) else None
    if figures is None:  # Infinity in it: read the slow way
        return _run(result, decode(text, dict[str, Any], source), source)
    return _run(result, {k: _number(v) for k, v in figures.items()}, source)


def _is_strict(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return False
    return True


def _number(raw: msgspec.Raw) -> float | None:
    """A scalar; what is longer than one can be is text or a list, and not looked at."""
    data = bytes(raw)
    if len(data) > 40 or data[:1] not in b"-0123456789":
        return None
    return float(data)


def _run(result: _Result, figures: dict[str, Any], source: str) -> Run:
    requests = _requests(result)
    metrics = _metrics(result, figures)
    if requests is not None:
        told_itl = {name: s for name, s in metrics.items() if name == "itl_ms"}
        metrics |= {name: s for name, s in metrics_of(requests).items() if s.is_known} | told_itl
    is_sglang = "mean_e2e_latency_ms" in figures or result.total_output_tokens_retokenized
    translations = _translations(metrics, requests)
    if "e2e_ms" not in metrics and (mean := _end_to_end(metrics)) is not None:
        metrics["e2e_ms"] = Spread(n=result.completed, mean=mean)
        translations += (
            "it has no end-to-end time: mean TTFT and (mean output − 1) × mean TPOT stand for it",
        )
    rate, clients = _limit(result.request_rate), _limit(result.max_concurrency)
    return Run(
        tool="SGLang bench_serving" if is_sglang else "vLLM bench serve",
        source=source,
        level=_level_name(rate, clients),
        model=result.model_id or result.model,
        ended_ns=_ended_ns(result.date),
        duration_s=result.duration,
        n_failed=_n_failed(result, requests),
        rate_per_s=rate,
        burstiness=result.burstiness,
        max_concurrency=clients,
        metrics=metrics,
        requests=requests,
        translations=translations,
    )


def _requests(result: _Result) -> Requests | None:
    ttfts = result.ttfts
    if not ttfts:
        return None
    n = len(ttfts)
    itls = result.itls if result.itls is not None and len(result.itls) == n else [None] * n
    gaps = [np.asarray(row if isinstance(row, list) else [], dtype=np.float64) for row in itls]
    has_gaps = np.array([isinstance(row, list) for row in itls])
    errors = [e or None for e in _padded(result.errors, n)]
    n_output = floats(_padded(result.output_lens, n))
    ttft_ms = floats(ttfts) * 1e3
    # A request that failed has a time of 0 and no tokens.
    ttft_ms = np.where((ttft_ms > 0) | (n_output > 0), ttft_ms, np.nan)
    errors = [
        e or ("no answer" if np.isnan(t) else None) for e, t in zip(errors, ttft_ms, strict=True)
    ]
    starts = floats(_padded(result.start_times, n))
    sent_ns = None
    if np.isfinite(starts).all() and np.ptp(starts) < MAX_SPAN_S:
        # From the tool's own clock: the first request is moment 0.
        sent_ns = np.round((starts - starts.min()) * NS_PER_S).astype(np.int64)
    total = np.array([row.sum() for row in gaps]) * 1e3
    return Requests(
        ttft_ms=ttft_ms,
        e2e_ms=np.where(has_gaps, ttft_ms + total, np.nan),
        n_prompt=floats(_padded(result.input_lens, n)),
        n_output=n_output,
        n_chunks=np.where(has_gaps, [len(row) + 1.0 for row in gaps], np.nan),
        gap_p50_ms=np.array([np.median(row) * 1e3 if len(row) else np.nan for row in gaps]),
        gap_max_ms=np.array([row.max() * 1e3 if len(row) else np.nan for row in gaps]),
        sent_ns=sent_ns,
        has_wall_clock=False,
        ids=[None] * n,
        errors=errors,
    )


def _padded(values: list[Any] | None, n: int) -> list[Any]:
    return values if values is not None and len(values) == n else [None] * n


def _metrics(result: _Result, figures: dict[str, Any]) -> dict[str, Spread]:
    found: dict[str, dict[str, float]] = {}
    for key, value in figures.items():
        figure, _, rest = key.partition("_")
        # InferenceX leaves the unit out and means seconds.
        scale = 1.0 if rest.endswith("_ms") else 1e3
        ours = _NAMES.get(rest.removesuffix("_ms"))
        if ours is None or figure not in _FIGURES or not isinstance(value, int | float):
            continue
        if math.isfinite(value):
            found.setdefault(ours, {})[_FIGURES[figure]] = value * scale
    n = result.completed
    metrics = {name: Spread(n=n, **told) for name, told in found.items()}
    # A mean of zero over requests that took none: the metric was not selected.
    metrics = {k: s for k, s in metrics.items() if not (s.mean == 0 and s.p99 in (0, None))}
    for name, total in (
        ("n_prompt", result.total_input_tokens),
        ("n_output", result.total_output_tokens),
    ):
        if total is not None and n:
            metrics[name] = Spread(n=n, mean=total / n)
    return metrics


def _end_to_end(metrics: dict[str, Spread]) -> float | None:
    told = [metrics.get(name, Spread()).mean for name in ("ttft_ms", "tpot_ms", "n_output")]
    ttft, tpot, n_output = told
    if ttft is None or tpot is None or n_output is None:
        return None
    return ttft + max(n_output - 1, 0.0) * tpot


def _level(level: _Level, source: str) -> Run:
    told = level.metrics
    figures = {key: value for key, value in told.items() if isinstance(value, int | float)}
    result = _Result(
        completed=int(figures["successful_requests"]) if "successful_requests" in figures else None,
        duration=figures.get("benchmark_duration_s"),
        total_input_tokens=figures.get("total_input_tokens"),
        total_output_tokens=figures.get("total_generated_tokens"),
        max_concurrency=level.concurrency,
    )
    return _run(result, figures, source)


def _limit(value: Any) -> float | None:
    """A rate or a number of clients; None where there is no limit."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number > 0 else None


def _level_name(rate: float | None, clients: float | None) -> str | None:
    told = []
    if rate is not None:
        told.append(f"{rate:g} requests/s")
    if clients is not None:
        told.append(f"{clients:g} clients")
    return ", ".join(told) or None


def _ended_ns(date: str | None) -> int | None:
    """`20260213-075258`: the writer's local time, without a zone; taken as UTC."""
    try:
        at = datetime.strptime(date or "", "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(at.timestamp()) * NS_PER_S


def _n_failed(result: _Result, requests: Requests | None) -> int:
    if result.failed is not None:
        return result.failed
    return int((~requests.is_good).sum()) if requests is not None else 0


def _translations(metrics: dict[str, Spread], requests: Requests | None) -> tuple[str, ...]:
    told = []
    itl, tpot = metrics.get("itl_ms", Spread()), metrics.get("tpot_ms", Spread())
    a, b = (itl.mean, tpot.mean) if itl.mean and tpot.mean else (itl.p50, tpot.p50)
    if a and b and a > 1.2 * b:
        told.append(
            f"its ITL is the time between chunks of about {a / b:.1f} tokens, not between tokens"
        )
    if requests is not None and requests.sent_ns is not None:
        told.append("its send times are from a clock of its own: moments are relative")
    return tuple(told)
