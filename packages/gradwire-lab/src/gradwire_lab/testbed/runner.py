"""Run one command on all hosts, forward their output, and end them when necessary."""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from gradwire.errors import TestbedError
from gradwire_lab.testbed.namespaces import CAP_NET_ADMIN, CAP_NET_RAW, inside, lending
from gradwire_lab.testbed.output import STREAMS, Lines, Sink, Watch
from gradwire_lab.testbed.topology import NIC_HOST, NIC_LINK, host_name

# Messages between the testbed and its supervisor: JSON and open files over a socket pair.

Message = dict[str, Any]
_LENGTH = struct.Struct("!I")
_MOST_FILES = 253  # the kernel's own limit for a message


class Channel:
    """One end of a socket pair that carries JSON messages and open files.

    ``receive`` raises ``TimeoutError`` after its ``timeout_s``.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """Return the socket's descriptor, for selectors."""
        return self._end.fileno()

    def send(self, message: Message, files: Sequence[int] = ()) -> None:
        """Send a message and duplicates of open files. Raises ``OSError`` if the other end is closed."""
        body = json.dumps(message).encode("ascii")
        if files:
            socket.send_fds(self._end, [_LENGTH.pack(len(body))], list(files))
        else:
            self._end.sendall(_LENGTH.pack(len(body)))
        self._end.sendall(body)

    def receive(self, timeout_s: float | None = None) -> tuple[Message, list[int]] | None:
        """Return the next message and its files, or None if the other end is closed."""
        self._end.settimeout(timeout_s)
        try:
            head, files, _, _ = socket.recv_fds(self._end, _LENGTH.size, _MOST_FILES)
            for file in files:
                os.set_inheritable(file, False)  # recv_fds has no option for this
            rest = self._exactly(_LENGTH.size - len(head)) if head else None
            body = None if rest is None else self._exactly(_LENGTH.unpack(head + rest)[0])
        except ConnectionError:
            return None
        finally:
            self._end.settimeout(None)
        return None if body is None else (json.loads(body), files)

    def close(self) -> None:
        """Close this end, so that the other end receives None."""
        self._end.close()

    def _exactly(self, nbytes: int) -> bytes | None:
        body = bytearray()
        while len(body) < nbytes:
            part = self._end.recv(nbytes - len(body))
            if not part:
                return None
            body += part
        return bytes(body)


def pair() -> tuple[Channel, Channel]:
    """Return two connected channels."""
    one, other = socket.socketpair()
    return Channel(one), Channel(other)


# Ctrl-C as an event to wait for, so that it can't interrupt a run in the middle of a message.


@contextmanager
def interrupts() -> Iterator[socket.socket]:
    """Yield a socket that receives a byte for every SIGINT, instead of a ``KeyboardInterrupt``.

    No byte arrives if SIGINT is ignored, or outside of the main thread, which alone may handle SIGINT.
    """
    arrivals, notices = socket.socketpair()
    with arrivals, notices:
        if threading.current_thread() is not threading.main_thread() or _is_ignored():
            yield arrivals
            return
        arrivals.setblocking(False)
        notices.setblocking(False)
        handler = signal.signal(signal.SIGINT, lambda *_: None)
        before = signal.set_wakeup_fd(notices.fileno(), warn_on_full_buffer=False)
        try:
            yield arrivals
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGINT, handler)


def _is_ignored() -> bool:
    return signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)


# The run of a command.

_READ_NBYTES = 1 << 16


class Runner:
    """One run of a command on all hosts, through the supervisor's channel."""

    def __init__(self, channel: Channel, watch: Watch, sinks: tuple[Sink, ...]) -> None:
        self._channel = channel
        self._watch = watch
        self._sinks = sinks
        self._swept = False
        self._failure = ""
        self.relay: Message | None = None
        """The report of the run's relay, or None without a relay."""
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
            case "failed":  # a NIC or the relay failed; the hosts' output is still unread
                self._failure, self._swept = message["reason"], True
            case "swept":
                self.relay, self._swept = message.get("relay"), True

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
    return TestbedError("the testbed's supervisor has ended, and all hosts with it; start a new testbed")


# Keep a virtual machine's cores from sleeping long while hosts run, so that links keep their rate.
#
# A hypervisor may take longer to wake an idle core than a limit's burst lasts; the token bucket then loses
# the tokens beyond its burst. On two contended virtual cores, a 500 Mbit link reached 446..452 Mbit, and
# 467..476 if its cores woke up all the time. A hypervisor keeps a core that it expects to wake soon, and a
# core that sleeps briefly still takes over waiting work from other cores, unlike a spinning core.

_CPUINFO = Path("/proc/cpuinfo")
_WAKE = (sys.executable, "-I", "-S", "-c", "import time\nwhile True: time.sleep(1e-4)")


def is_virtual(cpuinfo: str) -> bool:
    """Return whether ``/proc/cpuinfo`` shows a hypervisor, which x86 processors report."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def keep_awake() -> list[subprocess.Popen[bytes]]:
    """Start a process on every core that keeps the core awake; the caller ends these processes.

    They run only while a core is idle, and only on virtual machines, whose cores may wake up slowly.
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
    except OSError:  # at normal priority, the process would compete with the hosts
        with suppress(ProcessLookupError):
            process.kill()
    return process


# The NICs of a run: one program per host, started before its command and ended after it.

READY_TIMEOUT_S = 30.0
END_TIMEOUT_S = 2.0
"""The time in seconds for a NIC to print its counters and end after SIGTERM."""


class NicPrograms:
    """The NIC programs of a run, one in each NIC's namespace; empty without NICs."""

    def __init__(self, command: Sequence[str], namespaces: Sequence[int]) -> None:
        self._command = (*command, "--host", NIC_HOST, "--link", NIC_LINK, "--ready-fd")
        self._namespaces = namespaces
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, outputs: Sequence[int]) -> None:
        """Start the NICs, each with its output, and wait until they forward. Raises ``TestbedError``."""
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

    def host_of(self, process: int) -> int | None:
        """Return the host of the NIC with this process ID, or None for another process."""
        return next((host for host, each in enumerate(self._running) if each.pid == process), None)

    def end(self) -> None:
        """Send SIGTERM to the NICs, and SIGKILL after ``END_TIMEOUT_S``."""
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
