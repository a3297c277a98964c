"""Collective algorithms as data: the sends and receives of each rank. ``step`` defines the terms.

Each algorithm is a module, loaded on first use. Other packages provide algorithms as entry points
(``gradwire.plugins``).
"""

from __future__ import annotations

from typing import Protocol, cast

from gradwire import plugins
from gradwire.collectives import backend
from gradwire.collectives.hierarchical import Hierarchical
from gradwire.collectives.levels import MODULES, Algorithms
from gradwire.collectives.step import Collective, Step
from gradwire.errors import SpecError, shown

__all__ = ["NAMES", "TABLE", "Collective", "Hierarchical", "Step", "get"]

TABLE = Algorithms(MODULES | {"hierarchical": "gradwire.collectives.hierarchical:TWO_LEVELS"})
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


class HasAlgorithm(Protocol):
    """The part of a plan's interface that names its algorithm."""

    @property
    def algorithm(self) -> str:
        """The spec of the plan's algorithm."""


def origins(plan: HasAlgorithm) -> dict[str, str]:
    """Return the package of a third-party algorithm in the plan, which must be the same on all ranks."""
    used = [] if plan.algorithm in NAMES else [plan.algorithm]
    return plugins.origins(plugins.ALGORITHMS, "algorithm", used)
