from __future__ import annotations

from signal import SIGINT, SIGKILL, SIGTERM

import pytest

from gradwire_lab.testbed.output import HostExit, Watch


def test_hosts_that_all_end_well_are_left_alone() -> None:
    watch = Watch(3, now=100.0, timeout_s=None, grace_s=5.0)
    for host, seconds in ((1, 1.0), (0, 2.0), (2, 90.0)):
        assert watch.wait_s(100.0 + seconds) is None
        assert watch.due(1e9) is None
        watch.exited(host, 0, seconds, 100.0 + seconds)
    assert watch.is_over
    assert (watch.failure, watch.exit_code) == (None, 0)
    assert watch.exits == [HostExit(0, 2.0), HostExit(0, 1.0), HostExit(0, 90.0)]


def test_when_one_fails_the_others_have_a_grace() -> None:
    watch = Watch(4, now=0.0, timeout_s=None, grace_s=5.0)
    watch.exited(1, 3, 1.2, now=1.2)
    assert watch.wait_s(2.2) == pytest.approx(4.0)
    assert watch.due(6.1) is None
    watch.exited(
        0, 1, 4.0, now=4.0
    )  # it noticed; the first is still the one to blame, and the time counts on
    assert watch.due(6.3) is SIGTERM
    assert watch.due(6.3) is None
    watch.exited(2, -SIGTERM, 6.4, now=6.4)
    assert watch.due(8.1) is None
    assert watch.due(8.3) is SIGKILL
    assert watch.wait_s(9.0) is None
    watch.exited(3, -SIGKILL, 8.4, now=8.4)
    assert watch.exit_code == 3
    assert watch.failure == (
        "h1 ended with exit code 3 after 1.2s; "
        "h2 and h3 did not end within 5s after that and had to be killed"
    )
    assert [ended.exit_code for ended in watch.exits if ended] == [1, 3, 143, 137]


def test_when_the_others_end_by_themselves_nobody_is_signalled() -> None:
    watch = Watch(2, now=0.0, timeout_s=60.0, grace_s=5.0)
    watch.exited(0, -SIGKILL, 2.0, now=2.0)
    watch.exited(1, 1, 3.0, now=3.0)
    assert watch.due(1e9) is None
    assert watch.wait_s(4.0) is None
    assert (watch.failure, watch.exit_code) == ("h0 was killed by SIGKILL after 2s", 137)


def test_the_time_is_over() -> None:
    watch = Watch(3, now=10.0, timeout_s=60.0, grace_s=5.0)
    assert watch.wait_s(10.0) == 60.0
    watch.exited(1, 0, 1.0, now=11.0)
    assert watch.due(70.0) is SIGTERM
    watch.exited(0, -SIGTERM, 60.1, now=70.1)
    assert watch.due(72.0) is SIGKILL
    watch.exited(2, -SIGKILL, 62.1, now=72.1)
    assert watch.exit_code == 124
    assert watch.failure == "h0 and h2 did not end within 60s and had to be killed"


def test_the_time_may_be_over_for_one_alone() -> None:
    watch = Watch(1, now=0.0, timeout_s=0.5, grace_s=5.0)
    assert watch.due(0.5) is SIGTERM
    watch.exited(0, 0, 0.6, now=0.6)
    assert watch.exit_code == 124
    assert watch.failure == "h0 did not end within 500ms and had to be killed"


def test_no_grace_lasts_longer_than_the_timeout() -> None:
    watch = Watch(2, now=0.0, timeout_s=10.0, grace_s=3600.0)
    watch.exited(0, 1, 4.0, now=4.0)
    assert watch.due(10.0) is SIGTERM
    assert watch.due(12.0) is SIGKILL
    watch.exited(1, -SIGKILL, 12.0, now=12.0)
    assert watch.exit_code == 1
    assert watch.failure == (
        "h0 ended with exit code 1 after 4s; h1 did not end within 6s after that and had to be killed"
    )
    interrupted = Watch(1, now=0.0, timeout_s=10.0, grace_s=3600.0)
    interrupted.interrupted(4.0)
    assert interrupted.due(4.0) is SIGINT
    assert interrupted.due(12.0) is SIGKILL


def test_an_interrupt_asks_and_a_second_one_does_not() -> None:
    watch = Watch(2, now=0.0, timeout_s=60.0, grace_s=5.0)
    watch.interrupted(1.0)
    assert watch.due(1.0) is SIGINT
    assert watch.wait_s(2.0) == 4.0
    watch.interrupted(2.0)
    assert watch.due(2.0) is SIGKILL
    assert watch.due(1e9) is None


def test_after_an_interrupt_the_grace_ends_too() -> None:
    watch = Watch(2, now=0.0, timeout_s=None, grace_s=5.0)
    watch.interrupted(1.0)
    assert watch.due(1.0) is SIGINT
    watch.exited(0, -SIGINT, 1.1, now=1.1)
    assert watch.due(6.0) is SIGKILL
    assert watch.running == [1]
