"""A fleet is summed up in ClickHouse; the engines that differ are the ones that are read."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from tokenlag.cli import main
from tokenlag.read.stores import fleet
from tokenlag.read.stores.asked import Span
from tokenlag.read.stores.summary import EngineSummary
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces

from tests.read.stores.clickhouse import MAPS, Front, Json, lines_of, rows_of_otlp
from tests.read.stores.test_clickhouse import spans_of

RECIPE = Path(__file__).parents[3] / "fixtures" / "recipes" / "S05.toml"
N_COPIES = 5
SLOW = "sim-2"  # its steps take 1.5 times as long
# Copy k of an engine is another engine, with ids of its own; the slow one is there once.
COPY = """
INSERT INTO fleet.otel_traces SELECT * REPLACE (
    concat('{k:02x}', substring(TraceId, 3)) AS TraceId,
    mapApply((a, v) -> (a, if(a IN ('tokenlag.engine.id', 'gen_ai.request.id'),
        concat(v, '-{k}'), v)), SpanAttributes) AS SpanAttributes,
    mapApply((a, v) -> (a, if(a = 'service.instance.id', concat(v, '-{k}'), v)),
        ResourceAttributes) AS ResourceAttributes)
FROM (
    SELECT * FROM one_fleet.otel_traces
    WHERE TraceId IN (
        SELECT TraceId FROM one_fleet.otel_traces
        WHERE SpanName IN ('llm.engine_request', 'llm.engine_step')
            AND (SpanAttributes['tokenlag.engine.id'] != '{slow}' OR {k} = 0)
    )
)
"""


@pytest.fixture(scope="module")
def filled(front: Front, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sixteen engines."""
    path = tmp_path_factory.mktemp("fleet") / "s05.jsonl"
    write_traces(run(load_recipe("S05"), variant="slow-machine"), path)
    front.create("one_fleet")
    front.insert("one_fleet", rows_of_otlp(lines_of(path), MAPS))
    front.create("fleet")
    for k in range(N_COPIES):
        front.send(COPY.format(k=k, slow=SLOW))
    return front.url("fleet")


def test_the_stores_sums_tell_what_a_step_costs(filled: str) -> None:
    spans, _ = spans_of(filled, None)
    span = spans.span()
    assert span is not None
    engines, model = fleet.sum_up(spans, Span(*span))
    assert len(engines) == 3 * N_COPIES + 1
    step = tomllib.loads(RECIPE.read_text(encoding="utf-8"))["step"]
    assert model is not None
    told = (model.base_ms, model.per_token_ms, model.per_seq_ms, model.per_context_ms)
    truth = [step[key] for key in ("a_ms", "b_ms", "c_ms", "d_ms")]
    assert told == pytest.approx(truth, rel=0.01)
    ratios = {one.engine: one.step_ratio for one in engines}
    assert ratios.pop(f"{SLOW}-0") == pytest.approx(1.5, rel=0.01)
    assert list(ratios.values()) == pytest.approx([1.0] * len(ratios), rel=0.01)


