"""Who one is to a ClickHouse: by the environment, or by its own client's configuration.

The client's file is looked for where `clickhouse-client` looks for it. Nothing of this is
ever part of a message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from tokenlag.errors import InputError
from tokenlag.read.stores.address import Address

USER_VARIABLE: Final = "CLICKHOUSE_USER"
PASSWORD_VARIABLE: Final = "CLICKHOUSE_PASSWORD"
DEFAULT_USER: Final = "default"


@dataclass(frozen=True)
class Credentials:
    """A user and, unseen, a password.

    Args:
        user: the name.
        password: never shown.
        origin: where it came from, for messages.
    """

    user: str
    password: str = field(repr=False)
    origin: str


def find_credentials(
    address: Address, environ: Mapping[str, str] | None = None, home: Path | None = None
) -> Credentials:
    """Returns whom to be: the URL's user, else the environment's, else the client's file's.

    The password is the environment's if it has one; else that of the client's file, if the
    file means the same user.

    Raises:
        InputError: the client's file cannot be read.
    """
    env = os.environ if environ is None else environ
    user = address.user or env.get(USER_VARIABLE) or None
    if PASSWORD_VARIABLE in env:
        return Credentials(user or DEFAULT_USER, env[PASSWORD_VARIABLE], PASSWORD_VARIABLE)
    path = next((path for path in _files(home or Path.home()) if path.is_file()), None)
    if path is not None:
        told = _told(path, address.host)
        same = user is None or told.get("user", DEFAULT_USER) == user
        if same and (told.get("password") is not None or user is None):
            name = user or told.get("user") or DEFAULT_USER
            return Credentials(name, told.get("password") or "", str(path))
    return Credentials(user or DEFAULT_USER, "", "no password")


def _files(home: Path) -> list[Path]:
    names = [Path("clickhouse-client"), home / ".clickhouse-client" / "config"]
    names.append(Path("/etc/clickhouse-client/config"))
    return [name.with_suffix(end) for name in names for end in (".xml", ".yaml", ".yml")]


def _told(path: Path, host: str) -> dict[str, str]:
    """User and password of the file, those that it gives for this host before the general ones."""
    try:
        tree = _xml(path) if path.suffix == ".xml" else _yaml(path)
    except OSError as error:
        raise InputError(
            f"ClickHouse's client configuration cannot be read: {error.strerror}", place=str(path)
        ) from None
    except (ElementTree.ParseError, ValueError):  # its text may hold a password: say no more
        raise InputError(
            "ClickHouse's client configuration cannot be understood", place=str(path)
        ) from None
    told = {key: str(tree[key]) for key in ("user", "password") if tree.get(key) is not None}
    listed = (tree.get("connections_credentials") or {}).get("connection") or []
    for one in listed if isinstance(listed, list) else [listed]:
        if isinstance(one, Mapping) and host in (one.get("hostname"), one.get("name")):
            told |= {key: str(one[key]) for key in ("user", "password") if one.get(key) is not None}
    return told


def _xml(path: Path) -> dict[str, Any]:
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    tree: dict[str, Any] = {
        child.tag: (child.text or "").strip() for child in root if len(child) == 0
    }
    listed = root.findall("connections_credentials/connection")
    found = [{part.tag: (part.text or "").strip() for part in one} for one in listed]
    return tree | {"connections_credentials": {"connection": found}}


def _yaml(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise InputError(
            "ClickHouse's client configuration is YAML, which needs PyYAML",
            place=str(path),
            hint=f"pip install pyyaml, or set {PASSWORD_VARIABLE}",
        ) from None
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError:
        raise ValueError("not YAML") from None
    if not isinstance(tree, dict):
        raise ValueError("no settings")
    return tree
