"""Who sends what to whom: algorithms as data, one module each; ``step`` has the words that they speak."""

from __future__ import annotations

from gradwire.collectives import butterfly, ring, star, tree
from gradwire.collectives.step import Collective, Step
from gradwire.errors import SpecError

__all__ = ["TABLE", "Collective", "Step", "get"]

TABLE: dict[str, Collective] = {"ring": ring, "star": star, "tree": tree, "butterfly": butterfly}


def get(name: str) -> Collective:
    """Return the algorithm called ``name``. Raises ``SpecError``."""
    if not isinstance(name, str) or name not in TABLE:
        raise SpecError(f"no algorithm is called {name!r}; choose one of {', '.join(sorted(TABLE))}")
    return TABLE[name]
