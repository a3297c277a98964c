from __future__ import annotations

from math import isclose

import pytest

from gradwire.timing.calibrate import disagreement


@pytest.mark.parametrize(
    ("seconds", "share"),
    [
        ([], 0.0),
        ([5.0], 0.0),
        ([0.0, 0.0], 0.0),
        ([3.0, 3.0, 3.0, 3.0], 0.0),
        ([2.0, 4.0], 1 / 3),
        ([4.0, 3.0, 2.0], 1 / 3),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 1 / 3),  # quartiles 2 and 4
        ([1.0, 1.0, 1.0, 1.0, 1000.0], 0.0),  # one that was disturbed
    ],
)
def test_repeats_disagree_by_their_quartiles(seconds: list[float], share: float) -> None:
    assert isclose(disagreement(seconds), share)
    assert isclose(disagreement([1000 * each for each in seconds]), share), "whatever the unit"
