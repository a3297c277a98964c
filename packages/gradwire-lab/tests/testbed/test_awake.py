from __future__ import annotations

import os
import time

import pytest

from gradwire_lab.testbed import runner as awake

INFO = "processor\t: 0\nflags\t\t: fpu sse2 {}avx2\nbugs\t:\n"


@pytest.mark.parametrize(
    ("cpuinfo", "virtual"),
    [
        (INFO.format("hypervisor "), True),
        (INFO.format(""), False),
        ("Features : fp asimd\n", False),
        ("", False),
    ],
)
def test_a_hypervisor_is_told_by_the_processors_flags(cpuinfo: str, virtual: bool) -> None:
    assert awake.is_virtual(cpuinfo) is virtual


def test_a_virtual_machines_cores_stay_awake_for_whoever_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake, "is_virtual", lambda _: True)
    spinning = awake.keep_awake()
    try:
        assert len(spinning) == len(os.sched_getaffinity(0))
        cores = [os.sched_getaffinity(process.pid) for process in spinning]
        assert sorted(core for own in cores for core in own) == sorted(os.sched_getaffinity(0))
        assert {os.sched_getscheduler(process.pid) for process in spinning} == {os.SCHED_IDLE}
        time.sleep(0.1)
        assert all(process.poll() is None for process in spinning)
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def test_a_real_machines_cores_may_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake, "is_virtual", lambda _: False)
    assert awake.keep_awake() == []


def test_a_process_that_cannot_give_way_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(awake, "is_virtual", lambda _: True)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert all(process.wait(10) == -9 for process in awake.keep_awake())
