"""Where each number of an exhibit comes from: its paper, a calibration, or a choice with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Source(StrEnum):
    """What kind of origin a number has."""

    PAPER = "published"
    CALIBRATED = "calibrated on"
    CHOSEN = "chosen"


@dataclass(frozen=True)
class Origin:
    """The origin of an option or a constant.

    Attributes
    ----------
    source
        What kind of origin it is.
    where
        The place in the paper, or the reason of a choice.
    """

    source: Source
    where: str

    def __str__(self) -> str:
        return (
            f"{self.source} {self.where}" if self.source is not Source.PAPER else f"published, {self.where}"
        )


Origins = Mapping[str, Origin]
"""Origins by the name of an option or of a constant."""


def paper(place: str) -> Origin:
    """Return the origin of a number that a paper prints at a place."""
    return Origin(Source.PAPER, place)


def calibrated(place: str) -> Origin:
    """Return the origin of a number that was set so that a published figure is met."""
    return Origin(Source.CALIBRATED, place)


def chosen(reason: str) -> Origin:
    """Return the origin of a number that neither a paper nor a measured figure sets."""
    return Origin(Source.CHOSEN, reason)


RUN_TIME = chosen("for run time")
TWO_CORES = chosen("so that ranks that share two cores keep up with their links")
FLOATING = chosen("for rounding of floating point")


def origins(**named: Origin) -> Origins:
    """Return origins by name, read-only."""
    return MappingProxyType(named)
