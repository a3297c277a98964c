"""The faults of the matrix as data, one row each.

What the names in ``act`` do: see ``wire`` (to a frame), ``calls`` (to a call), ``rank`` (to a process),
``store`` (to the store at which ranks meet) and ``world`` (outside).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any


class Moment(Enum):
    """When a fault strikes."""

    ATTACH = "while the ranks set up"
    STEP = "before a step"
    FRAME = "at a frame within a step"
    CALL = "at a call of an exchange within a step"
    CHOICE = "at a frame while the ranks choose a plan"
    STORE = "at the store"
    OUTSIDE = "from another process"


class End(Enum):
    """How the run ends on the ranks that are left."""

    ERROR = "error"  # each raises a named error, and what it trained is that of its last complete step
    RIGHT = "right"  # each ends with the weights of an undisturbed run
    NAN = "nan"  # one weight is NaN, on every rank, and no other


class Victim(Enum):
    """What becomes of the rank that the fault happens to."""

    RAISES = "raises"  # it goes the way of the others
    GONE = "gone"  # it gives no report
    FINISHES = "finishes"  # it ends its run without an error


@dataclass(frozen=True)
class Row:
    """One fault: ``says`` is a pattern for what at least one rank's error has to say of it.

    ``plan`` names one of ``methods.PLANS``; ``is_new`` says that it has not run on many nights yet, and
    ``is_nightly`` that it runs only where all methods do. ``part`` is the part of a choice that it strikes,
    one of ``PARTS``. ``patience`` multiplies the timeouts where no busy machine may turn them into an error.
    """

    name: str
    moment: Moment
    act: str
    says: str = ""
    end: End = End.ERROR
    victim: Victim = Victim.RAISES
    plan: str = ""
    is_new: bool = False
    is_nightly: bool = False
    part: str = ""
    patience: float = 1.0


PARTS = ("probe", "decision", "trial", "second decision")
"""Of a choice: lines are measured, plans compared, and some tried; steps that change ask for a second one."""

PATIENT = 5.0
_LOST = r"no progress within|[Cc]onnection|closed|reset"
_SILENT = r"torch's store at \S+ does not answer"
_OTHER_CALL = r"expected a frame of|oversized|out of order"
_DIFFER = r"expected the same (settings|options) on all ranks, but"

ROWS = [
    Row("killed in mid-step", Moment.FRAME, "kill", _LOST, victim=Victim.GONE),
    Row("killed between steps", Moment.STEP, "kill", _LOST, victim=Victim.GONE),
    Row("killed while attaching", Moment.ATTACH, "kill while connecting", _LOST, victim=Victim.GONE),
    Row("ended by an exception", Moment.STEP, "raise", _LOST, victim=Victim.GONE),
    Row("stopped in mid-step", Moment.FRAME, "stop", "no progress within"),
    Row("stopped between steps", Moment.STEP, "stop", "no progress within"),
    Row("a step left out", Moment.STEP, "skip", _LOST, victim=Victim.FINISHES),
    Row(
        "never attaches",
        Moment.ATTACH,
        "stay away",
        r"all \d ranks|did not join",
        victim=Victim.GONE,
    ),
    Row("slow, within the timeout", Moment.FRAME, "delay", end=End.RIGHT, patience=PATIENT),
    Row("payload altered", Moment.FRAME, "corrupt payload", "the payload's checksum is wrong"),
    Row("header altered", Moment.FRAME, "corrupt header", "header's checksum|not a gradwire|one of version"),
    Row("frame truncated", Moment.FRAME, "truncate", "checksum is wrong|truncated"),
    Row("frame lost", Moment.FRAME, "drop", f"out of order|{_LOST}"),
    Row("frame repeated", Moment.FRAME, "duplicate", f"out of order|{_LOST}"),  # nobody waits for a last one
    Row("frames reordered", Moment.FRAME, "swap", f"out of order|{_LOST}"),
    Row(
        "other wire version", Moment.FRAME, "version 9", "expected a frame of version 1, got one of version 9"
    ),
    Row("unknown codec", Moment.FRAME, "codec 250", "the codec differs: expected .*, got number 250"),
    Row("other parameters on the wire", Moment.FRAME, "parameters", "the parameters of the codec .* differ"),
    Row("other plan", Moment.ATTACH, "other segments", _DIFFER),
    Row("other codec parameters", Moment.ATTACH, "other bound", _DIFFER),
    Row(
        "other gradwire",
        Moment.ATTACH,
        "other gradwire",
        "expected the same version of gradwire on all ranks",
    ),
    Row("other world", Moment.ATTACH, "sub-group", r"all \d ranks|connecting with|no progress"),
    Row("the store's host stopped", Moment.STORE, "stop before attaching", _SILENT, is_new=True),
    Row("the store cut off", Moment.STORE, "cut before attaching", _SILENT, is_new=True),
    Row(
        "the store's host stopped in training", Moment.STORE, "stop before a step", end=End.RIGHT, is_new=True
    ),
    Row("the store cut off in training", Moment.STORE, "cut before a step", end=End.RIGHT, is_new=True),
    Row("restarted on a shared store", Moment.STORE, "restart", end=End.RIGHT, is_new=True),
    Row("garbage at the rendezvous", Moment.OUTSIDE, "rendezvous", end=End.RIGHT, patience=PATIENT),
    Row("garbage at the ranks' ports", Moment.OUTSIDE, "ports", end=End.RIGHT, patience=PATIENT),
    Row("gradient is NaN", Moment.STEP, "nan", end=End.NAN),
    Row("ended without close", Moment.STEP, "end", _LOST, victim=Victim.GONE, is_new=True),
    Row(
        "ended by an exception in a hook",
        Moment.STEP,
        "raise in a hook",
        _LOST,
        victim=Victim.GONE,
        is_new=True,
    ),
    Row("ended by Ctrl-C", Moment.STEP, "interrupt", _LOST, victim=Victim.GONE, is_new=True),
    Row("a star that serves slowly", Moment.FRAME, "crawl", end=End.RIGHT, plan="star", is_new=True),
    Row(
        "backend, calls out of order",
        Moment.CALL,
        "another bucket first",
        _OTHER_CALL,
        plan="backend",
        is_new=True,
    ),
    Row(
        "backend, another average=",
        Moment.CALL,
        "a sum for an average",
        _OTHER_CALL,
        plan="backend",
        is_new=True,
    ),
    Row(
        "backend, killed between steps",
        Moment.STEP,
        "kill",
        _LOST,
        victim=Victim.GONE,
        plan="backend",
        is_new=True,
    ),
    Row(
        "in lanes, killed between steps",
        Moment.STEP,
        "kill",
        _LOST,
        victim=Victim.GONE,
        plan="lanes",
        is_new=True,
    ),
    Row(
        "in lanes, stopped between steps",
        Moment.STEP,
        "stop",
        "no progress within",
        plan="lanes",
        is_new=True,
    ),
    Row(
        "in lanes, ended by Ctrl-C",
        Moment.STEP,
        "interrupt",
        _LOST,
        victim=Victim.GONE,
        plan="lanes",
        is_new=True,
    ),
]


def _in_choices(by_day: str, name: str, act: str, says: str = "", **others: Any) -> list[Row]:
    """Return the rows of a fault that strikes while ``auto`` chooses, one for each part of a choice.

    A trial is training, so a frame of one of its steps is struck. ``by_day`` is the part in which the fault
    strikes wherever the tests run.
    """
    same = {"act": act, "says": says, "plan": "auto", "is_new": True, **others}
    return [
        Row(
            f"{name} in auto's {part}",
            Moment.FRAME if part == "trial" else Moment.CHOICE,
            part=part,
            is_nightly=part != by_day,
            **same,
        )
        for part in PARTS
    ]


ROWS += [
    *_in_choices("probe", "killed", "kill", _LOST, victim=Victim.GONE),
    *_in_choices("decision", "stopped", "stop", "no progress within"),
    *_in_choices("trial", "slow and fast again", "flip", end=End.RIGHT),
    *_in_choices("second decision", "cut off", "cut", _LOST),
]

_BY_DAY_IN_PYTHON = ("killed in mid-step", "stopped in mid-step", "payload altered")
_AT_FRAMES = [row for row in ROWS if row.moment is Moment.FRAME and not row.plan]
"""These strike the native engine in one lane."""
ROWS += [replace(row, name=f"in lanes, {row.name}", plan="lanes", is_new=True) for row in _AT_FRAMES]
ROWS += [
    replace(
        row,
        name=f"in Python, {row.name}",
        plan="python",
        is_new=True,
        is_nightly=row.name not in _BY_DAY_IN_PYTHON,
    )
    for row in _AT_FRAMES
]
