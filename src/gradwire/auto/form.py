"""The forms in which runs exchange gradients, as far as the choice of a plan depends on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradwire.auto.quality.contract import MOST_EXCEPTED
from gradwire.collectives import backend
from gradwire.links.base import Link
from gradwire.planner.search.candidates import ALGORITHMS


@dataclass(frozen=True)
class Form:
    """How a run exchanges its gradients.

    Attributes
    ----------
    name
        What tells it from others in the file of decisions.
    whole
        Whether all gradients go out together, at the end of backward.
    half
        The half of a ring that a gradient goes through, ``"reduce"`` where each rank keeps a shard of the
        sum; None for all of the plan's algorithm.
    algorithms
        What may be chosen.
    most_excepted
        The share of the values that may have another codec than the rest.
    places
        Whether parameters begin blocks of their own, where their codec wants that.
    pipeline
        The steps under way at once.
    """

    name: str
    whole: bool = False
    half: str | None = None
    algorithms: tuple[str, ...] = ALGORITHMS
    most_excepted: float = MOST_EXCEPTED
    places: bool = True
    pipeline: int = 1

    def over(self, link: Link) -> Form:
        """Return the form without algorithms that ``link`` cannot run."""
        may = (each for each in self.algorithms if each != backend.NAME or link.HAS_ALL_REDUCE)
        return replace(self, algorithms=tuple(may))


BUCKETS = Form("buckets")
"""DDP's: each goes out once backward has it ready."""
SHARDS = Form("shards", half="reduce", algorithms=("ring",), most_excepted=0.0, places=False)
"""FSDP's: each module's gradients are reduced by themselves, with one codec, while backward waits."""


def whole(pipeline: int) -> Form:
    """Return the form of gradients that go out whole, with so many steps under way at once."""
    return Form(f"a pipeline of {pipeline}", whole=True, pipeline=pipeline)
