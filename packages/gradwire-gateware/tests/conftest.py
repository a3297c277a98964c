"""Where tests of circuits run: Amaranth in less time, and no search for garbage while they build."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import support.quick_amaranth  # noqa: F401 - replaces parts of Amaranth


@pytest.fixture(autouse=True)
def _keep_garbage() -> Iterator[None]:
    """Look for garbage after each test: a circuit is many objects, which all stay until it is simulated."""
    gc.disable()
    yield
    gc.enable()
