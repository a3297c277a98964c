"""Links and costs in place of measurements, so that automatic choices do not depend on the machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf
from typing import Any
from unittest.mock import patch

import pytest

from gradwire.autotune import costs, settings
from gradwire.autotune.costs import Work
from gradwire.autotune.steps import StepTime, StepTimes
from gradwire.timing.calibrate import codec_cost
from gradwire.timing.environment import CodecCost, CodecPoint
from gradwire.timing.line import HostCost

Told = dict[str, tuple[float, ...]]
WARM_UP, WINDOW, TURN = (
    settings.DEFAULT.warm_up_steps,
    settings.DEFAULT.window_steps,
    settings.DEFAULT.turn_steps,
)
TURNS = [0, 2 * TURN, 3 * TURN, 4 * TURN, 5 * TURN, 6 * TURN, 7 * TURN]
"""The steps from a choice to the beginning of each turn of three plans, and to that of the best one."""
AT_ONCE = 1e9
"""The share of a step that choices may take, of which all take less."""
STEP = StepTime(compute_s=0.01, backward_s=0.005, exposed_s=0.1)
SLOW, FAST = (1e-4, 1e5, 0.0, 1.0), (1e-7, 1e13, 0.0, 1.0)


def tell_line(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Tell a slow line until the entry ``"line"`` changes, and cheap codecs and frames.

    No plan is tried, or, where a test raises their number, each has all its turns, however fast the machine
    is. No file is named.
    """
    now: Told = {"line": SLOW}
    monkeypatch.setattr(costs, "measure_line", lambda *_: _told(now["line"]))
    monkeypatch.setattr(costs, "codec_cost", _told_cost)
    monkeypatch.setattr(costs, "measure_host", lambda *_: HostCost(cores=4))
    configure(monkeypatch, most_trials=1, behind_ratio=inf, trial_share=inf, paced_share=AT_ONCE)
    monkeypatch.delenv("GRADWIRE_AUTO", raising=False)
    return now


def telling(line: tuple[float, ...] = SLOW) -> AbstractContextManager[object]:
    """Return a context in which links are this line, without a measurement."""
    return patch.object(costs, "measure_line", lambda *_: _told(line))


def _told(line: tuple[float, ...]) -> Work[tuple[float, ...]]:
    """Return the line as work without a piece."""
    yield from ()
    return line


def unpaced() -> AbstractContextManager[object]:
    """Return a context in which each choice is made within one step, as without a training to slow down."""
    return patch.object(settings, "DEFAULT", replace(settings.DEFAULT, paced_share=AT_ONCE))


def configure(monkeypatch: pytest.MonkeyPatch, **thresholds: Any) -> None:
    """Let every run from now on that passes no thresholds have these."""
    monkeypatch.setattr(settings, "DEFAULT", replace(settings.DEFAULT, **thresholds))


def tell_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step that counts take ``STEP``, so that the plans of two runs are the same."""
    add = StepTimes._add
    monkeypatch.setattr(StepTimes, "_add", lambda own, _step: add(own, STEP))


def _told_cost(*args: Any) -> CodecCost:
    """Return the bytes of a codec's payloads as they are, and seconds that are the same for all codecs."""
    cost = codec_cost(*args)
    finished = cost.finished and _told_point(cost.finished)
    points = tuple(map(_told_point, cost.points))
    return replace(cost, points=points, finished=finished, call_s=1e-6, disagreement=0.0)


def _told_point(point: CodecPoint) -> CodecPoint:
    return replace(point, encode_s=1e-9, decode_s=1e-9, decode_add_s=1e-9)
