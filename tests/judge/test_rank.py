"""Hits in order: by explained time, a cause before what follows from it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.judge.rank import confidence_of, is_cause, rank, share_of

from tests.judge.making import hit


def order(*hits) -> list[tuple[str, str | None]]:
    return [(r.hit.rule.id, r.consequence_of) for r in rank(hits)]


def test_the_larger_effect_comes_first_whatever_the_order() -> None:
    a, b = hit("a", 100.0), hit("b", 900.0)
    assert order(a, b) == order(b, a) == [("b", None), ("a", None)]


def test_a_consequence_stands_below_its_cause_although_larger() -> None:
    cause = hit("prefix-reuse-lost", 400.0, explains=["queueing-not-prefill"])
    queue = hit("queueing-not-prefill", 900.0)
    assert order(queue, cause) == [
        ("prefix-reuse-lost", None),
        ("queueing-not-prefill", "prefix-reuse-lost"),
    ]


def test_a_cause_too_small_for_it_explains_nothing() -> None:
    cause = hit("prefix-reuse-lost", 100.0, explains=["queueing-not-prefill"])
    queue = hit("queueing-not-prefill", 900.0)
    assert order(queue, cause) == [("queueing-not-prefill", None), ("prefix-reuse-lost", None)]


def test_what_tells_that_it_follows_is_explained_by_the_smallest_cause() -> None:
    cause = hit("prefill-runs-slow", 100.0, explains=["queueing-not-prefill"])
    other = hit("frontend-wait", 500.0)
    queue = hit("queueing-not-prefill", 900.0, follows_from=("prefill-runs-slow",))
    assert order(queue, other, cause) == [
        ("prefill-runs-slow", None),
        ("queueing-not-prefill", "prefill-runs-slow"),
        ("frontend-wait", None),
    ]
    assert share_of(rank([queue, cause])[0], {"ttft": 1000.0}) == 0.9
    unsure = hit("prefill-runs-slow", 100.0, confidence=0.4)
    assert order(queue, unsure)[0] == ("queueing-not-prefill", None)


def test_a_weak_hit_is_no_cause_and_stands_behind() -> None:
    weak = hit("prefix-reuse-lost", 5000.0, confidence=0.4, explains=["queueing-not-prefill"])
    queue = hit("queueing-not-prefill", 900.0)
    assert not is_cause(weak)
    assert order(weak, queue) == [("queueing-not-prefill", None), ("prefix-reuse-lost", None)]


def test_where_each_may_follow_from_the_other_the_larger_is_the_cause() -> None:
    a = hit("prompts-grew", 500.0, explains=["kv-preemption-thrash"])
    b = hit("kv-preemption-thrash", 600.0, explains=["prompts-grew"])
    assert order(a, b) == [("kv-preemption-thrash", None), ("prompts-grew", "kv-preemption-thrash")]


def test_the_cause_of_a_cause_stands_for_both() -> None:
    first = hit("a", 900.0, explains=["b"])
    second = hit("b", 800.0, explains=["c"])
    third = hit("c", 700.0)
    assert order(third, second, first) == [("a", None), ("b", "a"), ("c", "a")]


def test_what_a_cause_led_to_in_another_symptom_weighs_with_it() -> None:
    a = hit("a", 500.0, explains=["b"], symptom="ttft")
    b = hit("b", 400.0, symptom="itl")
    other = hit("z", 700.0, symptom="ttft")
    assert order(a, b, other)[0] == ("a", None)
    same = hit("b", 400.0, symptom="ttft")
    assert order(a, same, other)[0] == ("z", None), "within one symptom it is counted already"


def test_harms_of_one_culprit_stand_together() -> None:
    """Two harms of one long prompt outweigh a third cause, though each is smaller."""
    stalled = hit("long-prompt-stalled-streams", 300.0, symptom="itl", culprits=("req-9",))
    behind = hit("short-behind-long-prompt", 400.0, culprits=("req-9", "req-3"))
    other = hit("frontend-wait", 500.0)
    assert order(other, behind, stalled) == [
        ("long-prompt-stalled-streams", None),
        ("short-behind-long-prompt", None),
        ("frontend-wait", None),
    ]


def test_notes_come_last_and_are_never_causes() -> None:
    note = hit("trace-incomplete", 1e9, confidence=0.99, kind="note")
    small = hit("a", 1.0)
    assert not is_cause(note)
    assert order(note, small) == [("a", None), ("trace-incomplete", None)]


def test_an_effect_that_is_not_stated_weighs_nothing() -> None:
    hits = [hit("a", None), hit("b", math.inf), hit("c", 1.0)]
    assert order(*hits)[0] == ("c", None)


@pytest.mark.parametrize(
    ("stated", "confidence"), [(None, 0.7), (0.3, 0.3), (1.5, 0.99), (-1.0, 0.0)]
)
def test_confidence_is_bounded(stated: float | None, confidence: float) -> None:
    assert confidence_of(hit("a", 1.0, confidence=stated)) == confidence


@pytest.mark.parametrize(
    ("effect", "total", "share"),
    [(50.0, 100.0, 0.5), (500.0, 100.0, 1.0), (50.0, 0.0, None), (50.0, math.nan, None),
     (None, 100.0, None)],
)  # fmt: skip
def test_share_of_the_excess(effect: float | None, total: float, share: float | None) -> None:
    assert share_of(*rank([hit("a", effect)]), {"ttft": total}) == share
    assert share_of(*rank([hit("a", effect, symptom="itl")]), {"ttft": total}) is None


def test_a_rules_own_share_wins() -> None:
    assert share_of(*rank([hit("a", 50.0, share=0.25)]), {"ttft": 100.0}) == 0.25
    assert share_of(*rank([hit("a", 50.0, share=7.0)]), {"ttft": 100.0}) == 1.0


NAMES = "abcde"
HITS = st.lists(
    st.tuples(
        st.sampled_from(NAMES), st.floats(0, 1e6), st.floats(0, 1),
        st.lists(st.sampled_from(NAMES), max_size=4), st.sampled_from(["problem", "note"]),
    ),
    max_size=7,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(HITS)
def test_every_hit_is_placed_once_and_each_consequence_after_its_cause(rows) -> None:
    hits = [
        hit(name, effect, confidence=c, explains=[e for e in explains if e != name], kind=kind)
        for name, effect, c, explains, kind in rows
    ]
    ranked = rank(hits)
    assert sorted(id(r.hit) for r in ranked) == sorted(id(h) for h in hits)
    seen: set[str] = set()
    for r in ranked:
        if r.consequence_of is not None:
            assert r.consequence_of in seen
        else:
            seen.add(r.hit.rule.id)


def stated(*hits) -> dict[str, float]:
    return {r.hit.rule.id: r.confidence for r in rank(hits)}


def test_a_rival_that_explains_as_much_makes_both_less_sure() -> None:
    assert stated(hit("a", 900.0))["a"] == 0.9
    small = stated(hit("a", 900.0), hit("b", 90.0))
    even = stated(hit("a", 900.0), hit("b", 900.0))
    assert 0.5 < even["a"] < small["a"] < 0.9
    assert small["b"] == even["b"] == even["a"]


def test_a_consequence_a_weak_hit_the_same_culprit_and_the_same_cause_are_no_rivals() -> None:
    assert stated(hit("a", 900.0, explains=["b"]), hit("b", 900.0)) == {"a": 0.9, "b": 0.9}
    assert stated(hit("a", 900.0), hit("b", 900.0, confidence=0.4))["a"] == 0.9
    both = rank([hit("a", 900.0), hit("a", 800.0)])  # the same cause on two engines
    assert [r.confidence for r in both] == [0.9, 0.9]
    one, two = hit("a", 900.0, culprits=("req-1",)), hit("b", 900.0, culprits=("req-1",))
    assert stated(one, two) == {"a": 0.9, "b": 0.9}


def test_what_is_contested_stays_a_cause() -> None:
    assert stated(hit("a", 9.0, confidence=0.55), hit("b", 9.0))["a"] == 0.5
