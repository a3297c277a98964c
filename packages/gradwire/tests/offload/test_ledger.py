from __future__ import annotations

import math
import sys
import threading
import time
from contextlib import suppress

import pytest

from gradwire.offload.layers import LayerCounts, OffloadLedger


def test_counts_add_up_over_layers() -> None:
    ledger = OffloadLedger({"a": LayerCounts(), "b": LayerCounts(gradient_nbytes=12)})
    assert math.isnan(ledger.ratio)
    ledger.sent("a", 10, 5)
    ledger.sent("b", 20, 5)
    ledger.sent("a", 6, 5)
    assert ledger.layers["a"] == LayerCounts(2, 16, 40)
    assert ledger.total == LayerCounts(3, 36, 60, 12)
    assert ledger.ratio == pytest.approx(60 / 36)


def test_what_threads_count_at_once_adds_up() -> None:
    ledger = OffloadLedger({"a": LayerCounts()})

    def count() -> None:
        for _ in range(500):
            ledger.sent("a", 1, 1)
            ledger.returned("a", 2)
            ledger.spent("pack_s", 1.0)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    sys.setswitchinterval(before)
    assert ledger.total == LayerCounts(2000, 2000, 8000, 4000)
    assert ledger.pack_s == 2000.0


def test_the_seconds_of_a_block_count_even_if_it_fails() -> None:
    ledger = OffloadLedger()
    with suppress(ZeroDivisionError), ledger.clocked("decode_s"):
        time.sleep(0.01)
        raise ZeroDivisionError
    assert ledger.decode_s >= 0.01
