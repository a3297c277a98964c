"""The user's part of an automatic choice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradwire.autotune.config import AutoConfig, default
from gradwire.codecs import DEFAULT_CODEC, FREE_OF_SCALE, Codec, Identity, codec_of
from gradwire.codecs.spec import is_real
from gradwire.errors import SpecError, shown
from gradwire.plan import Plan

NAME = "auto"
CODECS = (
    *FREE_OF_SCALE,
    "ecsq:0.25",
    "ecsq:0.25,block=64",
    "ecsq:0.25,foot",
    "ecsq:0.5,sum=0.35",
    "ecsq:0.5,block=64,sum=0.35",
)
"""The codecs that may be chosen by default: the planner's, and those with the fewest bytes that cost a GPT no
more than 0.2 % of its loss (docs/auto.md). Small blocks suit parameters whose rows differ in scale; ``foot``
suits those whose columns do."""
PLACE = "GRADWIRE_AUTO"
"""The environment variable that names the file of decisions, where ``Auto`` names none."""


@dataclass(frozen=True)
class Auto:
    """Let training choose its plan by itself, and choose anew when the network or the gradients change.

    The first steps go through a safe codec, while gradients, computation, line, and codecs are measured. Then
    all ranks take the plan with the least expected time to the same loss, in the same step.

    Parameters
    ----------
    max_lost_norm
        The largest share of a parameter's averaged gradient, in the l2 norm, that an exchange may lose; above
        0 and at most 1. Parameters of which a codec would lose more get gentler ones, and a codec that suits
        less than a fifth of the values is left out.
    codecs
        Codecs or their specs that may be chosen, besides no compression; by default those whose error is a
        known share of the values. Codecs that keep residuals are used without them.
    path
        A file for the decision, from which the next run with the same settings starts; by default the one
        that the environment variable ``GRADWIRE_AUTO`` names, if any. Rank 0 alone reads and writes it.
    config
        The thresholds of the choice: when to measure, what to try, and what is better.

    Raises
    ------
    SpecError
        For an invalid value.
    """

    max_lost_norm: float = 0.2
    codecs: Sequence[Codec | str] = CODECS
    path: str | os.PathLike[str] | None = None
    config: AutoConfig = field(default_factory=default, repr=False)

    def __post_init__(self) -> None:
        if not is_real(self.max_lost_norm, 0.0, 1.0) or self.max_lost_norm == 0:
            raise SpecError(
                f"max_lost_norm must be above 0 and at most 1, but is {shown(self.max_lost_norm)}"
            )
        if isinstance(self.codecs, str) or not isinstance(self.codecs, Sequence):
            raise SpecError(
                f"codecs must be a list of codecs or their specs, but is {shown(self.codecs)}; write "
                f"[{shown(self.codecs)}]"
            )
        if not isinstance(self.config, AutoConfig):
            raise SpecError(f"expected an AutoConfig for config, got {shown(self.config)}; leave it out")
        for each in self.candidates:
            Plan.of(each)

    @property
    def candidates(self) -> tuple[Codec, ...]:
        """The codecs that may be chosen, no compression first."""
        found = (codec_of(each, "codecs") for each in self.codecs)
        return tuple(dict.fromkeys((Identity(), *(each for each in found if each is not None))))

    @property
    def place(self) -> str | None:
        """The path of the file of decisions."""
        return os.environ.get(PLACE) or None if self.path is None else os.fspath(self.path)

    @property
    def first_plan(self) -> Plan:
        """The plan of the first steps, with a codec that is safe for any model.

        By default ``attach_fsdp`` keeps it for good on meshes of two dimensions, where no run chooses.
        """
        return Plan.of(DEFAULT_CODEC, residual=False)


def terms_of(settings: Auto) -> str:
    """Return the limit, the candidates, and the changed thresholds of a choice as text."""
    terms = f"{float(settings.max_lost_norm)}, {', '.join(map(str, settings.candidates))}"
    changed = settings.config.changed
    return f"{terms}; {changed}" if changed else terms
