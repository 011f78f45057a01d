"""From two result files of load tests to what tells them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenlag.errors import UsageError

if TYPE_CHECKING:
    from tokenlag.explain.comparison import Comparison
    from tokenlag.read.loadtest.run import Run


def are_load_tests(a: str, b: str) -> bool:
    """Whether both paths are load tests' result files.

    Raises:
        UsageError: one is, and the other is not.
    """
    from tokenlag.read.loadtest.reader import is_load_test

    kinds = [is_load_test(path) for path in (a, b)]
    if kinds[0] != kinds[1]:
        traces, result = (b, a) if kinds[0] else (a, b)
        raise UsageError(
            "a load test's result and traces are not of one kind",
            hint=f"diagnose {result} --with {traces} joins them",
        )
    return kinds[0]


def compare_files(a: str, b: str) -> list[Comparison]:
    """Compares two result files: their only runs, or each level that two sweeps share.

    Raises:
        InputError: a file cannot be read.
        UsageError: two sweeps have no level in common.
    """
    from tokenlag.explain.twoloads import compare
    from tokenlag.read.loadtest.reader import read_file

    runs_a, runs_b = read_file(a), read_file(b)
    if len(runs_a) == len(runs_b) == 1:
        return [compare(runs_a[0], runs_b[0])]
    levels_b = {run.level: run for run in runs_b}
    pairs = [(run, levels_b[run.level]) for run in runs_a if run.level in levels_b]
    if not pairs:
        raise UsageError(
            f"no load in common: A has {_levels(runs_a)}; B has {_levels(runs_b)}",
            hint="run B at one of the loads of A",
        )
    return [compare(run_a, run_b) for run_a, run_b in pairs]


def _levels(runs: list[Run]) -> str:
    return "; ".join(run.level or "one of unknown load" for run in runs)
