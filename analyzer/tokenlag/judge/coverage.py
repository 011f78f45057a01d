"""What the traces hold and what they cannot show."""

from __future__ import annotations

from tokenlag.judge.diagnosis import Coverage
from tokenlag.judge.sql import query
from tokenlag.store.connection import Store

# What a reader of a diagnosis looks for, in the order of a request's life.
SEEN = (
    "client", "network", "frontend", "queue", "prefill", "decode", "steps", "step_model",
    "cached_tokens", "preemptions", "kv", "admit_bound", "finish_reasons", "tenant", "sessions",
)  # fmt: skip

# What most services have none of: nobody is blind to it.
SEEN_IF_THERE = ("gateway",)


def coverage(store: Store, n_requests: int, capabilities: set[str], notes: list[str]) -> Coverage:
    """The coverage of the current window; `notes` are lines that reading produced."""
    n_steps = store.scalar("select count(*) from step_costs where window_name = 'current'")
    found = store.fetchall("select text from quality where dataset = 0 order by kind, place")
    return Coverage(
        requests=n_requests,
        steps=int(n_steps or 0),
        engines=[str(e) for (e,) in store.fetchall(query("engines_of"))],
        sources={str(d): int(n) for d, n in store.fetchall(query("sources"))},
        sees=[name for name in (*SEEN, *SEEN_IF_THERE) if name in capabilities],
        blind=[name for name in SEEN if name not in capabilities],
        notes=notes + [str(text) for (text,) in found],
    )
