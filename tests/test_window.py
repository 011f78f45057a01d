"""The --since grammar: values, the errors people meet, and properties over all strings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenlag.errors import UsageError
from tokenlag.window import (
    NS_PER_S,
    EmptyWindowError,
    LocalZone,
    Objective,
    Window,
    format_duration,
    format_time,
    no_data,
    parse_duration_ns,
    parse_goodput,
    parse_slo,
    parse_time,
    resolve_baseline,
    resolve_window,
)

HOUR = 3600 * NS_PER_S
NOW = 1_785_074_400 * NS_PER_S  # 2026-07-26T14:00:00Z
BERLIN = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("15m", 900 * NS_PER_S),
        ("1h30m", 5400 * NS_PER_S),
        ("2d", 2 * 24 * HOUR),
        ("90s", 90 * NS_PER_S),
        ("1.5h", 5400 * NS_PER_S),
        ("250ms", 250_000_000),
        ("1w", 7 * 24 * HOUR),
        (" 1H ", HOUR),
        ("10µs", 10_000),
        ("10μs", 10_000),
    ],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize(
    "text", ["", "15", "m", "-5m", "1h-30m", "1y", "0s", "9999999w", "1e3s", "١m"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration_ns(text)


def test_a_bare_number_is_told_its_units() -> None:
    with pytest.raises(UsageError, match=r"15s or 15m"):
        parse_duration_ns("15")


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("now", NOW),
        ("15m", NOW - 900 * NS_PER_S),
        ("2026-07-26T14:00:00Z", NOW),
        ("2026-07-26t14:00:00z", NOW),
        ("2026-07-26T16:00:00+02:00", NOW),
        ("2026-07-26T16:00:00", NOW),
        ("2026-07-26 16:00", NOW),
        ("2026-07-26T14:00:00.000000001Z", NOW + 1),
        ("@1785074400", NOW),
        ("@1785074400.25", NOW + NS_PER_S // 4),
        ("2026-07-26", NOW - 16 * HOUR),
        ("today", NOW - 16 * HOUR),
        ("Yesterday", NOW - 40 * HOUR),
    ],
)
def test_times(text: str, ns: int) -> None:
    assert parse_time(text, NOW, BERLIN) == ns


@pytest.mark.parametrize(
    "text",
    ["", "tomorow",
     "2026-02-30", "2026-07-26T25:00:00Z", "@-5", "1969-12-31T00:00:00Z", "9999-01-01",
     "@99999999999999999999", "2026-07-26T14:00:00+99:00", "300y"],
)  # fmt: skip
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError):
        parse_time(text, NOW, BERLIN)


def test_a_misspelt_word_gets_did_you_mean() -> None:
    with pytest.raises(UsageError, match="did you mean yesterday"):
        parse_time("yesteday", NOW, BERLIN)


def test_days_follow_the_clock_change_of_the_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    after = parse_time("2026-10-26T00:00:00", NOW, berlin)
    assert parse_time("yesterday", after + HOUR, berlin) == after - 25 * HOUR


def test_the_shells_zone_knows_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert format_time(parse_time("2026-01-15", NOW, LocalZone()), LocalZone()).endswith(
            "+01:00"
        )
        assert format_time(parse_time("2026-07-15", NOW, LocalZone()), LocalZone()).endswith(
            "+02:00"
        )
    finally:
        monkeypatch.undo()
        time.tzset()


ZONES: st.SearchStrategy[tzinfo] = st.one_of(
    st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"]).map(ZoneInfo),
)
# from 1985: zones had offsets with seconds before they were standardised
TIMES = st.integers(500_000_000 * NS_PER_S, 9_000_000_000 * NS_PER_S)


@given(ns=TIMES, tz=ZONES)
def test_a_printed_time_reads_back(ns: int, tz: tzinfo) -> None:
    assert parse_time(format_time(ns, tz), NOW, tz) == ns


@given(ns=st.integers(1, 10**18))
def test_a_printed_duration_reads_back(ns: int) -> None:
    assert parse_duration_ns(format_duration(ns)) == ns


@given(a=st.integers(1, 10**17), b=st.integers(1, 10**17))
def test_longer_ago_is_earlier(a: int, b: int) -> None:
    early, late = sorted((a, b), reverse=True)
    first = parse_time(format_duration(early), NOW, BERLIN)
    assert first <= parse_time(format_duration(late), NOW, BERLIN)


GRAMMAR = st.text(alphabet="0123456789-+:.@/TZzhdmsuw,=_pteilnowyr µ٣²", max_size=30)


@given(text=st.one_of(st.text(max_size=40), GRAMMAR))
def test_any_string_is_a_value_or_a_usage_error(text: str) -> None:

    def resolved(since: str | None, until: str | None, since_end: str | None) -> Window:
        return resolve_window(
            since,
            until,
            since_end,
            now_ns=NOW,
            tz=BERLIN,
            data_start_ns=NOW - 3 * HOUR,
            data_end_ns=NOW,
        )

    attempts: list[Callable[[], object]] = [
        lambda: parse_time(text, NOW, BERLIN),
        lambda: parse_duration_ns(text),
        lambda: parse_slo(text),
        lambda: parse_goodput([text]),
        lambda: resolved(text, None, None),
        lambda: resolved(None, text, None),
        lambda: resolved(None, None, text),
        lambda: baseline(text),
    ]
    for attempt in attempts:
        with contextlib.suppress(UsageError):
            attempt()


def window(
    since: str | None = None, until: str | None = None, since_end: str | None = None, age: int = 0
) -> Window:
    """Three hours of data that ended `age` ns ago."""
    return resolve_window(
        since,
        until,
        since_end,
        now_ns=NOW,
        tz=BERLIN,
        data_start_ns=NOW - age - 3 * HOUR,
        data_end_ns=NOW - age,
    )


def test_without_options_the_window_is_all_there_is() -> None:
    assert (window().start_ns, window().end_ns) == (NOW - 3 * HOUR, NOW + 1)


def test_since_counts_from_now_and_is_clipped_to_the_data() -> None:
    found = window("1h", age=HOUR // 2)
    assert (found.start_ns, found.end_ns) == (NOW - HOUR, NOW - HOUR // 2 + 1)
    assert (found.asked_start_ns, found.asked_end_ns) == (NOW - HOUR, NOW)


def test_a_producers_clock_ahead_of_ours_loses_nothing() -> None:
    assert window("1h", age=-HOUR // 10).end_ns == NOW + HOUR // 10 + 1


def test_since_end_counts_from_the_end_of_the_data() -> None:
    found = window(since_end="1h", age=1000 * HOUR)
    assert (found.start_ns, found.end_ns) == (NOW - 1001 * HOUR + 1, NOW - 1000 * HOUR + 1)


def test_until_alone_starts_with_the_data() -> None:
    found = window(until="2h")
    assert (found.start_ns, found.end_ns) == (NOW - 3 * HOUR, NOW - 2 * HOUR)


def test_old_traces_say_what_they_span_and_what_to_type() -> None:
    with pytest.raises(EmptyWindowError) as caught:
        window("15m", age=48 * HOUR)
    assert "2026-07-24T13:00:00+02:00 to 2026-07-24T16:00:00+02:00" in str(caught.value)
    assert caught.value.flags == ("--since-end", "15m")


def test_nobody_has_to_copy_nanoseconds() -> None:
    start_ns, end_ns = NOW + 5, NOW + HOUR + 5
    error = no_data("baseline", None, start_ns, end_ns, BERLIN)
    assert "2026-07-26T16:00:00+02:00 to 2026-07-26T17:00:01+02:00" in str(error)
    assert error.flags == (
        "--since",
        "2026-07-26T16:30:00+02:00",
        "--baseline",
        "2026-07-26T16:00:00+02:00/2026-07-26T16:30:00+02:00",
    )


def test_an_absolute_since_is_offered_an_hour() -> None:
    with pytest.raises(EmptyWindowError) as caught:
        window("2026-07-26T15:59:00", age=48 * HOUR)
    assert caught.value.flags == ("--since-end", "1h")


def test_a_window_before_the_data_is_empty_too() -> None:
    with pytest.raises(EmptyWindowError):
        window("2d", "1d")


@pytest.mark.parametrize(
    ("since", "until", "since_end", "words"),
    [
        ("1h", None, "1h", "cannot be combined"),
        (None, "now", "1h", "cannot be combined"),
        ("1h", "2h", None, "must be before"),
        ("2026-07-27", None, None, "in the future"),
        ("soon", None, None, "--since: 'soon' is not a time"),
    ],
)
def test_windows_that_cannot_be(
    since: str | None, until: str | None, since_end: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        window(since, until, since_end)


def baseline(text: str | None, since: str | None = "1h") -> Window | None:
    return resolve_baseline(
        text,
        window(since),
        now_ns=NOW,
        tz=BERLIN,
        data_start_ns=NOW - 3 * HOUR,
        data_end_ns=NOW,
    )


def test_a_duration_is_that_long_before_the_window() -> None:
    found = baseline("30m")
    assert found is not None
    assert (found.start_ns, found.end_ns) == (NOW - HOUR - HOUR // 2, NOW - HOUR)


def test_two_times_are_a_baseline() -> None:
    found = baseline("3h/2026-07-26T12:00:00Z")
    assert found is not None
    assert (found.start_ns, found.end_ns) == (NOW - 3 * HOUR, NOW - 2 * HOUR)


def test_without_a_baseline_it_is_what_lies_before_the_window() -> None:
    found = baseline(None)
    assert found is not None
    assert (found.start_ns, found.end_ns) == (NOW - 3 * HOUR, NOW - HOUR)
    assert baseline(None, since=None) is None


@pytest.mark.parametrize(
    ("text", "since", "words"),
    [
        ("2h/30m", "1h", "overlaps the window"),
        ("1h/2h", "1h", "ends before it starts"),
        ("30m", None, "no request in the baseline"),
        ("5d/4d", "1h", "no request in the baseline"),
        ("last week", "1h", "neither A/B nor a duration"),
    ],
)
def test_baselines_that_cannot_be(text: str, since: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        baseline(text, since)


def test_objectives() -> None:
    assert parse_slo("e2e_p90=300ms, ttft=1.5s,itl_p99=800us,tpot_p99.9=50ms,itl_p999=1s") == [
        Objective("e2e", 90.0, 300.0),
        Objective("ttft", 90.0, 1500.0),
        Objective("itl", 99.0, 0.8),
        Objective("tpot", 99.9, 50.0),
        Objective("itl", 99.9, 1000.0),
    ]
    assert Objective("itl", 99.9, 1.0).label == "itl_p99.9"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttfs_p90=300ms", "did you mean ttft"),
        ("ttft_p0=300ms", "not a percentile"),
        ("ttft_p100=300ms", "not a percentile"),
        ("ttft_90=300ms", "not a percentile"),
        ("ttft_p90=300", "300ms"),
        ("ttft_p90", "not an objective"),
        ("", "not an objective"),
        ("ttft=1s,ttft_p90=2s", "twice"),
    ],
)
def test_objectives_that_cannot_be(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_slo(text)


def test_goodput_limits() -> None:
    assert parse_goodput(["ttft:500", "itl:50ms e2e:2s"]) == {
        "ttft": 500.0,
        "itl": 50.0,
        "e2e": 2000.0,
    }


@pytest.mark.parametrize("text", ["ttft", "ttft:", "tfft:5", "ttft:0", "ttft:1 ttft:2"])
def test_goodput_limits_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError):
        parse_goodput([text])
