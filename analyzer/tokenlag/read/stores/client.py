"""Statements to a ClickHouse over HTTP: rows, or Parquet into a file. Errors in one line."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenlag.errors import InputError, TokenlagError
from tokenlag.read.stores.address import Address
from tokenlag.read.stores.credentials import PASSWORD_VARIABLE, USER_VARIABLE, Credentials

CONNECT_TIMEOUT_S: Final = 10
ANSWER_TIMEOUT_S: Final = 600
CHUNK_BYTES: Final = 2**20
PARQUET_MARK: Final = b"PAR1"
PORT_HINT: Final = "is the address right, and the port that of HTTP (8123, or 8443 with TLS)?"

_AUTHENTICATION: Final = frozenset({192, 193, 194, 516})
_NOT_ALLOWED: Final = 497
_NO_TABLE: Final = 60
_NO_DATABASE: Final = 81
_TOO_LONG: Final = frozenset({159, 160})
_TOO_MUCH: Final = frozenset({158, 241, 307, 396})
_CODE: Final = re.compile(r"Code: (\d+)\. ?(?:DB::Exception: )?(.*)", re.DOTALL)
_MAX_REASON: Final = 200

Value = str | int | float | list[str]
Row = dict[str, Any]


@dataclass
class Moved:
    """What came over the network."""

    n_statements: int = 0
    n_bytes: int = 0


class Client:
    """A connection to one ClickHouse.

    Args:
        address: where.
        credentials: who.

    Raises:
        TokenlagError: the client's library is not installed.
        InputError: nobody answers there, or the answer is a refusal.
    """

    def __init__(self, address: Address, credentials: Credentials) -> None:
        try:
            import clickhouse_connect
            from clickhouse_connect.driver.exceptions import ClickHouseError
        except ImportError:
            raise TokenlagError(
                "reading from ClickHouse needs clickhouse-connect",
                place=address.name,
                hint="pip install 'tokenlag[clickhouse]'",
            ) from None
        # What it would log names users, and what it raises is told by us.
        for name in ("clickhouse_connect", "urllib3"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.address = address
        self.moved = Moved()
        self._errors: type[Exception] = ClickHouseError
        self._credentials = credentials
        try:
            self._client = clickhouse_connect.get_client(
                interface="https" if address.is_tls else "http",
                host=address.host,
                port=address.port,
                username=credentials.user,
                password=credentials.password,
                database=address.database,
                connect_timeout=CONNECT_TIMEOUT_S,
                send_receive_timeout=ANSWER_TIMEOUT_S,
                compress=False,  # Parquet is compressed already
                query_limit=0,
                query_retries=0,
                autogenerate_session_id=False,
                client_name="tokenlag",
            )
        except ClickHouseError as error:
            raise self._told(error) from None
        except Exception:  # the client stumbles over what another kind of server says
            raise InputError(
                "what answers there is no ClickHouse", place=address.name, hint=PORT_HINT
            ) from None

    def rows(self, sql: str, values: Mapping[str, Value] | None = None) -> list[Row]:
        """Returns the rows of a small answer.

        Raises:
            InputError: the store refuses.
        """
        try:
            data: bytes = self._client.raw_query(sql, parameters=_bound(values), fmt="JSONEachRow")
        except self._errors as error:
            raise self._told(error) from None
        self._count(len(data))
        try:
            return [json.loads(line) for line in data.splitlines() if line]
        except ValueError:
            raise self._broken(data) from None

    def parquet(self, sql: str, path: Path, values: Mapping[str, Value] | None = None) -> int:
        """Writes an answer as a Parquet file and returns its size.

        Raises:
            InputError: the store refuses, or the answer is cut off.
        """
        n_bytes, tail = 0, b""
        try:
            with (
                self._client.raw_stream(sql, parameters=_bound(values), fmt="Parquet") as stream,
                path.open("wb") as file,
            ):
                while chunk := stream.read(CHUNK_BYTES):
                    file.write(chunk)
                    n_bytes += len(chunk)
                    tail = (tail + chunk)[-4096:]
        except OSError as error:
            raise InputError(f"cannot keep the answer: {error.strerror}", place=str(path)) from None
        except self._errors as error:
            raise self._told(error) from None
        except Exception as error:  # the connection breaks inside what the client is made of
            raise InputError(
                f"the answer broke off: {type(error).__name__}", place=self.address.name
            ) from None
        self._count(n_bytes)
        if not tail.endswith(PARQUET_MARK):
            raise self._broken(tail)
        return n_bytes

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()

    def _count(self, n_bytes: int) -> None:
        self.moved.n_statements += 1
        self.moved.n_bytes += n_bytes

    def _broken(self, tail: bytes) -> InputError:
        """An answer that began well: what went wrong stands at its end."""
        text = tail.decode("utf-8", "replace")
        found = _CODE.search(text)
        why = _reason(found[2]) if found else "the answer is cut off"
        return InputError(why, place=self.address.name, hint="ask for a shorter time")

    def _told(self, error: Exception) -> TokenlagError:
        """What an error of the client means, without anything of whom we are."""
        text = str(error)
        if self._credentials.password:
            text = text.replace(self._credentials.password, "…")
        found = _CODE.search(text)
        code = getattr(error, "code", None) or (int(found[1]) if found else None)
        place = self.address.name
        if code in _AUTHENTICATION or (code is None and re.search(r"status (401|403)\b", text)):
            asked = f"user {self._credentials.user!r} with {self._credentials.origin}"
            return InputError(
                f"ClickHouse does not let in {asked}",
                place=place,
                hint=f"set {USER_VARIABLE} and {PASSWORD_VARIABLE}",
            )
        if code == _NO_DATABASE:
            hint = "name it in the URL: clickhouse://host/database"
            return InputError(f"no database {self.address.database!r}", place=place, hint=hint)
        if code == _NO_TABLE:
            hint = "name it in the URL: clickhouse://host/database?table=NAME"
            return InputError(f"no table {self.address.table!r}", place=place, hint=hint)
        reason = _reason(found[2]) if found else None
        if code == _NOT_ALLOWED:
            hint = f"GRANT SELECT ON {self.address.table} to it"
            message = f"user {self._credentials.user!r} may not read this: {reason}"
            return InputError(message, place=place, hint=hint)
        if code in _TOO_LONG or code in _TOO_MUCH:
            return InputError(
                f"more than this user may ask for: {reason}",
                place=place,
                hint="ask for a shorter time",
            )
        if reason is not None:
            return InputError(f"ClickHouse refuses (code {code}): {reason}", place=place)
        return InputError(
            f"no ClickHouse answers there: {_connection_reason(text)}",
            place=place,
            hint=PORT_HINT,
        )


def _bound(values: Mapping[str, Value] | None) -> dict[str, Any] | None:
    return None if values is None else dict(values)


def _reason(text: str) -> str:
    """The first sentence of what ClickHouse says, on one line."""
    line = " ".join(text.split())
    line = re.split(r"\. \(|: While |: In scope|\. Maybe ", line)[0]
    return line if len(line) <= _MAX_REASON else line[:_MAX_REASON] + "…"


def _connection_reason(text: str) -> str:
    for mark, words in (
        ("unexpected response to server version", "it is another kind of server"),
        ("refused", "the connection is refused"),
        ("timed out", "it does not answer in time"),
        ("Name or service not known", "there is no such host"),
        ("nodename nor servname", "there is no such host"),
        ("resolve", "there is no such host"),
        ("CERTIFICATE_VERIFY", "its certificate is not trusted"),
        ("SSL", "TLS is not spoken there"),
    ):
        if mark.lower() in text.lower():
            return words
    return _reason(text) or "no reason is given"
