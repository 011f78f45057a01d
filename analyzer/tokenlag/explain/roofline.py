"""What the device allows: the least time a step can take by bytes, and by arithmetic.

A decode step reads the weights once and the KV of its streams; a prompt chunk computes twice
the active parameters for each token (methods: roofline of Williams et al. 2009). Comparing
the measured step with the two bounds says which of bandwidth, bytes, batch and FLOP/s would
help. It is never a verdict: a share above 1 says that the figures are wrong, and is not used.
See docs/step-model.md.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources

import numpy as np

from tokenlag.explain.arrays import Columns, nullable
from tokenlag.explain.sql import query
from tokenlag.store.connection import Store

MIN_STEPS = 20
BYTES_OF_FP8 = 1.25
LARGE_CHUNK = 2.0
# Parts and weaker kinds of a device, whose names hold the whole one's: a MIG slice, a vGPU profile
# ("A10-24Q"), a notebook's chip, the kinds made for export. The table has none of them.
NOT_WHOLE = re.compile(r" mig |-\d+(-\d+)?[abcq] | laptop | max-q | rtx \d{4} d ")


@dataclass(frozen=True)
class Device:
    """Figures of one device; `fp8_flops` is None where it has no such arithmetic.

    `checked` is the month in which the figures were last held against the vendor's.
    """

    name: str
    match: tuple[str, ...]
    memory_bandwidth: float
    bf16_flops: float
    source: str
    fp8_flops: float | None = None
    checked: str | None = None


@functools.cache
def devices() -> tuple[Device, ...]:
    """The table of devices that is part of this package."""
    text = resources.files("tokenlag.explain").joinpath("devices.toml").read_text("utf-8")
    rows = tomllib.loads(text)["device"]
    return tuple(Device(**{**row, "match": tuple(row["match"])}) for row in rows)


def find_device(name: str | None) -> Device | None:
    """The device whose pattern is in `name`, the longest pattern first; None if unknown.

    A part of a device is unknown: a MIG slice has a share of the bandwidth that no name tells.
    """
    if not name:
        return None
    lower = f" {name.lower().replace('_', ' ')} "
    if NOT_WHOLE.search(lower):
        return None
    hits = [
        (len(pattern), device)
        for device in devices()
        for pattern in device.match
        if f"{pattern} " in lower or f"{pattern}-" in lower
    ]
    return max(hits, key=lambda hit: hit[0])[1] if hits else None


def write_roofline(store: Store) -> None:
    """Fills `roofline`: one row for each engine run of the current window that tells enough."""
    rows = Columns(store, query("roofline_epochs"))
    for i in range(rows.n_rows):
        found = _one(store, rows, i)
        if found is not None:
            store.insert("roofline", {key: [value] for key, value in found.items()})


def _one(store: Store, rows: Columns, i: int) -> dict[str, object] | None:
    weight_bytes, kv_bytes = rows.floats("weight_bytes")[i], rows.floats("kv_bytes_per_token")[i]
    parameters = rows.floats("n_active_parameters")[i]
    name = rows.objects("device_name")[i]
    known = find_device(name)
    bandwidth, flops = rows.floats("memory_bandwidth")[i], rows.floats("peak_flops")[i]
    is_told = np.isfinite(bandwidth)
    if known is not None:
        bandwidth = bandwidth if np.isfinite(bandwidth) else known.memory_bandwidth
        is_fp8 = weight_bytes / parameters <= BYTES_OF_FP8
        peak = (known.fp8_flops or known.bf16_flops) if is_fp8 else known.bf16_flops
        flops = flops if np.isfinite(flops) else peak
    if not np.isfinite(weight_bytes) or not np.isfinite(bandwidth):
        return None
    n_devices = np.nan_to_num(rows.floats("n_devices")[i], nan=1.0) or 1.0
    bandwidth, flops = bandwidth * n_devices, flops * n_devices
    kv_bytes = np.nan_to_num(kv_bytes, nan=0.0)
    steps = Columns(store, query("roofline_steps"), [int(rows.ints("epoch_key")[i])])
    cadence, n_decode = steps.floats("cadence_ms"), steps.floats("n_decode")
    n_prefill, context = steps.floats("n_prefill_tokens"), steps.floats("n_context_tokens")
    pure = (n_prefill == 0) & (n_decode > 0)
    out: dict[str, object] = {
        "epoch_key": int(rows.ints("epoch_key")[i]),
        "engine_id": rows.objects("engine_id")[i],
        "device": name if known is None else known.name,
        "basis": "told by the trace" if is_told else f"table: {known.source}" if known else "",
        "weight_ms": float(weight_bytes / bandwidth * 1e3),
        "knee_tokens": float(flops * weight_bytes / (2 * parameters * bandwidth)),
    }
    out |= _decode(cadence, n_decode, context, pure, weight_bytes, kv_bytes, bandwidth)
    out |= _arithmetic(cadence, n_prefill, n_decode, pure, parameters, flops, out)
    return {
        key: nullable(np.array([v]))[0] if isinstance(v, float) else v for key, v in out.items()
    }


def _decode(
    cadence: np.ndarray, n_decode: np.ndarray, context: np.ndarray, pure: np.ndarray,
    weight_bytes: float, kv_bytes: float, bandwidth: float,
) -> dict[str, object]:  # fmt: skip
    """Decode-only steps against the bytes they must read."""
    nothing = float("nan")
    if pure.sum() < MIN_STEPS:
        return dict.fromkeys(
            ("decode_ms", "bytes_ms", "memory_frac", "batch", "fp8_ms", "batch32_ms"), nothing
        )
    read = weight_bytes + kv_bytes * np.nan_to_num(context[pure], nan=0.0)
    bytes_ms = read / bandwidth * 1e3
    share = float(np.median(bytes_ms / cadence[pure]))
    decode_ms, batch = float(np.median(cadence[pure])), float(np.mean(n_decode[pure]))
    kv_share = float(np.median(1 - weight_bytes / read))
    a_stream = kv_bytes * float(np.sum(context[pure]) / max(np.sum(n_decode[pure]), 1.0))
    return {
        "decode_ms": decode_ms,
        "bytes_ms": float(np.median(bytes_ms)),
        "memory_frac": share,
        "batch": batch,
        # Half the bytes of the weights at the share of the bound that is reached now.
        "fp8_ms": decode_ms * (0.5 * (1 - kv_share) + kv_share),
        "batch32_ms": (weight_bytes + 32 * a_stream) / bandwidth * 1e3 / share / 32,
    }


def _arithmetic(
    cadence: np.ndarray, n_prefill: np.ndarray, n_decode: np.ndarray, pure: np.ndarray,
    parameters: float, flops: float, so_far: dict[str, object],
) -> dict[str, object]:  # fmt: skip
    """Steps against the arithmetic they must do."""
    nothing = float("nan")
    out: dict[str, object] = {
        "compute_frac": nothing, "prefill_flops_frac": nothing, "prefill_tokens_per_s": nothing,
        "n_large": 0,
    }  # fmt: skip
    if not np.isfinite(parameters) or not np.isfinite(flops):
        return out
    need_ms = 2.0 * parameters * (n_prefill + n_decode) / flops * 1e3
    if pure.sum() >= MIN_STEPS:
        out["compute_frac"] = float(np.median(need_ms[pure] / cadence[pure]))
    knee = so_far["knee_tokens"]
    assert isinstance(knee, float)
    large = n_prefill >= LARGE_CHUNK * knee
    out["n_large"] = int(large.sum())
    if large.sum() >= MIN_STEPS:
        out["prefill_flops_frac"] = float(np.median(need_ms[large] / cadence[large]))
        out["prefill_tokens_per_s"] = float(np.median(n_prefill[large] / cadence[large]) * 1e3)
    return out
