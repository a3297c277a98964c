"""Waiting for MPI without waiting in it, and what its errors say."""

from __future__ import annotations

import pytest

from gradwire.links import mpi
from gradwire.links.mpi import poll, reason


class Clock:
    """Time that passes only in sleep, and a little with every look."""

    def __init__(self) -> None:
        self.now, self.naps = 50.0, list[float]()

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(mpi, "time", clock)
    return clock


def test_what_is_done_is_not_waited_for(clock: Clock) -> None:
    assert poll(lambda: True, 0.0)
    assert clock.naps == []


def test_it_looks_often_at_first_and_every_millisecond_later(clock: Clock) -> None:
    assert poll(lambda: clock.now > 50.5, 1.0)
    assert clock.naps[0] == 0.0
    assert clock.naps == sorted(clock.naps)
    assert clock.naps[-1] == 1e-3
    assert sum(nap < 1e-3 for nap in clock.naps) < 20


def test_nothing_for_a_timeout_is_the_end(clock: Clock) -> None:
    assert not poll(lambda: False, 0.5)
    assert 50.5 <= clock.now < 50.51


def test_a_timeout_counts_from_what_happened_last_elsewhere(clock: Clock) -> None:
    asked: list[float] = []

    def active_at() -> float:
        asked.append(clock.now)
        return min(clock.now, 52.0)  # frames move elsewhere for two seconds

    assert not poll(lambda: False, 1.0, active_at)
    assert 53.0 <= clock.now < 53.01
    assert 10 <= len(asked) <= 13, "a few times within the timeout"


def test_mpis_words_come_without_its_list_of_calls() -> None:
    assert reason(RuntimeError("Message truncated, error stack:\nMPI_Recv(1): 3 > 2")) == "Message truncated"
    assert reason(RuntimeError("MPI_ERR_RANK: invalid rank\nmore")) == "MPI_ERR_RANK: invalid rank"
