"""What a command wants of stores, into files that the loader reads like any others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenlag.errors import UsageError
from tokenlag.read.noticed import ReadNote
from tokenlag.read.reading import Progress, ReadResult
from tokenlag.read.spans import RowFiles, span_schema
from tokenlag.read.stores import fleet
from tokenlag.read.stores.address import Address, parse_address
from tokenlag.read.stores.asked import Asked, Span, merged, windows_of
from tokenlag.read.stores.clickhouse import Spans
from tokenlag.read.stores.client import Client
from tokenlag.read.stores.credentials import find_credentials
from tokenlag.read.stores.table import describe
from tokenlag.read.vocabulary import Vocabulary
from tokenlag.window import no_data


def pull_stores(
    urls: Sequence[str],
    asked: Asked | None,
    into: ReadResult,
    out_dir: Path,
    vocabulary: Vocabulary,
    progress: Progress | None = None,
) -> None:
    """Adds the span files of stores to what was read.

    Args:
        urls: addresses of stores.
        asked: the times that are wanted.
        into: gets files, counts and notes.
        out_dir: an existing folder.
        vocabulary: the attributes that are kept.
        progress: called with statements done and in all.

    Raises:
        TokenlagError: a store cannot be read, or holds nothing in those times.
    """
    if asked is None:
        hint = "name the time instead: --since, --until and --baseline A/B"
        raise UsageError("a trace store cannot be taken whole", hint=hint)
    addresses = [parse_address(url) for url in urls]  # before anything is asked
    for number, address in enumerate(addresses):
        client = Client(address, find_credentials(address))
        try:
            _pull(client, address, asked, into, out_dir, f"store-{number}", vocabulary, progress)
        finally:
            client.close()
    empty = RowFiles(out_dir, "store-empty", span_schema(vocabulary))
    empty.write_empty()
    into.span_files += empty.files


def _pull(
    client: Client,
    address: Address,
    asked: Asked,
    into: ReadResult,
    out_dir: Path,
    prefix: str,
    vocabulary: Vocabulary,
    progress: Progress | None,
) -> None:
    spans = Spans(client, describe(client, address), vocabulary)
    there = spans.span()
    if there is None:
        raise spans.nothing()
    windows = windows_of(asked, address.name, *there)
    if spans.arrivals(windows[0])[0] == 0:
        raise no_data("window", asked.since, *there, asked.tz)
    parts = merged(windows)
    if asked.by_engine:
        spans = _of_suspects(spans, windows, address, into)
    n_spans = 0
    for number, window in enumerate(parts):
        if progress:
            progress(number, len(parts))
        pulled = spans.pull(window, out_dir, f"{prefix}-{number}")
        into.span_files += pulled.span_files
        into.event_files += pulled.event_files
        into.notes += pulled.notes
        n_spans += pulled.n_spans
    into.n_spans += n_spans
    into.n_files += 1
    megabytes = client.moved.n_bytes / 1e6
    text = f"{address.name}: {n_spans:,} spans came, {megabytes:,.1f} MB"
    if not asked.baseline:
        text += "; only the window was read: --baseline DURATION reads a time before it, too"
    into.notes.append(ReadNote("store", address.name, n_spans, text))


def _of_suspects(spans: Spans, windows: list[Span], address: Address, into: ReadResult) -> Spans:
    """The spans of the engines that are worth it, where there are more than can be read."""
    engines, model = fleet.sum_up(spans, windows[0])
    if len(engines) <= fleet.MAX_READ + 1:
        return spans
    before = fleet.sum_up(spans, windows[1])[0] if len(windows) > 1 else []
    chosen = fleet.choose(engines, before)
    into.fleet = fleet.described(engines, model, chosen)
    n = len(engines)
    text = (
        f"{address.name}: {n:,} engines were summed up in the store; "
        f"{len(chosen)} of them were read and are what is diagnosed"
    )
    into.notes.append(ReadNote("fleet", address.name, n, text))
    return Spans(spans.client, spans.table, spans.vocabulary, list(chosen))
