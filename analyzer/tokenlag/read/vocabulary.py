"""What is kept of a span: the declared attribute keys, each with one type.

Only declared keys ever leave a source. That is what makes reading fast, and it is the
privacy rule: the text of prompts and outputs has no declared key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from tokenlag_tracer import conventions

ValueType = Literal["str", "int", "float", "bool", "int[]", "str[]"]
VALUE_TYPES: Final[frozenset[str]] = frozenset(get_args(ValueType))

RESOURCE_PREFIX: Final = "resource."
# A link is kept as an event of this name, at its span's start.
LINK: Final = "link"
LINK_TRACE_ID, LINK_SPAN_ID = "link.trace_id", "link.span_id"
MAX_LINKS: Final = 16  # of one span


@dataclass(frozen=True)
class Vocabulary:
    """Attribute keys to keep, and their types.

    Args:
        span: span attributes. Each becomes a column of that name.
        resource: resource attributes. Each becomes a column `resource.<key>`.
        event_names: the span events to keep; no other event becomes a row.
        event: attributes of those events.
        link_names: names of spans whose links are kept; no other span's are.

    Raises:
        ValueError: a type that is not one of `VALUE_TYPES`.
    """

    span: Mapping[str, str] = field(default_factory=dict)
    resource: Mapping[str, str] = field(default_factory=dict)
    event_names: frozenset[str] = frozenset()
    event: Mapping[str, str] = field(default_factory=dict)
    link_names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for kind in (self.span, self.resource, self.event):
            for key, value_type in kind.items():
                if value_type not in VALUE_TYPES:
                    raise ValueError(f"{key}: {value_type!r} is not a type of attribute")

    @staticmethod
    def union(vocabularies: Iterable[Vocabulary]) -> Vocabulary:
        """Returns everything that any of them declares.

        Raises:
            ValueError: two of them declare one key with different types.
        """
        span: dict[str, str] = {}
        resource: dict[str, str] = {}
        event: dict[str, str] = {}
        event_names: set[str] = set()
        link_names: set[str] = set()
        for vocabulary in vocabularies:
            _merge(span, vocabulary.span)
            _merge(resource, vocabulary.resource)
            _merge(event, vocabulary.event)
            event_names |= vocabulary.event_names
            link_names |= vocabulary.link_names
        return Vocabulary(span, resource, frozenset(event_names), event, frozenset(link_names))


def _merge(into: dict[str, str], more: Mapping[str, str]) -> None:
    for key, value_type in more.items():
        if into.setdefault(key, value_type) != value_type:
            raise ValueError(f"{key} is declared both as {into[key]} and as {value_type}")


CONTRACT: Final = Vocabulary(
    span=conventions.SPAN_ATTRIBUTE_TYPES, resource=conventions.RESOURCE_ATTRIBUTE_TYPES
)
