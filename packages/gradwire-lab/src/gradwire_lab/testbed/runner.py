"""Run one command on all hosts: forward their output, and end them when necessary."""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from gradwire.errors import TestbedError
from gradwire_lab.testbed.channel import Channel, interrupts
from gradwire_lab.testbed.namespaces import CAP_NET_ADMIN, CAP_NET_RAW, inside, lending
from gradwire_lab.testbed.output import STREAMS, Lines, Sink, Watch
from gradwire_lab.testbed.topology import NIC_HOST, NIC_LINK, host_name

_READ_NBYTES = 1 << 16


class Runner:
    """One run of a command on all hosts, through the supervisor's channel."""

    def __init__(self, channel: Channel, watch: Watch, sinks: tuple[Sink, ...]) -> None:
        self._channel = channel
        self._watch = watch
        self._sinks = sinks
        self._swept = False
        self._failure = ""
        self._streams: dict[int, Lines] = {}
        """The line splitter of each output stream, by descriptor."""

    def follow(self, command: Sequence[str], environments: Sequence[Mapping[str, str]], folder: Path) -> None:
        """Start the command, and return when all its processes have ended.

        Raises
        ------
        TestbedError
            If the command can't be started, or the supervisor is gone.
        """
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            arrivals = stack.enter_context(interrupts())
            selector.register(arrivals, selectors.EVENT_READ)
            selector.register(self._channel, selectors.EVENT_READ)
            try:
                self._start(command, environments, folder, selector)
                while not self._swept:
                    self._wait(selector, arrivals)
                for stream in list(self._streams):  # all writers have ended, so the streams are complete
                    while stream in self._streams:
                        self._read(stream, selector)
                if self._failure:
                    raise TestbedError(self._failure)
            finally:
                for stream in self._streams:
                    os.close(stream)

    def _start(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        folder: Path,
        selector: selectors.BaseSelector,
    ) -> None:
        given: list[int] = []
        try:
            for host in range(len(environments)):
                for stream in STREAMS:
                    out, into = os.pipe2(os.O_CLOEXEC)
                    given.append(into)
                    os.set_blocking(out, False)
                    self._streams[out] = Lines(host, stream, self._sinks)
                    selector.register(out, selectors.EVENT_READ)
            words = {"command": list(command), "environments": list(environments), "folder": str(folder)}
            self._channel.send({"do": "start", **words}, given)
        except BrokenPipeError as error:
            raise _gone() from error
        finally:
            for descriptor in given:
                os.close(descriptor)

    def _wait(self, selector: selectors.BaseSelector, arrivals: socket.socket) -> None:
        for key, _ in selector.select(self._watch.wait_s(time.monotonic())):
            if key.fileobj is arrivals:
                for number in arrivals.recv(64):
                    if number == signal.SIGINT:
                        self._watch.interrupted(time.monotonic())
            elif key.fileobj is self._channel:
                self._hear()
            else:
                self._read(key.fd, selector)
        due = self._watch.due(time.monotonic())
        if due is not None:
            self._tell({"do": "signal", "number": int(due)})

    def _hear(self) -> None:
        received = self._channel.receive()
        if received is None:
            raise _gone()
        message, _ = received
        match message["told"]:
            case "exited":
                code, seconds = message["code"], message["seconds"]
                self._watch.exited(message["host"], code, seconds, time.monotonic())
                if self._watch.is_over:
                    self._tell({"do": "sweep"})
            case "refused":
                raise TestbedError(
                    f"the command cannot be started: {message['reason']}; pass a program for this machine, "
                    "or a script that begins with '#!'"
                )
            case "failed":  # a NIC failed before any command started; its output is still unread
                self._failure, self._swept = message["reason"], True
            case "swept":
                self._swept = True

    def _tell(self, message: dict[str, object]) -> None:
        with suppress(BrokenPipeError):  # _hear then raises an error
            self._channel.send(message)

    def _read(self, stream: int, selector: selectors.BaseSelector) -> None:
        try:
            text = os.read(stream, _READ_NBYTES)
        except BlockingIOError:  # a process outside the testbed holds the other end; don't wait for it
            text = b""
        lines = self._streams[stream]
        if not text:
            selector.unregister(stream)
            del self._streams[stream]
            os.close(stream)
        lines.take(text)


