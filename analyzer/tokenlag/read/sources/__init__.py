"""Sources: what turns the bytes of one format into span rows. No source knows a dialect.

What is here decides by a file's first bytes which source reads it, and how its bytes are
cut into jobs; it imports no source. Each source is a module of its own with
`open_source(sink, vocabulary)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tokenlag.read.sources import detect

LINES: Final = "lines"  # one JSON text a line, or one over several lines
ELEMENTS: Final = "elements"  # JSON of any size, cut between the elements of its array
FRAMES: Final = "frames"  # binary messages, cut where one ends
FILE: Final = "file"  # needs to seek; cut by the source itself

OTLP_JSON: Final = "otlp_json"
OTLP_PROTO: Final = "otlp_proto"
JAEGER_JSON: Final = "jaeger_json"
ZIPKIN_JSON: Final = "zipkin_json"
PARQUET: Final = "parquet"
ENGINE_RECORDS: Final = "engine_records"


@dataclass(frozen=True)
class Source:
    """One format.

    Args:
        name: of the format, and of its module in this package.
        title: as messages call it.
        cut: how its bytes are cut into jobs.
        is_it: whether a file that begins with these bytes, decompressed, is of this format.
    """

    name: str
    title: str
    cut: str
    is_it: Callable[[bytes], bool]


SOURCES: Final = (
    Source(PARQUET, "Parquet", FILE, detect.is_parquet),
    Source(OTLP_JSON, "OTLP JSON", LINES, detect.is_otlp_json),
    Source(JAEGER_JSON, "Jaeger JSON", ELEMENTS, detect.is_jaeger_json),
    Source(ZIPKIN_JSON, "Zipkin JSON", ELEMENTS, detect.is_zipkin_json),
    Source(ENGINE_RECORDS, "records of an engine", LINES, detect.is_engine_records),
    Source(OTLP_PROTO, "OTLP protobuf", FRAMES, detect.is_otlp_proto),
)


def find_source(head: bytes) -> Source | None:
    """Returns the source that reads a file which begins so, if one does.

    Args:
        head: the first bytes, decompressed.
    """
    return next((source for source in SOURCES if source.is_it(head)), None)
