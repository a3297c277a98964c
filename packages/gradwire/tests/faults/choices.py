"""Runs of the matrix that choose their plan: with choices at known steps, and faults in the midst of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from faults.case import CHANGED, TRIED, Case
from faults.relay import RelayedLink
from faults.wire import frame_act
from gradwire.autotune import costs
from gradwire.autotune.autotuner import Autotuner
from gradwire.autotune.costs import Together, Work, at_once
from gradwire.autotune.steps import StepTime, StepTimes
from gradwire.autotune.survey import Survey
from gradwire.exchange import Exchange
from gradwire.links import Link
from support.told_line import SLOW, STEP, WARM_UP, configure, tell_line

_SHORTER = {
    "window_steps": 4,
    "resample_steps": 48,
    "patience_steps": 8,
    "turn_steps": 2,
    "most_trials": 3,
}
"""Windows and waits of a choice, so that a short run has two."""
_LINKS = "a measurement of the network"
_SLOWER = StepTime(compute_s=0.03, backward_s=0.015, exposed_s=0.3)


def script() -> None:
    """Let all choices of this process be those of an undisturbed run.

    Lines are measured, but what they, the codecs, and the steps are said to take doesn't depend on the
    machine. A process has one run, so that nothing is undone.
    """
    told = pytest.MonkeyPatch()
    measure = costs.measure_line
    tell_line(told)
    configure(told, **_SHORTER)

    def measure_line(*how: Any) -> Work[tuple[float, ...]]:
        yield None
        yield Together(_LINKS, lambda exchange: at_once(measure(*how), exchange))
        return SLOW

    told.setattr(costs, "measure_line", measure_line)
    told.setattr(Autotuner, "prepare", lambda *_: None)  # the first choice measures lines, too
    begin, add = Autotuner.begin, StepTimes._add
    latest = 0

    def watched(own: Autotuner, step: int, *others: Any) -> Any:
        nonlocal latest
        latest = step
        return begin(own, step, *others)

    told.setattr(Autotuner, "begin", watched)
    told.setattr(StepTimes, "_add", lambda own, _step: add(own, STEP if latest <= CHANGED else _SLOWER))


def strike(case: Case) -> None:
    """Let a frame of this rank meet its fault in the part of a choice that the row of ``case`` names."""
    assert case.row is not None
    act, number = frame_act(case), 2 if case.row.part == "second decision" else 1
    calls = 0

    def arm(link: Link) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            assert isinstance(link, RelayedLink)
            link.armed.arm(act, case.frame)

    def armed(work: Work[Any]) -> Work[Any]:
        """Arm the link in the first piece with other ranks, which have as many pieces as this one."""
        value, is_armed = None, False
        while True:
            try:
                piece = work.send(value)
            except StopIteration as done:
                return done.value
            if piece is not None and not is_armed:
                piece, is_armed = Together(piece.what, partial(call_armed, piece.call)), True
            value = yield piece

    def call_armed(call: Callable[[Exchange], Any], exchange: Exchange) -> Any:
        arm(exchange.link)
        return call(exchange)

    if case.row.part == "probe":
        measure = costs.measure_line
        vars(costs)["measure_line"] = lambda *how: armed(measure(*how))
    else:
        choose = Survey.choose
        Survey.choose = lambda own, *others: armed(choose(own, *others))  # type: ignore[method-assign]


def check_choices(chosen: Sequence[Sequence[int]]) -> list[str]:
    """Return what is wrong with the steps at which the ranks of an undisturbed run took plans."""
    first = [*chosen[0]]
    found = [] if all([*each] == first for each in chosen) else [f"the ranks chose before {chosen}"]
    if first[:2] != [WARM_UP + 1, TRIED.stop]:
        found.append(f"plans were not tried in {TRIED}, but were chosen before {first}")
    if not any(step > CHANGED for step in first):
        found.append(f"nothing was decided a second time, but before {first}")
    return found
