"""Joins staged requests of load tests to the server's, before tellers are merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tokenlag.read.loadtest.join import Joined, Side, added_tokens, join_by_time
from tokenlag.read.loadtest.rows import SCOPE_OWN_CLOCK
from tokenlag.store.connection import Store

PACKAGE: Final = "tokenlag.read.loadtest"

Rows = Mapping[str, np.ndarray[Any, Any]]


def join_load_tests(store: Store) -> None:
    """Fills `st_pairs`, and sets stamps of an own clock to the server's.

    Costs a look at a small table where there is no load test, or nothing else.
    """
    if not store.scalar("select count(*) from st_requests where dialect = 'load-test'"):
        return
    store.run_script(PACKAGE, "pairs_by_id.sql")
    scopes = store.fetchall(
        "select distinct scope from st_requests where dialect = 'load-test' order by 1"
    )
    for (scope,) in scopes:
        _by_time(store, scope)
    store.run_script(PACKAGE, "counted_otherwise.sql")


def _by_time(store: Store, scope: str) -> None:
    clients = store.fetchnumpy(
        "select rid, sent_ns, coalesce(client_end_ns, sent_ns) as end_ns, "
        "coalesce(n_output, -1)::bigint as n_output, "
        "coalesce(n_prompt, -1)::bigint as n_prompt from st_requests "
        "where dialect = 'load-test' and scope = $1 and not is_error "
        "and rid not in (select rid from st_pairs) order by sent_ns, rid",
        [scope],
    )
    servers = store.fetchnumpy(
        "select rid, arrival_ns, coalesce(end_ns, arrival_ns) as end_ns, "
        "coalesce(n_output, -1)::bigint as n_output, "
        "coalesce(n_prompt, -1)::bigint as n_prompt from st_requests "
        "where trust = (select min(trust) from st_requests) and trust < 9 "
        "and arrival_ns is not null and rid not in (select server_rid from st_pairs) "
        "order by arrival_ns, rid"
    )
    if not len(clients["rid"]) or not len(servers["rid"]):
        return
    joined = _joined(clients, servers, has_wall_clock=scope != SCOPE_OWN_CLOCK)
    if joined is None:
        n = len(clients["rid"])
        text = f"{n:,} requests of a load test are none of the traces' by time; they stand apart"
        _note(store, n, text)
        return
    store.insert(
        "st_pairs",
        {
            "rid": clients["rid"][joined.client],
            "server_rid": servers["rid"][joined.server],
        },
    )
    if joined.offset_ns:
        store.execute(
            "update st_requests set sent_ns = sent_ns + $2, intended_ns = intended_ns + $2, "
            "client_first_ns = client_first_ns + $2, client_end_ns = client_end_ns + $2 "
            "where dialect = 'load-test' and scope = $1",
            [scope, joined.offset_ns],
        )
        how = f"{joined.offset_ns / 1e9:+.3f} s"
        own = "its own clock is" if scope == SCOPE_OWN_CLOCK else "its clock is"
        _note(
            store,
            len(joined.client),
            f"load test: {own} set to the server's ({how}) by {len(joined.client):,} requests; "
            "the fastest way in counts as none",
        )


def _note(store: Store, n: int, text: str) -> None:
    store.insert(
        "st_notes", {"kind": ["load_test_join"], "place": [None], "n": [n], "text": [text]}
    )


def _joined(clients: Rows, servers: Rows, *, has_wall_clock: bool) -> Joined | None:
    """By the outputs' lengths; else by the prompts', as outputs may be counted otherwise."""
    joined = join_by_time(
        _side(clients, "sent_ns", "n_output"),
        _side(servers, "arrival_ns", "n_output"),
        has_wall_clock=has_wall_clock,
    )
    if joined is not None:
        return joined
    client = _side(clients, "sent_ns", "n_prompt")
    server = _side(servers, "arrival_ns", "n_prompt")
    n_added = added_tokens(client.length, server.length)
    lengths = np.where(client.length >= 0, client.length + n_added, -1)
    known = server.length >= 0
    if not known.any() or not (client.length >= 0).any():
        return None
    client = Side(client.at_ns, client.end_ns, lengths)
    return join_by_time(client, server, has_wall_clock=has_wall_clock)


def _side(rows: Rows, at: str, length: str) -> Side:
    return Side(*(np.asarray(rows[name]).astype(np.int64) for name in (at, "end_ns", length)))
