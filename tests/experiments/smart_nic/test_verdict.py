from __future__ import annotations

import pytest

from gradwire.experiments.smart_nic.verdict import claims, error

RINGS = [{"part": "ring", "model_cycles": 1000.0, "cycles": cycles} for cycles in (1001, 1020)]
FIGURES = [
    {"part": "figure", "what": what, "published": 2.0, "model": model}
    for what, model in (
        ("NIC + BFP, 6 nodes: speedup", 2.1),
        ("NIC + BFP, 32 nodes: speedup", 1.9),
        ("NIC + BFP: exposed time saved", 9.0),
    )
]
STEPS = [
    {"part": "step", "method": method, "codec": codec, "measured_s": measured_s, "predicted_s": 1.0}
    for method, codec, measured_s in (
        ("blocking", "identity", 2.0),
        ("overlapped", "identity", 1.0),
        ("layer-wise", "bfp:7x16", 0.98),
    )
]


def test_errors_are_those_of_the_model() -> None:
    assert error(RINGS[1]) == pytest.approx(-20 / 1020)
    assert error(FIGURES[0]) == pytest.approx(0.05)
    assert error(STEPS[0]) == pytest.approx(-0.5)


def test_claims_are_computed_from_the_rows() -> None:
    found = list(claims([*RINGS, *FIGURES, *STEPS]))
    assert [round(each.mean or 0.0, 4) for each in found] == [0.0196, 0.05, 0.0204, 2.0, 1.0204]
    assert [each.is_met for each in found] == [False, True, True, True, True]


def test_a_part_that_was_left_out_has_no_claims() -> None:
    assert [each.text for each in claims(RINGS)] == ["cycles of a ring: largest error of the model"]
