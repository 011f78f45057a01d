"""Diagnoses made by hand, one for each ending, to print."""

from __future__ import annotations

from tokenlag.judge.diagnosis import (
    Blame,
    Budget,
    BudgetLine,
    Coverage,
    Diagnosis,
    Evidence,
    Exemplar,
    Finding,
    Interval,
    NotEvaluated,
    Remedy,
    RuledOut,
    Stat,
    StepModel,
    Throughput,
    Verdict,
)

WINDOW = Interval("2026-07-26T12:00:00Z", "2026-07-26T13:00:00Z")
BEFORE = Interval("2026-07-26T11:00:00Z", "2026-07-26T12:00:00Z")


def stat(p50: float, p90: float, p99: float, n: int, baseline: Stat | None = None) -> Stat:
    return Stat(p50=p50, p90=p90, p99=p99, mean=(p50 + p90) / 2, n=n, baseline=baseline)


def throughput(factor: float, baseline: Throughput | None = None) -> Throughput:
    return Throughput(
        prompt_tokens_per_s=1830.4 * factor,
        output_tokens_per_s=412.9 * factor,
        per_stream_tokens_per_s=20.6,
        input_tokens_p50=1500.0,
        output_tokens_p50=180.0,
        requests_per_s=1.22 * factor,
        baseline=baseline,
    )


QUEUEING = Finding(
    rule="queueing-not-prefill",
    severity="problem",
    symptom="ttft",
    confidence=0.93,
    share=0.82,
    affected_requests=410,
    engines=["vllm-0"],
    window=WINDOW,
    summary="Requests wait 2.14 s for a slot; prefill per token is what it was.",
    evidence=[
        Evidence("queue p90", 2140.0, "ms", 12.0),
        Evidence("prefill per token", 0.0981, "ms", 0.0984),
        Evidence("time with every slot taken", 0.871, "frac", 0.02),
        Evidence("arrivals", 4390.0, "count", 2210.0),
        Evidence("head of queue", None, "ms"),
    ],
    facts={
        "limit": "slots",
        "filled_by": "arrivals",
        "n_slots": 64,
        "worst_wait_ms": 9120.5,
        "wait_share": 0.997,
    },
    blame=[],
    ruled_out=[RuledOut("prefill-runs-slow", "0.098 ms a token, as before (× 1.00)")],
    exemplars=[Exemplar("4bf92f3577b34da6", "req-4711", 2290.0, 5400.0, 2140.0)],
    remedies=[
        Remedy(
            do="let more sequences run at once",
            engine="vllm",
            setting="--max-num-seqs 256",
            expected={"ttft_p90_ms": 310.0},
            cost="each stream's steps get slower: + 0.1 ms a step for each sequence",
        ),
        Remedy(do="add a replica", engine=None, setting=None),
    ],
    effect_ms=612_000.0,
    title="Requests wait for admission, not for prefill",
    means=(
        "The engine computes prompts as fast as before, e.g. per token. "
        "What grew is the time before it starts.\n\nMore arrivals than slots."
    ),
)

STALLS = Finding(
    rule="long-prompt-stalled-streams",
    severity="problem",
    symptom="itl",
    confidence=0.61,
    share=None,
    affected_requests=1,
    engines=["vllm-0", "vllm-1", "vllm-2", "vllm-3"],
    window=WINDOW,
    summary="Prompts of 8,000 tokens froze the streams that shared their steps.",
    evidence=[],
    facts={"mode": "mixed", "is_chunked": True},
    blame=[Blame(f"req-{n}", 14 - n, 61234.0 / (n + 1)) for n in range(5)],
    ruled_out=[],
    exemplars=[],
    remedies=[],
    effect_ms=140_000.0,
)

BATCH = Finding(
    rule="decode-batch-grew",
    severity="problem",
    symptom="itl",
    confidence=0.4,
    share=0.1,
    affected_requests=300,
    engines=["vllm-0"],
    window=WINDOW,
    summary="Steps carry 64 streams where they carried 30.",
    evidence=[],
    facts={},
    blame=[],
    ruled_out=[],
    exemplars=[],
    remedies=[],
    title="More streams share each step",
    consequence_of="queueing-not-prefill",
)

INCOMPLETE = Finding(
    rule="trace-incomplete",
    severity="note",
    symptom=None,
    confidence=1.0,
    share=None,
    affected_requests=0,
    engines=[],
    window=WINDOW,
    summary="3.1 % of step records are missing.",
    evidence=[],
    facts={},
    blame=[],
    ruled_out=[],
    exemplars=[],
    remedies=[],
)

MODEL = StepModel(
    engine="vllm-0",
    n_steps=56789,
    n_mixed=1234,
    error_decode_frac=0.021,
    error_mixed_frac=0.064,
    base_ms=7.9,
    per_sequence_ms=0.104,
    per_prefill_token_ms=0.0981,
    per_context_ktoken_ms=0.011,
    knee_tokens=412.0,
    reason=None,
)

