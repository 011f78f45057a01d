"""The process that a rule from outside runs in: a job on stdin, its outcome on stdout.

Started by `sandbox.run_in_child` as `python -m tokenlag.judge.sandbox_worker`. It limits
itself before it imports DuckDB, so that the limits hold for everything a query does.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import msgspec

from tokenlag.judge.sandbox import (
    BASE_ADDRESS_SPACE_MB,
    GRACE_S,
    MAX_ANSWER_BYTES,
    Fault,
    Job,
    Outcome,
    bind,
    evaluate,
)


def main() -> int:
    """Do the job on stdin; exit status 0 means that an outcome was written."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    _limit_self(job)
    answer = msgspec.json.encode(_do(job))
    if len(answer) > MAX_ANSWER_BYTES:
        size = f"{len(answer) >> 20} MB; a rule's may have {MAX_ANSWER_BYTES >> 20} MB"
        answer = msgspec.json.encode(
            Outcome(faults=[Fault("detect.sql", f"its answer has {size}")])
        )
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    return 0


def _do(job: Job) -> Outcome:
    from tokenlag.store.box import BoxLimits, open_box, open_empty_box

    limits = msgspec.convert(job.limits, BoxLimits, strict=False)
    with tempfile.TemporaryDirectory(prefix="spill-", dir=".") as folder:
        if job.queries is None or job.db_path is None:
            with open_empty_box(Path(folder), limits) as box:
                return bind(box, job.bind)
        with open_box(Path(job.db_path), Path(folder), limits) as box:
            return evaluate(box, job.queries, limits.time_s)


def _limit_self(job: Job) -> None:
    try:
        import resource
    except ImportError:  # no such thing on Windows; the parent's timeout remains
        return
    memory_mb = int(job.limits["memory_mb"]) + BASE_ADDRESS_SPACE_MB
    cpu_s = int((job.limits["time_s"] + GRACE_S) * job.limits["threads"]) + 1
    wanted = {
        resource.RLIMIT_AS: memory_mb << 20,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in wanted.items():
        _, hard = resource.getrlimit(kind)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (limit, limit))
        except (ValueError, OSError):  # macOS refuses some; the parent's timeout remains
            continue


if __name__ == "__main__":
    sys.exit(main())
