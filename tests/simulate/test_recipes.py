"""Every recipe loads, runs in all its variants and states a truth that holds together."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenlag.errors import InputError
from tokenlag.simulate.recipe import Recipe, load_recipe, recipe_names
from tokenlag.simulate.run import Run, run

from tests.simulate import measure as m

REPO = Path(__file__).resolve().parents[2]
ALL = [(name, variant) for name in recipe_names() for variant in load_recipe(name).variants]
SYMPTOMS = {"ttft", "itl", "e2e", "errors"}


def halves(done: Run) -> tuple[list, list]:
    change_s = done.truth.change_s
    assert change_s is not None
    finished = [r for r in done.requests if r.first_token_s is not None and r.done_s is not None]
    before = [r for r in finished if r.done_s < change_s]
    return before, [r for r in finished if r.sent_s >= change_s]


def median(values) -> float:
    return float(np.median(list(values)))


def ttft(requests) -> float:
    return median(r.first_token_s - r.arrival_s for r in requests)


def e2e(requests) -> float:
    return median(r.done_s - r.arrival_s for r in requests)


def queue(requests) -> float:
    return median(r.scheduled_s - r.engine_s for r in requests)


def prefill(requests) -> float:
    return median(r.first_token_s - r.scheduled_s for r in requests)


def tpot(requests) -> float:
    return median((r.done_s - r.first_token_s) / (r.n_output - 1) for r in requests)


def test_the_named_recipes_are_there() -> None:
    wanted = "S01 S02 S03 S04 tab-completion chat nightly-embedding agent peak-hour demo"
    assert set(wanted.split()) <= set(recipe_names())


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_truth_holds_together(name: str, variant: str) -> None:
    recipe = load_recipe(name)
    chosen = recipe.variant(variant)
    truth = chosen.truth
    assert recipe.name == name
    assert truth.healthy == (truth.cause is None)
    assert truth.healthy == (truth.symptom is None)
    assert truth.symptom in SYMPTOMS | {None}
    assert truth.cause not in truth.must_not
    assert not set(truth.notes) & set(truth.must_not)
    if truth.culprit:
        assert truth.culprit in chosen.workload


@pytest.mark.parametrize(
    ("name", "variant"), [(n, v) for n, v in ALL if n not in ("demo", "peak-hour", "agent")]
)
def test_everything_that_was_sent_is_accounted_for(name: str, variant: str) -> None:
    done = run(load_recipe(name), variant=variant)
    assert done.n_steps
    for request in done.requests:
        if request.is_ghost or (request.done_s is None and done.variant.horizon_s < 1e9):
            continue
        assert request.done_s is not None
        assert request.error or request.n_generated == request.n_output


def test_each_faulty_recipe_has_a_healthy_side() -> None:
    for name in recipe_names():
        recipe = load_recipe(name)
        truths = [recipe.variant(v).truth.healthy for v in recipe.variants]
        assert any(truths), name


def test_control_is_what_run_takes_for_control() -> None:
    assert run(load_recipe("S02"), control=True).variant.name == "control"
    assert run(load_recipe("S04"), control=True).variant.name == "good"


def test_other_seeds_differ_also_where_the_recipe_is_deterministic() -> None:
    recipe = load_recipe("S02")
    ends = {run(recipe, seed=seed).requests[8].first_token_s for seed in (2, 3, 4)}
    assert len(ends) == 3


def test_tab_completion_misses_by_60_ms_and_prefill_is_the_largest_line() -> None:
    done = run(load_recipe("tab-completion"))
    edge = done.variant.edge
    sent = done.requests
    e2e_ms = [(r.done_s - r.arrival_s) * 1e3 + edge.delivery_ms for r in sent]
    assert float(np.quantile(e2e_ms, 0.9)) == pytest.approx(360, abs=3)
    prefill_ms = prefill(sent) * 1e3
    assert prefill_ms == pytest.approx(150, rel=0.01)
    assert sent[0].n_prompt / prefill(sent) == pytest.approx(10_000, rel=0.01)
    assert tpot(sent) * 1e3 == pytest.approx(8, rel=0.01)
    assert prefill_ms > 18 * tpot(sent) * 1e3
    assert prefill_ms > edge.frontend_ms
    assert max(r.scheduled_s - r.engine_s for r in sent) < 1e-3, "nobody waits"
    resource = done.variant.resource
    bound_ms = (
        resource["tokenlag.model.weight_bytes"] / resource["tokenlag.device.memory_bandwidth"] * 1e3
    )
    assert 0.85 < bound_ms / (tpot(sent) * 1e3) < 1


def test_chat_is_600_ms_of_prefill_and_3_2_s_of_decode() -> None:
    sent = run(load_recipe("chat")).requests
    assert prefill(sent) == pytest.approx(0.6, rel=0.02)
    assert median(r.done_s - r.first_token_s for r in sent) == pytest.approx(3.2, rel=0.04)


def test_agent_decodes_for_16_s() -> None:
    done = run(load_recipe("agent"))
    assert e2e(done.requests) == pytest.approx(16, rel=0.02)
    assert e2e(run(load_recipe("agent"), control=True).requests) < 10


def test_peak_hour_queues_while_prefill_stays_flat() -> None:
    done = run(load_recipe("peak-hour"))
    before, after = halves(done)
    assert ttft(after) > 20 * ttft(before)
    assert queue(after) > 0.95 * ttft(after)
    assert prefill(after) < 1.15 * prefill(before)
    busy = [s for s in done.epochs[0].steps if s.start_s > 280]
    assert sum(s.admit_bound == "slots" for s in busy) > 0.9 * len(busy)


def test_long_prompts_stall_40_streams() -> None:
    done = run(load_recipe("long-prompt-30k"))
    steps = done.epochs[0].steps
    long = next(r for r in done.requests if r.source == "long")
    chunks = [steps[c.step] for c in long.prefills[0]]
    assert all(s.n_decode == 40 for s in chunks)
    calm = run(load_recipe("long-prompt-30k"), control=True)
    assert max(m.gaps_s(done)) > 0.7
    assert max(m.gaps_s(calm)) < 0.1


def test_nightly_embedding_is_prefill_only_and_floods_on_tokens() -> None:
    done = run(load_recipe("nightly-embedding"), variant="flooded")
    assert all(r.n_generated == 0 for r in done.requests)
    waiting = [s.admit_bound for s in done.epochs[0].steps if s.n_waiting]
    assert set(waiting) == {"tokens"}


@pytest.mark.parametrize("name", ["outputs-grew", "prompts-grew", "decode-batch-grew", "slow"])
def test_two_period_recipes_change_what_they_say_and_nothing_else(name: str) -> None:
    before, after = halves(run(load_recipe(name)))
    grew = {
        "prompt": median(r.n_prompt for r in after) / median(r.n_prompt for r in before),
        "output": median(r.n_output for r in after) / median(r.n_output for r in before),
        "ttft": ttft(after) / ttft(before),
        "tpot": tpot(after) / tpot(before),
        "per_prompt_token": median(
            (r.first_token_s - r.scheduled_s) / (r.n_prompt - r.n_cached) for r in after
        )
        / median((r.first_token_s - r.scheduled_s) / (r.n_prompt - r.n_cached) for r in before),
    }
    assert (grew["prompt"] > 4) == (name == "prompts-grew")
    assert (grew["output"] > 2.5) == (name == "outputs-grew")
    assert (grew["tpot"] > 1.4) == (name in ("decode-batch-grew", "slow"))
    assert (grew["ttft"] > 3) == (name == "prompts-grew")
    assert (grew["per_prompt_token"] > 1.4) == (name == "slow")
    control_before, control_after = halves_of_control(name)
    assert ttft(control_after) == pytest.approx(ttft(control_before), rel=0.1)
    assert tpot(control_after) == pytest.approx(tpot(control_before), rel=0.1)


def halves_of_control(name: str) -> tuple[list, list]:
    change_s = load_recipe(name).variant().truth.change_s
    done = run(load_recipe(name), control=True)
    middle = [r for r in done.requests if r.first_token_s and r.done_s]
    return [r for r in middle if r.sent_s < change_s], [r for r in middle if r.sent_s >= change_s]


def write_recipe(folder: Path, text: str) -> Recipe:
    path = folder / "r.toml"
    path.write_text('name = "r"\nshows = "x"\nseed = 1\n' + text)
    return load_recipe(path)


ENGINE = "[engine]\nmax_seqs = 4\nmax_batch_tokens = 64\nkv_tokens = 999\n"
STEP = "[step]\na_ms = 1\nb_ms = 1\nc_ms = 1\nd_ms = 1\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"table \[step\] is missing|table \[engine\] is missing"),
        (ENGINE + "[step]\na_ms = 1\n[workload]\n", "b_ms"),
        (ENGINE + "slots = 3\n" + STEP + "[workload]\n", "unknown key 'slots'"),
        (ENGINE + STEP, r"table \[workload\] is missing"),
        (ENGINE + STEP + '[workload.a]\nkind = "burst"\n', "kind 'burst' is none of"),
        (ENGINE + STEP + '[workload.a]\nkind = "at"\ntimes_s = [0]\n', "'prompt' is missing"),
    ],
)
def test_a_bad_recipe_is_refused_in_one_line(text: str, complaint: str, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, text)
    with pytest.raises(InputError, match=complaint):
        run(recipe)


def test_missing_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no recipe"):
        load_recipe("S99")
    with pytest.raises(InputError, match=r"no variant 'x'.*fault, control"):
        load_recipe("S01").variant("x")
    broken = tmp_path / "b.toml"
    broken.write_text("name = ")
    with pytest.raises(InputError, match="not TOML"):
        load_recipe(broken)
    broken.write_text('name = "b"\nshows = "x"\n')
    with pytest.raises(InputError, match="'seed' is missing"):
        load_recipe(broken)


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, str(REPO / "fixtures" / "make"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_fixtures_make(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = make("S03", "S02:control", "--out", str(out), "--suffix", ".jsonl.zst")
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in out.iterdir()) == [
        "S02-control.jsonl.zst",
        "S03-control.jsonl.zst",
        "S03-fault.jsonl.zst",
    ]
    assert "kv-preemption-thrash" in done.stdout
    assert "tab-completion" in make("--list").stdout
    failed = make("S99", "--out", str(out))
    assert failed.returncode == 2
    assert failed.stderr.startswith("fixtures/make: no recipe 'S99'")
    assert len(failed.stderr.splitlines()) == 1
    assert make().returncode == 2
