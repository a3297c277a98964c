"""Algorithms as data: who sends what to whom. One module each; ``step`` defines the terms."""

from __future__ import annotations

from gradwire.collectives import backend
from gradwire.collectives.hierarchical import Hierarchical
from gradwire.collectives.levels import ALGORITHMS
from gradwire.collectives.step import Collective, Step
from gradwire.errors import SpecError, shown

__all__ = ["NAMES", "TABLE", "Collective", "Hierarchical", "Step", "get"]

TABLE: dict[str, Collective] = {**ALGORITHMS, "hierarchical": Hierarchical()}
"""The algorithms that have steps of their own."""
NAMES = (*TABLE, backend.NAME)
"""All that ``get`` knows."""


def get(spec: str) -> Collective:
    """Return the algorithm that ``spec`` names, such as ``ring`` or ``hierarchical:4,ring+star``.

    Raises ``SpecError``.
    """
    if isinstance(spec, str) and spec in TABLE:
        return TABLE[spec]
    if spec == backend.NAME:
        return backend
    if isinstance(spec, str) and spec.startswith("hierarchical:"):
        return Hierarchical.parse(spec)
    raise SpecError(f"no algorithm is called {shown(spec)}; choose one of {', '.join(sorted(NAMES))}")
