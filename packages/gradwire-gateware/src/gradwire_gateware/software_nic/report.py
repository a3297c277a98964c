"""The counters of a NIC, as a table and as JSON."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import MappingProxyType

from gradwire.records import to_json
from gradwire.tables import Column, Table
from gradwire_gateware.software_nic.card import Counts, Nic

SCHEMA = "gradwire-nic/1"
WORDS = MappingProxyType(
    {
        "frames_in": "frames in",
        "bytes_in": "bytes in",
        "frames_out": "frames out",
        "bytes_out": "bytes out",
        "compressed": "packets compressed",
        "restored": "packets restored",
        "payload_bytes": "their payload before",
        "body_bytes": "their payload after",
        "offers": "handshakes with a NIC's option",
        "other_codec": "with other settings",
        "raw_other": "raw: not marked",
        "raw_empty": "raw: without data",
        "raw_unseen": "raw: beginning not seen",
        "raw_no_peer": "raw: no such NIC at the peer",
        "raw_larger": "raw: would not shrink",
        "raw_repeated": "raw: sent again too often",
        "raw_bad_checksum": "raw: wrong checksum",
        "raw_arrived": "raw: arrived so",
        "malformed": "malformed, dropped",
        "faults_dropped": "dropped on purpose",
        "faults_reordered": "reordered on purpose",
        "unsent": "refused by the interface",
        "overruns": "arrived too fast, lost",
    }
)
"""The name of each counter in the table."""


def table_of(counts: Counts) -> Table:
    """Return a table of the counters that aren't zero."""
    ways = (counts["to_link"], counts["to_host"])
    rows = [
        (words, *(f"{way[name]}" if way[name] else "" for way in ways))
        for name, words in WORDS.items()
        if any(way[name] for way in ways)
    ]
    return Table((Column.of_text("NIC"), Column("to the link"), Column("to the host")), rows)


def json_of(counts: Counts) -> str:
    """Return all counters as JSON."""
    return to_json({"schema": SCHEMA, **counts})


# Run a NIC until a signal ends it.

LOOK_S = 0.5
"""The interval in seconds between checks that the interfaces still exist."""
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(start: Callable[[], Nic], tell: Callable[[Counts], None], ready: int | None = None) -> None:
    """Run a NIC until SIGTERM, SIGINT, or SIGHUP; then stop it and pass its counters to ``tell``.

    On SIGUSR1, pass the counters so far to ``tell``. The signals stay blocked in this thread and the NIC's.

    Parameters
    ----------
    ready
        A descriptor to which a byte is written, and which is closed, once the NIC forwards frames.

    Raises
    ------
    NicError
        If the NIC can't start, or an interface disappears.
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
