"""The record of a run: network, command, exit codes, times, and machine, without torch."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gradwire.testbed.network.topology import Topology, address, host_name
from gradwire.testbed.run.watch import HostExit
from gradwire.version import version

SCHEMA = "gradwire-testbed/1"


@dataclass(frozen=True, slots=True)
class Run:
    """A command that has run on all hosts.

    ``failure`` is a sentence that says what went wrong, or None if every host ended with exit code 0.
    ``exit_code`` is then 0; otherwise, it is that of the host that failed first, or 124 after a timeout.
    Times are in seconds.
    """

    topology: Topology
    command: tuple[str, ...]
    hosts: tuple[HostExit, ...]
    started: datetime
    set_up_s: float
    seconds: float
    exit_code: int
    failure: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a dictionary for JSON."""
        return {
            "schema": SCHEMA,
            "topology": self.topology.to_dict(),
            "command": list(self.command),
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
            "machine": describe_machine(),
        }

    def to_json(self) -> str:
        """Return the record as readable JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


def describe_machine() -> dict[str, object]:
    """Return the kernel, cores, and load of the machine that the hosts shared, but no names."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "gradwire": version(),
        "python": platform.python_version(),
    }
