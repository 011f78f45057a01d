"""The self-test that `diagnose overhead` and the benchmark run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.tracer.support import REPO, environment


def test_it_measures_every_operation(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tokenlag_tracer.selftest", "64", "60", "1"],
        env=environment(tmp_path / "t", TOKENLAG_TRACES_DIR=""), cwd=REPO, capture_output=True,
        text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    told = json.loads(done.stdout)
    costs = told["costs"]
    assert set(costs) == {
        "unchanged", "mix", "changed", "gathered", "sdk_span", "sdk_span_bare",
    }  # fmt: skip
    for cost in costs.values():
        assert cost["n"] == 60
        assert 0 < cost["p50_us"] <= cost["p90_us"] <= cost["p99_us"]
    assert told["n_dropped"] == 0
    assert told["writer_cpu_frac"] >= 0
    # Loose, since machines are noisy: `benchmarks/overhead.py` holds the targets.
    assert costs["unchanged"]["p50_us"] < costs["sdk_span"]["p50_us"]
    assert not list(tmp_path.rglob("*.gz")), "its traces are its own affair"
