"""The supervisor of a testbed: the first process of its private namespaces.

It creates the network, starts and signals commands, decides nothing, and may be killed at any time:
the kernel then ends every process in the namespaces and removes every link.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from gradwire.errors import TestbedError
from gradwire_lab.testbed.layout import await_links, choose_impairment, insert_nics, make_network
from gradwire_lab.testbed.namespaces import forget_ambient_capabilities, inside
from gradwire_lab.testbed.registry import forget
from gradwire_lab.testbed.relay_program import RelayProgram
from gradwire_lab.testbed.runner import Channel, Message, NicPrograms, keep_awake
from gradwire_lab.testbed.topology import Topology, host_name


class Supervisor:
    """A server for the testbed at the other end of the channel. Closing that end stops the server."""

    def __init__(
        self, channel: Channel, namespaces: list[int], nics: NicPrograms, relay: RelayProgram
    ) -> None:
        self._channel = channel
        self._namespaces = namespaces
        self._nics = nics
        self._relay = relay
        self._hosts: dict[int, tuple[int, float, subprocess.Popen[bytes]]] = {}
        """The host, start time, and ``Popen`` of each running command, by process ID."""
        self._awake: list[subprocess.Popen[bytes]] = []

    def serve(self) -> None:
        """Handle messages from the channel and watch the children; return when the channel is closed."""
        woken, waker = socket.socketpair()
        woken.setblocking(False)
        waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            self._serve(woken)
        finally:
            signal.set_wakeup_fd(-1)

    def _serve(self, woken: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            selector.register(self._channel, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is woken:
                        woken.recv(4096)
                        self._reap()
                    elif not self._obey():
                        return

    def _obey(self) -> bool:
        received = self._channel.receive()
        if received is None:
            return False
        message, files = received
        match message["do"]:
            case "start":
                self._start(message, files)
            case "signal":
                for process in list(self._hosts):
                    with suppress(ProcessLookupError):
                        os.killpg(process, message["number"])
            case "sweep":
                self._nics.end()
                report = self._relay.end()
                sweep()
                self._channel.send({"told": "swept", "relay": report})
        return True

    def _start(self, message: Message, files: list[int]) -> None:
        """Start the command on every host, with two of ``files`` as its standard output and error."""
        try:
            self._awake = keep_awake()  # the sweep ends these processes
            self._relay.start()
            self._nics.start(files[1::2])
            for host, namespace in enumerate(self._namespaces):
                with inside(namespace):
                    process = subprocess.Popen(
                        message["command"],
                        env=message["environments"][host],
                        cwd=message["folder"],
                        stdin=subprocess.DEVNULL,
                        stdout=files[2 * host],
                        stderr=files[2 * host + 1],
                        start_new_session=True,
                    )
                self._hosts[process.pid] = (host, time.monotonic(), process)
        except TestbedError as error:
            sweep()
            self._channel.send({"told": "failed", "reason": str(error)})
        except OSError as error:
            sweep()
            self._hosts.clear()
            self._channel.send({"told": "refused", "reason": error.strerror or str(error)})
        finally:
            for file in files:
                os.close(file)

    def _reap(self) -> None:
        """Report the hosts' commands that have ended, and reap the orphans of this process."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                code, nic = os.waitstatus_to_exitcode(status), self._nics.host_of(pid)
                if pid == self._relay.pid:
                    self._stop("the relay that delays frames", code, "no host is reachable")
                    return
                if nic is not None:
                    self._stop(f"the NIC of {host_name(nic)}", code, "the host isn't reachable")
                    return
                if pid in self._hosts:
                    host, started, process = self._hosts.pop(pid)
                    process.returncode = code
                    seconds = time.monotonic() - started
                    self._channel.send(
                        {"told": "exited", "host": host, "code": process.returncode, "seconds": seconds}
                    )

    def _stop(self, program: str, code: int, effect: str) -> None:
        """End the run, because frames no longer reach all hosts."""
        self._relay.end()
        sweep()
        self._hosts.clear()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        reason = f"{program} ended with {how}, and {effect}; start a new run"
        self._channel.send({"told": "failed", "reason": reason})


def sweep() -> None:
    """Kill all other processes in the namespaces, and wait until they have ended."""
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def main(descriptor: int, entry: Path, outside: str) -> None:
    """Serve a testbed from its process 1, and remove its registry ``entry``, even if it was killed.

    ``outside`` is the testbed's process namespace, which must differ from the supervisor's.
    """
    if os.getpid() != 1 or outside == os.readlink("/proc/self/ns/pid"):  # sweep() would kill all processes
        raise SystemExit("expected to run as process 1 of a testbed's namespaces; use gradwire testbed run")
    try:
        _serve(Channel(socket.socket(fileno=descriptor)))
    except BrokenPipeError:
        pass  # the testbed is gone
    finally:
        sweep()
        forget(entry)


def _serve(channel: Channel) -> None:
    first = channel.receive()
    if first is None:
        return
    try:
        topology, words = Topology.from_dict(first[0]["topology"]), first[0]["nic"]
        impairment = choose_impairment(topology, netem=first[0].get("netem", True))
        namespaces = make_network(topology, impairment)
        nics = insert_nics(topology, namespaces) if words else []
        await_links([*namespaces, *nics])
        forget_ambient_capabilities()
    except (TestbedError, OSError) as error:
        channel.send({"told": "failed", "reason": str(error)})
        return
    channel.send({"told": "ready", "impairment": impairment})
    relay = RelayProgram(topology if impairment == "relay" else None)
    Supervisor(channel, namespaces, NicPrograms(words, nics), relay).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
