from __future__ import annotations

import math

import pytest

from gradwire.training.offload.ledger import LayerCounts, OffloadLedger


def test_counts_add_up_over_layers() -> None:
    ledger = OffloadLedger({"a": LayerCounts(), "b": LayerCounts(gradient_nbytes=12)})
    assert math.isnan(ledger.ratio)
    ledger.sent("a", 10, 5)
    ledger.sent("b", 20, 5)
    ledger.sent("a", 6, 5)
    assert ledger.layers["a"] == LayerCounts(2, 16, 40)
    assert ledger.total == LayerCounts(3, 36, 60, 12)
    assert ledger.ratio == pytest.approx(60 / 36)
