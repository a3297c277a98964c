"""Run one command on all hosts: pass on their output, and end them when necessary."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from gradwire.errors import TestbedError
from gradwire.testbed.run.channel import Channel
from gradwire.testbed.run.interrupts import interrupts
from gradwire.testbed.run.output import STREAMS, Lines, Sink
from gradwire.testbed.run.watch import Watch

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
                for stream in list(self._streams):  # whoever could write is dead: what is there is all
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
