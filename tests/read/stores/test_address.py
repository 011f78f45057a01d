"""Addresses and credentials of ClickHouse: what is read of them, and that no secret gets out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenlag.errors import InputError
from tokenlag.read.stores import any_store, is_store
from tokenlag.read.stores.address import parse_address
from tokenlag.read.stores.credentials import find_credentials

SECRET = "s3cr3t-of-ours"


@pytest.mark.parametrize(
    ("url", "host", "port", "database", "table", "user", "name"),
    [
        ("clickhouse://h", "h", 8123, None, "otel_traces", None, "clickhouse://h/"),
        ("clickhouse://u@h/d", "h", 8123, "d", "otel_traces", "u", "clickhouse://h/d"),
        ("clickhouses://h/d", "h", 8443, "d", "otel_traces", None, "clickhouses://h/d"),
        ("ClickHouse://h:80/d/", "h", 80, "d", "otel_traces", None, "clickhouse://h:80/d"),
        ("clickhouse://h/d?table=t", "h", 8123, "d", "t", None, "clickhouse://h/d?table=t"),
        ("clickhouse://a%40b@[::1]:1/d", "::1", 1, "d", "otel_traces", "a@b", "clickhouse://[::1]:1/d"),
    ],
)  # fmt: skip
def test_an_address_is_taken_apart(
    url: str, host: str, port: int, database: str, table: str, user: str, name: str
) -> None:
    found = parse_address(url)
    assert is_store(url)
    assert (found.host, found.port, found.database) == (host, port, database)
    assert (found.table, found.lookup, found.user) == (table, f"{table}_trace_id_ts", user)
    assert found.name == name


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"clickhouse://u:{SECRET}@h/d", "holds a password"),
        (f"clickhouse://:{SECRET}@h/d", "holds a password"),
        (f"clickhouse://h/d?password={SECRET}", "option 'password' is unknown"),
        (f"clickhouse://u:{SECRET}@h:port/d", "not an address"),
        (f"clickhouse://u:{SECRET}@[::1/d", "not an address"),
        ("clickhouse:///d", "no host"),
        ("clickhouse://h:9000/d", "native protocol"),
        ("clickhouse://h/d/t", "more than a database"),
    ],
)
def test_what_cannot_be_used_is_refused_without_repeating_it(url: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        parse_address(url)
    assert SECRET not in str(caught.value)


def test_files_are_no_stores() -> None:
    assert not any_store(["traces/", "https://h/x", Path("clickhouse.jsonl"), "clickhouse"])
    assert any_store(["traces/", "clickhouse://h"])


def config(home: Path, text: str, suffix: str = "xml") -> None:
    (home / ".clickhouse-client").mkdir(parents=True, exist_ok=True)
    (home / ".clickhouse-client" / f"config.{suffix}").write_text(text)


CLIENT_XML = f"""<config><user>ops</user><password>{SECRET}</password>
<connections_credentials>
  <connection><name>prod</name><hostname>ch.prod</hostname><user>reader</user>
    <password>{SECRET}2</password></connection>
</connections_credentials></config>"""


@pytest.mark.parametrize(
    ("url", "environ", "user", "password", "origin"),
    [
        ("clickhouse://h", {}, "ops", SECRET, "config.xml"),
        ("clickhouse://ch.prod", {}, "reader", f"{SECRET}2", "config.xml"),
        ("clickhouse://other@h", {}, "other", "", "no password"),
        ("clickhouse://h", {"CLICKHOUSE_USER": "other"}, "other", "", "no password"),
        ("clickhouse://h", {"CLICKHOUSE_PASSWORD": "x"}, "default", "x", "CLICKHOUSE_PASSWORD"),
        (
            "clickhouse://a@h",
            {"CLICKHOUSE_USER": "b", "CLICKHOUSE_PASSWORD": "x"},
            "a",
            "x",
            "CLICKHOUSE_PASSWORD",
        ),
    ],
)
def test_credentials_are_the_environments_or_the_clients_own(
    url: str,
    environ: dict[str, str],
    user: str,
    password: str,
    origin: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    config(tmp_path, CLIENT_XML)
    found = find_credentials(parse_address(url), environ, tmp_path)
    assert (found.user, found.password) == (user, password)
    assert found.origin.endswith(origin)
    assert SECRET not in repr(found)


def test_without_any_it_is_the_default_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = find_credentials(parse_address("clickhouse://h"), {}, tmp_path)
    assert (found.user, found.password) == ("default", "")


@pytest.mark.parametrize(
    ("text", "suffix"), [(f"<config><password>{SECRET}", "xml"), (f"- {SECRET}\n- x: [", "yaml")]
)
def test_a_damaged_configuration_is_told_without_its_text(
    text: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config(tmp_path, text, suffix)
    with pytest.raises(InputError, match="client configuration") as caught:
        find_credentials(parse_address("clickhouse://h"), {}, tmp_path)
    assert SECRET not in str(caught.value)
