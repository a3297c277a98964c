"""Which functions of gradwire one bucket enters: the number may fall, and rises only on purpose.

Looked at is a warm step of two ranks over sockets, on all threads, from the call of DDP's hook until the
bucket's future is complete. Its path are the functions under way where it passes from one thread to the
other, into the kernel, out of it, or back to DDP; beside them are those that return before. Each counts
once, however often it is entered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support import walk_ranks
from support.project import ROOT

pytestmark = pytest.mark.processes

AT_MOST = {"fp8": 138, "identity": 128}  # fp8: its kernels are chosen
SOMETIMES = {
    "links/sockets.py SocketLink.sleep",  # where a frame has not come yet
    "links/channel.py Channel._wake_at",  # where a part of it has
    "ddp/rounds.py _pass_failure_on",  # beside who waits for the future, as the rest
    "sync/ledger/meter.py LostMeter.note",
    "sync/ledger/lost.py Measured.of",
    "sync/ledger/lost.py Measured.usable",
    "sync/ledger/lost.py Measured.shares",
    "sync/ledger/lost.py share_of",
    "sync/ledger/lost.py is_rounding",
}
"""What depends on which rank is faster, and counts in any case."""


@pytest.mark.parametrize("spec", AT_MOST)
def test_a_bucket_goes_the_way_that_contributing_tells_and_enters_little_beside(
    run_processes: Callable[..., list[Any]], spec: str
) -> None:
    lines = (ROOT / "CONTRIBUTING.md").read_text().partition("path of one bucket")[2].splitlines()
    told = [" ".join(line.split()[:2]) for line in lines if line.startswith("    ") and ".py " in line]
    assert len(told) <= 15
    for path, names in run_processes(2, walk_ranks.walk, spec, alone=True):
        assert path == told
        entered = {*names, *SOMETIMES}
        assert len(entered) <= AT_MOST[spec], f"{len(entered)} functions:\n" + "\n".join(sorted(entered))
