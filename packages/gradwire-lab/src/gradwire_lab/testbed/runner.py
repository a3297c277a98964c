"""Run one command on all hosts: pass on their output, and end them when necessary."""

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
    """Starts a command through the supervisor's channel and follows it to its end."""

    def __init__(self, channel: Channel, watch: Watch, sinks: tuple[Sink, ...]) -> None:
        self._channel = channel
        self._watch = watch
        self._sinks = sinks
        self._swept = False
        self._failure = ""
        self._streams: dict[int, Lines] = {}
        """Descriptor -> who takes what comes out of it."""

    def follow(self, command: Sequence[str], environments: Sequence[Mapping[str, str]], folder: Path) -> None:
        """Return when every process that the command has started is gone.

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
                for stream in list(self._streams):  # all writers are dead: this is all
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
                    f"the command cannot be started: {message['reason']}; it must be a program for this "
                    "machine, or begin with '#!' and one"
                )
            case "failed":  # a NIC, before any command; what it printed is yet to be read
                self._failure, self._swept = message["reason"], True
            case "swept":
                self._swept = True

    def _tell(self, message: dict[str, object]) -> None:
        with suppress(BrokenPipeError):  # what is missing then is heard
            self._channel.send(message)

    def _read(self, stream: int, selector: selectors.BaseSelector) -> None:
        try:
            text = os.read(stream, _READ_NBYTES)
        except BlockingIOError:  # somebody outside was handed the other end; it is not ours to wait for
            text = b""
        lines = self._streams[stream]
        if not text:
            selector.unregister(stream)
            del self._streams[stream]
            os.close(stream)
        lines.take(text)


def _gone() -> TestbedError:
    return TestbedError("the testbed's supervisor is gone, and every host with it; somebody has killed it")


# Keep a virtual machine's cores from sleeping long while hosts run, so that links keep their rate.
#
# An idle core goes back to the hypervisor, which may take longer to return it than a limit's burst lasts; the
# tokens that the bucket would have earned beyond its burst are then lost. On two contended virtual cores, a
# 500 Mbit line reached 446..452 Mbit, and 467..476 if its cores woke up all the time. A hypervisor waits for
# a core that it expects back soon, and a core that sleeps briefly still takes over waiting work from the
# others, which a spinning core doesn't.

_CPUINFO = Path("/proc/cpuinfo")
_WAKE = (sys.executable, "-I", "-S", "-c", "import time\nwhile True: time.sleep(1e-4)")


def is_virtual(cpuinfo: str) -> bool:
    """Return whether ``/proc/cpuinfo`` shows a hypervisor, which x86 processors report."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def keep_awake() -> list[subprocess.Popen[bytes]]:
    """Start a process on every core that wakes it all the time; the caller ends them.

    They run only while the core is otherwise idle. On real machines, whose cores wake up quickly, and on
    machines of unknown kind, there are none.
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
    except OSError:  # at an ordinary priority it would be in the way
        with suppress(ProcessLookupError):
            process.kill()
    return process


# The NICs of a run: a program for each host, started before its command and ended after it.

READY_TIMEOUT_S = 30.0
END_TIMEOUT_S = 2.0
"""The time that a NIC has to end after SIGTERM, and to print what it counted."""


class NicPrograms:
    """Runs a command in the namespace of every NIC; without NICs, nothing."""

    def __init__(self, command: Sequence[str], namespaces: Sequence[int]) -> None:
        self._command = (*command, "--host", NIC_HOST, "--link", NIC_LINK, "--ready-fd")
        self._namespaces = namespaces
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, outputs: Sequence[int]) -> None:
        """Return when all NICs forward frames. Raises ``TestbedError`` if one doesn't.

        ``outputs`` are the files for what each NIC prints.
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
        """Ask the NICs to end, and wait for a short time; the sweep ends the rest."""
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
                start_new_session=True,  # Ctrl-C is for the hosts
            )


def _await(name: str, heard: int, deadline: float) -> None:
    readable, _, _ = select.select([heard], [], [], max(0.0, deadline - time.monotonic()))
    if not readable:
        raise TestbedError(f"the NIC of {name} did not forward frames within {READY_TIMEOUT_S:g} s")
    if not os.read(heard, 1):
        raise TestbedError(f"the NIC of {name} ended at its start, for the reason in the output of {name}")
