"""The numbers of a run, by the definitions of the scenario tables."""

import itertools

import numpy as np
from tokenlag.simulate.log import Request, Step
from tokenlag.simulate.run import Run


def span_of(run: Run) -> tuple[float, float]:
    return run.variant.measure_s or (0.0, float("inf"))


def sent_in_window(run: Run) -> list[Request]:
    low, high = span_of(run)
    return [
        request
        for request in run.requests
        if low <= request.sent_s < high and request.first_token_s and not request.is_ghost
    ]


def steps_in_window(run: Run) -> list[Step]:
    low, high = span_of(run)
    return [s for epoch in run.epochs for s in epoch.steps if low <= s.start_s < high]


def percentiles_ms(seconds: list[float]) -> list[float]:
    return [float(x) * 1e3 for x in np.quantile(seconds, [0.5, 0.95, 0.99])]


def ttft_ms(run: Run) -> list[float]:
    """From the engine's arrival: the tables have neither network nor front end."""
    return percentiles_ms([r.first_token_s - r.engine_s for r in sent_in_window(run)])


def queue_ms(run: Run) -> list[float]:
    return percentiles_ms([r.scheduled_s - r.engine_s for r in sent_in_window(run)])


def prefill_ms(run: Run) -> list[float]:
    return percentiles_ms([r.first_token_s - r.scheduled_s for r in sent_in_window(run)])


def gaps_s(run: Run, source: str | None = None, window: tuple[float, float] | None = None):
    low, high = window or span_of(run)
    gaps = []
    for request in run.requests:
        if request.epoch < 0 or (source and request.source != source) or request.is_ghost:
            continue
        times = run.epochs[request.epoch].token_times_s(request)
        gaps += [b - a for a, b in itertools.pairwise(times) if low <= b < high]
    return gaps


def time_mean(steps: list[Step], value) -> float:
    total = sum(s.end_s - s.busy_s for s in steps)
    return sum(value(s) * (s.end_s - s.busy_s) for s in steps) / total


def step_mean_ms(steps: list[Step]) -> float:
    return 1e3 * sum(s.end_s - s.busy_s for s in steps) / len(steps)
