"""Where a ClickHouse is, out of an URL. No secret is ever kept in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from tokenlag.errors import InputError

URL_HINT: Final = "clickhouse://user@host:8123/database?table=otel_traces, clickhouses:// for TLS"
PASSWORD_HINT: Final = (
    "put it into CLICKHOUSE_PASSWORD, or into ClickHouse's own client configuration; "
    "an URL is seen in the shell's history and by every process"
)
DEFAULT_TABLE: Final = "otel_traces"
HTTP_PORT: Final = 8123
HTTPS_PORT: Final = 8443
NATIVE_PORTS: Final = (9000, 9440)
_OPTIONS: Final = ("table", "lookup")


@dataclass(frozen=True)
class Address:
    """A table of spans in a ClickHouse.

    Args:
        host: a name or an address.
        port: of HTTP.
        is_tls: whether HTTP is encrypted.
        database: None is the user's own default.
        table: of spans.
        lookup: the table that tells when a trace was, `<table>_trace_id_ts` by the exporter.
        user: if the URL names one.
    """

    host: str
    port: int
    is_tls: bool
    database: str | None
    table: str
    lookup: str
    user: str | None

    @property
    def name(self) -> str:
        """As messages and rows call it."""
        scheme = "clickhouses" if self.is_tls else "clickhouse"
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = HTTPS_PORT if self.is_tls else HTTP_PORT
        port = "" if self.port == default else f":{self.port}"
        table = "" if self.table == DEFAULT_TABLE else f"?table={self.table}"
        return f"{scheme}://{host}{port}/{self.database or ''}{table}"


def parse_address(url: str) -> Address:
    """Returns what an URL says.

    Raises:
        InputError: it says nothing usable, or a password. Messages never repeat the URL.
    """
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise InputError(
            "not an address of a ClickHouse", place=_scheme(url), hint=URL_HINT
        ) from None
    place = f"{parts.scheme}://{host or ''}"
    if parts.password is not None:
        raise InputError("the URL holds a password", place=place, hint=PASSWORD_HINT)
    if not host:
        raise InputError("the URL names no host", place=place, hint=URL_HINT)
    if port in NATIVE_PORTS:
        hint = "HTTP is spoken: 8123, or 8443 with clickhouses://, unless the server says otherwise"
        raise InputError(
            f"{port} is the port of ClickHouse's native protocol", place=place, hint=hint
        )
    options = parse_qs(parts.query, keep_blank_values=True)
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:  # the name only: whatever it is, its value may be a secret
        raise InputError(f"the URL's option {unknown[0]!r} is unknown", place=place, hint=URL_HINT)
    database = unquote(parts.path.strip("/"))
    if "/" in database:
        raise InputError("the URL names more than a database", place=place, hint=URL_HINT)
    is_tls = parts.scheme.lower() == "clickhouses"
    table = options.get("table", [DEFAULT_TABLE])[-1] or DEFAULT_TABLE
    return Address(
        host=host,
        port=port or (HTTPS_PORT if is_tls else HTTP_PORT),
        is_tls=is_tls,
        database=database or None,
        table=table,
        lookup=options.get("lookup", [f"{table}_trace_id_ts"])[-1],
        user=unquote(parts.username) if parts.username else None,
    )


def _scheme(url: str) -> str:
    return f"{url.partition('://')[0]}://"
