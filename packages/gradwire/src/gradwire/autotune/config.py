"""Every threshold of an automatic choice, with its unit and the reason for its value."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TypeVar

from gradwire.errors import SpecError, shown

T = TypeVar("T")


def _of(value: T, unit: str, why: str, least: int = 1) -> T:
    """Return a field with a default value, its unit, the reason for it, and the least whole number."""
    return field(default=value, metadata={"unit": unit, "why": why, "least": least})


@dataclass(frozen=True)
class AutoConfig:
    """The thresholds of an automatic choice; the defaults suit trainings of minutes and more.

    Each field's metadata has its ``unit`` and ``why`` it has its value. ``make docs`` writes them as a table
    into build/docs/auto.html, where docs/auto.md has a comment alone.

    Raises
    ------
    SpecError
        For a value that isn't a number above 0, or isn't whole where a count is expected.
    """

    # When to choose a plan, and when to look at the run
    warm_up_steps: int = _of(
        5, "steps", "The first step is slow; step times and a sample need the others.", least=2
    )
    window_steps: int = _of(20, "steps", "In a median of this many steps, an evaluation doesn't show.")
    resample_steps: int = _of(240, "steps", "Samples cost time, and gradients change slowly.")
    patience_steps: int = _of(60, "steps", "Choices closer together would cost more than they gain.")
    most_patience_steps: int = _of(960, "steps", "The patience doubles with each choice, up to this.")
    quiet_steps: int = _of(500, "steps", "After this many steps beyond its patience, a run is calm again.")
    early_share_of_patience: float = _of(
        0.25, "share of the patience", "Gradients change faster than networks early in a training."
    )
    changed_step_share: float = _of(
        0.25,
        "share of the shorter step",
        "Faster steps count as slower ones do; a smaller change seldom changes the best plan.",
    )

    # Trials of plans
    turn_steps: int = _of(5, "steps", "The first step of a turn has new buffers, and doesn't count.")
    most_trials: int = _of(4, "plans", "More trials cost more steps than the better plan saves.")
    behind_ratio: float = _of(
        1.25, "times the fastest plan's time to the loss", "Slow plans cost the most, and teach the least."
    )
    most_equal_share: float = _of(
        0.15, "share of a step", "Plans that differ by more aren't equal, however much steps scatter."
    )
    chance_ratio: float = _of(
        2.0, "times the quartiles' distance", "One pair of equal plans in eight differs by more."
    )
    close_ratio: float = _of(
        1.5, "times the least expected time", "Predictions are off by this much where hosts share cores."
    )
    closer_ratio: float = _of(
        1.25, "times the least expected time", "Most other codecs and segments send more bytes."
    )
    exposed_share: float = _of(
        0.1, "share of a step", "If computation hides the rest, no plan is faster than another."
    )

    # Which of two plans is better
    stay_share: float = _of(
        0.05, "share of time or bytes", "A smaller gain isn't worth another plan than the present one."
    )
    equal_share: float = _of(0.05, "share of a step", "Times are no more certain, and bytes are sure.")
    less_noise_share: float = _of(
        0.9, "share of the variance", "Of equally lean plans, a tenth less noise is a real advantage."
    )
    least_saved_share: float = _of(0.001, "share of the steps", "Less noise has to save this many steps.")
    most_slack: float = _of(0.9, "share of a step", "A mixture of codecs can't take all of a step's time.")
    rounding: float = _of(1 + 1e-6, "factor", "A saved error was rounded when it was written.")

    # The quality contract
    back_share: float = _of(
        0.75, "share of the limit", "A parameter gets the plan's codec back with this much room to spare."
    )
    few_bytes_share: float = _of(
        0.01, "share of all bytes", "An exchange of its own costs more than compression saves here."
    )
    wide_share: float = _of(
        0.1, "share of the values", "If more values have a gentler codec, one codec may suit them all."
    )
    most_excepted_share: float = _of(
        0.8, "share of the values", "A codec that suits fewer values than the rest isn't worth its exchange."
    )
    far_less_share: float = _of(
        0.8, "share of the present plan's bytes", "Fewer bytes than this are a reason to choose anew."
    )

    # Samples of gradients
    sample_count: int = _of(1 << 20, "floats of a bucket", "A copy of a large bucket would take memory.")
    slice_quantile: float = _of(
        0.9, "share of the rows or columns", "The norm of a matrix hides columns that are much smaller."
    )
    slice_room: float = _of(
        2.5,
        "times the parameter's limit",
        "Rows and columns that lose most of their norm hardly learn; coarse rounding costs no loss.",
    )
    compared_count: int = _of(
        1 << 18, "floats of a drawn bucket", "The exact average costs the bytes of these floats."
    )
    least_compared_count: int = _of(
        1 << 13, "floats of a drawn bucket", "An eighth of a small bucket would say little."
    )
    sampled_nbytes: int = _of(
        25 << 20, "bytes", "A whole gradient is sampled in parts as large as DDP's first buckets."
    )

    # Measurements of codecs, frames and links
    cost_repeats: int = _of(3, "repeats", "It tells codecs apart, and training waits meanwhile.")
    line_effort: tuple[tuple[int, ...], int, float] = _of(
        ((1, 1 << 16, 1 << 17, 1 << 19), 2, 0.001),
        "sizes in bytes, repeats, seconds",
        "The sizes suit slow and fast links; after one that takes 5 ms, none follows.",
    )
    most_file_nbytes: int = _of(
        1 << 24, "bytes", "No decision is as large, and ranks exchange lengths as float32."
    )

    # Estimates of a step with gradwire; those of an attached model use the defaults
    estimate_steps: int = _of(5, "steps", "Fewer steps have no steady median.")
    estimate_repeats: int = _of(3, "repeats", "Training waits while codecs are measured.")
    careful_repeats: int = _of(9, "repeats", "A machine without a training has time for steady figures.")
    excerpt_count: int = _of(1 << 20, "floats of a step", "An excerpt is kept in memory and on disk.")
    excerpt_steps: int = _of(4, "steps", "This many excerpts show the noise of gradients.")
    noisy_share: float = _of(0.15, "share of the gain", "A less certain gain isn't worth a number.")
    part_nbytes: int = _of(
        1 << 18, "bytes", "It has as few parameters as a segment: one scale for many takes fewer bytes."
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value, expected, least = getattr(self, each.name), type(each.default), each.metadata["least"]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            kind, fits = "sizes, repeats, and seconds", isinstance(value, tuple) and len(value) == 3
            if expected is int:
                kind = f"a whole number from {least} up"
                fits = is_number and isinstance(value, int) and value >= least
            elif expected is float:
                kind, fits = "a number above 0", is_number and value > 0
            if not fits:
                raise SpecError(
                    f"expected {kind} for {each.name}, got {shown(value)}; leave it out for {each.default}"
                )

    @property
    def changed(self) -> str:
        """The fields that differ from the defaults, as text; empty if none does."""
        usual = default()
        pairs = ((each.name, getattr(self, each.name)) for each in fields(self))
        return ", ".join(f"{name}={value}" for name, value in pairs if value != getattr(usual, name))


DEFAULT = AutoConfig()
"""The thresholds of a run that passes none."""


def default() -> AutoConfig:
    """Return the thresholds of a run that passes none."""
    return DEFAULT
