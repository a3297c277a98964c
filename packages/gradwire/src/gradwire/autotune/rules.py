"""The rules for the plans that a run may choose, for each kind of front end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradwire.autotune.settings import AutoConfig
from gradwire.collectives import backend
from gradwire.links.base import Link
from gradwire.planner.candidates import ALGORITHMS


@dataclass(frozen=True)
class CandidateRules:
    """The rules for the plans that a run may choose.

    Attributes
    ----------
    name
        The name in the key of saved decisions.
    whole
        Whether all gradients are exchanged together, at the end of backward.
    half
        The half of a ring all-reduce that gradients use: ``"reduce"`` if each rank keeps a shard of the sum,
        None for the plan's whole algorithm.
    algorithms
        The algorithms that may be chosen, in order of preference.
    has_exceptions
        Whether parameters may have a codec other than the plan's.
    places
        Whether each parameter begins a new block, if its codec has blocks.
    pipeline
        The number of steps in flight.
    has_lanes
        Whether several buckets may be exchanged at once.
    """

    name: str
    whole: bool = False
    half: str | None = None
    algorithms: tuple[str, ...] = ALGORITHMS
    has_exceptions: bool = True
    places: bool = True
    pipeline: int = 1
    has_lanes: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether buckets are exchanged while backward computes the next ones."""
        return not self.whole and self.half is None

    def over(self, link: Link, *, has_group: bool = True) -> CandidateRules:
        """Return the rules without the algorithms that ``link`` cannot run, or lanes without a group."""
        may = (each for each in self.algorithms if each != backend.NAME or link.HAS_ALL_REDUCE)
        return replace(self, algorithms=tuple(may), has_lanes=self.has_lanes and has_group)

    def most_excepted(self, config: AutoConfig) -> float:
        """Return the largest share of the values that may have a codec other than the plan's."""
        return config.most_excepted_share if self.has_exceptions else 0.0


BUCKETS = CandidateRules("buckets", has_lanes=True)
"""The rules for DDP: each bucket is exchanged as soon as its gradients are computed."""
SHARDS = CandidateRules("shards", half="reduce", algorithms=("ring",), has_exceptions=False, places=False)
"""The rules for FSDP: each module's gradients are reduced separately, with one codec; backward waits."""


def whole(pipeline: int) -> CandidateRules:
    """Return the rules for gradients exchanged as one bucket, with ``pipeline`` steps in flight."""
    return CandidateRules(f"a pipeline of {pipeline}", whole=True, pipeline=pipeline)
