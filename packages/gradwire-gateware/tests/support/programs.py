"""Programs of the system that some tests run."""

from __future__ import annotations

import os
import shutil

import pytest

from support.hardware_chunks import EXHAUSTIVE


def program(name: str) -> str:
    """Return the path of a program. Without it a test fails in CI and ``make gateware``, else is skipped."""
    found = shutil.which(name)
    if found is None:
        missing = f"wants the program {name}; on Debian, run apt-get install {name}"
        (pytest.fail if EXHAUSTIVE or "CI" in os.environ else pytest.skip)(missing)
    return str(found)
