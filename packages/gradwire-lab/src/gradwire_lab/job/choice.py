"""The settings of a run that chooses its plan and whose number of steps is known."""

from __future__ import annotations

from dataclasses import replace

from gradwire.autotune import Auto
from gradwire.autotune.settings import DEFAULT

PART = 4
"""The divisor for the part of a run in which it chooses a plan: a quarter, after the warm-up."""


def auto_within(most_steps: int | None) -> Auto:
    """Return the settings of a run of at most ``most_steps`` that chooses early, however busy the machine is.

    Without this limit, a short run on a busy machine would end before its choice.
    """
    most = DEFAULT.most_paced_steps
    if most_steps is not None:
        most = min(most, max(most_steps // PART, DEFAULT.meeting_steps))
    return Auto(config=replace(DEFAULT, most_paced_steps=most))
