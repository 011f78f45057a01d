"""Decodes OTLP JSON with one type for each attribute key.

The key then tells the parser, as the tag of a union, which type an attribute has: no
string is made for the key, and the value of a key that nobody declared is passed over
without being looked at, prompts among them. The keys that occur are learnt from the first
texts, which are decoded generally; where new ones keep coming, this gives up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Union

import msgspec

from tokenlag.read.sources.otlp_types import (
    AnyValue,
    Export,
    ResourceSpans,
    ScopeSpans,
    Span,
)

MAX_IGNORED_KEYS: Final = 512
MAX_REBUILDS: Final = 30


class KeyedDecoder:
    """A decoder that learns.

    Args:
        declared: the keys whose values are wanted, with their types.
    """

    def __init__(self, declared: Mapping[str, str]) -> None:
        self._types: dict[str, Any] = {
            key: _attribute(key, _IntegerValue if value_type == "int" else AnyValue)
            for key, value_type in declared.items()
        }
        self._n_declared = len(self._types)
        self._n_rebuilds = 0
        self._decoder: msgspec.json.Decoder[Export] | None = None

    def decode(self, text: bytes | memoryview) -> Export | None:
        """Returns an export, or None if the text has to be decoded generally.

        Its spans' attributes have a `key`, and a `value` if it is declared.
        """
        if self._decoder is None:
            return None
        try:
            return self._decoder.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return None

    def learn(self, exports: Iterable[Export]) -> bool:
        """Takes the keys of exports that were decoded generally; returns whether some are new."""
        if self._n_rebuilds > MAX_REBUILDS:
            return False
        keys = {
            item.key
            for export in exports
            for block in export.resource_spans or ()
            for scope_spans in block.scope_spans or ()
            for span in scope_spans.spans or ()
            for item in span.attributes or ()
        }
        new = keys - self._types.keys()
        if not keys or (self._decoder is not None and not new):
            return False
        self._n_rebuilds += 1
        n_ignored = len(self._types) - self._n_declared + len(new)
        if self._n_rebuilds > MAX_REBUILDS or n_ignored > MAX_IGNORED_KEYS:
            self._decoder, self._n_rebuilds = None, MAX_REBUILDS + 1
            return False
        self._types.update({key: _attribute(key, None) for key in new})
        self._decoder = _decoder(list(self._types.values()))
        return True


class _IntegerValue(AnyValue, gc=False, rename="camel"):
    """A value whose decimal text becomes a number at once; other text fails the decoder."""

    int_value: int | None = None


def _attribute(key: str, value_type: type[AnyValue] | None) -> Any:
    fields: list[tuple[str, Any]] = [] if value_type is None else [("value", value_type)]
    namespace = {"key": key}
    return msgspec.defstruct(
        "Attribute", fields, tag_field="key", tag=key, gc=False, namespace=namespace
    )


def _decoder(attribute_types: list[Any]) -> msgspec.json.Decoder[Export]:
    """The types of `otlp_types` again, down to attributes of these types."""
    attribute: Any = Union[tuple(attribute_types)]  # noqa: UP007 - not known before
    times = dict.fromkeys(("start_time_unix_nano", "end_time_unix_nano"), int | None)
    span = _narrowed(Span, times, attributes=attribute)
    scope_spans = _narrowed(ScopeSpans, spans=span)
    resource_spans = _narrowed(ResourceSpans, scope_spans=scope_spans)
    export = _narrowed(Export, resource_spans=resource_spans, batches=resource_spans)
    return msgspec.json.Decoder(export, strict=False)  # integers out of decimal text


def _narrowed(
    base: type[msgspec.Struct], kinds: Mapping[str, Any] = MappingProxyType({}), **items: Any
) -> Any:
    fields: list[tuple[str, Any, None]] = [(name, kind, None) for name, kind in kinds.items()]
    for name, item in items.items():
        kind: Any = list[item]  # type: ignore[valid-type]
        fields.append((name, kind | None, None))
    return msgspec.defstruct(base.__name__, fields, bases=(base,), gc=False, rename="camel")
