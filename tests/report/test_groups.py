"""The groups of `--by`, printed: the table as it is, its order, its bounds."""

from __future__ import annotations

import html

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion
from tokenlag.judge.diagnosis import Diagnosis, Group, Stat, Status, Symptom, Verdict
from tokenlag.report import render
from tokenlag.report.groups import MAX_GROUPS, group_rows, verdict_words

from tests.report import diagnoses


def group(
    value: str, status: Status, cause: str | None = None, *, n: int = 100,
    excess_ms: float | None = None, missing: tuple[str, ...] = (), ttft_ms: float = 180.0,
) -> Group:  # fmt: skip
    symptom: Symptom | None = "ttft" if status == "problem" else None
    return Group(
        by="tenant",
        value=value,
        requests=n,
        verdict=Verdict(status, symptom, cause, list(missing), None, "so it is."),
        latency={
            "ttft": diagnoses.stat(ttft_ms / 2, ttft_ms, ttft_ms * 2, n),
            "tpot": diagnoses.stat(16.0, 19.9, 25.0, n),
            "e2e": Stat(None, None, None, None, 0),
        },
        throughput=diagnoses.throughput(0.1),
        findings=[],
        excess_ms=excess_ms,
    )


GROUPS = [
    group("chat", "healthy", n=12_345, excess_ms=9e6),
    group("docs", "problem", "long-prompt-stalled-streams", excess_ms=2e5, ttft_ms=2290.0),
    group("tiny", "inconclusive", n=3, missing=("requests",)),
    group("a-tenant-with-a-long-name", "problem", "queueing-not-prefill", excess_ms=4e5),
    group("odd", "problem", None, excess_ms=1e3),
]


def with_groups(groups: list[Group]) -> Diagnosis:
    return msgspec.structs.replace(diagnoses.problem(), findings=[], budget=None, groups=groups)


def test_text_of_groups(snapshot: SnapshotAssertion) -> None:
    assert render(with_groups(GROUPS), "text", width=80) == snapshot


def test_markdown_of_groups(snapshot: SnapshotAssertion) -> None:
    assert render(with_groups(GROUPS), "md") == snapshot


def test_what_costs_most_stands_first_and_what_is_healthy_last() -> None:
    rows = group_rows(GROUPS, every=True)
    assert rows is not None
    names = [row[0] for row in rows.body]
    assert names == ["a-tenant-with-a-long-name", "docs", "odd", "tiny", "chat"]
    assert rows.marked == {0, 1, 2}


def test_without_groups_there_is_no_table() -> None:
    assert group_rows([], every=True) is None
    assert "By tenant" not in render(with_groups([]), "text")


@pytest.mark.parametrize("n_groups", [MAX_GROUPS, MAX_GROUPS + 1, 500])
def test_rows_are_bounded_and_the_rest_is_counted(n_groups: int) -> None:
    groups = [group(f"t{at}", "healthy", excess_ms=float(at)) for at in range(n_groups - 1)]
    groups.append(group("late", "problem", "outputs-grew", excess_ms=1.0))
    rows = group_rows(groups, every=False)
    assert rows is not None
    assert len(rows.body) == MAX_GROUPS
    assert rows.body[0][0] == "late"
    if n_groups > MAX_GROUPS:
        n_rest = n_groups - MAX_GROUPS + 1
        assert rows.body[-1][:2] == [f"and {n_rest} more", f"{n_rest * 100:,}"]
        assert rows.body[-1][-1] == f"{n_rest} healthy"
    every = group_rows(groups, every=True)
    assert every is not None
    assert len(every.body) == n_groups


@pytest.mark.parametrize("is_ascii", [True, False])
def test_each_group_is_one_line_of_a_terminal(is_ascii: bool) -> None:
    text = render(with_groups(GROUPS), "text", width=80, ascii_only=is_ascii)
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("By tenant"))
    table = lines[at + 1 : at + 2 + len(GROUPS)]
    assert all(len(line) <= 80 for line in table)
    assert [line.split()[0] for line in table[1:]] == [
        "a-tenant-with-..", "docs", "odd", "tiny", "chat",
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_no_group_name_can_format_anything(form: str) -> None:
    bad = group("<b>|\x1b[31m", "problem", "prompts-grew")
    text = render(with_groups([bad]), form)  # type: ignore[arg-type]
    assert "\x1b" not in text
    if form == "html":
        assert "<b>|" not in text
        text = html.unescape(text)
    if form == "md":
        assert "\\<b\\>\\|" in text
    else:
        assert "<b>|" in text


def test_every_ending_has_its_words() -> None:
    words = {g.value: verdict_words(g.verdict) for g in GROUPS}
    assert words["docs"] == "long-prompt-stalled-streams"
    assert words["odd"] == "problem, no known cause"
    assert words["tiny"] == "cannot tell: no requests"
    assert words["chat"] == "healthy"
