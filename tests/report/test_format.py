"""Numbers and strange strings as a person reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenlag.judge.diagnosis import Interval
from tokenlag.report import format as fmt


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "–"),
        (0, "0 ms"),
        (0.0123, "12.3 µs"),
        (0.35, "350 µs"),
        (9.996, "10.0 ms"),
        (48, "48.0 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (2140, "2.14 s"),
        (61_234, "61.2 s"),
        (210_000, "3.50 min"),
        (7_200_000, "2.00 h"),
        (-12, "-12.0 ms"),
    ],
)
def test_durations_in_the_unit_a_person_would_say(ms: float | None, text: str) -> None:
    assert fmt.milliseconds(ms) == text


@given(st.floats(1e-3, 1e12))
def test_a_printed_duration_is_within_a_percent(ms: float) -> None:
    number, unit = fmt.milliseconds(ms).replace(",", "").split()
    scale = {"µs": 1e-3, "ms": 1.0, "s": 1e3, "min": 60e3, "h": 3.6e6}[unit]
    assert float(number) * scale == pytest.approx(ms, rel=0.01)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (0.0004, "<0.1 %"),
        (0.004, "0.4 %"),
        (0.5, "50 %"),
        (0.9996, "99.9 %"),
        (1, "100 %"),
    ],
)
def test_a_share_is_never_rounded_to_none_or_all(share: float, text: str) -> None:
    assert fmt.percent(share) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2140.0, "ms", "2.14 s"),
        (1.5, "s", "1.50 s"),
        (0.871, "frac", "87 %"),
        (4390.0, "count", "4,390"),
        (1500.0, "tokens", "1,500 tokens"),
        (3.456, "×", "× 3.46"),
        (None, "tokens", "–"),
    ],
)
def test_evidence_carries_its_unit(value: float | None, unit: str, text: str) -> None:
    assert fmt.quantity(value, unit) == text


@pytest.mark.parametrize(
    ("confidence", "word"),
    [(1.0, "likely"), (0.8, "likely"), (0.79, "possible"), (0.5, "possible"), (0.49, "weak")],
)
def test_how_sure(confidence: float, word: str) -> None:
    assert fmt.how_sure(confidence) == word


def test_the_first_sentence_is_not_cut_at_an_abbreviation() -> None:
    assert fmt.first_sentence("Slots, e.g. 64. Then\nmore.") == "Slots, e.g. 64."


def test_an_interval_is_shown_in_the_zone_of_the_report() -> None:
    span = Interval("2026-07-26T22:30:00Z", "2026-07-27T00:00:00Z")
    assert fmt.interval(span, "+02:00") == "2026-07-27 00:30:00 – 02:00:00 +02:00 (1h30m)"
    assert fmt.interval(span, None) == "2026-07-26 22:30:00 – 2026-07-27 00:00:00 UTC (1h30m)"


@given(st.text())
def test_no_text_of_a_trace_can_steer_a_terminal(text: str) -> None:
    assert all(c.isprintable() for c in fmt.clean(text))


@given(st.text())
def test_ascii_is_ascii(text: str) -> None:
    assert fmt.to_ascii(text).isascii()
