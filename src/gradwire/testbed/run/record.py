"""The record of a run: network, command, exit codes, times, and machine, without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

from gradwire.records import make_record, to_json
from gradwire.testbed.network.topology import Topology, address, host_name
from gradwire.testbed.run.watch import HostExit

SCHEMA = "gradwire-testbed/2"


@dataclass(frozen=True, slots=True)
class Run:
    """A command that has run on all hosts.

    ``failure`` is a sentence that says what went wrong, or None if every host ended with exit code 0.
    ``exit_code`` is then 0; otherwise, it is that of the host that failed first, or 124 after a timeout.
    Times are in seconds. ``nic`` is the command of the NIC between each host and its link, if there was one.
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

    def to_json(self) -> str:
        """Return the record as readable JSON; ``load`` says how busy the hosts' machine was."""
        fields = {
            "topology": self.topology.to_dict(),
            "command": list(self.command),
            "nic": list(self.nic),
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
