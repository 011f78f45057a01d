"""Changes to somebody else's code that can be taken back, and the warning when one fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_ABSENT: Final = object()
_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Logs a warning the first time that it is given in this process."""
    if message not in _warned:
        import logging  # here, since most processes never warn

        _warned.add(message)
        # vLLM shows what its own logger gets; the root logger it may have muted.
        has_vllm = bool(logging.getLogger("vllm").handlers)
        logging.getLogger("vllm.tokenlag" if has_vllm else "tokenlag_tracer").warning(message)


def describe(error: BaseException) -> str:
    """Returns what failed and where, without the message: that might quote a request."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" at {code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}{place}"


class Patches:
    """Attributes that were replaced, and what they were."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, object, object]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> bool:
        """Replaces an attribute by what `make` makes of it; returns whether there was one.

        What a wrapper replaces must not be replaced twice: a value that has been made by these
        patches already is left alone.
        """
        present = getattr(owner, name, None)
        if present is None:
            return False
        if any(made is present for _, _, _, made in self._done):
            return True
        made = make(present)
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, made)
        self._done.append((owner, name, before, made))
        return True

    def restore(self) -> None:
        """Puts everything back that is still as it was left here."""
        while self._done:
            owner, name, before, made = self._done.pop()
            if vars(owner).get(name) is not made:
                continue  # somebody wrapped ours: taking theirs away would break more
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
