"""List gradwire's public API with its signatures: `python scripts/list_api.py --write` writes docs/api.txt.

Without ``--write``, print what differs. ``docs/versioning.md`` says what a change of it means.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

LIST = Path(__file__).parent.parent / "docs" / "api.txt"
PUBLIC = (
    "gradwire",
    "gradwire.codecs",
    "gradwire.collectives",
    "gradwire.devices",
    "gradwire.entropy",
    "gradwire.errors",
    "gradwire.exchange",
    "gradwire.integrations.accelerate",
    "gradwire.integrations.lightning",
    "gradwire.integrations.transformers",
    "gradwire.links",
    "gradwire.planner",
    "gradwire_lab.testbed",
    "gradwire.timing",
)
"""The modules whose names are public: those of ``__all__``, or else all that they define."""
PRIVATE = ("gradwire.errors.shown",)
"""What modules without ``__all__`` define for gradwire itself."""
_QUOTES = re.compile(r"(: |-> )'([^']*)'")
"""Around annotations, which are text while the program runs."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def names_of(module: ModuleType) -> list[str]:
    """Return the public names of a module, sorted."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and f"{module.__name__}.{name}" not in PRIVATE
    )


def lines_of(modules: Iterable[ModuleType]) -> Iterator[str]:
    """Yield a line for every public name, and one for every public part of a class.

    An object that several modules show is described where it comes first, and so is what classes inherit.
    """
    values = {f"{each.__name__}.{name}": getattr(each, name) for each in modules for name in names_of(each)}
    places: dict[int, str] = {}
    for place, value in values.items():
        places.setdefault(id(value), place)
    for place, value in values.items():
        if callable(value) and places[id(value)] != place:
            yield f"{place}: the same as {places[id(value)]}"
        elif inspect.isclass(value):
            bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
            yield f"{place}: class{_signature(value)}{' of ' if bases else ''}{bases}"
            yield from (f"{place}.{part}" for part in _parts(value, places))
        elif callable(value):
            yield f"{place}: def{_signature(value)}"
        else:
            yield f"{place}: {type(value).__name__}"


def listing() -> str:
    """Return the whole list, a line each."""
    return "".join(f"{line}\n" for line in lines_of(map(importlib.import_module, PUBLIC)))


def _signature(value: object) -> str:
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"  # of a class made by compiled code
    return _ADDRESS.sub("", _QUOTES.sub(r"\1\2", text))


def _parts(owner: type, listed: Mapping[int, str]) -> Iterator[str]:
    """Yield the methods, properties, and constants of this class and of those bases that are not listed."""
    found: dict[str, object] = {}
    for base in reversed(owner.__mro__):
        if base is owner or (base.__module__.split(".")[0] == "gradwire" and id(base) not in listed):
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    for name, value in sorted(found.items()):
        if isinstance(value, (staticmethod, classmethod)):
            yield f"{name}: {type(value).__name__} def{_signature(value.__func__)}"
        elif inspect.isfunction(value):
            yield f"{name}: def{_signature(value)}"
        else:
            yield f"{name}: {'property' if isinstance(value, property) else 'attribute'}"


def main() -> int:
    """Write the list, or print how it differs from what is written; return 1 if it does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/api.txt")
    found = listing()
    if parser.parse_args().write:
        LIST.write_text(found, encoding="utf-8")
        return 0
    written = LIST.read_text(encoding="utf-8")
    difference = difflib.unified_diff(
        written.splitlines(), found.splitlines(), "written", "found", n=0, lineterm=""
    )
    print("\n".join(difference))  # noqa: T201 - this is a command
    return int(found != written)


if __name__ == "__main__":
    sys.exit(main())