BUDGET = Budget(
    metric="e2e",
    objective_ms=3000.0,
    actual_ms=5310.0,
    percentile="p90",
    lines=[
        BudgetLine("network", None, None, None, is_over=False, detail="not recorded"),
        BudgetLine("frontend", 11.0, 10.0, 10.0, is_over=False),
        BudgetLine("queue", 2140.0, 12.0, 0.0, is_over=True),
        BudgetLine("prefill", 147.0, 148.0, 147.0, is_over=False),
        BudgetLine("decode", 2980.0, 2890.0, 2400.0, is_over=False, detail="180 × 16.6 ms"),
        BudgetLine("delivery", 2.0, 2.0, None, is_over=False),
        BudgetLine("uncovered", 30.0, 28.0, None, is_over=False),
    ],
    over_line="queue",
)


def problem() -> Diagnosis:
    return Diagnosis(
        window=WINDOW,
        baseline=BEFORE,
        coverage=Coverage(
            requests=4390,
            steps=56789,
            engines=["vllm-0"],
            sources={"contract": 4390, "vllm": 4120},
            sees=["queue", "prefill", "decode", "steps"],
            blind=["network"],
            notes=["3.1 % of step records are missing"],
        ),
        verdict=Verdict(
            status="problem",
            symptom="ttft",
            cause="queueing-not-prefill",
            missing=[],
            dimension=None,
            summary="TTFT p90 is 2.29 s against 180 ms before: requests wait for a slot.",
        ),
        latency={
            "ttft": stat(310.0, 2290.0, 4120.0, 4390, stat(120.0, 180.0, 260.0, 2210)),
            "tpot": stat(16.6, 19.9, 25.0, 4380, stat(16.1, 18.0, 20.0, 2209)),
            "itl": stat(16.0, 20.0, 48.0, 790_200, stat(15.9, 18.1, 21.0, 400_100)),
            "e2e": stat(3100.0, 5310.0, 8000.0, 4390, stat(2900.0, 3050.0, 3300.0, 2210)),
            "queue": stat(180.0, 2140.0, 3900.0, 4390, stat(1.0, 12.0, 30.0, 2210)),
        },
        throughput=throughput(2.0, throughput(1.0)),
        not_evaluated=[
            NotEvaluated("network-before-server", "network"),
            NotEvaluated("slow-delivery", "client span or network out"),
            NotEvaluated("gateway-adds-wait", "network"),
        ],
        findings=[QUEUEING, STALLS, BATCH, INCOMPLETE, INCOMPLETE],
        budget=BUDGET,
        checked=["prompts-grew", "outputs-grew", "prefix-reuse-lost"],
        models=[MODEL],
        baseline_origin="the traces before the window",
        utc_offset="+02:00",
    )


def healthy(*, has_baseline: bool = True) -> Diagnosis:
    before = stat(120.0, 180.0, 260.0, 2210) if has_baseline else None
    return Diagnosis(
        window=WINDOW,
        baseline=BEFORE if has_baseline else None,
        coverage=Coverage(
            requests=1,
            steps=4000,
            engines=[],
            sources={"contract": 2200},
            sees=["queue", "prefill", "decode", "steps"],
            blind=[],
            notes=[],
        ),
        verdict=Verdict("healthy", None, None, [], None, "Nothing is slower than it should be."),
        latency={"ttft": stat(121.0, 183.0, 255.0, 2200, before)},
        throughput=throughput(1.0),
        not_evaluated=[],
        findings=[],
        checked=["queueing-not-prefill"],
        models=[],
        baseline_origin=None if has_baseline else "none: 40 requests before the window are too few",
    )


def inconclusive() -> Diagnosis:
    return Diagnosis(
        window=WINDOW,
        baseline=None,
        coverage=Coverage(
            requests=120,
            steps=0,
            engines=["unknown"],
            sources={"vllm": 120},
            sees=["queue", "prefill", "decode"],
            blind=["network", "steps"],
            notes=[],
        ),
        verdict=Verdict(
            "inconclusive", "itl", None, ["steps"], None, "Tokens stall and it cannot be told why."
        ),
        latency={"itl": stat(16.0, 400.0, 900.0, 12_000)},
        throughput=Throughput(None, None, None, None, None),
        not_evaluated=[NotEvaluated("long-prompt-stalled-streams", "steps")],
        findings=[],
        models=[
            StepModel("unknown", 0, 0, None, None, None, None, None, None, None, "no step records")
        ],
        utc_offset="Z",
    )


def unexplained() -> Diagnosis:
    return Diagnosis(
        window=WINDOW,
        baseline=BEFORE,
        coverage=Coverage(
            requests=900,
            steps=80_000,
            engines=["a", "b", "c", "d", "e", "f"],
            sources={"contract": 900},
            sees=["queue", "prefill", "decode", "steps"],
            blind=[],
            notes=[],
        ),
        verdict=Verdict(
            "problem", "ttft", None, [], {"tenant": "docs"}, "TTFT p90 is 900 ms against 180 ms."
        ),
        latency={"ttft": stat(200.0, 900.0, 1200.0, 900, stat(120.0, 180.0, 260.0, 2210))},
        throughput=throughput(1.0),
        not_evaluated=[],
        findings=[],
        checked=["queueing-not-prefill", "prompts-grew"],
        models=[],
        utc_offset="-05:30",
    )
