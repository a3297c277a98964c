"""The settings of an automatic choice: thresholds, the user's settings, and the front end's rules."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, TypeVar

from gradwire.codecs import DEFAULT_CODEC, FREE_OF_SCALE, Codec, Identity, codec_of
from gradwire.codecs.spec import is_real
from gradwire.collectives import backend
from gradwire.errors import refuse, shown
from gradwire.fields import ABOVE_ZERO
from gradwire.plan import Plan
from gradwire.planner.candidates import ALGORITHMS

if TYPE_CHECKING:
    from gradwire.links.base import Link

T = TypeVar("T")


def _of(value: T, unit: str, why: str, least: int = 1) -> T:
    """Return a dataclass field with a default, a unit, a reason, and the smallest valid whole number."""
    return field(default=value, metadata={"unit": unit, "why": why, "least": least})


@dataclass(frozen=True)
class AutoConfig:
    """The thresholds of an automatic choice; the defaults are for training runs of minutes or more.

    Each field's metadata contains its ``unit`` and, as ``why``, the reason for its value. ``make docs``
    writes a table of the fields into build/docs/auto.html, in place of a comment in docs/auto.md.

    Raises
    ------
    SpecError
        If a value isn't a number above 0, or if a count isn't a whole number.
    """

    # The times of choices and checks
    warm_up_steps: int = _of(
        5, "steps", "The first step is slow; the other steps give step times and a sample.", least=2
    )
    window_steps: int = _of(20, "steps", "A median of this many steps hides a pause for evaluation.")
    resample_steps: int = _of(
        240, "steps", "Gradients change slowly. A multiple of window_steps; the longest delay of a choice."
    )
    patience_steps: int = _of(60, "steps", "More frequent choices would cost more than they gain.")
    most_patience_steps: int = _of(960, "steps", "The patience doubles with each choice, up to this value.")
    quiet_steps: int = _of(500, "steps", "A run that is stable this long returns to its first patience.")
    early_share_of_patience: float = _of(
        0.25, "share of the patience", "A choice due to gradients waits less, because gradients change fast."
    )
    changed_step_share: float = _of(
        0.25, "share of the shorter step", "A smaller change of the step time seldom changes the best plan."
    )

    # Trials of plans
    turn_steps: int = _of(5, "steps", "The first step of a turn allocates buffers, and isn't timed.")
    most_trials: int = _of(4, "plans", "More trials cost more steps than the better plan saves.")
    behind_ratio: float = _of(
        1.25,
        "times the fastest plan's time to the loss",
        "Trials of slow plans cost the most and add the least information.",
    )
    trial_share: float = _of(
        0.1, "share of the window's time", "A better plan would seldom make up for a larger cost."
    )
    trial_window_steps: int = _of(100, "steps", "Trials must not make short runs much longer.")
    most_equal_share: float = _of(
        0.15, "share of a step", "Larger differences are real, however much step times scatter."
    )
    chance_ratio: float = _of(
        2.0, "times half the interquartile range", "One in eight pairs of equally fast plans differs by more."
    )
    close_ratio: float = _of(
        1.5, "times the least expected time", "Predictions are off by this much if hosts share cores."
    )
    closer_ratio: float = _of(
        1.25,
        "times the least expected time",
        "Other codecs mostly send more bytes, so they are tried only if nearly as fast.",
    )
    exposed_share: float = _of(
        0.1, "share of a step", "If computation hides almost all communication, plans are equally fast."
    )

    # The comparison of two plans
    stay_share: float = _of(0.05, "share of time or bytes", "A smaller gain isn't worth a change of plan.")
    equal_share: float = _of(
        0.05, "share of a step", "Step times aren't more precise than this; byte counts are exact."
    )
    less_noise_share: float = _of(
        0.9, "share of the variance", "If plans send equal bytes, a tenth less noise is a real advantage."
    )
    least_saved_share: float = _of(
        0.001, "share of the steps", "Less noise must save at least this share of the steps."
    )
    most_slack: float = _of(0.9, "share of a step", "Mixing codecs changes a step time by less than this.")
    rounding: float = _of(1 + 1e-6, "factor", "A saved relative error was rounded when it was written.")

    # The quality contract
    back_share: float = _of(
        0.75,
        "share of the limit",
        "A parameter returns to the plan's codec only with this margin, to avoid oscillation.",
    )
    few_bytes_share: float = _of(
        0.01,
        "share of all bytes",
        "For fewer bytes, frames of another codec cost more than compression saves.",
    )
    wide_share: float = _of(
        0.1,
        "share of the values",
        "If more values need a more precise codec, one codec for all may be better.",
    )
    most_excepted_share: float = _of(
        0.8, "share of the values", "A codec for less than a fifth of the values isn't worth its exchange."
    )
    far_less_share: float = _of(
        0.8, "share of the present plan's bytes", "Fewer bytes than this are a reason to choose again."
    )

    # The division of work over steps
    paced_share: float = _of(
        0.04, "share of a step", "At first, measurements and the search slow training by at most this share."
    )
    paced_doubling_steps: int = _of(
        50, "steps", "The share doubles after each interval, so that a choice ends even on a busy machine."
    )
    most_paced_steps: int = _of(150, "steps", "After this many steps, the remaining work runs in one step.")
    unhurried_ratio: int = _of(
        8, "times as many steps", "Until work that isn't urgent is done, the present plan is good enough."
    )
    meeting_steps: int = _of(
        10, "steps", "The longest interval between comparisons of progress; a comparison takes a latency."
    )

    # The search for a plan
    most_algorithms: int = _of(
        3, "algorithms", "Other algorithms with the same codec are slower, according to their lower bounds."
    )
    plans_at_once: int = _of(8, "plans", "Listing or bounding one plan takes about 0.1 ms.")
    most_resized: int = _of(2, "plans", "Segment sizes change step times less than other parts of a plan.")

    # Samples of gradients
    sample_count: int = _of(
        1 << 17, "floats of a bucket", "Encoding more floats with each codec would take too much of a step."
    )
    least_sample_count: int = _of(
        1 << 9, "floats of a parameter", "A smaller sample of a small parameter would show little."
    )
    slice_quantile: float = _of(
        0.9, "share of the rows or columns", "The norm of a matrix hides columns with much smaller norms."
    )
    slice_room: float = _of(
        2.5,
        "times the parameter's limit",
        "Rows and columns with larger errors hardly learn; coarse rounding doesn't raise the loss.",
    )
    compared_count: int = _of(
        1 << 16, "floats of a drawn bucket", "DDP's exact average sends this many floats uncompressed."
    )
    least_compared_count: int = _of(
        1 << 13, "floats of a drawn bucket", "An eighth of a small bucket would be too small a sample."
    )
    sampled_nbytes: int = _of(
        25 << 20, "bytes", "A whole gradient is sampled in parts as large as DDP's first buckets."
    )

    # Measurements of codecs, frames and links
    cost_repeats: int = _of(3, "repeats", "This many repeats distinguish codecs; more would delay attaching.")
    longest_rest_s: float = _of(0.001, "seconds", "As between segments; longer rests would delay attaching.")
    timed_count: int = _of(1 << 16, "floats", "For more floats, a codec's time per float is the same.")
    line_pieces: int = _of(
        8, "pieces of work", "The first pieces find the round-trip time and the size of a train."
    )
    duplex_pieces: int = _of(3, "pieces of work", "A train's size is known, and three values have a median.")
    piece_s: float = _of(
        0.001, "seconds", "A shorter train of messages may pass as a whole in a rate limiter's burst."
    )
    longest_piece_s: float = _of(0.02, "seconds", "A longer train of messages is no more precise.")
    attaching_piece_s: float = _of(
        0.005, "seconds", "While a run attaches, no step waits, so trains may be longer."
    )
    attaching_gather_s: float = _of(
        0.02,
        "seconds",
        "If ranks take longer to exchange a number, links are measured in pieces between later steps.",
    )
    most_saved_decisions: int = _of(
        32, "decisions", "A plan may name thousands of parameters, and a checkpoint's message is limited."
    )
    most_file_nbytes: int = _of(1 << 24, "bytes", "No decision is this large.")

    # Estimates of a step with gradwire; estimates for an attached model use the defaults
    estimate_steps: int = _of(5, "steps", "The median of fewer steps isn't stable.")
    estimate_repeats: int = _of(3, "repeats", "Training waits while codecs are measured.")
    careful_repeats: int = _of(9, "repeats", "No training waits, so there is time for stable measurements.")
    excerpt_count: int = _of(1 << 20, "floats of a step", "An excerpt is kept in memory and on disk.")
    excerpt_steps: int = _of(4, "steps", "This many excerpts are enough to estimate gradient noise.")
    noisy_share: float = _of(
        0.15, "share of the gain", "A less certain gain isn't worth reporting as a number."
    )
    part_nbytes: int = _of(
        1 << 18, "bytes", "A part spans as few parameters as a segment; a larger part would compress better."
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value, expected, least = getattr(self, each.name), type(each.default), each.metadata["least"]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            kind, fits = "a number above 0", is_number and value > 0
            if expected is int:
                kind = f"a whole number of at least {least}"
                fits = is_number and isinstance(value, int) and value >= least
            if not fits:
                refuse(f"{kind} for {each.name}", value, f"omit {each.name} to use {each.default}")

    @property
    def changed(self) -> str:
        """The fields that differ from the defaults, as text; empty if none differs."""
        pairs = ((each.name, getattr(self, each.name)) for each in fields(self))
        return ", ".join(f"{name}={value}" for name, value in pairs if value != getattr(DEFAULT, name))


DEFAULT = AutoConfig()


NAME = "auto"
CODECS = (
    *FREE_OF_SCALE,
    "ecsq:0.25",
    "ecsq:0.25,block=64",
    "ecsq:0.25,foot",
    "ecsq:0.5,sum=0.35",
    "ecsq:0.5,block=64,sum=0.35",
)
"""The default candidates: the planner's codecs, and codecs that send fewer bytes.

