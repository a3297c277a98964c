"""Keep a virtual machine's cores from long sleep while hosts are at work, so that limits lose no rate.

A core with nothing to do is given back to the hypervisor, which may take longer to bring it back than a
limit's burst lasts; what the token bucket would have earned beyond its burst is lost then. On two contended
virtual cores a 500 Mbit line came to 446..452 Mbit, and to 467..476 when its cores woke up all the time. A
hypervisor waits for a core that it expects back soon, and a core that does sleep, if shortly, still takes
over waiting work from the others, which one that spins does not.
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
    """Return whether ``/proc/cpuinfo`` is that of a machine under a hypervisor, as x86 processors tell."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def keep_awake() -> list[subprocess.Popen[bytes]]:
    """Start a process on every core that wakes it all the time; the caller ends them.

    They work only while nobody else does. There are none where cores wake up quickly: on real machines, and
    where it cannot be told.
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
