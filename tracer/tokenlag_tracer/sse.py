"""What a model's answer tells besides its text: whether a chunk has any, counts, ids, the end.

Text is looked at to see whether there is some, and let go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

MAX_EVENT_BYTES: Final = 1 << 22
# What an event that tells of an error holds. In text of an answer the quotes are escaped.
ERROR_MARK: Final = b'"error"'
# A word of a program's, never a sentence: messages may quote the prompt.
_ERROR_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}")
_TEXT_KEYS: Final = ("content", "reasoning_content", "reasoning", "text", "refusal")
DONE: Final = b"[DONE]"


class EventSplitter:
    """Splits a stream of bytes into the data of server-sent events, however it is cut."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the data of each event that is whole now."""
        data = self._rest + data if self._rest else data
        if b"\r" in data:
            # A pair may be cut in two: its first half waits for the second.
            held = data[-1:] if data.endswith(b"\r") else b""
            data = data[: len(data) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            *events, rest = data.split(b"\n\n")
            rest += held
        else:
            *events, rest = data.split(b"\n\n")
        self._rest = rest if len(rest) <= MAX_EVENT_BYTES else b""
        for event in events:
            lines = [line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines)


@dataclass(slots=True)
class Told:
    """What one event, or a whole answer that was not streamed, tells.

    Attributes:
        has_content: there is text (or a call of a tool) in it.
        is_end: the stream is over.
        finish_reason: why it is, where it says so.
        response_id: the server's id of the answer.
        model: the model's name.
        input_tokens: prompt tokens.
        output_tokens: tokens generated.
        cached_tokens: of the prompt, not computed.
        error_type: it says that the request failed; the status, or a word for the error.
        body: the event itself, for those who look for more.
    """

    has_content: bool = False
    is_end: bool = False
    finish_reason: str | None = None
    response_id: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    error_type: str | None = None
    body: dict[str, Any] | None = None


def read(data: bytes) -> Told:
    """Returns what an event's data tell; nothing, if they are not understood."""
    told = Told()
    if data.strip() == DONE:
        told.is_end = True
        return told
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        # Some servers stream plain text: any is content.
        told.has_content = bool(data.strip())
        return told
    if not isinstance(body, dict):
        told.has_content = bool(body)
        return told
    told.body = body
    # Anthropic and OpenAI's responses say the kind of an event, and nest what starts a stream.
    inner = body.get("message") if isinstance(body.get("message"), dict) else body.get("response")
    for part in (body, inner):
        if isinstance(part, dict):
            _read_head(told, part)
    told.has_content = _has_content(body)
    return told


def _read_head(told: Told, body: dict[str, Any]) -> None:
    if isinstance(value := body.get("id"), str):
        told.response_id = value
    if isinstance(value := body.get("model"), str):
        told.model = value
    if body.get("type") in ("message_stop", "response.completed") or body.get("stop") is True:
        told.is_end = True
    if body.get("stop_type") and isinstance(value := body.get("stop_type"), str):
        told.finish_reason = value
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and isinstance(value := choice.get("finish_reason"), str):
            told.finish_reason = value
    if body.get("error"):
        told.error_type = _error_word(body["error"])
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return
    told.input_tokens = _count(usage, "prompt_tokens", "input_tokens")
    told.output_tokens = _count(usage, "completion_tokens", "output_tokens")
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if isinstance(details, dict):
        told.cached_tokens = _count(details, "cached_tokens")


def error_in(data: bytes) -> str | None:
    """Returns what a part of a stream says of an error; None if it tells of none.

    A stream's status is sent before its first token, so what fails later is told in an event.
    """
    for event in EventSplitter().feed(data + b"\n\n"):
        if (error_type := read(event).error_type) is not None:
            return error_type
    return None


def _error_word(error: Any) -> str:
    told = error if isinstance(error, dict) else {}
    for value in (told.get("code"), told.get("type")):
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
            return str(value)
        if isinstance(value, str) and _ERROR_WORD.fullmatch(value):
            return value
    return "stream_error"


def _count(values: dict[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _has_content(body: dict[str, Any]) -> bool:
    choices = body.get("choices")
    if isinstance(choices, list):
        return any(isinstance(choice, dict) and _choice_has(choice) for choice in choices)
    if isinstance(body.get("delta"), (dict, str)):
        return _has_text(body["delta"])
    if isinstance(body.get("token"), (dict, str)):
        return _has_text(body["token"])
    return any(_has_text(body.get(key)) for key in (*_TEXT_KEYS, "generated_text", "output"))


def _choice_has(choice: dict[str, Any]) -> bool:
    for key in ("delta", "message"):
        if isinstance(part := choice.get(key), dict):
            return _has_text(part)
    return _has_text(choice.get("text"))


def _has_text(value: Any) -> bool:
    """Whether a value is text, or has some where text is kept, or calls a tool."""
    if isinstance(value, str):
        return bool(value)
    if isinstance(value, list):
        return any(_has_text(item) for item in value)
    if isinstance(value, dict):
        if value.get("tool_calls") or value.get("function_call") or value.get("partial_json"):
            return True
        return any(_has_text(value.get(key)) for key in (*_TEXT_KEYS, "thinking"))
    return False
