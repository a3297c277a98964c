"""The hosts' output: split into lines, shown with the host's name as a prefix, and saved in files."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Literal, TextIO

from gradwire.errors import TestbedError
from gradwire.records import make_record, to_json
from gradwire.units import format_duration
from gradwire_lab.testbed.delay_line import RelayReport
from gradwire_lab.testbed.topology import Topology, address, host_name

Stream = Literal["out", "err"]
STREAMS: tuple[Stream, Stream] = ("out", "err")
Sink = Callable[[int, Stream, bytes], None]
"""A function that receives a host, a stream, and lines.

Only the last line may lack its newline: at the end of the stream, or if it has more than 64 KiB. The rest of
such a line follows.
"""
_LONGEST_LINE_NBYTES = 1 << 16


class Lines:
    """A splitter that passes a stream to sinks in whole lines, so that the hosts' lines don't mix."""

    def __init__(self, host: int, stream: Stream, sinks: tuple[Sink, ...]) -> None:
        self._host, self._stream, self._sinks = host, stream, sinks
        self._rest = b""

    def take(self, text: bytes) -> None:
        """Pass complete lines to the sinks, where an empty ``text`` means the end of the stream."""
        whole = self._rest + text
        end = whole.rfind(b"\n") + 1
        if not text or len(whole) - end > _LONGEST_LINE_NBYTES:
            end = len(whole)
        self._rest = whole[end:]
        if end:
            for sink in self._sinks:
                sink(self._host, self._stream, whole[:end])


def show(host: int, stream: Stream, text: bytes) -> None:
    """Write lines to this process's standard output or error, with the host's name as a prefix."""
    own: TextIO = sys.stdout if stream == "out" else sys.stderr
    letters = own.encoding or "utf-8"
    words = text.decode(errors="backslashreplace").encode(letters, "backslashreplace").decode(letters)
    lines = words.removesuffix("\n").split("\n")
    own.write("".join(f"{host_name(host)} | {line}\n" for line in lines))
    own.flush()


class Logs:
    """A sink that writes to ``h0.out``, ``h0.err``, and so on. Raises ``TestbedError`` if it cannot."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self._files: dict[tuple[int, Stream], BinaryIO] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for host in range(hosts):
                for stream in STREAMS:
                    path = folder / f"{host_name(host)}.{stream}"
                    self._files[host, stream] = path.open("wb", buffering=0)
        except OSError as error:
            self.close()
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise TestbedError(f"{folder} cannot be written: {reason}; pass another folder") from error

    def __call__(self, host: int, stream: Stream, text: bytes) -> None:
        """Write lines to the stream's file."""
        self._files[host, stream].write(text)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


# When to end the hosts of a run, without side effects: callers pass the time.

KILL_AFTER_S = 2.0
"""The time between SIGTERM and SIGKILL, in seconds."""
EXIT_TIMEOUT = 124  # as with timeout(1)


@dataclass(frozen=True, slots=True)
class HostExit:
    """The end of a host's command: its exit code, 128 + n for signal n, and its run time in seconds."""

    exit_code: int
    seconds: float


