"""Run a NIC until a signal ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from gradwire.nic.card import Counts, Nic

LOOK_S = 0.5
"""How often to look whether the interfaces are still there."""
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(start: Callable[[], Nic], tell: Callable[[Counts], None], ready: int | None = None) -> None:
    """Start a NIC and wait for SIGTERM, SIGINT, or SIGHUP; then stop it and tell the counters.

    SIGUSR1 tells the counters so far. The signals stay blocked in this thread, and in the NIC's.

    Parameters
    ----------
    ready
        A descriptor that gets a byte, and is closed, when the NIC forwards.

    Raises
    ------
    NicError
        If the NIC can't start, or an interface vanishes.
    """
    awaited = {*_ENDS, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    with start() as nic:
        if ready is not None:
            os.write(ready, b"+")
            os.close(ready)
        while True:
            came = signal.sigtimedwait(awaited, LOOK_S)
            if came is None:
                nic.check()
            elif came.si_signo == signal.SIGUSR1:
                tell(nic.counts())
            else:
                break
    tell(nic.counts())
