"""Entry points of other packages: their commands, codecs, algorithms, pages and checks.

A package names them in its ``pyproject.toml``, and gradwire finds them once the package is installed::

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
"""Mappings of commands: name -> (one line of help, ``module:function``). The entry's own name is free."""
CODECS = "gradwire.codecs"
"""Codecs: name in specs = ``module:Class``."""
ALGORITHMS = "gradwire.algorithms"
"""Algorithms: name in plans = ``module``, with the names of ``collectives.Collective``."""
PAGES = "gradwire.pages"
"""Pages: kind of record = ``module``, whose ``PAGES`` has a function for each schema of that kind."""
CHECKS = "gradwire.checks"
"""Checks of the doctor: name = ``module:function``, which takes nothing and returns findings."""


def names(group: str) -> tuple[str, ...]:
    """Return the names in a group of entry points, sorted."""
    return tuple(_points(group))


@cache
def entry(group: str, name: str) -> object | None:
    """Return the object that an entry point names, or None where no package has one of this name.

    Raises ``SpecError`` where several packages have it, or where it cannot be loaded.
    """
    points = _points(group).get(name, [])
    if not points:
        return None
    packages = [_package(each) for each in points]
    if len(points) > 1:
        both = " and ".join(packages)
        raise SpecError(f"expected one package with {name!r} among its {group}, got {both}; uninstall one")
    try:
        found: object = points[0].load()
    except Exception as error:  # a package of others raises anything
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in NEEDED:
            raise
        raise SpecError(
            f"{name!r} among the {group} of {packages[0]} cannot be loaded "
            f"({type(error).__name__}: {one_line(str(error))}); reinstall that package, or uninstall it"
        ) from error
    return found


def origin(group: str, name: str) -> str | None:
    """Return ``distribution==version`` of the package that has an entry point, or None."""
    return next(map(_package, _points(group).get(name, [])), None)


def origins(group: str, kind: str, used: Iterable[str]) -> dict[str, str]:
    """Return a fact for each of the ``used`` names that is another package's: its origin."""
    found = {name: origin(group, name) for name in used}
    return {f"the package of {kind} {name}": each for name, each in found.items() if each is not None}


def resolve(where: str) -> Any:
    """Return the object that ``module:attribute`` names, or the module itself without a colon."""
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
