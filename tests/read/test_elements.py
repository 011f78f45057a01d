"""Cutting JSON between elements changes nothing that is in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.read import elements
from tokenlag.read.elements import element_blocks

LEAVES = st.none() | st.booleans() | st.integers(0, 99) | st.text(max_size=6)
TRICKY = st.sampled_from(['"', "\\", '\\"', "]}", '{"data":[', "\n", "\\\\", '",'])
JSON = st.recursive(
    LEAVES | TRICKY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "spans"]), JSON, min_size=1, max_size=3)


def pieces(text: bytes, n_chunk: int, block_bytes: int) -> list[Any]:
    chunks = [text[i : i + n_chunk] for i in range(0, len(text), n_chunk)]
    found = []
    for block in element_blocks(chunks, block_bytes):
        assert block.data is not None
        found += [json.loads(line) for line in block.data.splitlines()]
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.lists(OBJECTS, max_size=8),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.integers(1, 60),
    st.integers(1, 200),
)
def test_elements_come_out_as_they_went_in(
    made: list[Any], indent: int | None, is_wrapped: bool, n_chunk: int, block_bytes: int
) -> None:
    whole = {"data": made, "total": 0, "errors": [{"msg": "]"}]} if is_wrapped else made
    text = json.dumps(whole, indent=indent).encode()
    found = pieces(text, n_chunk, block_bytes)
    lists = [piece["data"] for piece in found] if is_wrapped else found
    assert [item for one in lists for item in one] == made


TRACES = st.lists(
    st.fixed_dictionaries(
        {
            "traceID": st.text(max_size=4),
            "spans": st.lists(
                st.fixed_dictionaries(
                    {
                        "traceID": st.just("1"),
                        "tag": TRICKY
                        | st.sampled_from(['},{"traceID":"1","spans":[', "},{", '"data"', "data"]),
                    }
                ),
                max_size=3,
            ),
        }
    ),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(TRACES, st.integers(1, 200), st.integers(1, 300), st.sampled_from([None, 1]))
def test_traces_are_never_cut_in_two(
    made: list[Any], n_chunk: int, block_bytes: int, indent: int | None
) -> None:
    text = json.dumps({"data": made, "total": 1}, indent=indent).encode()
    found = pieces(text, n_chunk, block_bytes)
    assert [item for piece in found for item in piece["data"]] == made


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(OBJECTS, max_size=3), max_size=6), st.integers(1, 60))
def test_texts_that_follow_each_other_stay_apart(texts: list[Any], n_chunk: int) -> None:
    joined = "\n".join(json.dumps({"data": one}) + "\n" for one in texts).encode()
    found = pieces(joined, n_chunk, 50)
    assert [item for piece in found for item in piece["data"]] == [
        item for one in texts for item in one
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(OBJECTS, min_size=1, max_size=8), st.data())
def test_cutting_off_keeps_the_elements_before(made: list[Any], data: st.DataObject) -> None:
    whole = json.dumps({"data": made}).encode()
    n = data.draw(st.integers(len(b'{"data": ['), len(whole) - 1))
    *blocks, last = element_blocks([whole[:n]], 30)
    found = [json.loads(one.data)["data"] for one in blocks if one.data]
    ends = [len(json.dumps({"data": made[: i + 1]})) - 2 for i in range(len(made))]
    n_whole = sum(end <= n for end in ends)
    assert [item for one in found for item in one] == made[:n_whole]
    assert last.data is not None
    assert not last.data.endswith(b"\n")
    with pytest.raises(json.JSONDecodeError):
        json.loads(last.data)


def test_an_element_over_the_limit_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "MAX_TEXT_BYTES", 100)
    text = json.dumps({"data": [{"a": 1}, {"b": "x" * 500}, {"c": 1}]}, indent=1).encode()
    found = list(element_blocks([text[i : i + 20] for i in range(0, len(text), 20)], 20))
    assert [json.loads(one.data)["data"] for one in found if one.data] == [[{"a": 1}]]
    assert (found[-1].data, found[-1].line) == (None, 5)


def test_lines_are_counted_where_a_block_begins() -> None:
    text = json.dumps([{"a": i} for i in range(6)], indent=1).encode()
    found = list(element_blocks([text[i : i + 10] for i in range(0, len(text), 10)], 10))
    for block in found:
        assert block.data is not None
        (first, *_) = json.loads(block.data)
        assert text.splitlines()[block.line].strip() in (
            f'"a": {first["a"]}'.encode(),
            b"{",
        )
