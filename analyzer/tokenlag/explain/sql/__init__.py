"""The queries of explain/, one file each."""

from functools import cache
from importlib import resources


@cache
def query(name: str) -> str:
    """The text of `<name>.sql`."""
    return resources.files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
