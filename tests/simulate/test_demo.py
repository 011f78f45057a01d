"""The demo's traces end when told to, are small, and hold the fault that they claim."""

from pathlib import Path

import pytest
from tokenlag.simulate.demo import write_demo
from tokenlag_tracer import conventions as names

from tests.simulate.reading import named, spans_of

END_NS = 1_790_000_000_000_000_000
HOUR_NS = 3_600_000_000_000


@pytest.fixture(scope="module", params=[False, True], ids=["fault", "healthy"])
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("demo") / "traces"
    info = write_demo(folder, healthy=request.param, end_ns=END_NS)
    return info, spans_of(info.path)


def test_it_ends_now_and_begins_before_the_last_hour(demo) -> None:
    info, spans = demo
    assert len(spans) == info.n_spans
    assert max(s.end for s in spans) == info.end_ns == END_NS
    early = [s for s in named(spans, names.SPAN_REQUEST) if s.start < END_NS - HOUR_NS]
    assert len(early) >= 100, "enough for a baseline"
    assert len(named(spans, names.SPAN_REQUEST)) == info.n_requests
    assert info.path.stat().st_size < 4_000_000


def test_only_the_faulty_one_queues(demo) -> None:
    info, spans = demo
    waits = [s.end - s.start for s in named(spans, names.SPAN_QUEUE)]
    assert info.truth.healthy == (max(waits) < 1e9)
    assert info.truth.healthy == (info.change_ns is None)
    if info.change_ns is not None:
        late = [s for s in named(spans, names.SPAN_ENGINE_STEP) if s.start > info.change_ns + 6e10]
        bounds = [s.attributes[names.STEP_ADMIT_BOUND] for s in late]
        assert bounds.count("slots") > 0.95 * len(bounds)


def test_a_second_demo_replaces_the_first(tmp_path: Path) -> None:
    write_demo(tmp_path, healthy=False, end_ns=END_NS)
    write_demo(tmp_path, healthy=True, end_ns=END_NS)
    assert [p.name for p in tmp_path.iterdir()] == ["demo.jsonl.zst"]