class Watch:
    """The state of a run: the running hosts, the first failure, and the next signal to send.

    After a host fails, the other hosts have ``grace_s`` to end. Then they get SIGTERM, and two seconds later
    SIGKILL. The run's timeout sends the same signals, even if ``grace_s`` is longer. An interrupt sends
    SIGINT immediately, and a second interrupt SIGKILL.
    """

    def __init__(self, hosts: int, now: float, timeout_s: float | None, grace_s: float) -> None:
        self.exits: list[HostExit | None] = [None] * hosts
        self.interrupts = 0
        self._grace_s = grace_s
        self._timeout_s = timeout_s
        self._failed: int | None = None
        self._ended: list[int] = []  # hosts that got a signal to end
        self._timed_out = False
        self._ends_at = math.inf if timeout_s is None else now + timeout_s
        self._due = [] if timeout_s is None else _end(self._ends_at)

    @property
    def running(self) -> list[int]:
        """The hosts whose command has not ended yet."""
        return [host for host, ended in enumerate(self.exits) if ended is None]

    @property
    def is_over(self) -> bool:
        """Whether every host's command has ended."""
        return not self.running

    def exited(self, host: int, code: int, seconds: float, now: float) -> None:
        """Record the end of a host's command; ``code`` is negative for a signal, as in Python."""
        self.exits[host] = HostExit(code if code >= 0 else 128 - code, seconds)
        if code != 0 and self._failed is None and not self._ended:
            self._failed = host
            self._grace_s = min(self._grace_s, max(0.0, self._ends_at - now))
            self._due = _end(now + self._grace_s)

    def interrupted(self, now: float) -> None:
        """Record an interrupt by the user, such as Ctrl-C."""
        self.interrupts += 1
        if self.interrupts == 1:
            killed_at = min(now + self._grace_s, self._ends_at + KILL_AFTER_S)
            self._due = [(now, signal.SIGINT), (killed_at, signal.SIGKILL)]
        else:
            self._due = [(now, signal.SIGKILL)]

    def wait_s(self, now: float) -> float | None:
        """Return the time until a signal is due, or None if no signal is due."""
        return max(0.0, self._due[0][0] - now) if self._due and not self.is_over else None

    def due(self, now: float) -> signal.Signals | None:
        """Return the signal that is due for all running hosts now. Each signal is returned once."""
        if self.is_over or not self._due or now < self._due[0][0]:
            return None
        if not self._ended:
            self._ended = self.running
            self._timed_out = self._failed is None and self.interrupts == 0
        return self._due.pop(0)[1]

    @property
    def failure(self) -> str | None:
        """The failure or timeout of the run in one sentence, or None."""
        if self._timed_out:
            limit = format_duration(self._timeout_s or 0.0)
            return f"{_names(self._ended)} did not end within {limit} and had to be killed"
        if self._failed is None:
            return None
        first = self.exits[self._failed]
        assert first is not None
        told = f"{host_name(self._failed)} {_how(first)} after {format_duration(first.seconds)}"
        if not self._ended:
            return told
        grace = format_duration(self._grace_s)
        return f"{told}; {_names(self._ended)} did not end within {grace} after that and had to be killed"

    @property
    def exit_code(self) -> int:
        """The run's exit code: 0, 124 after a timeout, or the code of the host that failed first."""
        if self._timed_out:
            return EXIT_TIMEOUT
        first = None if self._failed is None else self.exits[self._failed]
        return 0 if first is None else first.exit_code


def _end(at: float) -> list[tuple[float, signal.Signals]]:
    return [(at, signal.SIGTERM), (at + KILL_AFTER_S, signal.SIGKILL)]


def _how(ended: HostExit) -> str:
    try:
        return f"was killed by {signal.Signals(ended.exit_code - 128).name}"
    except ValueError:
        return f"ended with exit code {ended.exit_code}"


def _names(hosts: list[int]) -> str:
    names = [host_name(host) for host in hosts]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# The record of a run: network, command, exit codes, times, and machine, without torch.

SCHEMA = "gradwire-testbed/2"


@dataclass(frozen=True, slots=True)
class CommandRun:
    """The result of a command on all hosts.

    ``failure`` describes the failure in a sentence, or is None if every host ended with exit code 0.
    ``exit_code`` is 0, the exit code of the host that failed first, or 124 after a timeout. Times are in
    seconds. ``nic`` is the command of the NIC between each host and its link, empty without NICs.
    ``impairment`` is the mechanism that delayed and lost frames, ``netem`` or ``relay``, or None if no frames
    were delayed or lost.
    """

    topology: Topology
    command: tuple[str, ...]
    hosts: tuple[HostExit, ...]
    started: datetime
    set_up_s: float
    seconds: float
    exit_code: int
    failure: str | None
    nic: tuple[str, ...] = ()
    impairment: str | None = None
    relay: RelayReport | None = None

    def to_json(self) -> str:
        """Return the record as readable JSON. ``load`` is the machine's load average over one minute."""
        fields = {
            "topology": self.topology.to_dict(),
            "command": list(self.command),
            "nic": list(self.nic),
            "impairment": self.impairment,
            "relay": None if self.relay is None else asdict(self.relay),
            "started": self.started.isoformat(timespec="seconds"),
            "set_up_s": round(self.set_up_s, 4),
            "seconds": round(self.seconds, 4),
            "exit_code": self.exit_code,
            "failure": self.failure,
            "hosts": [
                {
                    "host": host_name(host),
                    "address": address(host),
                    "exit_code": ended.exit_code,
                    "seconds": round(ended.seconds, 4),
                }
                for host, ended in enumerate(self.hosts)
            ],
        }
        return to_json(make_record(SCHEMA, fields, load=round(os.getloadavg()[0], 2)))
