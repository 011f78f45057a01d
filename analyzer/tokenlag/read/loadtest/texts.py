"""The JSON of result files, typed; generated text in them is never made into strings."""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec

from tokenlag.errors import InputError

T = TypeVar("T")


def decode(text: bytes, kind: type[T], source: str) -> T:
    """Reads one JSON text as `kind`; what `kind` does not name is passed over.

    Python's writers put `Infinity` and `NaN` into JSON, which only its own reader takes.

    Raises:
        InputError: it is no JSON, or not of that form.
    """
    try:
        return msgspec.json.decode(text, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"not the result file it seems to be: {error}", place=source) from None
    except msgspec.DecodeError:
        pass
    try:
        return msgspec.convert(json.loads(text), kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"not the result file it seems to be: {error}", place=source) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"cut off or not JSON: {error}", place=source) from None


def converted(value: object, kind: type[T], source: str) -> T:
    """A part of a text that was read without a type, as `kind`.

    Raises:
        InputError: it is not of that form.
    """
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"not the result file it seems to be: {error}", place=source) from None


def lines_of(text: bytes) -> list[bytes]:
    """The JSON texts of a file with one a line, blank lines left out."""
    return [line for line in text.splitlines() if line.strip(b" \t\r\n\xef\xbb\xbf")]
