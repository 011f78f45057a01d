"""Keys are found by all of their bytes, and fields where they are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.read.load import vocabulary
from tokenlag.read.sources.proto_wire import Buffer, KeyTable

KEYS = list(vocabulary().span)
# The same length, beginning and end as a key, and another middle.
ALIKE = [key[:8] + "x" * (len(key) - 16) + key[-8:] for key in KEYS if len(key) > 16]


def found(texts: list[str], keys: list[str]) -> list[str | None]:
    encoded = [text.encode() for text in texts]
    end = np.cumsum([len(one) for one in encoded])
    begin = end - np.array([len(one) for one in encoded])
    indexes = KeyTable(keys).find(Buffer(b"".join(encoded)), begin, end)
    return [None if index < 0 else keys[index] for index in indexes.tolist()]


def test_every_key_that_is_read_is_found() -> None:
    assert found(KEYS * 2, KEYS) == KEYS * 2


def test_what_only_looks_like_a_key_is_not_found() -> None:
    assert len(ALIKE) > 50
    assert found(ALIKE, KEYS) == [None] * len(ALIKE)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab", max_size=20), unique=True), st.lists(st.text("ab", max_size=20)))
def test_keys_are_told_apart_by_all_their_bytes(keys: list[str], texts: list[str]) -> None:
    texts += keys
    if texts:
        assert found(texts, keys) == [text if text in keys else None for text in texts]
