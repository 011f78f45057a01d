"""Settings of the tracer, all from environment variables, read once by each process.

A value that cannot be used is replaced by the default and told by `problems`: a tracer must
not keep a server from starting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

DISABLED: Final = "TOKENLAG_DISABLED"
SOCKET: Final = "TOKENLAG_SOCKET"
SOCKET_TYPE: Final = "TOKENLAG_SOCKET_TYPE"
TRACES_DIR: Final = "TOKENLAG_TRACES_DIR"
TRACES_MAX_MB: Final = "TOKENLAG_TRACES_MAX_MB"
SAMPLE: Final = "TOKENLAG_SAMPLE"
RING: Final = "TOKENLAG_RING"
RING_MAX_MB: Final = "TOKENLAG_RING_MAX_MB"
STALL: Final = "TOKENLAG_STALL"
QUEUE_SPANS: Final = "TOKENLAG_QUEUE_SPANS"
EXIT_WAIT: Final = "TOKENLAG_EXIT_WAIT"
FLUSH_WAIT: Final = "TOKENLAG_FLUSH_WAIT"
HANG: Final = "TOKENLAG_HANG"
ENGINE_ID: Final = "TOKENLAG_ENGINE_ID"
LOG: Final = "TOKENLAG_LOG"
PYTHON: Final = "TOKENLAG_PYTHON"
IS_WRITER: Final = "TOKENLAG_IS_WRITER"

_TRUE: Final = ("1", "true", "yes", "on")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}

_T = TypeVar("_T")


def is_disabled(environ: Mapping[str, str] | None = None) -> bool:
    """Returns whether the kill switch is on: nothing is started, every call does nothing."""
    variables = os.environ if environ is None else environ
    return any(
        variables.get(name, "").strip().lower() in _TRUE for name in (DISABLED, "OTEL_SDK_DISABLED")
    )


def seconds(text: str) -> float:
    """Returns a duration such as `10m`, `1h30m`, `500ms` or `2` (seconds) in seconds.

    Raises:
        ValueError: it is none.
    """
    stripped = text.strip().lower()
    if not stripped or _DURATION.sub("", stripped):
        raise ValueError(f"{text!r} is not a duration such as 500ms, 90s or 10m")
    return sum(
        float(number) * _SECONDS[unit or None] for number, unit in _DURATION.findall(stripped)
    )


@dataclass(frozen=True, slots=True)
class Config:
    """The settings.

    Attributes:
        is_disabled: the kill switch.
        address: the writer's address, if a process started one already.
        is_stream: use a byte stream with framing even where packets are available.
        traces_dir: write files into this folder.
        traces_max_bytes: the oldest files are removed when they are more.
        sample_frac: share of ordinary request traces kept.
        ring_s: keep this many seconds in memory instead of exporting; 0 exports all.
        ring_max_bytes: memory of the ring, compressed.
        stall_s: a step that costs more is a stall, which exports the ring.
        queue_spans: how many spans may wait for the exporter.
        exit_wait_s: how long a process that started the writer waits for it at its exit.
        flush_wait_s: how long the writer tries to export what it holds before it leaves.
        hang_s: a writer that takes nothing for so long is killed and started anew.
        engine_id: what to call the engine instead of `host:pid:rank`.
        log_path: where the writer reports what goes wrong.
        sampler: the standard sampler's name, applied to request traces; empty if not set.
        sampler_arg: its argument.
        problems: what could not be used, one line each.
    """

    is_disabled: bool = False
    address: str = ""
    is_stream: bool = False
    traces_dir: str = ""
    traces_max_bytes: int = 1 << 30
    sample_frac: float = 1.0
    ring_s: float = 0.0
    ring_max_bytes: int = 128 << 20
    stall_s: float = 0.5
    queue_spans: int = 16_384
    exit_wait_s: float = 2.0
    flush_wait_s: float = 10.0
    hang_s: float = 30.0
    engine_id: str = ""
    log_path: str = ""
    sampler: str = ""
    sampler_arg: float = 1.0
    problems: tuple[str, ...] = field(default=())


def read_config(environ: Mapping[str, str] | None = None) -> Config:
    """Returns the settings that the environment gives."""
    variables = os.environ if environ is None else environ
    problems: list[str] = []

    def take(name: str, convert: Callable[[str], _T], default: _T) -> _T:
        text = variables.get(name, "").strip()
        if not text:
            return default
        try:
            return convert(text)
        except ValueError as error:
            problems.append(f"{name}: {error}")
            return default

    return Config(
        is_disabled=is_disabled(variables),
        address=variables.get(SOCKET, ""),
        is_stream=variables.get(SOCKET_TYPE, "").strip().lower() == "stream",
        traces_dir=variables.get(TRACES_DIR, "").strip(),
        traces_max_bytes=take(TRACES_MAX_MB, _megabytes, 1 << 30),
        sample_frac=take(SAMPLE, _share, 1.0),
        ring_s=take(RING, seconds, 0.0),
        ring_max_bytes=take(RING_MAX_MB, _megabytes, 128 << 20),
        stall_s=take(STALL, seconds, 0.5),
        queue_spans=take(QUEUE_SPANS, _count, 16_384),
        exit_wait_s=take(EXIT_WAIT, seconds, 2.0),
        flush_wait_s=take(FLUSH_WAIT, seconds, 10.0),
        hang_s=take(HANG, seconds, 30.0),
        engine_id=variables.get(ENGINE_ID, "").strip(),
        log_path=variables.get(LOG, "").strip(),
        sampler=variables.get("OTEL_TRACES_SAMPLER", "").strip().lower(),
        sampler_arg=take("OTEL_TRACES_SAMPLER_ARG", _share, 1.0),
        problems=tuple(problems),
    )


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is not a share from 0 to 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(f"{text!r} is not a count")
    return value


def _megabytes(text: str) -> int:
    value = float(text)
    if not 0 < value < 1e9:
        raise ValueError(f"{text!r} is not a size in MB")
    return int(value * (1 << 20))
