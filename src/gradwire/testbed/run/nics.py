"""The NICs of a run: a program for each host, started before its command and ended after it."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence

from gradwire.errors import TestbedError
from gradwire.testbed.network.namespaces import CAP_NET_ADMIN, CAP_NET_RAW, inside, lending
from gradwire.testbed.network.topology import NIC_HOST, NIC_LINK, host_name

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
        """Ask the NICs to end, and wait for a short time; whoever sweeps ends the rest."""
        for process in self._running:
            process.terminate()
        deadline = time.monotonic() + END_TIMEOUT_S
        for process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        self._running = []

    def _start(self, namespace: int, output: int, told: int) -> subprocess.Popen[bytes]:
        with inside(namespace), lending(CAP_NET_ADMIN, CAP_NET_RAW):
            return subprocess.Popen(
                [*self._command, str(told)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[told],
                start_new_session=True,  # Ctrl-C is for the hosts
            )


def _await(name: str, heard: int, deadline: float) -> None:
    readable, _, _ = select.select([heard], [], [], max(0.0, deadline - time.monotonic()))
    if not readable:
        raise TestbedError(f"the NIC of {name} did not forward frames within {READY_TIMEOUT_S:g} s")
    if not os.read(heard, 1):
        raise TestbedError(f"the NIC of {name} ended at its start, for the reason in the output of {name}")
