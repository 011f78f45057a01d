"""Traces to try the tool on: eighty minutes that end now, the last ten of them bad."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenlag.simulate.recipe import Truth, load_recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces

DEMO_FILE = "demo.jsonl.zst"


@dataclass(frozen=True, slots=True)
class DemoInfo:
    """What `write_demo` wrote.

    Attributes:
        path: the file.
        n_requests: requests in it.
        n_spans: spans in it.
        start_ns: unix ns of the first send.
        change_ns: unix ns at which the fault begins; None if healthy.
        end_ns: unix ns of the last span's end.
        truth: what a diagnosis must say.
    """

    path: Path
    n_requests: int
    n_spans: int
    start_ns: int
    change_ns: int | None
    end_ns: int
    truth: Truth


def write_demo(out_dir: Path, *, healthy: bool, end_ns: int) -> DemoInfo:
    """Write demo traces whose last span ends at `end_ns`.

    The file has one name, so that a second demo replaces the first and never mixes with it.

    Args:
        out_dir: folder, made if it is not there.
        healthy: write the quiet twin, without the fault.
        end_ns: unix nanoseconds, now as a rule.

    Raises:
        InputError: the folder cannot be written to.
    """
    done = run(load_recipe("demo"), variant="healthy" if healthy else None)
    path = out_dir / DEMO_FILE
    n_spans = write_traces(done, path, end_ns=end_ns)
    n_requests = sum(request.done_s is not None for request in done.requests)
    change_s = done.truth.change_s
    run_ns = round(done.last_instant_s * 1e9)
    return DemoInfo(
        path=path,
        n_requests=n_requests,
        n_spans=n_spans,
        start_ns=end_ns - run_ns,
        change_ns=None if change_s is None else end_ns - run_ns + round(change_s * 1e9),
        end_ns=end_ns,
        truth=done.truth,
    )
