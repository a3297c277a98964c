"""The share of the cores that other programs use while a row is measured, to reveal a busy machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from gradwire.machine import cores, stolen_s
from gradwire.units import counted
from gradwire_lab.experiments.experiment import Row

OTHERS = "others"
"""The row's field with the share of the cores used by other programs and stolen by a hypervisor."""
SHORTEST_S = 1.0
"""Rows measured for less than this lack the field, because the kernel counts in ticks of 10 ms."""
PROC = Path("/proc")
_KERNEL = 2
"""The parent process of kernel threads: their time is not counted, because they work for the measurement."""


class OtherPrograms:
    """The CPU time of all processes that this process did not start; unknown without Linux's ``/proc``."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._since, self._before = time.monotonic(), others_s(proc)

    def joined(self, row: Row) -> Row:
        """Return the row with the share since the previous row."""
        began, before = self._since, self._before
        self._since, self._before = time.monotonic(), others_s(self._proc)
        took = self._since - began
        if before is None or self._before is None or took < SHORTEST_S:
            return row
        return {**row, OTHERS: min(1.0, max(0.0, self._before - before) / took / cores())}


def others_s(proc: Path = PROC) -> float | None:
    """Return the CPU seconds of processes not descended from this one, plus those stolen by a hypervisor.

    The parent's time includes an ended child's, for which it waited. None without Linux's ``/proc``.
    """
    ticks: dict[int, int] = {}
    parents: dict[int, int] = {}
    try:
        stolen = stolen_s(proc)
        for path in proc.glob("[0-9]*/stat"):
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:  # the process has ended
                continue
            fields = text.rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number] = int(fields[1])
            ticks[number] = sum(map(int, fields[11:15]))
    except (OSError, IndexError, ValueError):
        return None
    own = {os.getpid(), _KERNEL}
    while more := {number for number, parent in parents.items() if parent in own} - own:
        own |= more
    others = sum(spent for number, spent in ticks.items() if number not in own)
    return stolen + others / os.sysconf("SC_CLK_TCK")


def others_in_words(rows: Sequence[Row]) -> str:
    """Return a sentence about the rows that have the field; empty if none has.

    Examples
    --------
    >>> others_in_words([{"others": 0.004}, {"others": 0.05}, {}])
    'Other programs took 2.7 % of the cores (median of 2 rows of 3; 5.0 % at most).'
    """
    shares = [row[OTHERS] for row in rows if OTHERS in row]
    if not shares:
        return ""
    count = counted(len(shares), "row") + (f" of {len(rows)}" if len(shares) < len(rows) else "")
    median, most = 100 * statistics.median(shares), 100 * max(shares)
    return f"Other programs took {median:.1f} % of the cores (median of {count}; {most:.1f} % at most)."