def _gone() -> TestbedError:
    return TestbedError("the testbed's supervisor is gone, and every host with it; start a new testbed")


# Keep a virtual machine's cores from sleeping long while hosts run, so that links keep their rate.
#
# A hypervisor may take longer to wake an idle core than a limit's burst lasts; the token bucket then loses
# the tokens beyond its burst. On two contended virtual cores, a 500 Mbit link reached 446..452 Mbit, and
# 467..476 if its cores woke up all the time. A hypervisor keeps a core that it expects to wake soon, and a
# core that sleeps briefly still takes over waiting work from the others, which a spinning core doesn't.

_CPUINFO = Path("/proc/cpuinfo")
_WAKE = (sys.executable, "-I", "-S", "-c", "import time\nwhile True: time.sleep(1e-4)")


def is_virtual(cpuinfo: str) -> bool:
    """Return whether ``/proc/cpuinfo`` shows a hypervisor, which x86 processors report."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def keep_awake() -> list[subprocess.Popen[bytes]]:
    """Start a process on every core that wakes it continually; the caller ends the processes.

    They run only while the core is otherwise idle. None are started on physical machines, whose cores wake up
    quickly, and on machines of unknown kind.
    """
    try:
        virtual = is_virtual(_CPUINFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        virtual = False
    return [_wake(core) for core in sorted(os.sched_getaffinity(0))] if virtual else []


def _wake(core: int) -> subprocess.Popen[bytes]:
    none = subprocess.DEVNULL
    process = subprocess.Popen(_WAKE, stdin=none, stdout=none, stderr=none, start_new_session=True)
    try:
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setaffinity(process.pid, {core})
    except OSError:  # at normal priority, it would compete with the hosts
        with suppress(ProcessLookupError):
            process.kill()
    return process


# The NICs of a run: one program per host, started before its command and ended after it.

READY_TIMEOUT_S = 30.0
END_TIMEOUT_S = 2.0
"""The time for a NIC to print its counters and end after SIGTERM, in seconds."""


class NicPrograms:
    """The NIC programs of a run, one in each NIC's namespace; empty without NICs."""

    def __init__(self, command: Sequence[str], namespaces: Sequence[int]) -> None:
        self._command = (*command, "--host", NIC_HOST, "--link", NIC_LINK, "--ready-fd")
        self._namespaces = namespaces
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, outputs: Sequence[int]) -> None:
        """Start all NICs, and wait until they forward frames. Raises ``TestbedError`` if one doesn't.

        ``outputs`` has a file for the output of each NIC.
        """
        ready: list[int] = []
        self._running = []
        try:
            for namespace, output in zip(self._namespaces, outputs, strict=False):
                heard, told = os.pipe2(os.O_CLOEXEC)
                ready.append(heard)
                try:
                    self._running.append(self._start(namespace, output, told))
                finally:
                    os.close(told)
            deadline = time.monotonic() + READY_TIMEOUT_S
            for host, heard in enumerate(ready):
                _await(host_name(host), heard, deadline)
        finally:
            for heard in ready:
                os.close(heard)

    def end(self) -> None:
        """Send SIGTERM to the NICs, and after ``END_TIMEOUT_S`` SIGKILL."""
        for process in self._running:
            process.terminate()
        deadline = time.monotonic() + END_TIMEOUT_S
        for process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        self._running = []

    def _start(self, namespace: int, output: int, ready_fd: int) -> subprocess.Popen[bytes]:
        with inside(namespace), lending(CAP_NET_ADMIN, CAP_NET_RAW):
            return subprocess.Popen(
                [*self._command, str(ready_fd)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[ready_fd],
                start_new_session=True,  # so that Ctrl-C reaches the hosts only
            )


def _await(name: str, heard: int, deadline: float) -> None:
    readable, _, _ = select.select([heard], [], [], max(0.0, deadline - time.monotonic()))
    if not readable:
        raise TestbedError(
            f"the NIC of {name} did not forward frames within {READY_TIMEOUT_S:g} s; see the output of {name}"
        )
    if not os.read(heard, 1):
        raise TestbedError(f"the NIC of {name} failed to start; see the output of {name}")
