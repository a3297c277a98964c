"""Algorithms as data: who sends what to whom. One module each; ``step`` defines the terms.

A module is loaded when it is first used. Other packages bring algorithms as entry points
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
"""The algorithms of this package that have steps of their own."""
NAMES = (*TABLE, backend.NAME)
"""All of this package that ``get`` knows."""


def get(spec: str) -> Collective:
    """Return the algorithm that ``spec`` names, such as ``ring`` or ``hierarchical:4,ring+star``.

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
        f"no algorithm is called {shown(spec)}; choose one of {', '.join(known)}, "
        "or install the package that has it"
    )


def _checked(name: str, found: object) -> Collective:
    """Return another package's algorithm. Raises ``SpecError`` where a name of ``Collective`` is missing."""
    wanted = ("ROTATES", *(each for each in vars(Collective) if not each.startswith("_")))
    missing = [each for each in dict.fromkeys(wanted) if not hasattr(found, each)]
    if missing:
        raise SpecError(
            f"expected the names of gradwire.collectives.Collective for algorithm {name} of package "
            f"{plugins.origin(plugins.ALGORITHMS, name)}, got {shown(found)} without {', '.join(missing)}; "
            "define these"
        )
    return cast("Collective", found)


class HasAlgorithm(Protocol):
    """A plan, as far as its algorithm goes."""

    @property
    def algorithm(self) -> str:
        """The spec of its algorithm."""


def origins(plan: HasAlgorithm) -> dict[str, str]:
    """Return a fact for ranks to agree on: the package of the algorithm of ``plan``, if it is another's."""
    used = [] if plan.algorithm in NAMES else [plan.algorithm]
    return plugins.origins(plugins.ALGORITHMS, "algorithm", used)
