"""Just enough OTLP JSON reading to check what was written, apart from the product's own readers."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Read:
    trace: str
    id: str
    parent: str | None
    name: str
    kind: int
    start: int
    end: int
    attributes: dict
    resource: dict
    scope: str
    status: dict


def value_of(value: dict):
    [(kind, content)] = value.items()
    if kind == "intValue":
        return int(content)
    if kind == "arrayValue":
        return [value_of(item) for item in content["values"]]
    return content


def attributes_of(listed: list[dict]) -> dict:
    assert len({item["key"] for item in listed}) == len(listed), "a key twice"
    return {item["key"]: value_of(item["value"]) for item in listed}


def text_of(path: Path) -> str:
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    if path.suffix == ".zst":
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()).decode()
    return path.read_text()


def spans_of(path: Path) -> list[Read]:
    spans = []
    for line in text_of(path).splitlines():
        in_line = 0
        for of_resource in json.loads(line)["resourceSpans"]:
            resource = attributes_of(of_resource["resource"]["attributes"])
            for of_scope in of_resource["scopeSpans"]:
                for span in of_scope["spans"]:
                    in_line += 1
                    spans.append(
                        Read(
                            span["traceId"],
                            span["spanId"],
                            span.get("parentSpanId"),
                            span["name"],
                            span["kind"],
                            int(span["startTimeUnixNano"]),
                            int(span["endTimeUnixNano"]),
                            attributes_of(span["attributes"]),
                            resource,
                            of_scope["scope"]["name"],
                            span["status"],
                        )
                    )
        assert 0 < in_line <= 512
    return spans


def named(spans: list[Read], name: str) -> list[Read]:
    return [span for span in spans if span.name == name]


def indexes_of(text: str | None) -> set[int]:
    """Unroll a range list: "101-140,143"."""
    found: set[int] = set()
    for part in (text or "").split(","):
        if part:
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found
