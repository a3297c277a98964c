"""Collective algorithms as data: the sends and receives of each rank. ``step`` defines the terms.

Each algorithm is a module. Other packages provide algorithms as entry points (``gradwire.plugins``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from gradwire import plugins
from gradwire.collectives import backend
from gradwire.collectives.hierarchical import ALGORITHMS, Hierarchical
from gradwire.collectives.step import Collective, Step
from gradwire.errors import SpecError, shown

__all__ = ["NAMES", "TABLE", "Collective", "Hierarchical", "Step", "get"]

TABLE: Mapping[str, Collective] = MappingProxyType(ALGORITHMS | {"hierarchical": Hierarchical()})
"""The algorithms of this package except ``backend``, which uses a ring's steps."""
NAMES = (*TABLE, backend.NAME)
"""The names of all algorithms of this package."""


def get(spec: str) -> Collective:
    """Return the algorithm for a spec such as ``ring`` or ``hierarchical:4,ring+star``.

    Raises ``SpecError``.
    """
    if isinstance(spec, str):
        if spec in TABLE:
            return TABLE[spec]
        if spec == backend.NAME:
            return backend
        if spec.startswith("hierarchical:"):
            return Hierarchical.parse(spec)
        found = plugins.entry(plugins.ALGORITHMS, spec)
        if found is not None:
            return _checked(spec, found)
    known = sorted({*NAMES, *plugins.names(plugins.ALGORITHMS)})
    raise SpecError(
        f"unknown algorithm {shown(spec)}; choose one of {', '.join(known)}, or install the package that "
        "provides the algorithm"
    )


def _checked(name: str, found: object) -> Collective:
    """Return another package's algorithm. Raises ``SpecError`` if it lacks an attribute of ``Collective``."""
    wanted = ("ROTATES", *(each for each in vars(Collective) if not each.startswith("_")))
    missing = [each for each in dict.fromkeys(wanted) if not hasattr(found, each)]
    if missing:
        raise SpecError(
            f"algorithm {name} of package {plugins.origin(plugins.ALGORITHMS, name)}: expected the "
            f"interface of gradwire.collectives.Collective, got {shown(found)} without {', '.join(missing)}; "
            "define the missing attributes"
        )
    return cast("Collective", found)


def origins(algorithm: str) -> dict[str, str]:
    """Return the package of a plan's third-party algorithm, which must be the same on all ranks."""
    return plugins.origins(plugins.ALGORITHMS, "algorithm", {algorithm}.difference(NAMES))
