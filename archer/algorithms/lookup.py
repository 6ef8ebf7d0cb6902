"""Finding an algorithm by the name a user wrote in the configuration."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

from archer.errors import ArcherError

T = TypeVar("T")


def choose(table: Mapping[str, T], name: str, key: str) -> T:
    """Return `table[name]`; an unknown name is an error that names the configuration key and the choices."""
    if name in table:
        return table[name]
    close = get_close_matches(name, table, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ArcherError(f"{key}={name} is not known. Choose one of: {', '.join(table)}.{hint}")
