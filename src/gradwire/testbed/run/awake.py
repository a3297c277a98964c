"""Keep a virtual machine's cores from sleeping long while hosts run, so that links keep their rate.

An idle core goes back to the hypervisor, which may take longer to return it than a limit's burst lasts; the
tokens that the bucket would have earned beyond its burst are then lost. On two contended virtual cores, a
500 Mbit line reached 446..452 Mbit, and 467..476 if its cores woke up all the time. A hypervisor waits for a
core that it expects back soon, and a core that sleeps briefly still takes over waiting work from the others,
which a spinning core doesn't.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_WAKE = (sys.executable, "-I", "-S", "-c", "import time\nwhile True: time.sleep(1e-4)")


def is_virtual(cpuinfo: str) -> bool:
    """Return whether ``/proc/cpuinfo`` shows a hypervisor, which x86 processors report."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def keep_awake() -> list[subprocess.Popen[bytes]]:
    """Start a process on every core that wakes it all the time; the caller ends them.

    They run only while the core is otherwise idle. On real machines, whose cores wake up quickly, and on
    machines of unknown kind, there are none.
    """
    try:
        virtual = is_virtual(_CPUINFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        virtual = False
    return [_wake(core) for core in sorted(os.sched_getaffinity(0))] if virtual else []


def _wake(core: int) -> subprocess.Popen[bytes]:
    none = subprocess.DEVNULL
    process = subprocess.Popen(_WAKE, stdin=none, stdout=none, stderr=none, start_new_session=True)
    try:
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setaffinity(process.pid, {core})
    except OSError:  # at an ordinary priority it would be in the way
        with suppress(ProcessLookupError):
            process.kill()
    return process
