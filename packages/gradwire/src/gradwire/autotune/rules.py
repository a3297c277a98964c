"""The rules for the plans that a run may choose, by how it exchanges its gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradwire.autotune.config import AutoConfig
from gradwire.collectives import backend
from gradwire.links.base import Link
from gradwire.planner.candidates import ALGORITHMS


@dataclass(frozen=True)
class CandidateRules:
    """The rules for the plans that a run may choose, by how it exchanges its gradients.

    Attributes
    ----------
    name
        The name in the file of decisions.
    whole
        Whether all gradients go out together, at the end of backward.
    half
        The half of a ring that a gradient goes through, ``"reduce"`` where each rank keeps a shard of the
        sum; None for all of the plan's algorithm.
    algorithms
        The algorithms that may be chosen, the preferred first.
    has_exceptions
        Whether parameters may have another codec than the rest.
    places
        Whether parameters begin blocks of their own, where their codec has blocks.
    pipeline
        The steps under way at once.
    """

    name: str
    whole: bool = False
    half: str | None = None
    algorithms: tuple[str, ...] = ALGORITHMS
    has_exceptions: bool = True
    places: bool = True
    pipeline: int = 1

    @property
    def overlaps(self) -> bool:
        """Whether buckets go out while backward computes the next ones; otherwise it waits for each."""
        return not self.whole and self.half is None

    def over(self, link: Link) -> CandidateRules:
        """Return the rules without algorithms that ``link`` cannot run."""
        may = (each for each in self.algorithms if each != backend.NAME or link.HAS_ALL_REDUCE)
        return replace(self, algorithms=tuple(may))

    def most_excepted(self, config: AutoConfig) -> float:
        """Return the share of the values that may have another codec than the rest."""
        return config.most_excepted_share if self.has_exceptions else 0.0


BUCKETS = CandidateRules("buckets")
"""DDP's: each goes out once backward has it ready."""
SHARDS = CandidateRules("shards", half="reduce", algorithms=("ring",), has_exceptions=False, places=False)
"""FSDP's: each module's gradients are reduced by themselves, with one codec, while backward waits."""


def whole(pipeline: int) -> CandidateRules:
    """Return the rules for gradients that go out whole, with ``pipeline`` steps under way at once."""
    return CandidateRules(f"a pipeline of {pipeline}", whole=True, pipeline=pipeline)
