"""Faults outside the engine, for generated cases: before its queue, and after its tokens."""

from __future__ import annotations

from collections.abc import Mapping

from tokenlag.simulate.faults import Draft, Fault

APART = ("apart", "none")


def _frontend(draft: Draft) -> float:
    """One worker prepares requests for an engine that has room, and is nearly or over full."""
    load = draft.rng.uniform(0.85, 1.1)
    draft.table["frontend"] = {"workers": 1, "service_ms": load * 1e3 / draft.rate}
    return load


def _way_in(draft: Draft) -> float:
    """Requests are long on their way to the server."""
    add_ms = draft.rng.uniform(400.0, 2000.0)
    draft.table["edge"]["network_in_ms"] = [[0.0, add_ms], [1e6, add_ms]]
    return add_ms


def _buffer(draft: Draft) -> float:
    """A proxy forwards a stream only in buffers of 16 KB."""
    event_bytes = draft.rng.randrange(200, 400)
    draft.table["delivery"] = {"kind": "buffer", "event_bytes": event_bytes}
    return float(event_bytes)


def _reader(draft: Draft) -> float:
    """One client process reads all streams and does not keep up."""
    load = draft.rng.uniform(1.0, 1.15)
    chunks_per_s = draft.rate * sum(draft.output) / 2
    draft.table["delivery"] = {"kind": "reader", "reader_ms": load * 1e3 / chunks_per_s}
    return load


EDGE_FAULTS: Mapping[str, Fault] = {
    "frontend": Fault("frontend-wait", "ttft", _frontend, APART),
    "way-in": Fault("network-before-server", "ttft", _way_in, APART),
    "buffer": Fault("slow-delivery", "ttft", _buffer, APART, loads=("low", "mid")),
    "reader": Fault("slow-delivery", "ttft", _reader, APART, loads=("low", "mid")),
}