def test_summaries_are_what_reading_it_all_says(
    filled: str, front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    spans, _ = spans_of(front.url("one_fleet"), None)
    span = spans.span()
    assert span is not None
    engines, _ = fleet.sum_up(spans, Span(*span))
    query = (
        "select e.engine_id, count(*) as n, quantile_cont(r.ttft_ms, 0.9) as ttft, "
        "quantile_cont(r.e2e_ms, 0.9) as e2e from requests r "
        "join sequences s using (request_key) join epochs e using (epoch_key) "
        "where r.arrival_ns is not null group by 1 order by 1"
    )
    assert main(["sql", front.url("one_fleet"), query, "--since", "2026-03-02"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    for one, (engine, n, ttft, e2e) in zip(engines, lines, strict=True):
        assert one.engine == engine
        assert one.requests == int(n)
        assert one.ttft_p90_ms == pytest.approx(float(ttft), rel=0.02)
        assert one.e2e_p90_ms is not None
        assert one.e2e_p90_ms == pytest.approx(float(e2e), rel=0.02)


def test_only_suspects_and_a_typical_engine_come(
    filled: str, front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    front.log()
    window = ["--since-end", "15s", "--by", "engine"]
    assert main([filled, *window, "--format", "json"]) == 0
    told: Json = json.loads(capsys.readouterr().out)
    assert told["verdict"]["cause"] == "slow-replica"
    assert told["findings"][0]["engines"] == [f"{SLOW}-0"]
    read = {one["engine"]: one["why"] for one in told["fleet"]["engines"] if one["is_read"]}
    assert len(told["fleet"]["engines"]) == 3 * N_COPIES + 1
    assert len(read) == 2
    assert "the fleet's median" in read[f"{SLOW}-0"]
    assert sorted(told["coverage"]["engines"]) == sorted(read)
    moved = sum(statement["bytes"] for statement in front.log())
    front.log()
    assert main([filled, *window[:2], "-q"]) == 0
    assert moved < sum(statement["bytes"] for statement in front.log()) / 2
    capsys.readouterr()
    assert main([filled, *window]) == 0
    text = capsys.readouterr().out
    assert "The fleet" in text
    assert "16 engines with" in text


def test_a_few_engines_are_all_read(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    url = front.url("one_fleet")
    assert main([url, "--since-end", "15s", "--by", "engine", "--format", "json"]) == 0
    told: Json = json.loads(capsys.readouterr().out)
    assert "fleet" not in told
    assert len(told["coverage"]["engines"]) == 4


def summaries(n: int, **of_last: float) -> list[EngineSummary]:
    rng = np.random.default_rng(1)
    made = [
        EngineSummary(
            f"e{k}",
            requests=100,
            ttft_p90_ms=float(200 + rng.normal(0, 6)),
            tpot_p90_ms=float(20 + rng.normal(0, 0.4)),
            busy_ms=3e6,
            stopped_ms=0.0,
            step_ratio=float(1 + rng.normal(0, 0.01)),
            error_frac=0.0,
        )
        for k in range(n - 1)
    ]
    last = {"ttft_p90_ms": 200.0, "tpot_p90_ms": 20.0, "step_ratio": 1.0, "error_frac": 0.0}
    return [*made, EngineSummary("odd", requests=100, busy_ms=3e6, **(last | of_last))]


@pytest.mark.parametrize(
    ("figure", "value", "words"),
    [
        ("step_ratio", 1.4, "steps' time for their batches 1.4 ×"),
        ("ttft_p90_ms", 900.0, "TTFT p90 4.5 ×"),
        ("error_frac", 0.2, "share of errors 0.2 against"),
        ("stopped_ms", 2e5, "time in stops"),
    ],
)
def test_the_engine_that_differs_is_chosen(figure: str, value: float, words: str) -> None:
    chosen = fleet.choose(summaries(40, **{figure: value}))
    assert next(iter(chosen)) == "odd"
    assert words in chosen["odd"]
    assert len(chosen) == 2
    assert "typical" in list(chosen.values())[1]


def test_of_engines_that_are_alike_the_slowest_are_chosen() -> None:
    made = summaries(40)
    chosen = fleet.choose(made)
    slowest = sorted(made, key=lambda one: -(one.ttft_p90_ms or 0))[: fleet.N_WORST]
    assert list(chosen)[:-1] == [one.engine for one in slowest]


def test_an_engine_that_became_slow_is_chosen_though_others_always_were() -> None:
    rng = np.random.default_rng(2)
    usual = rng.uniform(100, 900, 30)
    before = [EngineSummary(f"e{k}", requests=99, ttft_p90_ms=float(usual[k])) for k in range(30)]
    now = [
        EngineSummary(f"e{k}", requests=99, ttft_p90_ms=float(usual[k] * (2.5 if k == 7 else 1)))
        for k in range(30)
    ]
    assert "e7" in fleet.choose(now, before)
    assert "since the baseline" in fleet.choose(now, before)["e7"]


def test_the_fleets_line_is_that_of_least_squares(tmp_path: Path) -> None:
    """Sums of products give what all rows would, and odd engines do not bend it."""
    rng = np.random.default_rng(3)
    truth = np.array([5.0, 0.05, 0.03, 1e-7, 4e-5])
    sums, xs, ys = [], [], []
    for k in range(12):
        n = 400
        x = np.column_stack(
            [
                np.ones(n),
                rng.integers(1, 64, n),
                rng.choice([0, 256, 512], n),
                rng.choice([0, 1e5, 3e5], n),
                rng.integers(1000, 60_000, n),
            ]
        ).astype(float)
        y = x @ truth * (1 + rng.normal(0, 0.02, n)) * (3.0 if k == 5 else 1.0)
        sums.append(fleet.Sums(n, float(y.sum()), x.sum(0), x.T @ y, x.T @ x))
        if k != 5:
            xs.append(x)
            ys.append(y)
    expected = np.linalg.lstsq(np.concatenate(xs), np.concatenate(ys), rcond=None)[0]
    assert (expected > 0).all()
    assert fleet.fleet_line(sums) == pytest.approx(expected, rel=1e-6)
    assert fleet.fleet_line([]) is None
