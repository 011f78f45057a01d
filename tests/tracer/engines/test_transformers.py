"""transformers' continuous batching, the real library on a tiny random model, traced."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokenlag.read.load import load_traces
from tokenlag.store.connection import Store
from tokenlag_tracer.engines import transformers as adapter

from tests.tracer.engines.installed import python_with
from tests.tracer.support import REPO, environment

pytestmark = pytest.mark.engine
SITE = REPO / "tracer" / "tokenlag_tracer" / "site"


class Done:
    """A scenario that was run, and its traces as tables."""

    def __init__(self, told: dict[str, Any], store: Store) -> None:
        self.told = told
        self.store = store

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.store.fetchall(query)


def run(scenario: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Runs a scenario in a process of its own; returns what it told, and its standard error."""
    python = python_with("TOKENLAG_TRANSFORMERS_PYTHON", "torch", "transformers")
    variables = environment(folder / "traces", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    variables["PYTHONPATH"] = f"{SITE}:{variables['PYTHONPATH']}"
    variables["TOKENLAG_EXIT_WAIT"] = "30"
    ran = subprocess.run(
        [python, "-m", "tests.tracer.engines.cb_driver", scenario],
        env=variables, cwd=REPO, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if "is not traced" in ran.stderr:
        pytest.skip(ran.stderr.strip().splitlines()[-1])
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1]), ran.stderr


def play(scenario: str, folder: Path) -> Done:
    told, _ = run(scenario, folder)
    store = Store()
    result = load_traces(store, [folder / "traces"], work_dir=folder / "work", n_workers=1)
    assert not result.problems
    return Done(told, store)


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return play("chunks", tmp_path_factory.mktemp("chunks"))


def test_every_request_has_its_tokens(chunks: Done) -> None:
    told = {
        row[0]: row[1:]
        for row in chunks.rows(
            "select request_id, n_prompt, n_output, n_computed, finish_reason, is_open "
            "from requests"
        )
    }
    truth = {
        name: (of["n_prompt"], of["n_output"], of["n_prompt"], "length", False)
        for name, of in chunks.told["requests"].items()
    }
    assert len(truth) == 5
    assert told == truth


def test_every_batch_is_a_step_with_its_tokens(chunks: Done) -> None:
    told = chunks.rows("select n_prefill_tokens + n_decode from steps order by step_index")
    assert [row[0] for row in told] == [sum(batch.values()) for batch in chunks.told["batches"]]


def test_members_are_those_of_each_batch(chunks: Done) -> None:
    members = chunks.rows(
        "select s.step_index, r.request_id from steps s join memberships m "
        "on s.step_index between m.first_step and m.last_step "
        "join sequences q using (seq_key) join requests r using (request_key)"
    )
    chunked = chunks.rows(
        "select c.step_index, r.request_id from chunks c join sequences q using (seq_key) "
        "join requests r using (request_key)"
    )
    told: dict[int, set[str]] = {}
    for index, name in members + chunked:
        told.setdefault(index, set()).add(name)
    assert [told[index] for index in sorted(told)] == [set(b) for b in chunks.told["batches"]]
    assert not set(members) & set(chunked)


def test_a_long_prompt_is_cut_into_chunks(chunks: Done) -> None:
    [[n_chunks, n_tokens, contexts]] = chunks.rows(
        "select count(*), sum(c.n_tokens), list(c.n_context order by c.step_index) from chunks c "
        "join sequences q using (seq_key) join requests r using (request_key) "
        "where r.request_id = 'r3'"
    )
    assert n_chunks >= 3
    assert n_tokens == 200
    assert contexts[0] == 0
    assert contexts == sorted(contexts)


def test_phases_tile_each_request(chunks: Done) -> None:
    wrong = chunks.rows(
        "select request_key from phases p join requests r using (request_key) group by all "
        "having abs(sum(p.end_ns - p.start_ns) - any_value(r.end_ns - r.arrival_ns)) > 2"
    )
    assert not wrong


def test_engine_says_what_it_is(chunks: Done) -> None:
    [row] = chunks.rows(
        "select engine_name, engine_version, max_batch_tokens, kv_tokens, is_chunked_prefill "
        "from epochs"
    )
    assert row[:3] == ("transformers", chunks.told["version"], 64)
    assert row[3] >= 64 * 16
    assert row[4] is True


def test_running_out_of_kv_is_a_preemption(tmp_path: Path) -> None:
    done = play("pressure", tmp_path)
    [[n_steps, n_requests]] = done.rows(
        "select (select sum(n_preempted) from steps), (select sum(n_preemptions) from requests)"
    )
    assert n_steps == n_requests > 0
    assert done.rows("select count(*) from phases where is_recompute")[0][0] > 0
    told = dict(done.rows("select request_id, n_output from requests"))
    assert told == {name: of["n_output"] for name, of in done.told["requests"].items()}
    assert "kv" in {row[0] for row in done.rows("select distinct admit_bound from steps")}


def test_shared_blocks_are_cached_tokens(tmp_path: Path) -> None:
    done = play("shared", tmp_path)
    told = done.rows("select n_prompt, n_cached, n_computed from requests order by request_id")
    if not done.rows("select is_prefix_caching from epochs")[0][0]:
        pytest.skip("this build of the cache shares no blocks on a CPU")
    assert told[0][1] == 0
    assert [row[1] for row in told[1:]] == [64, 64]
    assert all(n_prompt == n_cached + n_computed for n_prompt, n_cached, n_computed in told)


def test_too_few_slots_are_told(tmp_path: Path) -> None:
    done = play("slots", tmp_path)
    bounds = done.rows("select admit_bound from steps where n_waiting > 0")
    assert {row[0] for row in bounds} == {"slots"}
    waits = done.rows("select count(*) from phases where kind = 'queue' and end_ns > start_ns")
    assert waits[0][0] == 3


def test_a_cancelled_request_is_an_abort(tmp_path: Path) -> None:
    done = play("cancel", tmp_path)
    told = {
        row[0]: row[1:]
        for row in done.rows("select request_id, is_aborted, is_open, finish_reason from requests")
    }
    assert told["r1"] == (True, False, "abort")
    assert told["r0"] == (False, False, "length")


def test_a_failing_hook_leaves_the_engine_alone(tmp_path: Path) -> None:
    told, err = run("failing", tmp_path)
    assert [of["status"] for of in told["requests"].values()] == ["FINISHED"] * 3
    assert err.count("is no longer traced") == 1


def test_old_releases_are_not_touched() -> None:
    assert adapter.is_supported("5.24.0")
    assert adapter.is_supported("6.0.0.dev0")
    assert not adapter.is_supported("4.57.6")
    assert not adapter.is_supported("5.18.2")
    assert not adapter.is_supported("unknown")
