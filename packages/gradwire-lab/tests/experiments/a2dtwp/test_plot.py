from __future__ import annotations

import pytest

from gradwire_lab.experiments.a2dtwp.report import plot
from support.offloaded_rows import training


def test_the_picture_is_a_png_with_and_without_the_baseline() -> None:
    pytest.importorskip("matplotlib")
    every = [training(policy, [0.8, 0.7, 0.6, 0.5]) for policy in ("fp32", "awp", "static:8")]
    for rows in (every, every[1:]):
        assert plot(rows).startswith(b"\x89PNG")
