"""A run from the outside: a supervisor by hand, at the other end of the channel, is all hosts."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGTERM

import pytest

from gradwire import errors
from gradwire_lab.testbed.output import HostExit, Stream, Watch
from gradwire_lab.testbed.runner import Channel, Runner, pair

Play = Callable[[Channel, list[int]], None]
HOSTS = 2


class Run:
    """What came of a command on two hosts that ``play`` is; it gets the ends that the hosts write to."""

    def __init__(self, play: Play, timeout_s: float | None = None) -> None:
        self.written: dict[tuple[int, Stream], bytes] = {}
        self.asked: list[dict[str, object]] = []
        own, other = pair()
        self.watch = Watch(HOSTS, time.monotonic(), timeout_s, grace_s=0.1)
        supervisor = threading.Thread(target=self._supervise, args=(other, play))
        supervisor.start()
        try:
            runner = Runner(own, self.watch, (self._take,))
            runner.follow(["program", "word"], [{"RANK": "0"}, {"RANK": "1"}], Path("/folder"))
        finally:
            own.close()
            supervisor.join(10)
            other.close()
        assert not supervisor.is_alive()

    def _supervise(self, channel: Channel, play: Play) -> None:
        started = channel.receive(10)
        assert started is not None
        self.asked.append(started[0])
        play(channel, started[1])
        for file in started[1]:
            os.close(file)
        while (told := channel.receive(10)) is not None:
            self.asked.append(told[0])
            if told[0]["do"] == "sweep":
                channel.send({"told": "swept"})

    def _take(self, host: int, stream: Stream, text: bytes) -> None:
        self.written[host, stream] = self.written.get((host, stream), b"") + text


def exited(channel: Channel, host: int, code: int = 0) -> None:
    channel.send({"told": "exited", "host": host, "code": code, "seconds": 1.5})


def own_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_command_is_started_once_and_swept_when_all_hosts_have_ended() -> None:
    before = own_files()

    def play(channel: Channel, files: list[int]) -> None:
        assert len(files) == 2 * HOSTS
        for number, file in enumerate(files):
            os.write(file, b"from %d\n" % number)
        exited(channel, 1)
        exited(channel, 0)

    run = Run(play)
    assert run.asked == [
        {
            "do": "start",
            "command": ["program", "word"],
            "environments": [{"RANK": "0"}, {"RANK": "1"}],
            "folder": "/folder",
        },
        {"do": "sweep"},
    ]
    streams: list[tuple[int, Stream]] = [(0, "out"), (0, "err"), (1, "out"), (1, "err")]
    assert run.written == {place: b"from %d\n" % number for number, place in enumerate(streams)}
    assert run.watch.exits == [HostExit(0, 1.5)] * HOSTS
    assert own_files() <= before, "no descriptor stays open"


def test_what_was_written_before_the_end_is_passed_on_whole() -> None:
    """More than a pipe holds at once, and its last line has no end."""
    text = b"x" * 99 + b"\n"

    def play(channel: Channel, files: list[int]) -> None:
        for _ in range(2000):
            os.write(files[0], text)
        os.write(files[0], b"rest")
        exited(channel, 0)
        exited(channel, 1)

    assert Run(play).written == {(0, "out"): 2000 * text + b"rest"}


def test_a_host_that_runs_on_after_another_failed_is_signalled() -> None:
    def play(channel: Channel, files: list[int]) -> None:  # noqa: ARG001 - nobody writes
        exited(channel, 0, code=3)
        signalled = channel.receive(10)
        assert signalled == ({"do": "signal", "number": int(SIGTERM)}, [])
        exited(channel, 1, code=-SIGTERM)

    run = Run(play)
    assert [ended.exit_code for ended in run.watch.exits if ended] == [3, 128 + SIGTERM]
    assert run.asked[1:] == [{"do": "sweep"}]


def test_an_interrupt_is_for_the_hosts_and_raises_nothing_here() -> None:
    def play(channel: Channel, files: list[int]) -> None:  # noqa: ARG001 - nobody writes
        os.kill(os.getpid(), signal.SIGINT)
        assert channel.receive(10) == ({"do": "signal", "number": int(signal.SIGINT)}, [])
        for host in range(HOSTS):
            exited(channel, host, code=-signal.SIGINT)

    assert Run(play).watch.interrupts == 1


def test_a_command_that_cannot_be_started_is_one_sentence() -> None:
    def play(channel: Channel, files: list[int]) -> None:  # noqa: ARG001 - nobody writes
        channel.send({"told": "refused", "reason": "Exec format error"})

    before = own_files()
    with pytest.raises(errors.TestbedError, match="cannot be started: Exec format error; pass a prog"):
        Run(play)
    assert own_files() <= before


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_supervisor_that_is_gone_ends_the_run(when: str) -> None:
    before, (own, other) = own_files(), pair()

    def leave() -> None:
        if when == "after":
            received = other.receive(10)
            assert received is not None
            for file in received[1]:
                os.close(file)
        other.close()

    leaving = threading.Thread(target=leave)
    leaving.start()
    if when == "before":
        leaving.join(10)
    runner = Runner(own, Watch(HOSTS, time.monotonic(), None, 0.1), ())
    with pytest.raises(errors.TestbedError, match="supervisor has ended, and all hosts with it"):
        runner.follow(["program"], [{}, {}], Path("/"))
    leaving.join(10)
    own.close()
    assert own_files() <= before
