"""A diagnosis → text, JSON, Markdown or HTML. Pure functions; nothing here reads or computes."""

from __future__ import annotations

from typing import Final, Literal

from tokenlag.judge.diagnosis import Diagnosis, to_json

Format = Literal["text", "json", "md", "html"]
FORMATS: Final[tuple[Format, ...]] = ("text", "json", "md", "html")


def render(
    diagnosis: Diagnosis,
    form: Format,
    *,
    width: int = 100,
    color: bool = False,
    ascii_only: bool = False,
    verbosity: int = 0,
) -> str:
    """The diagnosis in one of the forms, ending in a newline.

    Width, colour and ASCII matter to text only; JSON is complete whatever the verbosity.
    """
    if form == "json":
        return to_json(diagnosis).decode() + "\n"
    if form == "md":
        from tokenlag.report.markdown import render_markdown

        return render_markdown(diagnosis, verbosity=verbosity)
    if form == "html":
        from tokenlag.report.html import render_html

        return render_html(diagnosis, verbosity=verbosity)
    from tokenlag.report.text import render_text

    return render_text(
        diagnosis, width=width, color=color, ascii_only=ascii_only, verbosity=verbosity
    )
