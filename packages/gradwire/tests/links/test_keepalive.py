"""When a rank sends keepalives: after it has moved something, four times within a timeout at most."""

from __future__ import annotations

import pytest

from gradwire.links import base as keepalive
from gradwire.links.base import SIGNS, Activity


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(keepalive, "time", clock)
    return clock


def test_a_rank_that_only_waits_sends_none(clock: Clock) -> None:
    activity = Activity(sent_at=clock.now)
    activity.heard_at = clock.now = 1000.0
    assert not activity.is_due(8.0)


def test_a_rank_that_moves_frames_all_the_time_sends_one_in_a_quarter_of_the_timeout(clock: Clock) -> None:
    activity, sent = Activity(sent_at=clock.now), []
    for _ in range(1024):
        clock.now += 0.0078125
        activity.moved_at = clock.now
        if activity.is_due(2.0):
            sent.append(clock.now)
    gaps = [later - earlier for earlier, later in zip([100.0, *sent], sent, strict=False)]
    assert len(sent) == 15, "one after 65 of 1024 parts"
    assert all(2.0 / SIGNS < gap < 2.0 / SIGNS + 0.03 for gap in gaps)


def test_what_moved_once_is_told_once(clock: Clock) -> None:
    activity = Activity(sent_at=clock.now)
    activity.moved_at, clock.now = 101.0, 110.0
    assert activity.is_due(8.0)
    clock.now = 120.0
    assert not activity.is_due(8.0), "nothing has moved since"
    activity.moved_at = 119.0
    assert activity.is_due(8.0)
