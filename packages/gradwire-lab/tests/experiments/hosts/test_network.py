"""Rows come back from rank 0 however its output is cut; a host that fails is an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import GradwireError, JobError
from gradwire_lab.experiments import hosts as network
from gradwire_lab.experiments.experiment import HeardWarnings
from gradwire_lab.experiments.hosts import MARK, Rows, check_networks, measure_cells, run_on_hosts
from support.beds import needs_namespaces

ROWS: list[dict[str, Any]] = [{"codec": "fp8", "curve": [1, 2.5, None]}, {"text": "a\nb gradwire-row é"}]
TEXT = b"".join(MARK + json.dumps(row).encode() + b"\n" for row in ROWS)


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_a_row_may_come_in_parts(cuts: list[int]) -> None:
    found: list[Mapping[str, Any]] = []
    rows = Rows(found.append)
    places = [0, *sorted(cuts), len(TEXT)]
    for begin, end in pairwise(places):
        rows(0, "out", TEXT[begin:end])
    assert found == ROWS


def test_other_lines_are_shown_with_their_host(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[Mapping[str, Any]] = []
    rows = Rows(found.append)
    rows(0, "out", b"a library speaks\n" + TEXT)
    rows(1, "out", MARK + b"{}\n")
    rows(0, "err", b"a warning\n")
    assert found == ROWS
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "h0 | a library speaks\nh1 | gradwire-row {}\nh0 | a warning\n"


def test_an_end_without_a_newline_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[Mapping[str, Any]] = []
    for text in (b"an error", TEXT[:-9]):
        rows = Rows(found.append)
        rows(0, "out", text)
        rows.close()
    assert found == ROWS[:1]
    last = TEXT[:-9].decode().splitlines()[-1]
    assert capsys.readouterr().err == f"h0 | an error\nh0 | {last}\n"


def test_lossy_warnings_of_hosts_are_logged_here_however_they_are_cut() -> None:
    text = b"/x/ddp.py:7: LossyWarning: rank 1: fp8 loses 99.0%\n  step()\n/x: UserWarning: no\n"
    rows = Rows(lambda _row: None)
    with HeardWarnings() as heard:
        for begin in range(0, len(text), 9):
            rows(1, "err", text[begin : begin + 9])
        rows(0, "err", b"a: LossyWarning: never ended")
        assert heard.joined({}) == {"lossy": ["rank 1: fp8 loses 99.0%"]}
        rows.close()
        assert heard.joined({}) == {"lossy": ["never ended"]}


@pytest.mark.parametrize("network", [(1, "1gbit"), (0, "1gbit"), (65, "1gbit"), (2, "1"), (2, "1kbit")])
def test_a_network_that_no_testbed_can_be_is_refused(network: tuple[int, str]) -> None:
    with pytest.raises(GradwireError):
        check_networks([(2, "1gbit"), network])


def test_each_network_has_one_testbed(monkeypatch: pytest.MonkeyPatch) -> None:
    started, networks = [], list[dict[str, object]]()

    def run(hosts: int, rate: str, command: list[str], *_: object, **link: object) -> None:
        assert command[:3] == [sys.executable, "-m", "gradwire_lab.experiments.hosts.rank"]
        started.append((hosts, rate, command[3], json.loads(command[4])))
        networks.append(link)

    monkeypatch.setattr(network, "run_on_hosts", run)
    cells = [
        {"hosts": hosts, "rate": rate, "codec": codec}
        for hosts, rate in ((2, "1gbit"), (4, "1gbit"), (4, "2gbit"))
        for codec in ("fp8", "bf16")
    ]
    measure_cells("some.module", cells, lambda _row: None, {"target": 0.5})
    assert started == [
        (hosts, rate, "some.module", {"target": 0.5, "cells": cells[first : first + 2]})
        for first, (hosts, rate) in zip((0, 2, 4), ((2, "1gbit"), (4, "1gbit"), (4, "2gbit")), strict=True)
    ]
    usual = {"mtu_nbytes": 1500, "nic": "", "delay": "0"}
    assert networks == [usual] * 3
    with_nics = [
        {**cells[0], "mtu": 9000, "nic": words} for words in ("truncate:16", "truncate:16 --no-merge")
    ]
    measure_cells("some.module", with_nics, lambda _row: None)
    assert networks[3:] == [{**usual, "mtu_nbytes": 9000, "nic": each["nic"]} for each in with_nics]
    delayed = [{**cells[0], "delay": delay} for delay in ("5ms", "25ms", "25ms")]
    measure_cells("some.module", delayed, lambda _row: None)
    assert networks[5:] == [{**usual, "delay": delay} for delay in ("5ms", "25ms")]


PROGRAM = (
    "import json, os, sys\n"
    "row = {'rank': os.environ['RANK'], 'world': os.environ['WORLD_SIZE'], 'given': os.environ['GIVEN']}\n"
    "print('gradwire-row', json.dumps(row), flush=True)\n"
    "sys.exit(3 if len(sys.argv) > 1 and os.environ['RANK'] == '1' else 0)\n"
)


@pytest.mark.processes
@needs_namespaces
def test_a_command_runs_on_every_host_and_one_that_fails_is_an_error() -> None:
    found: list[Mapping[str, Any]] = []
    command = [sys.executable, "-c", PROGRAM]
    run_on_hosts(2, "1gbit", command, found.append, {"GIVEN": "here"})
    assert found == [{"rank": "0", "world": "2", "given": "here"}]
    with pytest.raises(JobError, match="measuring on 2 hosts at 1gbit failed: h1 ended with exit code 3"):
        run_on_hosts(2, "1gbit", [*command, "fail"], found.append, {"GIVEN": "here"})
    assert len(found) == 2
