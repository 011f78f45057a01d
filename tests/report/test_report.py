"""Diagnoses printed: the text as it is (snapshots), and what must hold whatever it says."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion
from tokenlag.judge.diagnosis import Diagnosis, ObjectiveOutcome, Verdict
from tokenlag.report import FORMATS, render
from tokenlag.report.tables import split_findings

from tests.report import diagnoses

ENDINGS = {
    "problem": diagnoses.problem(),
    "healthy": diagnoses.healthy(),
    "healthy-without-a-baseline": diagnoses.healthy(has_baseline=False),
    "inconclusive": diagnoses.inconclusive(),
    "unexplained": diagnoses.unexplained(),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_text(name: str, snapshot: SnapshotAssertion) -> None:
    assert render(ENDINGS[name], "text") == snapshot


def test_text_with_everything(snapshot: SnapshotAssertion) -> None:
    assert render(ENDINGS["problem"], "text", verbosity=1) == snapshot


def test_text_for_a_narrow_ascii_terminal(snapshot: SnapshotAssertion) -> None:
    assert render(ENDINGS["problem"], "text", width=48, ascii_only=True) == snapshot


@pytest.mark.parametrize("name", ["problem", "inconclusive"])
def test_markdown(name: str, snapshot: SnapshotAssertion) -> None:
    assert render(ENDINGS[name], "md") == snapshot


class Tags(HTMLParser):
    """Fails on a tag that is closed out of order; keeps what would fetch or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.active: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag in ("script", "link", "img", "iframe") or {"src", "href"} & {k for k, _ in attrs}:
            self.active.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("verbosity", [-1, 0, 1])
@pytest.mark.parametrize("name", ENDINGS)
def test_html_is_whole_and_needs_nothing_else(name: str, verbosity: int) -> None:
    page = Tags()
    text = render(ENDINGS[name], "html", verbosity=verbosity)
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.active == []
    assert ENDINGS[name].verdict.summary in text


@pytest.mark.parametrize("form", ["md", "html"])
def test_every_form_holds_what_the_text_says(form: str) -> None:
    text = html.unescape(render(ENDINGS["problem"], form, verbosity=1))  # type: ignore[arg-type]
    for words in (
        "2.14 s",
        "--max-num-seqs 256",
        "+ 0.1 ms a step",
        "req-4 → 10 requests held up",
        "prefill-runs-slow",
        "needs network: network-before-server, gateway-adds-wait",
        "1,234 mixed steps",
        "2026-07-26 14:00:00 – 15:00:00 +02:00",
    ):
        assert words in text, words


@pytest.mark.parametrize("name", ENDINGS)
def test_the_verdict_is_the_first_line_and_alone_when_quiet(name: str) -> None:
    text = render(ENDINGS[name], "text")
    first = text.splitlines()[0]
    assert first.startswith(ENDINGS[name].verdict.status.upper() + ": ")
    assert render(ENDINGS[name], "text", verbosity=-1) == first + "\n"


def test_the_verdict_is_not_wrapped() -> None:
    summary = "word " * 60 + "end."
    diagnosis = with_verdict(Verdict("problem", "ttft", None, [], None, summary))
    assert render(diagnosis, "text", width=60).splitlines()[0].endswith("end.")


def test_an_inconclusive_verdict_names_what_is_missing() -> None:
    assert "steps" in render(ENDINGS["inconclusive"], "text").splitlines()[0]


def test_a_healthy_verdict_states_its_bound() -> None:
    with_baseline = render(ENDINGS["healthy"], "text")
    assert "ttft p90 183 ms against 180 ms in the baseline" in with_baseline
    without = render(ENDINGS["healthy-without-a-baseline"], "text", width=200)
    assert "without a baseline or an objective" in without
    untold = ObjectiveOutcome("itl", 99.0, 50.0, None, None)
    asked = msgspec.structs.replace(ENDINGS["healthy-without-a-baseline"], objectives=[untold])
    assert "an objective that something recorded tells (--slo)" in render(asked, "text", width=200)


def test_an_unexplained_problem_names_where_slow_requests_differ() -> None:
    assert "tenant docs" in render(ENDINGS["unexplained"], "text").splitlines()[0]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ENDINGS)
def test_without_colour_there_is_no_escape_sequence(name: str, form: str) -> None:
    assert "\x1b" not in render(ENDINGS[name], form)  # type: ignore[arg-type]


def test_colour_is_only_styling() -> None:
    colored = render(ENDINGS["problem"], "text", color=True)
    assert "\x1b[" in colored
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in plain.splitlines()] == render(
        ENDINGS["problem"], "text"
    ).splitlines()


@pytest.mark.parametrize("form", FORMATS)
def test_no_name_of_a_trace_can_steer_the_terminal_or_format_the_ticket(form: str) -> None:
    diagnosis = with_verdict(
        Verdict("problem", "ttft", None, [], None, "\x1b[31m [bold]x[/] <script> `a` | b\u202e")
    )
    text = render(diagnosis, form)  # type: ignore[arg-type]
    assert "\x1b" not in text
    if form == "text":
        assert "\u202e" not in text
        assert "[bold]x[/]" in text
    if form == "html":
        assert "&lt;script&gt;" in text
        assert "<script" not in text
    if form == "md":
        assert "\\<script\\>" in text


def test_json_is_the_contract_with_the_schema_first() -> None:
    text = render(ENDINGS["problem"], "json")
    assert text.startswith('{\n  "schema": "tokenlag.diagnosis/1"')
    assert json.loads(text)["verdict"]["cause"] == "queueing-not-prefill"


def test_quiet_json_is_still_complete() -> None:
    assert render(ENDINGS["problem"], "json", verbosity=-1) == render(ENDINGS["problem"], "json")


def test_consequences_stand_under_their_cause() -> None:
    shown, n_more = split_findings(ENDINGS["problem"].findings)
    assert [top.rule for top, _ in shown] == [
        "queueing-not-prefill",
        "long-prompt-stalled-streams",
        "trace-incomplete",
    ]
    assert [child.rule for child in shown[0][1]] == ["decode-batch-grew"]
    assert n_more == 1


def test_a_consequence_without_its_cause_is_not_lost() -> None:
    shown, _ = split_findings([diagnoses.BATCH])
    assert [top.rule for top, _ in shown] == ["decode-batch-grew"]


def with_verdict(verdict: Verdict) -> Diagnosis:
    base = ENDINGS["healthy"]
    return Diagnosis(
        window=base.window,
        baseline=None,
        coverage=base.coverage,
        verdict=verdict,
        latency={},
        throughput=base.throughput,
        not_evaluated=[],
        findings=[],
    )
