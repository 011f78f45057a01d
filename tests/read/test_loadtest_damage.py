"""Result files with anything in them: a run, or one clear line; never a traceback."""

from __future__ import annotations

import copy
import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from tokenlag.errors import InputError
from tokenlag.explain.twoloads import compare
from tokenlag.read.loadtest import find_format
from tokenlag.read.loadtest.reader import read_text
from tokenlag.read.loadtest.rows import frame_of, notes_of
from tokenlag.report.comparison import render_comparisons
from tokenlag.simulate.emit_results import TOOLS, write_result
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import run as simulate
from tokenlag.simulate.timeline import DEFAULT_END_NS

STRANGE: list[Any] = [
    None, -1, 0, 1e308, "x", "inf", float("nan"), float("inf"), [], {}, True, 10**25, "", [None],
    [[1, 2], None], -0.0,
]  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("results")
    made = simulate(load_recipe("S12"), variant="client-queue")
    for tool in TOOLS:
        write_result(made, folder / tool, tool, end_ns=DEFAULT_END_NS, clients=1)
    return {path.name: path.read_text() for path in folder.iterdir()}


def damage(value: Any, chance: random.Random, depth: int = 0) -> None:
    """Put something strange somewhere into a document."""
    if not isinstance(value, dict | list) or not value:
        return
    at: Any = (
        chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
    )
    inner = value[at]
    if depth < 6 and isinstance(inner, dict | list) and inner and chance.random() < 0.6:
        damage(inner, chance, depth + 1)
    elif isinstance(value, dict) and chance.random() < 0.2:
        del value[at]
    else:
        value[at] = copy.deepcopy(chance.choice(STRANGE))


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_damage(tool: str, texts: dict[str, str]) -> None:
    chance = random.Random(tool)
    text = texts[tool]
    is_lines = tool == "aiperf"
    whole = [json.loads(line) for line in text.splitlines()] if is_lines else json.loads(text)
    (good,) = read_text(text.encode(), find_format(text.encode()) or "", tool)
    n_read = n_refused = 0
    for _ in range(150):
        document = copy.deepcopy(whole)
        for _ in range(chance.randint(1, 3)):
            damage(document, chance)
        damaged = "\n".join(map(json.dumps, document)) if is_lines else json.dumps(document)
        if chance.random() < 0.1:
            damaged = damaged[: chance.randrange(len(damaged))]
        name = find_format(damaged.encode())
        if name is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                runs = read_text(damaged.encode(), name, tool)
            except InputError as error:
                assert "\n" not in str(error)  # noqa: PT017 - either is right
                n_refused += 1
                continue
            for run in runs:
                frame_of(run)
                notes_of(run)
                for form in ("text", "md", "json"):
                    render_comparisons([compare(run, good)], form, ascii_only=False)
        n_read += 1
    assert n_read > 20
    assert n_refused > 5


def test_the_folder_of_other_peoples_files_with_damage(shared: Path) -> None:
    """Real files cut at any byte."""
    chance = random.Random(1)
    for path in sorted((shared / "corpus" / "bench").iterdir()):
        data = path.read_bytes()
        for _ in range(10):
            cut = data[: chance.randrange(len(data))]
            if (name := find_format(cut)) is not None:
                try:
                    assert read_text(cut, name, path.name)
                except InputError as error:
                    assert "\n" not in str(error)  # noqa: PT017 - either is right
