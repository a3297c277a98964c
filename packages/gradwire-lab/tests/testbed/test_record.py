"""The record of a run, as another program reads it."""

from __future__ import annotations

import json
from datetime import datetime, timezone

from gradwire_lab.testbed.output import SCHEMA, CommandRun, HostExit
from gradwire_lab.testbed.topology import Topology, address

RUN = CommandRun(
    Topology((125e6, None)),
    ("python", "-c", "print('é')"),
    (HostExit(0, 1.23456789), HostExit(137, 0.5)),
    datetime(2026, 3, 4, 5, 6, 7, 890, tzinfo=timezone.utc),
    0.1,
    2.00004,
    137,
    "host 1 was killed",
)


def test_it_says_what_ran_where_and_how_it_ended() -> None:
    record = json.loads(RUN.to_json())
    assert record["schema"] == SCHEMA
    assert Topology.from_dict(record["topology"]) == RUN.topology
    assert tuple(record["command"]) == RUN.command
    assert (record["exit_code"], record["failure"]) == (137, "host 1 was killed")
    assert [(each["address"], each["exit_code"]) for each in record["hosts"]] == [
        (address(0), 0),
        (address(1), 137),
    ]
    assert len({each["host"] for each in record["hosts"]}) == 2


def test_times_are_seconds_to_a_tenth_of_a_millisecond() -> None:
    record = json.loads(RUN.to_json())
    assert (record["set_up_s"], record["seconds"], record["hosts"][0]["seconds"]) == (0.1, 2.0, 1.2346)
    assert record["started"] == "2026-03-04T05:06:07+00:00"
    assert record["machine"]["load"] >= 0