The latter send the fewest bytes with which a GPT's loss rises by at most 0.2 % (docs/auto.md). Small blocks
are for parameters whose rows differ in scale, and ``foot`` is for parameters whose columns differ in scale.
"""
PLACE = "GRADWIRE_AUTO"
"""The environment variable for the path of the decision file, used if ``Auto`` has no path."""


@dataclass(frozen=True)
class Auto:
    """The settings of a run that chooses its plan, and chooses again if the network or the gradients change.

    The first steps use a safe codec, while gradients, computation, links, and codecs are measured. Then all
    ranks switch in the same step to the plan with the shortest expected time to the same loss.

    Parameters
    ----------
    max_lost_norm
        The largest relative error (in the l2 norm) of a parameter's averaged gradient that an exchange may
        cause; above 0 and at most 1. Parameters for which a codec exceeds this limit get a more precise
        codec. A codec that meets the limit for less than a fifth of the values is not a candidate.
    codecs
        Candidate codecs or their specs, in addition to no compression; by default, codecs with a known
        relative error. All codecs are used without error feedback.
    path
        The file of the decision, with which the next run with the same settings starts; by default, the path
        in the environment variable ``GRADWIRE_AUTO``, if any. Only rank 0 reads and writes the file.
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
    config: AutoConfig = field(default_factory=lambda: DEFAULT, repr=False)

    def __post_init__(self) -> None:
        if not is_real(self.max_lost_norm, ABOVE_ZERO, 1.0):
            remedy = "omit max_lost_norm to use 0.2"
            refuse("a max_lost_norm above 0 and at most 1", self.max_lost_norm, remedy)
        if isinstance(self.codecs, str) or not isinstance(self.codecs, Sequence):
            refuse("a list of codecs or their specs for codecs", self.codecs, f"pass [{shown(self.codecs)}]")
        if not isinstance(self.config, AutoConfig):
            refuse("an AutoConfig for config", self.config, "pass an AutoConfig, or omit config")
        for each in self.candidates:
            Plan.of(each)

    @property
    def candidates(self) -> tuple[Codec, ...]:
        """The candidate codecs, no compression first."""
        found = (codec_of(each, "codecs") for each in self.codecs)
        return tuple(dict.fromkeys((Identity(), *(each for each in found if each is not None))))

    @property
    def place(self) -> str | None:
        """The path of the decision file; None without one."""
        return os.environ.get(PLACE) or None if self.path is None else os.fspath(self.path)

    @property
    def first_plan(self) -> Plan:
        """The plan of the first steps, with a codec that is safe for any model.

        This plan is also the default of ``attach_fsdp`` on two-dimensional meshes, where runs don't choose.
        """
        return Plan.of(DEFAULT_CODEC, residual=False)


