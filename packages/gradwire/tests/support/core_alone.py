"""``pytest --core-alone``: neither the lab nor the gateware can be imported, as for a user of the core."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution
from typing import Any

HIDDEN = ("gradwire_lab", "gradwire_gateware")


class Hiding:
    """A finder of modules and distributions that finds neither of the two packages."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return what the finder finds, unless it is of a hidden package."""
        if name.partition(".")[0] in HIDDEN:
            return None
        found: ModuleSpec | None = self._finder.find_spec(name, path, target)
        return found

    def find_distributions(self, *context: Any) -> Iterator[Distribution]:
        """Yield the distributions, whose entry points are the commands."""
        for each in getattr(self._finder, "find_distributions", lambda *_: ())(*context):
            if str(each.metadata["Name"]).replace("-", "_") not in HIDDEN:
                yield each

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def hide() -> None:
    """Hide the two packages from this process; what a test starts as a program sees them."""
    sys.meta_path[:] = [Hiding(each) for each in sys.meta_path]
