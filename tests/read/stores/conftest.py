from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.read.stores.clickhouse import Front, running_front


@pytest.fixture(scope="session")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """ClickHouse's engine behind HTTP, open to everybody."""
    with running_front(tmp_path_factory.mktemp("chdb")) as running:
        yield running
