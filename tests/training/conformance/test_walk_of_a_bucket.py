"""How many functions of gradwire one bucket enters: the number may fall, and rises only on purpose.

Counted is a warm step of two ranks over sockets, on all threads, from the call of DDP's hook until the
bucket's future is complete. A function counts once, however often it is entered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support import walk_ranks

pytestmark = pytest.mark.processes

AT_MOST = {"fp8": 144, "identity": 126}
SOMETIMES = {
    "links/sockets.py SocketLink._sleep",  # where a frame has not come yet
    "links/sockets.py _Channel._wake_at",  # where a part of it has
    "links/sockets.py _Receiving.wait",
    "training/ddp/rounds.py _pass_failure_on",  # beside who waits for the future
    "training/ledger/lost_meter.py LostMeter.note",
}
"""What depends on which rank is faster, and counts in any case."""


@pytest.mark.parametrize("spec", AT_MOST)
def test_a_bucket_enters_no_more_functions_than_it_did(
    run_processes: Callable[..., list[Any]], spec: str
) -> None:
    for names in run_processes(2, walk_ranks.walk, spec, alone=True):
        entered = [*names, *sorted(SOMETIMES - set(names))]
        listed = "\n".join(entered)
        assert "links/sockets.py SocketLink.isend" in entered, "the walk ends before the socket"
        assert len(entered) <= AT_MOST[spec], f"{len(entered)} functions:\n{listed}"
