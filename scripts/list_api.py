"""List the public API with its signatures: `python scripts/list_api.py --write` writes docs/api*.txt.

Without ``--write``, print the differences. ``docs/versioning.md`` explains what a change of the API means.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parent.parent / "docs"
LISTS = {
    "api.txt": (
        "gradwire",
        "gradwire.codecs",
        "gradwire.collectives",
        "gradwire.entropy",
        "gradwire.errors",
        "gradwire.exchange",
        "gradwire.integrations.accelerate",
        "gradwire.integrations.lightning",
        "gradwire.integrations.transformers",
        "gradwire.links",
        "gradwire.planner",
    ),
    "api-lab.txt": ("gradwire_lab.closed_forms", "gradwire_lab.testbed"),
}
"""Files in docs, and the modules whose public names the files list: ``__all__``, or all names defined."""
FIRST = "gradwire.attach"
"""The name that most scripts use, listed first; all other names are in alphabetical order."""
PRIVATE = re.compile(
    r"""
    gradwire\.Auto\.(candidates|first_plan|place)
    | gradwire\.ExchangeCost\.(cores_s|scales|took|towards)
    | gradwire\.Ledger\.(decided|warned)
    | gradwire\.Plan\.(encodes_on_device|encoding_of|encodings|for_one_codec|for_whole_gradients|from_values)
    | gradwire\.Plan\.(keeps_residual|on_host|places_parameters|rules|to_text|tos)
    | gradwire\.ProcessGroupLink\.(check_steps|forget|gone|send_keepalives|sleep)
    | gradwire\.codecs\.\w+\.(compiled|is_offloadable)
    | gradwire\.collectives\.Hierarchical\.(ROTATES|broadcast|chunks|nbytes|owner|reduce|schedule|steps)
    | gradwire\.entropy\.(DeltaDecoder\.(check|take)|DeltaEncoder\.(header|source))
    | gradwire\.errors\.(add_note|copied|one_line|refuse|shown)
    | gradwire\.exchange\.Norms\.(add|add_own|clear|lose)
    | gradwire\.links\.MpiLink\.(active_at|finished|has_left|send_keepalives_if_due)
    | gradwire\.links\.(Port\.(arrive|leave)|ThrottledLink\.(arrival|give|wait_until))
    | gradwire\.planner\.PlanRequest\.(all_algorithms|check|core_nbytes_per_s|encodings|exchanges)
    | gradwire\.planner\.PlanRequest\.(found_line|line_rate|workload)
    """,
    re.VERBOSE,
)
"""Public-looking names that are internal to gradwire, or that a listed protocol describes."""
_QUOTES = re.compile(r"(: |-> )'([^']*)'")
"""The quotes around annotations, which are strings at run time."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def names_of(module: ModuleType) -> list[str]:
    """Return the public names of a module, sorted, with ``FIRST`` before all other names."""
    listed = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(listed, key=lambda name: (f"{module.__name__}.{name}" != FIRST, name))


def lines_of(modules: Sequence[ModuleType], before: Sequence[ModuleType] = ()) -> Iterator[str]:
    """Yield a line for every public name, and a line for every public member of a class.

    An object that several modules export is listed at its first occurrence. Inherited and overridden members
    are listed in the base class, if the base class is listed or from another package. Modules ``before`` are
    in another list.
    """
    values = _values(modules)
    places: dict[int, str] = {}
    for place, value in [*_values(before).items(), *values.items()]:
        places.setdefault(id(value), place)
    for place, value in values.items():
        first = places[id(value)]
        if callable(value) and first != place:
            if first.rpartition(".")[0] == place.rpartition(".")[0]:
                yield f"{place}: the same as {first}"
        elif inspect.isclass(value):
            bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
            yield f"{place}: class{_signature(value)}{' of ' if bases else ''}{bases}"
            parts = (f"{place}.{part}" for part in _parts(value, places))
            yield from (part for part in parts if not PRIVATE.fullmatch(part.partition(":")[0]))
        elif callable(value):
            yield f"{place}: def{_signature(value)}"
        else:
            yield f"{place}: {type(value).__name__}"


def listing() -> dict[str, str]:
    """Return the text of each list, with a line per name."""
    found: dict[str, str] = {}
    before: list[ModuleType] = []
    for file, names in LISTS.items():
        modules = [importlib.import_module(name) for name in names]
        found[file] = "".join(f"{line}\n" for line in lines_of(modules, before))
        before += modules
    return found


def _values(modules: Iterable[ModuleType]) -> dict[str, object]:
    places = {f"{each.__name__}.{name}": (each, name) for each in modules for name in names_of(each)}
    return {place: getattr(*owned) for place, owned in places.items() if not PRIVATE.fullmatch(place)}


def _signature(value: object) -> str:
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"  # a class from compiled code
    return _ADDRESS.sub("", _QUOTES.sub(r"\1\2", text))


def _parts(owner: type, listed: Mapping[int, str]) -> Iterator[str]:
    """Yield the methods, properties, and constants of a class, except members of listed and foreign bases."""
    found: dict[str, object] = {}
    bases = [each for base in owner.__mro__[1:] if id(base) in listed for each in base.__mro__]
    inherited = {name for each in bases if _is_ours(each) for name in _members(each)}
    inherited |= {name for base in owner.__mro__ if not _is_ours(base) for name in vars(base)}
    for base in reversed(owner.__mro__):
        if base is owner or (_is_ours(base) and id(base) not in listed):
            found |= _members(base)
    for name, value in sorted(found.items()):
        if name in inherited:
            continue
        if isinstance(value, (staticmethod, classmethod)):
            yield f"{name}: {type(value).__name__} def{_signature(value.__func__)}"
        elif inspect.isfunction(value):
            yield f"{name}: def{_signature(value)}"
        else:
            yield f"{name}: {'property' if isinstance(value, property) else 'attribute'}"


def _members(base: type) -> dict[str, object]:
    """Return a class's own public members, and the constants that it requires of its subclasses."""
    kinds = inspect.get_annotations(base)
    asked = {name: None for name, kind in kinds.items() if "ClassVar[" in str(kind)}
    return {name: value for name, value in (asked | vars(base)).items() if not name.startswith("_")}


def _is_ours(base: type) -> bool:
    return base.__module__.partition(".")[0] in ("gradwire", "gradwire_lab")


def main() -> int:
    """Write the lists, or print the differences from the written lists; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/api*.txt")
    found = listing()
    if parser.parse_args().write:
        for file, text in found.items():
            (DOCS / file).write_text(text, encoding="utf-8")
        return 0
    written = {file: (DOCS / file).read_text(encoding="utf-8") for file in found}
    for file, text in found.items():
        difference = difflib.unified_diff(
            written[file].splitlines(), text.splitlines(), f"written {file}", "found", n=0, lineterm=""
        )
        print("\n".join(difference))  # noqa: T201 - this is a command
    return int(found != written)


if __name__ == "__main__":
    sys.exit(main())
