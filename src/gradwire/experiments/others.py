"""The share of the cores that other programs take while a row is measured."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from gradwire.experiments.experiment import Row
from gradwire.machine import cores, stolen_s
from gradwire.units import counted

OTHERS = "others"
"""The field of a row with the share of the cores that other programs, and a hypervisor, took meanwhile."""
SHORTEST_S = 1.0
"""The kernel counts in ticks of 10 ms: rows that took less than this don't say it."""
PROC = Path("/proc")
_KERNEL = 2
"""The process ID of the kernel's thread daemon, whose threads serve the measured programs, too."""


class OtherPrograms:
    """The processor time of all that this process did not start; unknown without Linux's ``/proc``."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._since, self._before = time.monotonic(), others_s(proc)

    def joined(self, row: Row) -> Row:
        """Return a row with the share since the last one."""
        began, before = self._since, self._before
        self._since, self._before = time.monotonic(), others_s(self._proc)
        took = self._since - began
        if before is None or self._before is None or took < SHORTEST_S:
            return row
        return {**row, OTHERS: min(1.0, max(0.0, self._before - before) / took / cores())}


def others_s(proc: Path = PROC) -> float | None:
    """Return the seconds of processes that aren't this one's descendants, and those a hypervisor stole.

    A process that ended counts through its parent, which waited for it. None without Linux's ``/proc``.
    """
    ticks: dict[int, int] = {}
    parents: dict[int, int] = {}
    try:
        stolen = stolen_s(proc)
        for path in proc.glob("[0-9]*/stat"):
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:  # it ended meanwhile
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
    """Return a sentence about the rows that say it; nothing if none does.

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
