"""What a launcher tells a process, told to the test's own."""

from __future__ import annotations

import pytest


def launch(monkeypatch: pytest.MonkeyPatch, rank: object, world: object, port: object = 1) -> None:
    """Set the variables of ``torchrun``."""
    variables = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
