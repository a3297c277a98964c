from __future__ import annotations

import pytest

from gradwire_lab.experiments.smart_nic import plot

CURVE = [
    {"part": "scaling", "batch": 448, "nodes": nodes, "baseline": 1.0, "nic": 2.0, "nic_bfp": 3.0}
    for nodes in (3, 6)
]
PLACE = {"rate": "80mbit", "layers": 2, "width": 100, "batch": 50}
CALIBRATION = {"part": "calibration", "hosts": 2, **PLACE} | dict.fromkeys(
    ("compute_core_s", "update_core_s", "exchange_core_s", "exchange_s"), 1e-3
)
STEP = {"part": "step", "hosts": 3, **PLACE, "method": "naive", "codec": "identity", "step_s": [2.0, 2.1]}


@pytest.mark.parametrize("rows", [[*CURVE, CALIBRATION, STEP], [CALIBRATION, STEP], [{"part": "ring"}]])
def test_a_picture_is_a_png_whatever_was_performed(rows: list[dict[str, object]]) -> None:
    pytest.importorskip("matplotlib")
    assert plot(rows).startswith(b"\x89PNG")
