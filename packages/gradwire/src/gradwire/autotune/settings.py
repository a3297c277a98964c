"""The user's settings of an automatic choice."""

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
"""The default candidates: the planner's codecs, and codecs with fewer bytes. Those have the fewest bytes
that raise a GPT's loss by at most 0.2 % (docs/auto.md). Small blocks are for parameters whose rows differ in
scale, and ``foot`` is for parameters whose columns do."""
PLACE = "GRADWIRE_AUTO"
"""The environment variable with the path of the file of decisions, used if ``Auto`` has no path."""


@dataclass(frozen=True)
class Auto:
    """The settings of a run that chooses its plan, and chooses again if the network or the gradients change.

    The first steps use a safe codec, while gradients, computation, links, and codecs are measured. Then all
    ranks switch in the same step to the plan with the shortest expected time to the same loss.

    Parameters
    ----------
    max_lost_norm
        The largest relative error (in the l2 norm) of a parameter's averaged gradient that an exchange may
        cause; above 0 and at most 1. Parameters for which a codec exceeds it get a more precise codec. A
        codec that meets it for less than a fifth of the values is not a candidate.
    codecs
        Candidate codecs or their specs, besides no compression; by default, codecs with a known relative
        error. All codecs are used without error feedback.
    path
        The file of the decision, with which the next run with the same settings starts; by default, the path
        in the environment variable ``GRADWIRE_AUTO``, if any. Only rank 0 reads and writes it.
    config
        The thresholds of the choice: when to measure, which plans to try, and which plan is better.

    Raises
    ------
    SpecError
        If a value is invalid.
    """

    max_lost_norm: float = 0.2
    codecs: Sequence[Codec | str] = CODECS
    path: str | os.PathLike[str] | None = None
    config: AutoConfig = field(default_factory=default, repr=False)

    def __post_init__(self) -> None:
        if not is_real(self.max_lost_norm, 0.0, 1.0) or self.max_lost_norm == 0:
            raise SpecError(
                f"expected a max_lost_norm above 0 and at most 1, got {shown(self.max_lost_norm)}; omit it "
                "to use 0.2"
            )
        if isinstance(self.codecs, str) or not isinstance(self.codecs, Sequence):
            raise SpecError(
                f"expected a list of codecs or their specs for codecs, got {shown(self.codecs)}; pass "
                f"[{shown(self.codecs)}]"
            )
        if not isinstance(self.config, AutoConfig):
            raise SpecError(f"expected an AutoConfig for config, got {shown(self.config)}; omit it")
        for each in self.candidates:
            Plan.of(each)

    @property
    def candidates(self) -> tuple[Codec, ...]:
        """The candidate codecs, no compression first."""
        found = (codec_of(each, "codecs") for each in self.codecs)
        return tuple(dict.fromkeys((Identity(), *(each for each in found if each is not None))))

    @property
    def place(self) -> str | None:
        """The path of the file of decisions; None without one."""
        return os.environ.get(PLACE) or None if self.path is None else os.fspath(self.path)

    @property
    def first_plan(self) -> Plan:
        """The plan of the first steps, with a codec that is safe for any model.

        It is also the default plan of ``attach_fsdp`` on two-dimensional meshes, where runs don't choose.
        """
        return Plan.of(DEFAULT_CODEC, residual=False)


def terms_of(settings: Auto) -> str:
    """Return the error limit, the candidates, and the changed thresholds as text."""
    terms = f"{float(settings.max_lost_norm)}, {', '.join(map(str, settings.candidates))}"
    changed = settings.config.changed
    return f"{terms}; {changed}" if changed else terms
