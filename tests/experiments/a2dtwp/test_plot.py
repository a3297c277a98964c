from __future__ import annotations

import pytest

from gradwire.experiments.a2dtwp.plot import plot
from support.offloaded_rows import row


def test_the_picture_is_a_png_with_and_without_the_baseline() -> None:
    pytest.importorskip("matplotlib")
    errors = [0.8, 0.7, 0.6, 0.5]
    every = [row("fp32", 2.0, errors), row("awp", 1.0, errors), row("static:8", 1.0, [0.9] * 4)]
    for rows in (every, every[2:]):
        assert plot(rows).startswith(b"\x89PNG")
