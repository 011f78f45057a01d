"""Sentences with placeholders: `{name}`, `{name:.1f}`, `{name|default}`, `{name:.1f|default}`.

Not `str.format`: that reaches into attributes and items, has no default, and fails on a
NULL. `{{` and `}}` are literal braces. A number without a format is shown with three
significant digits, or in full where it is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tokenlag.judge.diagnosis import Scalar

NOT_MEASURED = "not measured"

_FIELD = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::(?P<spec>[^|{}]*))?(?:\|(?P<default>[^{}]*))?"
)
_SPEC = re.compile(r"[<>=^]?[+\- ]?#?0?\d*,?(?:\.\d+)?[bcdeEfFgGnosxX%]?")
DURATION: Final = "duration"
_TOKEN = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]|[^{}]+")


class Placeholder(NamedTuple):
    """One placeholder of a template."""

    name: str
    spec: str
    default: str | None


class TemplateError(ValueError):
    """A template that cannot be read, or that names what is not there."""


def parse(template: str) -> list[str | Placeholder]:
    """The template as literal texts and placeholders.

    Raises:
        TemplateError: on an open brace, an unknown form or a format that no number takes.
    """
    return list(_tokens(template))


def placeholders(template: str) -> list[Placeholder]:
    """The placeholders of a template, in order. Raises TemplateError as `parse` does."""
    return [part for part in _tokens(template) if isinstance(part, Placeholder)]


def render(template: str, values: Mapping[str, Scalar], *, when_null: str = NOT_MEASURED) -> str:
    """The template filled in.

    A value that is None gives the placeholder's default, or `when_null`; a name that is
    missing altogether gives the default too.

    Raises:
        TemplateError: for a name that is missing and has no default, or a text value with
            a number's format.
    """
    texts = []
    for part in _tokens(template):
        if isinstance(part, str):
            texts.append(part)
            continue
        value = values.get(part.name)
        if value is not None:
            texts.append(_show(part, value))
        elif part.default is not None:
            texts.append(part.default)
        elif part.name in values:
            texts.append(when_null)
        else:
            known = ", ".join(sorted(values))
            raise TemplateError(f"{{{part.name}}} is neither a column nor a fact (has: {known})")
    return "".join(texts)


def _tokens(template: str) -> Iterator[str | Placeholder]:
    for token in _TOKEN.findall(template):
        if token in ("{{", "}}"):
            yield token[0]
        elif token in ("{", "}"):
            raise TemplateError(f"a single {token!r}; write {token * 2!r} for the character")
        elif token.startswith("{"):
            yield _placeholder(token)
        else:
            yield token


def _placeholder(token: str) -> Placeholder:
    match = _FIELD.fullmatch(token[1:-1])
    if match is None:
        raise TemplateError(f"{token} is not {{name}}, {{name:format}} or {{name|default}}")
    spec, default = match["spec"] or "", match["default"]
    if spec != DURATION and not _SPEC.fullmatch(spec):
        raise TemplateError(f"{token} has the format {spec!r}, which no number takes")
    if default is not None and re.search(r":[\d.,]*[dfgeE%]$", default):
        raise TemplateError(f"{token}: the format comes before the default: {{name:.1f|default}}")
    return Placeholder(match["name"], spec, default)


def _show(part: Placeholder, value: str | int | float | bool) -> str:
    if part.spec == DURATION:
        if isinstance(value, str | bool):
            raise TemplateError(f"{{{part.name}:{part.spec}}} cannot show {value!r}")
        return duration(value)
    if part.spec:
        try:
            return format(value, part.spec)
        except ValueError:
            shown = f"{{{part.name}:{part.spec}}}"
            raise TemplateError(f"{shown} cannot show {value!r}") from None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return plain_number(value)
    return str(value)


def duration(ms: float) -> str:
    """Milliseconds for people: `85 ms`, `2.4 s`, `3.5 min`."""
    size = abs(ms)
    if size < 1000:
        return f"{plain_number(round(ms, 1) if size < 100 else round(ms))} ms"
    if size < 120_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms / 60_000:.1f} min"


def plain_number(value: float) -> str:
    """A number for people: whole ones in full, others with three significant digits."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
