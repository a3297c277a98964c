"""Extensions by other packages, through entry points: commands, codecs, algorithms, pages, and checks.

A package declares entry points in its ``pyproject.toml``, and gradwire finds them once the package is
installed::

    [project.entry-points."gradwire.codecs"]
    sign = "my_package.sign:Sign"
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gradwire.errors import SpecError, one_line
from gradwire.version import NEEDED

COMMANDS = "gradwire.commands"
"""The entry-point group of commands. An entry maps commands to pairs (line of help, ``module:function``)."""
CODECS = "gradwire.codecs"
"""The entry-point group of codecs: names in specs, and the codecs' classes."""
ALGORITHMS = "gradwire.algorithms"
"""The entry-point group of algorithms: names in plans, and modules that implement ``Collective``."""
PAGES = "gradwire.pages"
"""The entry-point group of pages: kinds of records, and modules whose ``PAGES`` maps schemas to functions."""
CHECKS = "gradwire.checks"
"""The entry-point group of the doctor's checks. An entry's object is a function that returns findings."""


def names(group: str) -> tuple[str, ...]:
    """Return the sorted names of the entry points in a group."""
    return tuple(_points(group))


@cache
def entry(group: str, name: str) -> object | None:
    """Return the object of an entry point, or None if no package defines this name.

    Raises ``SpecError`` if several packages define the name, or if the object cannot be loaded.
    """
    if not (points := _points(group).get(name, [])):
        return None
    packages = [_package(each) for each in points]
    if len(points) > 1:
        both = " and ".join(packages)
        raise SpecError(
            f"expected one package that defines {name!r} in {group}, got {both}; uninstall all but one "
            "of them"
        )
    try:
        found: object = points[0].load()
    except Exception as error:  # another package may raise any exception
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in NEEDED:
            raise
        raise SpecError(
            f"{name!r} of the package {packages[0]}, in the group {group}, cannot be loaded "
            f"({type(error).__name__}: {one_line(str(error))}); reinstall that package, or uninstall it"
        ) from error
    return found


def origin(group: str, name: str) -> str | None:
    """Return ``distribution==version`` of the package that defines an entry point, or None without one."""
    return next(map(_package, _points(group).get(name, [])), None)


def origins(group: str, kind: str, used: Iterable[str]) -> dict[str, str]:
    """Return the packages (see ``origin``) that define the names ``used``, keyed by kind and name."""
    found = {name: origin(group, name) for name in used}
    return {f"the package of {kind} {name}": each for name, each in found.items() if each is not None}


def resolve(where: str) -> Any:
    """Import the object at ``module:attribute``, or the module if there is no colon."""
    module, _, attribute = where.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


@cache
def _points(group: str) -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for each in sorted(entry_points(group=group), key=lambda each: (each.name, _package(each))):
        found.setdefault(each.name, []).append(each)
    return found


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"{point.dist.name}=={point.dist.version}"
