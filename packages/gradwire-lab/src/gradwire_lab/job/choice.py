"""The autotuner's settings for a run with a known number of steps."""

from __future__ import annotations

from dataclasses import replace

from gradwire.autotune import Auto
from gradwire.autotune.settings import DEFAULT

PART = 4
"""The divisor of a run's steps: a plan is chosen within a quarter of the run, after the warm-up."""


def auto_within(most_steps: int | None) -> Auto:
    """Return settings that make a run of at most ``most_steps`` choose a plan early, even on a busy machine.

    With the default settings, a short run on a busy machine would end before its choice.
    """
    most = DEFAULT.most_paced_steps
    if most_steps is not None:
        most = min(most, max(most_steps // PART, DEFAULT.meeting_steps))
    return Auto(config=replace(DEFAULT, most_paced_steps=most))
