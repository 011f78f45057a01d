"""Waits behind long prompts, from request spans alone.

Without steps it is not known what filled them, but a prompt's prefill has a beginning and an
end. A request that waits while a prompt at least `blame.LONGER_THAN_VICTIM` times its own is
being prefilled on the same engine is taken to wait for it, for as long as the two overlap.
That is an upper bound (a slot limit may hold it as well), so rules ask for most of the wait.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenlag.explain.arrays import Columns, Floats, Ints, nullable_keys
from tokenlag.explain.blame import LONGER_THAN_VICTIM
from tokenlag.explain.sql import query
from tokenlag.store.connection import Store

MAX_CULPRITS = 500


def write_behind(store: Store) -> None:
    """Sets `behind_long_ms` and `behind_key` of requests whose engine left no steps."""
    rows = Columns(store, query("span_waits"))
    if rows.n_rows == 0:
        return
    store.execute(query("behind_table"))
    engine = rows.objects("engine")
    for name in sorted({str(e) for e in engine.tolist()}):
        own = np.flatnonzero(engine.astype(str) == name)
        key, tokens = rows.ints("request_key")[own], rows.floats("n_new")[own]
        behind, who = waits_behind(
            tokens,
            rows.ints("queued_ns")[own],
            rows.ints("scheduled_ns")[own],
            rows.ints("prefilled_ns")[own],
        )
        hit = behind > 0
        store.insert(
            "behind",
            {
                "request_key": key[hit],
                "behind_ms": behind[hit],
                "behind_key": nullable_keys(key[who[hit]]),
            },
        )
    store.run_script("tokenlag.explain.sql", "behind.sql")


def waits_behind(
    n_tokens: Floats, queued_ns: Ints, scheduled_ns: Ints, prefilled_ns: Ints
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Milliseconds that each request waited while a much longer prompt was prefilled, and whose.

    Overlapping prefills of several long prompts count once for each moment.
    """
    n = len(n_tokens)
    wait_ms = np.maximum(scheduled_ns - queued_ns, 0) / 1e6
    behind, best = np.zeros(n), np.zeros(n)
    who = np.zeros(n, dtype=np.int64)
    longest = np.argsort(-n_tokens, kind="stable")[:MAX_CULPRITS]
    floor = LONGER_THAN_VICTIM * float(np.min(n_tokens))
    for culprit in longest[n_tokens[longest] >= floor].tolist():
        overlap = (
            np.minimum(scheduled_ns, prefilled_ns[culprit])
            - np.maximum(queued_ns, scheduled_ns[culprit])
        ) / 1e6
        hit = (overlap > 0) & (n_tokens * LONGER_THAN_VICTIM <= n_tokens[culprit])
        behind[hit] += overlap[hit]
        better = hit & (overlap > best)
        best[better], who[better] = overlap[better], culprit
    return np.minimum(behind, wait_ms), who
