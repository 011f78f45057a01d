"""From paths to a diagnosis: windows, baselines, the JSON of the contract."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenlag.errors import InputError, UsageError
from tokenlag.explain.run import prepare
from tokenlag.judge.diagnosis import Diagnosis, to_json
from tokenlag.pipeline import (
    MIN_BASELINE_REQUESTS,
    Choice,
    Outcome,
    Request,
    choose_windows,
    diagnose,
)
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces
from tokenlag.store.connection import Store

from tests.diagnosis_schema import DIAGNOSIS, faults
from tests.explain.tables import add

S = 1_000_000_000
T0 = int(datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp()) * S
NOW = T0 + 7200 * S


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as opened:
        prepare(opened)
        yield opened


def arrive(store: Store, at_s: list[float], dataset: int = 0, **more: Any) -> None:
    ((first,),) = store.fetchall("select count(*) from requests")
    rows = [
        {"request_key": first + i, "dataset": dataset, "arrival_ns": T0 + int(t * S),
         "end_ns": T0 + int((t + 1) * S), "n_prompt": 100, "n_output": 10}
        | {key: value[i] if isinstance(value, list) else value for key, value in more.items()}
        for i, t in enumerate(at_s)
    ]  # fmt: skip
    add(store, "requests", *rows)


def choose(store: Store, **options: Any) -> Choice:
    return choose_windows(store, Request(["traces/"], **options), now_ns=NOW, tz=UTC)


def spans(choice: Choice) -> dict[str, tuple[float, float, str]]:
    """Windows in seconds from the start of the data, and how each was chosen."""
    return {
        row.name: ((row.from_ns - T0) / S, (row.to_ns - T0) / S, row.origin) for row in choice.rows
    }


def every(step_s: float, until_s: float) -> list[float]:
    return [i * step_s for i in range(int(until_s / step_s))]


def test_without_options_all_is_the_window_and_steady_traffic_has_no_baseline(
    store: Store,
) -> None:
    arrive(store, every(10, 600))
    choice = choose(store)
    assert list(spans(choice)) == ["current"]
    assert choice.baseline_origin is None
    begin, end, _ = spans(choice)["current"]
    assert begin <= 0
    assert end > 590, "the last arrival is inside"


def test_what_lies_before_the_window_is_the_baseline_if_it_is_enough(store: Store) -> None:
    arrive(store, every(10, 600))
    choice = choose(store, since_end="200s")
    got = spans(choice)
    assert got["baseline"][2] == "earlier"
    assert got["baseline"][1] == got["current"][0]
    assert choice.baseline_origin
    n_before = 600 - 10 * (MIN_BASELINE_REQUESTS - 5)
    assert "baseline" not in spans(choose(store, since_end=f"{n_before}s"))


def test_a_baseline_that_was_asked_for_is_taken_however_small(store: Store) -> None:
    arrive(store, every(10, 600))
    got = spans(choose(store, since_end="100s", baseline="60s"))
    assert got["baseline"] == (pytest.approx(got["current"][0] - 60), got["current"][0], "given")
    pair = "2026-03-02T12:00:00Z/2026-03-02T12:01:00Z"
    got = spans(choose(store, since_end="100s", baseline=pair))
    assert got["baseline"] == (0, 60, "given")


def test_other_traces_as_baseline(store: Store) -> None:
    arrive(store, every(10, 600))
    arrive(store, [9000.0, 9100.0], dataset=1)
    choice = choose(store, baseline_traces=["other/"])
    assert spans(choice)["baseline"][2] == "traces"
    assert (choice.rows[1].dataset, choice.baseline_origin) == (1, "--baseline-traces")
    assert choice.rows[1].from_ns <= T0 + 9000 * S < T0 + 9100 * S < choice.rows[1].to_ns


def test_where_the_make_up_changes_the_part_before_is_the_baseline(store: Store) -> None:
    rng = np.random.default_rng(1)
    sizes = [int(v) for v in rng.lognormal(5, 0.3, 60)] + [
        int(v) for v in rng.lognormal(7, 0.3, 60)
    ]
    arrive(store, every(5, 600), n_prompt=sizes)
    choice = choose(store)
    got = spans(choice)
    assert got["baseline"][2] == "change"
    assert got["baseline"][1] == got["current"][0] == pytest.approx(300, abs=15)
    assert choice.baseline_origin is not None
    assert "make-up changed" in choice.baseline_origin
    assert choice.current.start_ns == choice.rows[0].from_ns, "what is reported is what is judged"


@pytest.mark.parametrize(("n_first", "has_baseline"), [(24, False), (60, True)])
def test_a_short_first_part_is_not_what_is_usual(
    store: Store, n_first: int, has_baseline: bool
) -> None:
    """First turns of conversations that all begin then: a twelfth of the window, a fifth."""
    rng = np.random.default_rng(2)
    sizes = [int(v) for v in rng.lognormal(5, 0.3, n_first)]
    sizes += [int(v) for v in rng.lognormal(7, 0.3, 300 - n_first)]
    arrive(store, every(2, 600), n_prompt=sizes)
    assert ("baseline" in spans(choose(store))) == has_baseline


def test_an_empty_window_says_what_the_data_span_and_what_to_type(store: Store) -> None:
    arrive(store, every(10, 600))
    with pytest.raises(UsageError) as caught:
        choose(store, since="15m")
    text = str(caught.value)
    assert "2026-03-02T12:00:00" in text
    assert "2026-03-02T12:09:5" in text
    assert "--since-end 15m" in text
    assert "\n" not in text


def test_an_empty_baseline_is_an_error_too(store: Store) -> None:
    arrive(store, [*every(10, 100), *(t + 1000 for t in every(10, 100))])
    with pytest.raises(UsageError, match="baseline"):
        choose(store, since_end="120s", baseline="60s")


def test_two_baselines_exclude_each_other(store: Store) -> None:
    arrive(store, every(10, 100))
    with pytest.raises(UsageError, match="exclude each other"):
        choose(store, baseline="10s", baseline_traces=["x"])


def test_no_request_at_all_is_said(store: Store) -> None:
    with pytest.raises(UsageError, match="no request in traces/"):
        choose(store)
    arrive(store, every(10, 100))
    with pytest.raises(UsageError, match="no request in other/"):
        choose(store, baseline_traces=["other/"])


def test_steps_without_requests_are_not_called_unknown_spans(store: Store) -> None:
    add(store, "epochs", {"epoch_key": 0, "dataset": 0, "engine_id": "e0"})
    step = {
        "start_ns": T0, "end_ns": T0 + S, "cadence_ms": 1000.0, "n_prefill_tokens": 0,
        "n_chunks": 0, "attention_work": 0.0, "n_decode": 1, "n_new_tokens": 1,
        "n_preempted": 0, "is_after_hole": False,
    }  # fmt: skip
    add(store, "steps", *({"epoch_key": 0, "step_index": i, **step} for i in range(3)))
    with pytest.raises(UsageError, match="no request in traces/") as caught:
        choose(store)
    assert "3 engine steps of e0" in str(caught.value)
    assert "none that a dialect knows" not in str(caught.value)


# --- the whole of it --------------------------------------------------------------------------


def judge(path: Path, **options: Any) -> Outcome:
    return diagnose(Request([str(path)], n_workers=0, **options), now_ns=NOW, tz=UTC)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipeline") / "traces.jsonl"
    write_traces(run(load_recipe("S02"), variant="mixed-2048"), path)
    return path


@pytest.fixture(scope="module")
def outcome(traces: Path) -> Outcome:
    return judge(traces, slo="e2e_p90=2s", goodput=["ttft:500"])


def test_the_json_is_the_contracts(outcome: Outcome) -> None:
    told = json.loads(to_json(outcome.diagnosis))
    assert faults(told, DIAGNOSIS) == []
    assert next(iter(told)) == "schema"
    assert told["findings"], "a fixture with findings, or their keys go unchecked"
    assert told["findings"][0]["blame"]


def test_the_schema_check_itself_can_fail(outcome: Outcome) -> None:
    told = json.loads(to_json(outcome.diagnosis))
    del told["verdict"]["missing"]
    told["findings"][0]["confidence"] = "high"
    told["latency"].pop("queue")
    told["coverage"]["requests"] = True
    assert faults(told, DIAGNOSIS) == [
        "$.coverage.requests: True",
        "$.verdict.missing: missing",
        "$.latency.queue: missing",
        "$.findings.0.confidence: 'high'",
    ]


def test_times_are_rfc_3339_and_the_window_holds_its_findings(outcome: Outcome) -> None:
    told = outcome.diagnosis

    def at(text: str) -> datetime:
        return datetime.fromisoformat(text[:26] + "Z" if len(text) > 27 else text)

    assert at(told.window.start) < at(told.window.end)
    for finding in told.findings:
        assert at(finding.window.start) <= at(finding.window.end)
        assert at(finding.window.start) >= at(told.window.start)


def test_the_cause_comes_first_and_rules_are_each_in_one_list(outcome: Outcome) -> None:
    told = outcome.diagnosis
    assert told.findings[0].rule == told.verdict.cause
    fired = {f.rule for f in told.findings}
    blind = {n.rule for n in told.not_evaluated}
    assert not fired & blind
    assert not blind & set(told.checked)


def test_shares_and_confidences_are_shares(outcome: Outcome) -> None:
    for finding in outcome.diagnosis.findings:
        assert 0 <= finding.confidence <= 1
        assert finding.share is None or 0 <= finding.share <= 1


def test_budget_lines_add_up_to_about_the_actual(outcome: Outcome) -> None:
    budget = outcome.diagnosis.budget
    assert budget is not None
    assert (budget.metric, budget.objective_ms) == ("e2e", 2000.0)
    total = math.fsum(line.ms or 0.0 for line in budget.lines)
    assert total == pytest.approx(budget.actual_ms, rel=0.25)


def test_figures_agree_with_each_other(outcome: Outcome) -> None:
    told = outcome.diagnosis
    assert told.latency["e2e"].n <= told.coverage.requests
    for stat in told.latency.values():
        if stat.n:
            assert stat.p50 is not None
            assert stat.p90 is not None
            assert stat.p99 is not None
            assert stat.max is not None
            assert stat.p50 <= stat.p90 <= stat.p99 <= stat.max
        else:
            assert (stat.p50, stat.mean) == (None, None)


def test_the_same_traces_give_the_same_diagnosis(traces: Path, outcome: Outcome) -> None:
    again = judge(traces, slo="e2e_p90=2s", goodput=["ttft:500"])
    assert again.diagnosis == outcome.diagnosis


def test_progress_names_the_stages_in_order(traces: Path) -> None:
    stages: list[str] = []
    request = Request([str(traces)], n_workers=0)
    diagnose(request, now_ns=NOW, tz=UTC, progress=lambda stage, _share: stages.append(stage))
    assert list(dict.fromkeys(stages)) == ["read", "explain", "judge"]


def test_a_path_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        judge(tmp_path / "nowhere")
    assert "nowhere" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_window_without_a_request_is_never_healthy(traces: Path) -> None:
    with pytest.raises(UsageError, match="--since-end 1h"):
        judge(traces, since="1h")


def test_a_baseline_of_other_traces_stands_beside_each_figure(traces: Path, tmp_path: Path) -> None:
    calm = tmp_path / "calm.jsonl"
    write_traces(run(load_recipe("S02"), variant="control"), calm)
    told: Diagnosis = judge(traces, baseline_traces=[str(calm)]).diagnosis
    assert told.baseline is not None
    assert told.baseline_origin == "--baseline-traces"
    assert told.latency["ttft"].baseline is not None
    assert told.latency["ttft"].baseline.n > 0
    assert told.throughput.baseline is not None
    assert faults(json.loads(to_json(told)), DIAGNOSIS) == []
