"""Two loads: what moved, and whether shape, load or speed moved it, against simulated truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenlag.explain.comparison import Comparison
from tokenlag.explain.loads import load_of
from tokenlag.explain.twoloads import compare
from tokenlag.read.loadtest.reader import read_file
from tokenlag.read.loadtest.run import Run
from tokenlag.simulate.emit_results import write_result
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import run as simulate
from tokenlag.simulate.timeline import DEFAULT_END_NS

RECIPE = """
name = "two"
shows = "one of two loads"
seed = {seed}
base = "healthy"
[engine]
max_seqs = 64
max_batch_tokens = 4096
kv_tokens = 400000
[step]
a_ms = {a_ms}
b_ms = {b_ms}
c_ms = {c_ms}
d_ms = 4e-5
noise_sigma = 0.02
[workload.main]
{load}
prompt = {prompt}
output = {output}
[truth]
healthy = true
"""

Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(
        tool: str = "vllm",
        *,
        seed: int = 1,
        speed: float = 1.0,
        rate: float | None = 3.0,
        clients: int = 0,
        prompt: str = "[300, 700]",
        output: str = "[100, 200]",
    ) -> Run:
        load = f'kind = "poisson"\nrate_per_s = {rate}\nuntil_s = 120'
        if clients:
            load = f'kind = "closed"\nclients = {clients}\nrequests_each = 20'
        text = RECIPE.format(
            seed=seed, a_ms=8 * speed, b_ms=0.05 * speed, c_ms=0.1 * speed, load=load,
            prompt=prompt, output=output,
        )  # fmt: skip
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        recipe = folder / "two.toml"
        recipe.write_text(text)
        path = folder / "result.json"
        settings = {"clients": clients} if clients else {"rate": rate}
        write_result(simulate(load_recipe(recipe)), path, tool, end_ns=DEFAULT_END_NS, **settings)
        (run,) = read_file(str(path))
        return run

    return made


def moved(comparison: Comparison) -> dict[str, str]:
    return {change.metric: change.moved for change in comparison.changes}


def parts(comparison: Comparison, metric: str) -> dict[str, float]:
    told: dict[str, float] = {}
    for part in comparison.parts:
        if part.metric == metric:
            told[part.cause] = told.get(part.cause, 0.0) + part.ms
    return told


@pytest.mark.parametrize("tool", ["vllm", "aiperf", "guidellm", "vllm-summary", "sglang"])
def test_another_seed_is_no_difference(tool: str, make: Make) -> None:
    found = compare(make(tool), make(tool, seed=2))
    assert set(moved(found).values()) == {"same"}
    assert found.why == {}
    assert found.verdict[0] == "B and A do not differ in latency."


@pytest.mark.parametrize("tool", ["vllm", "aiperf", "guidellm", "vllm-summary", "sglang"])
def test_a_slower_server_in_an_open_loop_is_speed(tool: str, make: Make) -> None:
    found = compare(make(tool), make(tool, seed=2, speed=1.4))
    assert moved(found) | {"input_tokens": "", "output_tokens": ""} == {
        "ttft": "higher", "e2e": "higher", "tpot": "higher",
        "input_tokens": "", "output_tokens": "",
    }  # fmt: skip
    assert set(found.why.values()) == {"speed"}
    assert "the same work takes another time" in found.verdict[0]
    change = next(c for c in found.changes if c.metric == "e2e")
    assert sum(parts(found, "e2e").values()) == pytest.approx(change.ms, rel=0.1)


@pytest.mark.parametrize("tool", ["vllm", "vllm-summary"])
def test_the_same_clients_on_a_slower_server_is_speed(tool: str, make: Make) -> None:
    found = compare(make(tool, clients=8), make(tool, seed=2, speed=1.4, clients=8))
    assert moved(found)["tpot"] == "higher"
    assert set(found.why.values()) == {"speed"}


def test_more_requests_are_load_where_requests_show_it(make: Make) -> None:
    a, b = make(rate=2.0), make(rate=5.0, seed=2)
    found = compare(a, b)
    assert moved(found)["tpot"] == "higher"
    assert found.why["tpot"] == "load"
    assert found.why["e2e"] == "load"
    tpot = parts(found, "tpot")
    assert abs(tpot.get("speed", 0.0)) < 0.3 * tpot["load"]


def test_more_load_and_less_speed_are_told_apart(make: Make) -> None:
    found = compare(make(rate=2.0), make(rate=4.0, seed=2, speed=1.5))
    tpot = parts(found, "tpot")
    assert tpot["speed"] > 0
    assert tpot["load"] > 0
    assert found.why["tpot"] == "speed"


@pytest.mark.parametrize("tool", ["vllm-summary", "sglang"])
def test_summaries_of_two_loads_do_not_pretend(tool: str, make: Make) -> None:
    found = compare(make(tool, rate=2.0), make(tool, rate=5.0, seed=2))
    assert set(found.why.values()) == {"load or speed"}
    assert any("only a run of B at the load of A can tell" in note for note in found.notes)


@pytest.mark.parametrize("tool", ["vllm", "guidellm", "vllm-summary"])
def test_longer_outputs_are_shape_and_the_time_per_token_stays(tool: str, make: Make) -> None:
    found = compare(make(tool, clients=4), make(tool, clients=4, seed=2, output="[200, 400]"))
    assert moved(found)["output_tokens"] == "higher"
    assert moved(found)["tpot"] == "same"
    assert found.why["e2e"] == "shape"
    assert any("Tokens per second of the two cannot be compared" in v for v in found.verdict)


@pytest.mark.parametrize("tool", ["vllm", "vllm-summary"])
def test_longer_prompts_are_shape(tool: str, make: Make) -> None:
    found = compare(
        make(tool, clients=1, prompt="[300, 700]"),
        make(tool, clients=1, seed=2, prompt="[900, 2100]"),
    )
    assert moved(found)["ttft"] == "higher"
    assert found.why["ttft"] == "shape"


def test_the_parts_sum_to_the_change(make: Make) -> None:
    found = compare(make(rate=2.0), make(rate=4.0, seed=2, speed=1.2, prompt="[500, 1100]"))
    for metric in ("ttft", "tpot"):
        change = next(c for c in found.changes if c.metric == metric)
        assert sum(parts(found, metric).values()) == pytest.approx(change.ms, rel=1e-6)


def test_without_send_times_the_load_is_not_known(make: Make) -> None:
    a = make("llmperf")
    assert load_of(a).loop is None
    found = compare(a, make("llmperf", seed=2, speed=1.4))
    assert set(found.why.values()) == {"load or speed"}


def test_loads(make: Make) -> None:
    closed = load_of(make("aiperf", clients=8))
    assert (closed.loop, closed.offered) == ("closed", 8)
    assert closed.in_flight == pytest.approx(8, rel=0.1)
    opened = load_of(make("aiperf", rate=3.0))
    assert opened.loop == "open"
    assert opened.offered == pytest.approx(3.0, rel=0.15)
