"""A folder that marks all processes of a testbed."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.beds import carriers, surroundings, wait_until


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder that marks all processes of the test; find the machine as it was afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = surroundings()
    yield tmp_path
    try:
        wait_until(lambda: not carriers(tmp_path))
    finally:
        for process in carriers(tmp_path):
            os.kill(process, signal.SIGKILL)
    assert surroundings() == before
    assert not list(tmp_path.glob("gradwire-testbed-*"))