def terms_of(settings: Auto) -> str:
    """Return the error limit, the candidates, and the changed thresholds as text."""
    terms = f"{float(settings.max_lost_norm)}, {', '.join(map(str, settings.candidates))}"
    changed = settings.config.changed
    return f"{terms}; {changed}" if changed else terms


@dataclass(frozen=True)
class CandidateRules:
    """The rules for the plans that a run may choose."""

    name: str  # in the key of saved decisions
    whole: bool = False  # whether all gradients are exchanged together, at the end of backward
    half: str | None = None  # "reduce" if each rank keeps a shard of the sum; None: the whole all-reduce
    algorithms: tuple[str, ...] = ALGORITHMS  # in order of preference
    has_exceptions: bool = True  # whether parameters may have a codec other than the plan's
    places: bool = True  # whether each parameter begins a new block
    pipeline: int = 1  # the number of steps in flight
    has_lanes: bool = False  # whether several buckets may be exchanged concurrently

    @property
    def overlaps(self) -> bool:
        """Whether buckets are exchanged while backward computes the next buckets."""
        return not self.whole and self.half is None

    def over(self, link: Link, *, has_group: bool = True) -> CandidateRules:
        """Return the rules without algorithms that ``link`` lacks, and without lanes if there is no group."""
        may = (each for each in self.algorithms if each != backend.NAME or link.HAS_ALL_REDUCE)
        return replace(self, algorithms=tuple(may), has_lanes=self.has_lanes and has_group)

    def most_excepted(self, config: AutoConfig) -> float:
        """Return the largest share of the values that may have a codec other than the plan's."""
        return config.most_excepted_share if self.has_exceptions else 0.0


BUCKETS = CandidateRules("buckets", has_lanes=True)
"""The rules for DDP: each bucket is exchanged as soon as its gradients are computed."""
SHARDS = CandidateRules("shards", half="reduce", algorithms=("ring",), has_exceptions=False, places=False)
"""The rules for FSDP: backward waits for the reduction of each module's gradients, with one codec."""


def whole(pipeline: int) -> CandidateRules:
    """Return the rules for gradients exchanged as one bucket, with ``pipeline`` steps in flight."""
    return CandidateRules(f"a pipeline of {pipeline}", whole=True, pipeline=pipeline)
