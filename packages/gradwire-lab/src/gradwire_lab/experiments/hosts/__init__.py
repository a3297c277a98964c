"""Measure on the hosts of testbeds: run a program on every host, and collect the rows that rank 0 prints."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any

from gradwire.errors import JobError
from gradwire_lab.experiments.experiment import Cell, Report, Row, pass_on
from gradwire_lab.testbed.bed import Testbed, inherited_environment
from gradwire_lab.testbed.output import Stream, show
from gradwire_lab.testbed.topology import USUAL_MTU_NBYTES, Topology

MARK = b"gradwire-row "
"""The prefix of each row on rank 0's standard output, where libraries may also write."""
WARNING = b": LossyWarning: "
"""The text that Python prints before a lossy warning."""
LEAST_HOSTS = 2


def check_networks(networks: Iterable[tuple[int, str] | tuple[int, str, str]]) -> None:
    """Raise ``SpecError`` or ``JobError`` unless all networks (hosts, rate, delay) are valid testbeds."""
    for hosts, rate, *delay in networks:
        if hosts < LEAST_HOSTS:
            raise JobError(f"expected at least {LEAST_HOSTS} hosts, got {hosts}; pass a larger number")
        Topology.even(hosts, rate, delay=delay[0] if delay else "0")


def measure_cells(
    module: str,
    cells: Sequence[Cell],
    report: Report,
    more: Mapping[str, object] | None = None,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Call ``measure`` of a module on all hosts, in one testbed per network of the cells.

    The arguments of ``measure`` are the ``Ranks``, the cells of one network, and ``more``, which is JSON.
    Cells have ``hosts`` and ``rate``. Cells may also have the ``delay`` of every frame, the links' ``mtu``,
    and, for a ``nic`` at each host, the arguments of ``gradwire nic``. Cells of one network are consecutive.
    ``variables`` are added to the hosts' environment.

    Raises ``TestbedError`` if this machine can't create such a testbed, and ``JobError`` if a host fails.
    """
    for (hosts, rate, mtu, nic, delay), group in groupby(cells, key=_network):
        work = json.dumps({**(more or {}), "cells": [dict(cell) for cell in group]})
        program = [sys.executable, "-m", "gradwire_lab.experiments.hosts.rank", module, work]
        run_on_hosts(hosts, rate, program, report, variables, mtu_nbytes=mtu, nic=nic, delay=delay)


def measured_by(
    module: str,
    given: Callable[[Any], Mapping[str, object]] = lambda _options: {},
    variables: Mapping[str, str] | None = None,
    apart: Sequence[str] = (),
) -> Callable[[Any, Sequence[Cell], Sequence[Row], Report], None]:
    """Return a run that measures all cells with ``measure_cells``; ``given`` returns its argument ``more``.

    Cells that differ in a name in ``apart`` get separate testbeds.
    """

    def run(options: Any, cells: Sequence[Cell], _before: Sequence[Row], report: Report) -> None:
        for _, group in groupby(cells, key=lambda cell: [cell[name] for name in apart]):
            measure_cells(module, list(group), report, given(options), variables)

    return run


def _network(cell: Cell) -> tuple[int, str, int, str, str]:
    mtu_nbytes, nic, delay = cell.get("mtu", USUAL_MTU_NBYTES), cell.get("nic", ""), cell.get("delay", "0")
    return cell["hosts"], cell["rate"], mtu_nbytes, nic, delay


def run_on_hosts(
    hosts: int,
    rate: str,
    command: Sequence[str],
    report: Report,
    variables: Mapping[str, str] | None = None,
    *,
    mtu_nbytes: int = USUAL_MTU_NBYTES,
    nic: str = "",
    delay: str = "0",
) -> None:
    """Run a command on every host of a new testbed, and report the rows that rank 0 prints.

    Raises ``TestbedError``, and ``JobError`` if a host fails.
    """
    if importlib.util.find_spec("torch") is None:
        importlib.import_module("torch")  # raises an error here, before every host would
    card = [sys.executable, "-m", "gradwire", "nic", "--codec", *nic.split()] if nic else []
    topology = Topology.even(hosts, rate, mtu_nbytes=mtu_nbytes, delay=delay)
    with closing(Rows(report)) as rows, Testbed(topology, nic=card) as bed:
        environment = inherited_environment() | dict(variables or {})
        failure = bed.run(command, environment=environment, sinks=(rows,)).failure
    if failure is not None:
        raise JobError(f"measuring on {hosts} hosts at {rate} failed: {failure}; see the output above")


class Rows:
    """A sink that reports rank 0's rows, copies other output to standard error, and logs lossy warnings."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._rest = b""
        self._begun: dict[int, bytes] = {}

    def __call__(self, host: int, stream: Stream, text: bytes) -> None:
        """Process a piece of output, which may end within a line."""
        if (host, stream) != (0, "out"):
            show(host, "err", text)
            if stream == "err":
                self._hear(host, text)
            return
        *lines, self._rest = (self._rest + text).split(b"\n")
        for line in lines:
            if line.startswith(MARK):
                self._report(json.loads(line.removeprefix(MARK)))
            else:
                show(host, "err", line)

    def close(self) -> None:
        """Process the ends of outputs that lack a newline; an incomplete row is only shown."""
        if self._rest:
            show(0, "err", self._rest)
        for host in self._begun:
            self._hear(host, b"\n")

    def _hear(self, host: int, text: bytes) -> None:
        *lines, self._begun[host] = (self._begun.get(host, b"") + text).split(b"\n")
        for line in lines:
            _, mark, sentence = line.partition(WARNING)
            if mark:
                pass_on(sentence.decode(errors="replace"))
