"""Cuts JSON of any size between the elements of its array, so that no piece is large.

Jaeger's and Zipkin's answers are one JSON text however many spans they hold. What comes
out are smaller texts of the same form, one a line: some elements in the wrapper that all
of them were in. Quotes and brackets are found with numpy, a block at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from tokenlag.read.lines import MAX_TEXT_BYTES, Block

_QUOTE, _OPEN, _CLOSE = 1, 2, 3
_CLASSES: Final = np.zeros(256, np.uint8)
for _byte, _class in ((b'"', _QUOTE), (b"{[", _OPEN), (b"}]", _CLOSE)):
    _CLASSES[list(_byte)] = _class

_BLANK: Final = b" \t\r\n\xef\xbb\xbf\0"
_BETWEEN: Final = _BLANK + b","
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
_ANSWER_OPENER: Final = b'{"data":['
_TRACE_BEGIN: Final = re.compile(rb'\}\s*,\s*\{\s*"traceID"\s*:\s*"[^"\\]*"\s*,\s*"spans"\s*:\s*\[')
_MAX_TRACE_BEGIN: Final = 256
_WRAPPERS: Final = (
    (re.compile(rb'\{\s*"data"\s*:\s*\['), _ANSWER_OPENER, b"]}"),
    (re.compile(rb"\["), b"[", b"]"),
)


class _Wrapper:
    """What stands around the elements of the text that is being cut."""

    def __init__(self, opener: bytes, closer: bytes) -> None:
        self.opener = opener
        self.closer = closer
        self.depth = len(closer)


def element_blocks(chunks: Iterable[bytes], block_bytes: int) -> Iterator[Block]:
    """Yields a stream of JSON texts as blocks of texts, one a line.

    Ends at an element over `MAX_TEXT_BYTES`. What is cut off comes last, without a line end.

    Args:
        chunks: the stream.
        block_bytes: about how much to look at, at a time.
    """
    rest, parts, n_parts, line = b"", [], 0, 1
    wrapper: _Wrapper | None = None
    n_needed = block_bytes
    for chunk in chunks:
        parts.append(chunk)
        n_parts += len(chunk)
        if len(rest) + n_parts < n_needed:
            continue
        data, parts, n_parts = b"".join([rest, *parts]), [], 0
        texts, n_used, wrapper = _cut_at_trace(data, wrapper) or _cut(data, wrapper)
        if texts:
            yield Block(_joined(texts), line)
        line += data.count(b"\n", 0, n_used)
        rest = data[n_used:]
        if len(rest) > MAX_TEXT_BYTES:
            yield Block(None, line)
            return
        n_needed = max(block_bytes, 2 * len(rest))
    data = b"".join([rest, *parts])
    texts, n_used, wrapper = _cut(data, wrapper)
    if texts:
        yield Block(_joined(texts), line)
    line += data.count(b"\n", 0, n_used)
    rest = data[n_used:].strip(_BETWEEN)
    if wrapper is not None:
        yield Block(wrapper.opener + rest.translate(_ONE_LINE), line)
    elif rest:
        yield Block(rest.translate(_ONE_LINE), line)


def _joined(texts: list[bytes]) -> bytes:
    return b"".join([text.translate(_ONE_LINE) + b"\n" for text in texts])


def _cut(data: bytes, wrapper: _Wrapper | None) -> tuple[list[bytes], int, _Wrapper | None]:
    """Returns whole texts, how many bytes they are of, and what the rest is inside of.

    Args:
        data: begins between two texts, or between two elements.
        wrapper: the one around those elements.
    """
    at, closes, depth = _brackets(data, wrapper.depth if wrapper else 0)
    ends = (at[closes & (depth == 0)] + 1).tolist()
    texts: list[bytes] = []
    begin = 0
    for end in ends:
        text = data[begin:end]
        if wrapper is not None:
            text = wrapper.opener + text.lstrip(_BETWEEN)
            wrapper = None
        texts.append(text.strip(_BETWEEN))
        begin = end
    if wrapper is None:
        wrapper, n_opener = _wrapper_at(data, begin)
        if wrapper is None:
            return texts, begin, None
        first = begin + n_opener
    else:
        first = begin
    after = np.searchsorted(at, first)
    inner = at[after:][closes[after:] & (depth[after:] == wrapper.depth)]
    if not len(inner):
        return texts, first, wrapper
    last = int(inner[-1]) + 1
    elements = data[first:last].strip(_BETWEEN)
    texts.append(wrapper.opener + elements + wrapper.closer)
    return texts, last, wrapper


def _cut_at_trace(
    data: bytes, wrapper: _Wrapper | None
) -> tuple[list[bytes], int, _Wrapper | None] | None:
    """The same for the common case: the last trace of an answer that goes on.

    No string can hold what is looked for, for a quote in a string has a backslash before it,
    and behind the quote that ends one comes no name.
    """
    if wrapper is None or wrapper.opener != _ANSWER_OPENER or b'"data"' in data:
        return None
    at = data.rfind(b'"spans"')
    found = _TRACE_BEGIN.search(data, max(0, at - _MAX_TRACE_BEGIN), at + 16) if at >= 0 else None
    if found is None or found.end() <= at:
        return None
    elements = data[: found.start() + 1].strip(_BETWEEN)
    return [wrapper.opener + elements + wrapper.closer], found.start() + 1, wrapper


def _wrapper_at(data: bytes, begin: int) -> tuple[_Wrapper | None, int]:
    """The wrapper that begins at an offset, if one does, and its length with what is before."""
    n_blank = len(data) - begin - len(data[begin:].lstrip(_BETWEEN))
    for pattern, opener, closer in _WRAPPERS:
        found = pattern.match(data, begin + n_blank)
        if found:
            return _Wrapper(opener, closer), found.end() - begin
    return None, 0


def _brackets(data: bytes, depth: int) -> tuple[Any, Any, Any]:
    """Where brackets outside of strings are, whether they close, and the depth behind them."""
    if b"\\" in data:  # of the same length, with no escaped quote left
        data = data.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    classes = _CLASSES[np.frombuffer(data, np.uint8)]
    at = np.flatnonzero(classes)
    kinds = classes[at]
    is_quote = kinds == _QUOTE
    is_outside = np.cumsum(is_quote) & 1 == 0
    is_bracket = is_outside & ~is_quote
    at, closes = at[is_bracket], kinds[is_bracket] == _CLOSE
    return at, closes, depth + np.cumsum(np.where(closes, -1, 1))
