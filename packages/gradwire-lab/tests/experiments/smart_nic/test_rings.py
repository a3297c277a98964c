from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gradwire.codecs import parse
from gradwire_gateware.ring_routes import Ring
from gradwire_lab.closed_forms.smart_nic import RingCircuit
from gradwire_lab.experiments.experiment import Reporter
from gradwire_lab.experiments.smart_nic import rings
from gradwire_lab.experiments.smart_nic.rings import cycles_of, simulate


def test_simulated_engines_take_the_cycles_of_the_model_and_a_latency() -> None:
    pytest.importorskip("amaranth")
    ring = Ring.of(parse("identity"), 2, 60)
    model = RingCircuit(8, 1.0, len(ring.routes.decoded_is_added)).cycles(2, 60, rounds=2)
    assert model == 60 + 2 * 120
    assert 2 * 8 <= cycles_of(ring, 2, 2) - model <= 2 * 20, "of which the adders take 8 each time"


def test_the_latency_is_that_of_another_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = []

    def cycles(ring: Ring, nodes: int, _rounds: int) -> int:
        probed.append((nodes, ring.chunk_words))
        return 1000

    monkeypatch.setattr(rings, "cycles_of", cycles)
    rows: list[Mapping[str, Any]] = []
    cell = {"part": "ring", "codec": "bfp:7x16", "nodes": 4, "rounds": 3, "chunk_words": 160}
    simulate([cell, {**cell, "rounds": 1}], Reporter(rows.append, lambda _: None))
    assert probed == [(2, 160), (4, 160), (4, 160)]
    row = rows[0]
    assert row.items() >= cell.items()
    assert row["ring_cycles"] == pytest.approx(6 * 160 * 17 / 64)
    assert (row["add_cycles"], row["memory_cycles"], row["cycles"]) == (6 * 160, 4 * 160, 1000)
    assert row["latency_cycles"] == 1000 - 3 * 160
    assert row["model_cycles"] == 160 + 3 * (6 * 160 + row["latency_cycles"])
