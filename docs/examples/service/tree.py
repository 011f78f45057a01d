"""Prints one request's spans as a tree, and the engine steps that carried it. Run it as

    python tree.py traces/ [REQUEST_ID] [--into docs/wrapping-a-service.md]

With no id it takes the request with the most prompt chunks. Standard library only.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- tree: begin -->", "<!-- tree: end -->"
# What a reader of the tree wants to see; the rest is in the file.
HIDDEN = ("gen_ai.request.id", "gen_ai.operation.name", "gen_ai.request.model",
          "tokenlag.client.chunk_ms", "tokenlag.engine.epoch", "tokenlag.engine.id",
          "tokenlag.step.dropped", "tokenlag.step.oldest_wait_ns")  # fmt: skip


def value_of(value: dict[str, Any]) -> Any:
    """Returns an OTLP value as Python's own."""
    if "arrayValue" in value:
        return [value_of(item) for item in value["arrayValue"].get("values", [])]
    kind, text = next(iter(value.items()))
    return int(text) if kind == "intValue" else text


def read(folder: Path) -> list[dict[str, Any]]:
    """Returns all spans of a folder."""
    spans = []
    for path in sorted(folder.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    spans += scope["spans"]
    for span in spans:
        span["start"], span["end"] = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        span["keys"] = {entry["key"]: value_of(entry["value"]) for entry in span["attributes"]}
    return spans


def line_of(span: dict[str, Any], depth: int, zero_ns: int) -> str:
    """Returns one span's line: when, how long, what."""
    keys = ", ".join(
        f"{key.removeprefix('tokenlag.')}={json.dumps(value)}"
        for key, value in sorted(span["keys"].items())
        if key not in HIDDEN
    )
    at_ms, took_ms = (span["start"] - zero_ns) / 1e6, (span["end"] - span["start"]) / 1e6
    name = "  " * depth + span["name"]
    return f"{at_ms:8.1f} {took_ms:8.1f}  {name:<28} {keys}"


def tree_of(spans: list[dict[str, Any]], trace_id: str) -> list[str]:
    """Returns the lines of one request's trace and of the steps that carried it."""
    own = sorted((s for s in spans if s["traceId"] == trace_id), key=lambda s: s["start"])
    ids = {span["spanId"] for span in own}
    children = defaultdict(list)
    for span in own:
        parent = span.get("parentSpanId", "")
        children[parent if parent in ids else ""].append(span)
    zero_ns = own[0]["start"]
    lines = ["      ms       ms  span"]

    def walk(parent: str, depth: int) -> None:
        for span in children[parent]:
            lines.append(line_of(span, depth, zero_ns))
            walk(span["spanId"], depth + 1)

    walk("", 0)
    lines += ["", "      ms       ms  the steps that carried it"]
    carried: set[int] = set()
    for span in own:
        keys = span["keys"]
        if "tokenlag.step.index" in keys:
            carried.add(keys["tokenlag.step.index"])
        if "tokenlag.decode.first_step" in keys:
            first, last = keys["tokenlag.decode.first_step"], keys["tokenlag.decode.last_step"]
            carried |= set(range(first, last + 1))
    engine = {s["keys"]["tokenlag.engine.id"] for s in own if "tokenlag.engine.id" in s["keys"]}
    steps = sorted(
        (
            span
            for span in spans
            if span["name"] == "llm.engine_step"
            and span["keys"]["tokenlag.engine.id"] in engine
            and span["keys"]["tokenlag.step.index"] in carried
        ),
        key=lambda span: span["start"],
    )
    for number, span in enumerate(steps):
        if number == 7 and len(steps) > 9:
            lines.append(f"{'':19}… {len(steps) - 8} more")
        if number < 7 or len(steps) <= 9 or number == len(steps) - 1:
            lines.append(line_of(span, 0, zero_ns))
    return lines


def longest(spans: list[dict[str, Any]]) -> str:
    """Returns the trace with the most prompt chunks among those that a client began."""
    begun = {span["traceId"] for span in spans if span["kind"] == 3}
    counts: dict[str, int] = defaultdict(int)
    for span in spans:
        if span["name"] == "llm.prefill_chunk" and span["traceId"] in begun:
            counts[span["traceId"]] += 1
    return max(counts, key=lambda trace_id: counts[trace_id])


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("request_id", nargs="?")
    parser.add_argument("--into", type=Path, help="put it between the marks in this file")
    options = parser.parse_args()
    spans = read(options.traces)
    if options.request_id:
        ids = [
            s["traceId"] for s in spans if s["keys"].get("gen_ai.request.id") == options.request_id
        ]
        trace_id = ids[0]
    else:
        trace_id = longest(spans)
    text = "\n".join(line.rstrip() for line in tree_of(spans, trace_id)) + "\n"
    if options.into is None:
        sys.stdout.write(text)
        return
    page = options.into.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    page = f"{before}{BEGIN}\n```text\n{text}```\n{END}{after}"
    options.into.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
