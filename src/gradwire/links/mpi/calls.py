"""How links call MPI: started with the first link, called by one thread at a time, never waited in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from gradwire.errors import LinkError
from gradwire.links.keepalive import SIGNS
from gradwire.version import how_to_install

_LONGEST_PAUSE_S = 1e-3

calls = threading.Lock()
"""Held in every call into MPI, so that links in several threads need no more than THREAD_SERIALIZED."""


def poll(is_done: Callable[[], bool], timeout_s: float, active_at: Callable[[], float] | None = None) -> bool:
    """Return whether ``is_done`` came true before nothing had happened for ``timeout_s``.

    It is asked often at first, and every millisecond later. ``active_at`` returns when something else last
    happened, as ``time.monotonic`` tells it; it is asked a few times within the timeout.
    """
    last, pause_s = time.monotonic(), 0.0
    looks_at = last + timeout_s / SIGNS
    while not is_done():
        now = time.monotonic()
        if active_at is not None and now >= looks_at:
            last, looks_at = max(last, active_at()), now + timeout_s / SIGNS
        if now >= last + timeout_s:
            return False
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s + 5e-6, _LONGEST_PAUSE_S)
    return True


def reason(error: Exception) -> str:
    """Return MPI's own words without the list of its calls, which MPICH puts behind them."""
    return str(error).partition(", error stack")[0].partition("\n")[0]


def load_mpi() -> Any:
    """Import mpi4py, which starts MPI, and see that it is fit for a link. Raises ``LinkError``."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # no mpi4py, or no library behind it
        raise LinkError(
            f"a link over MPI needs mpi4py and an MPI library, but {reason(error)}; "
            f"{how_to_install('mpi')}, and pip install mpich where the machine has no MPI of its own"
        ) from error
    if MPI.Is_finalized():
        raise LinkError("a link over MPI needs a running MPI, but MPI_Finalize has been called")
    level = MPI.Query_thread()
    if level < MPI.THREAD_SERIALIZED:
        had = "THREAD_SINGLE" if level == MPI.THREAD_SINGLE else "THREAD_FUNNELED"
        raise LinkError(
            "a link over MPI needs THREAD_SERIALIZED or more, since training exchanges in a thread of its "
            f"own, but MPI was started with {had}; set mpi4py.rc.thread_level = 'multiple' before mpi4py.MPI "
            "is first imported"
        )
    return MPI


def intracommunicator(mpi: Any, comm: Any) -> Any:
    """Return ``comm``, or ``COMM_WORLD`` for None. Raises ``LinkError`` where no link can have its ranks."""
    parent = mpi.COMM_WORLD if comm is None else comm
    if parent == mpi.COMM_NULL or parent.Is_inter():
        raise LinkError(
            "a link over MPI needs an intracommunicator that this process belongs to, such as COMM_WORLD"
        )
    return parent
