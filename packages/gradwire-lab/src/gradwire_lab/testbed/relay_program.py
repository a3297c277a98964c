"""The relay of a run as a child process of the supervisor."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from typing import Any

from gradwire.errors import TestbedError
from gradwire_lab.testbed.namespaces import CAP_NET_ADMIN, CAP_NET_RAW, lending
from gradwire_lab.testbed.topology import Topology

READY_TIMEOUT_S = 30.0
END_TIMEOUT_S = 5.0
"""The time for a relay to write its report and end."""


class RelayProgram:
    """The relay process of a run, started before the run's command; no process without a topology."""

    def __init__(self, topology: Topology | None) -> None:
        self._topology = topology
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        """The process ID of the running relay, or None."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the relay, and wait until it forwards frames. Raises ``TestbedError`` if the start fails."""
        if self._topology is None:
            return
        words = json.dumps(self._topology.to_dict())
        with lending(CAP_NET_ADMIN, CAP_NET_RAW):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gradwire_lab.testbed.relay", words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # so that Ctrl-C reaches the hosts only
            )
        told = self._hear(READY_TIMEOUT_S) or {"failed": "it ended, or did not start in time"}
        if "failed" in told:
            self.end()
            raise TestbedError(
                f"the relay that delays frames failed to start: {told['failed']}; omit the delay and the "
                "loss, or use a kernel with sch_netem"
            )

    def end(self) -> dict[str, Any] | None:
        """End the relay and return its report; None without a relay, or if the relay has failed."""
        if self._process is None:
            return None
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            told = self._hear(END_TIMEOUT_S)
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._process = None
        return told

    def _hear(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the relay's next line, or None if none arrives in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        line = self._process.stdout.readline() if readable else ""
        told: dict[str, Any] | None = json.loads(line) if line else None
        return told
