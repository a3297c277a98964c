from __future__ import annotations

import pytest

from gradwire.experiments.smart_nic.plot import plot

CURVE = [
    {"part": "scaling", "batch": 448, "nodes": nodes, "baseline": 1.0, "nic": 2.0, "nic_bfp": 3.0}
    for nodes in (3, 6)
]
STEP = {"part": "step", "method": "blocking", "codec": "identity", "measured_s": 2.0, "predicted_s": 2.1}


@pytest.mark.parametrize("rows", [[*CURVE, STEP], [STEP], [{"part": "ring"}]])
def test_a_picture_is_a_png_whatever_was_performed(rows: list[dict[str, object]]) -> None:
    pytest.importorskip("matplotlib")
    assert plot(rows).startswith(b"\x89PNG")
