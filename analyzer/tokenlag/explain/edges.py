"""The ways into and out of the engines: networks, front ends, clients, replicas, tenants."""

from __future__ import annotations

from tokenlag.explain.sql import query
from tokenlag.store.connection import Store


def write_edges(store: Store) -> None:
    """Fills `edges`, `engine_load` and `tenant_load`.

    Also sets `frontend_ms` where stamps tell it, and adds the front end's own work to what a
    request costs alone.

    Args:
        store: with `request_facts` and `demand` filled.
    """
    for name in ("edges", "frontend_stamps", "frontend_alone", "engine_load", "tenant_load"):
        store.execute(query(name))
