"""One laboratory for all workers of a test run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenlag.judge.rulebook import Rulebook, load_rules

from tests.rules.lab import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Lab:
    base = tmp_path_factory.getbasetemp()
    return Lab((base if worker_id == "master" else base.parent) / "lab")


@pytest.fixture(scope="session")
def rulebook() -> Rulebook:
    return load_rules([])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The ten-seed runs take minutes: they are for `-m slow`."""
    if "slow" in config.option.markexpr:
        return
    here = Path(__file__).parent
    slow = [i for i in items if here in i.path.parents and i.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
