"""The decoder with a type for each key: the same rows, and when it gives up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenlag.read.sources import otlp_json, otlp_keyed
from tokenlag.read.sources.otlp_keyed import KeyedDecoder
from tokenlag.read.sources.otlp_types import Export

from tests.read.otlp import export, line, rows, span

SECRET = "x" * 50


def learnt(*texts: str, declared: tuple[str, ...] = ("whole",)) -> KeyedDecoder:
    decoder = KeyedDecoder(dict.fromkeys(declared, "int"))
    for text in texts:
        decoder.learn([otlp_json._EXPORT.decode(text)])
    return decoder


def decoded(decoder: KeyedDecoder, text: str) -> Export:
    found = decoder.decode(text.encode())
    assert found is not None
    return found


def test_it_knows_keys_once_it_has_seen_them() -> None:
    first = line(span(whole=1, prompt=SECRET))
    assert KeyedDecoder({"whole": "int"}).decode(first.encode()) is None
    decoder = learnt(first)
    ((found,),) = [
        scope.spans
        for block in decoded(decoder, first).resource_spans or ()
        for scope in block.scope_spans or ()
    ]
    assert [item.key for item in found.attributes] == ["whole", "prompt"]
    assert found.attributes[0].value.int_value == 1
    assert not hasattr(found.attributes[1], "value")
    assert decoder.decode(line(span(other=1)).encode()) is None
    decoder.learn([otlp_json._EXPORT.decode(line(span(other=1)))])
    assert decoder.decode(line(span(other=1), span(whole=1)).encode()) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "not JSON", '{"resourceSpans": 5}'])
def test_what_is_odd_is_left_to_the_general_way(text: str) -> None:
    assert learnt(line(span(whole=1))).decode(text.encode()) is None


def test_it_gives_up_where_keys_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_keyed, "MAX_IGNORED_KEYS", 5)
    many = [line(span(**{f"k{i}": 1})) for i in range(7)]
    assert learnt(*many[:5]).decode(many[0].encode()) is not None
    assert learnt(*many).decode(many[0].encode()) is None
    monkeypatch.setattr(otlp_keyed, "MAX_IGNORED_KEYS", 500)
    monkeypatch.setattr(otlp_keyed, "MAX_REBUILDS", 3)
    assert learnt(*many[:3]).decode(many[0].encode()) is not None
    assert learnt(*many).decode(many[0].encode()) is None


def test_rows_are_the_same_either_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = [span(whole=i, text=f"t{i}", wholes=[i], odd=SECRET, number=i / 2) for i in range(20)]
    value_first = span(whole=5)
    value_first["attributes"] = [{"value": {"intValue": "5"}, "key": "whole"}]
    no_value = span() | {"attributes": [{"key": "whole"}, {"key": "odd"}]}
    lines = [line(one, resource={"service.name": "s"}) for one in [*spans, value_first, no_value]]
    lines.append(json.dumps({"result": export([span(whole=7)])}) + "\n")
    lines.append(json.dumps({"batches": export([span(whole=8)])["resourceSpans"]}) + "\n")
    used = []
    original = KeyedDecoder.decode

    def spy(self: KeyedDecoder, text: bytes) -> Export | None:
        found = original(self, text)
        used.append(found is not None)
        return found

    monkeypatch.setattr(KeyedDecoder, "decode", spy)
    keyed = rows("".join(lines), tmp_path)
    assert sum(used) >= 22
    monkeypatch.setattr(KeyedDecoder, "decode", lambda self, text: None)
    assert rows("".join(lines), tmp_path) == keyed
    assert len(keyed) == 24
    assert max(one["whole"] for one in keyed if one["whole"] is not None) == 19
