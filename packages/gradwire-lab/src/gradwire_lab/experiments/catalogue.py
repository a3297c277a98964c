"""Tables of objects by name whose modules are imported at the first access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import TypeVar

T = TypeVar("T")


class Catalogue(Mapping[str, T]):
    """Objects by name; an object's module is imported when its name is first looked up.

    ``places`` maps each name to the object's location in entry-point syntax, ``package.module:NAME``.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> T:
        found: T = resolve_name(self._places[name])
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
